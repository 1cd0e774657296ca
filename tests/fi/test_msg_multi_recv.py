"""FI_MULTI_RECV: one buffer takes several messages (fi_msg(3), fi_endpoint(3) FI_OPT_MIN_MULTI_RECV)."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from tests.fi.msg_support import alone, data_of, kinds, nothing, of_kind, recv, recvmsg, refused, send, talkers
from tests.fi.support import PROVIDER, Node

from weft import fi

pytestmark = pytest.mark.general("messages")

MULTI = int(fi.MULTI_RECV | fi.COMPLETION)


def several(tagged: bool) -> int:
    """The capabilities of an endpoint whose buffers take several messages of a kind."""
    return int(fi.TAGGED | fi.TAGGED_MULTI_RECV if tagged else fi.MSG | fi.MULTI_RECV)


def least_room(node: Node) -> None:
    """Less than 64 bytes of room end a buffer: by default over Weft, and as an option of other providers."""
    if not PROVIDER.weft:
        node.ep.setopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV, 64)


@kinds
@pytest.mark.parametrize("first", ["receive", "message"])
def test_buffer_takes_messages_until_too_little_room_is_left(first: str, tagged: bool) -> None:
    """fi_msg(3) FI_MULTI_RECV: the last completion of the buffer has the flag; buf tells where each message lies."""
    with talkers(several(tagged)) as (sender, receiver, peer):
        least_room(receiver)
        room = np.zeros(256, np.uint8)
        payloads = [data_of(n, seed=n) for n in (100, 60, 40)]  # 56 bytes are left: fewer than 64
        if first == "receive":
            recvmsg(receiver, tagged, room, MULTI, "r")
        for payload in payloads:
            send(sender, tagged, payload, peer)
        if first == "message":
            recvmsg(receiver, tagged, room, MULTI, "r")
        entries = receiver.wait(3)
        plain = of_kind(tagged) | fi.RECV
        assert [e.flags for e in entries] == [plain, plain, plain | fi.MULTI_RECV]
        assert [e.op_context for e in entries] == ["r"] * 3
        assert [e.len for e in entries] == [100, 60, 40]
        assert [e.buf - room.ctypes.data for e in entries] == [0, 100, 160]
        assert bytes(room[:200]) == b"".join(map(bytes, payloads))
        assert not room[200:].any()


@kinds
def test_min_multi_recv_decides_when_the_buffer_ends(tagged: bool) -> None:
    with alone(several(tagged)) as node:
        if PROVIDER.weft:
            assert node.ep.getopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV) == 64
        node.ep.setopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV, 8)
        assert node.ep.getopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV) == 8
        recvmsg(node, tagged, bytearray(48), MULTI, "r")
        found = []
        for _ in range(6):
            send(node, tagged, b"12345678", node.me)
        for entry in node.wait(12):
            if entry.flags & fi.RECV:
                found.append(bool(entry.flags & fi.MULTI_RECV))
        assert found == [False] * 5 + [True]
        with pytest.raises(fi.InvalidArgument, match=PROVIDER.words("OPT_MIN_MULTI_RECV is 0 to")):
            node.ep.setopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV, -1)


@kinds
def test_message_longer_than_the_rest_of_the_buffer_is_cut_and_ends_it(tagged: bool) -> None:
    with talkers(several(tagged)) as (sender, receiver, peer):
        room = np.zeros(128, np.uint8)
        least_room(receiver)
        recvmsg(receiver, tagged, room, MULTI, "r")
        send(sender, tagged, data_of(50), peer)
        send(sender, tagged, data_of(100), peer)
        assert receiver.wait()[0].len == 50
        entry = refused(receiver)
        assert (entry.err, entry.len, entry.olen) == (fi.ETRUNC, 78, 22)
        assert entry.flags & fi.MULTI_RECV
        assert np.array_equal(room[50:], data_of(100)[:78])


@kinds
def test_long_messages_follow_each_other_in_one_buffer(tagged: bool) -> None:
    with talkers(several(tagged)) as (sender, receiver, peer):
        least_room(receiver)
        room = np.zeros(300_000, np.uint8)
        recvmsg(receiver, tagged, room, MULTI, "r")
        payloads = [data_of(n, seed=n) for n in (100_000, 8, 150_000, 50_000 - 8)]
        for payload in payloads:
            send(sender, tagged, payload, peer)
        entries = receiver.wait(4)
        assert [bool(e.flags & fi.MULTI_RECV) for e in entries] == [False] * 3 + [True]
        assert {(e.buf - room.ctypes.data, e.len) for e in entries} == {
            (0, 100_000), (100_000, 8), (100_008, 150_000), (250_008, 49_992),
        }  # fmt: skip
        assert bytes(room) == b"".join(map(bytes, payloads))
        sender.wait(4)


@kinds
def test_cancel_of_a_multi_receive_gives_the_buffer_back(tagged: bool) -> None:
    with alone(several(tagged)) as node:
        least_room(node)
        room = bytearray(256)
        recvmsg(node, tagged, room, MULTI, "r")
        send(node, tagged, b"12345678", node.me)
        node.wait(2)
        node.ep.cancel("r")
        entry = refused(node)
        assert (entry.op_context, entry.err) == ("r", fi.ECANCELED)
        assert entry.flags == of_kind(tagged) | fi.RECV | fi.MULTI_RECV
        assert nothing(node)
        room.extend(b"1")  # the receive holds the buffer no more


def test_multi_recv_as_a_default_flag() -> None:
    """fi_endpoint(3) rx_attr.op_flags: FI_MULTI_RECV makes every untagged receive take several messages."""

    def default(info: fi.Info) -> None:
        info.rx_attr.op_flags = fi.MULTI_RECV

    with alone(fi.MSG, edit=default) as node:
        least_room(node)
        node.ep.recv(bytearray(256), context="r")
        for _ in range(3):
            node.ep.inject(b"12345678", node.me)
        assert [e.op_context for e in node.wait(3)] == ["r"] * 3


def test_multi_recv_of_tagged_receives_needs_its_capability() -> None:
    """fi_getinfo(3) FI_TAGGED_MULTI_RECV: without it the flag has no effect."""
    with alone(fi.TAGGED) as node:
        assert node.info.caps & fi.TAGGED_MULTI_RECV == 0
        recvmsg(node, True, bytearray(256), MULTI, "one")
        recvmsg(node, True, bytearray(256), MULTI, "two")
        for _ in range(2):
            node.ep.tinject(b"12345678", node.me, 0x1234)
        assert [e.op_context for e in node.wait(2)] == ["one", "two"]


def test_buffer_for_several_messages_is_one() -> None:
    with alone() as node, pytest.raises(fi.InvalidArgument, match="2 buffers are more than iov_limit, 1"):
        node.ep.recvmsg(fi.Msg([bytearray(64), bytearray(64)]), MULTI)


class _Context:
    pass


@kinds
def test_unread_entries_keep_the_context_of_a_buffer_whose_endpoint_is_closed(tagged: bool) -> None:
    with talkers(several(tagged)) as (sender, receiver, peer):
        context = _Context()
        alive = weakref.ref(context)
        least_room(receiver)
        recvmsg(receiver, tagged, bytearray(256), MULTI, context)
        del context
        for _ in range(2):
            send(sender, tagged, b"12345678", peer)
        sender.wait(2)
        receiver.cq.read(0)
        receiver.ep.close()
        gc.collect()
        entries = receiver.wait(2)
        assert [e.op_context for e in entries] == [alive()] * 2
        assert alive() is not None
        del entries
        gc.collect()
        assert alive() is not None  # the queue may have more entries of the buffer
    del sender, receiver
    gc.collect()
    assert alive() is None


@kinds
def test_contexts_of_receives_are_returned_when_the_endpoint_closes(tagged: bool) -> None:
    with alone(several(tagged)) as node:
        contexts = [_Context() for _ in range(4)]
        alive = [weakref.ref(c) for c in contexts]
        for context in contexts:
            recv(node, tagged, bytearray(8), context)
        del context, contexts
        gc.collect()
        assert all(one() is not None for one in alive)
        node.ep.close()
        gc.collect()
        assert [one() for one in alive] == [None] * 4
