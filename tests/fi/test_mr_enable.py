"""fi_mr(3): disabled regions, and the effects of fi_mr_bind and fi_mr_enable on them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fi.mr_support import Duo, get, memory, put, refused
from tests.fi.support import RW, Node, pair

from weft import fi

# ---- disabled regions, bindings --------------------------------------------------------------------------------------


@pytest.mark.general("the man page's error number")
@pytest.mark.clause(
    "mr.endpoint.association",
    "mr.endpoint.created-disabled",
    "mr.endpoint.bind-first",
    "mr.endpoint.enable-call",
    "mr.bind.endpoint",
    "mr.bind.endpoint-flags",
    "mr.arg.bfid",
    "mr.enable.disabled-regions",
    "mr.enable.signature",
    "mr.bind.signature",
)
def test_mr_endpoint_region_is_bound_then_enabled() -> None:
    """fi_mr(3) FI_MR_ENDPOINT: created disabled; bound; enabled; reachable through its endpoint only."""
    with pair(mr_mode=fi.MR_ENDPOINT) as (initiator, target, peer):
        data = memory(target)
        mr = target.reg(data, requested_key=1)
        assert mr.state == "disabled"
        assert refused(initiator, peer, 0, 1) in (fi.EKEYREJECTED, fi.EACCES)
        with pytest.raises(fi.BadState, match="bound to no endpoint"):
            mr.enable()
        with pytest.raises(fi.BadFlags):
            mr.bind(target.ep, fi.REMOTE_WRITE)
        mr.bind(target.ep, 0)
        assert refused(initiator, peer, 0, 1) in (fi.EKEYREJECTED, fi.EACCES)
        mr.enable()
        assert mr.state == "enabled"
        put(initiator, peer, b"now", 0, 1)
        assert bytes(data[:3]) == b"now"

        other = target.domain.endpoint()
        other.bind(target.cq, fi.TRANSMIT | fi.RECV)
        other.bind(target.av)
        other.enable()
        try:
            assert refused(initiator, initiator.av.insert(other.getname()), 0, 1) in (fi.EKEYREJECTED, fi.EACCES)
        finally:
            other.close()
        assert data[0] == ord("n")


@pytest.mark.general("a region that needs no binding")
@pytest.mark.clause(
    "mr.rma-event.flag-needed",
    "mr.rma-event.created-disabled",
    "mr.rma-event.bind-first",
    "mr.rma-event.enable-call",
    "mr.rma-event.no-bind-after",
    "mr.rma-event.configure",
    "mr.enable.bind-before",
)
def test_mr_rma_event_region_is_configured_before_use() -> None:
    """fi_mr(3) FI_MR_RMA_EVENT: with the flag FI_RMA_EVENT created disabled; counters first, then enabled for good."""
    with pair(mr_mode=fi.MR_RMA_EVENT) as (initiator, target, peer):
        plain = target.reg(memory(target), requested_key=1)
        assert plain.state == "enabled"
        data = memory(target)
        mr = target.domain.mr_reg(data, RW, requested_key=2, flags=fi.RMA_EVENT)
        assert mr.state == "disabled"
        with target.domain.cntr_open() as cntr:
            with pytest.raises(fi.BadState, match="RMA_EVENT"):
                plain.bind(cntr, fi.REMOTE_WRITE)
            mr.bind(cntr, fi.REMOTE_WRITE)
            assert refused(initiator, peer, 0, 2) in (fi.EKEYREJECTED, fi.EACCES)
            mr.enable()
            with pytest.raises(fi.BadState):
                mr.bind(cntr, fi.REMOTE_WRITE)
            put(initiator, peer, b"e", 0, 2)
            cntr.wait(1, timeout=30)
            assert data[0] == ord("e")
            assert cntr.read() == 1
        mr.close()


@pytest.mark.general("a region that needs no binding")
@pytest.mark.clause(
    "mr.bind.counter",
    "mr.bind.counter-flags",
    "mr.bind.remote-write-rma",
    "mr.bind.remote-write-atomic",
    "mr.access.remote-write-atomic",
)
def test_mr_counter_counts_remote_modifications(duo: Duo) -> None:
    """fi_mr(3) fi_mr_bind FI_REMOTE_WRITE: an event for each RMA write or atomic that modifies the region."""
    initiator, target, peer = duo
    data = target.domain.alloc(8, np.uint64)
    data.fill(0)
    mr, other = target.reg(data, requested_key=1), target.reg(memory(target), requested_key=2)
    cntr = target.domain.cntr_open()
    mr.bind(cntr, fi.REMOTE_WRITE)
    put(initiator, peer, b"12345678", 0, 1)
    put(initiator, peer, b"elsewhere", 0, 2)
    get(initiator, peer, 8, 0, 1)
    initiator.ep.atomic(np.array([1], np.uint64), None, peer, 8, 1, fi.UINT64, fi.SUM)
    initiator.wait()
    cntr.wait(2, timeout=30)
    assert cntr.read() == 2
    assert data[1] == 1
    cntr.close()
    mr.close()
    assert other.state == "enabled"


@pytest.mark.general("a region that needs no binding")
@pytest.mark.clause("mr.bind.remote-write-cap")
def test_mr_counter_counts_only_through_an_rma_event_endpoint() -> None:
    """fi_mr(3): FI_REMOTE_WRITE needs the endpoint that the region is accessed through to have FI_RMA_EVENT."""
    with pair(caps=fi.RMA | fi.ATOMIC) as (initiator, target, peer):
        cntr = target.domain.cntr_open()
        target.reg(memory(target), requested_key=1).bind(cntr, fi.REMOTE_WRITE)
        target.extra.append(cntr)  # closed before the region, which it is bound to
        put(initiator, peer, b"x", 0, 1)
        get(initiator, peer, 1, 0, 1)
        assert cntr.read() == 0


@pytest.mark.general("a region that needs no binding")
def test_mr_bind_endpoint_is_harmless_if_not_required(duo: Duo) -> None:
    """A program written for FI_MR_ENDPOINT binds and enables; without that mode it runs unchanged."""
    initiator, target, peer = duo
    data = memory(target)
    mr = target.domain.mr_reg(data, RW, requested_key=1)
    mr.bind(target.ep)
    mr.enable()
    put(initiator, peer, b"same", 0, 1)
    assert bytes(data[:4]) == b"same"
    target.ep.close()
    mr.close()


@pytest.mark.general("a region that needs no binding")
def test_mr_bind_of_something_else_is_invalid(node: Node) -> None:
    mr = node.reg(memory(node), requested_key=1)
    with pytest.raises(fi.InvalidArgument):
        mr.bind(node.cq)  # type: ignore[arg-type]
    cntr = node.keep(node.domain.cntr_open())
    for flags in (0, fi.REMOTE_READ, fi.REMOTE_WRITE | fi.FENCE):
        with pytest.raises(fi.BadFlags):
            mr.bind(cntr, flags)


@pytest.mark.general("the man page's error number")
def test_mr_bind_across_domains_is_edomain(duo: Duo) -> None:
    initiator, target, _ = duo
    mr = target.reg(memory(target), requested_key=1)
    with initiator.domain.cntr_open() as cntr, pytest.raises(fi.WrongDomain):
        mr.bind(cntr, fi.REMOTE_WRITE)
    with pytest.raises(fi.WrongDomain):
        mr.bind(initiator.ep)


@pytest.mark.clause("mr.refresh.signature", "mr.refresh.enosys")
def test_mr_refresh_is_enosys(node: Node) -> None:
    """fi_mr(3): with FI_MR_ALLOCATED unset, -FI_ENOSYS where the provider does not support the call."""
    mr = node.reg(memory(node), requested_key=1)
    with pytest.raises(fi.NoSys) as caught:
        mr.refresh([memory(node)], 1, 0)
    assert caught.value.errno == fi.ENOSYS


def test_mr_key_mapped_twice_is_unmapped_twice(duo: Duo) -> None:
    """fi_mr(3) fi_mr_unmap_key: every mapping is given back, also of one key, before the domain is closed."""
    initiator, target, _ = duo
    raw = target.reg(memory(target), requested_key=3).raw_attr()[1]
    key = initiator.domain.map_raw(0, raw)
    assert initiator.domain.map_raw(0, raw) == key
    initiator.domain.unmap_key(key)
    with pytest.raises(fi.Busy, match="raw keys are still mapped"):
        initiator.domain.close()
    initiator.domain.unmap_key(key)
    with pytest.raises(fi.InvalidArgument, match="not mapped"):
        initiator.domain.unmap_key(key)
