"""Deferred work of a real libfabric: fi_trigger(3) FI_QUEUE_WORK. Of its providers here only sockets has it.

It reports deferred work to counters alone, and has no FI_CANCEL_WORK and no FI_FLUSH_WORK.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.ofi.support import CAPS, WATCHDOG_S, Node, connected, counter, drain, finish, offer, open_node, post
from tests.patience import Patience

from weft import fi

Two = tuple[Node, Node]


@pytest.fixture
def two() -> Iterator[Two]:
    try:
        info = offer("ofi:sockets", CAPS | fi.ATOMIC | fi.TRIGGER)
    except fi.NoData:
        pytest.skip("this libfabric has no provider sockets, the only one here with deferred work")
    a, b = open_node(info), open_node(info)
    yield a, b
    b.close()
    a.close()


def queue(node: Node, op_type: int, op: Any, trigger: Any, threshold: int = 1, done: Any = None) -> fi.DeferredWork:
    work = fi.DeferredWork(threshold, trigger, done, op_type, op)
    node.domain.control(fi.QUEUE_WORK, work)
    return work


def reached(done: Callable[[], bool], *nodes: Node) -> None:
    end = Patience(WATCHDOG_S)
    while not done():
        drain(*nodes)
        assert not end.over, [node.seen for node in nodes]


def test_transfers_of_every_family_are_deferred(two: Two) -> None:
    a, b = two
    memory = np.zeros(4, "u8")
    mr, to = b.register(memory), connected(a, b)
    trigger, done = counter(a), counter(a)
    home, old, found = np.zeros(1, "u8"), np.zeros(1, "u8"), np.zeros(1, "u8")

    def remote(place: int) -> list[fi.RmaIov]:
        return [fi.RmaIov(b.place(mr, 8 * place), 8, mr.key)]

    def atomic(value: int, op: int) -> fi.MsgAtomic:
        one = [fi.RmaIoc(b.place(mr), 1, mr.key)]
        return fi.MsgAtomic([np.full(1, value, "u8")], one, to, datatype=fi.UINT64, op=op)

    steps: list[tuple[int, Any]] = [
        (fi.OP_WRITE, fi.OpRma(a.ep, fi.MsgRma([np.full(1, 7, "u8")], remote(0), to))),
        (fi.OP_READ, fi.OpRma(a.ep, fi.MsgRma([home], remote(0), to))),
        (fi.OP_ATOMIC, fi.OpAtomic(a.ep, atomic(3, fi.SUM))),
        (fi.OP_FETCH_ATOMIC, fi.OpFetchAtomic(a.ep, atomic(1, fi.SUM), fi.MsgFetch([old]))),
        (
            fi.OP_COMPARE_ATOMIC,
            fi.OpCompareAtomic(a.ep, atomic(40, fi.CSWAP), fi.MsgFetch([found]), fi.MsgCompare([np.full(1, 11, "u8")])),
        ),
    ]
    for step, (kind, op) in enumerate(steps, 1):
        queue(a, kind, op, trigger, step, done)
    wrong = fi.MsgAtomic([np.ones(1)], [fi.RmaIoc(b.place(mr), 1, mr.key)], to, datatype=fi.UINT64, op=fi.SUM)
    with pytest.raises(fi.InvalidArgument, match="elements of type float64, and the datatype is UINT64"):
        queue(a, fi.OP_ATOMIC, fi.OpAtomic(a.ep, wrong), trigger, 9, done)
    for _ in range(100):
        drain(a, b)
    assert (done.read(), memory[0]) == (0, 0)
    for step in range(1, len(steps) + 1):
        trigger.add(1)
        reached(lambda step=step: done.read() >= step, a, b)  # type: ignore[misc]
    assert (home[0], old[0], found[0], memory[0]) == (7, 10, 11, 40)
    assert a.seen == []


def test_message_is_deferred(two: Two) -> None:
    a, b = two
    to, trigger, done = connected(a, b), counter(a), counter(a)
    room = bytearray(5)
    b.ep.trecv(room, tag=7, context="received")
    queue(a, fi.OP_TSEND, fi.OpTagged(a.ep, fi.MsgTagged([b"hello"], None, to, 7)), trigger, 1, done)
    trigger.add(1)
    assert finish(b, 1, a)[0].op_context == "received"
    assert bytes(room) == b"hello"


def test_receive_is_deferred(two: Two) -> None:
    a, b = two
    to, trigger, done = b.to(a), counter(a), counter(a)
    connected(a, b)
    room = bytearray(5)
    queue(a, fi.OP_TRECV, fi.OpTagged(a.ep, fi.MsgTagged([room], tag=7)), trigger, 1, done)
    trigger.add(1)
    post(lambda: b.ep.tsend(b"hello", dest_addr=to, tag=7), a, b)
    reached(lambda: bytes(room) == b"hello" and done.read() == 1, a, b)


def test_work_on_counters_runs_in_a_chain(two: Two) -> None:
    a, _ = two
    first, second, third = counter(a), counter(a), counter(a)
    queue(a, fi.OP_CNTR_ADD, fi.OpCntr(second, 5), first, 2)
    queue(a, fi.OP_CNTR_SET, fi.OpCntr(third, 9), second, 5)
    first.add(1)
    assert (second.read(), third.read()) == (0, 0)
    first.add(1)
    reached(lambda: (second.read(), third.read()) == (5, 9), a)


def test_work_on_a_counter_that_is_queued_twice_runs_twice(two: Two) -> None:
    """The library keeps both: neither struct may be freed."""
    a, _ = two
    trigger, changed = counter(a), counter(a)
    work = queue(a, fi.OP_CNTR_ADD, fi.OpCntr(changed, 5), trigger, 2)
    a.domain.control(fi.QUEUE_WORK, work)
    assert [len(each) for each in a.domain._work.counting.values()] == [2]
    gc.collect()
    trigger.add(2)
    reached(lambda: changed.read() == 10, a)


def test_counter_that_counts_on_after_its_endpoint_is_closed_does_no_harm(two: Two) -> None:
    a, b = two
    memory = np.zeros(4, "u8")
    mr, to, trigger = b.register(memory), connected(a, b), counter(a)
    for step in range(1, 20):
        message = fi.MsgRma([np.ones(1, "u8")], [fi.RmaIov(b.place(mr), 8, mr.key)], to)
        queue(a, fi.OP_WRITE, fi.OpRma(a.ep, message), trigger, step)
    a.ep.close()
    trigger.add(20)
    drain(b)


def test_queued_work_keeps_its_buffers_until_the_endpoint_is_closed(two: Two) -> None:
    a, b = two
    mr, to, trigger, done = b.register(np.zeros(4, "u8")), connected(a, b), counter(a), counter(a)
    data = np.full(1, 7, "u8")
    seen = weakref.ref(data)
    message = fi.MsgRma([data], [fi.RmaIov(b.place(mr), 8, mr.key)], to)
    work = queue(a, fi.OP_WRITE, fi.OpRma(a.ep, message), trigger, 1, done)
    del data, message, work
    gc.collect()
    assert seen() is not None
    trigger.add(1)
    reached(lambda: done.read() == 1, a, b)
    a.ep.close()
    gc.collect()
    assert seen() is None


def test_endpoint_with_work_that_is_forgotten_is_closed(two: Two) -> None:
    _, b = two
    a = open_node(b.info)
    mr, to, trigger = b.register(np.zeros(4, "u8")), connected(a, b), counter(a)
    message = fi.MsgRma([np.ones(1, "u8")], [fi.RmaIov(b.place(mr), 8, mr.key)], to)
    queue(a, fi.OP_WRITE, fi.OpRma(a.ep, message), trigger)
    seen = weakref.ref(a.ep)
    with pytest.warns(ResourceWarning, match="Endpoint"):
        a.ep = None
    gc.collect()
    assert seen() is None
    for one in (*reversed(a.extra), a.cq, a.av, a.domain, a.fabric):
        one.close()


def test_bad_work_is_refused(two: Two) -> None:
    """libfabric follows the pointers of the struct."""
    a, b = two
    mr, to, trigger, other, gone = b.register(np.zeros(4, "u8")), connected(a, b), counter(a), counter(b), counter(a)
    gone.close()
    remote = [fi.RmaIov(b.place(mr), 8, mr.key)]

    def write(data: Any = b"12345678", peer: int = to, ranges: Any = remote, ep: Any = a.ep) -> fi.OpRma:
        return fi.OpRma(ep, fi.MsgRma([data], ranges, peer))

    refused: list[tuple[Any, Any]] = [
        (None, fi.InvalidArgument),
        (fi.DeferredWork(1, None, None, fi.OP_WRITE, write()), fi.InvalidArgument),
        (fi.DeferredWork(1, other, None, fi.OP_WRITE, write()), fi.InvalidArgument),
        (fi.DeferredWork(1, gone, None, fi.OP_WRITE, write()), fi.BadState),
        (fi.DeferredWork(1, trigger, other, fi.OP_WRITE, write()), fi.InvalidArgument),
        (fi.DeferredWork(1, trigger, None, fi.OP_READ, write()), (TypeError, BufferError, fi.FabricError)),
        (fi.DeferredWork(1, trigger, None, fi.OP_SEND, write()), TypeError),
        (fi.DeferredWork(1, trigger, None, 99, write()), fi.FabricError),
        (fi.DeferredWork(-1, trigger, None, fi.OP_WRITE, write()), fi.FabricError),
        (fi.DeferredWork(1, trigger, None, fi.OP_WRITE, write(peer=77)), fi.InvalidArgument),
        (fi.DeferredWork(1, trigger, None, fi.OP_WRITE, write(data=b"1234")), fi.InvalidArgument),
        (fi.DeferredWork(1, trigger, None, fi.OP_WRITE, write(ranges=[3])), TypeError),
        (fi.DeferredWork(1, trigger, None, fi.OP_WRITE, write(ep=b.ep)), fi.InvalidArgument),
        (fi.DeferredWork(1, trigger, None, fi.OP_WRITE, write(ep=None)), TypeError),
        (fi.DeferredWork(1, trigger, None, fi.OP_CNTR_ADD, fi.OpCntr(other, 1)), fi.InvalidArgument),
        (fi.DeferredWork(1, trigger, None, fi.OP_CNTR_ADD, fi.OpCntr(trigger, -1)), fi.FabricError),
    ]
    for work, error in refused:
        with pytest.raises(error):
            a.domain.control(fi.QUEUE_WORK, work)
    assert a.ep.outstanding() == 0


def test_refusals_of_the_library_arrive(two: Two) -> None:
    a, b = two
    to, trigger = connected(a, b), counter(a)
    op = fi.OpTagged(a.ep, fi.MsgTagged([b"hello"], None, to, 7))
    work = queue(a, fi.OP_TSEND, op, trigger)
    with pytest.raises((fi.NoSys, fi.NotSupported, fi.InvalidArgument)):
        a.domain.control(fi.CANCEL_WORK, work)
    with pytest.raises((fi.NoSys, fi.NotSupported, fi.InvalidArgument)):
        a.domain.control(fi.FLUSH_WORK)
    with pytest.raises(fi.FabricError, match="no such work"):
        a.domain.control(fi.CANCEL_WORK, fi.DeferredWork(1, trigger, None, fi.OP_TSEND, op))
    with pytest.raises(fi.NotSupported, match="not passed through"):
        a.domain.control(fi.GETWAIT)


def test_provider_without_deferred_work_refuses_it(provider: str) -> None:
    node = open_node(offer(provider))
    trigger = counter(node)
    work = fi.DeferredWork(
        1, trigger, None, fi.OP_TSEND, fi.OpTagged(node.ep, fi.MsgTagged([b"x"], None, node.to(node), 1))
    )
    with pytest.raises((fi.NoSys, fi.NotSupported, fi.InvalidArgument)):
        node.domain.control(fi.QUEUE_WORK, work)
    assert node.ep.outstanding() == 0
    with pytest.raises((fi.NoSys, fi.NotSupported, fi.InvalidArgument)):
        node.domain.control(fi.QUEUE_WORK, fi.DeferredWork(1, trigger, None, fi.OP_CNTR_ADD, fi.OpCntr(trigger, 1)))
    node.close()
