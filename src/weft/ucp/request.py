"""Requests: operations under way (what a UCP status pointer points to)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from .. import _nic
from .status import Status, UcsError, status_string

if TYPE_CHECKING:
    from .worker import Worker

__all__ = ["DONE", "Request"]

# Another thread's progress() may take this one's completion off the queue, and nothing wakes a sleeper then: it looks
# for itself this often.
LOOK_S = 0.02


class Request(_nic.UcpRequestCore):
    """An operation that was posted; `await` it, `wait()` for it, or look at `status` while the worker progresses.

    False as a truth value: the operation was done when the call returned, which C tells by NULL; its callback is not
    called. The request is then always the same object, `DONE`.

        request = ep.put_nbx(data, address, rkey)
        if request:
            request.wait()

    worker   that it is progressed by; ep: the endpoint that it was posted on, None for a worker's flush.
    text     why it failed, in words.

    Thread safety: as the worker's. Source: UCP, "ucp_request_check_status", "ucp_request_free".
    """

    __slots__ = ()  # one is made for every operation that takes time

    @property
    def status(self) -> Status:
        """INPROGRESS, OK, or how it failed."""
        return Status(self.status_code)

    def check_status(self) -> Status:
        """As `status` (ucp_request_check_status)."""
        return Status(self.status_code)

    @property
    def done(self) -> bool:
        """True once it has ended, well or not."""
        return self.status_code != Status.INPROGRESS

    def result(self) -> None:
        """Raise UcsError if it failed; BUSY while it is under way."""
        code = self.status_code
        if code == Status.OK:
            return
        if code == Status.INPROGRESS:
            raise UcsError(Status.ERR_BUSY, "the operation is under way\n  try: request.wait(), or worker.progress()")
        raise UcsError(code, self.text or status_string(code))

    def wait(self, timeout: float | None = None) -> None:
        """Progress the worker until the operation has ended.

        timeout   seconds; None: forever.

        Raises UcsError: how the operation failed; TIMED_OUT, and it is still under way.
        """
        if self.status_code == Status.OK:
            return
        worker: Worker = self.worker
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            if worker.progress():
                continue
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise UcsError(Status.ERR_TIMED_OUT, f"no completion in {timeout:g} s; the operation goes on")
            worker.wait_core(LOOK_S if left is None else min(left, LOOK_S))
        self.result()

    def cancel(self) -> None:
        """Ask for an early end (ucp_request_cancel): CANCELED, where the operation had not begun."""
        if self and not self.done:
            self.worker.request_cancel(self)

    def free(self) -> None:
        """Hear no more of it (ucp_request_free): its callback is not called. It goes on; a flush tells of a failure."""
        if self:
            self.freed = True

    def __await__(self) -> Generator[Any, None, None]:
        """Wait for the end without keeping the event loop from other tasks. Raises UcsError."""
        if not self.done:
            yield from _settle(self).__await__()
        self.result()

    def __repr__(self) -> str:
        if not self:
            return "<ucp.Request: done in place>"
        if not self.done:
            return "<ucp.Request: in progress>"
        return f"<ucp.Request: {self.status.name}>"


async def _settle(request: Request) -> None:
    watch = request.worker._watch(asyncio.get_running_loop())
    await watch.settled(request)


DONE = Request()
"""The request of what was done when the call returned."""

_nic.set_ucp_request(Request, DONE)
