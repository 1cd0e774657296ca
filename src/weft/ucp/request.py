"""Requests: operations under way (what a UCP status pointer points to)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from .. import _nic
from .status import Status, UcsError, invalid, status_string

if TYPE_CHECKING:
    from .worker import Worker


def deadline_of(timeout: Any, op: str) -> float | None:
    """The time at which a timeout ends; None: no limit. Raises TypeError, UcsError (INVALID_PARAM)."""
    if timeout is None:
        return None
    if not isinstance(timeout, (int, float)):
        if isinstance(timeout, str) or not hasattr(timeout, "__float__"):
            raise TypeError(f"{op}: timeout is {timeout!r:.60}; it has to be seconds, or None")
        timeout = float(timeout)
    if isinstance(timeout, int) and timeout.bit_length() > 1000:
        timeout = math.copysign(math.inf, timeout)
    if math.isnan(timeout):
        raise invalid(f"{op}: timeout is nan\n  try: seconds, or None to wait forever")
    return time.monotonic() + float(timeout)


class Request(_nic.UcpRequestCore):
    """A posted operation: `await` the request, call `wait()`, or check `status` while the worker progresses.

    A request is false if the operation was done when the call returned (NULL in C); its callback is not called. Such a
    request is always the same object, `DONE`.

        request = ep.put_nbx(data, address, rkey)
        if request:
            request.wait()

    Attributes:
        worker: The worker that progresses the request.
        ep: The endpoint of the operation, None for a worker's flush.
        text: The reason of a failure, in words.

    The callback, `status`, `result()`, `wait()` and `await` report a failure. If none of them has reported it, because
    the request was dropped or never checked, the next flush reports the failure, or closing the endpoint does.

    Thread safety: as the worker's. Source: UCP, "ucp_request_check_status", "ucp_request_free".
    """

    __slots__ = ()  # each operation that takes time makes a request

    @property
    def status(self) -> Status:
        """INPROGRESS, OK, or the status of the failure."""
        return Status(self.status_code)

    def check_status(self) -> Status:
        """As `status` (ucp_request_check_status)."""
        return Status(self.status_code)

    @property
    def done(self) -> bool:
        """True after the operation has ended, also after a failure."""
        return self.ended

    def result(self) -> None:
        """Raise UcsError if the operation failed, or (BUSY) while it is under way."""
        code = self.status_code
        if code == Status.OK:
            return
        if code == Status.INPROGRESS:
            raise UcsError(Status.ERR_BUSY, "the operation is under way\n  try: request.wait(), or worker.progress()")
        raise UcsError(code, self.text or status_string(code))

    def wait(self, timeout: float | None = None) -> None:
        """Progress the worker until the operation has ended.

        Args:
            timeout: Seconds; None: no limit; 0 or less: progress while there is work, without sleeping.

        Several threads may wait, for the same request or for different requests.

        Raises:
            UcsError: The failure of the operation; TIMED_OUT (the operation is still under way).
        """
        deadline = deadline_of(timeout, "request.wait")
        while not self.ended:
            worker: Worker = self.worker
            if worker.progress():
                continue
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise UcsError(Status.ERR_TIMED_OUT, f"no completion in {timeout:g} s; the operation continues")
            worker.wait_core(left, self)
        self.result()

    def cancel(self) -> None:
        """Cancel the operation if it has not begun (ucp_request_cancel): it then ends as CANCELED."""
        if self and not self.done:
            self.worker.request_cancel(self)

    def free(self) -> None:
        """Release the request (ucp_request_free).

        The operation continues without its callback; the next flush reports a failure. An endpoint that is closing
        closes all the same.
        """
        ep = self.ep
        if self and (ep is None or ep._closing is not self):  # the callback of a close is the endpoint's own
            self.freed = True

    def __await__(self) -> Generator[Any, None, None]:
        """Wait for the end of the operation without blocking the event loop. Raises UcsError."""
        if not self.done:
            yield from _settle(self).__await__()
        self.result()

    def __repr__(self) -> str:
        if not self:
            return "<ucp.Request: done in place>"
        if not self.done:
            return "<ucp.Request: in progress>"
        return f"<ucp.Request: {Status(self.peeked).name}>"


async def _settle(request: Request) -> None:
    watch = request.worker._watch(asyncio.get_running_loop())
    await watch.settled(request)


DONE = Request()
"""The request of every operation that was done when its call returned."""

_nic.set_ucp_request(Request, DONE)
