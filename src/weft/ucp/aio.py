"""Requests under asyncio: an event loop that watches a worker's descriptor.

A task that awaits a request leaves a future with the request. The thread whose progress() ends the request also
ends the future, so the loop handles only requests that have ended.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .. import _nic, _process
from .._aio import MANUAL_POLL_S, Watched
from .constants import Feature

if TYPE_CHECKING:
    from .request import Request
    from .worker import Worker

# Rounds of progress before the loop runs other tasks.
ROUNDS = 64


def wake(future: asyncio.Future[None]) -> None:
    """End the wait of a task; called with the future by the thread whose progress() ended the request."""

    loop = future.get_loop()
    if asyncio._get_running_loop() is loop:
        _release(future)
    elif not loop.is_closed():
        try:
            loop.call_soon_threadsafe(_release, future)
        except RuntimeError:  # another thread has just closed the loop
            pass


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Watch:
    """Progresses one worker in one event loop while requests are awaited there."""

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self._worker = worker
        self._loop = loop
        self._awaited = 0
        self._polls = not worker.context.features & Feature.WAKEUP or _process.nic().engine == "manual"
        self._timer: asyncio.TimerHandle | None = None
        self._again: asyncio.Handle | None = None
        # Without the feature WAKEUP, or an engine thread, the loop polls instead.
        self._watched = None if self._polls else Watched(loop, worker.get_efd(), self._progress)

    async def settled(self, request: Request) -> None:
        """Return when the request has ended."""
        future = self._loop.create_future()
        if not request.add_waiter(future):
            return
        self._awaited += 1
        try:
            self._progress()
            await future
        finally:
            self._awaited -= 1
            request.drop_waiter(future)

    def _progress(self) -> None:
        """Progress the worker until no work is left, or until it is the turn of other tasks.

        The event loop reports the exception of a callback, so that the tasks that await other requests continue.
        """
        self._again = None
        for _ in range(ROUNDS):
            if self._worker.closed:  # a callback may have closed the worker
                self.close()
                return
            try:
                if not self._worker.progress() and (self._polls or self._worker.arm()):
                    break
            except Exception as error:
                self._loop.call_exception_handler(
                    {"message": "a callback of a weft.ucp request failed", "exception": error}
                )
        else:
            self._again = self._loop.call_soon(self._progress)
            return
        if self._polls and self._timer is None and self._awaited:
            self._timer = self._loop.call_later(MANUAL_POLL_S, self._poll)

    def _poll(self) -> None:
        self._timer = None
        self._progress()

    def close(self) -> None:
        """End the watch, from any thread."""
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.close()


_nic.set_ucp_waker(wake)
