"""Collective groups of the general provider: joins, reductions, and their failures. Source: fi_collective(3)."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fi.group_support import Member, allreduce, completed, completions, events, join_all, members, until

from weft import fi


def test_every_member_gets_the_sum() -> None:
    with members(5) as found:
        groups = join_all(found)
        values = [np.array([i, 10 * i], "int64") for i in range(5)]
        for result in allreduce(found, groups, values, fi.SUM):
            assert result.tolist() == [10, 100]


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("op", [fi.MIN, fi.MAX, fi.SUM, fi.PROD])
def test_general_operations_work_on_every_datatype(op: int, dtype: str) -> None:
    expected = {fi.MIN: 1, fi.MAX: 3, fi.SUM: 6, fi.PROD: 6}[fi.Op(op)]
    with members(3) as found:
        groups = join_all(found)
        for result in allreduce(found, groups, [np.array([i + 1], dtype) for i in range(3)], op):
            assert result.tolist() == [expected]


def test_completions_have_context_and_flag_in_the_order_of_the_calls() -> None:
    with members(3, format=fi.CQ_FORMAT_MSG) as found:
        groups = join_all(found)
        for one, group in zip(found, groups, strict=True):
            for n in range(5):
                one.ep.barrier(group.addr, n)
        for got in completed(found, 5):
            assert [one.op_context for one in got] == [0, 1, 2, 3, 4]
            assert all(one.flags == fi.COLLECTIVE for one in got)


def test_barrier_waits_for_every_member() -> None:
    with members(3) as found:
        groups = join_all(found)
        for one, group in list(zip(found, groups, strict=True))[:2]:
            one.ep.barrier(group)
        for _ in range(50):
            assert not found[0].cq.read()
            assert not found[1].cq.read()
        found[2].ep.barrier2(groups[2].addr, 0, "last")
        assert completed(found)[2][0].op_context == "last"


def test_broadcast_copies_the_roots_buffer() -> None:
    with members(4) as found:
        groups = join_all(found)
        buffers = [np.full(4, i, "float64") for i in range(4)]
        for one, group, buf in zip(found, groups, buffers, strict=True):
            one.ep.broadcast(buf, coll_addr=group.addr, root_addr=one.names[2])
        completed(found)
        assert all(buf.tolist() == [2.0] * 4 for buf in buffers)


def test_reduce_gives_the_result_to_the_root_alone() -> None:
    with members(3) as found:
        groups = join_all(found)
        result, untouched = np.zeros(1, "int32"), np.zeros(1, "int32")
        for i, (one, group) in enumerate(zip(found, groups, strict=True)):
            out = {0: None, 1: result, 2: untouched}[i]
            one.ep.reduce(np.array([7], "int32"), result=out, coll_addr=group.addr, root_addr=one.names[1], op=fi.SUM)
        completed(found)
        assert result[0] == 21
        assert untouched[0] == 0


def test_ninth_reduction_in_flight_is_refused_until_one_completes() -> None:
    with members(2) as found:
        groups = join_all(found)
        for n in range(8):
            found[0].ep.barrier(groups[0].addr, n)
        with pytest.raises(fi.Again, match="8 reductions"):
            found[0].ep.barrier(groups[0].addr)
        found[1].ep.barrier(groups[1].addr)
        completed(found)
        found[0].ep.barrier(groups[0].addr)


def test_join_completes_only_when_every_member_has_called_it() -> None:
    with members(3) as found:
        early = [one.join(context=i) for i, one in enumerate(found[:2])]
        for _ in range(100):
            assert found[0].event() is None
            assert found[1].event() is None
        with pytest.raises(fi.BadState, match="not joined yet"):
            found[0].ep.barrier(early[0].addr)
        found[2].join(context=2)
        for i, (event, entry) in enumerate(events(found)):
            assert (event, entry.context) == (fi.JOIN_COMPLETE, i)
            assert entry.fid.joined


def test_several_joins_are_in_flight_at_once() -> None:
    with members(3) as found:
        for one in found:
            for n in range(6):
                one.join(context=("all", n))
            one.join(one.names[:2], context="two") if one is not found[2] else None
        seen: list[list[object]] = [[], [], []]

        def all_done() -> bool:
            for i, one in enumerate(found):
                if (got := one.event()) is not None:
                    seen[i].append(got[1].context)
            return [len(one) for one in seen] == [7, 7, 6]

        until(all_done, str(seen))
        assert [one for one in seen[0] if one != "two"] == [("all", n) for n in range(6)]


def test_members_that_disagree_all_get_an_error() -> None:
    with members(3) as found:
        groups = join_all(found)
        out = np.zeros(1, "int64")
        found[0].ep.barrier(groups[0].addr)
        for one, group in zip(found[1:], groups[1:], strict=True):
            one.ep.allreduce(np.ones(1, "int64"), result=out, coll_addr=group.addr, op=fi.SUM)
        for (entry,) in completions(found):
            assert isinstance(entry, fi.CqErrEntry)
            assert entry.err == fi.EOTHER


def test_closing_a_group_fails_the_reductions_of_the_others() -> None:
    with members(4) as found:
        groups = join_all(found)
        for one, group in zip(found[:3], groups[:3], strict=True):
            one.ep.barrier(group.addr, "running")
        groups[3].close()
        for (entry,) in completions(found[:3]):
            assert isinstance(entry, fi.CqErrEntry)
            assert entry.op_context == "running"
        found[0].ep.barrier(groups[0].addr, "later")
        ((entry,),) = completions(found[:1])
        assert isinstance(entry, fi.CqErrEntry)
        assert entry.op_context == "later"
        with pytest.raises(fi.InvalidArgument, match="no group of this endpoint"):
            found[3].ep.barrier(groups[3].addr)


@pytest.mark.parametrize("first", ["root", "leaves"])
def test_member_whose_endpoint_is_closed_fails_the_join_of_the_others(first: str) -> None:
    """Members that have called before the root joins and fails at once call no second time."""
    with members(3) as found:
        with Member() as gone:
            name = gone.name
        for one in found if first == "root" else reversed(found):
            one.names.insert(1, one.av.insert(name))  # the first neighbour that the root looks for
            one.join(context="c")
            if first == "leaves" and one is found[2]:
                assert [member.event() for member in found] == [None] * 3  # the call of `one` has arrived
        for got in events(found):
            assert isinstance(got, fi.EqErrEntry)
            assert (got.err, got.data, got.context) == (fi.ECONNREFUSED, fi.JOIN_COMPLETE, "c")
            assert b"no endpoint is there" in got.err_data
            assert got.fid.closed


def test_endpoint_and_set_are_busy_until_the_group_is_closed() -> None:
    with members(1) as (one,):
        (group,) = join_all([one])
        with pytest.raises(fi.Busy, match="CollectiveGroup"):
            one.ep.close()
        with pytest.raises(fi.Busy, match="CollectiveGroup"):
            one.sets[0].close()
        group.close()
        one.sets[0].close()


def test_group_of_one_member_reduces_at_once() -> None:
    with members(1) as (one,):
        groups = join_all([one])
        (result,) = allreduce([one], groups, [np.array([5], "int64")], fi.SUM)
        assert result[0] == 5


def test_buffer_and_context_live_until_the_completion() -> None:
    with members(2) as found:
        groups = join_all(found)
        for one, group in zip(found, groups, strict=True):
            # Nothing else refers to the buffers.
            one.ep.allreduce(np.ones(4), result=np.zeros(4), coll_addr=group.addr, op=fi.SUM, context=object())
        for (entry,) in completed(found):
            assert type(entry.op_context) is object


class TestRefusals:
    """Calls that are refused leave the group as it was."""

    @pytest.fixture
    def alone(self):  # type: ignore[no-untyped-def]
        with members(1) as (one,):
            join_all([one])
            yield one

    def test_more_than_32_bytes(self, alone: Member) -> None:
        with pytest.raises(fi.InvalidArgument, match="32 bytes"):
            alone.ep.allreduce(np.ones(5), result=np.ones(5), coll_addr=alone.groups[0], op=fi.SUM)

    def test_no_elements(self, alone: Member) -> None:
        with pytest.raises(fi.InvalidArgument):
            alone.ep.allreduce(np.ones(0), result=np.ones(1), coll_addr=alone.groups[0], op=fi.SUM)

    def test_short_result(self, alone: Member) -> None:
        with pytest.raises(fi.InvalidArgument, match="result has 8 bytes"):
            alone.ep.allreduce(np.ones(2), result=np.ones(1), coll_addr=alone.groups[0], op=fi.SUM)

    def test_no_buffers(self, alone: Member) -> None:
        with pytest.raises(fi.InvalidArgument, match="buf is needed"):
            alone.ep.allreduce(None, result=np.ones(1), coll_addr=alone.groups[0], op=fi.SUM)
        with pytest.raises(fi.InvalidArgument, match="result is needed"):
            alone.ep.allreduce(np.ones(1), coll_addr=alone.groups[0], op=fi.SUM)

    @pytest.mark.parametrize("addr", [0, 12345678, fi.ADDR_NOTAVAIL])
    def test_address_of_no_group(self, alone: Member, addr: int) -> None:
        with pytest.raises(fi.InvalidArgument, match="no group"):
            alone.ep.barrier(addr)

    def test_group_of_another_endpoint(self, alone: Member) -> None:
        with members(1) as (other,):
            join_all([other])
            with pytest.raises(fi.InvalidArgument, match="no group"):
                alone.ep.barrier(other.groups[0].addr)

    def test_operation_that_is_no_reduction(self, alone: Member) -> None:
        with pytest.raises(fi.InvalidArgument, match="no reduction"):
            alone.ep.allreduce(np.ones(1), result=np.ones(1), coll_addr=alone.groups[0], op=fi.BOR)

    def test_unknown_flags(self, alone: Member) -> None:
        with pytest.raises(fi.BadFlags):
            alone.ep.barrier(alone.groups[0], flags=fi.PEEK)

    def test_root_that_is_no_member(self, alone: Member) -> None:
        with pytest.raises(fi.InvalidArgument, match="no member"):
            alone.ep.broadcast(np.ones(1), coll_addr=alone.groups[0], root_addr=99)

    def test_read_only_result(self, alone: Member) -> None:
        with pytest.raises(fi.FabricError):
            alone.ep.allreduce(np.ones(1), result=bytes(8), coll_addr=alone.groups[0], op=fi.SUM)

    def test_join_with_another_address(self, alone: Member) -> None:
        with pytest.raises(fi.InvalidArgument, match="ADDR_NOTAVAIL"):
            alone.ep.join_collective(0, alone.sets[0])

    def test_join_with_flags(self, alone: Member) -> None:
        with pytest.raises(fi.BadFlags):
            alone.ep.join_collective(fi.ADDR_NOTAVAIL, alone.sets[0], 1)

    def test_join_of_a_set_without_the_endpoint(self, alone: Member) -> None:
        with members(1) as (other,):
            outside = alone.set([alone.av.insert(other.name)])
            with pytest.raises(fi.InvalidArgument, match="no member of the set"):
                alone.ep.join_collective(fi.ADDR_NOTAVAIL, outside)

    def test_join_of_a_number_that_is_not_in_use(self, alone: Member) -> None:
        with pytest.raises(fi.InvalidArgument, match="not in use"):
            alone.ep.join_collective(fi.ADDR_NOTAVAIL, alone.set([alone.names[0], 77]))

    def test_join_of_an_empty_set(self, alone: Member) -> None:
        with pytest.raises(fi.InvalidArgument, match="no members"):
            alone.ep.join_collective(fi.ADDR_NOTAVAIL, alone.set([]))

    def test_join_of_a_set_of_another_vector(self, alone: Member) -> None:
        refused = pytest.raises(fi.InvalidArgument, match="the endpoint's vector")
        with alone.domain.av_open() as other, other.av_set(fi.AvSetAttr()) as theirs, refused:
            alone.ep.join_collective(fi.ADDR_NOTAVAIL, theirs)

    def test_join_of_something_else(self, alone: Member) -> None:
        with pytest.raises(TypeError, match="AvSet"):
            alone.ep.join_collective(fi.ADDR_NOTAVAIL, alone.av)  # type: ignore[arg-type]


def test_join_needs_the_capability() -> None:
    with members(1, caps=fi.MSG) as (one,), pytest.raises(fi.NotSupported, match="COLLECTIVE"):
        one.join()


@pytest.mark.clause("mr.collective.unset-optional", "mr.collective.unset-null-desc")
def test_buffers_need_no_registration_without_mr_collective() -> None:
    """fi_mr(3) FI_MR_COLLECTIVE: unset, buffers that were never registered work, with desc None."""
    with members(2) as found:
        groups = join_all(found)
        assert not found[0].info.domain_attr.mr_mode & fi.MR_COLLECTIVE
        for result in allreduce(found, groups, [np.ones(1)] * 2, fi.SUM):
            assert result[0] == 2


@pytest.mark.clause("mr.collective.unset-valid-desc", "mr.access.send-collective", "mr.access.recv-collective")
def test_valid_descriptors_are_taken_without_mr_collective() -> None:
    """fi_mr(3) FI_MR_COLLECTIVE, access: a region with SEND supplies data, one with RECV takes it in."""
    with members(2) as found:
        groups = join_all(found)
        data, results = [np.ones(1) for _ in found], [np.zeros(1) for _ in found]
        regions = []
        for one, group, value, result in zip(found, groups, data, results, strict=True):
            give, take = one.domain.mr_reg(value, fi.SEND), one.domain.mr_reg(result, fi.RECV)
            regions += [give, take]
            one.ep.allreduce(value, None, give.desc, result, take.desc, group.addr, fi.DOUBLE, fi.SUM)
            with pytest.raises(fi.FabricError):  # the rights the other way round
                one.ep.allreduce(value, None, give.desc, value, give.desc, group.addr, fi.DOUBLE, fi.SUM)
        completed(found)
        for region in regions:
            region.close()
        assert [result[0] for result in results] == [2, 2]


@pytest.mark.clause(
    "mr.collective.capability",
    "mr.collective.set-register",
    "mr.access.collective",
    "mr.access.collective-paired",
)
def test_mr_collective_asks_for_regions_of_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    """fi_mr(3) FI_MR_COLLECTIVE: set, the buffers are registered with FI_COLLECTIVE, beside SEND and RECV."""
    monkeypatch.setenv("WEFT_MR_MODE", "collective")
    with members(2, mr_mode=int(fi.MR_COLLECTIVE)) as found:
        assert found[0].info.domain_attr.mr_mode & fi.MR_COLLECTIVE
        assert found[0].info.caps & fi.COLLECTIVE
        groups = join_all(found)
        regions = []
        for one, group in zip(found, groups, strict=True):
            buf = np.ones(1)
            plain = one.domain.mr_reg(buf, fi.SEND | fi.RECV)
            with pytest.raises(fi.FabricError):  # no descriptor
                one.ep.allreduce(buf, result=buf, coll_addr=group.addr, op=fi.SUM)
            with pytest.raises(fi.FabricError, match="FI_COLLECTIVE"):
                one.ep.allreduce(buf, None, plain.desc, buf, plain.desc, group.addr, fi.DOUBLE, fi.SUM)
            good = one.domain.mr_reg(buf, fi.COLLECTIVE | fi.SEND | fi.RECV)
            one.ep.allreduce(buf, None, good.desc, buf, good.desc, group.addr, fi.DOUBLE, fi.SUM)
            regions += [plain, good]
        completed(found)
        for region in regions:
            region.close()
