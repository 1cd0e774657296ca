"""Calls that the NIC of an array's owner executes in the owner's memory, and watches of its bytes (wire/call.hpp).

A call that cannot be done yet can be parked there: the answer is the signal. Meanwhile the caller sleeps on its
completion queue, or its event loop watches the queue's descriptor.

    Request, Answer      what is sent, and what comes back
    ask, aask            one call and its answer, for a thread and for an event loop
    APosted              one call under way, for an event loop
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import _nic, _process, errors
from ..names.ticket import process_start
from .explain import explain, unanswered
from .lane import FailedOperation

if TYPE_CHECKING:
    from .aio import LoopLane
    from .attached import Attached

PARK, WATCH, CANCEL, MAPPED, GIVEN_UP = 1, 2, 4, 8, 16
"""Flags of a request."""
DONE, AGAIN, CANCELED = map(int, (_nic.SyncOutcome.done, _nic.SyncOutcome.again, _nic.SyncOutcome.canceled))
"""Outcomes that all calls have."""
_REQUEST = struct.Struct("<HHIIIIIQQQQQ")
_ANSWER = struct.Struct("<IIQQQQ")
CALL_BYTES_MAX = 4096 - _REQUEST.size
"""Bytes that a request or an answer can carry."""
# Further outcomes of SyncCore._ask: no lane is idle; the lane has an error; no answer came.
_NO_LANE, _FAILED, _SILENT = 102, 103, 104
# The other outcomes are as in cpp/call/ask.hpp.
RENEW_S = 5.0
"""A parked call is canceled and asked again after so many seconds. So a signal that was lost with a process, and a
process whose end nobody reported, delay a call no longer than that."""
# While the owner's NIC has no room for parked calls: pauses between two requests.
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.001, 0.1
# How long the answer to a cancellation may take; after that the call is given up.
_CANCEL_S = 2.0
_LONG_S = 1e6

_ids = itertools.count(1)  # numbers below those of cpp/bind/asking.cpp
_own: tuple[int, int, int, int] | None = None  # generation, and what identity() returns


def identity() -> tuple[int, int, int]:
    """(pid, start, token) of this process: by pid and start time others see whether it runs; the token is random."""
    global _own
    found = _own
    if found is None or found[0] != _process.generation:
        pid = os.getpid()
        start = process_start(pid) & 0xFFFFFFFF
        found = _own = _process.generation, pid, start, int.from_bytes(os.urandom(8), "little")
    return found[1:]


class Request(NamedTuple):
    """One call.

    Attributes:
        op: Number of a sync::Op.
        a: First argument of the op.
        b: Second argument of the op.
        data: Bytes to send: a record, or the bytes that a watch has seen.
        room: Bytes that the answer may bring.
        state: State of a wait that goes on.
    """

    op: int
    flags: int = 0
    a: int = 0
    b: int = 0
    data: bytes = b""
    room: int = 0
    state: int = 0

    def pack(self, number: int) -> bytes:
        pid, start, token = identity()
        head = _REQUEST.pack(
            self.op,
            self.flags,
            pid,
            start,
            len(self.data),
            self.room,
            0,
            token,
            number,
            self.a,
            self.b,
            self.state,
        )
        size = max(_REQUEST.size + len(self.data), _ANSWER.size + self.room)
        return (head + self.data).ljust(size, b"\0")


class Answer(NamedTuple):
    """The result of a call: an outcome of sync::Outcome, and its values."""

    outcome: int
    value: int
    value2: int
    value3: int
    state: int
    data: bytes

    @classmethod
    def parse(cls, raw: bytearray) -> Answer:
        outcome, length, value, value2, value3, state = _ANSWER.unpack_from(raw)
        return cls(outcome, value, value2, value3, state, bytes(raw[_ANSWER.size : _ANSWER.size + length]))


_CANCELED_ANSWER = Answer(CANCELED, 0, 0, 0, 0, b"")


class _Call:
    """A call under way: its number, and the memory of its answer."""

    __slots__ = ("answer", "array", "number", "request", "what")

    def __init__(self, array: Attached, what: str, request: Request) -> None:
        self.array = array
        self.what = what
        self.number = next(_ids)
        self.request = request.pack(self.number)
        self.answer = bytearray(len(self.request))

    def post(self, ep: Any, context: Any) -> None:
        array = self.array
        _nic.post_call(ep, array._peer, array._base, array._key, self.request, self.answer, context)

    def canceling(self, more: int = 0) -> _Call:
        return _Call(self.array, self.what, Request(1, CANCEL | more, a=self.number))


def ask(
    core: Any,
    array: Attached,
    what: str,
    request: Request,
    timeout: float | None,
    leaves: bool = False,
    also: Callable[[], bool] | None = None,
) -> Answer:
    """One call and its answer, which has the outcome AGAIN if the call was not possible within `timeout` seconds.

    A signal handler that raises (Ctrl-C) ends the wait, and the call is withdrawn before (cpp/bind/asking.hpp). leaves:
    a party that waits no longer leaves its barrier. also: called from time to time during the wait, which ends with the
    outcome AGAIN when the function returns true.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    state = request.state
    while True:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        node = array._node
        patience = 30.0 if node is None or node.timeout is None else node.timeout
        found = core._ask(
            array,
            identity(),
            request.op,
            request.flags,
            request.a,
            request.b,
            request.data,
            request.room,
            left,
            patience,
            state,
            leaves,
            also,
        )
        outcome, lane = found[0], found[5]
        if outcome not in (_NO_LANE, _FAILED, _SILENT):
            return Answer(*found)
        if outcome == _NO_LANE:
            array._push(array._lane(what))
            continue
        node, state = array._node, found[4]
        assert node is not None
        if outcome == _FAILED:
            node._check(what)
            entry = lane.cq.readerr()
            node._drop(lane)
            raise explain(array, entry, what) from None
        if left == 0:
            raise unanswered(array, what, node.timeout)
        if (also is not None and also()) or (deadline is not None and time.monotonic() >= deadline):
            return Answer(AGAIN, 0, 0, 0, state, b"")


class APosted:
    """A call under way on the lane of an event loop. `wait` for it, then `end` it."""

    def __init__(self, array: Attached, what: str, request: Request, lane: LoopLane) -> None:
        self._array = array
        self._what = what
        self._lane = lane
        self._call = _Call(array, what, request)
        self._wait: Any = None

    async def start(self) -> None:
        self._wait = await self._lane.start(self._call.post)

    async def wait(self, seconds: float) -> Answer | None:
        """The answer, if it comes within so many seconds. Raises the errors of the array."""
        try:
            done = await self._lane.finished(self._wait, seconds)
        except FailedOperation as failed:
            raise explain(self._array, failed.entry, self._what) from None
        return Answer.parse(self._call.answer) if done else None

    def abandon(self, undo: Callable[[Answer], Any] | None = None) -> None:
        """Give the call up without an await: the task is being canceled, and its loop may end at once.

        Args:
            undo: Returns an awaitable that undoes an answer. Needed if the NIC had forgotten the call, which takes
                many calls of other threads meanwhile, and the loop goes on.
        """
        try:
            given_up, giving_up = self.give_up()
        except errors.FabricError:
            return  # the object has ended
        if undo is not None and not self._lane._loop.is_closed():
            _background(self._lane._loop, self._undo(undo, given_up, giving_up))

    async def _undo(self, undo: Callable[[Answer], Any], given_up: Any, giving_up: _Call) -> None:
        with contextlib.suppress(errors.FabricError, FailedOperation):  # the object has ended
            if not await self._lane.finished(given_up, _CANCEL_S) or Answer.parse(giving_up.answer).value:
                return
            late = await self.wait(_CANCEL_S)
            if late is not None and (late.outcome == DONE or late.state):
                await undo(late)

    def give_up(self) -> tuple[Any, _Call]:
        """Have the owner's NIC end the call, and undo what the call did: at once, or when its process continues."""
        giving_up = self._call.canceling(GIVEN_UP)
        return self._lane.start_now(giving_up.post), giving_up

    async def end(self, patience: float = _CANCEL_S) -> Answer:
        """Cancel the call, if it has no answer yet. Returns the answer: the call's own, or that of the cancellation.
        The call is given up after so many seconds without an answer to the cancellation.
        """
        if not self._wait.done:
            canceling = self._call.canceling()
            try:
                canceled = await self._lane.start(canceling.post)
                answered = await self._lane.finished(canceled, patience) and await self.wait(patience) is not None
                if not answered and not self._wait.done:
                    self.give_up()
                    return _CANCELED_ANSWER
            except FailedOperation as failed:
                raise explain(self._array, failed.entry, self._what) from None
        if self._wait.error is not None:
            raise explain(self._array, self._wait.error, self._what)
        return Answer.parse(self._call.answer)


async def aask(
    array: Attached, what: str, request: Request, timeout: float | None, *, undo: Callable[[Answer], Any] | None = None
) -> Answer:
    """`ask` on an event loop. A task that is canceled cancels its call; if the answer came all the same, it is undone.

    Args:
        undo: A function that returns an awaitable.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    pause = _PAUSE_S_MIN
    node = array._node
    assert node is not None
    lane = node._loop_lane(loop, what)
    while True:
        left = None if deadline is None else max(deadline - loop.time(), 0.0)
        waits = left is None or left > 0
        posted = APosted(array, what, request._replace(flags=request.flags | (PARK if waits else 0)), lane)
        await posted.start()
        try:
            if waits:
                await posted.wait(RENEW_S if left is None else min(left, RENEW_S))
            elif await posted.wait(30.0 if node.timeout is None else node.timeout) is None:
                posted.give_up()
                raise unanswered(array, what, node.timeout)
            # The owner may park the call for as long as the caller may wait.
            left = _LONG_S if deadline is None else max(deadline - loop.time(), 0.0)
            answer = await posted.end(left + _CANCEL_S)
        except errors.FabricError:
            raise
        except BaseException:
            posted.abandon(undo)
            raise
        if answer.outcome not in (AGAIN, CANCELED):
            return answer
        request = request._replace(state=answer.state or request.state)
        if deadline is not None and (not waits or loop.time() >= deadline):
            return answer._replace(outcome=AGAIN, state=request.state)
        if answer.outcome == AGAIN:
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 2, _PAUSE_S_MAX)


def do_eventually(array: Attached, what: str, request: Request) -> None:
    """Have the owner's NIC do a call that gives something back, as soon as it can. Nobody waits for an answer.

    Raises the errors of posting: the object has ended.
    """
    import asyncio

    node = array._node
    assert node is not None
    call = _Call(array, what, request)
    lane = node._loop_lane(asyncio.get_running_loop(), what)
    lane.start_now(call.post)
    lane.start_now(call.canceling(GIVEN_UP).post)  # if the call was not possible, the NIC keeps it


_background_tasks: set[Any] = set()


def _background(loop: Any, work: Any) -> None:
    task = loop.create_task(work)
    _background_tasks.add(task)
    task.add_done_callback(_background_tasks.discard)
