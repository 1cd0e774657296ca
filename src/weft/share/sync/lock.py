"""weft.Lock: mutual exclusion between processes, released when its holder dies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ... import _nic, errors
from ..arrays.calls import AGAIN, Answer
from ..names.ticket import process_is_stopped
from .sync_object import DIED, OwnerDied, Result, SyncObject, limit

_OP = _nic.SyncOp
_TAKE, _RELEASE, _LOOK = map(int, (_OP.take, _OP.release, _OP.look))
_MARKED, _ELSEWHERE = 1, 2


class Lock(SyncObject, _nic.LockCore):
    """A lock that processes share, by its name or by pickling.

        with weft.Lock("table"):        # in any process of this user
            ...

    One process holds the lock at a time; any thread of that process may release it, and no other process. A thread that
    tries to acquire a lock that its own process holds waits, as for any other.

    Robust: when a process dies while it holds the lock (kill -9, too), the lock is not simply free, because the data
        that it protects may be half-changed. Every acquire() then raises OwnerDied, until somebody takes the lock with
        recover():

        try:
            lock.acquire()
        except weft.OwnerDied:
            if lock.recover():      # holds the lock; True: nobody has put the data in order since
                repair()

    A thread that ends, or exec(), does not release the lock. Arguments and further errors: see `SyncObject`.
    """

    _KIND = int(_nic.SyncKind.lock)
    _CORE = _nic.LockCore

    if TYPE_CHECKING:

        def __enter__(self) -> Lock: ...

    # acquire, try_acquire, recover, release, __enter__ and __exit__ are in C++ (cpp/bind/sync.cpp).
    # What they cannot do at once they pass to the methods below, and undo if an exception ends these.

    def _acquire(self, *given: Any, **named: Any) -> bool:
        left, quiet = self._check_timeout(*given, **named)
        if quiet:
            return self._do("acquire", _TAKE, 0, os.getpid(), timeout=left).outcome != AGAIN
        self._take("acquire", left, 0)
        return True

    def _try_acquire(self) -> bool:
        return self._do("try_acquire", _TAKE, 0, os.getpid()).outcome != AGAIN

    def _release(self) -> None:
        self._do("release", _RELEASE)

    def _recover(self, timeout: float | None = None) -> bool:
        return self._take("recover", limit(timeout, "recover"), 1).value == 1

    @property
    def holder(self) -> int | None:
        """The pid of the process that holds the lock, on its host; None: the lock is free."""
        found = self._do("holder", _LOOK)
        return found.value if found.value and not found.value3 & _MARKED else None

    def locked(self) -> bool:
        """Whether a process holds the lock."""
        return self.holder is not None

    # ---- awaitable calls --------------------------------------------------------------------------------------------

    async def aacquire(self, timeout: float | None = None) -> bool:
        """`acquire`, awaitable. The lock belongs to the process: two tasks of a process exclude each other, too."""
        await self._atake("aacquire", limit(timeout, "aacquire"), 0)
        return True

    async def arecover(self, timeout: float | None = None) -> bool:
        """`recover`, awaitable."""
        return (await self._atake("arecover", limit(timeout, "arecover"), 1)).value == 1

    async def arelease(self) -> None:
        """`release`, awaitable: it waits only on paths other than load/store."""
        await self._ado("arelease", _RELEASE)

    async def __aenter__(self) -> Lock:
        await self.aacquire()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.arelease()

    # ---- how --------------------------------------------------------------------------------------------------------

    def _take(self, call: str, timeout: float | None, recover: int) -> Result:
        found = self._do(call, _TAKE, recover, os.getpid(), timeout=timeout)
        if found.outcome == AGAIN:
            raise self._late(call, timeout)
        return found

    async def _atake(self, call: str, timeout: float | None, recover: int) -> Result:
        async def undo(late: Answer) -> None:
            await self._ado("arelease", _RELEASE, late.value2)  # taken over from a dead process: leave it in that state

        found = await self._ado(call, _TAKE, recover, os.getpid(), timeout=timeout, undo=undo)
        if found.outcome == AGAIN:
            import asyncio

            raise await asyncio.get_running_loop().run_in_executor(None, self._late, call, timeout)
        return found

    def _late(self, call: str, timeout: float | None) -> errors.TimedOut:
        found = self._do(call, _LOOK)
        shown = f"{call}: {self._shown()} is not free after {timeout or 0:g} s"
        if not found.value:
            return errors.TimedOut(f"{shown}: it has just been released\n  try: again")
        elsewhere = bool(found.value3 & _ELSEWHERE)
        who = f"process {found.value}" + (" of another host, or with another isolation" if elsewhere else "")
        if not elsewhere and process_is_stopped(found.value):
            who += ", which is stopped (Ctrl-Z, a debugger),"
        held = f" for at least {found.value2 / 1e9:.3g} s" if found.value2 else ""
        return errors.TimedOut(f"{shown}: {who} holds it{held}\n  try: a longer timeout")

    def _refused(self, call: str, result: Result) -> errors.FabricError:
        if result.outcome == DIED:
            if self.ticket.here and result.value == self.ticket.pid and not result.value2:  # the lock has ended with it
                self._array._probe()
                return self._gone(call)
            return OwnerDied(
                f"{call}: process {result.value}, which held {self._shown()}, has died\n"
                "  rule: what the lock protects may be half-changed; nobody gets the lock until somebody recovers it\n"
                "  try: lock.recover(), which takes the lock; put the data in order; lock.release()"
            )
        if call in ("release", "arelease"):
            holder = f"process {result.value} does" if result.value else "nobody does"
            return errors.NotPermitted(
                f"{call}: this process does not hold {self._shown()}, {holder}\n"
                "  rule: only the process that has acquired a lock releases it"
            )
        return super()._refused(call, result)

    def _state(self) -> str:
        found = self._do("repr", _LOOK)
        if found.value3 & _MARKED:
            return f"process {found.value} died with it"
        return f"held by process {found.value}" if found.value else "free"
