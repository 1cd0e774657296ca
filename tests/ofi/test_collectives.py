"""Collectives of a real libfabric: fi_collective(3), fi_av_set(3). Of its providers here only tcp;ofi_rxm has them.

The tests of weft.fi's own collectives run over it too (tests/fi/test_collective.py); these are about checks that the
library leaves to its caller: its calls write beyond buffers, free what they use, and take any number for a pointer.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tests.ofi.support import WATCHDOG_S, Node, drain, finish, offer, open_node, post, run_program, until
from tests.patience import Patience

from weft import fi

CAPS = fi.MSG | fi.TAGGED | fi.COLLECTIVE
LARGEST = 16384  # bytes of a call: FI_OFI_RXM_BUFFER_SIZE


class Member(Node):
    """A node with an event queue, which knows the other nodes."""

    eq: Any
    names: list[int]
    events: list[Any]

    def set(self, order: Sequence[int] | None = None, **attr: Any) -> fi.AvSet:
        found: fi.AvSet = self.av.av_set(fi.AvSetAttr(**attr))
        for place in range(len(self.names)) if order is None else order:
            found.insert(self.names[place])
        self.extra.append(found)
        return found

    def join(self, order: Sequence[int] | None = None, context: Any = None) -> fi.CollectiveGroup:
        group: fi.CollectiveGroup = self.ep.join_collective(fi.ADDR_NOTAVAIL, self.set(order), 0, context)
        self.extra.append(group)
        return group

    def look(self) -> None:
        drain(self)
        event = self.eq.read()
        if event is not None:
            self.events.append(event)

    def close(self) -> None:
        for one in reversed(self.extra):
            one.close()
        self.extra.clear()
        self.ep.close()
        self.extra.append(self.eq)
        super().close()


def open_member() -> Member:
    try:
        info = offer("ofi:tcp", CAPS)
    except fi.NoData as reason:
        pytest.skip(f"no provider of this libfabric has collectives: {reason}")

    def before(node: Node) -> None:
        node.__class__ = Member
        assert isinstance(node, Member)
        node.events, node.eq = [], node.fabric.eq_open()
        node.ep.bind(node.eq)

    member = open_node(info, before=before)
    assert isinstance(member, Member)
    return member


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[list[Member]]:
    """Three members; another number by indirect parametrization."""
    found = [open_member() for _ in range(getattr(request, "param", 3))]
    for one in found:
        one.names = [one.av.insert(other.ep.getname()) for other in found]
    yield found
    for one in found:
        one.close()


def wait(done: Callable[[], bool], found: Sequence[Member]) -> None:
    def look() -> bool:
        for one in found:
            one.look()
        return done()

    until(look)


def join(found: Sequence[Member], order: Sequence[int] | None = None) -> list[fi.CollectiveGroup]:
    """The members' memberships of one group, joined."""
    joined = [one.join(order, ("context", i)) for i, one in enumerate(found)]
    wait(lambda: all(one.events for one in found), found)
    for i, (one, mine) in enumerate(zip(found, joined, strict=True)):
        event, entry = one.events.pop()
        assert (event, entry.fid, entry.context) == (fi.JOIN_COMPLETE, mine, ("context", i))
        assert mine.joined
    return joined


def completed(found: Sequence[Member], count: int = 1) -> list[list[Any]]:
    wait(lambda: all(len(one.seen) >= count for one in found), found)
    return [[one.seen.pop(0) for _ in range(count)] for one in found]


def broadcast(found: Sequence[Member], groups: Sequence[Any], bufs: Sequence[Any], root: int, **more: Any) -> None:
    for one, mine, buf in zip(found, groups, bufs, strict=True):
        one.ep.broadcast(buf, coll_addr=mine, root_addr=one.names[root], **more)
    completed(found)


@pytest.mark.parametrize("group", [1, 2, 3, 5], indirect=True)
@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000, LARGEST // 8])
def test_broadcast_writes_its_elements_and_no_others(group: list[Member], count: int) -> None:
    groups = join(group)
    for root in range(len(group)):
        rooms = [np.full(count + 8, 99, "i8") for _ in group]
        rooms[root][:count] = np.arange(count) + root
        broadcast(group, groups, [room[:count] for room in rooms], root)
        for room in rooms:
            assert (room[:count] == np.arange(count) + root).all()
            assert (room[count:] == 99).all()


@pytest.mark.parametrize("count", [3, 4])
def test_broadcast_of_read_only_memory_changes_it_nowhere(group: list[Member], count: int) -> None:
    groups = join(group)
    given = bytes(range(1, count + 1))
    rooms = [bytearray(count), given, bytearray(count)]
    broadcast(group, groups, rooms, 1, datatype=fi.UINT8)
    assert rooms[0] == rooms[2] == given == bytes(range(1, count + 1))
    with pytest.raises(fi.AccessDenied, match="read-only"):
        group[0].ep.broadcast(given, coll_addr=groups[0], root_addr=group[0].names[1], datatype=fi.UINT8)


def test_root_is_named_by_its_fi_addr_in_any_order_of_the_set(group: list[Member]) -> None:
    groups = join(group, [2, 0, 1])
    for root in range(3):
        rooms = [np.full(6, place, "i4") for place in range(3)]
        broadcast(group, groups, rooms, root)
        assert all((room == root).all() for room in rooms)


@pytest.mark.parametrize("count", [1, 7, LARGEST // 8])
def test_allreduce_of_many_elements(group: list[Member], count: int) -> None:
    groups = join(group)
    sums = [np.zeros(count, "i8") for _ in group]
    for place, (one, mine) in enumerate(zip(group, groups, strict=True)):
        one.ep.allreduce(np.arange(count, dtype="i8") + place, result=sums[place], coll_addr=mine.addr, op=fi.SUM)
    completed(group)
    assert all((one == 3 * np.arange(count) + 3).all() for one in sums)


def test_allreduce_in_place(group: list[Member]) -> None:
    groups = join(group)
    values = [np.array([float(place)]) for place in range(3)]
    for one, mine, value in zip(group, groups, values, strict=True):
        one.ep.allreduce(value, result=value, coll_addr=mine, op=fi.MAX)
    completed(group)
    assert [value[0] for value in values] == [2.0, 2.0, 2.0]


def test_call_that_the_library_would_never_end_is_refused(group: list[Member]) -> None:
    groups = join(group)
    ep, mine = group[0].ep, groups[0]
    large = np.zeros(LARGEST // 8 + 1)
    with pytest.raises(fi.MessageTooLong, match="FI_OFI_RXM_BUFFER_SIZE"):
        ep.allreduce(large, result=large, coll_addr=mine, op=fi.SUM)
    with pytest.raises(fi.MessageTooLong):
        ep.broadcast(large, coll_addr=mine, root_addr=group[0].names[0])
    for op in (fi.DIFF, fi.CSWAP, fi.ATOMIC_WRITE, 99, 1 << 40):
        with pytest.raises(fi.NotSupported, match="is no reduction here"):
            ep.allreduce(np.ones(1, "i4"), result=np.ones(1, "i4"), coll_addr=mine, op=op)
    with pytest.raises(fi.NotSupported):
        ep.reduce(np.ones(1), result=np.ones(1), coll_addr=mine, root_addr=group[0].names[0], op=fi.SUM)
    assert ep.outstanding() == 0


@pytest.mark.parametrize("addr", [0, 1, 8, 1 << 40, fi.ADDR_NOTAVAIL])
def test_number_of_no_group_is_refused(group: list[Member], addr: int) -> None:
    join(group)
    with pytest.raises(fi.InvalidArgument, match="no group of this endpoint"):
        group[0].ep.barrier(addr)
    with pytest.raises(fi.InvalidArgument, match="no group of this endpoint"):
        group[0].ep.allreduce(np.ones(1), result=np.ones(1), coll_addr=addr, op=fi.SUM)


def test_group_of_another_endpoint_is_refused(group: list[Member]) -> None:
    groups = join(group)
    with pytest.raises(fi.InvalidArgument, match="no group of this endpoint"):
        group[0].ep.barrier(groups[1])


def test_group_closed_with_calls_under_way(group: list[Member]) -> None:
    """The calls go on: the other members get their results, and the library uses nothing that is freed."""
    groups = join(group)
    results = [np.zeros(2) for _ in group]
    for one, mine, result in list(zip(group, groups, results, strict=True))[1:]:
        for n in range(5):
            one.ep.barrier(mine, n)
        one.ep.allreduce(np.ones(2), result=result, coll_addr=mine, op=fi.SUM, context=5)
        mine.close()
        mine.set.close()
        with pytest.raises(fi.InvalidArgument, match="no group"):
            one.ep.barrier(mine.addr)
    for n in range(5):
        group[0].ep.barrier(groups[0], n)
    group[0].ep.allreduce(np.ones(2), result=results[0], coll_addr=groups[0], op=fi.SUM, context=5)
    for got in completed(group, 6):
        assert sorted(entry.op_context for entry in got) == [0, 1, 2, 3, 4, 5]
    assert all((result == 3).all() for result in results)


def test_everything_closed_with_calls_under_way(group: list[Member]) -> None:
    """The fixture closes the endpoints."""
    groups = join(group)
    for one, mine in list(zip(group, groups, strict=True))[1:]:
        one.ep.barrier(mine)
        assert one.ep.outstanding() == 1


def test_group_closed_while_it_joins_has_no_event(group: list[Member]) -> None:
    first = group[0].join()
    with pytest.raises(fi.BadState, match="not joined yet"):
        group[0].ep.barrier(first)
    first.close()
    others = [one.join() for one in group[1:]]
    wait(lambda: all(one.joined for one in others), group)
    drain(*group)
    assert group[0].eq.read() is None
    assert group[0].events == []


def test_second_join_waits_for_the_first(group: list[Member]) -> None:
    group[0].join()
    with pytest.raises(fi.Again, match="not joined yet"):
        group[0].join()
    joined = [one.join() for one in group[1:]]
    wait(lambda: all(one.events for one in group), group)
    for one in group:
        one.events.clear()
    assert all(mine.joined for mine in joined)
    again = join(group)
    assert len({one.addr for one in again}) == 3


@pytest.mark.parametrize("group", [1], indirect=True)
@pytest.mark.parametrize("call", ["read", "sread"])
def test_join_makes_progress_when_the_event_queue_is_read(group: list[Member], call: str) -> None:
    """Over Weft's provider too; in the library only completion queues make progress. No entry of theirs is lost."""
    (one,) = group
    one.ep.trecv(bytearray(4), tag=1, context="received")
    post(lambda: one.ep.tsend(b"text", dest_addr=one.names[0], tag=1, context="sent"))
    mine = one.join()
    if call == "sread":
        found = one.eq.sread(timeout=WATCHDOG_S)
    else:
        patience = Patience(WATCHDOG_S)
        while (found := one.eq.read()) is None:
            assert not patience.over
    assert found[1].fid is mine
    assert sorted(entry.op_context for entry in finish(one, 2)) == ["received", "sent"]


def test_event_that_is_peeked_stays(group: list[Member]) -> None:
    joined = [one.join() for one in group]
    wait(lambda: drain(group[0]) is None and all(one.events for one in group[1:]), group[1:])
    seen: list[Any] = []

    def peek() -> bool:
        drain(*group)
        found = group[0].eq.read(fi.PEEK)
        seen.extend([found] if found else [])
        return bool(seen)

    until(peek)
    assert seen[0][1].fid is joined[0]
    event, entry = group[0].eq.read()
    assert (event, entry.fid) == (fi.JOIN_COMPLETE, joined[0])
    assert group[0].eq.read() is None


def test_wildcard_receive_takes_no_message_of_a_collective(group: list[Member]) -> None:
    """libfabric would end the process: its collectives are tagged messages too."""
    groups = join(group)
    a, b = group[0], group[1]
    room = bytearray(8)
    b.ep.trecv(room, tag=0, ignore=2**64 - 1, context="wild")
    b.ep.trecvv([bytearray(8)], tag=0, ignore=2**64 - 1, context="second")
    b.ep.trecvmsg(fi.MsgTagged([bytearray(8)], tag=0, ignore=2**64 - 1, context="third"))
    for one, mine in zip(group, groups, strict=True):
        one.ep.barrier(mine, "barrier")
    assert [entry.op_context for (entry,) in completed(group)] == ["barrier"] * 3
    for _ in range(3):
        post(lambda: a.ep.tsend(b"message", dest_addr=a.names[1], tag=2**62, context="sent"), *group)
    assert [entry.op_context for entry in finish(b, 3, *group)] == ["wild", "second", "third"]
    assert bytes(room[:7]) == b"message"


@pytest.mark.parametrize(
    "call",
    [
        lambda a, to: a.ep.tsend(b"x", dest_addr=to, tag=1 << 63),
        lambda a, to: a.ep.tsendv([b"x"], dest_addr=to, tag=1 << 63),
        lambda a, to: a.ep.tsendmsg(fi.MsgTagged([b"x"], addr=to, tag=1 << 63)),
        lambda a, to: a.ep.tinject(b"x", to, 1 << 63),
        lambda a, to: a.ep.trecv(bytearray(1), tag=1 << 63),
    ],
)
def test_tag_with_the_bit_of_collectives_is_refused(group: list[Member], call: Any) -> None:
    with pytest.raises(fi.InvalidArgument, match="there are 63 for tags"):
        call(group[0], group[0].names[1])


def test_endpoint_and_set_are_busy_while_a_group_is_open(group: list[Member]) -> None:
    groups = join(group)
    for parent in (groups[0].set, group[0].ep):
        with pytest.raises(fi.Busy, match="CollectiveGroup"):
            parent.close()
    assert repr(groups[0]) == "<CollectiveGroup ofi:tcp;ofi_rxm joined, 3 members>"
    groups[0].close()
    groups[0].close()
    assert repr(groups[0]) == "<CollectiveGroup ofi:tcp;ofi_rxm closed, 3 members>"


def test_group_that_is_forgotten_is_closed(group: list[Member]) -> None:
    for one in group:
        one.extra.append(one.ep.join_collective(fi.ADDR_NOTAVAIL, one.set()))
    wait(lambda: all(one.events for one in group), group)
    group[0].events.clear()
    mine = group[0].extra.pop()
    address, seen = mine.addr, weakref.ref(mine)
    with pytest.warns(ResourceWarning, match="CollectiveGroup"):
        del mine  # the last reference
    gc.collect()
    assert seen() is None
    with pytest.raises(fi.InvalidArgument, match="no group"):
        group[0].ep.barrier(address)


@pytest.mark.parametrize("group", [2], indirect=True)
def test_joins_are_refused_when_the_library_has_no_number_left(group: list[Member]) -> None:
    for _ in range(255):
        for one in join(group):
            one.close()
    with pytest.raises(fi.NoSpace, match="no number"):
        group[0].join()


@pytest.mark.parametrize(
    ("member", "text"),
    [("nobody", "no members"), ("stranger", "no member of the set"), ("unused", "not in use")],
)
def test_sets_that_cannot_be_joined(group: list[Member], member: str, text: str) -> None:
    one = group[0]
    wrong = one.set([])
    if member != "nobody":
        wrong.insert(one.names[1] if member == "stranger" else 77)
    with pytest.raises(fi.InvalidArgument, match=text):
        one.ep.join_collective(fi.ADDR_NOTAVAIL, wrong)
    with pytest.raises(TypeError, match="AvSet"):
        one.ep.join_collective(fi.ADDR_NOTAVAIL, one.av)
    with pytest.raises(fi.InvalidArgument, match="ADDR_NOTAVAIL"):
        one.ep.join_collective(0, one.set())


def test_join_needs_an_event_queue_and_the_capability() -> None:
    for caps, error in ((CAPS, fi.NoEq), (fi.MSG | fi.TAGGED, fi.NotSupported)):
        try:
            node = open_node(offer("ofi:tcp", caps))
        except fi.NoData:
            pytest.skip("no provider of this libfabric has collectives")
        try:
            found = node.av.av_set(fi.AvSetAttr())
        except fi.FabricError:
            assert not caps & fi.COLLECTIVE  # libfabric 2.5
        else:
            found.insert(node.to(node))
            with pytest.raises(error):
                node.ep.join_collective(fi.ADDR_NOTAVAIL, found)
            found.close()
        node.close()


def test_provider_without_collectives_refuses_them() -> None:
    node = open_node(offer("ofi:shm"))
    with pytest.raises((fi.NotSupported, fi.NoSys)):
        node.av.av_set(fi.AvSetAttr())
    with pytest.raises((fi.NotSupported, fi.NoSys)):
        node.domain.query_collective(fi.BARRIER)
    with pytest.raises(fi.InvalidArgument, match="no group"):
        node.ep.barrier(0)
    node.close()


def test_query_tells_what_the_library_has(group: list[Member]) -> None:
    domain = group[0].domain
    attr = fi.CollectiveAttr(op=fi.SUM, datatype=fi.DOUBLE)
    assert domain.query_collective(fi.ALLREDUCE, attr) is attr
    assert attr.datatype_attr.size == 8
    assert attr.datatype_attr.count > 0
    assert attr.max_members > 1000
    assert domain.query_collective(fi.BARRIER).mode == 0
    with pytest.raises(fi.InvalidArgument, match="attr is needed"):
        domain.query_collective(fi.BROADCAST)
    for coll in (fi.REDUCE, fi.GATHER, 99, 1 << 60):
        with pytest.raises((fi.NotSupported, fi.NoSys)):
            domain.query_collective(coll, fi.CollectiveAttr(op=fi.SUM, datatype=fi.DOUBLE))


def test_member_that_leaves_is_an_error_entry_of_another(group: list[Member]) -> None:
    """The library does not say of which call the failed message is; the call does not end, and close() frees it."""
    groups = join(group)
    groups[2].close()
    group[2].close()
    for one, mine in list(zip(group, groups, strict=True))[:2]:
        one.ep.barrier(mine)
    rest = group[:2]
    wait(lambda: any(one.seen for one in rest), rest)
    (entry,) = [entry for one in rest for entry in one.seen]
    assert isinstance(entry, fi.CqErrEntry)
    assert entry.op_context is None
    group[2:] = []


_MEMBER = """
import sys
import numpy as np
from tests.ofi import test_collectives as t
from weft import fi
one = t.open_member()
print(one.ep.getname().hex(), flush=True)
one.names = [one.av.insert(bytes.fromhex(name)) for name in sys.stdin.readline().split()]
(group,) = t.join([one])
sums, words = np.zeros(1000), np.zeros(7, "u4")
one.ep.allreduce(np.arange(1000.0), result=sums, coll_addr=group, op=fi.SUM)
one.ep.broadcast(words, coll_addr=group, root_addr=one.names[0])
t.completed([one], 2)
print(sums.sum(), words.sum(), flush=True)
if sys.argv[1] == "stays":
    one.ep.barrier(group)
    t.completed([one])
    one.close()
    print("closed", flush=True)
else:
    sys.stdin.readline()
"""


@pytest.mark.procs
@pytest.mark.parametrize("end", ["stays", "killed"])
def test_members_of_two_processes(group: list[Member], end: str) -> None:
    """Two members here, one in another process, which is killed in the end or takes part in a barrier."""
    here = group[:2]
    child = subprocess.Popen(
        [sys.executable, "-c", _MEMBER, end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        names = [*(one.ep.getname().hex() for one in here), child.stdout.readline().strip()]
        child.stdin.write(" ".join(names) + "\n")
        child.stdin.flush()
        for one in here:
            one.names = [one.av.insert(bytes.fromhex(name)) for name in names]
        groups = join(here)
        sums, words = [np.zeros(1000) for _ in here], [np.arange(7, dtype="u4") for _ in here]
        for one, mine, total, word in zip(here, groups, sums, words, strict=True):
            one.ep.allreduce(np.arange(1000.0), result=total, coll_addr=mine, op=fi.SUM)
            one.ep.broadcast(word, coll_addr=mine, root_addr=one.names[0])
        completed(here, 2)
        assert child.stdout.readline().split() == [str(3 * 499500.0), "21"]
        assert all((total == 3 * np.arange(1000)).all() for total in sums)
        if end == "killed":
            child.kill()
            child.wait(WATCHDOG_S)
        for one, mine in zip(here, groups, strict=True):
            one.ep.barrier(mine)
        if end == "stays":
            completed(here)
            assert child.stdout.readline() == "closed\n"
        else:
            wait(lambda: any(one.seen for one in here), here)
    finally:
        child.kill()
        child.stdin.close()
        child.stdout.close()
        child.wait(WATCHDOG_S)


_LEAVES = """
import sys
from tests.ofi import test_collectives as t
found = [t.open_member() for _ in range(2)]
for one in found:
    one.names = [one.av.insert(other.ep.getname()) for other in found]
groups = t.join(found)
found[0].ep.barrier(groups[0])
print("leaves", flush=True)
"""


def test_process_that_ends_with_calls_under_way_ends_well() -> None:
    open_member().close()
    done = run_program(_LEAVES)
    assert (done.returncode, done.stdout) == (0, "leaves\n"), done.stderr
