"""weft.Semaphore: a number of permits that processes share; those of a process that dies come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import _nic, errors
from ..arrays.calls import AGAIN, Answer
from ..names.ticket import Ticket
from ..names.waiting import whole
from ..node import Node
from .sync_object import NO_SEAT, Result, SyncObject, limit

_OP = _nic.SyncOp
_TAKE, _RELEASE, _LOOK = map(int, (_OP.take, _OP.release, _OP.look))
_SEATS_MIN, _SEATS_MAX = 64, 1024


class Semaphore(SyncObject, _nic.SemaphoreCore):
    """Permits that processes share: at most `value` are taken at a time.

        with weft.Semaphore("gpu", 2):      # two processes at a time
            ...

    Args:
        value: Number of permits at first; of a semaphore that exists: None, or the same number.

    The permits of a process that dies come back. A process that releases more permits than it has acquired adds
    permits. At most 1,024 processes can have permits at a time. Further arguments and errors: see `SyncObject`.
    """

    _KIND = int(_nic.SyncKind.semaphore)
    _CORE = _nic.SemaphoreCore

    def __init__(
        self,
        name: str | Ticket | None = None,
        value: int | None = None,
        *,
        node: Node | None = None,
        create: bool | None = None,
        wait: float = 0.0,
        keep: bool = False,
    ) -> None:
        n = 1 if value is None else whole(value, "Semaphore: value", 0, 1 << 31)
        made = self._begin(name, n, min(max(n, _SEATS_MIN), _SEATS_MAX), node, create, wait, keep)
        if not made and value is not None and self._n != n:
            raise errors.InvalidArgument(
                f"Semaphore: {self._shown()} was made with value={self._n}, and this one asks for value={n}"
            )

    if TYPE_CHECKING:

        def __enter__(self) -> Semaphore: ...

    # acquire, try_acquire, release, __enter__ and __exit__ are in C++ (cpp/bind/sync.cpp).
    # What they cannot do at once they pass to the methods below, and undo if an exception ends these.

    def _acquire(self, *given: Any, **named: Any) -> bool:
        left, quiet = self._check_timeout(*given, **named)
        found = self._do("acquire", _TAKE, timeout=left)
        if quiet:
            return found.outcome != AGAIN
        self._late("acquire", left, found)
        return True

    def _release(self, n: int = 1) -> None:
        self._at_once("release", _RELEASE, whole(n, "release: n", 1, 1 << 31))

    def _try_acquire(self) -> bool:
        return self._do("try_acquire", _TAKE).outcome != AGAIN

    @property
    def value(self) -> int:
        """Permits that can be taken now."""
        return self._at_once("value", _LOOK).value

    async def aacquire(self, timeout: float | None = None) -> bool:
        """`acquire`, awaitable."""
        patience = limit(timeout, "aacquire")

        async def undo(_: Answer) -> None:
            await self._aat_once("arelease", _RELEASE, 1)

        self._late("aacquire", patience, await self._ado("aacquire", _TAKE, timeout=patience, undo=undo))
        return True

    async def arelease(self, n: int = 1) -> None:
        """`release`, awaitable: it waits only on paths other than load/store."""
        await self._aat_once("arelease", _RELEASE, whole(n, "arelease: n", 1, 1 << 31))

    async def __aenter__(self) -> Semaphore:
        await self.aacquire()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.arelease()

    def _late(self, call: str, timeout: float | None, found: Result) -> None:
        if found.outcome == AGAIN:
            raise errors.TimedOut(
                f"{call}: no permit of {self._shown()} is free after {timeout or 0:g} s; it was made with {self._n}\n"
                "  try: a longer timeout"
            )

    def _refused(self, call: str, result: Result) -> errors.FabricError:
        if result.outcome == NO_SEAT:
            return errors.NoSpace(f"{call}: {self._item} processes have permits of {self._shown()}; no more can")
        return super()._refused(call, result)

    def _state(self) -> str:
        return f"{self.value} free, made with {self._n}"
