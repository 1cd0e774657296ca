"""Remote arrays under asyncio: a lane for each event loop, with a descriptor that the loop watches.

An operation that completes in the call that posts it, as load and store do, needs no turn of the loop. After every
TURN_EVERY-th such operation the task yields to the loop once, so that other tasks are not starved. Nothing spins.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from ... import _process, errors, fi
from ..._aio import MANUAL_POLL_S, Watched
from .lane import FailedOperation, Lane, Post, answers_so_far

if TYPE_CHECKING:
    from ..node import Node

TURN_EVERY = 64
QUEUE_SIZE = 1024
_ATTEMPTS = 100


class _Wait:
    """One operation under way: the context of its completion."""

    __slots__ = ("done", "error", "future")

    def __init__(self) -> None:
        self.done = False
        self.error: fi.CqErrEntry | None = None
        self.future: asyncio.Future[None] | None = None


class LoopLane(Lane):
    """The lane of one event loop. Used only in the loop's thread; any thread may close it."""

    __slots__ = ("_immediate", "_loop", "_manual", "_pending", "_watched")

    _pending: set[_Wait]

    def __init__(self, node: Node, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(node, wait_obj=fi.WAIT_FD, size=QUEUE_SIZE)
        self._loop = loop
        self._pending = set()
        self._immediate = 0
        self._manual = _process.nic().engine == "manual"
        try:
            self._watched = Watched(loop, self.cq.fd, self._drain)
        except BaseException:
            super().close()
            raise

    def _try_to_post(self, post: Post) -> _Wait | None:
        """None: the queue is full, until operations under way end."""
        wait = _Wait()
        self._pending.add(wait)
        try:
            post(self.ep, wait)
        except BaseException as failed:
            self._pending.discard(wait)
            if not isinstance(failed, errors.Again):
                raise
            self._drain()
            return None
        return wait

    async def start(self, post: Post) -> _Wait:
        """Post one operation, for `finished`."""
        while (wait := self._try_to_post(post)) is None:
            await asyncio.sleep(MANUAL_POLL_S)
        return wait

    def start_now(self, post: Post) -> _Wait:
        """`start` without a turn of the loop. Raises Again if the queue stays full for 0.1 s."""
        for _attempt in range(_ATTEMPTS):
            if (wait := self._try_to_post(post)) is not None:
                return wait
            time.sleep(MANUAL_POLL_S)
        raise errors.Again("the queue of the event loop's lane stays full\n  try: fewer calls at a time")

    async def finished(self, wait: _Wait, timeout: float) -> bool:
        """Wait at most so many seconds for an operation that was started. Raises FailedOperation."""
        self._drain()
        if not wait.done:
            wait.future = self._loop.create_future()
            if self._manual:
                self._loop.call_later(MANUAL_POLL_S, self._poll)
            await asyncio.wait((wait.future,), timeout=timeout)
        if wait.error is not None:
            raise FailedOperation(wait.error)
        return wait.done

    async def run(self, posts: list[Post]) -> None:  # type: ignore[override]
        """Post operations and wait for all. Raises FailedOperation for the first failed operation."""
        waits = [await self.start(post) for post in posts]
        self._drain()
        for wait in waits:
            if not wait.done:
                wait.future = self._loop.create_future()
                if self._manual:
                    self._loop.call_later(MANUAL_POLL_S, self._poll)
                answers = -1
                while not wait.future.done() and answers != (answers := answers_so_far()):  # while pieces arrive
                    await asyncio.wait((wait.future,), timeout=self.timeout)
                if not wait.future.done():  # the operation stays in _pending, because it uses its buffers until it ends
                    raise errors.TimedOut(f"no completion in {self.timeout:g} s")
                wait.future.result()
        failed = next((wait.error for wait in waits if wait.error is not None), None)
        if failed is not None:
            raise FailedOperation(failed)
        self._immediate += 1
        if self._immediate % TURN_EVERY == 0:
            await asyncio.sleep(0)

    def _drain(self) -> None:
        """Give completions to the tasks that wait for them. The loop calls this when the descriptor is readable."""
        while True:
            try:
                entries = self.take(64)
            except errors.Available:
                entry = self.cq.readerr()
                self._settle(entry.op_context, entry)
                continue
            except errors.BadState:  # closed
                return
            for done in entries:
                self._settle(done.op_context, None)
            if not entries and (not self._pending or self.cq.trywait()):
                return

    def _settle(self, wait: Any, error: fi.CqErrEntry | None) -> None:
        if not isinstance(wait, _Wait):
            return
        self._pending.discard(wait)
        wait.done = True
        wait.error = error
        future = wait.future
        if future is not None and not future.done():
            future.set_result(None)

    def _poll(self) -> None:
        self._drain()
        if self._pending:
            self._loop.call_later(MANUAL_POLL_S, self._poll)

    def close(self) -> None:
        """Close the lane, from any thread. Operations under way end with an error."""
        super().close()
        self._watched.close(self._cancel)

    def _cancel(self) -> None:
        for wait in list(self._pending):
            self._settle(wait, _CANCELED)


_CANCELED = fi.CqErrEntry(
    None, 0, 0, 0, 0, 0, 0, int(fi.ECANCELED), 0, b"the endpoint was closed", fi.ADDR_NOTAVAIL, fi.Status.canceled
)
