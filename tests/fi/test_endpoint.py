"""fi_endpoint(3), fi_cm(3): set-up, names, options."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests import patience
from tests.fi.support import PROVIDER, Node, addresses, opened

from weft import fi


def bare(node: Node) -> fi.Endpoint:
    """A second endpoint of the domain, bound to nothing."""
    return node.keep(node.domain.endpoint())  # type: ignore[no-any-return]


@pytest.mark.general("addresses as strings")
def test_ep_enable_claims_an_address(node: Node) -> None:
    assert node.ep.enabled
    name = node.ep.getname()
    assert name
    assert not PROVIDER.weft or name.startswith("weft://0/1/")
    node.ep.enable()  # again: nothing
    assert node.ep.getname() == name


def test_ep_getname_before_enable_is_badstate() -> None:
    with opened(enable=False) as node, pytest.raises(fi.BadState) as caught:
        node.ep.getname()
    assert caught.value.errno == fi.EOPBADSTATE


def test_ep_enable_without_address_vector_is_enoav(node: Node) -> None:
    ep = bare(node)
    ep.bind(node.cq, fi.TRANSMIT | fi.RECV)
    with pytest.raises(fi.NoAv) as caught:
        ep.enable()
    assert caught.value.errno == fi.ENOAV


def test_ep_enable_without_completion_queue_is_enocq(node: Node) -> None:
    """fi_endpoint(3): a queue is needed even where only counters are wanted: failures are reported there."""
    ep = bare(node)
    ep.bind(node.av)
    with pytest.raises(fi.NoCq) as caught:
        ep.enable()
    assert caught.value.errno == fi.ENOCQ
    ep.bind(node.cq, fi.RECV)
    with pytest.raises(fi.NoCq, match="TRANSMIT"):
        ep.enable()
    ep.bind(node.cq, fi.TRANSMIT)
    ep.enable()


def test_ep_that_initiates_nothing_needs_no_transmit_queue() -> None:
    with opened(caps=fi.RMA | fi.REMOTE_READ | fi.REMOTE_WRITE) as node:
        ep = bare(node)
        ep.bind(node.av)
        ep.enable()


@pytest.mark.general("addresses as strings")
def test_ep_address_can_be_chosen(node: Node) -> None:
    ep = bare(node)
    ep.bind(node.av)
    ep.bind(node.cq, fi.TRANSMIT | fi.RECV)
    chosen, other = addresses(2)
    ep.setname(chosen)
    ep.enable()
    assert ep.getname() == chosen
    with pytest.raises(fi.BadState):
        ep.setname(other)
    assert ep.getname() == chosen


@pytest.mark.general("addresses as strings")
@pytest.mark.general("addresses as strings")
def test_ep_src_addr_of_the_info_is_used() -> None:
    (name,) = addresses(1)

    def named(given: fi.Info) -> None:
        given.src_addr = name

    with opened(edit=named) as node:
        assert node.ep.getname() == name


@pytest.mark.general("addresses as strings")
def test_ep_address_of_the_info_is_used() -> None:
    info = fi.getinfo(node="weft0", service="23456789", flags=fi.SOURCE, hints=fi.Info(caps=fi.RMA))[0]

    def same(given: fi.Info) -> None:
        given.src_addr = info.src_addr

    with opened(edit=same) as node:
        assert node.ep.getname() == "weft://0/1/23456789"


@pytest.mark.general("addresses as strings")
def test_ep_taken_address_is_eaddrinuse(node: Node) -> None:
    ep = bare(node)
    ep.bind(node.av)
    ep.bind(node.cq, fi.TRANSMIT | fi.RECV)
    if PROVIDER.weft:
        ep.setname(node.name)  # enable() refuses it
    with pytest.raises(fi.AddressInUse) as caught:
        _claim(ep, node.name)
    assert caught.value.errno == fi.EADDRINUSE
    assert not ep.enabled
    ep.setname("weft://0/1" if PROVIDER.weft else addresses(1)[0])  # any
    ep.enable()
    assert ep.getname() != node.name


def _claim(ep: fi.Endpoint, name: Any) -> None:
    ep.setname(name)
    ep.enable()


def test_ep_address_is_free_after_close() -> None:
    with opened() as node:
        name = node.name
    with opened(enable=False) as node:
        node.ep.setname(name)
        node.ep.enable()
        assert node.name == name


@pytest.mark.general("addresses as strings")
def test_ep_setname_of_another_vni_is_invalid(node: Node) -> None:
    ep = bare(node)
    with pytest.raises(fi.InvalidArgument, match="VNI"):
        ep.setname("weft://0/7/1")
    with pytest.raises(fi.InvalidArgument):
        ep.setname("nonsense")


def test_ep_bind_after_enable_is_badstate(node: Node) -> None:
    cntr = node.keep(node.domain.cntr_open())
    with pytest.raises(fi.BadState, match="enabled"):
        node.ep.bind(cntr, fi.WRITE)


@pytest.mark.parametrize(
    ("make", "flags", "error"),
    [
        (lambda d: d.cq_open(), 0, fi.BadFlags),
        (lambda d: d.cq_open(), fi.SELECTIVE_COMPLETION, fi.BadFlags),
        (lambda d: d.cq_open(), fi.TRANSMIT | fi.FENCE, fi.BadFlags),
        (lambda d: d.cntr_open(), 0, fi.BadFlags),
        (lambda d: d.cntr_open(), fi.WRITE | fi.FENCE, fi.BadFlags),
        (lambda d: d.av_open(), fi.TRANSMIT, fi.BadFlags),
    ],
)
def test_ep_bind_flags_are_checked(node: Node, make: Any, flags: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        bare(node).bind(node.keep(make(node.domain)), flags)


def test_ep_bind_twice_is_invalid(node: Node) -> None:
    ep = bare(node)
    ep.bind(node.cq, fi.TRANSMIT)
    ep.bind(node.av)
    cntr = node.keep(node.domain.cntr_open())
    ep.bind(cntr, fi.READ | fi.WRITE)
    for obj, flags in ((node.cq, fi.TRANSMIT | fi.RECV), (node.av, 0), (cntr, fi.WRITE | fi.REMOTE_READ)):
        with pytest.raises(fi.InvalidArgument, match=PROVIDER.words("already")):
            ep.bind(obj, flags)


def test_ep_bind_of_another_domain_is_edomain(node: Node) -> None:
    with opened() as other:
        ep = bare(node)
        for obj, flags in ((other.cq, fi.TRANSMIT), (other.av, 0)):
            with pytest.raises(fi.WrongDomain) as caught:
                ep.bind(obj, flags)
            assert caught.value.errno == fi.EDOMAIN
    with pytest.raises(fi.InvalidArgument):
        bare(node).bind(object())  # type: ignore[arg-type]


def test_ep_remote_counter_needs_rma_event() -> None:
    with opened(caps=fi.RMA, enable=False) as node:
        cntr = node.keep(node.domain.cntr_open())
        with pytest.raises(fi.BadFlags, match="RMA_EVENT"):
            node.ep.bind(cntr, fi.REMOTE_WRITE)
        assert not node.ep.enabled


@pytest.mark.general("its limits")
def test_ep_options_tell_the_limits(node: Node) -> None:
    ep, info = node.ep, node.info
    for option, value in (
        (fi.OPT_MAX_RMA_SIZE, info.ep_attr.max_msg_size),
        (fi.OPT_MAX_MSG_SIZE, 0),  # no messages
        (fi.OPT_INJECT_RMA_SIZE, info.tx_attr.inject_size),
        (fi.OPT_INJECT_ATOMIC_SIZE, info.tx_attr.inject_size),
        (fi.OPT_TX_SIZE, info.tx_attr.size),
        (fi.OPT_CM_DATA_SIZE, 0),
    ):
        assert ep.getopt(fi.OPT_ENDPOINT, option) == value


@pytest.mark.general("its limits")
def test_ep_option_that_is_not_there_is_enoprotoopt(node: Node) -> None:
    ep = node.ep
    for call in (
        lambda: ep.getopt(fi.OPT_ENDPOINT, fi.OPT_XPU_TRIGGER),
        lambda: ep.getopt(5, fi.OPT_TX_SIZE),
        lambda: ep.setopt(fi.OPT_ENDPOINT, fi.OPT_TX_SIZE, 5),
    ):
        with pytest.raises(fi.NoProtocolOption):
            call()


def test_ep_cancel_of_nothing_is_enoent(node: Node) -> None:
    with pytest.raises(fi.NotFound):
        node.ep.cancel("no such context")


def test_ep_close_returns_its_objects(node: Node) -> None:
    ep = node.domain.endpoint()
    cq, av, cntr = node.domain.cq_open(), node.domain.av_open(), node.domain.cntr_open()
    ep.bind(cq, fi.TRANSMIT | fi.RECV)
    ep.bind(av)
    ep.bind(cntr, fi.WRITE)
    ep.enable()
    for obj in (cq, av, cntr):
        with pytest.raises(fi.Busy):
            obj.close()
    ep.close()
    for obj in (cq, av, cntr):
        obj.close()


def test_ep_use_after_close_is_badstate(node: Node) -> None:
    ep = node.domain.endpoint()
    ep.close()
    ep.close()
    for call in (ep.enable, ep.getname, lambda: ep.bind(node.av), lambda: ep.getopt(0, 0)):
        with pytest.raises(fi.BadState, match="closed"):
            call()


def test_ep_of_another_type_is_invalid(node: Node) -> None:
    info = fi.dupinfo(node.info)
    info.ep_attr.type = fi.EP_MSG
    with pytest.raises(fi.InvalidArgument, match="EP_MSG"):
        node.domain.endpoint(info)


@pytest.mark.general("addresses as strings")
def test_ep_repr_says_what_it_is_and_its_state(node: Node) -> None:
    text = repr(node.ep)
    assert text.startswith(f"<Endpoint {node.name} enabled, tx 0/1024, cq=0/1024, av=0 peers")
    fresh = node.domain.endpoint()
    assert "disabled" in repr(fresh)
    fresh.close()
    assert repr(fresh).endswith("closed>")


def test_endpoint_statistics_are_a_frozen_record(node: Node) -> None:
    found = node.ep.statistics()
    assert found == fi.EndpointStatistics(tx_pending=0, tx_size=node.info.tx_attr.size)
    with pytest.raises(AttributeError):
        found.tx_pending = 1  # type: ignore[misc]


# ---- how many --------------------------------------------------------------------------------------------------------

OPEN_ALL = """
from weft import fi
info = fi.getinfo()[0]
domain = fi.Fabric(info.fabric_attr).domain(info)
cq, av = domain.cq_open(), domain.av_open()
def opened():
    ep = domain.endpoint(info)
    ep.bind(cq, fi.TRANSMIT | fi.RECV)
    ep.bind(av)
    ep.enable()
    return ep
eps = [opened() for _ in range(info.domain_attr.ep_cnt)]
try:
    opened()
except fi.FabricError as refused:
    print(refused.errno == fi.ENOSPC)
"""


def test_endpoints_as_many_as_ep_cnt_says_can_be_open() -> None:
    """fi_domain(3) ep_cnt: the number of endpoints that a domain supports."""
    ended = patience.run([sys.executable, "-c", OPEN_ALL], timeout=200)
    assert ended.stdout.strip() == "True", ended.stderr


def test_getinfo_more_endpoints_than_the_nic_has_is_refused() -> None:
    most = fi.getinfo()[0].domain_attr.ep_cnt
    weft = fi.FabricAttr(prov_name="weft")
    assert fi.getinfo(hints=fi.Info(domain_attr=fi.DomainAttr(ep_cnt=most), fabric_attr=weft))
    with pytest.raises(fi.NoData, match="ep_cnt"):
        fi.getinfo(hints=fi.Info(domain_attr=fi.DomainAttr(ep_cnt=most + 1), fabric_attr=weft))
