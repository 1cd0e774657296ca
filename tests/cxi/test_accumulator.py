"""Accelerated collectives of fi_cxi(7) as far as they need no network: the query, accumulators, sets' keys."""

from __future__ import annotations

import ctypes
import itertools
import math
import platform
import random
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import opened
from tests.fi.support import Node

from weft import cxi, fi

NAN = math.nan
UNSIGNED = (fi.UINT8, fi.UINT16, fi.UINT32, fi.UINT64)
SIGNED = (fi.INT8, fi.INT16, fi.INT32, fi.INT64)
BITWISE = (fi.BOR, fi.BAND, fi.BXOR)
DTYPE = {fi.INT64: "i8", fi.DOUBLE: "f8", fi.UINT8: "u1", fi.UINT16: "u2", fi.UINT32: "u4", fi.UINT64: "u8"}
MEMBERS_MAX = (1 << 20) - 1


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with opened() as found:
        yield found


def reduced(op: int, datatype: int, *contributions: Any) -> Any:
    """The result of folding the contributions one by one."""
    accumulator = cxi.CollAccumulator()
    for data in contributions:
        accumulator.fold(np.asarray(data, DTYPE[datatype]), len(data), datatype, op)
    out = np.zeros(len(contributions[0]), DTYPE[datatype])
    accumulator.result(out, len(out), datatype)
    return out


def status(op: int, datatype: int, *contributions: Any) -> int:
    accumulator = cxi.CollAccumulator()
    for data in contributions:
        accumulator.fold(np.asarray(data, DTYPE[datatype]), len(data), datatype, op)
    return accumulator.result(np.zeros(len(contributions[0]), DTYPE[datatype]), len(contributions[0]), datatype)


# ---- the query -------------------------------------------------------------------------------------------------------


def expected(coll: int, op: int, datatype: int) -> tuple[int, int] | None:
    """The table of fi_cxi(7), and of the provider where the page says nothing."""
    sizes = {fi.FLOAT: 4, fi.DOUBLE: 8} | {one: 1 << at for kinds in (UNSIGNED, SIGNED) for at, one in enumerate(kinds)}
    size = sizes.get(datatype, 0)
    if coll == fi.BARRIER:
        return 0, 0
    if coll == fi.BROADCAST:
        return (32 // size, size) if size else None
    if coll not in (fi.REDUCE, fi.ALLREDUCE):
        return None
    if op == cxi.MINMAXLOC:
        return 1, 32
    if op == cxi.REPSUM:
        return 1, 8
    if op in BITWISE:
        return (32 // size, size) if datatype in UNSIGNED else None
    if op in (fi.MIN, fi.MAX, fi.SUM):
        return (4, 8) if datatype in (fi.INT64, fi.DOUBLE) else None
    if op in (cxi.MINNUM, cxi.MAXNUM):
        return (4, 8) if datatype == fi.DOUBLE else None
    return (1, 32) if op == cxi.MINMAXNUMLOC and datatype == fi.DOUBLE else None


@pytest.mark.clause("cxi.coll.query", "cxi.coll.query-features", "cxi.coll.arith-signed", "cxi.coll.bitwise-unsigned")
@pytest.mark.clause("cxi.coll.num-min", "cxi.coll.num-max", "cxi.coll.num-minmaxloc")
@pytest.mark.parametrize("coll", [*fi.CollectiveOp, 9], ids=str)
def test_query_confirms_the_table_and_denies_the_rest(node: Node, coll: int) -> None:
    for op, datatype in itertools.product([*fi.Op, *cxi.CollectiveOp, 77], [*fi.Datatype, 99]):
        attr = fi.CollectiveAttr(op=op, datatype=datatype)
        found = expected(coll, op, datatype)
        if found is None:
            with pytest.raises(fi.NotSupported) as denied:
                node.domain.query_collective(coll, attr)
            assert denied.value.errno == fi.EOPNOTSUPP
        else:
            node.domain.query_collective(coll, attr)
            assert (attr.datatype_attr.count, attr.datatype_attr.size) == found, (op, datatype)
            assert attr.max_members == MEMBERS_MAX


def test_query_without_attr_is_for_barriers(node: Node) -> None:
    assert node.domain.query_collective(fi.BARRIER).max_members == MEMBERS_MAX
    with pytest.raises(fi.InvalidArgument) as refused:
        node.domain.query_collective(fi.ALLREDUCE)
    assert refused.value.errno == fi.EINVAL
    with pytest.raises(fi.NotSupported):
        node.domain.query_collective(fi.BARRIER, None, int(fi.SCATTER))


def test_refused_operator_is_named(node: Node) -> None:
    with pytest.raises(fi.NotSupported, match="ALLREDUCE with MINNUM on INT64"):
        node.domain.query_collective(fi.ALLREDUCE, fi.CollectiveAttr(op=cxi.MINNUM, datatype=fi.INT64))


# ---- accumulators ----------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.coll.accumulator-struct")
def test_accumulator_is_64_bytes_of_zeros() -> None:
    accumulator = cxi.CollAccumulator()
    assert ctypes.sizeof(cxi.CollAccumulator) == 64
    assert bytes(accumulator) == bytes(64)
    assert len(accumulator.accum) == 64


@pytest.mark.clause("cxi.coll.flag-overload")
def test_pre_reduced_has_the_bit_of_source() -> None:
    assert int(cxi.PRE_REDUCED) == int(fi.SOURCE) == 1 << 57


@pytest.mark.parametrize("op", [*BITWISE, fi.MIN, fi.MAX, fi.SUM], ids=str)
def test_fold_is_the_operator_on_every_datatype(op: int) -> None:
    plain = {
        fi.BOR: np.bitwise_or,
        fi.BAND: np.bitwise_and,
        fi.BXOR: np.bitwise_xor,
        fi.MIN: np.minimum,
        fi.MAX: np.maximum,
        fi.SUM: np.add,
    }[op]
    rng = np.random.default_rng(1)
    for datatype in UNSIGNED if op in BITWISE else (fi.INT64, fi.DOUBLE):
        kind = np.dtype(DTYPE[datatype])
        for count in range(1, 32 // kind.itemsize + 1):
            data = rng.integers(0, 200, (5, count)).astype(kind)
            assert np.array_equal(reduced(op, datatype, *data), plain.reduce(data))


@pytest.mark.clause("cxi.coll.arith-signed", "cxi.coll.bitwise-unsigned")
def test_fold_of_a_pair_without_operation_is_refused() -> None:
    pairs = [(op, one) for op in BITWISE for one in SIGNED] + [(op, one) for op in (fi.MIN, fi.SUM) for one in UNSIGNED]
    for op, datatype in [*pairs, (fi.PROD, fi.INT64), (cxi.REPSUM, fi.FLOAT), (cxi.OP_LAST, fi.DOUBLE), (fi.SUM, 99)]:
        with pytest.raises(fi.InvalidArgument, match="no reduction"):
            cxi.CollAccumulator().fold(bytes(64), 1, datatype, op)


@pytest.mark.clause("cxi.coll.payload")
@pytest.mark.parametrize("datatype", UNSIGNED, ids=str)
def test_payload_above_32_bytes_is_refused(datatype: int) -> None:
    most = 32 // fi.datatype_size(datatype)
    accumulator = cxi.CollAccumulator()
    accumulator.fold(bytes(32), most, datatype, fi.BOR)
    for count in (0, most + 1, 1 << 62):
        with pytest.raises(fi.InvalidArgument, match="32 bytes"):
            accumulator.fold(bytes(4096), count, datatype, fi.BOR)


@pytest.mark.clause("cxi.coll.minmaxloc-count", "cxi.coll.repsum-count")
def test_minmaxloc_and_repsum_take_one_element() -> None:
    for op, size in ((cxi.MINMAXLOC, 32), (cxi.MINMAXNUMLOC, 32), (cxi.REPSUM, 8)):
        cxi.CollAccumulator().fold(bytes(size), 1, fi.DOUBLE, op)
        for count in (0, 2, 4):
            with pytest.raises(fi.InvalidArgument, match="exactly 1"):
                cxi.CollAccumulator().fold(bytes(256), count, fi.DOUBLE, op)


@pytest.mark.clause("cxi.coll.minmaxloc-data", "cxi.coll.minmaxloc-struct")
def test_minmaxloc_is_two_values_and_two_indices() -> None:
    for cls, datatype in ((cxi.CollIntMinmax, fi.INT64), (cxi.CollFltMinmax, fi.DOUBLE)):
        assert [name for name, _ in cls._fields_] == ["minval", "minidx", "maxval", "maxidx"]
        assert np.dtype(cls).itemsize == 32
        accumulator = cxi.CollAccumulator()
        for rank, value in enumerate([7, 3, 9, 3, 9]):
            accumulator.fold(cls(value, rank, value, rank), 1, datatype, cxi.MINMAXLOC)
        out = cls()
        assert accumulator.result(out, 1, datatype) == 0
        assert (out.minval, out.minidx, out.maxval, out.maxidx) == (3, 1, 9, 2)


@pytest.mark.clause("cxi.coll.nan-min", "cxi.coll.nan-max")
@pytest.mark.parametrize("data", [(NAN, 2.0), (2.0, NAN), (1.0, NAN, 2.0)], ids=str)
def test_plain_min_and_max_of_a_nan_are_nan(data: tuple[float, ...]) -> None:
    for op in (fi.MIN, fi.MAX):
        assert math.isnan(reduced(op, fi.DOUBLE, *([one] for one in data))[0])


@pytest.mark.clause("cxi.coll.nan-num-min", "cxi.coll.nan-num-max", "cxi.coll.num-min", "cxi.coll.num-max")
@pytest.mark.parametrize("data", [(NAN, 2.0), (2.0, NAN), (NAN, NAN, 2.0)], ids=str)
def test_num_variants_skip_a_nan(data: tuple[float, ...]) -> None:
    for op in (cxi.MINNUM, cxi.MAXNUM):
        assert reduced(op, fi.DOUBLE, *([one] for one in data)) == [2.0]
        assert math.isnan(reduced(op, fi.DOUBLE, [NAN], [NAN])[0])


@pytest.mark.clause("cxi.coll.num-minmaxloc")
def test_minmaxnumloc_skips_a_nan_with_its_index() -> None:
    for op, skips in ((cxi.MINMAXLOC, False), (cxi.MINMAXNUMLOC, True)):
        accumulator = cxi.CollAccumulator()
        for rank, value in enumerate([NAN, 5.0, 4.0]):
            accumulator.fold(cxi.CollFltMinmax(value, rank, value, rank), 1, fi.DOUBLE, op)
        out = cxi.CollFltMinmax()
        accumulator.result(out, 1, fi.DOUBLE)
        if skips:
            assert (out.minval, out.minidx, out.maxval, out.maxidx) == (4.0, 2, 5.0, 1)
        else:
            assert math.isnan(out.minval)
            assert (out.minidx, out.maxidx) == (0, 0)


def test_current_release_folds_minima_and_maxima_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """cxip_coll.c: FI_MIN, FI_MAX and FI_CXI_MINMAXLOC of doubles are the NUM operations; integers are as before."""
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    for op in (fi.MIN, fi.MAX):
        assert reduced(op, fi.DOUBLE, [NAN], [2.0]) == [2.0]
        assert math.isnan(reduced(op, fi.DOUBLE, [NAN], [NAN])[0])
    accumulator = cxi.CollAccumulator()
    for rank, value in enumerate([NAN, 5.0, 4.0]):
        accumulator.fold(cxi.CollFltMinmax(value, rank, value, rank), 1, fi.DOUBLE, cxi.MINMAXLOC)
    out = cxi.CollFltMinmax()
    accumulator.result(out, 1, fi.DOUBLE)
    assert (out.minval, out.minidx, out.maxval, out.maxidx) == (4.0, 2, 5.0, 1)
    assert reduced(fi.MIN, fi.INT64, [7], [-7]) == [-7]


def test_signalling_nan_becomes_quiet() -> None:
    signalling = struct.pack("<Q", 0x7FF0000000000001)
    accumulator = cxi.CollAccumulator()
    accumulator.fold(signalling, 1, fi.DOUBLE, cxi.MINNUM)
    out = bytearray(8)
    assert accumulator.result(out, 1, fi.DOUBLE) == 4
    assert struct.unpack("<Q", out)[0] == 0x7FF8000000000001


def test_statuses_tell_what_happened() -> None:
    assert status(fi.SUM, fi.INT64, [1 << 62], [1 << 62]) == 6
    assert reduced(fi.SUM, fi.INT64, [1 << 62], [1 << 62]) == [-(1 << 63)]
    assert status(fi.SUM, fi.DOUBLE, [1e308], [1e308]) == 3
    assert status(fi.SUM, fi.DOUBLE, [math.inf], [-math.inf]) == 4
    assert status(fi.MAX, fi.DOUBLE, [math.inf], [1.0]) == 3
    assert status(fi.SUM, fi.DOUBLE, [1.0], [2.0]) == 0
    assert status(cxi.REPSUM, fi.DOUBLE, [1e300], [1e-300]) == 0


def test_other_operator_is_noted_and_changes_nothing() -> None:
    accumulator = cxi.CollAccumulator()
    accumulator.fold(np.int64([5]), 1, fi.INT64, fi.SUM)
    accumulator.fold(np.int64([3]), 1, fi.INT64, fi.MIN)
    out = np.zeros(1, "i8")
    assert accumulator.result(out, 1, fi.INT64) == 8
    assert out == [5]


def test_accumulators_combine_with_pre_reduced() -> None:
    parts = []
    for values in ([1, 2], [3], [4, 5, 6]):
        part = cxi.CollAccumulator()
        for value in values:
            part.fold(np.int64([value]), 1, fi.INT64, fi.SUM)
        parts.append(part)
    whole = cxi.CollAccumulator()
    for part in parts:
        whole.fold(part, 99, 99, 99, cxi.PRE_REDUCED | fi.MORE)
    out = np.zeros(1, "i8")
    whole.result(out, 1, fi.INT64)
    assert out == [21]


def test_accumulators_stay_what_they_were_where_a_fold_is_refused() -> None:
    accumulator = cxi.CollAccumulator()
    accumulator.fold(np.int64([5]), 1, fi.INT64, fi.SUM)
    before = bytes(accumulator)
    for call in (
        lambda: accumulator.fold(b"short", 1, fi.INT64, fi.SUM),
        lambda: accumulator.fold(None, 1, fi.INT64, fi.SUM),
        lambda: accumulator.fold(cxi.CollAccumulator(), 1, fi.INT64, fi.SUM, cxi.PRE_REDUCED),
        lambda: accumulator.fold(b"\xff" * 64, 1, fi.INT64, fi.SUM, cxi.PRE_REDUCED),
        lambda: accumulator.fold(bytes(63), 1, fi.INT64, fi.SUM, cxi.PRE_REDUCED),
        lambda: accumulator.fold(bytes(8), 1, fi.INT64, fi.SUM, fi.INJECT),
        lambda: accumulator.result(bytearray(8), 5, fi.INT64),
        lambda: accumulator.result(bytearray(7), 1, fi.INT64),
        lambda: cxi.CollAccumulator().result(bytearray(8), 1, fi.INT64),
        lambda: cxi.CollAccumulator.from_buffer_copy(b"\x37" * 64).fold(bytes(8), 1, fi.INT64, fi.SUM),
    ):
        with pytest.raises((fi.InvalidArgument, fi.BadFlags)):
            call()
    assert bytes(accumulator) == before


@pytest.mark.parametrize("wrong", [None, "x", 1.5, -1, 1 << 70])
def test_fold_names_a_wrong_argument(wrong: Any) -> None:
    for name in ("count", "datatype", "op", "flags"):
        given = {"count": 1, "datatype": fi.INT64, "op": fi.SUM, "flags": 0, name: wrong}
        with pytest.raises((TypeError, fi.InvalidArgument), match=name):
            cxi.CollAccumulator().fold(bytes(8), **given)


# ---- sums of doubles -------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.coll.repsum-reproducible", "cxi.coll.accumulator-space")
def test_repsum_is_the_same_in_every_order_and_grouping() -> None:
    """A plain sum of these values differs from order to order, and loses the small ones."""
    rng = random.Random(7)
    values = [rng.uniform(-1, 1) * 10.0 ** rng.randint(-20, 20) for _ in range(60)] + [1e22, -1e22]
    found = set()
    for _ in range(50):
        rng.shuffle(values)
        parts = [cxi.CollAccumulator() for _ in range(rng.randint(1, 9))]
        for at, value in enumerate(values):
            parts[at if at < len(parts) else rng.randrange(len(parts))].fold(
                struct.pack("<d", value), 1, fi.DOUBLE, cxi.REPSUM
            )
        while len(parts) > 1:
            part = parts.pop(rng.randrange(len(parts)))
            parts[rng.randrange(len(parts))].fold(part, 0, 0, 0, cxi.PRE_REDUCED)
        out = bytearray(8)
        assert parts[0].result(out, 1, fi.DOUBLE) == 0
        found.add(bytes(out))
    assert found == {struct.pack("<d", math.fsum(values))}


LIBM = ctypes.CDLL("libm.so.6")
ROUNDINGS = {"nearest": 0, "down": 0x400, "up": 0x800, "zero": 0xC00}  # fenv.h of x86-64
x86_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of fenv.h differ by processor")


class Fenv(ctypes.Structure):
    """fenv_t of x86-64."""

    _fields_ = [("x87", ctypes.c_uint8 * 28), ("mxcsr", ctypes.c_uint32)]


def summed(rounding: int, flush: bool, *values: float) -> float:
    """The sum on a thread of its own with these modes, read on this one."""
    accumulator = cxi.CollAccumulator()

    def fold() -> None:
        LIBM.fesetround(rounding)
        env = Fenv()
        LIBM.fegetenv(ctypes.byref(env))
        env.mxcsr |= 0x8000 if flush else 0
        LIBM.fesetenv(ctypes.byref(env))
        for value in values:
            accumulator.fold(struct.pack("<d", value), 1, fi.DOUBLE, fi.SUM)

    thread = threading.Thread(target=fold)
    thread.start()
    thread.join()
    out = bytearray(8)
    accumulator.result(out, 1, fi.DOUBLE)
    found: float = struct.unpack("<d", out)[0]
    return found


@x86_only
@pytest.mark.clause("cxi.coll.rounding-modes", "cxi.coll.rounding-transparent", "cxi.coll.rounding-thread")
@pytest.mark.parametrize(
    ("mode", "positive", "negative"),
    [
        ("nearest", 1.0, -1.0),
        ("up", math.nextafter(1, 2), -1.0),
        ("down", 1.0, -math.nextafter(1, 2)),
        ("zero", 1.0, -1.0),
    ],
)
def test_sum_follows_the_rounding_of_the_calling_thread(mode: str, positive: float, negative: float) -> None:
    assert summed(ROUNDINGS[mode], False, 1.0, 2.0**-60) == positive
    assert summed(ROUNDINGS[mode], False, -1.0, -(2.0**-60)) == negative
    assert LIBM.fegetround() == 0


@x86_only
@pytest.mark.clause("cxi.coll.rounding-ftz")
@pytest.mark.parametrize("mode", ROUNDINGS)
def test_sum_flushes_to_zero_in_each_rounding(mode: str) -> None:
    smallest = 2.0**-1022
    assert summed(ROUNDINGS[mode], True, 1.5 * smallest, -smallest) == 0.0
    assert summed(ROUNDINGS[mode], False, 1.5 * smallest, -smallest) == smallest / 2


@x86_only
def test_threads_of_different_roundings_do_not_agree() -> None:
    """The rounding is part of the operation: two of them in one accumulator are two operations."""
    accumulator = cxi.CollAccumulator()

    def fold(rounding: int) -> None:
        LIBM.fesetround(rounding)
        accumulator.fold(struct.pack("<d", 1.0), 1, fi.DOUBLE, fi.SUM)

    for rounding in ("nearest", "up"):
        thread = threading.Thread(target=fold, args=(ROUNDINGS[rounding],))
        thread.start()
        thread.join()
    assert accumulator.result(bytearray(8), 1, fi.DOUBLE) == 8


# ---- sets ------------------------------------------------------------------------------------------------------------


def test_comm_key_is_16_bytes(node: Node) -> None:
    key = cxi.CollCommKey(keytype=cxi.COMM_KEY_RANK, rank=cxi.CollRankKey(hwroot_idx=1, rank=3))
    assert bytes(key) == struct.pack("<IIII", 3, 1, 3, 0)
    with node.av.av_set(fi.AvSetAttr(comm_key=key)) as members:
        assert members.comm_key == bytes(key)
    with node.av.av_set(fi.AvSetAttr(comm_key=bytes(key) + b"more", comm_key_size=16)) as members:
        assert members.comm_key == bytes(key)
    with node.av.av_set(fi.AvSetAttr()) as members:
        assert members.comm_key is None
    for wrong, size in ((bytes(15), 0), (bytes(17), 0), (key, 12), (bytes(8), 16)):
        with pytest.raises(fi.InvalidArgument, match="a key has 16 bytes"):
            node.av.av_set(fi.AvSetAttr(comm_key=wrong, comm_key_size=size))


def test_count_limits_a_range(node: Node) -> None:
    """The provider takes at most `count` addresses of a range, and none is an error."""
    with node.domain.av_open() as av:
        for pid in range(20, 26):
            av.insert(cxi.Address(0, pid))
        attr = fi.AvSetAttr(count=3, start_addr=0, end_addr=5)
        with av.av_set(attr) as members:
            assert list(members) == [0, 1, 2]
        with av.av_set(fi.AvSetAttr(count=3, start_addr=0, end_addr=5, stride=2)) as members:
            assert list(members) == [0, 2, 4]
        with pytest.raises(fi.InvalidArgument, match="count is 0"):
            av.av_set(fi.AvSetAttr(start_addr=0, end_addr=5))


def test_keys_show_what_they_are() -> None:
    assert repr(cxi.CollCommKey(keytype=cxi.COMM_KEY_UNICAST)) == (
        "cxi.CollCommKey(keytype=cxi.COMM_KEY_UNICAST, ucast=cxi.CollUnicastKey(hwroot_idx=0, mcast_addr=0))"
    )
    assert repr(cxi.CollCommKey(keytype=77)) == "cxi.CollCommKey(keytype=77)"
    assert repr(cxi.CollIntMinmax(1, 2, 3, 4)) == "cxi.CollIntMinmax(minval=1, minidx=2, maxval=3, maxidx=4)"
