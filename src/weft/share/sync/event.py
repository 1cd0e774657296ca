"""weft.Event: a flag that processes set and wait for."""

from __future__ import annotations

from ... import _nic, errors
from ..arrays.calls import AGAIN
from .sync_object import Result, SyncObject, limit

_OP = _nic.SyncOp
_SET, _CLEAR, _WAIT, _LOOK = map(int, (_OP.set, _OP.clear, _OP.wait, _OP.look))


class Event(SyncObject, _nic.EventCore):
    """A flag that processes share: set(), clear(), is_set(), wait().

        ready = weft.Event("ready")
        ready.wait(timeout=10)          # until a process calls ready.set()

    A wait also ends if the event was set and cleared again meanwhile. Data that a process wrote before set() is visible
    after wait(). Arguments and further errors: see `SyncObject`.
    """

    _KIND = int(_nic.SyncKind.event)
    _CORE = _nic.EventCore

    # set, clear, is_set and wait are in C++; what they cannot do at once they pass to these methods.

    def _set(self) -> None:
        self._do("set", _SET)

    def _clear(self) -> None:
        self._do("clear", _CLEAR)

    def _is_set(self) -> bool:
        return self._do("is_set", _LOOK).value == 1

    def _wait(self, timeout: float | None = None) -> bool:
        patience = limit(timeout, "wait")
        return self._late("wait", patience, self._do("wait", _WAIT, timeout=patience))

    async def await_(self, timeout: float | None = None) -> bool:
        """`wait`, awaitable."""
        patience = limit(timeout, "await_")
        return self._late("await_", patience, await self._ado("await_", _WAIT, timeout=patience))

    async def aset(self) -> None:
        """`set`, awaitable: it waits only on paths other than load/store."""
        await self._ado("aset", _SET)

    async def aclear(self) -> None:
        """`clear`, awaitable: it waits only on paths other than load/store."""
        await self._ado("aclear", _CLEAR)

    def _late(self, call: str, timeout: float | None, found: Result) -> bool:
        if found.outcome == AGAIN:
            raise errors.TimedOut(f"{call}: {self._shown()} is not set after {timeout or 0:g} s")
        return True

    def _state(self) -> str:
        return "set" if self._is_set() else "not set"
