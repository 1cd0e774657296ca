"""Shared by the tests of fi_msg(3) and fi_tagged(3): endpoints, calls of both kinds, and waits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi.support import PROVIDER, WATCHDOG_S, Node, opened, pair

from weft import fi

CAPS = fi.MSG | fi.TAGGED
TAG = 0x1234
# No bytes, bytes within the frame of the head, longer ones of one frame, and pulled messages.
LENGTHS = [0, 1, 8, 192, 1000, 16384, 16385, 100_000, 1 << 20]

Duo = tuple[Node, Node, int]
kinds = pytest.mark.parametrize("tagged", [False, True], ids=["msg", "tagged"])


@contextlib.contextmanager
def talkers(caps: int = CAPS, **more: Any) -> Iterator[Duo]:
    """(sender, receiver, fi_addr of the receiver)."""
    with pair(int(caps), **more) as found:
        yield found


@contextlib.contextmanager
def alone(caps: int = CAPS, **more: Any) -> Iterator[Node]:
    """An endpoint that sends to itself."""
    with opened(int(caps), **more) as node:
        yield node


def data_of(count: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def send(node: Node, tagged: bool, buf: Any, peer: int, context: Any = None, tag: int = TAG, **more: Any) -> None:
    if tagged:
        node.ep.tsend(buf, None, peer, tag, context, **more)
    else:
        node.ep.send(buf, None, peer, context, **more)


def recv(node: Node, tagged: bool, buf: Any, context: Any = None, tag: int = TAG, **more: Any) -> None:
    if tagged:
        node.ep.trecv(buf, None, fi.ADDR_UNSPEC, tag, 0, context, **more)
    else:
        node.ep.recv(buf, None, fi.ADDR_UNSPEC, context, **more)


def sendmsg(node: Node, tagged: bool, buf: Any, peer: int, flags: int, context: Any = None, **more: Any) -> None:
    iov = [] if buf is None else [buf]
    if tagged:
        node.ep.tsendmsg(fi.MsgTagged(iov, None, peer, TAG, 0, context, **more), flags)
    else:
        node.ep.sendmsg(fi.Msg(iov, None, peer, context, **more), flags)


def recvmsg(node: Node, tagged: bool, buf: Any, flags: int, context: Any = None, tag: int = TAG, **more: Any) -> None:
    iov = [] if buf is None else [buf]
    if tagged:
        node.ep.trecvmsg(fi.MsgTagged(iov, None, fi.ADDR_UNSPEC, tag, 0, context, **more), flags)
    else:
        node.ep.recvmsg(fi.Msg(iov, None, fi.ADDR_UNSPEC, context, **more), flags)


def sent_len(length: int) -> int:
    """The length that the completion of a send tells: a real libfabric's tcp and shm tell none."""
    return length if PROVIDER.choose is None else 0


def of_kind(tagged: bool) -> int:
    """The completion flag of the kind of message."""
    return int(fi.TAGGED if tagged else fi.MSG)


Send = Callable[[Node, np.ndarray[Any, Any], int], None]
# Every call that sends: (name, call, whether it completes, whether it carries data).
SENDS: list[tuple[str, Send, bool, bool]] = [
    ("send", lambda n, b, p: n.ep.send(b, None, p, "s"), True, False),
    ("sendv", lambda n, b, p: n.ep.sendv([b[:3], b[3:]], None, p, "s"), True, False),
    ("sendmsg", lambda n, b, p: n.ep.sendmsg(fi.Msg([b[:5], b[5:]], None, p, "s")), True, False),
    (
        "sendmsg data",
        lambda n, b, p: n.ep.sendmsg(fi.Msg([b], None, p, "s", 0x77), int(fi.REMOTE_CQ_DATA | fi.COMPLETION)),
        True,
        True,
    ),
    ("inject", lambda n, b, p: n.ep.inject(b, p), False, False),
    ("senddata", lambda n, b, p: n.ep.senddata(b, None, 0x77, p, "s"), True, True),
    ("injectdata", lambda n, b, p: n.ep.injectdata(b, 0x77, p), False, True),
    ("tsend", lambda n, b, p: n.ep.tsend(b, None, p, TAG, "s"), True, False),
    ("tsendv", lambda n, b, p: n.ep.tsendv([b[:3], b[3:]], None, p, TAG, "s"), True, False),
    ("tsendmsg", lambda n, b, p: n.ep.tsendmsg(fi.MsgTagged([b[:5], b[5:]], None, p, TAG, 0, "s")), True, False),
    (
        "tsendmsg data",
        lambda n, b, p: n.ep.tsendmsg(
            fi.MsgTagged([b], None, p, TAG, 0, "s", 0x77), int(fi.REMOTE_CQ_DATA | fi.COMPLETION)
        ),
        True,
        True,
    ),
    ("tinject", lambda n, b, p: n.ep.tinject(b, p, TAG), False, False),
    ("tsenddata", lambda n, b, p: n.ep.tsenddata(b, None, 0x77, p, TAG, "s"), True, True),
    ("tinjectdata", lambda n, b, p: n.ep.tinjectdata(b, 0x77, p, TAG), False, True),
]
send_calls = pytest.mark.parametrize(("name", "call", "completes", "data"), SENDS, ids=[s[0] for s in SENDS])

Receive = Callable[[Node, np.ndarray[Any, Any]], None]
# Every call that receives, by its name.
RECEIVES: dict[str, Receive] = {
    "recv": lambda n, b: n.ep.recv(b, context="r"),
    "recvv": lambda n, b: n.ep.recvv([b[:7], b[7:]], context="r"),
    "recvmsg": lambda n, b: n.ep.recvmsg(fi.Msg([b[:2], b[2:]], context="r")),
    "trecv": lambda n, b: n.ep.trecv(b, tag=TAG, context="r"),
    "trecvv": lambda n, b: n.ep.trecvv([b[:7], b[7:]], tag=TAG, context="r"),
    "trecvmsg": lambda n, b: n.ep.trecvmsg(fi.MsgTagged([b[:2], b[2:]], tag=TAG, context="r")),
}
receive_calls = pytest.mark.parametrize("name", RECEIVES)


def check_arrival(duo: Duo, tagged: bool, first: str, length: int, told: int) -> None:
    """A message and its receive, of which the receive or the message is `first`, and the completions of both.

    told   length, as the completion of the send has it.
    """
    sender, receiver, peer = duo
    payload, room = data_of(length), np.zeros(length + 8, np.uint8)
    if first == "receive":
        recv(receiver, tagged, room, "r")
    send(sender, tagged, payload if length else None, peer, "s")
    if first == "message":
        recv(receiver, tagged, room, "r")
    (entry,) = receiver.wait()
    assert (entry.op_context, entry.len) == ("r", length)
    assert np.array_equal(room[:length], payload)
    assert not room[length:].any()
    (sent,) = sender.wait()
    assert (sent.op_context, sent.len) == ("s", told)


def check_truncation(duo: Duo, tagged: bool, first: str, length: int) -> None:
    """A message with data, and its receive of 60 bytes, of which the receive or the message is `first`."""
    sender, receiver, peer = duo
    payload, memory = data_of(length), np.zeros(length, np.uint8)
    if first == "receive":
        recv(receiver, tagged, memory[:60], "r")
    sendmsg(sender, tagged, payload, peer, int(fi.REMOTE_CQ_DATA | fi.COMPLETION), "s", data=5)
    if first == "message":
        recv(receiver, tagged, memory[:60], "r")
    entry = refused(receiver)
    assert (entry.op_context, entry.err, entry.len, entry.olen) == ("r", fi.ETRUNC, 60, length - 60)
    assert entry.flags == of_kind(tagged) | fi.RECV | fi.REMOTE_CQ_DATA
    assert (entry.data, entry.tag) == (5, TAG if tagged else 0)
    assert np.array_equal(memory[:60], payload[:60])
    assert not memory[60:].any()
    assert sender.wait()[0].op_context == "s"


def nothing(node: Node) -> bool:
    """True if no completion waits, after progress."""
    return not node.cq.read()


def drain(node: Node, until: Callable[[], bool]) -> list[Any]:
    """Completions read until the condition holds."""
    found: list[Any] = []
    while not until():
        found += node.cq.read()
    return found


def refused(node: Node) -> fi.CqErrEntry:
    """The next completion, which has to be an error, as the queue has it."""
    with pytest.raises(fi.Available):
        node.cq.sread(1, timeout=WATCHDOG_S)
    found: fi.CqErrEntry = node.cq.readerr()
    return found
