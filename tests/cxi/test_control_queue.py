"""The event queue of control messages, which end flow control: fi_cxi(7) FI_UNIVERSE_SIZE, FI_CXI_CTRL_RX_EQ_MAX_SIZE.

One endpoint sends to many whose common completion queue is full, so all of them refuse its messages. When the queue is
read, each of them sends a control message to the one sender, which waits there until its program makes progress.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cxi.support import opened
from tests.fi.support import Node
from tests.patience import Patience

from weft import fi

CAPS = int(fi.MSG | fi.TAGGED)
RETRY_US = 300_000
PEERS = 70
LEAST = 4096 // 64  # events in one page


def small(info: fi.Info) -> None:
    info.tx_attr.size = info.rx_attr.size = 16


class Crowd:
    """The sender, and receivers of one domain with one completion queue."""

    def __init__(self, sender: Node, receiver: Node, more: list[fi.Endpoint]) -> None:
        self.sender, self.receiver, self.receivers = sender, receiver, [receiver.ep, *more]
        self.peers = [sender.av.insert(ep.getname()) for ep in self.receivers]
        self.late: list[Any] = []  # contexts of completions of messages that were refused at first

    def stop_all(self) -> None:
        """Fill the receivers' queue by messages to the first of them, until all refuse messages."""
        patience = Patience(30.0)
        while not self.stats().stopped:
            self.receivers[0].trecv(bytearray(8), tag=1)
            self.post(self.peers[0], 8, 1)
            assert not patience.over
        for peer in self.peers[1:]:
            self.post(peer, 1000, 2)
        while self.stats().stopped < len(self.peers):
            assert not self.sender.cq.read()
            assert not patience.over

    def post(self, peer: int, length: int, tag: int) -> None:
        patience = Patience(30.0)
        while not patience.over:
            with contextlib.suppress(fi.Again):
                self.sender.ep.tsendmsg(fi.MsgTagged([bytes(length)], None, peer, tag), 0)
                return
            assert not self.sender.cq.read()

    def empty(self) -> None:
        """Read the receivers' queue, so that all of them send a control message. The sender's program sleeps."""
        patience = Patience(30.0)
        while self.stats().controls < len(self.peers):
            self.note(self.receiver.cq.read())
            assert not patience.over

    def receive_all(self) -> None:
        for ep in self.receivers[1:]:
            ep.trecv(bytearray(1000), tag=2, context="late")

    def finish(self) -> None:
        """Every message arrives in the end."""
        patience = Patience(60.0)
        while len(self.late) < PEERS or self.sender.ep.statistics().tx_pending:
            self.note(self.receiver.cq.read())
            assert not self.sender.cq.read()
            assert not patience.over
        assert not self.stats().stopped

    def note(self, entries: list[Any]) -> None:
        self.late += [entry.op_context for entry in entries if entry.op_context is not None]

    def stats(self) -> fi.MessageStatistics:
        return self.sender.ep.message_statistics()


@contextlib.contextmanager
def crowd(monkeypatch: pytest.MonkeyPatch, **environment: Any) -> Iterator[Crowd]:
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("FI_CXI_DEFAULT_CQ_SIZE", "64")
    monkeypatch.setenv("FI_CXI_FC_RETRY_USEC_DELAY", str(RETRY_US))

    def many(info: fi.Info) -> None:
        info.tx_attr.size = 1024

    both = int(fi.TRANSMIT | fi.RECV)
    selective = both | int(fi.SELECTIVE_COMPLETION)  # the sender's queue stays empty
    with opened(CAPS, edit=many, cq_flags=selective) as sender, opened(CAPS, edit=small) as receiver:
        more = []
        for _ in range(PEERS):
            ep = receiver.keep(receiver.domain.endpoint(receiver.info))
            ep.bind(receiver.cq, both)
            ep.bind(receiver.av)
            ep.enable()
            more.append(ep)
        yield Crowd(sender, receiver, more)


def slots(caps: int = CAPS) -> int:
    with opened(caps) as node:
        return node.ep.message_statistics().control_slots


@pytest.mark.clause(
    "cxi.env.universe-size", "cxi.env.universe-size-ctrl-eq", "cxi.env.ctrl-rx-eq-default",
    "cxi.guide.universe-resources",
)  # fmt: skip
@pytest.mark.parametrize(("size", "expected"), [(None, 256), (1, LEAST), (64, 64), (65, 128), (1000, 1024)])
def test_default_queue_has_an_event_for_each_process(
    monkeypatch: pytest.MonkeyPatch, size: int | None, expected: int
) -> None:
    """FI_UNIVERSE_SIZE, 256 by default: in whole pages of 4 KiB."""
    if size is not None:
        monkeypatch.setenv("FI_UNIVERSE_SIZE", str(size))
    assert slots() == expected


@pytest.mark.clause("cxi.env.ctrl-rx-eq-max-size")
@pytest.mark.parametrize(("most", "expected"), [(1, LEAST), (5000, 2 * LEAST), (1 << 20, 4096), (1 << 26, 4096)])
def test_variable_sets_the_largest_queue(monkeypatch: pytest.MonkeyPatch, most: int, expected: int) -> None:
    """FI_CXI_CTRL_RX_EQ_MAX_SIZE, in bytes; the application here has 4096 processes."""
    monkeypatch.setenv("FI_UNIVERSE_SIZE", "4096")
    monkeypatch.setenv("FI_CXI_CTRL_RX_EQ_MAX_SIZE", str(most))
    assert slots() == expected


@pytest.mark.clause("cxi.env.ctrl-rx-eq-effect", "cxi.env.ctrl-rx-eq-max-size", "cxi.env.universe-size-ctrl-eq")
@pytest.mark.parametrize(
    ("environment", "drops"),
    [
        ({}, False),
        ({"FI_UNIVERSE_SIZE": 1}, True),
        ({"FI_CXI_CTRL_RX_EQ_MAX_SIZE": 4096}, True),
        ({"FI_CXI_CTRL_RX_EQ_MAX_SIZE": 8192}, False),
    ],
    ids=["default", "one process", "4 KiB", "8 KiB"],
)
def test_control_messages_beyond_the_queue_are_dropped_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, int], drops: bool
) -> None:
    with crowd(monkeypatch, **environment) as at:
        at.stop_all()
        at.empty()
        found = at.stats()
        assert found.controls > PEERS
        assert (found.controls_dropped > 0) == drops
        assert found.controls_dropped <= max(0, found.controls - found.control_slots)
        at.receive_all()
        at.finish()


def test_program_that_waits_on_the_descriptor_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The NIC does not try again meanwhile: the refused message goes when the program reads its queue."""
    monkeypatch.setenv("FI_CXI_DEFAULT_CQ_SIZE", "64")
    monkeypatch.setenv("FI_CXI_FC_RETRY_USEC_DELAY", "100000000")
    with opened(CAPS, edit=small) as receiver, opened(CAPS, wait_obj=fi.WAIT_FD) as sender:
        peer = sender.av.insert(receiver.name)
        patience, sent, ended = Patience(30.0), 0, 0
        while not sender.ep.message_statistics().stopped:
            receiver.ep.trecv(bytearray(1000), tag=1)
            with contextlib.suppress(fi.Again):
                sender.ep.tsend(bytes(1000), None, peer, 1)
                sent += 1
            ended += len(sender.cq.read())
            assert not patience.over
        while not sender.cq.trywait():
            ended += len(sender.cq.read())
        before = sender.ep.message_statistics().controls
        while sender.ep.message_statistics().controls == before:
            receiver.cq.read()
            assert not patience.over
        assert not sender.cq.trywait()
        assert select.select([sender.cq.fd], [], [], 30.0)[0]
        while ended < sent:
            ended += len(sender.cq.read())
            receiver.cq.read()
            assert not patience.over


def test_endpoint_closes_with_control_messages_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    with crowd(monkeypatch, FI_UNIVERSE_SIZE=1) as at:
        at.stop_all()
        at.empty()
        at.sender.ep.close()
        with contextlib.suppress(fi.Available):
            at.sender.cq.read()
