"""Eager messages that are longer than a frame of the NIC: FI_CXI_RDZV_THRESHOLD has no limit but the overflow buffers.

fi_cxi(7) "Eager Messages": the message goes to the target at once. Without a receive it is buffered whole, and its send
completes all the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import opened
from tests.cxi.test_message_offload import begin_all, close_node, look, open_node, post
from tests.cxi.test_message_protocols import carried
from tests.fi.msg_support import data_of, kinds, recv, recvmsg, send, sendmsg
from tests.fi.support import Node
from tests.patience import Patience
from tests.procs.children import CALL_S, Child
from tests.procs.peer import World
from tests.share.owner import stop

from weft import cxi, fi
from weft.providers.cxi import device, messages

CAPS = int(fi.MSG | fi.TAGGED)
THRESHOLD, GET_MIN = 600_000, 2049
EAGER_MAX = THRESHOLD + GET_MIN
LENGTH = 300_000


@pytest.fixture(autouse=True)
def threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_RDZV_THRESHOLD", str(THRESHOLD))
    monkeypatch.setenv("FI_CXI_RDZV_EAGER_SIZE", "2048")


@contextlib.contextmanager
def talkers(caps: int = CAPS, **more: Any) -> Iterator[tuple[Node, Node, int]]:
    """(sender, receiver, fi_addr of the receiver)."""
    with opened(caps, **more) as receiver, opened(caps, **more) as sender:
        yield sender, receiver, sender.av.insert(receiver.name)


@pytest.fixture(params=["shared", "strict"])
def target(request: pytest.FixtureRequest, registry: Path) -> Iterator[Child]:
    """Another process: its memory is reached by the kernel or a mapping, or by frames alone."""
    with Child(WEFT_ISOLATION=request.param) as child:
        yield child


def enter(world: World) -> bytes:
    """An endpoint of this process, with a threshold of its own."""
    os.environ["FI_CXI_RDZV_THRESHOLD"], os.environ["FI_CXI_RDZV_EAGER_SIZE"] = str(THRESHOLD), "2048"
    return open_node(world)


def fed(world: World, tag: int, length: int) -> bool:
    """Receives one message; whether its bytes are data_of()'s."""
    node: Node = world.more["node"]
    room = np.zeros(length, np.uint8)
    node.ep.trecv(room, tag=tag)
    node.wait()
    return bool(np.array_equal(room, data_of(length, seed=tag)))


def until(node: Node, condition: Any) -> None:
    patience = Patience(CALL_S)
    while not condition():
        assert not patience.over
        node.cq.read(0)


# ---- lengths ---------------------------------------------------------------------------------------------------------


@pytest.mark.clause(
    "cxi.env.rdzv-threshold", "cxi.env.rdzv-eager-bound", "cxi.msg.eager-payload", "cxi.msg.eager-unexpected"
)
@kinds
@pytest.mark.parametrize("length", [64 << 10, (64 << 10) + 1, LENGTH, EAGER_MAX])
def test_unexpected_message_below_the_threshold_is_kept_whole(length: int, tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        assert carried(sender, receiver, peer, tagged, length) == length
        found = receiver.ep.message_statistics()
        assert (found.gets, found.reads) == (0, 0)


@pytest.mark.clause("cxi.env.rdzv-larger")
@kinds
def test_message_above_the_threshold_is_a_rendezvous(tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        assert carried(sender, receiver, peer, tagged, EAGER_MAX + 1) == 2048
        assert receiver.ep.message_statistics().gets == 1


@pytest.mark.clause("cxi.msg.eager-payload")
def test_message_with_a_receive_goes_to_its_buffer_alone() -> None:
    with talkers() as (sender, receiver, peer):
        room = np.zeros(LENGTH, np.uint8)
        recv(receiver, True, room, "r")
        send(sender, True, data_of(LENGTH), peer, "s")
        assert sender.wait()[0].op_context == "s"
        assert receiver.wait()[0].len == LENGTH
        assert np.array_equal(room, data_of(LENGTH))
        found = receiver.ep.message_statistics()
        assert (found.matched, found.kept, found.gets) == (1, 0, 0)


def test_eager_messages_take_no_rendezvous_id() -> None:
    with talkers() as (sender, receiver, peer):
        for _ in range(3):
            sender.ep.send(data_of(LENGTH), None, peer)
        sender.wait(3)
        assert sender.ep.message_statistics().untagged_ids == 0
        sender.ep.send(data_of(EAGER_MAX + 1), None, peer)
        assert sender.ep.message_statistics().untagged_ids == 1
        for _ in range(4):
            receiver.ep.recv(bytearray(EAGER_MAX + 1))
        receiver.wait(4)


def test_unordered_messages_have_no_rendezvous() -> None:
    """FI_PROTO_CXI_RNR: the receiver fetches a long message when the receive is there, and counts no rendezvous."""
    with talkers(protocol=fi.PROTO_CXI_RNR) as (sender, receiver, peer):
        room = bytearray(2 << 20)
        receiver.ep.recv(room)
        sender.ep.send(data_of(2 << 20), None, peer)
        receiver.wait()
        sender.wait()
        assert room == data_of(2 << 20).tobytes()
        assert receiver.ep.message_statistics().gets == 0


# ---- flags and features ----------------------------------------------------------------------------------------------


@kinds
def test_data_source_and_length_come_with_a_kept_message(tagged: bool) -> None:
    with talkers(CAPS | int(fi.SOURCE)) as (sender, receiver, peer):
        back = receiver.av.insert(sender.name)
        sendmsg(sender, tagged, data_of(LENGTH), peer, int(fi.REMOTE_CQ_DATA | fi.COMPLETION), "s", data=77)
        sender.wait()
        recv(receiver, tagged, np.zeros(LENGTH, np.uint8), "r")
        ((entry, source),) = read_from(receiver)
        assert (entry.len, entry.data, source) == (LENGTH, 77, back)
        assert entry.flags & fi.REMOTE_CQ_DATA


def read_from(node: Node) -> Any:
    found: list[Any] = []
    patience = Patience(CALL_S)
    while not found:
        assert not patience.over
        found = node.cq.readfrom(1)
    return found


@pytest.mark.clause("cxi.op.match-complete")
def test_match_complete_send_waits_for_its_receive() -> None:
    with talkers() as (sender, receiver, peer):
        sendmsg(sender, True, data_of(LENGTH), peer, int(fi.MATCH_COMPLETE | fi.COMPLETION), "matched")
        send(sender, True, data_of(LENGTH), peer, "later")
        assert [entry.op_context for entry in sender.wait()] == ["later"]
        recv(receiver, True, bytearray(LENGTH))
        receiver.wait()
        assert [entry.op_context for entry in sender.wait()] == ["matched"]


@kinds
def test_short_receive_of_a_kept_message_is_truncated(tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        send(sender, tagged, data_of(LENGTH), peer)
        sender.wait()
        room = np.zeros(LENGTH, np.uint8)
        recv(receiver, tagged, room[:1000], "r")
        with pytest.raises(fi.Available):
            receiver.wait()
        error = receiver.cq.readerr()
        assert (error.err, error.len, error.olen) == (fi.ETRUNC, 1000, LENGTH - 1000)
        assert np.array_equal(room[:1000], data_of(LENGTH)[:1000])
        assert not room[1000:].any()


def test_buffer_for_several_messages_takes_kept_and_new_ones() -> None:
    with talkers(CAPS | int(fi.MULTI_RECV)) as (sender, receiver, peer):
        sender.ep.send(data_of(LENGTH, seed=0), None, peer)
        sender.wait()
        room = np.zeros(2 * LENGTH, np.uint8)
        receiver.ep.recvmsg(fi.Msg([room], context="m"), int(fi.MULTI_RECV | fi.COMPLETION))
        sender.ep.send(data_of(LENGTH, seed=1), None, peer)
        entries = receiver.wait(2)
        assert [entry.len for entry in entries] == [LENGTH, LENGTH]
        assert sum(bool(entry.flags & fi.MULTI_RECV) for entry in entries) == 1
        assert np.array_equal(room[:LENGTH], data_of(LENGTH, seed=0))
        assert np.array_equal(room[LENGTH:], data_of(LENGTH, seed=1))


def test_peeked_message_is_claimed() -> None:
    with talkers() as (sender, receiver, peer):
        send(sender, True, data_of(LENGTH), peer)
        sender.wait()
        recvmsg(receiver, True, None, int(fi.PEEK | fi.CLAIM | fi.COMPLETION), "m")
        assert receiver.wait()[0].len == LENGTH
        room = np.zeros(LENGTH, np.uint8)
        recvmsg(receiver, True, room, int(fi.CLAIM | fi.COMPLETION), "m")
        receiver.wait()
        assert np.array_equal(room, data_of(LENGTH))
        assert receiver.ep.message_statistics().unexpected == 0


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.msg.unexpected-buffers", "cxi.env.oflow-buf-size-effect")
@pytest.mark.parametrize("mode", ["hardware", "software"])
def test_kept_messages_lie_in_the_buffers_of_the_mode(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Two messages fit a buffer of 700,000 bytes."""
    monkeypatch.setenv("FI_CXI_RX_MATCH_MODE", mode)
    monkeypatch.setenv("FI_CXI_OFLOW_BUF_SIZE" if mode == "hardware" else "FI_CXI_REQ_BUF_SIZE", "700000")
    with talkers() as (sender, receiver, peer):
        for tag in range(20):
            sender.ep.tsend(data_of(LENGTH, seed=tag), None, peer, tag)
        sender.wait(20)
        found = receiver.ep.message_statistics()
        assert found.unexpected == 20
        assert found.buffers - found.buffers_posted == 10 - 1  # the current buffer, and the full buffers
        for tag in range(20):
            room = np.zeros(LENGTH, np.uint8)
            receiver.ep.trecv(room, tag=tag)
            receiver.wait()
            assert np.array_equal(room, data_of(LENGTH, seed=tag))


def test_messages_beyond_the_memory_for_them_wait_at_their_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """As shorter ones do: flow control. Three buffers of one message each are all there is."""
    monkeypatch.setattr(messages, "UNEXPECTED_BYTES", 1)
    monkeypatch.setenv("FI_CXI_OFLOW_BUF_SIZE", "610000")
    with talkers() as (sender, receiver, peer):
        sent = 0
        with contextlib.suppress(fi.Again):
            while sent < 8:
                sender.ep.tsend(data_of(400_000, seed=sent), None, peer, sent)
                sent += 1
        assert sent > 3
        until(receiver, lambda: receiver.ep.message_statistics().refused)
        assert receiver.ep.message_statistics().unexpected == 3
        for tag in range(sent):
            room = np.zeros(400_000, np.uint8)
            receiver.ep.trecv(room, tag=tag)
            receiver.wait()
            assert np.array_equal(room, data_of(400_000, seed=tag))
            assert receiver.ep.message_statistics().buffers_most == 3
        sender.wait(sent)


def test_message_that_no_buffer_of_the_receiver_holds_waits_for_its_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender's threshold is higher than the receiver's buffers are long: announced lengths are not allocated."""
    with opened(CAPS) as sender:
        monkeypatch.setenv("FI_CXI_OFLOW_BUF_SIZE", "8192")
        monkeypatch.setenv("FI_CXI_RDZV_THRESHOLD", "2048")
        with opened(CAPS) as receiver:
            peer = sender.av.insert(receiver.name)
            send(sender, True, data_of(LENGTH), peer)
            until(sender, lambda: receiver.ep.message_statistics().refused)
            assert receiver.ep.message_statistics().unexpected == 0
            room = np.zeros(LENGTH, np.uint8)
            recv(receiver, True, room)
            receiver.wait()
            sender.wait()
            assert np.array_equal(room, data_of(LENGTH))


# ---- other processes -------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.msg.eager-unexpected", "cxi.overview.match-offload")
def test_message_lands_while_the_target_calls_nothing(target: Child) -> None:
    with opened(CAPS) as sender:
        peer = sender.av.insert(cxi.Address.from_bytes(target.call(enter)))
        for tag in (1, 2):
            sender.ep.tsend(data_of(LENGTH, seed=tag), None, peer, tag)
        sender.wait(2)
        assert target.call(fed, 2, LENGTH)
        assert target.call(fed, 1, LENGTH)
        target.call(close_node)


@pytest.mark.clause("cxi.overview.match-offload", "cxi.env.rdzv-rdma")
@pytest.mark.parametrize("protocol", ["default", "alt_read"])
def test_message_is_fetched_by_the_nic_under_both_protocols(
    monkeypatch: pytest.MonkeyPatch, registry: Path, protocol: str
) -> None:
    """FI_CXI_RDZV_PROTO=alt_read: reads of the program are for the rest of rendezvous messages."""
    monkeypatch.setenv("FI_CXI_RDZV_PROTO", protocol)
    device.set_values("cxi0", rdzv_get_en=int(protocol == "default"))
    with Child() as target, opened(CAPS) as sender:
        peer = sender.av.insert(cxi.Address.from_bytes(target.call(open_node, int(protocol == "default"))))
        target.call(post, LENGTH, [-1, 1, 2])
        payloads = [data_of(LENGTH, seed=i) for i in range(3)]
        watching = target.start(look, [bytes(payload) for payload in payloads])
        for payload, tag in zip(payloads, (-1, 1, 2), strict=True):
            send(sender, tag >= 0, payload, peer, tag=tag)
        assert watching.result()
        sender.wait(3)
        target.call(close_node)


@pytest.mark.clause("cxi.cntr.send-small")
def test_counter_of_sends_advances_without_progress_of_the_program(target: Child) -> None:
    """Not a rendezvous: the NIC counts the send, without a receive."""
    with opened(CAPS, enable=False) as sender:
        counter = sender.keep(sender.domain.cntr_open())
        sender.ep.bind(counter, fi.SEND)
        sender.ep.enable()
        peer = sender.av.insert(cxi.Address.from_bytes(target.call(enter)))
        sender.ep.tsend(data_of(LENGTH, seed=1), None, peer, 1)
        counter.wait(1, int(CALL_S * 1000))
        sender.wait()
        assert target.call(fed, 1, LENGTH)
        target.call(close_node)


@pytest.mark.parametrize("received", [False, True], ids=["without a receive", "with a receive"])
def test_death_of_the_sender_in_the_middle_leaves_no_part_of_a_message(target: Child, received: bool) -> None:
    """Each message is received whole, or fails, or was never there."""
    count = 8
    with opened(CAPS) as receiver:
        target.call(enter)
        rooms = [np.zeros(LENGTH, np.uint8) for _ in range(count)]
        if received:
            for i, room in enumerate(rooms):
                receiver.ep.trecv(room, tag=i, context=i)
        target.call(begin_all, bytes(receiver.name), LENGTH, count)
        stop(target.pid)
        os.kill(target.pid, signal.SIGKILL)
        target.process.wait()
        until(receiver, lambda: receiver.ep.message_statistics().flows == 0)
        if not received:
            for i, room in enumerate(rooms):
                receiver.ep.trecv(room, tag=i, context=i)
        for i in range(count):
            with contextlib.suppress(fi.NotFound):  # it has a message
                receiver.ep.cancel(i)
        ended = 0
        while ended < count:
            try:
                (entry,) = receiver.wait()
                assert np.array_equal(rooms[entry.op_context], data_of(LENGTH, seed=entry.op_context))
            except fi.Available:
                assert receiver.cq.readerr().len == 0
            ended += 1
        assert receiver.ep.message_statistics().unexpected == 0
