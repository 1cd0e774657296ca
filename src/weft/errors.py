"""Weft's errors: one exception type, a subclass for each code that callers handle.

`FabricError` is an `OSError`; `.errno` is the fabric error number (positive; the C calls return the number negated).
Where Python has a class for the same error, the subclass derives from that class as well: `fi.TimedOut` is a
`TimeoutError`, `fi.Again` a `BlockingIOError`.

The extension raises everything through `make`, so that a code has the same class wherever the error occurs.

Source: fi_errno(3), <rdma/fi_errno.h>.
"""

from __future__ import annotations

import errno as _system
from typing import Any

from .flags import Errno

__all__ = [
    "AccessDenied",
    "AddressInUse",
    "Again",
    "Available",
    "BadFlags",
    "BadState",
    "Busy",
    "Canceled",
    "ConnectionRefused",
    "ConnectionReset",
    "FabricError",
    "Fault",
    "Interrupted",
    "InvalidArgument",
    "KeyRejected",
    "MessageTooLong",
    "NoAv",
    "NoCq",
    "NoData",
    "NoDevice",
    "NoEq",
    "NoKey",
    "NoMemory",
    "NoMr",
    "NoProtocolOption",
    "NoSpace",
    "NoSys",
    "NotAvailable",
    "NotFound",
    "NotPermitted",
    "NotSupported",
    "Overrun",
    "Replaced",
    "TimedOut",
    "TooSmall",
    "Truncated",
    "Unreachable",
    "WrongDomain",
    "strerror",
]


class FabricError(OSError):
    """A fabric call failed.

    Attributes:
        errno: Fabric error number, positive (`fi.EAGAIN`, `fi.ENOKEY` ...).
        strerror: The message: what was asked, what was found, which rule, what to do.
        peer: fi_addr of the peer concerned, or None.
        completion: The `CqErrEntry` that reported it, or None.

    Source: fi_errno(3).
    """

    code: int = Errno.EOTHER

    def __init_subclass__(cls, *, code: int | None = None) -> None:
        """code: the error number of the class; without it, that of its base class."""
        super().__init_subclass__()
        if code is not None:
            cls.code = code

    def __init__(
        self,
        message: str = "",
        *,
        errno: int | None = None,
        op: str | None = None,
        peer: int | None = None,
        completion: Any = None,
    ) -> None:
        number = self.code if errno is None else errno
        super().__init__(int(number), message or strerror(number))
        self._op = op
        self.peer = peer
        self.completion = completion

    @property
    def message(self) -> str:
        """The message without the name of the code."""
        return str(self.strerror)

    @property
    def op(self) -> str | None:
        """Name of the call or operation, with which most messages begin ("mr_reg: ..."), or None."""
        if self._op is not None:
            return self._op
        name, colon, _ = self.message.partition(": ")
        word = name.partition("(")[0].replace(".", "_")
        return name if colon and word.isidentifier() and word.islower() else None

    @op.setter
    def op(self, name: str | None) -> None:
        self._op = name

    def __str__(self) -> str:
        return f"{_name(self.errno or 0)}: {self.strerror}"

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.message, self.errno, self.op, self.peer)


class Again(FabricError, BlockingIOError, code=Errno.EAGAIN):
    """FI_EAGAIN: a queue is full, or there is nothing to read. Read the completion queue, then retry."""


class NotPermitted(FabricError, PermissionError, code=Errno.EPERM):
    """FI_EPERM: not permitted."""


class NotFound(FabricError, FileNotFoundError, code=Errno.ENOENT):
    """FI_ENOENT: the context to cancel, or the named object, does not exist."""


class Interrupted(FabricError, InterruptedError, code=Errno.EINTR):
    """FI_EINTR: a wait was interrupted."""


class NoMemory(FabricError, MemoryError, code=Errno.ENOMEM):
    """FI_ENOMEM: memory or a table is exhausted. Also a MemoryError, as of NumPy."""


class AccessDenied(FabricError, PermissionError, code=Errno.EACCES):
    """FI_EACCES: the access that was asked for is not granted, or passes the region's bounds."""


class Fault(FabricError, code=Errno.EFAULT):
    """FI_EFAULT: no memory is mapped at the addresses."""


class Busy(FabricError, code=Errno.EBUSY):
    """FI_EBUSY: the object is in use; the message names its users."""


class NoDevice(FabricError, code=Errno.ENODEV):
    """FI_ENODEV: no such fabric, domain or provider."""


class InvalidArgument(FabricError, ValueError, code=Errno.EINVAL):
    """FI_EINVAL: an argument has a value that the call does not take."""


class NoSpace(FabricError, code=Errno.ENOSPC):
    """FI_ENOSPC: no room left."""


class NoSys(FabricError, code=Errno.ENOSYS):
    """FI_ENOSYS: the provider does not implement the call."""


class NoData(FabricError, code=Errno.ENODATA):
    """FI_ENODATA: no provider offers what the hints ask for. `.explanation` says which hint rejected which offer."""

    explanation: Any = None


class MessageTooLong(FabricError, code=Errno.EMSGSIZE):
    """FI_EMSGSIZE: the data is longer than a limit; the error text names the limit."""


class NoProtocolOption(FabricError, code=Errno.ENOPROTOOPT):
    """FI_ENOPROTOOPT: the option does not exist, or cannot be set."""


class NotSupported(FabricError, code=Errno.EOPNOTSUPP):
    """FI_EOPNOTSUPP: the operation is not supported on this object."""


class AddressInUse(FabricError, code=Errno.EADDRINUSE):
    """FI_EADDRINUSE: another endpoint of this user on this host has the address."""


class NotAvailable(FabricError, code=Errno.EADDRNOTAVAIL):
    """FI_EADDRNOTAVAIL: this host does not have the address."""


class ConnectionReset(FabricError, ConnectionResetError, code=Errno.ECONNRESET):
    """FI_ECONNRESET: the peer's process went away."""


class TimedOut(FabricError, TimeoutError, code=Errno.ETIMEDOUT):
    """FI_ETIMEDOUT: the time given for a wait has passed."""


class ConnectionRefused(FabricError, ConnectionRefusedError, code=Errno.ECONNREFUSED):
    """FI_ECONNREFUSED: no endpoint has the address."""


class Unreachable(FabricError, code=Errno.EHOSTUNREACH):
    """FI_EHOSTUNREACH: no link reaches the peer."""


class Canceled(FabricError, code=Errno.ECANCELED):
    """FI_ECANCELED: the operation or the wait was canceled."""


class KeyRejected(FabricError, code=Errno.EKEYREJECTED):
    """FI_EKEYREJECTED: a requested key is out of range, or a peer's region does not know the key."""


class Replaced(KeyRejected):
    """The name of an attached array has another array now, which `RemoteArray.reattach` attaches.

    Raised after `Shared.replace`, after `Shared.resize` to fewer rows, or if the owner closed the share and used the
    name again.
    """


class TooSmall(FabricError, code=Errno.ETOOSMALL):
    """FI_ETOOSMALL: the space given is too small; the message says how much is needed."""


class BadState(FabricError, code=Errno.EOPBADSTATE):
    """FI_EOPBADSTATE: the object's state does not permit the call: not enabled yet, closed, or made before a fork."""


class Available(FabricError, code=Errno.EAVAIL):
    """FI_EAVAIL: an error entry waits at the head of the queue: call `readerr`."""


class BadFlags(FabricError, ValueError, code=Errno.EBADFLAGS):
    """FI_EBADFLAGS: the call does not know the flags, or the provider does not support them."""


class NoEq(FabricError, code=Errno.ENOEQ):
    """FI_ENOEQ: an event queue has to be bound first."""


class WrongDomain(FabricError, code=Errno.EDOMAIN):
    """FI_EDOMAIN: the objects belong to different domains."""


class NoCq(FabricError, code=Errno.ENOCQ):
    """FI_ENOCQ: a completion queue has to be bound first."""


class Truncated(FabricError, code=Errno.ETRUNC):
    """FI_ETRUNC: more data came than there was room for."""


class NoKey(FabricError, code=Errno.ENOKEY):
    """FI_ENOKEY: the requested key is in use by another region."""


class NoAv(FabricError, code=Errno.ENOAV):
    """FI_ENOAV: an address vector has to be bound first."""


class Overrun(FabricError, code=Errno.EOVERRUN):
    """FI_EOVERRUN: the queue lost entries and can no longer be used."""


class NoMr(FabricError, code=Errno.ENOMR):
    """FI_ENOMR: a memory region has to be bound or given first."""


def _subclasses() -> dict[int, type[FabricError]]:
    return {int(c.code): c for c in FabricError.__subclasses__()}


_CLASSES: dict[int, type[FabricError]] = _subclasses()


def make(errno: int, message: str = "", *, op: str | None = None) -> FabricError:
    """The exception for an error number: its subclass if there is one, otherwise `FabricError`.

    Args:
        errno: Fabric error number, positive or (as C calls return it) negative.
        op: Name of the call, or None.

    The extension calls this function for every error that it raises.
    """
    errno = abs(errno)
    cls = _CLASSES.get(errno)
    return cls(message, op=op) if cls is not None else FabricError(message, errno=errno, op=op)


def strerror(errno: int) -> str:
    """What an error number means, in words (fi_strerror).

    Args:
        errno: Positive, or negative as C calls return it.

    Source: fi_errno(3).
    """
    return _TEXT.get(abs(int(errno)), f"Unknown error {abs(int(errno))}")


def _name(errno: int) -> str:
    try:
        return Errno(errno).name
    except ValueError:
        return _system.errorcode.get(errno, f"error {errno}")  # EOWNERDEAD, of locks


def _rebuild(cls: type[FabricError], message: str, errno: int, op: str | None, peer: int | None) -> FabricError:
    return cls(message, errno=errno, op=op, peer=peer)


# Our own words for the meanings that fi_errno(3) lists.
_TEXT: dict[int, str] = {
    Errno.SUCCESS: "Success",
    Errno.EPERM: "Not permitted",
    Errno.ENOENT: "No such entry",
    Errno.EINTR: "Interrupted",
    Errno.EIO: "Input/output error",
    Errno.E2BIG: "Argument list too long",
    Errno.EBADF: "Bad descriptor",
    Errno.EAGAIN: "Try again later",
    Errno.ENOMEM: "Out of memory",
    Errno.EACCES: "Access denied",
    Errno.EFAULT: "Bad address",
    Errno.EBUSY: "In use",
    Errno.ENODEV: "No such device",
    Errno.EINVAL: "Invalid argument",
    Errno.EMFILE: "Too many open files",
    Errno.ENOSPC: "No space left",
    Errno.ENOSYS: "Not implemented by this provider",
    Errno.ENOMSG: "No message of that type",
    Errno.ENODATA: "No matching data",
    Errno.EPROTO: "Protocol error",
    Errno.EOVERFLOW: "Value too large for its type",
    Errno.EMSGSIZE: "Message too long",
    Errno.ENOPROTOOPT: "No such option",
    Errno.EOPNOTSUPP: "Operation not supported",
    Errno.EADDRINUSE: "Address in use",
    Errno.EADDRNOTAVAIL: "Address not available",
    Errno.ENETDOWN: "Network is down",
    Errno.ENETUNREACH: "Network unreachable",
    Errno.ECONNABORTED: "Connection aborted",
    Errno.ECONNRESET: "Connection reset by the peer",
    Errno.ENOBUFS: "No buffer space",
    Errno.EISCONN: "Endpoint is connected already",
    Errno.ENOTCONN: "Endpoint is not connected",
    Errno.ESHUTDOWN: "Endpoint is shut down",
    Errno.ETIMEDOUT: "Timed out",
    Errno.ECONNREFUSED: "Connection refused",
    Errno.EHOSTDOWN: "Host is down",
    Errno.EHOSTUNREACH: "Host unreachable",
    Errno.EALREADY: "Already in progress",
    Errno.EINPROGRESS: "In progress",
    Errno.EREMOTEIO: "Input/output error at the peer",
    Errno.ECANCELED: "Canceled",
    Errno.EKEYREJECTED: "Key rejected",
    Errno.EOTHER: "Unspecified error",
    Errno.ETOOSMALL: "Space too small",
    Errno.EOPBADSTATE: "Not permitted in the current state",
    Errno.EAVAIL: "An error entry is available",
    Errno.EBADFLAGS: "Flags not supported",
    Errno.ENOEQ: "No event queue",
    Errno.EDOMAIN: "Wrong domain",
    Errno.ENOCQ: "No completion queue",
    Errno.ECRC: "Checksum error",
    Errno.ETRUNC: "Truncated",
    Errno.ENOKEY: "Key not available",
    Errno.ENOAV: "No address vector",
    Errno.EOVERRUN: "Queue overrun",
    Errno.ENORX: "Receiver not ready",
    Errno.ENOMR: "No memory region",
    Errno.EFIREWALLADDR: "Peer is behind a firewall",
}
