"""Requests under asyncio: an event loop that watches a worker's descriptor."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from .. import _process
from .constants import Feature

if TYPE_CHECKING:
    from .request import Request
    from .worker import Worker

__all__ = ["Watch"]

# Without the feature WAKEUP, or an engine thread, nothing wakes the loop: it looks for itself this often.
POLL_S = 0.001
# And with them, where somebody else's progress() took the completion off the queue before the loop saw it.
LOOK_S = 0.02


class Watch:
    """Progresses one worker in one event loop while requests are awaited there."""

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self._worker = worker
        self._loop = loop
        self._waiting: dict[asyncio.Future[None], Request] = {}
        self._polls = not worker.context.features & Feature.WAKEUP or _process.nic().engine == "manual"
        self._timer: asyncio.TimerHandle | None = None
        self._fd = -1
        if not self._polls:
            # A descriptor of our own: the loop may still watch it when the worker has closed its one.
            self._fd = os.dup(worker.get_efd())
            loop.add_reader(self._fd, self._progress)

    async def settled(self, request: Request) -> None:
        """Return when the request has ended."""
        future = self._loop.create_future()
        self._waiting[future] = request
        try:
            self._progress()
            await future
        finally:
            self._waiting.pop(future, None)

    def _progress(self) -> None:
        if self._worker.closed:
            self.close()
            return
        while self._worker.progress() or not (self._polls or self._worker.arm()):
            pass
        for future, request in list(self._waiting.items()):
            if request.done and not future.done():
                future.set_result(None)
        if self._timer is None and self._waiting:
            self._timer = self._loop.call_later(POLL_S if self._polls else LOOK_S, self._poll)

    def _poll(self) -> None:
        self._timer = None
        self._progress()

    def close(self) -> None:
        """Watch no more. What is awaited still is looked at once more when the loop runs."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(fd)
            os.close(fd)
        for future in list(self._waiting):
            if not future.done() and not self._loop.is_closed():
                self._loop.call_soon(_release, future)


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
