"""FI_MORE on receives: the NIC sees them with the next receive that has not the flag, as commands behind one doorbell.

Source: fi_cxi(7) FI_MORE; fi_msg(3)."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cxi.support import opened
from tests.fi.msg_support import TAG, drain, kinds, recv, recvmsg, refused, send
from tests.fi.support import Node

from weft import fi

CAPS = int(fi.MSG | fi.TAGGED)
MORE = int(fi.MORE | fi.COMPLETION)
PROTOCOLS = [0, int(fi.PROTO_CXI_RNR)]
protocols = pytest.mark.parametrize("protocol", PROTOCOLS, ids=["CXI", "RNR"])


@contextlib.contextmanager
def talkers(rx_size: int = 0, **more: Any) -> Iterator[tuple[Node, Node, int]]:
    """(sender, receiver, fi_addr of the receiver)."""

    def small(info: fi.Info) -> None:
        if rx_size:
            info.rx_attr.size = rx_size

    with opened(CAPS, edit=small, **more) as receiver, opened(CAPS, **more) as sender:
        yield sender, receiver, sender.av.insert(receiver.name)


def quiet(*nodes: Node) -> None:
    """Nothing completes, with any progress."""
    for _ in range(50):
        for node in nodes:
            assert not node.cq.read()


def posted(node: Node) -> int:
    return node.ep.message_statistics().posted


@kinds
@protocols
def test_receives_with_more_wait_for_one_without_it(protocol: int, tagged: bool) -> None:
    with talkers(protocol=protocol) as (sender, receiver, peer):
        rooms = [bytearray(8) for _ in range(3)]
        recvmsg(receiver, tagged, rooms[0], MORE, 0)
        recvmsg(receiver, tagged, rooms[1], MORE, 1)
        send(sender, tagged, b"message0", peer)
        quiet(receiver)
        assert posted(receiver) == 0
        recv(receiver, tagged, rooms[2], 2)
        for number in (1, 2):
            sender.wait()
            send(sender, tagged, b"message%d" % number, peer)
        assert [entry.op_context for entry in receiver.wait(3)] == [0, 1, 2]
        assert rooms == [b"message0", b"message1", b"message2"]


def test_receives_of_both_kinds_are_behind_one_doorbell() -> None:
    with talkers() as (sender, receiver, peer):
        recvmsg(receiver, False, bytearray(8), MORE, "untagged")
        sender.ep.inject(b"12345678", peer)
        quiet(receiver)
        receiver.ep.trecv(bytearray(8), tag=77)
        assert [entry.op_context for entry in receiver.wait()] == ["untagged"]


@kinds
def test_receives_with_more_are_posted_when_the_queue_is_full(tagged: bool) -> None:
    with talkers(rx_size=16) as (sender, receiver, peer):
        for number in range(15):
            recvmsg(receiver, tagged, bytearray(8), MORE, number)
        assert posted(receiver) == 0
        recvmsg(receiver, tagged, bytearray(8), MORE, 15)
        assert posted(receiver) == 16
        send(sender, tagged, b"12345678", peer)
        assert receiver.wait()[0].op_context == 0


@kinds
def test_receive_with_more_can_be_canceled(tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        contexts = [object() for _ in range(3)]
        for context in contexts[:2]:
            recvmsg(receiver, tagged, bytearray(8), MORE, context)
        receiver.ep.cancel(contexts[0])
        entry = refused(receiver)
        assert (entry.op_context, entry.err) == (contexts[0], fi.ECANCELED)
        with pytest.raises(fi.NotFound):
            receiver.ep.cancel(contexts[0])
        recv(receiver, tagged, bytearray(8), contexts[2])
        send(sender, tagged, b"12345678", peer)
        assert receiver.wait()[0].op_context is contexts[1]


def test_peek_posts_what_was_held() -> None:
    """The peek is a command behind the held receives: messages that they take are no longer there."""
    with talkers() as (sender, receiver, peer):
        recvmsg(receiver, True, bytearray(8), MORE, "r")
        sender.ep.tsend(b"12345678", None, peer, TAG)
        quiet(receiver)
        receiver.ep.trecvmsg(fi.MsgTagged([], None, fi.ADDR_UNSPEC, TAG, 0, "p"), int(fi.PEEK))
        assert receiver.wait()[0].op_context == "r"
        assert refused(receiver).err == fi.ENOMSG


@kinds
def test_receives_with_more_are_dropped_with_their_endpoint(tagged: bool) -> None:
    class Context:
        pass

    with talkers() as (_, receiver, _peer):
        context = Context()
        gone = weakref.ref(context)
        recvmsg(receiver, tagged, bytearray(8), MORE, context)
        del context
        receiver.ep.close()
        assert not receiver.cq.read()
        gc.collect()
        assert gone() is None


def test_software_matching_has_no_doorbell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_RX_MATCH_MODE", "software")
    with talkers() as (sender, receiver, peer):
        recvmsg(receiver, True, bytearray(8), MORE, "r")
        assert posted(receiver) == 1
        sender.ep.tinject(b"12345678", peer, TAG)
        assert receiver.wait()[0].op_context == "r"


def test_held_receives_follow_a_move_to_software_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receive that begins the move is refused, and the held ones behind it stay held."""
    monkeypatch.setenv("FI_CXI_RX_MATCH_MODE", "hybrid")
    monkeypatch.setenv("FI_CXI_HYBRID_POSTED_RECV_PREEMPTIVE", "1")
    with talkers(rx_size=4) as (sender, receiver, peer):
        for number in range(3):
            recv(receiver, True, bytearray(8), number)
        for number in range(3, 6):
            recvmsg(receiver, True, bytearray(8), MORE, number)
        with pytest.raises(fi.Again):
            recv(receiver, True, bytearray(8), 6)
        drain(receiver, lambda: receiver.ep.message_statistics().state == "software")
        recv(receiver, True, bytearray(8), 6)
        for _ in range(7):
            sender.ep.tinject(b"12345678", peer, TAG)
        assert [entry.op_context for entry in receiver.wait(7)] == list(range(7))


def test_held_receive_without_a_list_entry_fails_by_an_entry() -> None:
    from tests.cxi.match_support import OFLOW, of_service, service_with

    with of_service(service_with(OFLOW + 1)) as receiver:
        for number in range(2):
            recvmsg(receiver, True, bytearray(8), MORE, number)
        with pytest.raises(fi.NoSpace):
            recv(receiver, True, bytearray(8), 2)
        assert refused(receiver).op_context == 1
        assert posted(receiver) == 1
