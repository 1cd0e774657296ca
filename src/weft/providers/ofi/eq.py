"""Event queues of a real libfabric (fi_eq). Source: fi_eq(3)."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from ... import _nic, _process, errors
from ...fi import _args, _handle
from ...fi.eq import EqCmEntry, EqEntry, EqErrEntry, EventQueue
from ...flags import EqEvent, Flag, WaitObj
from . import info as _info
from ._common import later, trywait
from .group import RealCollectiveGroup
from .request import RealRequest

if TYPE_CHECKING:
    from .fabric import RealFabric

_SLICE_MS = 50
_SLICE_JOINING_MS = 1  # the longest sleep while a join needs progress, because a wait in the library makes none
_EVENT_MAX = (1 << 32) - 1
_CM = (int(EqEvent.CONNREQ), int(EqEvent.CONNECTED), int(EqEvent.SHUTDOWN))


@later("events are the library's; write() adds the application's", "post", "post_error")
class RealEventQueue(EventQueue, _nic.OfiEventQueueCore):
    """A queue of control events of the library (struct fid_eq). Made by `Fabric.eq_open`.

    Thread safety: any thread. Source: fi_eq(3).
    """

    fabric: RealFabric
    fd = _nic.OfiEventQueueCore.fd

    def __init__(self, fabric: RealFabric, *, size: int, flags: int, wait_obj: int, context: Any) -> None:
        self.fabric = fabric
        self.context = context
        self.size = size
        self.flags = flags
        self._made_in = _process.generation
        self._written: dict[int, tuple[int, Any]] = {}  # entries of write(), by the library's number
        self._numbers = count()
        _args.whole("eq_open", wait_obj=wait_obj)
        _nic.OfiEventQueueCore.__init__(self, fabric._core, size, flags, int(wait_obj))
        self.wait_obj = WaitObj(wait_obj)
        self._opened(3, fabric)

    def sread(self, timeout: float | None = None, flags: int = 0) -> tuple[int, Any]:
        """As `read`, but waits, without the GIL (fi_eq_sread). A timeout below 0 is no limit. Raises Again when it
        is over."""
        return super().sread(None if isinstance(timeout, (int, float)) and timeout < 0 else timeout, flags)

    def _look(self, flags: int, left: float | None) -> tuple[int, Any] | None:
        most = _SLICE_JOINING_MS if self._joining() else _SLICE_MS
        return self._take(flags, most if left is None else 0 if left < 0 else min(int(left * 1000) + 1, most))

    def _known_flags(self, op: str, flags: int, known: int) -> None:
        """The library refuses flags that it does not know."""
        _args.whole(op, flags=flags)

    def _joining(self) -> list[Any]:
        """Endpoints that join a group and report to this queue. Only their completion queues make progress."""
        each = (what for what, _ in self.fabric._expected.values() if isinstance(what, RealCollectiveGroup))
        return [group.ep for group in each if group.ep._eq is self and not group.joined]

    def _take(self, flags: int, wait_ms: int) -> tuple[int, Any] | None:
        while True:
            found = self.read_core(flags, 0)
            if found is None:
                joining = self._joining()
                for ep in joining:
                    ep._progress()
                if joining or wait_ms:
                    found = self.read_core(flags, wait_ms)
            if found is None:
                return None
            event = self._event(found, flags)
            if event is not None:
                return event
            if flags & Flag.PEEK:  # nobody waits for the event of a closed group: discard it, look at the next
                self.read_core(flags & ~int(Flag.PEEK), 0)

    def _event(self, found: Any, flags: int) -> tuple[int, Any] | None:
        """The event for the library's entry; None: of a group that was closed while it joined."""
        event, fid, context, data = found
        if fid == self.fid:
            return self._written[data] if flags & Flag.PEEK else self._written.pop(data)
        if event in (EqEvent.JOIN_COMPLETE, EqEvent.AV_COMPLETE):  # the fid of a join is a part of the library's own
            what, context = self._expected(context, flags)
            if what is None:
                return None
            if event == EqEvent.JOIN_COMPLETE:
                what._joined()
            return event, EqEntry(what, context, data)
        owner = self.fabric._fids.get(fid)
        if event == EqEvent.CONNECTED and owner is not None:
            owner._link()
        if event in _CM:
            info = None
            if context is not None:
                info = _info.to_python(context)
                info.handle = RealRequest(owner, context.fields()["handle"])
            return event, EqCmEntry(owner, info, data)
        return event, EqEntry(owner, None, data)

    def _expected(self, number: int, flags: int) -> tuple[Any, Any]:
        """The object that an event reports on, and the context; (None, None): the object was closed."""
        expected = self.fabric._expected
        none = (None, None)
        return expected.get(number, none) if flags & Flag.PEEK else expected.pop(number, none)

    def readerr(self, flags: int = 0) -> EqErrEntry:
        """The next error (fi_eq_readerr). Raises Again if there is none."""
        _handle.check(self, "eq.readerr", flags=flags)
        found = self.readerr_core(int(flags))
        if found is None:
            raise errors.Again("eq.readerr: no error in the queue")
        fid, number, data, err, prov_errno, err_data = found
        what, context = self._expected(number, int(flags) | int(Flag.PEEK))  # an insertion still gets its other event
        if what is None:
            what = self.fabric._fids.get(fid)
        elif isinstance(what, RealCollectiveGroup):
            self.fabric._expected.pop(number, None)
        return EqErrEntry(what, context, data, err, prov_errno, err_data)

    def write(self, event: int, entry: Any, flags: int = 0) -> None:
        """Insert the application's own event (fi_eq_write). Raises the library's refusal."""
        _handle.check(self, "eq.write", event=event, flags=flags)
        if int(event) > _EVENT_MAX:
            raise errors.InvalidArgument(
                f"eq.write: event is {event}; the library's events are numbers of 32 bits, 0 to 2**32 - 1\n"
                "  try: a smaller number, and yours in the entry"
            )
        number = next(self._numbers)
        self._written[number] = (int(event), entry)
        try:  # the library gets a NOTIFY instead: Quirk.WRITTEN_CONNREQ_CRASHES
            self.write_core(int(EqEvent.NOTIFY), number, int(flags))
        except BaseException:
            del self._written[number]
            raise

    def strerror(self, prov_errno: int, err_data: object = None) -> str:
        """What a provider error number means (fi_eq_strerror)."""
        _handle.check(self, "eq.strerror")
        number = _args.command("eq.strerror", prov_errno=prov_errno)
        data = bytes(err_data) if isinstance(err_data, (bytes, bytearray, memoryview)) else b""
        return self.strerror_core(number, data)

    def pending(self) -> int:
        """1 if an event or error waits, else 0: the library does not tell how many it has."""
        _handle.check(self, "eq.pending")
        try:
            return 0 if self.read_core(int(Flag.PEEK), 0) is None else 1
        except errors.Available:
            return 1

    def trywait(self) -> bool:
        """True if it is safe to sleep on `fd` (fi_trywait). Raises InvalidArgument without a wait object."""
        _handle.check(self, "eq.trywait")
        return trywait("eq.trywait", self.fabric._core, [self])

    def _release(self) -> None:
        self.close_core()

    def __repr__(self) -> str:
        return f"<EventQueue {self.fabric.provider.name} {'closed' if self._closed else 'open'}>"
