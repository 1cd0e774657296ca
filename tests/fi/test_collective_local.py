"""fi_collective(3) and fi_av_set(3) as far as they need no other member: the query, sets of addresses."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.fi.group_support import Member
from tests.fi.support import Node, opened

from weft import _nic, fi

REDUCTIONS = (fi.REDUCE, fi.ALLREDUCE)
MEMBERS_MAX = (1 << 20) - 1


# ---- the capability --------------------------------------------------------------------------------------------------


@pytest.mark.general("its offers")
def test_collective_is_offered_for_datagrams() -> None:
    hints = fi.Info(caps=fi.COLLECTIVE, fabric_attr=fi.FabricAttr(prov_name="weft"))
    (info,) = fi.getinfo(hints=hints)
    assert info.caps & fi.COLLECTIVE
    assert info.ep_attr.type == fi.EP_RDM
    hints.ep_attr.type = fi.EP_MSG
    with pytest.raises(fi.NoData, match="connected endpoints have no address vector"):
        fi.getinfo(hints=hints)


@pytest.mark.general("WEFT_MR_MODE")
def test_mr_collective_is_required_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """fi_mr(3) FI_MR_COLLECTIVE goes with the capability; without it the bit is not required and not returned."""
    monkeypatch.setenv("WEFT_MR_MODE", "collective")
    hints = fi.Info(caps=fi.COLLECTIVE | fi.MSG, fabric_attr=fi.FabricAttr(prov_name="weft"))
    with pytest.raises(fi.NoData, match="MR_COLLECTIVE"):
        fi.getinfo(hints=hints)
    hints.domain_attr.mr_mode = fi.MR_COLLECTIVE
    assert fi.getinfo(hints=hints)[0].domain_attr.mr_mode == fi.MR_COLLECTIVE
    hints.caps = fi.MSG
    assert fi.getinfo(hints=hints)[0].domain_attr.mr_mode == 0


@pytest.mark.general("what it checks")
def test_endpoint_for_collectives_needs_a_transmit_queue() -> None:
    """Completions of collectives go to the queue bound for TRANSMIT."""
    (info,) = fi.getinfo(hints=fi.Info(caps=fi.COLLECTIVE, fabric_attr=fi.FabricAttr(prov_name="weft")))
    with (
        fi.Fabric(info.fabric_attr) as fabric,
        fabric.domain(info) as domain,
        domain.av_open() as av,
        domain.endpoint(info) as ep,
    ):
        ep.bind(av)
        with pytest.raises(fi.NoCq, match="TRANSMIT"):
            ep.enable()


# ---- the query -------------------------------------------------------------------------------------------------------


def test_barrier_needs_no_attr(node: Node) -> None:
    """fi_query_collective: a barrier exchanges no data."""
    attr = node.domain.query_collective(fi.BARRIER)
    assert (attr.datatype_attr, attr.max_members, attr.mode) == (fi.AtomicAttr(0, 0), MEMBERS_MAX, 0)


def test_query_writes_its_answer_to_attr(node: Node) -> None:
    attr = fi.CollectiveAttr(op=fi.SUM, datatype=fi.INT64)
    assert node.domain.query_collective(fi.ALLREDUCE, attr) is attr
    assert attr.datatype_attr == fi.AtomicAttr(4, 8)
    assert attr.max_members == MEMBERS_MAX
    assert (attr.op, attr.datatype) == (fi.SUM, fi.INT64)


@pytest.mark.parametrize("coll", [one for one in fi.CollectiveOp if one != fi.BARRIER], ids=str)
def test_query_without_attr_is_refused(node: Node, coll: int) -> None:
    with pytest.raises(fi.InvalidArgument, match="attr is needed"):
        node.domain.query_collective(coll)


@pytest.mark.parametrize("flags", [1, int(fi.MORE), 1 << 57])
def test_query_with_flags_is_not_supported(node: Node, flags: int) -> None:
    with pytest.raises(fi.NotSupported, match="flags"):
        node.domain.query_collective(fi.BARRIER, None, flags)


@pytest.mark.general("all operators of the atomics")
@pytest.mark.parametrize("coll", REDUCTIONS, ids=str)
def test_reductions_are_those_of_the_atomics(node: Node, coll: int) -> None:
    """Every operator that fi_atomic has for a datatype reduces up to 32 bytes of it; there are no others."""
    for op, datatype in itertools.product(fi.Op, fi.Datatype):
        count, size = _nic.atomic_valid(datatype, op, 0) if op != fi.NOOP and datatype != fi.VOID else (0, 0)
        attr = fi.CollectiveAttr(op=op, datatype=datatype)
        if count and op <= fi.BXOR:
            assert node.domain.query_collective(coll, attr).datatype_attr == fi.AtomicAttr(32 // size, size)
        else:
            with pytest.raises(fi.NotSupported, match=rf"{coll!s} with {op!s} on {datatype!s}"):
                node.domain.query_collective(coll, attr)


@pytest.mark.general("all datatypes")
def test_broadcast_has_every_datatype(node: Node) -> None:
    for datatype in fi.Datatype:
        attr = fi.CollectiveAttr(datatype=datatype)
        if datatype == fi.VOID:
            with pytest.raises(fi.NotSupported):
                node.domain.query_collective(fi.BROADCAST, attr)
        else:
            size = fi.datatype_size(datatype)
            found = node.domain.query_collective(fi.BROADCAST, attr).datatype_attr
            assert found == fi.AtomicAttr(32 // size, size)


@pytest.mark.parametrize(
    "coll", [fi.ALLTOALL, fi.ALLGATHER, fi.REDUCE_SCATTER, fi.CollectiveOp.SCATTER, fi.CollectiveOp.GATHER, 9, 1 << 40]
)
def test_other_collectives_are_not_supported(node: Node, coll: int) -> None:
    with pytest.raises(fi.NotSupported):
        node.domain.query_collective(coll, fi.CollectiveAttr(op=fi.SUM, datatype=fi.INT64))


@pytest.mark.parametrize(("op", "datatype"), [(99, fi.INT64), (fi.SUM, 21), (1 << 40, fi.INT64), (fi.SUM, 1 << 33)])
def test_unknown_numbers_are_not_supported(node: Node, op: int, datatype: int) -> None:
    for coll in REDUCTIONS:
        with pytest.raises(fi.NotSupported):
            node.domain.query_collective(coll, fi.CollectiveAttr(op=op, datatype=datatype))


# ---- sets ------------------------------------------------------------------------------------------------------------


USED = [0, 1, 2, 5, 6, 7, 8, 9]


@pytest.fixture
def ten(node: Node) -> fi.AddressVector:
    """A vector whose fi_addr 0 to 9 are in use, except 3 and 4."""
    several(node, 10)
    node.av.remove([3, 4])
    return node.av


def several(node: Node, count: int) -> list[int]:
    """fi_addr of `count` different addresses."""
    codec = node.domain.provider.addresses
    nic, _, vni = codec.parse(node.name)
    return [node.av.insert(codec.emit((nic, 100 + at, vni))) for at in range(count)]


def members(av: fi.AddressVector, **attr: Any) -> list[int]:
    with av.av_set(fi.AvSetAttr(**attr)) as found:
        assert len(found) == len(found.members)
        return list(found)


def test_set_without_a_range_is_empty(ten: fi.AddressVector) -> None:
    assert members(ten) == []
    assert members(ten, count=5, stride=1) == []


def test_universe_is_all_addresses(ten: fi.AddressVector) -> None:
    """fi_av_set(3) FI_UNIVERSE; the other attributes are ignored."""
    assert members(ten, flags=fi.UNIVERSE) == USED
    assert members(ten, flags=fi.UNIVERSE, count=1, start_addr=2, stride=7) == USED


@pytest.mark.parametrize(
    ("start", "end", "stride", "expected"),
    [
        (0, 9, 0, USED),
        (0, 9, 1, USED),
        (1, 1, 1, [1]),
        (0, 9, 2, [0, 2, 6, 8]),
        (1, 8, 3, [1, 7]),
        (2, 1 << 40, 1, [2, 5, 6, 7, 8, 9]),
        (3, 4, 1, []),
        (50, 60, 1, []),
    ],
)
def test_range_takes_addresses_in_use(
    ten: fi.AddressVector, start: int, end: int, stride: int, expected: list[int]
) -> None:
    """fi_av_set(3) start_addr: valid addresses within the range that meet the stride are the first members."""
    assert members(ten, count=10, start_addr=start, end_addr=end, stride=stride) == expected


@pytest.mark.parametrize(
    "attr",
    [
        {"start_addr": 0},
        {"end_addr": 5},
        {"start_addr": 5, "end_addr": 2},
        {"stride": 2},
        {"comm_key_size": 16},
    ],
    ids=str,
)
def test_half_a_description_is_refused(ten: fi.AddressVector, attr: dict[str, int]) -> None:
    with pytest.raises(fi.InvalidArgument, match=r"av_set: .*(addr|range|comm_key)"):
        ten.av_set(fi.AvSetAttr(count=4, **attr))


@pytest.mark.general("FI_AV_MAP")
def test_range_of_a_map_is_refused(node: Node) -> None:
    """fi_av_set(3): a range needs a vector of type FI_AV_TABLE."""
    with node.domain.av_open(type=fi.AV_MAP) as av:
        with pytest.raises(fi.InvalidArgument, match="AV_TABLE"):
            av.av_set(fi.AvSetAttr(count=1, start_addr=0, end_addr=0))
        av.av_set(fi.AvSetAttr()).close()


def test_unknown_flags_are_refused(node: Node) -> None:
    with pytest.raises(fi.BadFlags):
        node.av.av_set(fi.AvSetAttr(flags=1 << 3))
    for hint in fi.AvSetFlag:
        node.av.av_set(fi.AvSetAttr(flags=hint)).close()


def test_insert_appends_and_remove_keeps_the_order(ten: fi.AddressVector) -> None:
    with ten.av_set(fi.AvSetAttr(), context="mine") as members:
        assert members.context == "mine"
        for at in (7, 0, 9):
            members.insert(at)
        assert members.members == (7, 0, 9)
        assert 0 in members
        members.remove(0)
        assert members.members == (7, 9)
        with pytest.raises(fi.InvalidArgument, match="not in the set"):
            members.remove(0)
        with pytest.raises(fi.InvalidArgument, match="already"):
            members.insert(9)
        for nobody in (fi.ADDR_NOTAVAIL, fi.ADDR_UNSPEC):
            with pytest.raises(fi.InvalidArgument, match="no fi_addr"):
                members.insert(nobody)
        assert members.addr() == fi.ADDR_NOTAVAIL


def test_union_intersect_diff(ten: fi.AddressVector) -> None:
    """fi_av_set(3): a union appends; intersections and differences keep the order of what stays."""

    def made(*of: int) -> fi.AvSet:
        found = ten.av_set(fi.AvSetAttr())
        for at in of:
            found.insert(at)
        return found

    with made(8, 1, 5) as first, made(5, 2, 8) as second:
        first.union(second)
        assert list(first) == [8, 1, 5, 2]
        assert list(second) == [5, 2, 8]
        second.insert(9)
        first.intersect(second)
        assert list(first) == [8, 5, 2]
        second.diff(first)
        assert list(second) == [9]
        first.union(first)
        assert list(first) == [8, 5, 2]
        first.diff(first)
        assert list(first) == []


def test_sets_of_two_vectors_do_not_mix(node: Node) -> None:
    with (
        node.domain.av_open() as other,
        other.av_set(fi.AvSetAttr()) as theirs,
        node.av.av_set(fi.AvSetAttr()) as mine,
    ):
        for call in (mine.union, mine.intersect, mine.diff):
            with pytest.raises(fi.InvalidArgument, match="another vector"):
                call(theirs)


def test_vector_with_a_set_is_busy(node: Node) -> None:
    av = node.domain.av_open()
    members = av.av_set(fi.AvSetAttr())
    with pytest.raises(fi.Busy, match="AvSet"):
        av.close()
    members.close()
    members.close()
    av.close()
    with pytest.raises(fi.BadState, match="closed"):
        members.insert(0)
    with pytest.raises(fi.BadState, match="closed"):
        av.av_set(fi.AvSetAttr())


def test_set_that_is_not_closed_warns(node: Node) -> None:
    with pytest.warns(ResourceWarning, match="AvSet"):
        node.av.av_set(fi.AvSetAttr())


def test_address_removed_from_the_vector_stays_in_the_set(ten: fi.AddressVector) -> None:
    """A set is a list of numbers; a join finds a number that names nobody."""
    with ten.av_set(fi.AvSetAttr(flags=fi.UNIVERSE)) as members:
        ten.remove(0)
        assert members.members == tuple(USED)
        with pytest.raises(fi.InvalidArgument):
            ten.lookup(0)


@pytest.mark.general("no keys")
def test_general_provider_has_no_communication_keys(node: Node) -> None:
    with pytest.raises(fi.InvalidArgument, match="comm_key"):
        node.av.av_set(fi.AvSetAttr(comm_key=bytes(16)))


@pytest.mark.parametrize("wrong", [None, {}, 3, "x"])
def test_attr_of_a_wrong_type_is_refused(node: Node, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"AvSetAttr"):
        node.av.av_set(wrong)
    with pytest.raises(TypeError):
        node.av.av_set(fi.AvSetAttr(comm_key=object()))
    if wrong is not None:
        with pytest.raises(TypeError, match="CollectiveAttr"):
            node.domain.query_collective(fi.ALLREDUCE, wrong)


def test_calls_of_a_closed_domain_are_refused() -> None:
    with opened() as node:
        domain = node.domain
    with pytest.raises(fi.BadState, match="closed"):
        domain.query_collective(fi.BARRIER)


@pytest.mark.general("the VNI in addresses")
def test_endpoint_that_is_twice_in_a_set_cannot_join() -> None:
    """One endpoint is one member. Its address with another VNI has a fi_addr of its own, and is the same endpoint."""
    with Member() as one:
        codec = one.ep.domain.provider.addresses
        nic, pid, vni = codec.parse(one.name)
        one.know([one.name, codec.emit((nic, pid, vni + 1))])
        assert len(set(one.names)) == 2
        with pytest.raises(fi.InvalidArgument, match="is 2 members of the set"):
            one.join()
