"""Messages between two endpoints of one process, with and without tags: fi_msg(3), and its rules in fi_tagged(3)."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from tests.fi.msg_support import (
    CAPS,
    LENGTHS,
    RECEIVES,
    TAG,
    Receive,
    Send,
    alone,
    check_arrival,
    check_truncation,
    data_of,
    kinds,
    nothing,
    of_kind,
    receive_calls,
    recv,
    recvmsg,
    refused,
    send,
    send_calls,
    sendmsg,
    sent_len,
    talkers,
)
from tests.fi.support import WATCHDOG_S

from weft import fi

pytestmark = pytest.mark.general("messages")


# ---- every call ------------------------------------------------------------------------------------------------------


@send_calls
def test_every_call_that_sends_delivers_its_bytes(name: str, call: Send, completes: bool, data: bool) -> None:
    """fi_msg(3), fi_tagged(3): what each call sends, and how each side completes."""
    tagged = name.startswith("t")
    with talkers() as (sender, receiver, peer):
        payload, room = data_of(40), np.zeros(64, np.uint8)
        recv(receiver, tagged, room, "r")
        call(sender, payload, peer)
        (entry,) = receiver.wait()
        flags = of_kind(tagged) | fi.RECV | (fi.REMOTE_CQ_DATA if data else 0)
        assert (entry.op_context, entry.flags, entry.len) == ("r", flags, 40)
        assert entry.data == (0x77 if data else 0)
        assert entry.tag == (TAG if tagged else 0)
        assert np.array_equal(room[:40], payload)
        assert not room[40:].any()
        if completes:
            (sent,) = sender.wait()
            assert (sent.op_context, sent.flags, sent.len) == ("s", of_kind(tagged) | fi.SEND, sent_len(40))
        assert nothing(sender)
        assert nothing(receiver)


@receive_calls
@pytest.mark.parametrize("first", ["receive", "message"])
def test_every_call_that_receives_takes_the_message(name: str, first: str) -> None:
    """A message finds a posted receive, or a receive finds a message that has arrived: the result is the same."""
    call: Receive = RECEIVES[name]
    with talkers() as (sender, receiver, peer):
        payload, room = data_of(48), np.zeros(64, np.uint8)
        if first == "receive":
            call(receiver, room)
        send(sender, name.startswith("t"), payload, peer)
        sender.wait()
        if first == "message":
            call(receiver, room)
        (entry,) = receiver.wait()
        assert (entry.op_context, entry.len) == ("r", 48)
        assert np.array_equal(room[:48], payload)
        assert not room[48:].any()


@kinds
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("first", ["receive", "message"])
def test_messages_of_every_length_arrive(length: int, first: str, tagged: bool) -> None:
    with talkers() as duo:
        check_arrival(duo, tagged, first, length, sent_len(length))


@kinds
def test_endpoint_sends_to_itself(tagged: bool) -> None:
    with alone() as node:
        for length in LENGTHS:
            payload, room = data_of(length), np.zeros(length, np.uint8)
            recv(node, tagged, room, "r")
            send(node, tagged, payload, node.me, "s")
            assert {entry.op_context for entry in node.wait(2)} == {"r", "s"}
            assert np.array_equal(room, payload)


@kinds
def test_message_without_a_buffer_meets_a_receive_without_one(tagged: bool) -> None:
    """fi_msg(3): a length of 0 is legal, and the buffer may then be NULL."""
    with talkers() as (sender, receiver, peer):
        recv(receiver, tagged, None, "r")
        send(sender, tagged, None, peer, "s")
        (entry,) = receiver.wait()
        assert (entry.op_context, entry.len) == ("r", 0)
        sender.wait()
        sendmsg(sender, tagged, None, peer, int(fi.REMOTE_CQ_DATA | fi.COMPLETION), data=9)
        recvmsg(receiver, tagged, None, int(fi.COMPLETION))
        (entry,) = receiver.wait()
        assert entry.data == 9


@kinds
def test_len_shortens_a_buffer(tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        room = np.zeros(16, np.uint8)
        recv(receiver, tagged, room, len=12)
        send(sender, tagged, data_of(16), peer, len=10)
        assert receiver.wait()[0].len == 10
        assert not room[10:].any()


# ---- order -----------------------------------------------------------------------------------------------------------


@kinds
def test_messages_of_one_sender_arrive_in_order_whatever_their_lengths(tagged: bool) -> None:
    """fi_endpoint(3) FI_ORDER_SAS: sends are received in the order of posting, under every mix of protocols."""
    with talkers() as (sender, receiver, peer):
        lengths = [8, 40_000, 0, 200, 17_000, 8, 8, 1000, 65_000, 4] * 3
        payloads = [data_of(n, seed=i) for i, n in enumerate(lengths)]
        rooms = [np.zeros(70_000, np.uint8) for _ in lengths]
        for i, payload in enumerate(payloads):
            if i % 2:
                recv(receiver, tagged, rooms[i // 2], i // 2)
            send(sender, tagged, payload, peer, i)
        for i in range(len(lengths) // 2, len(lengths)):
            recv(receiver, tagged, rooms[i], i)
        entries = receiver.wait(len(lengths))
        assert {e.op_context: e.len for e in entries} == dict(enumerate(lengths))
        for payload, room in zip(payloads, rooms, strict=True):
            assert np.array_equal(room[: len(payload)], payload)
        assert {e.op_context for e in sender.wait(len(lengths))} == set(range(len(lengths)))


# ---- truncation, cancel ----------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("length", [100, 10_000, 100_000])
@pytest.mark.parametrize("first", ["receive", "message"])
def test_message_longer_than_its_receive_is_cut(length: int, first: str, tagged: bool) -> None:
    """fi_cq(3) FI_ETRUNC: len is the bytes stored, olen the bytes that did not fit; the sender succeeds."""
    with talkers() as duo:
        check_truncation(duo, tagged, first, length)


@kinds
def test_cancel_ends_a_receive(tagged: bool) -> None:
    """fi_endpoint(3) fi_cancel: the oldest receive of the context completes as canceled, and takes no message."""
    with talkers() as (sender, receiver, peer):
        first, second = np.zeros(8, np.uint8), np.zeros(8, np.uint8)
        recv(receiver, tagged, first, "one")
        recv(receiver, tagged, second, "two")
        receiver.ep.cancel("one")
        entry = refused(receiver)
        assert (entry.op_context, entry.err) == ("one", fi.ECANCELED)
        assert entry.flags == of_kind(tagged) | fi.RECV
        send(sender, tagged, data_of(8), peer)
        assert receiver.wait()[0].op_context == "two"
        assert not first.any()
        with pytest.raises(fi.NotFound):
            receiver.ep.cancel("one")


def test_closing_an_endpoint_discards_its_receives_and_messages() -> None:
    with talkers() as (sender, receiver, peer):
        room = bytearray(8)
        receiver.ep.trecv(room, tag=1)
        sender.ep.tsend(b"12345678", None, peer, 2)
        sender.wait()
        receiver.ep.close()
        room.extend(b"the buffer is free")  # a BufferError if the receive still held it
        assert nothing(receiver)


# ---- sources ---------------------------------------------------------------------------------------------------------


@kinds
def test_directed_receive_takes_messages_of_its_source_alone(tagged: bool) -> None:
    """fi_getinfo(3) FI_DIRECTED_RECV: the source is a part of the match."""
    with talkers(CAPS | fi.DIRECTED_RECV) as (sender, receiver, peer):
        here, there = receiver.me, receiver.av.insert(sender.name)
        rooms = {who: np.zeros(8, np.uint8) for who in ("there", "any")}
        if tagged:
            receiver.ep.trecv(rooms["there"], None, there, TAG, 0, "there")
            receiver.ep.trecv(rooms["any"], None, fi.ADDR_UNSPEC, TAG, 0, "any")
        else:
            receiver.ep.recv(rooms["there"], None, there, "there")
            receiver.ep.recv(rooms["any"], None, fi.ADDR_UNSPEC, "any")
        send(receiver, tagged, b"from me!", here, "mine")  # posted later, and must not take the first receive
        assert {e.op_context for e in receiver.wait(2)} == {"any", "mine"}
        send(sender, tagged, b"from you", peer)
        assert receiver.wait()[0].op_context == "there"
        assert bytes(rooms["any"]) == b"from me!"
        assert bytes(rooms["there"]) == b"from you"


def test_source_of_a_receive_is_ignored_without_directed_receives() -> None:
    with talkers() as (sender, receiver, peer):
        room = bytearray(8)
        receiver.ep.recv(room, None, receiver.me)  # the message is from another endpoint
        sender.ep.send(b"12345678", None, peer)
        receiver.wait()
        assert bytes(room) == b"12345678"


@kinds
def test_completion_tells_the_source(tagged: bool) -> None:
    """fi_cq(3) fi_cq_readfrom, fi_getinfo(3) FI_SOURCE: FI_ADDR_NOTAVAIL for a sender that is in no vector."""
    with talkers(CAPS | fi.SOURCE) as (sender, receiver, peer):
        room = bytearray(8)
        recv(receiver, tagged, room)
        send(sender, tagged, b"12345678", peer)
        ((_, source),) = receiver.cq.sreadfrom(1, timeout=WATCHDOG_S)
        assert source == fi.ADDR_NOTAVAIL
        known = receiver.av.insert(sender.name)
        recv(receiver, tagged, room)
        send(sender, tagged, b"12345678", peer)
        ((_, source),) = receiver.cq.sreadfrom(1, timeout=WATCHDOG_S)
        assert source == known


@kinds
def test_source_is_not_told_without_the_capability(tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        receiver.av.insert(sender.name)
        recv(receiver, tagged, bytearray(8))
        send(sender, tagged, b"12345678", peer)
        ((_, source),) = receiver.cq.sreadfrom(1, timeout=WATCHDOG_S)
        assert source == fi.ADDR_NOTAVAIL


@kinds
def test_unknown_source_is_an_error_with_its_address_under_source_err(tagged: bool) -> None:
    """fi_getinfo(3) FI_SOURCE_ERR: the entry is FI_EADDRNOTAVAIL, err_data the address, to be inserted and used."""
    with talkers(CAPS | fi.SOURCE | fi.SOURCE_ERR) as (sender, receiver, peer):
        room = bytearray(8)
        recv(receiver, tagged, room, "r")
        send(sender, tagged, b"12345678", peer)
        entry = refused(receiver)
        assert (entry.op_context, entry.err, entry.len) == ("r", fi.EADDRNOTAVAIL, 8)
        assert bytes(room) == b"12345678"
        known = receiver.av.insert(entry.err_data.decode())
        assert receiver.av.lookup(known) == sender.name


# ---- completions and counters ----------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("format", [fi.CQ_FORMAT_CONTEXT, fi.CQ_FORMAT_MSG, fi.CQ_FORMAT_DATA, fi.CQ_FORMAT_TAGGED])
def test_entry_of_a_receive_in_every_format(format: int, tagged: bool) -> None:
    with talkers(format=format) as (sender, receiver, peer):
        room = np.zeros(16, np.uint8)
        recv(receiver, tagged, room, "r")
        sendmsg(sender, tagged, data_of(12), peer, int(fi.REMOTE_CQ_DATA | fi.COMPLETION), data=3)
        (entry,) = receiver.wait()
        flags = int(of_kind(tagged) | fi.RECV | fi.REMOTE_CQ_DATA)
        expected = ("r", flags, 12, room.ctypes.data, 3, TAG if tagged else 0)
        counts = {fi.CQ_FORMAT_CONTEXT: 1, fi.CQ_FORMAT_MSG: 3, fi.CQ_FORMAT_DATA: 5, fi.CQ_FORMAT_TAGGED: 6}
        assert tuple(entry) == expected[: counts[fi.CqFormat(format)]]


@kinds
def test_counters_count_sends_and_receives(tagged: bool) -> None:
    """fi_cntr(3): FI_SEND and FI_RECV count, also where no completion is reported."""
    counters: dict[int, Any] = {int(fi.SEND): None, int(fi.RECV): None}
    with alone(counters=counters, cq_flags=int(fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION)) as node:
        for _ in range(3):
            recv(node, tagged, bytearray(8))
            send(node, tagged, b"12345678", node.me)
        if tagged:
            node.ep.tinject(b"1", node.me, TAG)
        else:
            node.ep.inject(b"1", node.me)
        recv(node, tagged, bytearray(8))
        for flag in counters:
            counters[flag].wait(4, timeout=WATCHDOG_S)
            assert counters[flag].read() == 4
        assert nothing(node)


@kinds
def test_receive_reports_its_completion_if_it_asks(tagged: bool) -> None:
    """fi_endpoint(3) FI_SELECTIVE_COMPLETION: only receives with FI_COMPLETION are reported."""
    counters: dict[int, Any] = {int(fi.RECV): None}
    with alone(counters=counters, cq_flags=int(fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION)) as node:
        recvmsg(node, tagged, bytearray(8), 0, "quiet")
        recvmsg(node, tagged, bytearray(8), int(fi.COMPLETION), "told")
        for _ in range(2):
            send(node, tagged, b"12345678", node.me)
        counters[int(fi.RECV)].wait(2, timeout=WATCHDOG_S)
        assert [entry.op_context for entry in node.wait()] == ["told"]
        assert nothing(node)


def test_receive_needs_a_completion_queue() -> None:
    """fi_endpoint(3) fi_enable: FI_ENOCQ if no queue is bound for a direction that the endpoint has."""
    with (
        alone(cq_flags=int(fi.TRANSMIT), enable=False) as node,
        pytest.raises(fi.NoCq, match="no completion queue is bound for RECV"),
    ):
        node.ep.enable()


def test_sender_alone_needs_no_receive_queue() -> None:
    with alone(fi.MSG | fi.SEND, cq_flags=int(fi.TRANSMIT)) as node:
        assert node.ep.enabled


@kinds
def test_match_complete_waits_for_the_receive(tagged: bool) -> None:
    """fi_endpoint(3) FI_MATCH_COMPLETE: the send completes when a receive has taken the message."""
    with talkers() as (sender, receiver, peer):
        sendmsg(sender, tagged, b"12345678", peer, int(fi.MATCH_COMPLETE | fi.COMPLETION), "s")
        send(sender, tagged, b"abcdefgh", peer, "later")  # arrives behind the first
        assert [entry.op_context for entry in sender.wait()] == ["later"]
        assert nothing(sender)
        recv(receiver, tagged, bytearray(8))
        receiver.wait()
        assert [entry.op_context for entry in sender.wait()] == ["s"]


# ---- buffers ---------------------------------------------------------------------------------------------------------


@pytest.mark.clause(
    "mr.default.send-unregistered",
    "mr.default.tsend-unregistered",
    "mr.default.recv-unregistered",
    "mr.default.trecv-unregistered",
)
@kinds
@pytest.mark.parametrize("length", [8, 100_000])
def test_unregistered_buffers_serve_messages_under_default_rules(length: int, tagged: bool) -> None:
    """fi_mr(3) "Default Memory Registration": local buffers need no registration."""
    with talkers() as (sender, receiver, peer):
        assert not sender.info.domain_attr.mr_mode & fi.MR_LOCAL
        payload, room = bytes(data_of(length)), bytearray(length)
        recv(receiver, tagged, room)
        send(sender, tagged, payload, peer)
        receiver.wait()
        assert not sender.domain.regions()
        assert not receiver.domain.regions()
        assert room == payload


@kinds
def test_receive_holds_its_buffer_until_its_completion_is_read(tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        room = bytearray(8)
        recv(receiver, tagged, room)
        with pytest.raises(BufferError):
            room.extend(b"1")
        send(sender, tagged, b"12345678", peer)
        receiver.wait()
        receiver.cq.read()
        room.extend(b"1")


@kinds
def test_buffer_may_be_changed_after_a_completion_and_after_inject(tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        payload = np.full(64, 7, np.uint8)
        sendmsg(sender, tagged, payload, peer, int(fi.INJECT | fi.COMPLETION))
        payload.fill(8)
        send(sender, tagged, payload, peer)
        sender.wait(2)
        payload.fill(9)
        for value in (7, 8):
            room = np.zeros(64, np.uint8)
            recv(receiver, tagged, room)
            receiver.wait()
            assert (room == value).all()


# ---- aliases, connected endpoints ------------------------------------------------------------------------------------


@send_calls
def test_alias_sends_with_its_own_flags(name: str, call: Send, completes: bool, data: bool) -> None:
    tagged = name.startswith("t")
    with talkers() as (sender, receiver, peer), sender.ep.alias(fi.TRANSMIT | fi.DELIVERY_COMPLETE) as alias:
        room = np.zeros(64, np.uint8)
        recv(receiver, tagged, room)

        class Through:
            ep = alias

        payload = data_of(40)
        call(Through, payload, peer)  # type: ignore[arg-type]
        assert receiver.wait()[0].len == 40
        assert np.array_equal(room[:40], payload)
        if completes:
            sender.wait()


@receive_calls
def test_alias_receives(name: str) -> None:
    with talkers() as (sender, receiver, peer), receiver.ep.alias(fi.RECV) as alias:

        class Through:
            ep = alias

        room = np.zeros(64, np.uint8)
        RECEIVES[name](Through, room)  # type: ignore[arg-type]
        send(sender, name.startswith("t"), data_of(40), peer)
        (entry,) = receiver.wait()
        assert (entry.op_context, entry.len) == ("r", 40)


@pytest.mark.parametrize("method", ["send", "recv", "tsend", "trecv"])
def test_flags_set_later_are_used(method: str) -> None:
    """fi_endpoint(3) FI_SETOPSFLAG: with selective completion the new default decides the reports."""
    with alone(cq_flags=int(fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION)) as node:
        side = fi.RECV if "recv" in method else fi.TRANSMIT
        node.ep.control(fi.SETOPSFLAG, int(side | fi.COMPLETION))
        tagged = method.startswith("t")
        recv(node, tagged, bytearray(8), "recv")
        send(node, tagged, b"12345678", node.me, "send")
        assert [entry.op_context for entry in node.wait()] == [method.removeprefix("t")]


def test_more_receives_than_the_queue_holds_are_refused() -> None:
    """fi_endpoint(3) rx_attr.size: receives at a time."""

    def few(info: fi.Info) -> None:
        info.rx_attr.size = 4

    with alone(edit=few) as node:
        for i in range(4):
            node.ep.trecv(bytearray(8), tag=i)
        with pytest.raises(fi.Again, match=r"larger rx_attr\.size"):
            node.ep.trecv(bytearray(8), tag=4)
        node.ep.tsend(b"12345678", None, node.me, 2)
        node.wait(2)
        node.ep.trecv(bytearray(8), tag=4)


@kinds
def test_message_to_an_endpoint_that_has_closed_fails(tagged: bool) -> None:
    """Credited messages have no answer, so the sender looks at the endpoint itself."""
    with alone() as sender, contextlib.ExitStack() as stack:
        receiver = stack.enter_context(alone())
        peer = sender.av.insert(receiver.name)
        for _ in range(4):
            recv(receiver, tagged, bytearray(8))
            send(sender, tagged, b"12345678", peer)
            sender.wait(), receiver.wait()
        stack.close()
        send(sender, tagged, b"12345678", peer)
        assert refused(sender).err == fi.ECONNREFUSED
