"""Accelerated collectives of the CXI provider. Source: fi_cxi(7) "Collectives (accelerated)"."""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fi.group_support import (
    WATCHDOG_S,
    Member,
    allreduce,
    completed,
    completions,
    events,
    join_all,
    members,
    until,
)
from tests.fi.support import Node

from weft import cxi, fi, testing
from weft.fi.policy import GroupPlan

INTS = [np.array([i, -i, 5, 2**40 + i], "int64") for i in range(3)]


@pytest.fixture
def three() -> Iterator[list[Member]]:
    """Three members of one group."""
    with members(3, "cxi", format=fi.CQ_FORMAT_MSG) as found:
        join_all(found)
        yield found


def reduced(found: list[Member], values: Any, op: int, **more: Any) -> list[Any]:
    return allreduce(found, [one.groups[0] for one in found], values, op, **more)


# ---- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.coll.barrier", "cxi.coll.synchronizing")
def test_barrier_completes_when_all_members_have_called(three: list[Member]) -> None:
    """fi_reduction operations: all reductions are synchronizing."""
    for one in three[:2]:
        one.ep.barrier(one.groups[0].addr, "b")
    for _ in range(200):
        assert not three[0].cq.read()
        assert not three[1].cq.read()
    three[2].ep.barrier(three[2].groups[0].addr, "b")
    for (entry,) in completed(three):
        assert (entry.op_context, entry.flags) == ("b", 0)


@pytest.mark.clause("cxi.coll.broadcast", "cxi.coll.broadcast-form")
def test_broadcast_ignores_what_the_others_buffers_hold(three: list[Member]) -> None:
    """A broadcast is an allreduce with FI_BOR in which all but the root give zeros."""
    buffers = [np.full(4, 0xFFFF * (i + 1), "uint64") for i in range(3)]
    for one, buf in zip(three, buffers, strict=True):
        one.ep.broadcast(buf, 4, None, one.groups[0].addr, one.names[1], fi.UINT64)
    completed(three)
    assert all(buf.tolist() == [0x1FFFE] * 4 for buf in buffers)
    for flags in (fi.MORE, cxi.PRE_REDUCED):
        with pytest.raises(fi.InvalidArgument):
            three[0].ep.broadcast(buffers[0], 4, None, three[0].groups[0].addr, three[0].names[0], fi.UINT64, flags)


@pytest.mark.clause("cxi.coll.reduce", "cxi.coll.reduce-form")
def test_reduce_ignores_the_result_of_all_but_the_root(three: list[Member]) -> None:
    """A reduce is an allreduce whose result pointer is ignored at all ranks but the root."""
    result, other = np.zeros(1), np.zeros(1)
    for one, out in zip(three, (other, result, None), strict=True):
        one.ep.reduce(np.ones(1), result=out, coll_addr=one.groups[0], root_addr=one.names[1], op=fi.SUM)
    completed(three)
    assert result[0] == 3
    assert other[0] == 0
    with pytest.raises(fi.InvalidArgument, match="root needs"):
        three[1].ep.reduce(np.ones(1), coll_addr=three[1].groups[0], root_addr=three[1].names[1], op=fi.SUM)


@pytest.mark.clause("cxi.coll.allreduce", "cxi.coll.no-more-fabric", "cxi.coll.no-more-result", "cxi.coll.user-source")
def test_allreduce_gives_the_result_to_all(three: list[Member]) -> None:
    """Without FI_MORE: a fabric reduction; result holds count elements of the datatype."""
    for result in reduced(three, INTS, fi.SUM):
        assert result.tolist() == [3, -3, 15, 3 * 2**40 + 3]


@pytest.mark.clause("cxi.coll.all-allreduce", "cxi.coll.barrier-form")
def test_each_call_is_one_reduction_of_the_same_frames(three: list[Member]) -> None:
    """Barrier, broadcast and reduce are forms of allreduce; a barrier is an allreduce without data."""
    buf, group = np.zeros(1, "uint64"), [one.groups[0] for one in three]
    calls: list[Any] = [
        lambda one, g: one.ep.allreduce(buf, result=buf.copy(), coll_addr=g, op=fi.BOR),
        lambda one, g: one.ep.barrier(g),
        lambda one, g: one.ep.broadcast(buf.copy(), coll_addr=g, root_addr=one.names[0]),
        lambda one, g: one.ep.reduce(buf, result=buf.copy(), coll_addr=g, root_addr=one.names[0], op=fi.BOR),
    ]
    spent = []
    for call in calls:
        before = [(g.statistics().frames, g.statistics().done) for g in group]
        for one, g in zip(three, group, strict=True):
            call(one, g)
        completed(three)
        after = [(g.statistics().frames, g.statistics().done) for g in group]
        spent.append([(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)])
    assert spent == [spent[0]] * 4
    assert [done for _, done in spent[0]] == [1, 1, 1]


@pytest.mark.clause("cxi.coll.payload")
def test_payload_of_more_than_32_bytes_is_refused(three: list[Member]) -> None:
    """fi_reduction operations: at most 32 bytes."""
    with pytest.raises(fi.InvalidArgument, match="32 bytes"):
        three[0].ep.allreduce(np.ones(5), result=np.ones(5), coll_addr=three[0].groups[0], op=fi.SUM)


@pytest.mark.clause("cxi.coll.concurrent", "cxi.coll.concurrent-eagain")
def test_eight_reductions_in_flight_then_again(three: list[Member]) -> None:
    """Eight concurrent reductions; further ones return -FI_EAGAIN."""
    for n in range(8):
        three[0].ep.barrier(three[0].groups[0].addr, n)
    with pytest.raises(fi.Again):
        three[0].ep.barrier(three[0].groups[0].addr)
    for one in three[1:]:
        for n in range(8):
            one.ep.barrier(one.groups[0].addr, n)
    for got in completed(three, 8):
        assert [entry.op_context for entry in got] == list(range(8))


@pytest.mark.clause("cxi.coll.progress-all", "cxi.coll.no-more-progress")
def test_reduction_completes_with_progress_at_all_members(three: list[Member]) -> None:
    """A collective is progressed to completion at every rank, here by reading the queues."""
    for one in three:
        one.ep.barrier(one.groups[0].addr)
    for one in three:  # each its own completion
        assert until(lambda one=one: [e for other in three if other is not one for e in ()] or one.cq.read())


# ---- operators -------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.coll.op-bor", "cxi.coll.op-band", "cxi.coll.op-bxor")
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_bit_operations_on_unsigned_integers(three: list[Member], dtype: str) -> None:
    """Table of allreduce: BOR, BAND, BXOR."""
    values = [np.array([0b1100 + i], dtype) for i in range(3)]
    for op, expected in ((fi.BOR, 0b1111), (fi.BAND, 0b1100), (fi.BXOR, 0b1100 ^ 0b1101 ^ 0b1110)):
        assert [result[0] for result in reduced(three, values, op)] == [expected] * 3


@pytest.mark.clause(
    "cxi.coll.op-min-int64",
    "cxi.coll.op-max-int64",
    "cxi.coll.op-sum-int64",
    "cxi.coll.op-min-double",
    "cxi.coll.op-max-double",
    "cxi.coll.op-sum-double",
)
@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_minimum_maximum_and_sum(three: list[Member], dtype: str) -> None:
    """Table of allreduce: MIN, MAX, SUM on FI_INT64 and FI_DOUBLE."""
    values = [np.array([3 - i, -i], dtype) for i in range(3)]
    for op, expected in ((fi.MIN, [1, -2]), (fi.MAX, [3, 0]), (fi.SUM, [6, -3])):
        assert all(result.tolist() == expected for result in reduced(three, values, op))


@pytest.mark.clause("cxi.coll.bitwise-unsigned", "cxi.coll.arith-signed")
@pytest.mark.parametrize(
    ("op", "dtype"), [(fi.BOR, "int64"), (fi.BXOR, "int32"), (fi.SUM, "uint64"), (fi.MIN, "uint8")]
)
def test_operators_of_the_other_signedness_are_refused(three: list[Member], op: int, dtype: str) -> None:
    """Only unsigned bitwise operators, only signed arithmetic operators."""
    value = np.ones(1, dtype)
    with pytest.raises(fi.InvalidArgument, match="no reduction here"):
        three[0].ep.allreduce(value, result=value.copy(), coll_addr=three[0].groups[0], op=op)


@pytest.mark.clause(
    "cxi.coll.op-minmaxloc-int64",
    "cxi.coll.minmaxloc-data",
    "cxi.coll.minmaxloc-rank",
    "cxi.coll.minmaxloc-min",
    "cxi.coll.minmaxloc-max",
    "cxi.coll.minmaxloc-datatype",
    "cxi.coll.minmaxloc-count",
    "cxi.coll.op-minmaxloc-double",
)
@pytest.mark.parametrize("kind", ["int", "double"])
def test_minmaxloc_finds_values_and_ranks(three: list[Member], kind: str) -> None:
    """Each rank gives minimum and maximum with its index; the result has the group's."""
    struct, datatype = (cxi.CollIntMinmax, fi.INT64) if kind == "int" else (cxi.CollFltMinmax, fi.DOUBLE)
    results = [struct() for _ in three]
    for rank, (one, result, low, high) in enumerate(zip(three, results, (4, -7, 2), (6, 8, 17), strict=True)):
        mine = struct(low, rank, high, rank)
        one.ep.allreduce(mine, 1, None, result, None, one.groups[0].addr, datatype, cxi.MINMAXLOC)
    completed(three)
    for result in results:
        assert (result.minval, result.minidx, result.maxval, result.maxidx) == (-7, 1, 17, 2)
    with pytest.raises(fi.InvalidArgument, match="exactly 1"):
        three[0].ep.allreduce(results[0], 2, None, results[0], None, three[0].groups[0].addr, datatype, cxi.MINMAXLOC)


@pytest.mark.clause("cxi.coll.nan-min", "cxi.coll.nan-max", "cxi.coll.nan-num-min", "cxi.coll.nan-num-max")
@pytest.mark.clause("cxi.coll.num-min", "cxi.coll.num-max")
def test_nan_spoils_plain_minima_and_the_num_forms_skip_it(three: list[Member]) -> None:
    """MIN(NaN, value) is NaN, MINNUM(NaN, value) the value."""
    values = [np.array([one]) for one in (5.0, math.nan, 7.0)]
    for op, expected in ((fi.MIN, None), (fi.MAX, None), (cxi.MINNUM, 5.0), (cxi.MAXNUM, 7.0)):
        for result in reduced(three, values, op):
            assert math.isnan(result[0]) if expected is None else result[0] == expected


def test_current_release_prefers_numbers_in_minima_and_maxima(monkeypatch: pytest.MonkeyPatch) -> None:
    """cxip_coll.c: FI_MIN, FI_MAX and FI_CXI_MINMAXLOC of doubles are the NUM operations."""
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    with members(3, "cxi", format=fi.CQ_FORMAT_MSG) as three:
        join_all(three)
        values = [np.array([one, -one]) for one in (5.0, math.nan, 7.0)]
        for op, expected in ((fi.MIN, [5.0, -7.0]), (fi.MAX, [7.0, -5.0])):
            assert [one.tolist() for one in reduced(three, values, op)] == [expected] * 3
        located = [cxi.CollFltMinmax(one, rank, one, rank) for rank, one in enumerate((math.nan, 5.0, 4.0))]
        results = [cxi.CollFltMinmax() for _ in three]
        for one, buf, out in zip(three, located, results, strict=True):
            one.ep.allreduce(buf, 1, None, out, None, one.groups[0].addr, fi.DOUBLE, cxi.MINMAXLOC)
        completed(three)
        for out in results:
            assert (out.minval, out.minidx, out.maxval, out.maxidx) == (4.0, 2, 5.0, 1)


@pytest.mark.clause("cxi.coll.op-repsum", "cxi.coll.repsum-reproducible", "cxi.coll.repsum-count")
def test_reproducible_sum_is_exact_in_any_order(three: list[Member]) -> None:
    """FI_CXI_REPSUM gives the same bits in whatever order the doubles are added."""
    values = [1e16, 1.0, -1e16]
    for turn in range(3):
        order = values[turn:] + values[:turn]
        for result in reduced(three, [np.array([one]) for one in order], cxi.REPSUM):
            assert result[0] == math.fsum(values) == 1.0
    with pytest.raises(fi.InvalidArgument, match="exactly 1"):
        three[0].ep.allreduce(np.ones(2), 2, None, np.ones(2), None, three[0].groups[0], fi.DOUBLE, cxi.REPSUM)


# ---- sets and their groups -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "expected"), [(3, [0, 2, 4]), (1, [0]), (9, [0, 2, 4, 6, 8])])
def test_count_limits_the_members_of_a_range(node: Node, count: int, expected: list[int]) -> None:
    """cxip_av_set: with a range, count is the number of members."""
    for pid in range(100, 110):
        node.av.insert(cxi.Address(node.name.nic, pid))
    with node.av.av_set(fi.AvSetAttr(start_addr=0, end_addr=9, stride=2, count=count)) as found:
        assert list(found) == expected


def test_address_that_comes_after_the_group_was_closed_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The manager's answer and the close cross each other: nobody else knows of the address."""
    asked, closed = threading.Event(), threading.Event()
    released: list[int] = []

    def ask(_: object, stop: threading.Event) -> tuple[int, int]:
        asked.set()
        assert closed.wait(WATCHDOG_S)
        assert stop.is_set()
        return 77, 0

    with members(2, "cxi") as two:
        plan = GroupPlan(ask=ask, blocks=True, release=released.append)
        monkeypatch.setattr(type(two[0].ep.policy), "group", lambda *_: plan)
        for one in two:
            one.join()

        def under_way() -> bool:
            for one in two:
                one.cq.read()
                with contextlib.suppress(fi.Again):
                    one.eq.read()
            return asked.is_set()

        until(under_way, "member 0 asks for an address")
        two[0].groups.pop().close()
        closed.set()
        until(lambda: released, "the address is given back")
        assert released == [77]


# ---- FI_MORE, FI_CXI_PRE_REDUCED -------------------------------------------------------------------------------------


@pytest.mark.clause(
    "cxi.coll.flag-more",
    "cxi.coll.flag-pre-reduced",
    "cxi.coll.more-accumulates",
    "cxi.coll.more-repeats",
    "cxi.coll.more-immediate",
    "cxi.coll.pre-reduced-source",
    "cxi.coll.pre-reduced-ignored",
)
def test_accumulators_are_reduced_over_the_group(three: list[Member]) -> None:
    """FI_MORE folds into a local accumulator and returns at once; FI_CXI_PRE_REDUCED reduces accumulators."""
    result = [np.zeros(1) for _ in three]
    for one, out in zip(three, result, strict=True):
        accumulator = cxi.CollAccumulator()
        for n in range(10):
            one.ep.allreduce(np.array([float(n)]), result=accumulator, op=fi.SUM, flags=fi.MORE)
        assert not one.cq.read()
        one.ep.allreduce(accumulator, 0, None, out, None, one.groups[0].addr, 99, 0, cxi.PRE_REDUCED)
    completed(three)
    assert [out[0] for out in result] == [135, 135, 135]


_EVERY = [
    (op, name, np.array([12, 10], name), np.array([6, 3], name))
    for op in (fi.BOR, fi.BAND, fi.BXOR)
    for name in ("uint8", "uint16", "uint32", "uint64")
]
_EVERY += [
    (op, name, np.array([3, -4], name), np.array([-5, 6], name))
    for op in (fi.MIN, fi.MAX, fi.SUM)
    for name in ("int64", "float64")
]
_FUNCTIONS: dict[int, Any] = {
    int(fi.BOR): np.bitwise_or, int(fi.BAND): np.bitwise_and, int(fi.BXOR): np.bitwise_xor,
    int(fi.MIN): np.minimum, int(fi.MAX): np.maximum, int(fi.SUM): np.add,
}  # fmt: skip


@pytest.mark.clause("cxi.coll.more-all-ops", "cxi.coll.more-pure")
def test_more_folds_with_every_operator_and_without_other_state(three: list[Member]) -> None:
    """FI_MORE: every operator; an accumulator depends on the calls' arguments alone, whichever endpoint they name."""
    mixed = [cxi.CollAccumulator() for _ in _EVERY]
    for at in (2, 3):  # all first values, then all second ones, by different endpoints
        for accumulator, case in zip(mixed, _EVERY, strict=True):
            three[at - 2].ep.allreduce(case[at], result=accumulator, op=case[0], flags=fi.MORE)
    for accumulator, (op, name, one, two) in zip(mixed, _EVERY, strict=True):
        alone = cxi.CollAccumulator()
        for values in (one, two):
            three[2].ep.allreduce(values, result=alone, op=op, flags=fi.MORE)
        assert bytes(alone) == bytes(accumulator), (op, name)
        out = np.zeros(2, name)
        accumulator.result(out, 2, fi.datatype_of(name))
        assert out.tolist() == _FUNCTIONS[int(op)](one, two).tolist(), (op, name)
    repsum, extremes = cxi.CollAccumulator(), cxi.CollAccumulator()
    for rank, value in enumerate((1.5, -2.0, 4.0)):
        three[0].ep.allreduce(np.array([value]), result=repsum, op=cxi.REPSUM, flags=fi.MORE)
        extremes.fold(cxi.CollFltMinmax(value, rank, value, rank), 1, fi.DOUBLE, cxi.MINMAXLOC)
    total, found = np.zeros(1), cxi.CollFltMinmax()
    repsum.result(total, 1, fi.DOUBLE)
    extremes.result(found, 1, fi.DOUBLE)
    assert total[0] == 3.5
    assert bytes(found) == bytes(cxi.CollFltMinmax(-2.0, 1, 4.0, 2))


@pytest.mark.clause("cxi.coll.more-consistent")
def test_operators_that_differ_on_one_accumulator_fail_the_reduction(three: list[Member]) -> None:
    """All calls on one accumulator have the same op: otherwise the fabric reduction ends with a mismatch."""
    for one in three:
        accumulator = cxi.CollAccumulator()
        one.ep.allreduce(np.ones(1), result=accumulator, op=fi.SUM, flags=fi.MORE)
        one.ep.allreduce(np.ones(1), result=accumulator, op=fi.MAX, flags=fi.MORE)
        one.ep.allreduce(accumulator, result=np.zeros(1), coll_addr=one.groups[0], op=fi.SUM, flags=cxi.PRE_REDUCED)
    for (entry,) in completions(three):
        assert isinstance(entry, fi.CqErrEntry)
        assert entry.prov_errno == cxi.ERRNO_RED_OP_MISMATCH


def test_accumulator_that_is_empty_is_refused(three: list[Member]) -> None:
    with pytest.raises(fi.InvalidArgument, match="no accumulator"):
        three[0].ep.allreduce(
            cxi.CollAccumulator(), result=np.zeros(1), coll_addr=three[0].groups[0], flags=cxi.PRE_REDUCED
        )


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_overflow_is_an_error_entry_with_the_providers_numbers(three: list[Member]) -> None:
    """Facts: err is -FI_EOTHER, negative; prov_errno ERRNO_RED_INT_OVERFLOW."""
    for one in three:
        value = np.array([2**62], "int64")
        one.ep.allreduce(value, result=value.copy(), coll_addr=one.groups[0], op=fi.SUM, context="c")
    for (entry,) in completions(three):
        assert isinstance(entry, fi.CqErrEntry)
        assert (entry.err, entry.prov_errno, entry.op_context) == (-256, cxi.ERRNO_RED_INT_OVERFLOW, "c")
        assert "overflow" in three[0].cq.strerror(entry.prov_errno, entry.err_data)


def test_mismatch_and_loss_have_their_numbers(three: list[Member]) -> None:
    three[0].ep.barrier(three[0].groups[0])
    for one in three[1:]:
        one.ep.allreduce(np.ones(1), result=np.ones(1), coll_addr=one.groups[0], op=fi.SUM)
    for (entry,) in completions(three):
        assert (entry.err, entry.prov_errno) == (-256, cxi.ERRNO_RED_OP_MISMATCH)
    for one in three[:2]:
        one.ep.barrier(one.groups[0])
    three[2].groups[0].close()
    for (entry,) in completions(three[:2]):
        assert (entry.err, entry.prov_errno) == (-256, cxi.ERRNO_RED_OTHER)


# ---- joins -----------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.coll.join", "cxi.coll.join-managed", "cxi.coll.join-everyone", "cxi.coll.join-progress")
def test_join_completes_when_every_member_has_joined() -> None:
    """The provider carries out the join; the client reads its event queue."""
    with members(3, "cxi") as found:
        for one in found[:2]:
            one.join(context="early")
        for _ in range(100):
            assert found[0].event() is None
            assert found[1].event() is None
        found[2].join(context="late")
        for event, entry in events(found):
            assert event == fi.JOIN_COMPLETE
            assert entry.fid.joined


@pytest.mark.clause("cxi.coll.join-coll-addr", "cxi.coll.join-set")
def test_join_checks_address_and_set() -> None:
    """coll_addr is FI_ADDR_NOTAVAIL; the set holds addresses of the endpoint's vector."""
    with members(1, "cxi") as (one,):
        with pytest.raises(fi.InvalidArgument, match="ADDR_NOTAVAIL"):
            one.ep.join_collective(1, one.set())
        with pytest.raises(fi.InvalidArgument, match="not in use"):
            one.ep.join_collective(fi.ADDR_NOTAVAIL, one.set([one.names[0], 500]))
        group = one.ep.join_collective(fi.ADDR_NOTAVAIL, one.set(), 12345)  # flags are ignored
        one.groups.append(group)
        events([one])


@pytest.mark.clause("cxi.coll.join-concurrency")
def test_any_number_of_joins_is_in_flight() -> None:
    """There is no limit to concurrent joins."""
    with members(2, "cxi") as found:
        for one in found:
            for n in range(60):
                one.join(context=n)
        seen: list[dict[int, int]] = [{}, {}]

        def all_joined() -> bool:
            for one, mine in zip(found, seen, strict=True):
                if (got := one.event()) is not None:
                    mine[got[1].context] = got[1].fid.statistics().number
            return [len(mine) for mine in seen] == [60, 60]

        until(all_joined, str(seen))
        assert seen[0] == seen[1]  # the n-th call of one member joined the group of the other's n-th


@pytest.mark.clause("cxi.coll.join-multicast")
def test_group_has_a_multicast_address_of_its_own() -> None:
    """A join creates a multicast tree; the members know its address, and closing gives it back."""
    with members(2, "cxi") as found:
        first, second = join_all(found), join_all(found)
        seen = {(g.statistics().multicast, g.statistics().root) for g in first}
        assert len(seen) == 1
        assert None not in seen.pop()
        assert first[0].statistics().multicast != second[0].statistics().multicast


@pytest.mark.clause("cxi.coll.mcast-job-limit")
def test_job_limit_on_multicast_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator can limit the multicast addresses of one job."""
    monkeypatch.setenv("FI_CXI_HWCOLL_ADDRS_PER_JOB", "2")
    with members(2, "cxi") as found:
        join_all(found), join_all(found)
        for one in found:
            one.join()
        for got in events(found):
            assert isinstance(got, fi.EqErrEntry)
            assert (got.err, got.prov_errno) == (-int(fi.ECONNREFUSED), cxi.ERRNO_JOIN_MCAST_INUSE)
        for one in found:
            one.groups[0].close()
        join_all(found)


@pytest.mark.clause("cxi.env.coll-url-required")
@pytest.mark.parametrize("missing", ["FABRIC_MGR_URL", "MCAST_TOKEN", "JOB_ID"])
def test_job_without_a_manager_has_no_collectives(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """In a job that is set up for accelerated collectives, a join without the manager's URL fails."""
    values = {"FABRIC_MGR_URL": "http://127.0.0.1:1/", "MCAST_TOKEN": "t", "JOB_ID": "j"}
    for name, value in values.items():
        if name != missing:
            monkeypatch.setenv(f"FI_CXI_COLL_{name}", value)
    with members(2, "cxi") as found:
        for one in found:
            one.join()
        for one, got in zip(found, events(found), strict=True):
            assert isinstance(got, fi.EqErrEntry)
            assert (got.err, got.prov_errno) == (-int(fi.ECONNREFUSED), cxi.ERRNO_JOIN_CURL_FAILED)
            assert got.data == fi.JOIN_COMPLETE
            assert "FI_CXI_COLL" in one.eq.strerror(got.prov_errno, got.err_data)


def test_dead_manager_is_an_error_at_every_member(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FABRIC_MGR_URL": "http://127.0.0.1:1/", "MCAST_TOKEN": "t", "JOB_ID": "j"}.items():
        monkeypatch.setenv(f"FI_CXI_COLL_{name}", value)
    with members(3, "cxi") as found:
        for one in found:
            one.join()
        assert {got.prov_errno for got in events(found)} == {cxi.ERRNO_JOIN_SERVER_ERR}


def key(kind: int, **part: Any) -> cxi.CollCommKey:
    return cxi.CollCommKey(keytype=kind, **part)


def test_multicast_key_is_taken_as_given() -> None:
    with members(3, "cxi") as found:
        groups = join_all(
            found, comm_key=key(cxi.COMM_KEY_MULTICAST, mcast=cxi.CollMcastKey(hwroot_idx=1, mcast_addr=77))
        )
        for group in groups:
            assert (group.statistics().multicast, group.statistics().root) == (77, 1)


@pytest.mark.parametrize("root", [3, 4])
def test_multicast_key_with_a_root_that_is_no_member_is_refused(root: int) -> None:
    with members(3, "cxi") as (one, *_):
        part = key(cxi.COMM_KEY_MULTICAST, mcast=cxi.CollMcastKey(hwroot_idx=root, mcast_addr=77))
        with pytest.raises(fi.InvalidArgument, match=f"root {root} of 3 members"):
            one.ep.join_collective(fi.ADDR_NOTAVAIL, one.set(range(3), comm_key=part))


def test_unicast_key_needs_no_address() -> None:
    with members(3, "cxi") as found:
        groups = join_all(found, comm_key=key(cxi.COMM_KEY_UNICAST))
        assert groups[0].statistics().multicast is None
        for result in allreduce(found, groups, [np.ones(2)] * 3, fi.SUM):
            assert result.tolist() == [3, 3]


def test_ranks_are_members_of_one_endpoint() -> None:
    """COMM_KEY_RANK: several members in one process, which a rank names as root."""
    with members(1, "cxi") as (one,):
        for rank in range(5):
            part = key(cxi.COMM_KEY_RANK, rank=cxi.CollRankKey(hwroot_idx=0, rank=rank))
            one.join(list(range(5)), comm_key=part, context=rank)
        seen = sorted(until(one.event)[1].context for _ in range(5))
        assert seen == [0, 1, 2, 3, 4]
        buffers = [np.full(1, rank, "uint32") for rank in range(5)]
        for group, buf in zip(one.groups, buffers, strict=True):
            one.ep.broadcast(buf, coll_addr=group.addr, root_addr=3)
        completed([one], 5)
        assert all(buf[0] == 3 for buf in buffers)


@pytest.mark.parametrize("rank", [5, 1000])
def test_rank_beyond_the_set_is_refused(rank: int) -> None:
    with members(1, "cxi") as (one,):
        part = key(cxi.COMM_KEY_RANK, rank=cxi.CollRankKey(hwroot_idx=0, rank=rank))
        with pytest.raises(fi.InvalidArgument, match="rank"):
            one.ep.join_collective(fi.ADDR_NOTAVAIL, one.set(list(range(5)), comm_key=part))


def test_groups_of_dead_processes_give_their_addresses_back(registry: Path) -> None:
    from weft.fm.store import Store

    with members(1, "cxi") as (one,):
        join_all([one])
        with Store(registry / "multicast.db") as store:
            store.create([1], 1, 1, "process 999999 1 " + str(store.jobs()[0].job_id.split()[3]))
            assert len(store.groups()) == 2
        join_all([one])
        with Store(registry / "multicast.db") as store:
            assert len(store.groups()) == 2  # both of this process


@pytest.mark.clause("cxi.coll.join-fm-api", "cxi.env.coll-url", "cxi.env.coll-timeout", "cxi.coll.mcast-system-limit")
@pytest.mark.clause("cxi.env.coll-timeout-default")
@pytest.mark.parametrize(("text", "timeout_us"), [("54321", 54321), (None, 32000)])
def test_join_asks_the_fabric_manager(
    text: str | None, timeout_us: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Member 0 asks the manager at FI_CXI_COLL_FABRIC_MGR_URL, with FI_CXI_COLL_TIMEOUT_USEC, and gives back. What the
    manager says of a refusal is in the log."""
    if text is not None:
        monkeypatch.setenv("FI_CXI_COLL_TIMEOUT_USEC", text)
    pytest.importorskip("fastapi")
    with testing.fabric_manager(addresses=1, groups_per_root=10) as manager, members(3, "cxi") as found:
        for one in found:
            one.join()
        for event, entry in events(found):
            assert event == fi.JOIN_COMPLETE
            assert entry.fid.statistics().multicast == manager.store.groups()[0].mcast_id
        (made,) = manager.store.groups()
        assert (made.timeout_us, len(made.macs), made.vni) == (timeout_us, 3, found[0].ep.policy.credential.vni)
        assert "fabric manager" not in caplog.text
        for one in found:
            one.join()  # a second group: the system has one address
        assert {got.prov_errno for got in events(found)} == {cxi.ERRNO_JOIN_MCAST_INUSE}
        (line,) = [one.getMessage() for one in caplog.records if "fabric manager" in one.getMessage()]
        assert re.search(r"fabric manager: .* answered 507: 02: \S", line)
        for one in found:
            one.groups[0].close()
        assert not manager.store.groups()
