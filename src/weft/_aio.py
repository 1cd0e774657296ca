"""A descriptor that an asyncio event loop watches, for as long as its user is open."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

# Without an engine thread nothing makes the descriptor readable while the loop sleeps: the loop polls this often.
MANUAL_POLL_S = 0.001


class Watched:
    """A duplicate of a descriptor, so that the owner may close the original while the loop still watches."""

    __slots__ = ("_fd", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, on_readable: Callable[[], None]) -> None:
        self._loop = loop
        self._fd = os.dup(fd)
        try:
            loop.add_reader(self._fd, on_readable)
        except BaseException:
            os.close(self._fd)
            raise

    def close(self, then: Callable[[], None] | None = None) -> None:
        """End the watch, from any thread. `then` is called afterwards in the loop's thread, unless the loop is
        closed. A second call has no effect on the descriptor."""
        fd, self._fd = self._fd, -1

        def end() -> None:
            if fd >= 0:
                self._loop.remove_reader(fd)
                os.close(fd)
            if then is not None:
                then()

        if self._loop.is_running() and asyncio._get_running_loop() is not self._loop:
            try:
                self._loop.call_soon_threadsafe(end)
                return
            except RuntimeError:  # the other thread has just closed the loop
                pass
        if not self._loop.is_closed():
            end()
        elif fd >= 0:
            os.close(fd)
