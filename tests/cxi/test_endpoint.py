"""Endpoints of the CXI provider: opening, binding, enabling, closing. fi_cxi(7) "SUPPORTED FEATURES"."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cxi.support import BOTH, CAPS, found, opened, register
from tests.fi.support import Node

from weft import cxi, fi
from weft.providers.cxi import service


def endpoint(node: Node, **edit: object) -> fi.Endpoint:
    """A second endpoint of the domain, not enabled."""
    info = fi.dupinfo(node.info)
    for name, value in edit.items():
        part, _, field = name.partition("__")
        setattr(getattr(info, part), field, value)
    return node.keep(node.domain.endpoint(info))  # type: ignore[no-any-return]


# ---- opening ---------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.ep.rdm")
def test_endpoint_is_opened_and_enabled(node: Node) -> None:
    assert node.info.ep_attr.type == fi.EP_RDM
    assert node.ep.enabled


@pytest.mark.parametrize("type", [fi.EP_MSG, fi.EP_DGRAM])
def test_other_types_are_refused(node: Node, type: int) -> None:
    with pytest.raises(fi.InvalidArgument):
        endpoint(node, ep_attr__type=type)


def test_unspecified_type_is_rdm(node: Node) -> None:
    endpoint(node, ep_attr__type=fi.EP_UNSPEC)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("tx_attr__size", 16385), ("rx_attr__size", 15361), ("tx_attr__inject_size", 193), ("tx_attr__iov_limit", 2)],
)
def test_attribute_beyond_the_providers_is_refused(node: Node, attribute: str, value: int) -> None:
    with pytest.raises(fi.InvalidArgument):
        endpoint(node, **{attribute: value})


def test_address_of_another_nic_is_refused(node: Node) -> None:
    info = fi.dupinfo(node.info)
    info.src_addr = cxi.Address(5, 7)
    with pytest.raises(fi.InvalidArgument, match="NIC 0x5"):
        node.domain.endpoint(info)


@pytest.mark.parametrize("tclass", [int(fi.TC_NETWORK_CTRL), int(fi.TC_DSCP) | 3, 77])
def test_traffic_class_that_is_no_label_is_refused(node: Node, tclass: int) -> None:
    with pytest.raises(fi.InvalidArgument):
        endpoint(node, tx_attr__tclass=tclass)


@pytest.mark.clause("cxi.sep.unsupported")
def test_scalable_endpoints_and_contexts_are_not_there(node: Node) -> None:
    for call in (
        lambda: node.domain.scalable_ep(node.info),
        lambda: node.domain.stx_context(None),
        lambda: node.domain.srx_context(None),
        lambda: node.ep.tx_context(0),
        lambda: node.ep.rx_context(0),
        lambda: node.ep.tx_size_left(),
        lambda: node.ep.rx_size_left(),
        lambda: node.fabric.passive_ep(node.info),
        lambda: node.ep.connect(node.name),
        lambda: node.ep.shutdown(),
        lambda: node.ep.getpeer(),
        lambda: node.ep.setname(node.name),
        lambda: endpoint(node).setname(node.name),
    ):
        with pytest.raises(fi.NoSys):
            call()


# ---- binding ---------------------------------------------------------------------------------------------------------


def test_binding_refuses_in_the_order_flags_domain_taken(node: Node) -> None:
    ep = endpoint(node)
    with opened() as other:
        with pytest.raises(fi.BadFlags):
            ep.bind(other.cq, fi.TRANSMIT | fi.READ)
        with pytest.raises(fi.InvalidArgument):
            ep.bind(other.cq, fi.TRANSMIT)
        with pytest.raises(fi.BadFlags):
            ep.bind(node.av, 1)
        with pytest.raises(fi.InvalidArgument):
            ep.bind(other.av)
        with pytest.raises(fi.InvalidArgument):
            ep.bind(None)  # type: ignore[arg-type]
        with pytest.raises(fi.InvalidArgument):
            ep.bind(register(node, np.zeros(1, "u8"), 7))  # type: ignore[arg-type]
        for mr in node.domain.regions():
            mr.close()
        ep.bind(node.cq, fi.TRANSMIT)
        with pytest.raises(fi.InvalidArgument, match="already"):
            ep.bind(node.cq, fi.TRANSMIT | fi.RECV)
        ep.bind(node.cq, fi.RECV)


def test_counter_is_bound_by_its_flags(node: Node) -> None:
    ep, cntr = endpoint(node), node.keep(node.domain.cntr_open())
    with pytest.raises(fi.BadFlags):
        ep.bind(cntr, fi.RMA)
    ep.bind(cntr, 0)
    with node.domain.cntr_open() as unbound:
        ep.bind(unbound, 0)
    ep.bind(cntr, fi.REMOTE_READ | fi.REMOTE_WRITE)  # without FI_RMA_EVENT, and never counting
    ep.bind(cntr, fi.WRITE | fi.SEND)
    with pytest.raises(fi.InvalidArgument, match="already"):
        ep.bind(cntr, fi.WRITE)


def test_queue_may_serve_both_directions_and_several_endpoints(node: Node) -> None:
    for _ in range(2):
        ep = endpoint(node)
        ep.bind(node.cq, BOTH)
        ep.bind(node.av)
        ep.enable()


# ---- enabling --------------------------------------------------------------------------------------------------------


def test_enable_asks_for_a_vector_then_for_queues() -> None:
    info = found(int(fi.RMA | fi.MSG))
    with (
        fi.Fabric(info.fabric_attr) as fabric,
        fabric.domain(info) as domain,
        domain.cq_open() as cq,
        domain.av_open() as av,
        domain.endpoint(info) as ep,
    ):
        with pytest.raises(fi.NoAv):
            ep.enable()
        ep.bind(av)
        with pytest.raises(fi.NoCq, match="TRANSMIT"):
            ep.enable()
        ep.bind(cq, fi.TRANSMIT)
        with pytest.raises(fi.NoCq, match="RECV"):
            ep.enable()
        ep.bind(cq, fi.RECV)
        ep.enable()
        ep.enable()


def test_enable_asks_for_a_transmit_queue_also_of_receivers() -> None:
    info = found(int(fi.MSG | fi.RECV))
    with (
        fi.Fabric(info.fabric_attr) as fabric,
        fabric.domain(info) as domain,
        domain.cq_open() as cq,
        domain.av_open() as av,
        domain.endpoint(info) as ep,
    ):
        ep.bind(av)
        ep.bind(cq, fi.RECV)
        with pytest.raises(fi.NoCq, match="TRANSMIT"):
            ep.enable()


def test_enable_looks_at_the_pid_before_the_queues(node: Node) -> None:
    """A PID that is taken is refused first, also where a queue is missing; a refusal keeps nothing."""
    info = fi.dupinfo(node.info)
    info.src_addr = node.name
    before = node.domain.policy.pool.taken
    with node.domain.endpoint(info) as ep:
        with pytest.raises(fi.NoAv):
            ep.enable()
        ep.bind(node.av)
        with pytest.raises(fi.NoSpace):
            ep.enable()
        ep.bind(node.cq, fi.TRANSMIT | fi.RECV)
        with pytest.raises(fi.NoSpace):
            ep.enable()
        assert node.domain.policy.pool.taken == before
    pid = (node.name.pid + 1) % 511
    info.src_addr = cxi.Address(node.name.nic, pid)
    with node.domain.endpoint(info) as ep:
        ep.bind(node.av)
        for _ in range(2):  # the first refusal has given the PID back
            with pytest.raises(fi.NoCq):
                ep.enable()
            assert node.domain.policy.pool.taken == before
        ep.bind(node.cq, fi.TRANSMIT)
        ep.enable()
        assert ep.getname().pid == pid


def test_enable_looks_at_portal_entries_before_the_queues() -> None:
    made = service.create(limits={"ptes": 3})
    with opened(enable=False, auth_key=cxi.AuthKey(made.id, 10)) as node, node.domain.endpoint(node.info) as ep:
        ep.bind(node.av)
        with pytest.raises(fi.NoSpace, match="ptes"):
            ep.enable()


def test_taken_pid_is_no_space_at_enable(node: Node) -> None:
    info = fi.dupinfo(node.info)
    info.src_addr = node.name
    with node.domain.endpoint(info) as ep:
        ep.bind(node.cq, BOTH)
        ep.bind(node.av)
        with pytest.raises(fi.NoSpace):
            ep.enable()


@pytest.mark.parametrize("enabled", [False, True])
def test_call_that_cannot_be_made_is_not_there(enabled: bool) -> None:
    """Before enable no data call works; after it the calls work that the capabilities allow."""
    with opened(int(fi.RMA | fi.WRITE), enable=enabled) as node:
        ep, word = node.ep, np.zeros(1, "u8")
        calls = [
            lambda: ep.read(word, None, 0, 0, 1),
            lambda: ep.fetch_atomic(word, None, word, None, 0, 0, 1, fi.UINT64, fi.SUM),
            lambda: ep.writedata(word, None, 1, 0, 0, 1),
            lambda: ep.inject_writedata(word, 1, 0, 0, 1),
            lambda: ep.send(word),
            lambda: ep.trecv(word, tag=1),
        ]
        if not enabled:
            calls += [lambda: ep.write(word, None, 0, 0, 1), lambda: ep.inject_write(word, 0, 0, 1)]
        for call in calls:
            with pytest.raises(fi.NoSys):
                call()


# ---- closing ---------------------------------------------------------------------------------------------------------


def test_objects_are_busy_while_an_endpoint_uses_them(node: Node) -> None:
    for fid in (node.cq, node.av, node.domain):
        with pytest.raises(fi.Busy):
            fid.close()  # type: ignore[attr-defined]


@pytest.mark.clause("cxi.alias.close-first")
def test_endpoint_is_busy_while_it_has_an_alias(node: Node) -> None:
    alias = node.ep.alias(fi.TRANSMIT)
    with pytest.raises(fi.Busy):
        node.ep.close()
    alias.close()
    node.ep.close()


def test_getname_waits_for_enable() -> None:
    with opened(CAPS, enable=False) as node, pytest.raises(fi.BadState):
        node.ep.getname()


# ---- cancel ----------------------------------------------------------------------------------------------------------


def test_cancel_is_of_receives_alone(node: Node) -> None:
    with pytest.raises(fi.NotFound):
        node.ep.cancel("nothing")
    with opened(int(fi.RMA | fi.MSG), enable=False) as receiver:
        with pytest.raises(fi.BadState, match="not enabled"):
            receiver.ep.cancel("nothing")
        receiver.ep.enable()
        with pytest.raises(fi.NotFound):
            receiver.ep.cancel("nothing")
