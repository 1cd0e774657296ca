"""Messages of FI_PROTO_CXI: protocols by length, limits, entries of completions (fi_cxi(7) "Messaging")."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import BOTH, opened
from tests.fi.msg_support import (
    LENGTHS,
    TAG,
    check_arrival,
    data_of,
    kinds,
    nothing,
    of_kind,
    recv,
    recvmsg,
    refused,
    send,
    sendmsg,
)
from tests.fi.support import Node

from weft import fi
from weft.providers.cxi import messages

CAPS = fi.MSG | fi.TAGGED
EAGER_MAX = 2048 + 2049  # FI_CXI_RDZV_THRESHOLD and FI_CXI_RDZV_GET_MIN of the document's releases


@contextlib.contextmanager
def talkers(caps: int = CAPS, **more: Any) -> Iterator[tuple[Node, Node, int]]:
    """(sender, receiver, fi_addr of the receiver)."""
    with opened(int(caps), **more) as receiver, opened(int(caps), **more) as sender:
        yield sender, receiver, sender.av.insert(receiver.name)


@pytest.mark.clause("cxi.xfer.msg", "cxi.xfer.tagged")
@kinds
@pytest.mark.parametrize("length", [*LENGTHS, EAGER_MAX, EAGER_MAX + 1])
@pytest.mark.parametrize("first", ["receive", "message"])
def test_messages_pass_between_endpoints(length: int, first: str, tagged: bool) -> None:
    """fi_cxi(7) "Data transfer operations": FI_MSG and FI_TAGGED."""
    with talkers() as duo:
        assert duo[0].info.caps & CAPS == CAPS
        check_arrival(duo, tagged, first, length, 0)


@pytest.mark.clause("cxi.msg.unexpected", "cxi.msg.unexpected-transparent")
@kinds
@pytest.mark.parametrize("length", [0, 8, 1000, 100_000])
def test_unexpected_message_gives_the_same_entry_and_bytes_as_an_expected_one(length: int, tagged: bool) -> None:
    """fi_cxi(7) "Unexpected Messages": buffered by the provider, without the client's knowledge."""
    found = []
    with talkers() as (sender, receiver, peer):
        payload = data_of(length)
        for expected in (True, False):
            room = np.zeros(length, np.uint8)
            if expected:
                recv(receiver, tagged, room, "r")
            flags = int(fi.REMOTE_CQ_DATA | fi.COMPLETION)
            sendmsg(sender, tagged, payload, peer, flags, data=7)
            if not expected:
                if length < EAGER_MAX:
                    sender.wait()  # it has arrived
                recv(receiver, tagged, room, "r")
            found.append((receiver.wait(), bytes(room)))
    assert found[0] == found[1]
    assert found[0][1] == bytes(payload)


# ---- protocols -------------------------------------------------------------------------------------------------------


def completes_alone(sender: Node, tagged: bool, length: int, peer: int, expected: bool) -> bool:
    """Whether a send completes before its receive is posted. A busy machine may take its time, if it is expected to."""
    send(sender, tagged, data_of(length), peer, "s")
    if expected:
        return bool(sender.wait())
    return any(sender.cq.read() for _ in range(200))


@pytest.mark.clause("cxi.msg.protocol-by-length", "cxi.msg.eager-short", "cxi.msg.rdzv-long", "cxi.msg.rdzv-completion")
@kinds
@pytest.mark.parametrize(("length", "eager"), [(EAGER_MAX, True), (EAGER_MAX + 1, False)])
def test_send_of_a_long_message_waits_for_its_receive(length: int, eager: bool, tagged: bool) -> None:
    """fi_cxi(7) "Rendezvous Messages": the Send completes when a receive was matched, and the Get has read."""
    with talkers() as (sender, receiver, peer):
        assert completes_alone(sender, tagged, length, peer, eager) == eager
        room = np.zeros(length, np.uint8)
        recv(receiver, tagged, room)
        receiver.wait()
        assert np.array_equal(room, data_of(length))
        if not eager:
            assert sender.wait()[0].op_context == "s"


@pytest.mark.clause("cxi.msg.rdzv-threshold", "cxi.msg.rdzv-get-min")
@kinds
@pytest.mark.parametrize(
    ("threshold", "get_min", "eager_max"), [("192", "0", 192), ("192", "1000", 1192), ("8192", "0", 8192)]
)
def test_environment_sets_where_rendezvous_begins(
    monkeypatch: pytest.MonkeyPatch, threshold: str, get_min: str, eager_max: int, tagged: bool
) -> None:
    monkeypatch.setenv("FI_CXI_RDZV_THRESHOLD", threshold)
    monkeypatch.setenv("FI_CXI_RDZV_GET_MIN", get_min)
    with talkers() as (sender, receiver, peer):
        assert completes_alone(sender, tagged, eager_max, peer, True)
        assert not completes_alone(sender, tagged, eager_max + 1, peer, False)
        for _ in range(2):
            recv(receiver, tagged, bytearray(eager_max + 1))
        receiver.wait(2)
        sender.wait()


@pytest.mark.clause("cxi.msg.rdzv-source-held")
@kinds
def test_source_of_a_long_message_is_in_use_until_it_was_pulled(tagged: bool) -> None:
    """fi_cxi(7): the source buffer stays in use until the Get has read it: its bytes are those at the match."""
    with talkers() as (sender, receiver, peer):
        payload = bytearray(data_of(100_000))
        send(sender, tagged, payload, peer)
        with pytest.raises(BufferError):
            payload.extend(b"1")  # the operation still exports it
        payload[50_000] ^= 0xFF
        room = bytearray(100_000)
        recv(receiver, tagged, room)
        receiver.wait()
        assert room == payload
        sender.wait()


@pytest.mark.clause("cxi.msg.rdzv-ids-msg")
def test_untagged_rendezvous_messages_have_256_ids() -> None:
    """fi_cxi(7): 256 FI_MSG rendezvous messages may be unmatched; the next one has to be retried."""
    with talkers() as (sender, receiver, peer):
        payload, room = data_of(5000), bytearray(5000)
        for _ in range(256):
            sender.ep.send(payload, None, peer)
        with pytest.raises(fi.Again, match="wait to be pulled"):
            sender.ep.send(payload, None, peer)
        sender.ep.send(payload[:100], None, peer)  # an eager message needs no ID
        sender.ep.tsend(payload, None, peer, 1)  # tagged messages have IDs of their own
        receiver.ep.recv(room)
        receiver.wait()
        sender.wait(2)
        sender.ep.send(payload, None, peer)


@pytest.mark.clause("cxi.msg.rdzv-outstanding")
def test_rendezvous_messages_under_way_are_limited_by_the_tx_size() -> None:
    def few(info: fi.Info) -> None:
        info.tx_attr.size = 16

    with talkers(edit=few) as (sender, receiver, peer):
        for i in range(16):
            sender.ep.tsend(data_of(5000), None, peer, i)
        with pytest.raises(fi.Again):
            sender.ep.tsend(data_of(5000), None, peer, 16)
        receiver.ep.trecv(bytearray(5000), tag=3)
        receiver.wait()
        sender.wait()
        sender.ep.tsend(data_of(5000), None, peer, 16)


@pytest.mark.clause("cxi.op.match-complete")
@kinds
def test_match_complete_send_completes_at_the_match(tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        sendmsg(sender, tagged, b"12345678", peer, int(fi.MATCH_COMPLETE | fi.COMPLETION), "matched")
        send(sender, tagged, b"abcdefgh", peer, "later")
        assert [entry.op_context for entry in sender.wait()] == ["later"]
        assert nothing(sender)
        recv(receiver, tagged, bytearray(8))
        receiver.wait()
        assert [entry.op_context for entry in sender.wait()] == ["matched"]


# ---- entries ---------------------------------------------------------------------------------------------------------


@kinds
def test_entries_of_sends_have_flags_alone(tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        recv(receiver, tagged, bytearray(8))
        sendmsg(sender, tagged, b"12345678", peer, int(fi.REMOTE_CQ_DATA | fi.COMPLETION), "s", data=7)
        (entry,) = sender.wait()
        assert tuple(entry) == ("s", of_kind(tagged) | fi.SEND, 0, 0, 0, 0)


@kinds
def test_entries_of_receives_have_no_buffer_but_those_of_several_messages(tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        room = np.zeros(256, np.uint8)
        recv(receiver, tagged, room, "r")
        send(sender, tagged, b"12345678", peer)
        (entry,) = receiver.wait()
        assert tuple(entry) == ("r", of_kind(tagged) | fi.RECV, 8, 0, 0, TAG if tagged else 0)
        if not tagged:
            recvmsg(receiver, False, room, int(fi.MULTI_RECV | fi.COMPLETION), "m")
            for _ in range(2):
                send(sender, False, b"12345678", peer)
            assert [entry.buf - room.ctypes.data for entry in receiver.wait(2)] == [0, 8]


def test_multi_recv_has_no_effect_on_tagged_receives() -> None:
    with talkers() as (sender, receiver, peer):
        for context in ("one", "two"):
            recvmsg(receiver, True, bytearray(256), int(fi.MULTI_RECV | fi.COMPLETION), context)
        for _ in range(2):
            sender.ep.tinject(b"12345678", peer, TAG)
        assert [entry.op_context for entry in receiver.wait(2)] == ["one", "two"]


def test_min_multi_recv_is_64_bytes_and_can_be_set() -> None:
    with talkers() as (sender, receiver, peer):
        receiver.ep.setopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV, 26)
        recvmsg(receiver, False, bytearray(100), int(fi.MULTI_RECV | fi.COMPLETION), "m")
        for _ in range(2):
            sender.ep.inject(b"x" * 37, peer)  # 63 are left, then 26
        for _ in range(1):
            sender.ep.inject(b"x" * 1, peer)  # 25 are left
        entries = receiver.wait(3)
        assert [bool(entry.flags & fi.MULTI_RECV) for entry in entries] == [False, False, True]


@kinds
def test_data_without_its_flag_is_not_delivered(tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        recv(receiver, tagged, bytearray(8))
        sendmsg(sender, tagged, b"12345678", peer, int(fi.COMPLETION), data=7)
        (entry,) = receiver.wait()
        assert (entry.data, entry.flags & fi.REMOTE_CQ_DATA) == (0, 0)


@kinds
def test_message_longer_than_its_receive_is_cut(tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        recv(receiver, tagged, bytearray(60), "r")
        send(sender, tagged, data_of(5000), peer, "s")
        entry = refused(receiver)
        assert (entry.err, entry.prov_errno, entry.len, entry.olen) == (fi.ETRUNC, 1, 60, 4940)
        sender.wait()


# ---- limits and refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda n: n.ep.tsend(b"1", None, n.me, 1 << 48), fi.EINVAL),
        (lambda n: n.ep.trecv(bytearray(1), tag=1 << 48), fi.EINVAL),
        (lambda n: n.ep.trecv(bytearray(1), tag=1, ignore=1 << 48), fi.EINVAL),
        (lambda n: n.ep.sendv([b"1", b"2"], None, n.me), fi.EINVAL),
        (lambda n: n.ep.recvv([bytearray(1), bytearray(1)]), fi.EINVAL),
        (lambda n: n.ep.send(b"1", None, 99), fi.EINVAL),
        (lambda n: n.ep.inject(bytes(193), n.me), fi.EMSGSIZE),
        (lambda n: n.ep.tinject(bytes(193), n.me, 1), fi.EMSGSIZE),
        (lambda n: sendmsg(n, False, bytes(193), n.me, int(fi.INJECT)), fi.EMSGSIZE),
        (lambda n: sendmsg(n, True, b"1", n.me, int(fi.FENCE)), fi.EINVAL),  # without the capability
        (lambda n: sendmsg(n, True, b"1", n.me, int(fi.COMMIT_COMPLETE)), fi.EBADFLAGS),
        (lambda n: recvmsg(n, True, bytearray(1), int(fi.PEEK | fi.DISCARD), object()), fi.EBADFLAGS),
        (lambda n: recvmsg(n, True, bytearray(1), int(fi.CLAIM | fi.DISCARD), object()), fi.EBADFLAGS),
        (lambda n: recvmsg(n, False, None, int(fi.PEEK)), fi.EBADFLAGS),
        (lambda n: recvmsg(n, False, None, int(fi.CLAIM), object()), fi.EBADFLAGS),
        (lambda n: recvmsg(n, True, None, int(fi.PEEK | fi.CLAIM)), fi.EINVAL),  # without a context
        (lambda n: recvmsg(n, True, None, int(fi.CLAIM), object()), fi.EINVAL),  # nothing was claimed
    ],
)
def test_call_outside_of_the_limits_is_refused(call: Callable[[Node], None], error: int) -> None:
    with opened(int(CAPS)) as node:
        with pytest.raises(fi.FabricError) as caught:
            call(node)
        assert caught.value.errno == error
        assert nothing(node)


def test_receives_take_flags_of_sends_without_effect() -> None:
    with opened(int(CAPS)) as node:
        for tagged in (False, True):
            recvmsg(node, tagged, bytearray(8), int(fi.REMOTE_CQ_DATA | fi.INJECT | fi.COMPLETION))
            send(node, tagged, b"12345678", node.me)
        assert len(node.wait(4)) == 4


@pytest.mark.parametrize("tag", [0, (1 << 48) - 1])
def test_tags_have_48_bits(tag: int) -> None:
    with opened(int(CAPS)) as node:
        node.ep.trecv(bytearray(1), tag=tag, ignore=(1 << 48) - 1)
        node.ep.tsend(b"1", None, node.me, tag)
        assert {entry.tag for entry in node.wait(2)} == {0, tag}


def test_peek_and_claim_of_tagged_messages() -> None:
    with talkers() as (sender, receiver, peer):
        recvmsg(receiver, True, None, int(fi.PEEK), "miss")
        entry = refused(receiver)
        assert (entry.err, entry.flags, entry.len, entry.olen, entry.tag) == (
            fi.ENOMSG, fi.TAGGED | fi.RECV, 0, 0, TAG,
        )  # fmt: skip
        sender.ep.tsend(data_of(1000), None, peer, TAG)
        sender.wait()
        context, room = object(), np.zeros(600, np.uint8)
        recvmsg(receiver, True, None, int(fi.PEEK | fi.CLAIM), context)
        (entry,) = receiver.wait()
        assert (entry.len, entry.tag) == (1000, TAG)
        recvmsg(receiver, True, room, int(fi.CLAIM), context)
        entry = refused(receiver)  # the buffer may be shorter
        assert (entry.err, entry.len, entry.olen) == (fi.ETRUNC, 600, 400)


@kinds
def test_receive_is_cancelled_and_a_send_is_not(tagged: bool) -> None:
    """One call cancels one receive, the oldest; sends of FI_PROTO_CXI cannot be cancelled."""
    with talkers() as (sender, receiver, peer):
        for _ in range(2):
            recv(receiver, tagged, bytearray(8), "r")
        receiver.ep.cancel("r")
        entry = refused(receiver)
        assert (entry.op_context, entry.err, entry.prov_errno) == ("r", fi.ECANCELED, 0)
        assert entry.flags == of_kind(tagged) | fi.RECV
        assert nothing(receiver)
        receiver.ep.cancel("r")
        assert refused(receiver).err == fi.ECANCELED
        with pytest.raises(fi.NotFound):
            receiver.ep.cancel("r")
        send(sender, tagged, data_of(100_000), peer, "s")
        with pytest.raises(fi.NotFound):
            sender.ep.cancel("s")


def test_directed_receive_tells_senders_apart() -> None:
    with talkers(CAPS | fi.DIRECTED_RECV) as (sender, receiver, peer):
        there = receiver.av.insert(sender.name)
        receiver.ep.trecv(bytearray(8), None, receiver.me, TAG, 0, "mine")
        receiver.ep.trecv(bytearray(8), None, there, TAG, 0, "theirs")
        sender.ep.tsend(b"12345678", None, peer, TAG)
        assert receiver.wait()[0].op_context == "theirs"
        with pytest.raises(fi.InvalidArgument):
            receiver.ep.trecv(bytearray(8), None, 99, TAG)


@kinds
def test_unknown_sender_is_an_error_with_its_address(tagged: bool) -> None:
    """fi_cxi(7) FI_SOURCE_ERR: err_data is the 8-byte address of the sender."""
    with talkers(CAPS | fi.SOURCE | fi.SOURCE_ERR) as (sender, receiver, peer):
        recv(receiver, tagged, bytearray(8), "r")
        send(sender, tagged, b"12345678", peer)
        entry = refused(receiver)
        assert (entry.err, entry.len) == (fi.EADDRNOTAVAIL, 8)
        assert entry.err_data == bytes(sender.name)


@kinds
def test_messages_need_a_receive_queue_and_complete_by_selection(tagged: bool) -> None:
    with talkers(cq_flags=int(BOTH | fi.SELECTIVE_COMPLETION)) as (sender, receiver, peer):
        recv(receiver, tagged, bytearray(8), "quiet")
        recvmsg(receiver, tagged, bytearray(8), int(fi.COMPLETION), "told")
        send(sender, tagged, b"12345678", peer, "quiet")
        sendmsg(sender, tagged, b"12345678", peer, int(fi.COMPLETION), "told")
        assert [entry.op_context for entry in receiver.wait()] == ["told"]
        assert [entry.op_context for entry in sender.wait()] == ["told"]


def test_flood_without_receives_stops_the_sender_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "UNEXPECTED_BYTES", 6 << 20)
    with talkers() as (sender, receiver, peer):
        payload, room = np.zeros(4000, np.uint8), np.zeros(4000, np.uint8)
        sent, ended = 0, 0
        while not sender.ep.message_statistics().stopped:
            payload[:8].view(np.uint64)[0] = sent
            with contextlib.suppress(fi.Again):
                sender.ep.tsend(payload.copy(), None, peer, TAG)
                sent += 1
            ended += len(sender.cq.read())
        assert 1000 < sent < 3000  # 6 MiB of messages, and the messages that wait at the sender
        for i in range(sent):
            recv(receiver, True, room)
            assert receiver.wait()[0].len == 4000
            assert room[:8].view(np.uint64)[0] == i
            ended += len(sender.cq.read())
        while ended < sent:
            ended += len(sender.cq.read())
