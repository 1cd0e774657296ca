"""ucs_status_t, and the exception that carries it.

Source: ucs/type/status.h.
"""

from __future__ import annotations

import enum
import errno as _errno
from typing import Any

from .. import _nic, errors
from ..flags import Errno


class Status(enum.IntEnum):
    """How a call or an operation ended (ucs_status_t)."""

    OK = 0
    INPROGRESS = 1
    ERR_NO_MESSAGE = -1
    ERR_NO_RESOURCE = -2
    ERR_IO_ERROR = -3
    ERR_NO_MEMORY = -4
    ERR_INVALID_PARAM = -5
    ERR_UNREACHABLE = -6
    ERR_INVALID_ADDR = -7
    ERR_NOT_IMPLEMENTED = -8
    ERR_MESSAGE_TRUNCATED = -9
    ERR_NO_PROGRESS = -10
    ERR_BUFFER_TOO_SMALL = -11
    ERR_NO_ELEM = -12
    ERR_SOME_CONNECTS_FAILED = -13
    ERR_NO_DEVICE = -14
    ERR_BUSY = -15
    ERR_CANCELED = -16
    ERR_SHMEM_SEGMENT = -17
    ERR_ALREADY_EXISTS = -18
    ERR_OUT_OF_RANGE = -19
    ERR_TIMED_OUT = -20
    ERR_EXCEEDS_LIMIT = -21
    ERR_UNSUPPORTED = -22
    ERR_REJECTED = -23
    ERR_NOT_CONNECTED = -24
    ERR_CONNECTION_RESET = -25
    ERR_ENDPOINT_TIMEOUT = -80


_TEXT = {
    Status.OK: "Success",
    Status.INPROGRESS: "Operation in progress",
    Status.ERR_NO_MESSAGE: "No pending message",
    Status.ERR_NO_RESOURCE: "No resources are available to initiate the operation",
    Status.ERR_IO_ERROR: "Input/output error",
    Status.ERR_NO_MEMORY: "Out of memory",
    Status.ERR_INVALID_PARAM: "Invalid parameter",
    Status.ERR_UNREACHABLE: "Destination is unreachable",
    Status.ERR_INVALID_ADDR: "Address not valid",
    Status.ERR_NOT_IMPLEMENTED: "Function not implemented",
    Status.ERR_MESSAGE_TRUNCATED: "Message truncated",
    Status.ERR_NO_PROGRESS: "No progress",
    Status.ERR_BUFFER_TOO_SMALL: "Provided buffer is too small",
    Status.ERR_NO_ELEM: "No such element",
    Status.ERR_SOME_CONNECTS_FAILED: "Failed to connect some of the requested endpoints",
    Status.ERR_NO_DEVICE: "No such device",
    Status.ERR_BUSY: "Device is busy",
    Status.ERR_CANCELED: "Request canceled",
    Status.ERR_SHMEM_SEGMENT: "Shared memory error",
    Status.ERR_ALREADY_EXISTS: "Element already exists",
    Status.ERR_OUT_OF_RANGE: "Index out of range",
    Status.ERR_TIMED_OUT: "Operation timed out",
    Status.ERR_EXCEEDS_LIMIT: "User-defined limit was reached",
    Status.ERR_UNSUPPORTED: "Unsupported operation",
    Status.ERR_REJECTED: "Operation rejected by remote peer",
    Status.ERR_NOT_CONNECTED: "Endpoint is not connected",
    Status.ERR_CONNECTION_RESET: "Connection reset by remote peer",
    Status.ERR_ENDPOINT_TIMEOUT: "Endpoint timeout",
}

_ERRNO = {
    Status.ERR_NO_RESOURCE: _errno.EAGAIN,
    Status.ERR_NO_MEMORY: _errno.ENOMEM,
    Status.ERR_INVALID_PARAM: _errno.EINVAL,
    Status.ERR_UNREACHABLE: _errno.EHOSTUNREACH,
    Status.ERR_INVALID_ADDR: _errno.EFAULT,
    Status.ERR_NOT_IMPLEMENTED: _errno.ENOSYS,
    Status.ERR_NO_DEVICE: _errno.ENODEV,
    Status.ERR_BUSY: _errno.EBUSY,
    Status.ERR_CANCELED: _errno.ECANCELED,
    Status.ERR_TIMED_OUT: _errno.ETIMEDOUT,
    Status.ERR_UNSUPPORTED: _errno.EOPNOTSUPP,
    Status.ERR_REJECTED: _errno.ECONNREFUSED,
    Status.ERR_NOT_CONNECTED: _errno.ENOTCONN,
    Status.ERR_CONNECTION_RESET: _errno.ECONNRESET,
    Status.ERR_ENDPOINT_TIMEOUT: _errno.ETIMEDOUT,
}


def status_string(status: int) -> str:
    """UCX's text of a status (ucs_status_string)."""
    try:
        return _TEXT[Status(status)]
    except (ValueError, KeyError):
        pass
    if not isinstance(status, int):
        raise TypeError(f"status_string: status must be an int, not {status!r:.60}")
    return f"Unknown error {status}"


class UcsError(OSError):
    """A UCP call or operation failed.

    Attributes:
        status: The `Status`, negative as in C.
        errno: The nearest error number of the system.
        message: What was asked, what was found, which rule, what to do.
    """

    def __init__(self, status: int, message: str = "") -> None:
        self.status = Status(status)
        self.message = message or status_string(status)
        super().__init__(_ERRNO.get(self.status, _errno.EIO), self.message)

    def __str__(self) -> str:
        return f"{self.status.name}: {self.message}"

    def __reduce__(self) -> Any:
        return type(self), (int(self.status), self.message)


def invalid(message: str) -> UcsError:
    """The error of an argument, or of an object in a state, that the call does not take: ERR_INVALID_PARAM."""
    return UcsError(Status.ERR_INVALID_PARAM, message)


def unsupported(message: str) -> UcsError:
    """The error of what Weft does not do: ERR_UNSUPPORTED."""
    return UcsError(Status.ERR_UNSUPPORTED, message)


# Errors of the NIC and of the shared helpers, which use libfabric's codes.
_OF_FABRIC: dict[int, Status] = {
    Errno.ENOMEM: Status.ERR_NO_MEMORY,
    Errno.ENOSPC: Status.ERR_NO_MEMORY,
    Errno.EMFILE: Status.ERR_NO_MEMORY,
    Errno.EBUSY: Status.ERR_BUSY,
    Errno.EAGAIN: Status.ERR_NO_RESOURCE,
    Errno.EHOSTUNREACH: Status.ERR_UNREACHABLE,
    Errno.ETIMEDOUT: Status.ERR_TIMED_OUT,
    Errno.ECANCELED: Status.ERR_CANCELED,
    Errno.EOPNOTSUPP: Status.ERR_UNSUPPORTED,
    Errno.ENOSYS: Status.ERR_UNSUPPORTED,
    Errno.EIO: Status.ERR_IO_ERROR,
    Errno.EFAULT: Status.ERR_INVALID_ADDR,
}


def of(reason: BaseException) -> BaseException:
    """Convert an exception of the shared helpers to a UcsError; other exceptions are returned unchanged."""
    if not isinstance(reason, errors.FabricError):
        return reason
    found = UcsError(_OF_FABRIC.get(reason.errno or 0, Status.ERR_INVALID_PARAM), reason.message)
    found.__cause__ = None
    return found


def _make(status: int | None, what: Any) -> BaseException:
    return of(what) if status is None else UcsError(status, what)


_nic.set_ucs_error(_make)
