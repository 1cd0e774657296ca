"""Waiting for elements of arrays: `t.wait_until`, `t.wait`, and the signals of `t.notify`.

The NIC of the array's owner keeps a watch: the bytes that the waiter has seen. The NIC answers when the bytes differ.
The NIC looks at the bytes after each access that it executes, and whenever a process that writes into the owner's
memory by loads and stores through Weft wakes it. Stores into NumPy arrays (`array[0] = 7` in the owner, or through a
view) wake nobody: for them the NIC also looks from time to time, at most a quarter of a second after its last look.

So the waiter sleeps on its completion queue. The waiter sends nothing, except that it renews the watch every RENEW_S.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _nic, errors
from ..names.waiting import condition, deadline_in
from .calls import AGAIN, PARK, RENEW_S, WATCH, APosted, Request, ask
from .checks import Array
from .explain import timed_out
from .ordering import strides_of
from .show import named, short

if TYPE_CHECKING:
    from .remote import RemoteArray

# Elements of more bytes, and elements that are not contiguous, are only read again.
_WATCHED_MAX = 1024
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.02, 0.25
_LOOKS_FIRST = 50  # before the first watch: about 100 us on the load/store path


_SIGNAL: Any = object()  # the value of calls that wait for a signal


class _Look:
    """The elements that a call waits for, what it waits for, and how long; computes the pause until the next read."""

    def __init__(self, array: RemoteArray, index: Any, value: Any, timeout: float | None, call: str) -> None:
        self.array, self.call, self._index, self._value, self._timeout = array, call, index, value, timeout
        self.holds: Callable[[Any], bool] = _is_set if value is _SIGNAL else condition(value, array._dtype, call)
        self.deadline = deadline_in(timeout, f"{call}: timeout")
        # A function may depend on more than the elements.
        self.also = (lambda: self.holds(self.found())) if callable(value) else None
        self.part = array.at[index]
        self.seen: Array = np.empty(self.part._shape, self.part._dtype)
        # As in NumPy: with an ellipsis the result is an array without dimensions.
        self._scalar = not self.part._shape and not (
            index is Ellipsis or (isinstance(index, tuple) and any(k is Ellipsis for k in index))
        )
        contiguous = self.part._strides == strides_of(self.part._shape, self.part._itemsize)
        readable = "r" in array.ticket.access
        # Only Weft's own NIC watches memory; over a real libfabric the waiter reads again, more and more rarely.
        self.watchable = readable and contiguous and 0 < self.seen.nbytes <= _WATCHED_MAX and not array.ticket.fabric
        self._began = time.monotonic()

    def read(self) -> Any:
        self.part.read(out=self.seen)
        return self.found()

    async def aread(self) -> Any:
        await self.part.aread(out=self.seen)
        return self.found()

    def found(self) -> Any:
        return self.seen[()] if self._scalar else self.seen.copy()

    def late(self, found: Any) -> errors.TimedOut | None:
        """The error of a wait whose time is over."""
        if self.deadline is None or time.monotonic() < self.deadline:
            return None
        if self._value is _SIGNAL:
            what, length = f"{named(self.array.ticket)}[{short(self._index)}]", f"{self._timeout or 0:g} s"
            return errors.TimedOut(f"{self.call}: nobody has notified {what} in {length}")
        return timed_out(self.array, self._index, self._value, self._timeout, found)

    def pause(self, deadline: float | None) -> float:
        now = time.monotonic()
        pause = min(max((now - self._began) / 2, _PAUSE_S_MIN), _PAUSE_S_MAX)
        return pause if deadline is None else max(min(pause, deadline - now), 0.0)

    def request(self, flags: int = 0) -> Request:
        return Request(1, WATCH | flags, data=self.seen.tobytes())


def wait_until(array: RemoteArray, index: Any, value: Any, timeout: float | None) -> Any:
    """`RemoteArray.wait_until`."""
    return _wait(_Look(array, index, value, timeout, "wait_until"))


async def await_until(array: RemoteArray, index: Any, value: Any, timeout: float | None) -> Any:
    """`RemoteArray.await_until`."""
    return await _await(_Look(array, index, value, timeout, "await_until"))


def wait_signal(array: RemoteArray, index: Any, timeout: float | None) -> Any:
    """`RemoteArray.wait`."""
    nothing = _nothing(array, index, "wait")
    look = _Look(array, index, _SIGNAL, timeout, "wait")
    while True:
        _wait(look)
        found = array.swap(index, nothing)
        if _is_set(found):
            return found  # false: another waiter has taken the signals


async def await_signal(array: RemoteArray, index: Any, timeout: float | None) -> Any:
    """`RemoteArray.await_`."""
    nothing = _nothing(array, index, "await_")
    look = _Look(array, index, _SIGNAL, timeout, "await_")
    while True:
        await _await(look)
        found = await array.aswap(index, nothing)
        if _is_set(found):
            return found


def check_signal(array: RemoteArray, index: Any, call: str) -> None:
    """Refuse an index of several elements, and elements that cannot count signals. Raises IndexError, TypeError."""
    if array.at[index]._shape:
        raise IndexError(f"{call}: one element carries a signal, and {short(index)} selects {array.at[index]._shape}")
    if array._dtype.kind not in "iufcb":
        raise TypeError(
            f"{call}: elements of dtype {array._dtype} carry no signals\n  try: an array of integers beside this one"
        )


def _nothing(array: RemoteArray, index: Any, call: str) -> Any:
    check_signal(array, index, call)
    if array.ticket.access != "rw":
        only = "; or t.wait_until(index, value), which only reads" if array.ticket.access == "r" else ""
        raise errors.AccessDenied(
            f"{call}: {named(array.ticket)} is shared with access {array.ticket.access!r}, and who gets a signal sets "
            f"the element to 0\n  try: access='rw' in its owner, process {array.ticket.pid}{only}"
        )
    return array._dtype.type(0)


def _is_set(found: Any) -> bool:
    return bool(found != 0)


def _wait(look: _Look) -> Any:
    core = _nic.SyncCore()
    looks = 0
    while True:
        found = look.read()
        if look.holds(found):
            return found
        if late := look.late(found):
            raise late
        looks += 1
        if looks <= _LOOKS_FIRST:
            continue
        if not look.watchable:
            time.sleep(look.pause(look.deadline))
            continue
        # The owner's NIC compares the bytes at once, then keeps the request until they differ.
        left = None if look.deadline is None else max(look.deadline - time.monotonic(), 0.0)
        outcome = ask(core, look.part, look.call, look.request(), left, also=look.also).outcome
        if outcome == AGAIN and look.also is not None and look.also():
            return look.found()


async def _await(look: _Look) -> Any:
    import asyncio

    node, deadline, call, also = look.array._node, look.deadline, look.call, look.also
    posted: APosted | None = None
    try:
        while True:
            found = await look.aread()
            if look.holds(found):
                return found
            if late := look.late(found):
                raise late
            if not look.watchable:
                await asyncio.sleep(look.pause(deadline))
                continue
            assert node is not None
            posted = APosted(look.part, call, look.request(PARK), node._loop_lane(asyncio.get_running_loop(), call))
            await posted.start()
            renewal = time.monotonic() + RENEW_S
            until = renewal if deadline is None else min(deadline, renewal)
            answer = None
            while answer is None and time.monotonic() < until:
                answer = await posted.wait(until - time.monotonic() if also is None else look.pause(until))
                if answer is None and also is not None and also():
                    return found
            if answer is None and until == renewal:
                answer = await posted.end()
            if answer is not None:
                posted = None
                if answer.outcome == AGAIN:  # the owner's NIC has no room for this watch
                    await asyncio.sleep(look.pause(deadline))
    finally:
        if posted is not None:
            posted.abandon()
