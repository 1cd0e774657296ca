"""Messages between the two processes of `weft perf`: round trips, streams, and matches behind many entries.

`round_trips` times half a round trip of send or tsend, while both processes poll. `stream` sends messages one way, with
a window of them posted; the receiver answers when it has all. `request` runs the second process's part of these two.
`Matching` times matches of an endpoint with itself, behind posted receives or unexpected messages.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .. import fi
from .._with import With

if TYPE_CHECKING:
    from ._pair import Side, Target

DEADLINE_S = 20.0
WINDOW = 64  # messages that a sender has posted and whose completions it has not read
_RECEIVES = 2 * WINDOW  # posted by the receiver of a stream
_TAG = 0x77
_POLLS = 64  # polls of an empty queue before the other process and the clock are looked at
_SLEEP_S = 0.1  # of a patient process, before the other process is looked at
_BURST = 64  # matches that are timed together

_RECEIVED, _SENT = "received", "sent"  # contexts

Alive = Callable[[], None] | None
clock = time.perf_counter_ns


@dataclass(frozen=True)
class How:
    """Messages of a measurement.

    Attributes:
        kind: Kind of the memory: "direct", "foreign".
        inject: Send injected messages, which report no completion; at most inject_size bytes.
        patient: Wait in sread, which yields the core and then sleeps, instead of polling.
    """

    tagged: bool
    kind: str
    size: int
    inject: bool = False
    patient: bool = False


class _Talk:
    """The calls of one process: `send(*send_args)` and `receive(*receive_args)`; poll() counts their completions."""

    def __init__(self, side: Side, peer: int, how: How, alive: Alive) -> None:
        kind, size = how.kind, how.size
        inbox, outbox = side.mr[kind][:size], side.mr[kind][side.mr[kind].length - size :]
        self.send: Callable[..., None]
        self.receive: Callable[..., None]
        self.send_args: tuple[Any, ...]
        self.receive_args: tuple[Any, ...]
        if how.tagged:
            self.send, self.send_args = side.ep.tsend, (outbox, side.desc, peer, _TAG, _SENT)
            self.receive, self.receive_args = side.ep.trecv, (inbox, side.desc, fi.ADDR_UNSPEC, _TAG, 0, _RECEIVED)
        else:
            self.send, self.send_args = side.ep.send, (outbox, side.desc, peer, _SENT)
            self.receive, self.receive_args = side.ep.recv, (inbox, side.desc, fi.ADDR_UNSPEC, _RECEIVED)
        if how.inject:
            self.send = side.ep.tinject if how.tagged else side.ep.inject
            self.send_args = (outbox, peer, _TAG) if how.tagged else (outbox, peer)
        self._cq, self._alive = side.cq, alive
        self.messages = self.sends = 0  # completions read

    def post(self) -> None:
        """Send; poll while the endpoint has no room."""
        while True:
            try:
                self.send(*self.send_args)
                return
            except fi.Again:
                self.poll()

    def poll(self) -> int:
        """Read completions, and count them; returns their number. Raises the error of a failed operation."""
        try:
            found = self._cq.read(WINDOW)
        except fi.Available:
            if self._alive is not None:
                self._alive()
            raise self._cq.readerr().exception() from None
        for entry in found:
            if entry.op_context is _SENT:
                self.sends += 1
            else:
                self.messages += 1
        return len(found)

    def until(self, messages: int, sends: int) -> None:
        """Poll until so many sends and receives have completed. Raises TimedOut after DEADLINE_S without any."""
        deadline = time.monotonic() + DEADLINE_S
        idle = 0
        while self.messages < messages or self.sends < sends:
            idle = 0 if self.poll() else idle + 1
            if idle >= _POLLS:
                idle = 0
                if self._alive is not None:
                    self._alive()
                if time.monotonic() > deadline:
                    raise fi.TimedOut(f"the peer sent nothing within {DEADLINE_S:.0f} s")


def round_trips(side: Side, peer: int, how: How, rounds: int, first: bool, alive: Alive) -> float:
    """Nanoseconds of half a round trip: send, and wait for the answer. Both processes call it, one with first=True.

    Each message finds a posted receive: one more receive than a process waits for is posted, and each is replaced while
    a message is under way.
    """
    talk = _Talk(side, peer, how, alive)
    if how.inject and how.tagged and not how.patient:
        return _injected(talk, side, peer, rounds, first)
    send, send_args, receive, receive_args = talk.send, talk.send_args, talk.receive, talk.receive_args
    read, wait, polls = side.cq.read, side.cq.sread, range(_POLLS)
    receive(*receive_args)
    start, patient = 0, how.patient
    for i in range(rounds + 1):  # the first round waits until the peer is ready, and is not counted
        if i == 1:
            start = clock()
        if first:
            try:
                send(*send_args)
            except fi.Again:
                talk.post()
            if i < rounds:
                receive(*receive_args)
        # HOT: as talk.until(i + 1, 0), without a call of Python for each poll.
        try:
            if patient:
                while talk.messages <= i:
                    for entry in wait(2, None, _SLEEP_S):
                        if entry.op_context is _SENT:
                            talk.sends += 1
                        else:
                            talk.messages += 1
            else:
                for _ in polls:
                    for entry in read(2):
                        if entry.op_context is _SENT:
                            talk.sends += 1
                        else:
                            talk.messages += 1
                    if talk.messages > i:
                        break
        except fi.Again:  # nothing within _SLEEP_S
            pass
        except fi.Available:
            talk.poll()  # raises the failure
        if talk.messages <= i:
            talk.until(i + 1, 0)
        if not first:
            try:
                send(*send_args)
            except fi.Again:
                talk.post()
            if i < rounds:
                receive(*receive_args)
    ns = (clock() - start) / (2 * rounds)
    talk.until(rounds + 1, 0 if how.inject else rounds + 1)
    return ns


def _injected(talk: _Talk, side: Side, peer: int, rounds: int, first: bool) -> float:
    """round_trips of injected tagged messages, which report no completion: each entry is a message that has come."""
    tinject, trecv, read, polls = side.ep.tinject, side.ep.trecv, side.cq.read, range(_POLLS)
    inbox, outbox = talk.receive_args[0], talk.send_args[0]
    trecv(inbox, None, fi.ADDR_UNSPEC, _TAG)
    start = 0
    for i in range(rounds + 1):
        if i == 1:
            start = clock()
        if first:
            try:
                tinject(outbox, peer, _TAG)
            except fi.Again:
                talk.post()
            if i < rounds:
                trecv(inbox, None, fi.ADDR_UNSPEC, _TAG)
        try:  # HOT
            for _ in polls:
                if read(1):
                    break
            else:
                talk.messages = i
                talk.until(i + 1, 0)
        except fi.Available:
            talk.poll()  # raises the failure
        if not first:
            try:
                tinject(outbox, peer, _TAG)
            except fi.Again:
                talk.post()
            if i < rounds:
                trecv(inbox, None, fi.ADDR_UNSPEC, _TAG)
    return (clock() - start) / (2 * rounds)


def stream(side: Side, peer: int, how: How, count: int, first: bool, alive: Alive) -> float:
    """Nanoseconds of `count` messages from the process with first=True, until the answer of the other.

    The receiver posts receives before it tells the sender to begin, and replaces each one that a message took.
    """
    talk = _Talk(side, peer, how, alive)
    send, send_args, receive, receive_args = talk.send, talk.send_args, talk.receive, talk.receive_args
    if first:
        receive(*receive_args)
        talk.until(1, 0)
        receive(*receive_args)
        start = clock()
        posted = 0
        while posted < count:
            room = (count if how.inject else min(count, talk.sends + WINDOW)) - posted
            try:
                for _ in range(room):
                    send(*send_args)
                    posted += 1
            except fi.Again:
                pass
            talk.poll() if posted < count else talk.until(2, 0 if how.inject else count)
        return clock() - start
    posted = min(count, _RECEIVES)
    for _ in range(posted):
        receive(*receive_args)
    talk.post()
    while posted < count:
        talk.until(talk.messages + 1, 0)
        room = min(talk.messages + _RECEIVES, count) - posted
        for _ in range(room):
            receive(*receive_args)
        posted += room
    talk.until(count, 0)
    talk.post()
    talk.until(count, 0 if how.inject else 2)
    return 0.0


_TALKS: Mapping[str, Callable[..., float]] = {"round_trips": round_trips, "stream": stream}


def request(side: Side, peer: int, what: Mapping[str, Any], alive: Alive) -> float:
    """The second process's part: what["do"] is "round_trips" or "stream"."""
    return _TALKS[what["do"]](side, peer, How(**what["how"]), what["count"], False, alive)


def together(side: Side, target: Target, peer: int, do: str, how: How, count: int) -> float:
    """`round_trips` or `stream` between this process and the second one, in nanoseconds."""
    target.tell(do, how=asdict(how), count=count)
    ns = _TALKS[do](side, peer, how, count, True, target.alive)
    target.result()
    return ns


class Matching(With):
    """An endpoint that sends to itself, with `depth` posted receives or unexpected messages, each with its own tag.

    Args:
        provider: Name of a provider; None: the first that has messages.

    Raises:
        NoData: The provider has no endpoint with so many receives.
    """

    def __init__(self, depth: int, unexpected: bool, provider: str | None = None) -> None:
        self.depth, self._unexpected = depth, unexpected
        with contextlib.ExitStack() as stack:
            info = fi.getinfo(hints=self._hints(depth, provider))[0]
            domain = stack.enter_context(stack.enter_context(fi.Fabric(info.fabric_attr)).domain(info))
            self.cq = stack.enter_context(domain.cq_open(size=4 * _BURST, format=fi.CQ_FORMAT_CONTEXT))
            av = stack.enter_context(domain.av_open())
            self._ep = stack.enter_context(domain.endpoint(info))
            self._ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
            self._ep.bind(av)
            self._ep.enable()
            self._me = av.insert(self._ep.getname())
            memory: Any = domain.alloc(128, "u1")
            if domain.mr_mode & fi.MR_LOCAL:
                memory = stack.enter_context(domain.mr_reg(memory, fi.SEND | fi.RECV, requested_key=3))
                if domain.mr_mode & fi.MR_ENDPOINT:
                    memory.bind(self._ep)
                memory.enable()
            self._room, self._text = memory[:8], memory[64:72]
            self._random = random.Random(depth)
            self._stack = stack.pop_all()
        try:
            tags = list(range(depth))
            self._random.shuffle(tags)
            for at in range(0, depth, _BURST):
                self._queue(tags[at : at + _BURST])
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _hints(depth: int, provider: str | None) -> fi.Info:
        modes = fi.MR_ENDPOINT | fi.MR_ALLOCATED | fi.MR_PROV_KEY | fi.MR_LOCAL | fi.MR_VIRT_ADDR
        hints = fi.Info(caps=fi.TAGGED, domain_attr=fi.DomainAttr(mr_mode=modes))
        hints.rx_attr.size = depth + _BURST
        hints.fabric_attr.prov_name = provider
        return hints

    @classmethod
    def possible(cls, depth: int, provider: str | None) -> bool:
        """True if the provider has an endpoint for so many receives."""
        try:
            return bool(fi.getinfo(hints=cls._hints(depth, provider)))
        except fi.NoData:
            return False

    def receive(self, tags: list[int]) -> None:
        """Post a receive for each tag."""
        room, anyone, receive = self._room, fi.ADDR_UNSPEC, self._ep.trecv
        for tag in tags:
            receive(room, None, anyone, tag, 0, None)

    def send(self, tags: list[int]) -> None:
        """Send itself a message with each tag."""
        text, me, send = self._text, self._me, self._ep.tinject
        for tag in tags:
            while True:
                try:
                    send(text, me, tag)
                    break
                except fi.Again:
                    self.cq.read(0)

    def _queue(self, tags: list[int]) -> None:
        """Let the entries wait."""
        if self._unexpected:
            self.send(tags)
            self.cq.read(1)  # progress: the messages arrive; nothing completes
        else:
            self.receive(tags)

    def burst_ns(self) -> float:
        """Nanoseconds of one match: some are made in a row, of random entries, and their completions are read.

        For a posted receive it is a tinject to itself and its completion; for an unexpected message the trecv that
        takes it. The entries are replaced afterwards, so that the depth stays the same.
        """
        tags = self._random.sample(range(self.depth), min(_BURST, self.depth))
        call = self.receive if self._unexpected else self.send
        read, left = self.cq.read, len(tags)
        deadline = time.monotonic() + DEADLINE_S
        start = clock()
        call(tags)
        while left:
            try:
                got = len(read(left))
            except fi.Available:
                raise self.cq.readerr().exception() from None
            left -= got
            if not got and time.monotonic() > deadline:
                raise fi.TimedOut(f"a message to itself did not arrive within {DEADLINE_S:.0f} s")
        ns = (clock() - start) / len(tags)
        self._queue(tags)
        return ns

    def close(self) -> None:
        """Close the objects; the entries end with them."""
        with contextlib.suppress(fi.Busy):  # as Side.close
            self._ep.close()
        self._stack.close()
