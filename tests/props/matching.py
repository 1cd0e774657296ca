"""The rules of matching, by comparing everything in turn, and a program that does random things to an endpoint.

A Program has three senders and one receiver. After each step it waits for the completions that the rules foretell, and
compares them: context, length, tag, data, source, place and bytes. Messages arrive in the order of the steps, because a
step ends only when its messages have arrived. Source: fi_msg(3), fi_tagged(3), fi_cxi(7) "Messaging".
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.fi.support import WATCHDOG_S, Node
from tests.patience import Patience

from weft import fi

MARK = 1 << 46  # the bit of tags that no message of the rules has, and no mask ignores
LENGTH_MAX = 40_000
# A few bits at both ends, which some masks ignore.
MASKS = [0, 0, 0, 0x3, 0xF, 0x7 << 36, (0x7 << 36) | 0x5, MARK - 1]
PHASES = [(40, 40), (20, 60), (60, 20), (20, 60)]  # sends and receives in a hundred steps: the lists grow and drain
Lengths = list[tuple[int, int]]
_BYTES = np.random.default_rng(1).integers(0, 256, LENGTH_MAX + 1024, np.uint8)


@dataclass(eq=False)
class Message:
    """number: of the order of sending.   sender: its fi_addr at the receiver."""

    number: int
    sender: int
    tagged: bool
    tag: int
    length: int
    data: int

    @property
    def payload(self) -> np.ndarray[Any, Any]:
        start = self.number % 1024
        return _BYTES[start : start + self.length]


@dataclass(eq=False)
class Receive:
    """A posted receive.   least: OPT_MIN_MULTI_RECV when it was posted.   used: bytes taken."""

    context: Any
    tagged: bool
    tag: int
    ignore: int
    source: int
    room: np.ndarray[Any, Any]
    multi: bool = False
    least: int = 0
    used: int = 0

    def takes(self, m: Message) -> bool:
        return (
            self.tagged == m.tagged
            and self.source in (fi.ADDR_UNSPEC, m.sender)
            and (not m.tagged or (self.tag ^ m.tag) & ~self.ignore == 0)
        )


@dataclass(eq=False)
class Ending:
    """A completion that the rules foretell. error: 0, ETRUNC, ECANCELED or ENOMSG."""

    receive: Receive
    message: Message | None
    offset: int = 0
    stored: int = 0
    last: bool = True
    error: int = 0
    looks: bool = False  # a peek


@dataclass
class Rules:
    posted: list[Receive] = field(default_factory=list)
    unexpected: list[Message] = field(default_factory=list)
    claimed: list[tuple[Any, Message]] = field(default_factory=list)

    @staticmethod
    def put(r: Receive, m: Message) -> Ending:
        """The next message of a receive."""
        room = len(r.room) - r.used
        stored = min(room, m.length)
        left = room - stored
        last = not r.multi or stored < m.length or left == 0 or left < r.least
        ending = Ending(r, m, r.used, stored, last, 0 if stored == m.length else fi.ETRUNC)
        r.used += stored
        return ending

    def arrive(self, m: Message) -> list[Ending]:
        for r in self.posted:
            if r.takes(m):
                ending = self.put(r, m)
                if ending.last:
                    self.posted.remove(r)
                return [ending]
        self.unexpected.append(m)
        return []

    def post(self, r: Receive) -> list[Ending]:
        endings: list[Ending] = []
        while not (endings and endings[-1].last):
            m = self.first(r)
            if m is None:
                self.posted.append(r)
                break
            self.unexpected.remove(m)
            endings.append(self.put(r, m))
        return endings

    def first(self, r: Receive) -> Message | None:
        return next((m for m in self.unexpected if r.takes(m)), None)


class Sender:
    """An endpoint that sends to the receiver.   ended: completions of its messages."""

    def __init__(self, node: Node, receiver: Any) -> None:
        self.node, self.ended = node, 0
        self.peer = node.av.insert(receiver)

    @property
    def name(self) -> Any:
        return self.node.name

    def send(self, messages: list[Message]) -> None:
        """Sends these, and a mark behind them."""
        for m in messages:
            self._retry(functools.partial(self._send, m))
        self._retry(lambda: self.node.ep.tinject(b"", self.peer, MARK))

    def _send(self, m: Message) -> None:
        flags = int(fi.REMOTE_CQ_DATA | fi.COMPLETION) if m.data else int(fi.COMPLETION)
        if m.tagged:
            self.node.ep.tsendmsg(fi.MsgTagged([m.payload], None, self.peer, m.tag, 0, None, m.data), flags)
        else:
            self.node.ep.sendmsg(fi.Msg([m.payload], None, self.peer, None, m.data), flags)

    def _retry(self, call: Callable[[], None]) -> None:
        while True:
            with suppress(fi.Again):
                call()
                return
            self.progress()

    def progress(self) -> None:
        """Called in each round of a wait."""
        self.ended += len(self.node.cq.read(64))

    def count(self) -> int:
        """Messages that have completed so far."""
        self.progress()
        return self.ended


class Program:
    """cxi: the limits of FI_PROTO_CXI hold, so tagged receives take one message, and untagged ones are not peeked."""

    def __init__(self, receiver: Node, senders: list[Any], chance: random.Random, lengths: Lengths, cxi: bool) -> None:
        self.receiver, self.senders, self.cxi = receiver, senders, cxi
        self.random, self.rules, self.lengths = chance, Rules(), lengths
        self.sources = [receiver.av.insert(sender.name) for sender in senders]
        self.sent = [0] * len(senders)
        self.numbers = self.contexts = 0
        self.counts: dict[str, int] = {}

    # ---- steps -------------------------------------------------------------------------------------------------------

    def run(self, messages: int) -> None:
        others = {self.cancel: 5, self.peek: 6, self.claim: 4, self.take_claimed: 4, self.discard: 2}
        for n in itertools.count():
            if self.numbers >= messages:
                break
            while len(self.rules.posted) > 100:
                self.cancel()
            while len(self.rules.unexpected) > 100:
                self.take_one()
            sends, posts = PHASES[n // 500 % len(PHASES)]
            steps = {self.send: sends, self.post: posts, **others}
            (step,) = self.random.choices(list(steps), list(steps.values()))
            step()
            self.counts[step.__name__] = self.counts.get(step.__name__, 0) + 1
        self.finish()

    def send(self) -> None:
        """A few messages of one sender, which have arrived at the end."""
        i = self.random.randrange(len(self.senders))
        messages, endings = [], []
        for _ in range(self.random.randint(1, 3)):
            low, high = self.random.choice(self.lengths)
            tagged = self.random.random() < 0.7
            m = Message(
                self.numbers, self.sources[i], tagged, self._tag() if tagged else 0, self.random.randint(low, high),
                self.random.getrandbits(64) if self.random.random() < 0.2 else 0,
            )  # fmt: skip
            self.numbers += 1
            messages.append(m)
            endings += self.rules.arrive(m)
        self.sent[i] += len(messages)
        mark = Receive("mark", True, MARK, 0, self.sources[i], np.zeros(0, np.uint8))
        self._patiently(self.receiver.ep.trecv, mark.room, None, mark.source, MARK, 0, "mark")
        self.senders[i].send(messages)
        self.settle([*endings, Ending(mark, Message(0, mark.source, True, MARK, 0, 0))])

    def post(self) -> None:
        self._post(self._receive())

    def take_one(self) -> None:
        """A receive for one of the unexpected messages."""
        m = self.random.choice(self.rules.unexpected)
        source = self.random.choice([fi.ADDR_UNSPEC, m.sender])
        self._post(Receive(self._context(), m.tagged, m.tag, 0, source, self._room(m.length)))

    def _patiently(self, call: Callable[..., None], *args: Any) -> None:
        """Other tests use the same list entries: the endpoint may be in flow control."""
        deadline = Patience(WATCHDOG_S)
        while True:
            try:
                call(*args)
                return
            except (fi.Again, fi.NoSpace):
                assert not deadline.over
                assert not self.receiver.cq.read(0)  # makes progress, and takes no entry

    def _post(self, r: Receive) -> None:
        ep, flags = self.receiver.ep, int(fi.COMPLETION | (fi.MULTI_RECV if r.multi else fi.Flag(0)))
        if r.multi:
            ep.setopt(fi.OPT_ENDPOINT, fi.OPT_MIN_MULTI_RECV, r.least)
        if r.tagged:
            self._patiently(ep.trecvmsg, fi.MsgTagged([r.room], None, r.source, r.tag, r.ignore, r.context), flags)
        else:
            self._patiently(ep.recvmsg, fi.Msg([r.room], None, r.source, r.context), flags)
        self.settle(self.rules.post(r))

    def cancel(self) -> None:
        """Cancels a posted receive, or a receive that does not exist."""
        posted = self.rules.posted
        if not posted or self.random.random() < 0.1:
            try:
                self.receiver.ep.cancel(object())
            except fi.NotFound:
                return
            raise AssertionError("a receive was cancelled that nobody has posted")
        r = self.random.choice(posted)
        posted.remove(r)
        self.receiver.ep.cancel(r.context)
        self.settle([Ending(r, None, error=fi.ECANCELED)])

    def peek(self) -> None:
        self._peek(0)

    def claim(self) -> None:
        self._peek(int(fi.CLAIM))

    def discard(self) -> None:
        """The CXI provider has no FI_DISCARD: there this is a peek."""
        self._peek(0 if self.cxi else int(fi.DISCARD))

    def _peek(self, how: int) -> None:
        r = self._receive(tagged=True if self.cxi else None)
        r.multi, r.context, flags = False, Context(self._context()), int(fi.PEEK | fi.COMPLETION) | how
        if r.tagged:
            asked = fi.MsgTagged([], None, r.source, r.tag, r.ignore, r.context)
            self._patiently(self.receiver.ep.trecvmsg, asked, flags)
        else:
            self._patiently(self.receiver.ep.recvmsg, fi.Msg([], None, r.source, r.context), flags)
        m = self.rules.first(r)
        if m is not None and how:
            self.rules.unexpected.remove(m)
            if how == fi.CLAIM:
                self.rules.claimed.append((r.context, m))
        self.settle([Ending(r, m, error=0 if m else fi.ENOMSG, looks=True)])

    def take_claimed(self) -> None:
        if not self.rules.claimed:
            return
        context, m = self.rules.claimed.pop(self.random.randrange(len(self.rules.claimed)))
        r = Receive(context, m.tagged, m.tag, 0, m.sender, self._room(m.length))
        flags = int(fi.CLAIM | fi.COMPLETION)
        if m.tagged:
            taken = fi.MsgTagged([r.room], None, fi.ADDR_UNSPEC, m.tag, 0, context)
            self._patiently(self.receiver.ep.trecvmsg, taken, flags)
        else:
            self._patiently(self.receiver.ep.recvmsg, fi.Msg([r.room], None, fi.ADDR_UNSPEC, context), flags)
        self.settle([Rules.put(r, m)])

    def finish(self) -> None:
        """Takes or cancels everything; nothing is left, and each send has completed once."""
        while self.rules.claimed:
            self.take_claimed()
        while self.rules.posted:
            self.cancel()
        while self.rules.unexpected:
            tagged = self.rules.unexpected[0].tagged
            r = Receive(self._context(), tagged, 0, MARK - 1, fi.ADDR_UNSPEC, np.zeros(LENGTH_MAX, np.uint8))
            self._post(r)
        deadline = Patience(WATCHDOG_S)
        while (ended := [sender.count() for sender in self.senders]) != self.sent:
            assert not deadline.over, (ended, self.sent)
        assert not self.receiver.cq.read()

    # ---- random parts ------------------------------------------------------------------------------------------------

    def _tag(self) -> int:
        return self.random.randrange(8) | self.random.randrange(4) << 36

    def _context(self) -> int:
        self.contexts += 1
        return self.contexts

    def _room(self, length: int) -> np.ndarray[Any, Any]:
        """Room for a message, sometimes too little."""
        shorter = self.random.randrange(length) if length and self.random.random() < 0.1 else length
        return np.zeros(shorter, np.uint8)

    def _receive(self, tagged: bool | None = None) -> Receive:
        if tagged is None:
            tagged = self.random.random() < 0.7
        source = self.random.choice([fi.ADDR_UNSPEC, fi.ADDR_UNSPEC, *self.sources])
        r = Receive(self._context(), tagged, 0, 0, source, np.zeros(0, np.uint8))
        if tagged:
            r.tag, r.ignore = self._tag(), self.random.choice(MASKS)
        r.multi = self.random.random() < 0.15 and not (tagged and self.cxi)
        r.least = self.random.choice([1, 64, 500])
        _, high = self.random.choice(self.lengths)
        r.room = np.zeros(r.least + self.random.randrange(3 * high) if r.multi else high, np.uint8)
        return r

    # ---- comparing ---------------------------------------------------------------------------------------------------

    def settle(self, expected: list[Ending]) -> None:
        """Waits for these completions, in any order; there are no others."""
        waited = list(expected)
        deadline = Patience(WATCHDOG_S)
        while waited:
            assert not deadline.over, f"after {self.numbers} messages: never came: {waited}"
            for sender in self.senders:
                sender.progress()
            try:
                found = self.receiver.cq.readfrom(16)
            except fi.Available:
                self._failed(self.receiver.cq.readerr(), waited)
                continue
            for entry, source in found:
                self._succeeded(entry, source, waited)

    def _pick(self, waited: list[Ending], context: Any, buf: int) -> Ending:
        """The completion that was foretold; completions of one buffer differ in their place."""
        for ending in waited:
            r = ending.receive
            if r.context == context and (not r.multi or ending.error == fi.ECANCELED or buf == self._place(ending)):
                waited.remove(ending)
                more = any(other.receive is r for other in waited)
                closed = ending.last or r not in self.rules.posted
                ending.last = closed and not more
                return ending
        raise AssertionError(f"after {self.numbers} messages: {context!r} at {buf:#x} is not among {waited}")

    @staticmethod
    def _place(ending: Ending) -> int:
        return int(ending.receive.room.ctypes.data) + ending.offset

    def _succeeded(self, entry: Any, source: int, waited: list[Ending]) -> None:
        ending = self._pick(waited, entry.op_context, entry.buf)
        r, m = ending.receive, ending.message
        assert m is not None, (entry, ending)
        assert not ending.error, (entry, ending)
        assert (entry.len, entry.tag, entry.data) == (m.length, m.tag, m.data), (entry, ending)
        assert source == m.sender, (entry, ending)
        self._flags(entry, ending, m)
        self._bytes(r, ending, m)

    def _failed(self, entry: fi.CqErrEntry, waited: list[Ending]) -> None:
        ending = self._pick(waited, entry.op_context, entry.buf)
        r, m = ending.receive, ending.message
        assert entry.err == ending.error, (entry, ending)
        if entry.err == fi.ETRUNC:
            assert m is not None
            assert (entry.len, entry.olen) == (ending.stored, m.length - ending.stored)
            assert (entry.tag, entry.data) == (m.tag, m.data)
            self._flags(entry, ending, m)
            self._bytes(r, ending, m)

    def _flags(self, entry: Any, ending: Ending, m: Message) -> None:
        flags = int(fi.RECV | (fi.TAGGED if m.tagged else fi.MSG) | (fi.REMOTE_CQ_DATA if m.data else fi.Flag(0)))
        if ending.receive.multi and not ending.looks and ending.last:
            flags |= int(fi.MULTI_RECV)
        assert entry.flags == flags, (entry, ending)

    @staticmethod
    def _bytes(r: Receive, ending: Ending, m: Message) -> None:
        if not ending.looks:
            got = r.room[ending.offset : ending.offset + ending.stored]
            assert np.array_equal(got, m.payload[: ending.stored]), ending


@dataclass(frozen=True)
class Context:
    """Stands for a struct fi_context."""

    number: int
