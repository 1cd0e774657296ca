"""Atomics of the CXI provider: which exist, and which are refused. fi_cxi(7) "Data transfer operations"."""

from __future__ import annotations

import numpy as np
import pytest
from tests.cxi.support import opened, register
from tests.fi.support import Node

from weft import cxi, fi

INTEGERS = {fi.INT8, fi.UINT8, fi.INT16, fi.UINT16, fi.INT32, fi.UINT32, fi.INT64, fi.UINT64}
ORDERED = INTEGERS | {fi.FLOAT, fi.DOUBLE}
ALL = ORDERED | {fi.FLOAT_COMPLEX, fi.DOUBLE_COMPLEX}
BITWISE = (fi.LOR, fi.LAND, fi.LXOR, fi.BOR, fi.BAND, fi.BXOR)
BASE = {fi.MIN: ORDERED, fi.MAX: ORDERED, fi.SUM: ALL, fi.ATOMIC_WRITE: ALL, **dict.fromkeys(BITWISE, INTEGERS)}
COMPARE = {
    fi.CSWAP: ALL | {fi.INT128, fi.UINT128},
    fi.CSWAP_NE: ALL,
    fi.CSWAP_LE: ORDERED,
    fi.CSWAP_LT: ORDERED,
    fi.CSWAP_GE: ORDERED,
    fi.CSWAP_GT: ORDERED,
    fi.MSWAP: INTEGERS,
}
TABLES = {0: BASE, int(fi.FETCH_ATOMIC): {**BASE, fi.ATOMIC_READ: ALL}, int(fi.COMPARE_ATOMIC): COMPARE}


@pytest.mark.clause("cxi.xfer.atomic")
@pytest.mark.parametrize("flags", TABLES)
def test_operations_are_those_of_the_table(node: Node, flags: int) -> None:
    valid = {
        0: node.ep.atomicvalid,
        int(fi.FETCH_ATOMIC): node.ep.fetch_atomicvalid,
        int(fi.COMPARE_ATOMIC): node.ep.compare_atomicvalid,
    }[flags]
    for op in (one for one in fi.Op if one != fi.NOOP):
        for datatype in (one for one in fi.Datatype if one != fi.VOID):
            if datatype in TABLES[flags].get(op, ()):
                assert node.domain.query_atomic(datatype, op, flags).count == 1
                assert valid(datatype, op) == 1
                continue
            with pytest.raises(fi.NotSupported):
                node.domain.query_atomic(datatype, op, flags)
            with pytest.raises(fi.NotSupported):
                valid(datatype, op)


TARGET = int(fi.ATOMIC | fi.REMOTE_READ | fi.REMOTE_WRITE)


@pytest.mark.parametrize("valid", ["atomicvalid", "fetch_atomicvalid", "compare_atomicvalid"])
@pytest.mark.parametrize(("more", "has"), [(0, False), (fi.READ, True), (fi.WRITE, True), (fi.READ | fi.WRITE, True)])
def test_endpoint_that_is_a_target_alone_has_no_atomics(valid: str, more: int, has: bool) -> None:
    op = fi.CSWAP if valid.startswith("compare") else fi.SUM
    with opened(TARGET | int(more)) as node:
        if has:
            assert getattr(node.ep, valid)(fi.UINT64, op) == 1
            return
        with pytest.raises(fi.NoSys, match="READ or WRITE"):
            getattr(node.ep, valid)(fi.UINT64, op)
        with pytest.raises(fi.NoSys):
            node.ep.atomic(np.ones(1, "u8"), dest_addr=node.me, addr=0, key=200, datatype=fi.UINT64, op=fi.SUM)


def test_query_refuses_what_makes_no_sense(node: Node) -> None:
    for call in (
        lambda: node.domain.query_atomic(fi.UINT64, fi.SUM, int(fi.FETCH_ATOMIC | fi.COMPARE_ATOMIC)),
        lambda: node.domain.query_atomic(99, fi.SUM),
        lambda: node.domain.query_atomic(fi.UINT64, 99),
    ):
        with pytest.raises(fi.InvalidArgument):
            call()
    with pytest.raises(fi.NotSupported):
        node.domain.query_atomic(fi.UINT32, fi.SUM, int(cxi.PCIE_AMO))


def test_call_has_one_element(node: Node) -> None:
    memory, one, two = np.zeros(2, "u8"), np.ones(1, "u8"), np.ones(2, "u8")
    register(node, memory, 300)
    u64 = (fi.UINT64, fi.SUM)
    for call in (
        lambda: node.ep.atomic(two, None, node.me, 0, 300, *u64),
        lambda: node.ep.inject_atomic(two, node.me, 0, 300, *u64),
        lambda: node.ep.atomicv([one, one], None, node.me, 0, 300, *u64),
        lambda: node.ep.fetch_atomic(two, None, np.zeros(2, "u8"), None, node.me, 0, 300, *u64),
    ):
        with pytest.raises(fi.InvalidArgument):
            call()
    node.ep.atomic(one, None, node.me, 0, 300, *u64)
    node.wait()
    assert memory.tolist() == [1, 0]


def test_pair_that_is_not_in_the_table_is_not_supported(node: Node) -> None:
    with pytest.raises(fi.NotSupported):
        node.ep.atomic(np.ones(1), None, node.me, 0, 300, fi.DOUBLE, fi.PROD)
    for datatype, op in ((99, fi.SUM), (fi.UINT64, 99)):
        with pytest.raises(fi.InvalidArgument):
            node.ep.atomic(np.ones(1, "u8"), None, node.me, 0, 300, datatype, op)


@pytest.mark.parametrize("flags", [fi.REMOTE_CQ_DATA, fi.COMMIT_COMPLETE, cxi.PCIE_AMO])
def test_flag_that_an_atomic_does_not_take_is_refused(node: Node, flags: int) -> None:
    msg = fi.MsgAtomic([np.ones(1, "u8")], [fi.RmaIoc(0, 1, 300)], node.me)
    with pytest.raises(fi.BadFlags):
        node.ep.atomicmsg(msg, int(flags))


@pytest.mark.parametrize(
    "flags", [fi.COMPLETION, fi.COMPLETION | cxi.UNRELIABLE, fi.COMPLETION | cxi.HRP, fi.COMPLETION | cxi.WEAK_FENCE]
)
def test_flag_of_an_atomic_is_taken(node: Node, flags: int) -> None:
    memory = np.zeros(1, "u8")
    register(node, memory, 300)
    node.ep.atomicmsg(fi.MsgAtomic([np.ones(1, "u8")], [fi.RmaIoc(0, 1, 300)], node.me), int(flags))
    node.wait()
    assert memory[0] == 1


def test_fetching_atomic_needs_both_rights(node: Node) -> None:
    register(node, np.zeros(1, "u8"), 300, int(fi.REMOTE_WRITE))
    node.ep.fetch_atomic(np.ones(1, "u8"), None, np.zeros(1, "u8"), None, node.me, 0, 300, fi.UINT64, fi.SUM)
    with pytest.raises(fi.Available):
        node.wait()
    assert node.cq.readerr().err == fi.EIO
    node.ep.atomic(np.ones(1, "u8"), None, node.me, 0, 300, fi.UINT64, fi.SUM)
    node.wait()


@pytest.mark.parametrize(
    ("op", "target", "after"),
    [(fi.CSWAP_LE, 100, 7), (fi.CSWAP_LE, 98, 98), (fi.CSWAP, 99, 7), (fi.CSWAP_NE, 99, 99), (fi.CSWAP_GT, 98, 7)],
)
def test_compare_stores_where_the_comparison_holds(node: Node, op: int, target: int, after: int) -> None:
    """compare 99 `op` the target; the old value comes back in any case."""
    memory, old = np.full(1, target, "u8"), np.zeros(1, "u8")
    register(node, memory, 300)
    node.ep.compare_atomic(
        np.full(1, 7, "u8"), None, np.full(1, 99, "u8"), None, old, None, node.me, 0, 300, fi.UINT64, op
    )
    node.wait()
    assert (memory[0], old[0]) == (after, target)
