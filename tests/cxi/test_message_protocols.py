"""The bytes that an eager and a rendezvous message carry, and that the target keeps (fi_cxi(7) "Messaging").

The sender changes its buffer after the message has arrived and before a receive takes it: bytes that the message
carried are old ones at the receiver, bytes that the target fetches after the match are new ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import opened
from tests.fi.msg_support import TAG, data_of, kinds, recv, recvmsg, refused, send, sendmsg
from tests.fi.support import Node

from weft import fi
from weft.providers.cxi import device, profile

CAPS = int(fi.MSG | fi.TAGGED)
THRESHOLD, GET_MIN = 2048, 2049  # of the document's releases
EAGER_MAX = THRESHOLD + GET_MIN
MARK = 0xBEEF
OLD, NEW = 1, 2


@contextlib.contextmanager
def talkers(**more: Any) -> Iterator[tuple[Node, Node, int]]:
    """(sender, receiver, fi_addr of the receiver)."""
    with opened(CAPS, **more) as receiver, opened(CAPS, **more) as sender:
        yield sender, receiver, sender.av.insert(receiver.name)


def reached(sender: Node, receiver: Node, peer: int) -> None:
    """All messages sent so far have arrived: an empty message behind them has. Takes the empty message."""
    sender.ep.tinject(b"", peer, MARK)
    while True:
        recvmsg(receiver, True, None, int(fi.PEEK | fi.COMPLETION), "mark", tag=MARK)
        try:
            receiver.wait()
            break
        except fi.Available:
            assert receiver.cq.readerr().err == fi.ENOMSG
    recv(receiver, True, bytearray(), "mark", tag=MARK)
    receiver.wait()


def carried(sender: Node, receiver: Node, peer: int, tagged: bool, length: int, **msg: Any) -> int:
    """Bytes of a message that were at the target before the match; all others are fetched after it."""
    payload, room = np.full(length, OLD, np.uint8), np.zeros(length, np.uint8)
    send(sender, tagged, payload, peer, "s", **msg)
    reached(sender, receiver, peer)
    payload[:] = NEW
    recv(receiver, tagged, room, "r")
    (entry,) = receiver.wait()
    assert entry.len == length
    assert sender.wait()[0].op_context == "s"
    count = int((room == OLD).sum())
    assert (room[:count] == OLD).all(), "the carried bytes are not the first ones"
    assert (room[count:] == NEW).all()
    return count


@pytest.mark.clause("cxi.msg.eager-payload", "cxi.msg.eager-unexpected")
@kinds
@pytest.mark.parametrize("length", [1, 192, 193, 1000, EAGER_MAX])
def test_unexpected_eager_message_is_kept_whole(length: int, tagged: bool) -> None:
    """fi_cxi(7) "Eager Messages": header and payload together; an unexpected one is buffered whole."""
    with talkers() as (sender, receiver, peer):
        assert carried(sender, receiver, peer, tagged, length) == length


@pytest.mark.clause(
    "cxi.msg.rdzv-partial", "cxi.msg.rdzv-get", "cxi.msg.rdzv-unexpected", "cxi.env.rdzv-eager-part",
    "cxi.env.rdzv-get-part",
)  # fmt: skip
@kinds
@pytest.mark.parametrize("length", [EAGER_MAX + 1, 20_000, 1 << 20])
def test_rendezvous_carries_its_first_bytes_and_the_rest_is_got(length: int, tagged: bool) -> None:
    """fi_cxi(7) "Rendezvous Messages": the target keeps the eager part; a Get of the rest follows the match."""
    with talkers() as (sender, receiver, peer):
        assert carried(sender, receiver, peer, tagged, length) == THRESHOLD


@pytest.mark.clause(
    "cxi.env.rdzv-threshold", "cxi.env.rdzv-get-min", "cxi.env.rdzv-eager-bound", "cxi.env.rdzv-larger",
    "cxi.env.rdzv-eager-part",
)  # fmt: skip
@kinds
@pytest.mark.parametrize(("threshold", "get_min"), [(300, 0), (192, 1000), (1000, 3000), (8192, 0)])
def test_variables_set_where_eager_ends_and_the_shortest_get(
    monkeypatch: pytest.MonkeyPatch, threshold: int, get_min: int, tagged: bool
) -> None:
    """FI_CXI_RDZV_THRESHOLD, FI_CXI_RDZV_GET_MIN: their sum goes out whole; one byte more leaves GET_MIN + 1 to get."""
    monkeypatch.setenv("FI_CXI_RDZV_THRESHOLD", str(threshold))
    monkeypatch.setenv("FI_CXI_RDZV_GET_MIN", str(get_min))
    with talkers() as (sender, receiver, peer):
        longest = threshold + get_min
        assert carried(sender, receiver, peer, tagged, longest) == longest
        assert carried(sender, receiver, peer, tagged, longest + 1) == threshold


@pytest.mark.clause("cxi.env.rdzv-eager-size")
@kinds
@pytest.mark.parametrize(("eager_size", "part"), [("0", 0), ("512", 512), ("2048", 2048), ("4000", 2048)])
def test_variable_sets_the_eager_bytes_of_a_rendezvous(
    monkeypatch: pytest.MonkeyPatch, eager_size: str, part: int, tagged: bool
) -> None:
    """FI_CXI_RDZV_EAGER_SIZE: at most the threshold. The length where rendezvous begins stays."""
    monkeypatch.setenv("FI_CXI_RDZV_EAGER_SIZE", eager_size)
    with talkers() as (sender, receiver, peer):
        assert carried(sender, receiver, peer, tagged, EAGER_MAX) == EAGER_MAX
        assert carried(sender, receiver, peer, tagged, EAGER_MAX + 1) == part


def test_later_releases_carry_2048_bytes_of_a_rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    with talkers() as (sender, receiver, peer):
        assert carried(sender, receiver, peer, True, 16384 + GET_MIN) == 16384 + GET_MIN
        assert carried(sender, receiver, peer, True, 16384 + GET_MIN + 1) == 2048


# ---- small messages --------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.env.non-inject-idc-default")
@kinds
@pytest.mark.parametrize(("length", "in_command"), [(1, True), (8, True), (192, True), (193, False), (1000, False)])
def test_small_message_without_inject_is_in_the_command(length: int, in_command: bool, tagged: bool) -> None:
    """IDC: the message has the bytes of the call's time, although the NIC is told of the command later (FI_MORE)."""
    with talkers() as (sender, receiver, peer):
        payload, room = np.full(length, OLD, np.uint8), np.zeros(length, np.uint8)
        sendmsg(sender, tagged, payload, peer, int(fi.MORE | fi.COMPLETION), "s")
        payload[:] = NEW
        sender.ep.tsend(b"", None, peer, MARK)
        recv(receiver, tagged, room, "r")
        receiver.wait()
        assert set(room.tolist()) == {OLD if in_command else NEW}
        assert [entry.op_context for entry in sender.wait(2)] == ["s", None]


@pytest.mark.clause("cxi.env.non-inject-idc")
@kinds
@pytest.mark.parametrize("inject", [False, True], ids=["without INJECT", "with INJECT"])
@pytest.mark.parametrize("length", [1, 8, 192])
def test_variable_keeps_small_messages_without_inject_out_of_the_command(
    monkeypatch: pytest.MonkeyPatch, length: int, inject: bool, tagged: bool
) -> None:
    """FI_CXI_DISABLE_NON_INJECT_MSG_IDC: the NIC reads their bytes when it is told of the command."""
    monkeypatch.setenv("FI_CXI_DISABLE_NON_INJECT_MSG_IDC", "1")
    with talkers() as (sender, receiver, peer):
        payload, room = np.full(length, OLD, np.uint8), np.zeros(length, np.uint8)
        flags = fi.MORE | fi.COMPLETION | (fi.INJECT if inject else 0)
        sendmsg(sender, tagged, payload, peer, int(flags), "s")
        payload[:] = NEW
        sender.ep.tsend(b"", None, peer, MARK)
        recv(receiver, tagged, room, "r")
        receiver.wait()
        assert set(room.tolist()) == {OLD if inject else NEW}
        assert [entry.op_context for entry in sender.wait(2)] == ["s", None]


# ---- match complete --------------------------------------------------------------------------------------------------


def frames(node: Node) -> int:
    return int(node.domain.policy.nic.statistics()["frames_served"])


def frames_of(sender: Node, receiver: Node, peer: int, length: int, flags: int) -> int:
    """Frames of one message that waits for its receive, of both directions, its end included."""
    before = frames(sender)
    sendmsg(sender, True, data_of(length), peer, flags | int(fi.COMPLETION), "s")
    while True:
        recvmsg(receiver, True, None, int(fi.PEEK | fi.COMPLETION), "p", tag=TAG)
        try:
            receiver.wait()
            break
        except fi.Available:
            receiver.cq.readerr()
    recv(receiver, True, bytearray(length))
    receiver.wait()
    sender.wait()
    return frames(sender) - before


@pytest.mark.clause("cxi.op.match-complete-long")
def test_match_complete_of_a_rendezvous_takes_no_further_frame() -> None:
    """fi_cxi(7) FI_MATCH_COMPLETE: a rendezvous ends with its match in any case."""
    with talkers() as (sender, receiver, peer):
        frames_of(sender, receiver, peer, EAGER_MAX + 1, 0)  # now the two are connected
        plain = frames_of(sender, receiver, peer, EAGER_MAX + 1, 0)
        assert frames_of(sender, receiver, peer, EAGER_MAX + 1, int(fi.MATCH_COMPLETE)) == plain


@pytest.mark.clause("cxi.op.match-complete-short")
@pytest.mark.parametrize("length", [1000, EAGER_MAX])
def test_match_complete_of_an_eager_message_takes_a_handshake(length: int) -> None:
    """fi_cxi(7) FI_MATCH_COMPLETE: the target tells the sender of the match in one more frame."""
    with talkers() as (sender, receiver, peer):
        frames_of(sender, receiver, peer, length, 0)
        plain = frames_of(sender, receiver, peer, length, 0)
        assert frames_of(sender, receiver, peer, length, int(fi.MATCH_COMPLETE)) == plain + 1


# ---- identifiers -----------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.guide.tx-size-rdzv")
def test_unexpected_rendezvous_takes_up_the_tx_size() -> None:
    """fi_cxi(7) "Endpoint Transmit Size Attribute"."""

    def few(info: fi.Info) -> None:
        info.tx_attr.size = 16

    with talkers(edit=few) as (sender, receiver, peer):
        for i in range(100):
            sender.ep.tsend(data_of(EAGER_MAX), None, peer, i)
            sender.wait()
        for i in range(16):
            sender.ep.tsend(data_of(EAGER_MAX + 1), None, peer, 100 + i)
        with pytest.raises(fi.Again):
            sender.ep.tsend(data_of(1000), None, peer, 0)
        for _ in range(1000):  # time alone frees nothing
            assert not sender.cq.read()
        receiver.ep.trecv(bytearray(EAGER_MAX + 1), tag=100)
        receiver.wait()
        sender.wait()
        sender.ep.tsend(data_of(1000), None, peer, 0)
        sender.wait()


@pytest.mark.clause("cxi.msg.rdzv-ids-tagged")
def test_tagged_rendezvous_messages_have_32512_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """fi_cxi(7): 32K - 256. No transmit queue is offered with so many entries: the limit of that is lifted here."""
    monkeypatch.setenv("FI_CXI_DEFAULT_CQ_SIZE", "100000")
    usual = profile.load()
    monkeypatch.setattr(profile, "load", lambda: replace(usual, tx_size_max=40_000))
    monkeypatch.setenv("FI_CXI_RDZV_THRESHOLD", "192")
    monkeypatch.setenv("FI_CXI_RDZV_GET_MIN", "0")
    monkeypatch.setenv("FI_CXI_RX_MATCH_MODE", "software")  # messages take no list entries, of which there are fewer

    def many(info: fi.Info) -> None:
        info.tx_attr.size = 40_000

    with talkers(edit=many) as (sender, receiver, peer):
        payload = data_of(193)
        for _ in range(32_512):
            sender.ep.tsend(payload, None, peer, TAG)
        with pytest.raises(fi.Again, match="wait to be pulled"):
            sender.ep.tsend(payload, None, peer, TAG)
        sender.ep.send(payload, None, peer)  # untagged messages have IDs of their own
        receiver.ep.trecv(bytearray(193), tag=TAG)
        receiver.wait()
        sender.wait()
        sender.ep.tsend(payload, None, peer, TAG)


def test_sender_that_leaves_ends_the_reads_of_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    device.set_values("cxi0", rdzv_get_en=0)
    monkeypatch.setenv("FI_CXI_RDZV_PROTO", "alt_read")
    monkeypatch.setenv("FI_CXI_SW_RX_TX_INIT_MAX", "64")
    with opened(CAPS) as receiver:
        with opened(CAPS) as sender:
            peer = sender.av.insert(receiver.name)
            for i in range(100):
                sender.ep.tsend(data_of(100_000), None, peer, i)
            reached(sender, receiver, peer)
        for i in range(100):
            receiver.ep.trecv(bytearray(100_000), tag=i)
        for _ in range(100):
            assert refused(receiver).err == fi.EIO


def test_endpoint_closes_with_reads_that_have_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    device.set_values("cxi0", rdzv_get_en=0)
    monkeypatch.setenv("FI_CXI_RDZV_PROTO", "alt_read")
    with opened(CAPS) as sender:
        with opened(CAPS) as receiver:
            peer = sender.av.insert(receiver.name)
            sender.ep.tsend(data_of(100_000), None, peer, 1)
            reached(sender, receiver, peer)
            receiver.ep.trecv(bytearray(100_000), tag=1)
        assert refused(sender).err == fi.EIO


@pytest.mark.clause("cxi.env.sw-rx-tx-init-max-hw")
def test_limit_of_software_gets_leaves_those_of_the_nic_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """FI_CXI_SW_RX_TX_INIT_MAX: under hardware matching more messages than that are fetched at a time."""
    monkeypatch.setenv("FI_CXI_SW_RX_TX_INIT_MAX", "64")
    count = 400
    with talkers() as (sender, receiver, peer):
        rooms = [np.zeros(5000, np.uint8) for _ in range(count)]
        payloads = [data_of(5000, seed=i) for i in range(count)]
        for i, payload in enumerate(payloads):
            sender.ep.tsend(payload, None, peer, i)
        for i, room in enumerate(rooms):
            receiver.ep.trecv(room, tag=i)
        receiver.wait(count), sender.wait(count)
        assert all(np.array_equal(room, payload) for room, payload in zip(rooms, payloads, strict=True))
