"""weft.Barrier: processes wait until all have come; one that dies breaks the barrier instead of blocking the others."""

from __future__ import annotations

from ... import _nic, errors
from ..arrays.calls import AGAIN, DONE, MAPPED, Answer
from ..names.ticket import Ticket
from ..names.waiting import whole
from ..node import Node
from .sync_object import BROKEN, Result, SyncObject, limit

_OP = _nic.SyncOp
_WAIT, _ABORT, _RESET, _LOOK = map(int, (_OP.wait, _OP.abort, _OP.reset, _OP.look))
_PARTIES_MAX = 1 << 16


class Barrier(SyncObject, _nic.BarrierCore):
    """A point that processes pass together.

        barrier = weft.Barrier("step", 4)
        barrier.wait()                      # returns in all four when the fourth has come

    Args:
        parties: Number of processes that have to come; of a barrier that exists: None, or the same number.

    The barrier breaks when a process ends that waits at the barrier, or that passed it the last time: that process will
    not come again. Processes that wait, or come later, get Canceled until reset(). A process that dies before it first
    comes is not known to the barrier: use a timeout. Further arguments and errors: see `SyncObject`.
    """

    _KIND = int(_nic.SyncKind.barrier)
    _CORE = _nic.BarrierCore

    def __init__(
        self,
        name: str | Ticket | None = None,
        parties: int | None = None,
        *,
        node: Node | None = None,
        create: bool | None = None,
        wait: float = 0.0,
        keep: bool = False,
    ) -> None:
        n = 0 if parties is None else whole(parties, "Barrier: parties", 1, _PARTIES_MAX)
        if not n and (create or name is None):
            raise errors.InvalidArgument("Barrier: a new barrier needs the number of its parties\n  try: parties=4")
        made = self._begin(name, n, 0, node, create if n else False, wait, keep)
        if not made and n and self._n != n:
            raise errors.InvalidArgument(f"Barrier: {self._shown()} has {self._n} parties, and this one asks for {n}")

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all parties have come.

        Returns a number from 0 to parties - 1, another one for each party. After TimedOut this party has left the
        barrier, and can come again. Raises TimedOut, Canceled (the barrier is broken).
        """
        patience = limit(timeout, "wait")
        found = self._do("wait", _WAIT, timeout=patience)
        return self._late("wait", patience, found, None)

    async def await_(self, timeout: float | None = None) -> int:
        """`wait`, awaitable."""
        patience = limit(timeout, "await_")

        async def undo(late: Answer) -> None:
            if late.outcome != DONE:
                await self._awithdraw("await_", late, MAPPED if self._mapped else 0)

        found = await self._ado("await_", _WAIT, timeout=patience, undo=undo)
        came = (await self._ado("await_", _LOOK)).value if found.outcome == AGAIN else None
        return self._late("await_", patience, found, came)

    def abort(self) -> None:
        """Break the barrier: processes that wait, or come later, get Canceled until reset()."""
        self._do("abort", _ABORT)

    def reset(self) -> None:
        """Make the barrier whole and empty. Processes that wait then get Canceled, as with threading.Barrier."""
        self._at_once("reset", _RESET)

    @property
    def parties(self) -> int:
        """How many have to come."""
        self._ensure("parties")
        return self._n

    @property
    def n_waiting(self) -> int:
        """How many have come, and wait."""
        return self._do("n_waiting", _LOOK).value

    @property
    def broken(self) -> bool:
        """True until reset(), after a process ended, or abort()."""
        return self._do("broken", _LOOK).value2 != 0

    def _late(self, call: str, timeout: float | None, found: Result, came: int | None) -> int:
        if found.outcome != AGAIN:
            return found.value
        others = self.n_waiting if came is None else came
        raise errors.TimedOut(
            f"{call}: {others} other parties of {self._n} wait at {self._shown()}, after {timeout or 0:g} s\n"
            "  try: a longer timeout; to come again"
        )

    def _refused(self, call: str, result: Result) -> errors.FabricError:
        if result.outcome == BROKEN:
            if result.value2:
                return errors.Canceled(
                    f"{call}: reset() of {self._shown()} was called while this party waited\n  try: to come again"
                )
            why = f"process {result.value}, one of its parties, has ended" if result.value else "abort() was called"
            return errors.Canceled(f"{call}: {self._shown()} is broken: {why}\n  try: barrier.reset(), and come again")
        return super()._refused(call, result)

    def _state(self) -> str:
        found = self._do("repr", _LOOK)
        return f"{found.value} of {self._n} wait" + (", broken" if found.value2 else "")
