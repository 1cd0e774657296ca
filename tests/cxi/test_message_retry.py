"""FI_CXI_FC_RETRY_USEC_DELAY: when a stopped sender asks again, if no word of the receiver reached it.

Nothing here is timed: frames are counted while both sides make progress and the receiver has no room.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
from tests.cxi.support import opened
from tests.fi.support import WATCHDOG_S, Node
from tests.patience import Patience

from weft import fi
from weft.providers.cxi import messages

CAPS = int(fi.MSG | fi.TAGGED)
LENGTH, ROUNDS = 4000, 3000
HOUR_HALF_US = 1_800_000_000


def frames(node: Node) -> int:
    return int(node.domain.policy.nic.statistics()["frames_served"])


@contextlib.contextmanager
def stopped(delay_us: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Node, Node, int]]:
    """A sender whose messages are refused, because no more unexpected ones can be kept; and how many it has posted."""
    monkeypatch.setenv("FI_CXI_FC_RETRY_USEC_DELAY", str(delay_us))
    monkeypatch.setattr(messages, "UNEXPECTED_BYTES", 6 << 20)
    with opened(CAPS) as receiver, opened(CAPS) as sender:
        peer = sender.av.insert(receiver.name)
        posted = refusals = 0
        while refusals < 100:  # of one message: the flow has stopped
            try:
                sender.ep.tsend(np.full(LENGTH, posted % 251, np.uint8), None, peer, 1)
                posted, refusals = posted + 1, 0
            except fi.Again:
                refusals += 1
            sender.cq.read()
        yield sender, receiver, posted


def drain(sender: Node, receiver: Node, posted: int) -> None:
    """Every message arrives, in order, when receives are posted."""
    room = np.zeros(LENGTH, np.uint8)
    deadline = Patience(WATCHDOG_S)
    for i in range(posted):
        receiver.ep.trecv(room, tag=1)
        while not receiver.cq.read():
            sender.cq.read()
            assert not deadline.over, f"{i} of {posted} messages came"
        assert (room == i % 251).all()


@pytest.mark.clause("cxi.env.fc-retry-delay")
def test_long_delay_keeps_a_stopped_sender_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver's message, which is not lost here, ends the wait before its time."""
    with stopped(HOUR_HALF_US, monkeypatch) as (sender, receiver, posted):
        deadline = Patience(WATCHDOG_S)
        before, after = -1, frames(sender)
        while before != after:  # until the answers that were under way have come
            assert not deadline.over, "the sender is never silent"
            for _ in range(ROUNDS):
                sender.cq.read()
            before, after = after, frames(sender)
        drain(sender, receiver, posted)


@pytest.mark.clause("cxi.env.fc-retry-delay", "cxi.env.fc-retry-delay-zero")
@pytest.mark.parametrize("delay_us", [0, 1000])
def test_sender_asks_again_after_the_delay(monkeypatch: pytest.MonkeyPatch, delay_us: int) -> None:
    with stopped(delay_us, monkeypatch) as (sender, receiver, posted):
        before = frames(sender)
        deadline = Patience(WATCHDOG_S)
        while frames(sender) < before + 40:
            sender.cq.read()
            assert not deadline.over
        drain(sender, receiver, posted)
