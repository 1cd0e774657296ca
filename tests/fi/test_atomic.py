"""fi_atomic(3): every operation on every datatype, against NumPy; and the calls around them."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.fi.support import RW, Node, pair

from weft import fi

Duo = tuple[Node, Node, int]
KEY = 7

BASE = [fi.MIN, fi.MAX, fi.SUM, fi.PROD, fi.LOR, fi.LAND, fi.BOR, fi.BAND, fi.LXOR, fi.BXOR, fi.ATOMIC_WRITE, fi.DIFF]
COMPARE = [fi.CSWAP, fi.CSWAP_NE, fi.CSWAP_LE, fi.CSWAP_LT, fi.CSWAP_GE, fi.CSWAP_GT, fi.MSWAP]
DATATYPES = [d for d in fi.Datatype if d not in (fi.VOID, fi.INT128, fi.UINT128)]
INTEGERS = [fi.INT8, fi.UINT8, fi.INT16, fi.UINT16, fi.INT32, fi.UINT32, fi.INT64, fi.UINT64]
COMPLEX = [fi.FLOAT_COMPLEX, fi.DOUBLE_COMPLEX, fi.LONG_DOUBLE_COMPLEX]

BITWISE = {fi.BOR, fi.BAND, fi.BXOR, fi.MSWAP}
ORDERED = {fi.MIN, fi.MAX, fi.CSWAP_LE, fi.CSWAP_LT, fi.CSWAP_GE, fi.CSWAP_GT}


def model(op: int, target: Any, operand: Any, compare: Any = None) -> Any:
    """fi_atomic(3) "Atomic Operations", element by element, in NumPy."""
    truth: dict[int, Callable[[], Any]] = {
        fi.MIN: lambda: np.where(operand < target, operand, target),
        fi.MAX: lambda: np.where(operand > target, operand, target),
        fi.SUM: lambda: target + operand,
        fi.PROD: lambda: target * operand,
        fi.LOR: lambda: (target != 0) | (operand != 0),
        fi.LAND: lambda: (target != 0) & (operand != 0),
        fi.LXOR: lambda: (target != 0) ^ (operand != 0),
        fi.BOR: lambda: target | operand,
        fi.BAND: lambda: target & operand,
        fi.BXOR: lambda: target ^ operand,
        fi.DIFF: lambda: target - operand,
        fi.ATOMIC_READ: lambda: target,
        fi.ATOMIC_WRITE: lambda: operand,
        fi.CSWAP: lambda: np.where(compare == target, operand, target),
        fi.CSWAP_NE: lambda: np.where(compare != target, operand, target),
        fi.CSWAP_LE: lambda: np.where(compare <= target, operand, target),
        fi.CSWAP_LT: lambda: np.where(compare < target, operand, target),
        fi.CSWAP_GE: lambda: np.where(compare >= target, operand, target),
        fi.CSWAP_GT: lambda: np.where(compare > target, operand, target),
        fi.MSWAP: lambda: (operand & compare) | (target & ~compare),
    }
    with np.errstate(all="ignore"):
        return np.asarray(truth[op]()).astype(target.dtype)


def values(datatype: int, rng: Any, count: int = 12) -> np.ndarray[Any, Any]:
    """Numbers that every datatype holds, with exact sums and products, and zeros and equals among them."""
    dtype = fi.dtype_of(datatype)
    signed = np.issubdtype(dtype, np.signedinteger) or not np.issubdtype(dtype, np.integer)
    low = -3 if signed else 0
    found = np.array([rng.randint(low, 3) for _ in range(count)])
    if datatype in COMPLEX:
        found = found + 1j * np.array([rng.randint(-3, 3) for _ in range(count)])
    if datatype in INTEGERS and rng.random() < 0.5:
        info = np.iinfo(dtype)
        found = np.array([rng.randint(int(info.min), int(info.max)) for _ in range(count)], dtype)
    return found.astype(dtype)


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    # By value: long double has padding bytes, and -0.0 equals 0.0.
    return bool(np.array_equal(a, b))


def exists(datatype: int, op: int) -> bool:
    if op in BITWISE:
        return datatype in INTEGERS
    return not (op in ORDERED and datatype in COMPLEX)


def target_array(target: Node, content: np.ndarray[Any, Any], kind: str = "weft") -> np.ndarray[Any, Any]:
    memory: np.ndarray[Any, Any] = (
        target.domain.alloc(content.shape, content.dtype) if kind == "weft" else np.empty_like(content)
    )
    memory[:] = content
    target.reg(memory, requested_key=KEY)
    return memory


# ---- every operation on every datatype -------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", DATATYPES, ids=str)
@pytest.mark.parametrize("op", BASE, ids=str)
def test_atomic_base_operation_agrees_with_numpy(duo: Duo, rng: Any, datatype: fi.Datatype, op: fi.Op) -> None:
    if not exists(datatype, op):
        with pytest.raises(fi.NotSupported):
            duo[0].ep.atomicvalid(datatype, op)
        return
    initiator, target, peer = duo
    before, operand = values(datatype, rng), values(datatype, rng)
    memory = target_array(target, before)
    initiator.ep.atomic(operand, None, peer, 0, KEY, datatype, op, "ctx")
    (done,) = initiator.wait()
    assert done.op_context == "ctx"
    assert done.flags & fi.ATOMIC
    assert same(memory, model(op, before, operand)), (before, operand, memory)


@pytest.mark.parametrize("datatype", DATATYPES, ids=str)
@pytest.mark.parametrize("op", [*BASE, fi.ATOMIC_READ], ids=str)
def test_atomic_fetch_operation_agrees_with_numpy(duo: Duo, rng: Any, datatype: fi.Datatype, op: fi.Op) -> None:
    if not exists(datatype, op):
        with pytest.raises(fi.NotSupported):
            duo[0].ep.fetch_atomicvalid(datatype, op)
        return
    initiator, target, peer = duo
    before, operand = values(datatype, rng), values(datatype, rng)
    memory = target_array(target, before)
    result = np.zeros_like(before)
    buf = None if op == fi.ATOMIC_READ else operand
    initiator.ep.fetch_atomic(buf, None, result, None, peer, 0, KEY, datatype, op)
    initiator.wait()
    assert same(result, before)
    assert same(memory, model(op, before, operand))


@pytest.mark.parametrize("datatype", DATATYPES, ids=str)
@pytest.mark.parametrize("op", COMPARE, ids=str)
def test_atomic_compare_operation_agrees_with_numpy(duo: Duo, rng: Any, datatype: fi.Datatype, op: fi.Op) -> None:
    if not exists(datatype, op):
        with pytest.raises(fi.NotSupported):
            duo[0].ep.compare_atomicvalid(datatype, op)
        return
    initiator, target, peer = duo
    before, operand, compare = (values(datatype, rng) for _ in range(3))
    compare[::2] = before[::2]
    memory = target_array(target, before)
    result = np.zeros_like(before)
    initiator.ep.compare_atomic(operand, None, compare, None, result, None, peer, 0, KEY, datatype, op)
    initiator.wait()
    assert same(result, before)
    assert same(memory, model(op, before, operand, compare))


@pytest.mark.parametrize("datatype", [fi.INT128, fi.UINT128], ids=str)
def test_atomic_128_bit_integers(duo: Duo, datatype: fi.Datatype) -> None:
    """NumPy has no such type: Python's integers are the model."""
    initiator, target, peer = duo
    assert (datatype, fi.SUM) in supported(initiator)
    start = (1 << 127) - 5
    memory = target_array(target, np.frombuffer(start.to_bytes(16, "little"), np.uint64).copy())
    result = bytearray(16)
    initiator.ep.fetch_atomic((3).to_bytes(16, "little"), None, result, None, peer, 0, KEY, datatype, fi.SUM)
    initiator.wait()
    assert int.from_bytes(result, "little") == start
    assert int.from_bytes(memory.tobytes(), "little") == start + 3


def supported(node: Node) -> set[tuple[fi.Datatype, fi.Op]]:
    found = set()
    for datatype in fi.Datatype:
        for op in fi.Op:
            try:
                node.ep.fetch_atomicvalid(datatype, op)
            except fi.NotSupported:
                continue
            found.add((datatype, op))
    return found


@pytest.mark.parametrize("kind", ["weft", "foreign"])
@pytest.mark.parametrize("datatype", [fi.UINT64, fi.DOUBLE, fi.DOUBLE_COMPLEX, fi.LONG_DOUBLE_COMPLEX], ids=str)
def test_atomic_works_on_all_memory(duo: Duo, kind: str, datatype: int) -> None:
    """Operands of 8, 16 and 32 bytes, in memory from Weft and in other memory."""
    initiator, target, peer = duo
    memory = target_array(target, np.ones(4, fi.dtype_of(datatype)), kind)
    one = np.ones(4, fi.dtype_of(datatype))
    for _ in range(10):
        initiator.ep.atomic(one, None, peer, 0, KEY, datatype, fi.SUM)
    initiator.wait(10)
    assert (memory == 11).all()


def test_atomic_overflow_wraps(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = target_array(target, np.array([127, -128], np.int8))
    initiator.ep.atomic(np.array([1, -1], np.int8), None, peer, 0, KEY, fi.INT8, fi.SUM)
    initiator.wait()
    assert memory.tolist() == [-128, 127]


# ---- the calls -------------------------------------------------------------------------------------------------------


@pytest.mark.clause("mr.general.atomic-target", "mr.access.write-atomic", "mr.default.atomic-unregistered")
def test_atomic_takes_c_s_arguments_in_order(duo: Duo) -> None:
    """fi_atomic(ep, buf, count, desc, dest_addr, addr, key, datatype, op, context)."""
    initiator, target, peer = duo
    memory = target_array(target, np.zeros(8, np.uint32))
    operand = np.arange(1, 9, dtype=np.uint32)
    local = initiator.reg(operand, fi.WRITE)
    assert initiator.ep.atomic(operand, local.desc, peer, 8, KEY, fi.UINT32, fi.SUM, "c", count=3) is None
    assert initiator.wait()[0].op_context == "c"
    initiator.ep.atomic(bytes(4), None, peer, 0, KEY, fi.UINT32, fi.SUM)  # a buffer that was never registered
    initiator.wait()
    assert memory.tolist() == [0, 0, 1, 2, 3, 0, 0, 0]
    initiator.ep.atomic(operand, None, peer, 0, KEY + 1, fi.UINT32, fi.SUM)  # no region has that key
    assert initiator.wait_error().err == fi.EKEYREJECTED


@pytest.mark.general("several buffers a call")
def test_atomicv_gathers(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = target_array(target, np.zeros(6, np.int64))
    parts = [np.array([1, 2]), fi.Ioc(np.array([3, 4, 5, 6]), 3)]
    initiator.ep.atomicv(parts, [None, None], peer, 8, KEY, fi.INT64, fi.SUM, "v")
    assert initiator.wait()[0].op_context == "v"
    assert memory.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.general("several buffers a call")
def test_atomicmsg_scatters_to_several_places(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = target_array(target, np.zeros(8, np.uint16))
    msg = fi.MsgAtomic(
        msg_iov=[fi.Ioc(np.arange(1, 6, dtype=np.uint16))],
        rma_iov=[fi.RmaIoc(0, 2, KEY), fi.RmaIoc(10, 3, KEY)],
        addr=peer,
        datatype=fi.UINT16,
        op=fi.ATOMIC_WRITE,
        context="m",
    )
    initiator.ep.atomicmsg(msg, 0)
    assert initiator.wait()[0].op_context == "m"
    assert memory.tolist() == [1, 2, 0, 0, 0, 3, 4, 5]


def test_inject_atomic_frees_the_buffer_and_is_silent(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = target_array(target, np.zeros(2, np.uint64))
    operand = np.array([5, 6], np.uint64)
    initiator.ep.inject_atomic(operand, peer, 0, KEY, fi.UINT64, fi.SUM, count=1)
    operand.fill(1000)
    result = np.zeros(2, np.uint64)
    initiator.ep.fetch_atomic(None, None, result, None, peer, 0, KEY, fi.UINT64, fi.ATOMIC_READ, "read")
    assert [e.op_context for e in initiator.wait()] == ["read"]
    assert result.tolist() == memory.tolist() == [5, 0]
    assert initiator.cq.read() == []


@pytest.mark.general("its error number")
def test_inject_atomic_beyond_inject_size_is_refused(duo: Duo) -> None:
    initiator, target, peer = duo
    target_array(target, np.zeros(64, np.uint64))
    with pytest.raises(fi.MessageTooLong):
        initiator.ep.inject_atomic(np.zeros(33, np.uint64), peer, 0, KEY, fi.UINT64, fi.SUM)


@pytest.mark.general("several buffers a call")
@pytest.mark.clause("mr.access.read-atomic")
def test_fetch_atomicv_and_msg_scatter_the_result(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = target_array(target, np.arange(6, dtype=np.int32))
    parts = [np.zeros(2, np.int32), np.zeros(4, np.int32)]
    registered = initiator.reg(parts[0], fi.READ)
    initiator.ep.fetch_atomicv(
        [np.full(6, 10, np.int32)], [None], parts, [registered.desc, None], peer, 0, KEY, fi.INT32, fi.SUM
    )
    initiator.wait()
    assert [p.tolist() for p in parts] == [[0, 1], [2, 3, 4, 5]]
    assert memory.tolist() == [10, 11, 12, 13, 14, 15]
    msg = fi.MsgAtomic(
        msg_iov=[np.full(6, 1, np.int32)],
        rma_iov=[fi.RmaIoc(0, 6, KEY)],
        addr=peer,
        datatype=fi.INT32,
        op=fi.DIFF,
        context="f",
    )
    initiator.ep.fetch_atomicmsg(msg, parts, None, 0)
    assert initiator.wait()[0].op_context == "f"
    assert [p.tolist() for p in parts] == [[10, 11], [12, 13, 14, 15]]


@pytest.mark.general("several buffers a call")
def test_compare_atomicv_and_msg(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = target_array(target, np.array([1, 2, 3, 4], np.uint64))
    result = np.zeros(4, np.uint64)
    operand, compare = np.full(4, 9, np.uint64), np.array([1, 0, 3, 0], np.uint64)
    initiator.ep.compare_atomicv(
        [operand[:1], operand[1:]], None, [compare], None, [result], None, peer, 0, KEY, fi.UINT64, fi.CSWAP
    )
    initiator.wait()
    assert memory.tolist() == [9, 2, 9, 4]
    assert result.tolist() == [1, 2, 3, 4]
    msg = fi.MsgAtomic(
        msg_iov=[fi.Ioc(operand, 4)], rma_iov=[fi.RmaIoc(0, 4, KEY)], addr=peer, datatype=fi.UINT64, op=fi.CSWAP_NE
    )
    initiator.ep.compare_atomicmsg(msg, [memory.copy()], None, [result], None, 0)
    initiator.wait()
    assert memory.tolist() == [9, 2, 9, 4]


# ---- completions, counters, access -----------------------------------------------------------------------------------


def test_atomic_selective_completion_and_flags() -> None:
    with pair(cq_flags=fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION) as (initiator, target, peer):
        memory = target_array(target, np.zeros(1, np.uint64))
        one = np.ones(1, np.uint64)
        initiator.ep.atomic(one, None, peer, 0, KEY, fi.UINT64, fi.SUM, "silent")
        msg = fi.MsgAtomic(msg_iov=[one], rma_iov=[fi.RmaIoc(0, 1, KEY)], addr=peer, context="told")
        initiator.ep.atomicmsg(msg, fi.COMPLETION | fi.FENCE)
        assert [e.op_context for e in initiator.wait()] == ["told"]
        assert memory[0] == 2
        with pytest.raises(fi.BadFlags):
            initiator.ep.atomicmsg(msg, fi.MULTI_RECV)


@pytest.mark.parametrize(
    ("access", "op", "fetch", "err"),
    [
        (fi.REMOTE_WRITE, fi.SUM, False, 0),
        (fi.REMOTE_READ, fi.SUM, False, fi.EACCES),
        (fi.REMOTE_READ, fi.ATOMIC_READ, True, 0),
        (fi.REMOTE_WRITE, fi.ATOMIC_READ, True, fi.EACCES),
        (fi.REMOTE_WRITE, fi.SUM, True, fi.EACCES),
        (RW, fi.SUM, True, 0),
    ],
)
def test_atomic_needs_the_granted_access(duo: Duo, access: int, op: int, fetch: bool, err: int) -> None:
    """fi_atomic(3): the target must allow remote read or write access, as appropriate; fetching needs read access."""
    initiator, target, peer = duo
    memory = target.domain.alloc(1, np.uint64)
    memory.fill(5)
    target.reg(memory, access, requested_key=KEY)
    one, result = np.ones(1, np.uint64), np.zeros(1, np.uint64)
    if fetch:
        initiator.ep.fetch_atomic(one, None, result, None, peer, 0, KEY, fi.UINT64, op)
    else:
        initiator.ep.atomic(one, None, peer, 0, KEY, fi.UINT64, op)
    if err:
        assert initiator.wait_error().err == err
        assert memory[0] == 5
        assert result[0] == 0
    else:
        initiator.wait()
        assert memory[0] == (5 if op == fi.ATOMIC_READ else 6)


def test_atomic_beyond_the_region_touches_nothing(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = target.domain.alloc(4, np.uint64)
    memory.fill(1)
    target.reg(memory[:2], requested_key=KEY)
    for addr in (8, 16, (1 << 64) - 8):
        initiator.ep.atomic(np.ones(2, np.uint64), None, peer, addr, KEY, fi.UINT64, fi.SUM)
        assert initiator.wait_error().err == fi.EACCES
    assert memory.tolist() == [1, 1, 1, 1]


def test_atomic_misaligned_is_refused(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = target_array(target, np.zeros(4, np.uint64))
    initiator.ep.atomic(np.ones(1, np.uint64), None, peer, 4, KEY, fi.UINT64, fi.SUM)
    failed = initiator.wait_error()
    assert failed.err == fi.EINVAL
    assert "align" in initiator.cq.strerror(failed.prov_errno, failed.err_data)
    assert not memory.any()


def test_atomic_counters_count_each_side() -> None:
    mine: dict[int, Any] = {fi.WRITE: None, fi.READ: None}
    with pair(counters=mine) as (initiator, target, peer):
        target_array(target, np.zeros(1, np.uint64))
        one = np.ones(1, np.uint64)
        initiator.ep.atomic(one, None, peer, 0, KEY, fi.UINT64, fi.SUM)
        initiator.ep.fetch_atomic(one, None, np.zeros(1, np.uint64), None, peer, 0, KEY, fi.UINT64, fi.SUM)
        initiator.wait(2)
        assert mine[fi.WRITE].read() == 1
        assert mine[fi.READ].read() == 1


# ---- queries ---------------------------------------------------------------------------------------------------------


@pytest.mark.general("its limits")
def test_atomicvalid_returns_the_element_limit(duo: Duo) -> None:
    initiator, target, peer = duo
    count = initiator.ep.atomicvalid(fi.UINT64, fi.SUM)
    assert count >= 1
    memory = target_array(target, np.zeros(count + 1, np.uint64))
    initiator.ep.atomic(np.ones(count, np.uint64), None, peer, 0, KEY, fi.UINT64, fi.SUM)
    initiator.wait()
    assert memory.tolist() == [1] * count + [0]
    with pytest.raises(fi.MessageTooLong):
        initiator.ep.atomic(np.ones(count + 1, np.uint64), None, peer, 0, KEY, fi.UINT64, fi.SUM)


@pytest.mark.general("its limits")
def test_query_atomic_answers_as_the_endpoint_does(duo: Duo) -> None:
    domain, ep = duo[0].domain, duo[0].ep
    for flags, valid in (
        (0, ep.atomicvalid),
        (fi.FETCH_ATOMIC, ep.fetch_atomicvalid),
        (fi.COMPARE_ATOMIC, ep.compare_atomicvalid),
    ):
        for datatype in DATATYPES:
            for op in fi.Op:
                try:
                    expected: int | None = valid(datatype, op)
                except fi.NotSupported:
                    expected = None
                if expected is None:
                    with pytest.raises(fi.NotSupported):
                        domain.query_atomic(datatype, op, flags)
                else:
                    found = domain.query_atomic(datatype, op, flags)
                    assert (found.count, found.size) == (expected, fi.datatype_size(datatype))


def test_query_atomic_families_have_their_operations(duo: Duo) -> None:
    """fi_atomic(3): ATOMIC_READ fetches, CSWAP compares; neither is a base operation."""
    ep = duo[0].ep
    for op, family in (
        (fi.ATOMIC_READ, ep.atomicvalid),
        (fi.CSWAP, ep.fetch_atomicvalid),
        (fi.SUM, ep.compare_atomicvalid),
    ):
        with pytest.raises(fi.NotSupported, match=str(op)):
            family(fi.UINT64, op)
    with pytest.raises(fi.NotSupported):
        ep.atomicvalid(fi.VOID, fi.SUM)
    with pytest.raises(fi.BadFlags):
        duo[0].domain.query_atomic(fi.UINT64, fi.SUM, fi.FETCH_ATOMIC | fi.COMPARE_ATOMIC)
    with pytest.raises(fi.BadFlags):
        duo[0].domain.query_atomic(fi.UINT64, fi.SUM, fi.FENCE)


def test_atomic_unsupported_pair_is_refused_before_it_leaves(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = target_array(target, np.zeros(1))
    with pytest.raises(fi.NotSupported):
        initiator.ep.atomic(np.ones(1), None, peer, 0, KEY, fi.DOUBLE, fi.BXOR)
    with pytest.raises(fi.NotSupported):
        initiator.ep.atomic(np.ones(1), None, peer, 0, KEY, fi.DOUBLE, fi.CSWAP)
    assert memory[0] == 0


@pytest.mark.parametrize("number", [-1, -(1 << 63), 1 << 70])
def test_atomic_unknown_operation_or_datatype_is_refused(duo: Duo, number: int) -> None:
    initiator, target, peer = duo
    memory = np.zeros(2, np.uint64)
    target.reg(memory, requested_key=KEY)
    one, two = np.ones(1, np.uint64), np.zeros(1, np.uint64)
    for call in (
        lambda: initiator.ep.atomic(one, None, peer, 0, KEY, fi.UINT64, number),
        lambda: initiator.ep.atomic(one, None, peer, 0, KEY, number, fi.SUM),
        lambda: initiator.ep.fetch_atomic(one, None, two, None, peer, 0, KEY, fi.UINT64, number),
        lambda: initiator.ep.atomicv([one], None, peer, 0, KEY, number, fi.SUM),
    ):
        with pytest.raises(fi.InvalidArgument, match=f"is {number}; it has to be"):
            call()
    assert not memory.any()


ARRAYS: dict[str, Any] = {
    "float64": np.ones(2),
    "int64": np.ones(2, np.int64),
    "uint32": np.ones(2, np.uint32),
    "swapped": np.ones(2, np.dtype(np.uint64).newbyteorder()),
    "times": np.ones(2, "M8[s]"),
    "memoryview": memoryview(np.ones(2)),
    "array.array": array.array("d", [1.0, 1.0]),
    "ioc": fi.Ioc(np.ones(2)),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_atomic_refuses_an_array_of_another_datatype(duo: Duo, kind: str) -> None:
    """The bits of 1.0 added as an integer are no sum of anything: the array's dtype has to be the datatype."""
    initiator, target, peer = duo
    memory = target_array(target, np.zeros(2, np.uint64))
    wrong, right, result = ARRAYS[kind], np.ones(2, np.uint64), np.zeros(2, np.uint64)
    one = kind != "ioc"
    where = {"dest_addr": peer, "addr": 0, "key": KEY, "datatype": fi.UINT64}
    calls: list[Callable[[], object]] = [lambda: initiator.ep.atomicv([wrong], op=fi.SUM, **where)]
    msg = fi.MsgAtomic([wrong], [fi.RmaIoc(0, 2, KEY)], peer, fi.UINT64, fi.SUM)
    calls.append(lambda: initiator.ep.atomicmsg(msg))
    if one:
        calls += [
            lambda: initiator.ep.atomic(wrong, op=fi.SUM, **where),
            lambda: initiator.ep.inject_atomic(wrong, peer, 0, KEY, fi.UINT64, fi.SUM),
            lambda: initiator.ep.fetch_atomic(wrong, result=result, op=fi.SUM, **where),
            lambda: initiator.ep.fetch_atomic(right, result=wrong, op=fi.SUM, **where),
            lambda: initiator.ep.compare_atomic(right, compare=wrong, result=result, op=fi.CSWAP, **where),
        ]
    for call in calls:
        with pytest.raises(fi.InvalidArgument, match="and the datatype is UINT64\n  rule: elements are taken as they"):
            call()
    assert not memory.any()


@pytest.mark.parametrize("datatype", fi.Datatype)
def test_datatypes_and_operations_have_their_names_in_refusals(duo: Duo, datatype: fi.Datatype) -> None:
    initiator, _, peer = duo
    if datatype == fi.VOID:
        return
    where = {"dest_addr": peer, "addr": 0, "key": KEY, "datatype": datatype}
    with pytest.raises(fi.InvalidArgument, match=f"and the datatype is {datatype}\n"):
        initiator.ep.atomic(np.zeros(4, "M8[s]"), op=fi.SUM, **where)
    word = np.zeros(32, np.uint8)
    for op in (*COMPARE, fi.ATOMIC_READ):
        with pytest.raises(fi.NotSupported, match=f"{op} on {datatype}"):
            initiator.ep.atomic(word, op=op, **where)
    for op in BASE:
        with pytest.raises(fi.NotSupported, match=f"{op} on {datatype}"):
            initiator.ep.compare_atomic(word, compare=word, result=word, op=op, **where)


@pytest.mark.parametrize("bits", [np.uint8, np.dtype("V8"), np.dtype("S8")])
def test_atomic_takes_bytes_as_they_are(duo: Duo, bits: Any) -> None:
    initiator, target, peer = duo
    memory = target_array(target, np.zeros(2, np.uint64))
    one = np.array([1], np.uint64)
    where = {"dest_addr": peer, "addr": 0, "key": KEY, "datatype": fi.UINT64, "op": fi.SUM}
    for buf in (one.view(bits), memoryview(one.tobytes()), one.tobytes(), bytearray(one.tobytes())):
        initiator.ep.atomic(buf, **where)
        initiator.wait()
    assert memory.tolist() == [4, 0]


def test_atomic_on_a_part_of_an_element_is_refused(duo: Duo) -> None:
    """A buffer of 12 bytes for 8-byte elements is refused, instead of dropping four bytes; `count` is unambiguous."""
    initiator, target, peer = duo
    memory = np.zeros(2, np.uint64)
    target.reg(memory, requested_key=KEY)
    ones, result = np.ones(3, np.uint32).view(np.uint8), np.zeros(12, np.uint8)
    where = {"dest_addr": peer, "addr": 0, "key": KEY, "datatype": fi.UINT64}
    for call in (
        lambda: initiator.ep.atomic(ones, op=fi.SUM, **where),
        lambda: initiator.ep.inject_atomic(ones, peer, 0, KEY, fi.UINT64, fi.SUM),
        lambda: initiator.ep.fetch_atomic(ones, result=result, op=fi.SUM, **where),
        lambda: initiator.ep.fetch_atomic(None, result=result, op=fi.ATOMIC_READ, **where),
    ):
        with pytest.raises(fi.InvalidArgument, match="a buffer of 12 bytes is no whole number of elements of 8"):
            call()
    assert not memory.any()
    initiator.ep.atomic(ones, op=fi.SUM, count=1, **where)
    initiator.wait()
    assert memory.tolist() == [1 | 1 << 32, 0]


def test_atomic_read_needs_no_descriptor_of_an_operand() -> None:
    """FI_MR_LOCAL: there is no operand to register, but the result needs its descriptor."""
    with pair(mr_mode=fi.MR_LOCAL) as (initiator, target, peer):
        memory = np.arange(5, 7, dtype=np.uint64)
        target.reg(memory, requested_key=KEY)
        result = np.zeros(2, np.uint64)
        registered = initiator.reg(result, fi.READ)
        where = {"dest_addr": peer, "addr": 0, "key": KEY, "datatype": fi.UINT64, "op": fi.ATOMIC_READ}
        initiator.ep.fetch_atomic(None, result=result, result_desc=registered.desc, **where)
        initiator.wait()
        assert result.tolist() == [5, 6]
        result[:] = 0
        initiator.ep.fetch_atomicv(None, None, [result], [registered.desc], peer, 0, KEY, fi.UINT64, fi.ATOMIC_READ)
        initiator.wait()
        assert result.tolist() == [5, 6]
        with pytest.raises(fi.InvalidArgument, match="MR_LOCAL"):
            initiator.ep.fetch_atomic(None, result=result, **where)


def test_datatype_names_both_ways() -> None:
    for datatype in DATATYPES:
        dtype = fi.dtype_of(datatype)
        assert dtype.itemsize == fi.datatype_size(datatype)
        assert fi.datatype_of(dtype) == datatype
    assert fi.dtype_of(fi.BFLOAT16) == ml_dtypes.bfloat16
    for call in (lambda: fi.dtype_of(fi.INT128), lambda: fi.datatype_of("S3"), lambda: fi.datatype_size(fi.VOID)):
        with pytest.raises(fi.InvalidArgument):
            call()


@pytest.mark.general("the man page's error number")
def test_atomic_on_a_read_only_page_is_an_error_completion() -> None:
    text = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value  # this process's code
    assert text is not None
    at = text & -8
    before = ctypes.string_at(at, 8)
    with pair() as (initiator, target, peer), target.domain.mr_reg((at, 8), RW, requested_key=KEY):
        one = np.ones(1, np.uint64)
        initiator.ep.atomic(one, dest_addr=peer, addr=0, key=KEY, datatype=fi.UINT64, op=fi.SUM)
        with pytest.raises(fi.Available):
            initiator.wait()
        assert initiator.cq.readerr().err == fi.EFAULT
    assert ctypes.string_at(at, 8) == before


@pytest.mark.general("several buffers a call")
def test_local_buffer_without_memory_behind_it_is_refused() -> None:
    missing = (0x1000, 8)
    with pair() as (initiator, target, peer):
        memory = target.domain.alloc(8, np.uint8)
        memory[:] = 0
        more = {"dest_addr": peer, "addr": 0, "key": KEY}
        with target.domain.mr_reg(memory, RW, requested_key=KEY), initiator.domain.mr_reg(missing, fi.READ) as local:
            for buffer in (missing, local, local[:8]):
                with pytest.raises(fi.Fault, match="no memory behind it"):
                    initiator.ep.write(buffer, **more)
                with pytest.raises(fi.Fault, match="no memory behind it"):
                    initiator.ep.writev([b"x", buffer], **more)
                with pytest.raises(fi.Fault, match="no memory behind it"):
                    initiator.ep.inject_write(buffer, **more)
                with pytest.raises(fi.Fault, match="no memory behind it"):
                    initiator.ep.read(buffer, src_addr=peer, addr=0, key=KEY)
                with pytest.raises(fi.Fault, match="no memory behind it"):
                    initiator.ep.atomic(buffer, datatype=fi.UINT64, op=fi.SUM, **more)
        assert not memory.any()
