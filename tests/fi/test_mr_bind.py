"""Bindings of a region (fi_mr_bind) to counters and endpoints, and the accesses that they permit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.fi.support import ALL_CAPS, KEY, RW, WATCHDOG_S, Node, opened, outcome, pair

from weft import fi

Duo = tuple[Node, Node, int]
U64_SUM: dict[str, Any] = {"datatype": fi.UINT64, "op": fi.SUM}


def counters(node: Node, count: int) -> list[fi.Counter]:
    return [node.keep(node.domain.cntr_open()) for _ in range(count)]


def another_endpoint(node: Node) -> fi.Endpoint:
    """A second endpoint of the node's domain."""
    ep: fi.Endpoint = node.keep(node.domain.endpoint(node.info))
    ep.bind(node.cq, fi.TRANSMIT | fi.RECV)
    ep.bind(node.av)
    ep.enable()
    return ep


# ---- counters --------------------------------------------------------------------------------------------------------


@pytest.mark.general("a region that needs no binding")
@pytest.mark.clause("mr.rma-event.bind-first", "mr.bind.counter")
def test_mr_bound_to_two_counters_is_counted_by_both() -> None:
    """fi_mr(3) FI_MR_RMA_EVENT: a region is associated with all completion counters before it is enabled."""
    with pair(mr_mode=int(fi.MR_RMA_EVENT)) as (initiator, target, peer):
        mr = target.reg(np.zeros(8, np.uint8), requested_key=KEY, flags=fi.RMA_EVENT)
        first, second = counters(target, 2)
        mr.bind(first, fi.REMOTE_WRITE)
        mr.bind(second, fi.REMOTE_WRITE)
        mr.enable()
        for _ in range(3):
            assert outcome(initiator, peer) == 0
        for counter in (first, second):
            counter.wait(3, WATCHDOG_S)
            assert counter.read() == 3


@pytest.mark.general("a region that needs no binding")
def test_mr_bound_twice_to_one_counter_is_counted_once(duo: Duo) -> None:
    initiator, target, peer = duo
    mr = target.reg(np.zeros(8, np.uint8), requested_key=KEY)
    (counter,) = counters(target, 1)
    mr.bind(counter, fi.REMOTE_WRITE)
    mr.bind(counter, fi.REMOTE_WRITE)
    for _ in range(2):
        assert outcome(initiator, peer) == 0
    counter.wait(2, WATCHDOG_S)
    assert counter.read() == 2


@pytest.mark.general("a region that needs no binding")
@pytest.mark.clause("mr.bind.remote-write-atomic")
@pytest.mark.parametrize("foreign", [False, True])
def test_mr_counter_counts_each_atomic_that_modifies(duo: Duo, foreign: bool) -> None:
    """fi_mr(3) FI_REMOTE_WRITE: a remote RMA write or atomic operation modifies the region. A read does not."""
    initiator, target, peer = duo
    memory = np.zeros(8, np.uint64) if foreign else target.domain.alloc(8, np.uint64)
    mr = target.reg(memory, requested_key=KEY)
    (counter,) = counters(target, 1)
    mr.bind(counter, fi.REMOTE_WRITE)
    ep, one, old = initiator.ep, np.ones(1, np.uint64), np.zeros(1, np.uint64)
    where: dict[str, Any] = {"dest_addr": peer, "addr": 0, "key": KEY, "datatype": fi.UINT64}
    ep.fetch_atomic(None, result=old, op=fi.ATOMIC_READ, **where)
    ep.read(old, src_addr=peer, addr=0, key=KEY)
    ep.atomic(one, op=fi.SUM, **where)
    ep.fetch_atomic(one, result=old, op=fi.SUM, **where)
    ep.compare_atomic(one, compare=old, result=old, op=fi.CSWAP, **where)
    initiator.wait(5)
    counter.wait(3, WATCHDOG_S)
    assert outcome(initiator, peer) == 0
    counter.wait(4, WATCHDOG_S)
    assert counter.read() == 4


# ---- endpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.endpoint.association", "mr.bind.endpoint")
def test_mr_bound_to_two_endpoints_is_reached_through_both() -> None:
    """fi_mr(3) FI_MR_ENDPOINT: regions belong to endpoints; each that a region is bound to serves it."""
    with pair(mr_mode=int(fi.MR_ENDPOINT)) as (initiator, target, peer):
        second, third = another_endpoint(target), another_endpoint(target)
        mr = target.reg(np.zeros(8, np.uint8), requested_key=KEY)
        mr.bind(target.ep)
        mr.bind(second)
        mr.bind(second)
        mr.enable()
        of_second, of_third = initiator.av.insert([second.getname(), third.getname()])
        assert outcome(initiator, peer) == 0
        assert outcome(initiator, of_second) == 0
        assert outcome(initiator, of_third) == fi.EACCES


@pytest.mark.general("regions are busy while bound, endpoints are not")
def test_mr_stays_closed_to_endpoints_opened_after_its_own() -> None:
    """A later endpoint reuses the slot of the endpoint that a region was bound to: it does not serve the region."""
    with pair(mr_mode=int(fi.MR_ENDPOINT)) as (initiator, target, _):
        bound = another_endpoint(target)
        mr = target.reg(np.zeros(8, np.uint8), requested_key=KEY)
        mr.bind(bound)
        mr.enable()
        assert outcome(initiator, initiator.av.insert(bound.getname())) == 0
        bound.close()
        found = set()
        for _ in range(4200):  # more than there are places
            later = another_endpoint(target)
            target.extra.remove(later)
            peer = initiator.av.insert(later.getname())
            found.add(outcome(initiator, peer))
            initiator.av.remove(peer)
            later.close()
        assert found == {int(fi.EACCES)}


# ---- capabilities of an endpoint -------------------------------------------------------------------------------------


def test_endpoint_without_atomic_serves_no_atomics() -> None:
    with opened(fi.RMA) as target, opened() as initiator:
        peer = initiator.av.insert(target.name)
        memory = np.zeros(1, np.uint64)
        target.reg(memory, requested_key=KEY)
        one, old = np.ones(1, np.uint64), np.zeros(1, np.uint64)
        initiator.ep.atomic(one, dest_addr=peer, addr=0, key=KEY, **U64_SUM)
        entry = initiator.wait_error()
        assert entry.err == fi.EACCES
        assert "the endpoint at that address does not serve this access" in entry.err_data.decode()
        assert "RMA writes" in entry.err_data.decode()
        initiator.ep.fetch_atomic(one, result=old, dest_addr=peer, addr=0, key=KEY, **U64_SUM)
        assert initiator.wait_error().err == fi.EACCES
        assert memory[0] == 0
        assert outcome(initiator, peer) == 0
        # Also when the way to the region is known from a write.
        initiator.ep.atomic(one, dest_addr=peer, addr=0, key=KEY, **U64_SUM)
        assert initiator.wait_error().err == fi.EACCES


def test_endpoint_without_rma_serves_atomics_alone() -> None:
    with opened(fi.ATOMIC) as target, opened() as initiator:
        peer = initiator.av.insert(target.name)
        memory = np.zeros(1, np.uint64)
        target.reg(memory, requested_key=KEY)
        assert outcome(initiator, peer) == fi.EACCES
        initiator.ep.atomic(np.ones(1, np.uint64), dest_addr=peer, addr=0, key=KEY, **U64_SUM)
        initiator.wait()
        assert memory[0] == 1


@pytest.mark.parametrize(("caps", "op"), [(fi.REMOTE_READ, fi.SUM), (fi.REMOTE_WRITE, fi.ATOMIC_READ)])
def test_endpoint_serves_atomics_as_far_as_its_remote_rights(caps: int, op: int) -> None:
    with opened(fi.RMA | fi.ATOMIC | caps) as target, opened(ALL_CAPS) as initiator:
        peer = initiator.av.insert(target.name)
        memory, one, old = np.zeros(1, np.uint64), np.ones(1, np.uint64), np.full(1, 9, np.uint64)
        target.reg(memory, requested_key=KEY)
        operand = None if op == fi.ATOMIC_READ else one
        initiator.ep.fetch_atomic(operand, result=old, dest_addr=peer, addr=0, key=KEY, datatype=fi.UINT64, op=op)
        assert initiator.wait_error().err == fi.EACCES
        assert (memory[0], old[0]) == (0, 9)


@pytest.mark.general("the text of its error numbers")
@pytest.mark.parametrize("access", [fi.REMOTE_READ, fi.REMOTE_WRITE])
def test_access_error_names_region_or_endpoint(access: int) -> None:
    """The error's text says whether the region does not grant the access, or the endpoint does not serve it."""
    with opened(fi.RMA | access) as limited, opened() as open_ended, opened() as initiator:
        for node, rights in ((limited, RW), (open_ended, access)):
            node.reg(np.zeros(8, np.uint8), rights, requested_key=KEY)
            peer = initiator.av.insert(node.name)
            if access == fi.REMOTE_READ:
                initiator.ep.write(bytes(8), dest_addr=peer, addr=0, key=KEY)
            else:
                initiator.ep.read(bytearray(8), src_addr=peer, addr=0, key=KEY)
            entry = initiator.wait_error()
            assert entry.err == fi.EACCES
            named = "the endpoint at that address" if node is limited else "the region does not grant"
            assert named in entry.err_data.decode()
            assert initiator.cq.strerror(entry.prov_errno) == (
                "the endpoint does not serve that access"
                if node is limited
                else "the region does not grant that access"
            )


# ---- offsets and virtual addresses -----------------------------------------------------------------------------------


def test_virtual_address_given_for_an_offset_names_mr_virt_addr(duo: Duo) -> None:
    initiator, target, peer = duo
    mr = target.reg(np.zeros(64, np.uint8), requested_key=KEY)
    assert outcome(initiator, peer, addr=0) == 0
    initiator.ep.write(bytes(8), dest_addr=peer, addr=mr.address + 16, key=KEY)
    text = initiator.wait_error().err_data.decode()
    assert "without MR_VIRT_ADDR: give the offset 0x10" in text


def test_offset_given_for_a_virtual_address_names_mr_virt_addr() -> None:
    with pair(mr_mode=int(fi.MR_VIRT_ADDR)) as (initiator, target, peer):
        mr = target.reg(np.zeros(64, np.uint8), requested_key=KEY)
        initiator.ep.write(bytes(8), dest_addr=peer, addr=16, key=KEY)
        text = initiator.wait_error().err_data.decode()
        assert f"opened with MR_VIRT_ADDR: give the virtual address {mr.address + 16:#x}" in text
