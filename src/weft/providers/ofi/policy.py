"""What the objects of `weft.fi` ask of a domain of a real libfabric: everything is the library's to decide.

Source: fi_domain(3), fi_control(3).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ... import _nic, errors
from ..._nic import Status
from ...fi import _args
from ...fi.attrs import Info
from ...fi.policy_rules import CommandRules, CounterRules, QueueRules, VectorRules
from ...fi.rules import Refusals, Rule
from ...flags import Control, Errno, Progress, WaitObj
from .quirks import Quirk, has

if TYPE_CHECKING:
    from ...fi.cq import CompletionQueue, CqErrEntry

_ANY_FLAGS = (1 << 64) - 1
_WAIT_OBJS = frozenset(WaitObj)


class PassedThrough:
    """`Extensions`: commands and calls beyond the man pages are not passed through."""

    commands = CommandRules()
    refusals = Refusals({Rule.GETWAIT_NONE: Errno.EOPNOTSUPP})

    def control(self, fid: Any, command: int, arg: Any) -> Any:
        """Refuses."""
        op = f"{fid._called}.control"
        known = ", ".join(Control(one).name for one in fid._commands)
        raise errors.NotSupported(
            f"{op}: command {command} is not passed through{f'; there are {known}' if known else ''}"
        )

    def open_ops(self, fid: Any, name: str, flags: int) -> Any:
        """Refuses."""
        raise self._no_calls(fid, "open_ops")

    def set_ops(self, fid: Any, name: str, flags: int, ops: Any) -> None:
        """Refuses."""
        raise self._no_calls(fid, "set_ops")

    def get_val(self, fid: Any, name: int) -> Any:
        """Refuses."""
        raise self._no_calls(fid, "get_val")

    def set_val(self, fid: Any, name: int, value: Any) -> None:
        """Refuses."""
        raise self._no_calls(fid, "set_val")

    def _no_calls(self, fid: Any, call: str) -> errors.FabricError:
        op = f"{fid._called}.{call}"
        return errors.NotSupported(f"{op}: Weft passes no calls of a provider's own through")

    def close(self) -> None:
        """Nothing was taken."""


@lru_cache(maxsize=64)
def _status(err: int) -> Status:
    """How Weft's NIC would have ended an operation with this error; the status of EIO for others."""
    if err == Errno.EADDRNOTAVAIL:
        return Status.no_source
    found = [status for status in _FAILED if _nic.status_errno(status) == err]
    return found[0] if found else _OTHER


_FAILED = [status for status in Status if status is not Status.ok]
_OTHER = next((status for status in _FAILED if _nic.status_errno(status) == Errno.EIO), _FAILED[0])


class RealDomainPolicy(PassedThrough):
    """What objects of `weft.fi` ask a domain's policy."""

    queues = QueueRules(wait_objs=_WAIT_OBJS, wait_yield=WaitObj.WAIT_YIELD, flags=_ANY_FLAGS, size_max=None)
    counters = CounterRules(wait_objs=_WAIT_OBJS, wait_yield=WaitObj.WAIT_YIELD, flags=_ANY_FLAGS)
    vectors = VectorRules()
    progress = Progress.PROGRESS_AUTO  # the descriptors of the library's queues tell of work to do

    def __init__(self, name: str, info: Info) -> None:
        self.name = name
        self.data_progress = info.domain_attr.data_progress

    def take_queue(self) -> None:
        """The library takes what a queue needs."""

    def give_queue(self) -> None:
        """The library gives it back."""

    def described(self, cq: CompletionQueue, entry: CqErrEntry) -> CqErrEntry:
        """The entry with Weft's status, and the provider's text for prov_errno where it has no err_data."""
        entry = entry._replace(status=_status(entry.err))
        if entry.err_data:
            return entry
        library, text = _nic.ofi_strerror(entry.err), self.explain_error(cq, entry.prov_errno, b"")
        words = library if not text or text == library else f"{library}: {text}"
        return entry._replace(err_data=f"{self.name}: {words}".encode())

    def explain_error(self, cq: CompletionQueue, prov_errno: int, err_data: object) -> str:
        """The provider's text (fi_cq_strerror)."""
        number = _args.command("cq.strerror", prov_errno=prov_errno)
        if has(self.name, Quirk.STRERROR_ASKS_ENDPOINT):
            return _nic.ofi_strerror(number)
        data = bytes(err_data) if isinstance(err_data, (bytes, bytearray, memoryview)) else b""
        words: str = cq._words(number, data)  # type: ignore[attr-defined]  # private: not in the stub
        return words

    def counter(self) -> PassedThrough:
        """The library takes what a counter needs."""
        return self
