"""Event queues (fi_eq): events of control operations. They are off the data path, so they are in Python; connection
messages of peers come from the NIC (cm.py).

Source: fi_eq(3).
"""

from __future__ import annotations

import contextlib
import operator
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _nic, _process, errors
from ..flags import Flag, Progress, WaitObj
from . import _args, _handle
from ._control import WAITING, Controlled
from .cq import waitable
from .policy import DomainPolicy, Extensions
from .rules import Rule

if TYPE_CHECKING:
    from .attrs import Info
    from .fabric import Fabric

_SLICE_S = 0.05  # a thread that waits for peers checks again after this time
_SLICE_MANUAL_S = 0.001  # the same if only the waiting thread makes progress
_PULLED_MAX = 64  # events taken from the NIC before the application reads them


class EqEntry(NamedTuple):
    """An event of a control operation (struct fi_eq_entry).

    Attributes:
        fid: The object that the operation was called on.
        context: Context of the operation.
        data: A number that depends on the event: AV_COMPLETE has how many addresses were inserted.
    """

    fid: Any
    context: Any = None
    data: int = 0


class EqCmEntry(NamedTuple):
    """An event of a connection (struct fi_eq_cm_entry).

    Attributes:
        fid: CONNREQ: the PassiveEndpoint; CONNECTED, SHUTDOWN: the Endpoint.
        info: CONNREQ: the Info with which to open an endpoint that accepts the request; else None.
        data: Private data of the peer.
    """

    fid: Any
    info: Info | None = None
    data: bytes = b""


class EqErrEntry(NamedTuple):
    """A control operation that failed (struct fi_eq_err_entry).

    Attributes:
        fid: As in EqEntry.
        context: As in EqEntry.
        data: As in EqEntry; a failed insertion has the index of its address here.
        err: Error number.
        prov_errno: The provider's error number, for `EventQueue.strerror`.
        err_data: Details, for `EventQueue.strerror`.
    """

    fid: Any
    context: Any = None
    data: int = 0
    err: int = 0
    prov_errno: int = 0
    err_data: bytes = b""


class EventQueue(Controlled, _handle.Life):
    """A queue of control events (struct fid_eq). Made by `Fabric.eq_open`.

    Thread safety: any thread. Source: fi_eq(3).
    """

    _called = "eq"
    _commands = WAITING

    def __init__(self, fabric: Fabric, *, size: int, flags: int, wait_obj: int, context: Any) -> None:
        self.fabric = fabric
        if flags & ~int(Flag.WRITE | Flag.AFFINITY):
            raise self.fabric.provider.refusals.refuse(
                Rule.EQ_OPEN_FLAGS, f"eq_open: flags {Flag(flags)!s}; WRITE and AFFINITY are known"
            )
        self.context = context
        self.size = size
        self.flags = flags
        self.wait_obj = waitable("eq_open", wait_obj, fabric.provider.queues, fabric.provider.refusals)
        self._made_in = _process.generation
        self._events: deque[tuple[int, Any, Callable[[], None] | None]] = deque()
        self._errors: deque[EqErrEntry] = deque()
        self._changed = threading.Condition()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if self.wait_obj == WaitObj.WAIT_FD else -1
        # A queue of connection messages for each NIC; `_owners` maps the token of a message to its endpoint.
        self._cms: dict[_nic.Nic, tuple[_nic.CmQueue, bool]] = {}  # the queue; whether the application drives the NIC
        self._owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._opened(3, fabric)

    @property
    def _extensions(self) -> Extensions:
        return self.fabric.provider

    @property
    def fd(self) -> int:
        """A descriptor that is readable while the queue has an event or error (wait_obj=fi.WAIT_FD); else -1."""
        return self._fd if self.wait_obj == WaitObj.WAIT_FD else -1

    def read(self, flags: int = 0) -> tuple[int, Any] | None:
        """The next event as (event, entry), or None (fi_eq_read).

        Args:
            flags: `fi.PEEK` leaves the event in the queue.

        Raises:
            Available: An error waits: read it with `readerr`.
            BadFlags: Unknown flags.

        Source: fi_eq(3) fi_eq_read.
        """
        _handle.check(self, "eq.read")
        self._known_flags("eq.read", flags, Flag.PEEK)
        return self._look(int(flags), -1)

    def sread(self, timeout: float | None = None, flags: int = 0) -> tuple[int, Any]:
        """As `read`, but waits (fi_eq_sread).

        Args:
            timeout: Seconds; None: no limit.
            flags: As for `read`.

        Raises:
            Again: The time is over.
            InvalidArgument: The queue was opened with WAIT_NONE.
            Available: As `read`.
            Canceled: Another thread closed the queue.

        Source: fi_eq(3) fi_eq_sread.
        """
        _handle.check(self, "eq.sread")
        _args.seconds("eq.sread", timeout=timeout)
        self._known_flags("eq.sread", flags, Flag.PEEK)
        if self.wait_obj == WaitObj.WAIT_NONE:
            raise self.fabric.provider.refusals.refuse(
                Rule.EQ_WAIT_NONE,
                "eq.sread: the queue was opened with WAIT_NONE; use read, or open it with WAIT_UNSPEC",
            )
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if until is None else max(until - time.monotonic(), 0)
            found = self._look(int(flags), left)
            if found is not None:
                return found
            if self._closed:
                raise errors.Canceled("eq.sread: the queue was closed while this thread waited")
            if left == 0:
                raise errors.Again(f"eq.sread: no event within {timeout} s")

    def _look(self, flags: int, left: float | None) -> tuple[int, Any] | None:
        """The next event. If there is none, waits for at most `left` seconds (None: no limit), and returns None. A
        negative `left`: no wait."""
        self._progress()
        with self._changed:
            self._pull()
            found = self._next(flags)
            if found is not None or self._closed or (left is not None and left <= 0):
                return found
            if not self._cms:
                self._changed.wait(left)
                return None
            # The NIC and post() signal the descriptor. A copy: another thread's close() closes the original.
            fd = os.dup(self._fd)
        try:
            most = _SLICE_MANUAL_S if any(manual for _, manual in self._cms.values()) else _SLICE_S
            select.select([fd], [], [], most if left is None else min(left, most))
        finally:
            os.close(fd)
        return None

    def readerr(self, flags: int = 0) -> EqErrEntry:
        """The next error (fi_eq_readerr).

        Args:
            flags: `fi.PEEK` leaves the error in the queue.

        Raises:
            Again: There is no error entry.
            BadFlags: Unknown flags.

        Source: fi_eq(3) fi_eq_readerr.
        """
        _handle.check(self, "eq.readerr")
        self._known_flags("eq.readerr", flags, Flag.PEEK)
        self._progress()
        with self._changed:
            self._pull()
            if not self._errors:
                raise errors.Again("eq.readerr: no error in the queue")
            if flags & Flag.PEEK:
                return self._errors[0]
            self._drain()
            return self._errors.popleft()

    def write(self, event: int, entry: Any, flags: int = 0) -> None:
        """Insert the application's own event into the queue (fi_eq_write).

        Args:
            event: Any number; `fi.NOTIFY` and the other events of fi_eq(3) are `fi.EqEvent`.
            entry: The object that `read` returns with the event: an EqEntry, or any object.

        Raises:
            InvalidArgument: The queue was opened without `fi.WRITE`.

        Source: fi_eq(3) fi_eq_write.
        """
        _handle.check(self, "eq.write")
        self._known_flags("eq.write", flags, Flag(0))
        if not self.flags & Flag.WRITE:
            raise self.fabric.provider.refusals.refuse(
                Rule.EQ_WRITE, "eq.write: the queue takes no user events; open it with flags=fi.WRITE"
            )
        self.post(event, entry)

    def post(self, event: int, entry: Any, on_read: Callable[[], None] | None = None) -> None:
        """Insert an event, for objects of Weft that report one. Not part of libfabric's interface.

        Args:
            on_read: Called when the application reads the event, before `read` returns.
        """
        with self._changed:
            self._events.append((event, entry, on_read))
            self._signal()

    def post_error(self, entry: EqErrEntry) -> None:
        """Insert an error, for objects of Weft that report one. Not part of libfabric's interface."""
        with self._changed:
            self._errors.append(entry)
            self._signal()

    def strerror(self, prov_errno: int, err_data: object = None) -> str:
        """What a provider error number means (fi_eq_strerror).

        Args:
            prov_errno: `EqErrEntry.prov_errno`.
            err_data: `EqErrEntry.err_data`.
        """
        _args.integer("eq.strerror", prov_errno=prov_errno)
        return self.fabric.provider.explain_error(operator.index(prov_errno), err_data)

    def pending(self) -> int:
        """Events and errors that wait to be read."""
        with self._changed:
            self._pull()
            return len(self._events) + len(self._errors)

    def trywait(self) -> bool:
        """True if the queue is empty, so that the caller may wait on `fd`."""
        _handle.check(self, "eq.trywait")
        return not self.pending()

    def _parents(self) -> tuple[Any, ...]:
        return (self.fabric,)

    # ---- connections -------------------------------------------------------------------------------------------------

    def _attach(self, token: int, owner: Any, policy: DomainPolicy) -> _nic.CmQueue:
        """The NIC's queue of an endpoint's connection messages. Not part of libfabric's interface.

        Args:
            policy: Policy of the endpoint's domain, which has the NIC.
            owner: Object whose `_on_cm(eq, found)` is called under the queue's lock with each message that
                `CmQueue.pop` returns.
        """
        with self._changed:
            if self._fd < 0:
                self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            if policy.nic not in self._cms:
                manual = policy.progress == Progress.PROGRESS_MANUAL
                self._cms[policy.nic] = _nic.CmQueue(policy.nic, self._fd), manual
            self._owners[token] = owner
            self._changed.notify_all()  # threads that wait without a descriptor
            return self._cms[policy.nic][0]

    def _forget(self, owner: Any) -> list[Any]:
        """Drop the unread events of an endpoint that closes; returns their entries."""
        with self._changed:
            entries = [entry for _, entry, _ in self._events if isinstance(entry, EqCmEntry) and entry.fid is owner]
            self._events = deque(event for event in self._events if not any(event[1] is entry for entry in entries))
            return entries

    def _progress(self) -> None:
        if self._cms and not self._closed and not _handle.elsewhere(self):
            for nic, (_, manual) in list(self._cms.items()):
                if manual:
                    nic.progress()

    def _pull(self) -> None:
        """Convert messages of the NIC to events. The caller holds the lock."""
        if not self._cms or self._closed:
            return
        # Clear the descriptor first: a message that arrives later signals again.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        # At most _PULLED_MAX events are unread here. Further messages wait in the NIC, whose queue is bounded, too.
        for queue, _ in self._cms.values():
            while len(self._events) < _PULLED_MAX and (found := queue.pop()) is not None:
                owner = self._owners.get(found[0])
                if owner is not None:
                    owner._on_cm(self, found)
        if self._events or self._errors:
            os.eventfd_write(self._fd, 1)

    def _next(self, flags: int) -> tuple[int, Any] | None:
        if self._errors:
            raise errors.Available("eq.read: an error entry waits; read it with readerr()")
        if not self._events:
            return None
        event, entry, on_read = self._events[0]
        if on_read is not None:
            on_read()
        if flags & Flag.PEEK:
            return event, entry
        self._drain()
        self._events.popleft()
        return event, entry

    def _signal(self) -> None:
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)
        self._changed.notify()

    def _drain(self) -> None:
        # The caller is about to take one entry. If it is the last one, the descriptor must not stay readable.
        if self._fd >= 0 and len(self._events) + len(self._errors) == 1:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._fd)

    def _release(self) -> None:
        with self._changed:
            self._closed = True
            fd, self._fd = self._fd, -1
            for queue, _ in self._cms.values():
                queue.close()
            if fd >= 0:
                os.close(fd)
            self._changed.notify_all()

    def _known_flags(self, op: str, flags: int, known: int) -> None:
        flags = _args.number(op, flags=flags)
        if flags & ~int(known):
            raise self.fabric.provider.refusals.refuse(
                Rule.EQ_READ_FLAGS, f"{op}: flags {Flag(flags)!s}; known here: {Flag(known)!s}"
            )

    def __repr__(self) -> str:
        return f"<EventQueue {'closed' if self._closed else f'{self.pending()} unread'}>"
