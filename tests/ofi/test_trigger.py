"""Triggered operations of a real libfabric: fi_trigger(3) FI_TRIGGER. Of its providers here only sockets has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.ofi.support import CAPS, Node, connected, counter, drain, finish, offer, open_node, until

from weft import fi

Two = tuple[Node, Node]


@pytest.fixture
def two() -> Iterator[Two]:
    try:
        info = offer("ofi:sockets", CAPS | fi.ATOMIC | fi.TRIGGER)
    except fi.NoData:
        pytest.skip("this libfabric has no provider sockets, the only one here with triggered operations")
    a, b = open_node(info), open_node(info)
    yield a, b
    b.close()
    a.close()


def at(cntr: Any, threshold: int) -> fi.TriggeredContext:
    return fi.TriggeredContext(fi.TRIGGER_THRESHOLD, fi.TriggerThreshold(cntr, threshold))


def test_operations_start_at_their_thresholds(two: Two) -> None:
    a, b = two
    memory = np.zeros(4, "u8")
    mr, to, cntr = b.register(memory), connected(a, b), counter(a)
    contexts = [at(cntr, threshold) for threshold in (2, 1, 9)]
    for place, context in enumerate(contexts):
        remote = [fi.RmaIov(b.place(mr, 8 * place), 8, mr.key)]
        a.ep.writemsg(fi.MsgRma([np.full(1, place + 1, "u8")], remote, to, context=context), fi.TRIGGER)
    for _ in range(100):
        drain(a, b)
    assert (a.seen, memory.tolist()) == ([], [0, 0, 0, 0])
    cntr.add(1)
    assert finish(a, 1, b)[0].op_context is contexts[1]
    cntr.add(1)
    assert finish(a, 1, b)[0].op_context is contexts[0]
    until(lambda: memory.tolist() == [1, 2, 0, 0], a, b)
    assert a.ep.outstanding() == 1


def test_messages_and_reads_take_the_flag(two: Two) -> None:
    a, b = two
    memory = np.full(1, 5, "u8")
    mr, to, cntr = b.register(memory), connected(a, b), counter(a)
    room, home = bytearray(5), np.zeros(1, "u8")
    b.ep.trecv(room, tag=7, context="received")
    a.ep.tsendmsg(fi.MsgTagged([b"hello"], None, to, 7, context=at(cntr, 1)), fi.TRIGGER)
    a.ep.readmsg(fi.MsgRma([home], [fi.RmaIov(b.place(mr), 8, mr.key)], to, context=at(cntr, 2)), fi.TRIGGER)
    cntr.add(2)
    finish(a, 2, b)
    finish(b, 1, a)
    assert (bytes(room), home[0]) == (b"hello", 5)


def test_endpoint_closes_with_operations_that_wait(two: Two) -> None:
    """The fixture closes: first the endpoint, then the counter."""
    a, b = two
    mr, to, cntr = b.register(np.zeros(1, "u8")), connected(a, b), counter(a)
    remote = [fi.RmaIov(b.place(mr), 8, mr.key)]
    a.ep.writemsg(fi.MsgRma([np.ones(1, "u8")], remote, to, context=at(cntr, 1)), fi.TRIGGER)
    assert a.ep.outstanding() == 1


def test_context_that_is_no_triggered_context_is_refused(two: Two) -> None:
    """libfabric takes the context for a struct, and follows its pointers."""
    a, b = two
    mr, to, cntr, gone, other = b.register(np.zeros(1, "u8")), connected(a, b), counter(a), counter(a), counter(b)
    gone.close()
    for context, error in (
        (None, fi.InvalidArgument),
        ("context", fi.InvalidArgument),
        (fi.TriggeredContext(fi.TRIGGER_XPU, fi.TriggerThreshold(cntr, 1)), fi.NoSys),
        (fi.TriggeredContext(), TypeError),
        (fi.TriggeredContext(fi.TRIGGER_THRESHOLD, fi.TriggerThreshold("counter", 1)), TypeError),  # type: ignore[arg-type]
        (at(cntr, -1), fi.FabricError),
        (at(gone, 1), fi.BadState),
        (at(other, 1), fi.InvalidArgument),
    ):
        message = fi.MsgRma([np.ones(1, "u8")], [fi.RmaIov(b.place(mr), 8, mr.key)], to, context=context)
        with pytest.raises(error):
            a.ep.writemsg(message, fi.TRIGGER)
    assert a.ep.outstanding() == 0


def test_flag_without_the_capability_is_refused(provider: str) -> None:
    node = open_node(offer(provider))
    with pytest.raises(fi.BadFlags, match="TRIGGER"):
        node.ep.tsendmsg(fi.MsgTagged([b"x"], addr=node.to(node), context=None), fi.TRIGGER)
    with pytest.raises(fi.BadFlags, match="TRIGGER"):
        node.ep.recvmsg(fi.Msg([bytearray(1)]), fi.TRIGGER)
    node.close()
