"""Messages of FI_PROTO_CXI_RNR: none is kept without a receive, its sender tries again (fi_cxi(7) "Messaging")."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import pytest
from tests.cxi.match_support import of_service, service_with
from tests.cxi.support import opened
from tests.fi.msg_support import TAG, data_of, kinds, nothing, of_kind, recv, recvmsg, refused, send
from tests.fi.support import WATCHDOG_S, Node
from tests.patience import Patience

from weft import cxi, fi

CAPS = int(fi.MSG | fi.TAGGED)
LONG = 200_000


@contextlib.contextmanager
def talkers(*, patient: bool = True) -> Iterator[tuple[Node, Node, int]]:
    """(sender, receiver, fi_addr of the receiver). patient: the sender tries for a minute, however busy the machine."""
    with opened(CAPS, protocol=fi.PROTO_CXI_RNR) as receiver, opened(CAPS, protocol=fi.PROTO_CXI_RNR) as sender:
        if patient:
            sender.ep.set_val(cxi.OPT_CXI_SET_RNR_MAX_RETRY_TIME, 60_000_000)
        yield sender, receiver, sender.av.insert(receiver.name)


def tries(node: Node) -> None:
    """Lets a message reach the receiver, and its refusal come back."""
    for _ in range(200):
        assert nothing(node)


@pytest.mark.clause("cxi.proto.rnr-retry")
@kinds
@pytest.mark.parametrize("length", [0, 8, 3000, LONG])
def test_message_is_tried_again_until_a_receive_is_posted(length: int, tagged: bool) -> None:
    with talkers() as (sender, receiver, peer):
        payload, room = data_of(length), np.zeros(length, np.uint8)
        send(sender, tagged, payload, peer, "s")
        tries(sender)
        recv(receiver, tagged, room, "r")
        (entry,) = receiver.wait()
        assert (entry.op_context, entry.flags, entry.len) == ("r", int(fi.RECV) | of_kind(tagged), length)
        assert np.array_equal(room, payload)
        assert sender.wait()[0].op_context == "s"


@pytest.mark.clause("cxi.proto.rnr-order")
def test_message_that_finds_its_receive_passes_one_that_does_not() -> None:
    with talkers() as (sender, receiver, peer):
        room = np.zeros(8, np.uint8)
        send(sender, True, b"1" * 8, peer, "first", tag=1)
        send(sender, True, b"2" * 8, peer, "second", tag=2)
        recv(receiver, True, room, tag=2)
        assert receiver.wait()[0].tag == 2
        assert sender.wait()[0].op_context == "second"
        recv(receiver, True, room, tag=1)
        assert sender.wait()[0].op_context == "first"


@pytest.mark.clause("cxi.proto.rnr-timeout", "cxi.env.rnr-max-timeout", "cxi.env.rnr-max-timeout-zero")
@pytest.mark.parametrize("limit_us", ["0", "2000"])
def test_message_without_a_receive_fails_after_the_time_of_the_variable(
    monkeypatch: pytest.MonkeyPatch, limit_us: str
) -> None:
    monkeypatch.setenv("FI_CXI_RNR_MAX_TIMEOUT_US", limit_us)
    with talkers(patient=False) as (sender, _, peer):
        send(sender, True, b"12345678", peer, "s")
        error = refused(sender)
        assert (error.op_context, error.err, error.prov_errno) == ("s", fi.EIO, 18)
        assert b"no receive was posted" in error.err_data


def test_time_of_one_endpoint_is_set_by_its_option() -> None:
    with talkers() as (sender, _, peer):
        sender.ep.set_val(cxi.OPT_CXI_SET_RNR_MAX_RETRY_TIME, 0)
        send(sender, False, b"12345678", peer, "s")
        assert refused(sender).prov_errno == 18


def test_time_of_retries_is_in_microseconds_and_fits_in_nanoseconds() -> None:
    most = (1 << 63) // 1000
    seen: list[int] = []

    class Told:
        set_retry_time = staticmethod(seen.append)

    with talkers() as (sender, _, _):
        for value in (7, most):
            sender.ep.policy.set_val(Told(), cxi.OPT_CXI_SET_RNR_MAX_RETRY_TIME, value)
        assert seen == [7_000, most * 1000]
        for value in (most + 1, -1):
            with pytest.raises(fi.InvalidArgument, match=f"0 to {most}"):
                sender.ep.set_val(cxi.OPT_CXI_SET_RNR_MAX_RETRY_TIME, value)


def test_send_between_two_attempts_is_cancelled() -> None:
    with talkers() as (sender, receiver, peer):
        recv(receiver, True, bytearray(8))
        send(sender, True, b"12345678", peer)  # now the two are connected
        sender.wait(), receiver.wait()
        send(sender, True, b"12345678", peer, "s")
        tries(receiver)
        tries(sender)
        with contextlib.suppress(fi.Available):
            while True:  # an attempt that is under way cannot be cancelled
                sender.ep.cancel("s")
                sender.cq.read()
        error = refused(sender)
        assert (error.err, error.prov_errno) == (fi.ECANCELED, 18)


@pytest.mark.parametrize("tag", [1 << 40, 1 << 47])
def test_tags_have_40_bits(tag: int) -> None:
    with talkers() as (sender, receiver, peer):
        with pytest.raises(fi.InvalidArgument, match="0xffffffffff"):
            send(sender, True, b"1", peer, tag=tag)
        with pytest.raises(fi.InvalidArgument, match="0xffffffffff"):
            recv(receiver, True, bytearray(8), tag=tag)


def test_peek_finds_nothing_and_claim_has_nothing() -> None:
    with talkers() as (sender, receiver, peer):
        send(sender, True, b"12345678", peer)
        tries(sender)
        recvmsg(receiver, True, None, int(fi.PEEK), "p")
        error = refused(receiver)
        assert (error.err, error.tag) == (fi.ENOMSG, TAG)
        with pytest.raises(fi.InvalidArgument):
            recvmsg(receiver, True, bytearray(8), int(fi.CLAIM), "c")


@pytest.mark.clause("cxi.proto.rnr-multi-recv")
def test_buffer_for_several_messages_takes_them() -> None:
    with talkers() as (sender, receiver, peer):
        room = np.zeros(256, np.uint8)
        recvmsg(receiver, False, room, int(fi.MULTI_RECV), "m")
        for i in range(3):
            send(sender, False, bytes([i]) * 32, peer)
        lengths = 0
        while lengths < 96:
            lengths += sum(entry.len for entry in receiver.wait())
        assert sorted(set(room[:96].tolist())) == [0, 1, 2]


@kinds
def test_messages_that_are_tried_again_arrive_once(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random, tagged: bool
) -> None:
    """Of three senders, with receives that come too late and in no order."""
    monkeypatch.setenv("FI_CXI_RNR_MAX_TIMEOUT_US", "600000000")
    count, deadline = 200, Patience(WATCHDOG_S)
    with contextlib.ExitStack() as stack:
        receiver, *senders = [stack.enter_context(opened(CAPS, protocol=fi.PROTO_CXI_RNR)) for _ in range(4)]
        peers = [sender.av.insert(receiver.name) for sender in senders]
        lengths = [rng.choice([8, 8, 100, 1000, 20_000, LONG]) for _ in range(count)]
        posts, found = rng.sample(range(count), count), {}
        for i, length in enumerate(lengths):
            payload = data_of(length, seed=i)
            payload[:4].view(np.uint32)[0] = i
            send(senders[i % 3], tagged, payload, peers[i % 3], i, tag=i)
            while rng.random() < 0.5 and posts:
                recv(receiver, tagged, room := np.zeros(LONG, np.uint8), room, tag=posts.pop())
        while len(found) < count:
            assert not deadline.over, f"{len(found)} of {count} messages came"
            if posts:
                recv(receiver, tagged, room := np.zeros(LONG, np.uint8), room, tag=posts.pop())
            for entry in receiver.cq.read():
                room = entry.op_context
                number = int(room[:4].view(np.uint32)[0])
                assert number not in found
                assert np.array_equal(room[4 : entry.len], data_of(entry.len, seed=number)[4:])
                found[number] = entry.len
            for sender in senders:
                sender.cq.read()
        assert [found[i] for i in range(count)] == lengths
        assert nothing(receiver)


# ---- list entries ------------------------------------------------------------------------------------------------


def attempts(node: Node) -> int:
    return int(node.ep.getopt(fi.OPT_ENDPOINT, cxi.OPT_CXI_GET_RNR_APPEND_RETRY_ATTEMPTS))


def test_receive_without_a_list_entry_is_posted_again_until_there_is_one() -> None:
    """Facts, section 13: the append is retried; OPT_CXI_GET_RNR_APPEND_RETRY_ATTEMPTS counts."""
    with (
        of_service(service_with(4), protocol=fi.PROTO_CXI_RNR) as receiver,
        opened(CAPS, protocol=fi.PROTO_CXI_RNR) as sender,
    ):
        peer = sender.av.insert(receiver.name)
        assert attempts(receiver) == 0
        for tag in range(6):
            receiver.ep.trecv(bytearray(8), tag=tag, context=tag)
        patience = Patience(30)
        while not attempts(receiver):
            assert nothing(receiver)
            assert not patience.over
        found = receiver.ep.message_statistics()
        assert (found.posted, found.entries_of_receives, found.waiting) == (6, 4, 2)
        for tag in range(6):
            sender.ep.tsend(b"12345678", None, peer, tag)
        assert sorted(entry.op_context for entry in receiver.wait(6)) == list(range(6))
        sender.wait(6)
        assert receiver.ep.message_statistics().entries == 0


def test_receive_that_gets_no_list_entry_in_time_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    monkeypatch.setenv("FI_CXI_RNR_APPEND_RETRY_TIMEOUT_US", "2000")
    with of_service(service_with(4), protocol=fi.PROTO_CXI_RNR) as receiver:
        for tag in range(5):
            receiver.ep.trecv(bytearray(8), tag=tag, context=tag)
        error = refused(receiver)
        assert (error.op_context, error.err, error.prov_errno) == (4, fi.EIO, cxi.C_RC_NO_SPACE)
        assert b"list entry" in error.err_data
