"""FI_PEEK, FI_CLAIM, FI_DISCARD: looking at messages that no receive has taken (fi_tagged(3))."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.fi.msg_support import TAG, alone, data_of, kinds, nothing, of_kind, recv, recvmsg, refused, send, talkers
from tests.fi.support import Node

from weft import fi

pytestmark = pytest.mark.general("messages")

PEEK = int(fi.PEEK | fi.COMPLETION)
CLAIM = int(fi.CLAIM | fi.COMPLETION)
lengths = pytest.mark.parametrize("length", [0, 8, 5000, 100_000])


class Context:
    """Stands for a struct fi_context: the object itself is what peek and claim have in common."""


def missing(node: Node, tagged: bool, tag: int = TAG) -> fi.CqErrEntry:
    """Peeks, and returns the error of a miss."""
    recvmsg(node, tagged, None, PEEK, "peek", tag=tag)
    return refused(node)


def found(node: Node, tagged: bool, flags: int, context: object, tag: int = TAG) -> Any:
    """Peeks until a message has arrived, and returns the completion of the peek."""
    while True:
        recvmsg(node, tagged, None, flags, context, tag=tag)
        try:
            return node.wait()[0]
        except fi.Available:
            assert node.cq.readerr().err == fi.ENOMSG


@kinds
def test_peek_misses(tagged: bool) -> None:
    """fi_tagged(3) FI_PEEK: without a matching message the completion is the error FI_ENOMSG."""
    with alone() as node:
        entry = missing(node, tagged)
        assert (entry.op_context, entry.err, entry.len) == ("peek", fi.ENOMSG, 0)
        assert entry.flags == of_kind(tagged) | fi.RECV
        assert entry.tag == (TAG if tagged else 0)
        assert nothing(node)


@kinds
@lengths
def test_peek_finds_a_message_and_leaves_it(length: int, tagged: bool) -> None:
    """The completion has the message's length, tag and data; a receive then takes the message."""
    with talkers() as (sender, receiver, peer):
        payload, room = data_of(length), np.zeros(length, np.uint8)
        if tagged:
            sender.ep.tsenddata(payload, None, 5, peer, TAG)
        else:
            sender.ep.senddata(payload, None, 5, peer)
        for _ in range(2):
            entry = found(receiver, tagged, PEEK, "peek")
            assert (entry.op_context, entry.len, entry.data) == ("peek", length, 5)
            assert entry.flags == of_kind(tagged) | fi.RECV | fi.REMOTE_CQ_DATA
            assert entry.tag == (TAG if tagged else 0)
        recv(receiver, tagged, room, "r")
        assert receiver.wait()[0].len == length
        assert np.array_equal(room, payload)
        sender.wait()


@kinds
@lengths
def test_claimed_message_is_received_by_its_context_alone(length: int, tagged: bool) -> None:
    """fi_tagged(3) FI_CLAIM: a claimed message is retrieved by a receive with FI_CLAIM and the same context."""
    with talkers() as (sender, receiver, peer):
        payloads = [data_of(length, seed=i) for i in range(2)]
        for payload in payloads:
            send(sender, tagged, payload, peer, "s")
        context = Context()
        assert found(receiver, tagged, PEEK | CLAIM, context).op_context is context
        rooms = [np.zeros(length, np.uint8) for _ in range(2)]
        recv(receiver, tagged, rooms[1], "r")  # the claimed message is not for it
        recvmsg(receiver, tagged, rooms[0], CLAIM, context)
        assert {entry.op_context for entry in receiver.wait(2)} == {"r", context}
        for payload, room in zip(payloads, rooms, strict=True):
            assert np.array_equal(room, payload)


@kinds
@lengths
def test_discard_drops_the_message_that_a_peek_finds(length: int, tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        send(sender, tagged, data_of(length), peer, "s")
        sender_done = [] if length > 50_000 else sender.wait()  # a long message completes when it is taken
        entry = found(receiver, tagged, PEEK | int(fi.DISCARD), "peek")
        assert entry.len == length
        assert missing(receiver, tagged).err == fi.ENOMSG
        assert (sender_done or sender.wait())[0].op_context == "s"


@kinds
@lengths
def test_discard_drops_a_claimed_message(length: int, tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        send(sender, tagged, data_of(length), peer, "s")
        context = Context()
        found(receiver, tagged, PEEK | CLAIM, context)
        recvmsg(receiver, tagged, None, CLAIM | int(fi.DISCARD), context)
        (entry,) = receiver.wait()
        assert entry.op_context is context
        assert missing(receiver, tagged).err == fi.ENOMSG
        assert sender.wait()[0].op_context == "s"


@kinds
def test_claim_is_cut_like_any_receive(tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        send(sender, tagged, data_of(100), peer)
        context, room = Context(), np.zeros(100, np.uint8)
        found(receiver, tagged, PEEK | CLAIM, context)
        recvmsg(receiver, tagged, room[:30], CLAIM, context)
        entry = refused(receiver)
        assert (entry.err, entry.len, entry.olen) == (fi.ETRUNC, 30, 70)


@kinds
def test_claim_without_a_claimed_message_is_refused(tagged: bool) -> None:
    with alone() as node:
        with pytest.raises(fi.InvalidArgument, match="this context has claimed no message"):
            recvmsg(node, tagged, bytearray(8), CLAIM, Context())
        with pytest.raises(fi.InvalidArgument, match="CLAIM without a context"):
            recvmsg(node, tagged, None, PEEK | CLAIM)
        with pytest.raises(fi.InvalidArgument, match="DISCARD without PEEK or CLAIM"):
            recvmsg(node, tagged, bytearray(8), int(fi.DISCARD))
        with pytest.raises(fi.InvalidArgument, match="PEEK, CLAIM and DISCARD together"):
            recvmsg(node, tagged, None, PEEK | CLAIM | int(fi.DISCARD), Context())
        assert nothing(node)


def test_peeks_and_claims_respect_tags_and_order() -> None:
    with talkers() as (sender, receiver, peer):
        for i, tag in enumerate((1, 2, 1)):
            sender.ep.tinjectdata(b"12345678", i, peer, tag)
        context = Context()
        assert found(receiver, True, PEEK | CLAIM, context, tag=1).data == 0
        assert found(receiver, True, PEEK, "second", tag=1).data == 2
        assert found(receiver, True, PEEK, "third", tag=2).data == 1


@pytest.mark.clause("rma.arg.context-required")
@kinds
def test_claim_uses_its_context_although_nothing_completes(tagged: bool) -> None:
    """fi_rma(3), context: a flag may require it as input. FI_CLAIM does; without FI_COMPLETION there is no entry."""
    with talkers(cq_flags=int(fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION)) as (sender, receiver, peer):
        payload, context = data_of(1000), Context()
        send(sender, tagged, payload, peer)
        found(receiver, tagged, PEEK | CLAIM, context)
        room = np.zeros(1000, np.uint8)
        with pytest.raises(fi.InvalidArgument):
            recvmsg(receiver, tagged, room, int(fi.CLAIM), Context())
        recvmsg(receiver, tagged, room, int(fi.CLAIM), context)
        assert np.array_equal(room, payload)
        assert nothing(receiver)
