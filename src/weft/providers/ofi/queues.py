"""Completion queues and counters of a real libfabric (fi_cq, fi_cntr). Source: fi_cq(3), fi_cntr(3)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ... import _nic, errors
from ..._nic import Status
from ...fi import _args, _handle
from ...fi.cq import DEFAULT_SIZE, CqDataEntry, CqEntry, CqErrEntry, CqMsgEntry, CqTaggedEntry
from ...flags import CntrEvents, CqFormat, CqWaitCond, Errno, WaitObj
from ._common import Real, Waits, later, stands_for, trywait, unless_used, with_wait_object
from .quirks import Quirk, has

if TYPE_CHECKING:
    from .domain import RealDomain

__all__ = ["RealCompletionQueue", "RealCounter"]

_nic.set_ofi_entry_types(CqEntry, CqMsgEntry, CqDataEntry, CqTaggedEntry)


def _cq_class() -> type:
    from ...fi.cq import CompletionQueue

    return CompletionQueue


def _cntr_class() -> type:
    from ...fi.cntr import Counter

    return Counter


@lru_cache(maxsize=64)
def _status(err: int) -> Status:
    """How Weft's NIC would have ended an operation with this error; the status of EIO for others."""
    if err == Errno.EADDRNOTAVAIL:
        return Status.no_source
    found = [status for status in _FAILED if _nic.status_errno(status) == err]
    return found[0] if found else _OTHER


_FAILED = [status for status in Status if status is not Status.ok]
_OTHER = next((status for status in _FAILED if _nic.status_errno(status) == Errno.EIO), _FAILED[0])


@later("Weft passes no calls of a provider's own through", "open_ops", "set_ops", "get_val", "set_val")
class RealCompletionQueue(Waits, Real, _nic.OfiCompletionQueueCore):
    """A queue of completions of the library (struct fid_cq). Made by `Domain.cq_open`.

    `read`, `readfrom`, `sread` and `sreadfrom` work as `fi.CompletionQueue`'s. `outstanding()` returns the number of
    operations whose completions the queue has not reported yet.

    Thread safety: any thread. Source: fi_cq(3).
    """

    __class__ = stands_for(_cq_class)
    _called = "cq"

    def __init__(
        self,
        domain: RealDomain,
        size: int,
        flags: int,
        format: int,
        wait_obj: int,
        signaling_vector: int,
        wait_cond: int,
        context: Any,
    ) -> None:
        self.domain = domain
        self.context = context
        self._children: _handle.Children = {}
        if format not in CqFormat.__members__.values():
            raise errors.InvalidArgument(f"cq_open: format {format!r} is not one of FI_CQ_FORMAT_*", op="cq_open")
        self.format = CqFormat(format or CqFormat.CQ_FORMAT_DATA)
        self.wait_cond = CqWaitCond(wait_cond) if wait_cond in CqWaitCond.__members__.values() else wait_cond
        waits = wait_obj != WaitObj.WAIT_NONE

        def make(kind: int) -> None:
            _nic.OfiCompletionQueueCore.__init__(
                self, domain, size, flags, int(self.format), kind, signaling_vector, wait_cond, waits
            )

        self._has_wait = with_wait_object(wait_obj, make)
        self.wait_obj = WaitObj(wait_obj)
        self._size = size
        self._site = _handle.here(3)
        _handle.adopt(self, domain)

    @property
    def capacity(self) -> int:
        """The number of entries that was asked for; the library may have more."""
        return self._size or DEFAULT_SIZE

    def pending(self) -> int:
        """Entries that Weft has read before the application asked; the library does not tell how many it has."""
        return self.waiting()

    def trywait(self) -> bool:
        """True if it is safe to sleep on `fd` (fi_trywait): the queue is empty, and the descriptor armed.

        Raises InvalidArgument where the provider has no wait object for the queue."""
        _handle.check(self, "cq.trywait")
        return not self.waiting() and trywait("cq.trywait", self.domain.fabric._core, [self])

    def signal(self) -> None:
        """Wake a waiting sread (fi_cq_signal). Raises the library's refusal."""
        _handle.check(self, "cq.signal")
        self.signal_core()

    def readerr(self, flags: int = 0) -> CqErrEntry:
        """Take the error entry at the head (fi_cq_readerr). err_data: the provider's own bytes, or its text for
        prov_errno (fi_cq_strerror) where it has none. Raises Again if there is none. Source: fi_cq(3)."""
        _handle.check(self, "cq.readerr")
        _args.whole("cq.readerr", flags=flags)
        found = self.readerr_core(int(flags))
        if found is None:
            raise errors.Again("cq.readerr: no error entry in the queue", op="cq.readerr")
        fields = list(found)
        fields[7] = abs(fields[7])  # some providers have errors negative
        entry = CqErrEntry._make([*fields, _status(fields[7])])
        if not entry.err_data:
            library, text = _nic.ofi_strerror(entry.err), self._words(entry.prov_errno, b"")
            words = library if not text or text == library else f"{library}: {text}"
            entry = entry._replace(err_data=f"{self.domain.provider.name}: {words}".encode())
        return entry

    def strerror(self, prov_errno: int, err_data: object = None) -> str:
        """The provider's text of an error number of `readerr` (fi_cq_strerror)."""
        _handle.check(self, "cq.strerror")
        number = _args.command("cq.strerror", prov_errno=prov_errno)
        return self._words(number, bytes(err_data) if isinstance(err_data, (bytes, bytearray, memoryview)) else b"")

    def _words(self, prov_errno: int, err_data: bytes) -> str:
        if has(self.domain.provider.name, Quirk.STRERROR_ASKS_ENDPOINT):
            return _nic.ofi_strerror(prov_errno)
        return self.strerror_core(prov_errno, err_data)

    def close(self) -> None:
        """Close the queue (fi_close); unread completions are lost. Raises Busy while an endpoint uses it."""
        _handle.close(self, self.close_core, self._children, (self.domain,))

    def __del__(self, finalize: Any = _handle.finalize) -> None:
        finalize(self, unless_used(self, self.close_core) if self._site else None, (self.domain,) if self._site else ())

    def __repr__(self) -> str:
        kind = self.format.name.removeprefix("CQ_FORMAT_")
        state = "closed" if self._closed else f"{self.outstanding()} operations under way"
        return f"<CompletionQueue {self.domain.provider.name} {kind} {state}>"


@later("Weft passes no calls of a provider's own through", "open_ops", "set_ops", "get_val", "set_val")
class RealCounter(Waits, Real, _nic.OfiCounterCore):
    """A counter of the library (struct fid_cntr). Made by `Domain.cntr_open`.

    `read`, `readerr`, `add`, `set`, `adderr`, `seterr` and `wait` work as `fi.Counter`'s.

    Thread safety: any thread. Source: fi_cntr(3).
    """

    __class__ = stands_for(_cntr_class)

    _called = "cntr"

    def __init__(self, domain: RealDomain, events: int, wait_obj: int, flags: int, context: Any) -> None:
        self.domain = domain
        self.context = context
        self._children: _handle.Children = {}
        if events not in CntrEvents.__members__.values():
            raise errors.InvalidArgument(f"cntr_open: events {events!r} is not one of FI_CNTR_EVENTS_*", op="cntr_open")
        self.events = CntrEvents(events)
        self._has_wait = with_wait_object(
            wait_obj, lambda kind: _nic.OfiCounterCore.__init__(self, domain, events, kind, flags)
        )
        self.wait_obj = WaitObj(wait_obj)
        self._site = _handle.here(3)
        _handle.adopt(self, domain)

    def close(self) -> None:
        """Close the counter (fi_close). Raises Busy while an endpoint uses it."""
        _handle.close(self, self.close_core, self._children, (self.domain,))

    def __del__(self, finalize: Any = _handle.finalize) -> None:
        finalize(self, unless_used(self, self.close_core) if self._site else None, (self.domain,) if self._site else ())

    def __repr__(self) -> str:
        try:
            state = "closed" if self._closed else f"{self.read()}, errors {self.readerr()}"
        except errors.FabricError:
            state = "not to be read"  # an endpoint is not enabled, or a forked child has it
        return f"<Counter {self.domain.provider.name} {state}>"
