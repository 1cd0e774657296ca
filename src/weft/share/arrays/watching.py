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


class _Look:
    """The elements that a call waits for: reads them, and computes the pause until the next read."""

    def __init__(self, array: RemoteArray, index: Any) -> None:
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

    def pause(self, deadline: float | None) -> float:
        now = time.monotonic()
        pause = min(max((now - self._began) / 2, _PAUSE_S_MIN), _PAUSE_S_MAX)
        return pause if deadline is None else max(min(pause, deadline - now), 0.0)

    def request(self, flags: int = 0) -> Request:
        return Request(1, WATCH | flags, data=self.seen.tobytes())


def wait_until(array: RemoteArray, index: Any, value: Any, timeout: float | None) -> Any:
    """`RemoteArray.wait_until`."""
    holds = condition(value, array._dtype, "wait_until")
    return _wait(array, index, holds, value, deadline_in(timeout, "wait_until: timeout"), timeout, "wait_until")


async def await_until(array: RemoteArray, index: Any, value: Any, timeout: float | None) -> Any:
    """`RemoteArray.await_until`."""
    holds = condition(value, array._dtype, "await_until")
    return await _await(
        array, index, holds, value, deadline_in(timeout, "await_until: timeout"), timeout, "await_until"
    )


def wait_signal(array: RemoteArray, index: Any, timeout: float | None) -> Any:
    """`RemoteArray.wait`."""
    nothing, deadline = _nothing(array, index, "wait"), deadline_in(timeout, "wait: timeout")
    while True:
        _wait(array, index, _is_set, None, deadline, timeout, "wait")
        found = array.swap(index, nothing)
        if _is_set(found):
            return found  # false: another waiter has taken the signals


async def await_signal(array: RemoteArray, index: Any, timeout: float | None) -> Any:
    """`RemoteArray.await_`."""
    nothing, deadline = _nothing(array, index, "await_"), deadline_in(timeout, "await_: timeout")
    while True:
        await _await(array, index, _is_set, None, deadline, timeout, "await_")
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


def _late(array: RemoteArray, index: Any, value: Any, timeout: float | None, found: Any, call: str) -> errors.TimedOut:
    if value is None:
        return errors.TimedOut(
            f"{call}: nobody has notified {named(array.ticket)}[{short(index)}] in {timeout or 0:g} s"
        )
    return timed_out(array, index, value, timeout, found)


def _wait(
    array: RemoteArray,
    index: Any,
    holds: Callable[[Any], bool],
    value: Any,
    deadline: float | None,
    timeout: float | None,
    call: str,
) -> Any:
    look = _Look(array, index)
    found: Any = None
    core = _nic.SyncCore()
    looks = 0
    # A function may depend on more than the elements.
    also = (lambda: holds(found)) if callable(value) else None
    while True:
        found = look.read()
        if holds(found):
            return found
        if deadline is not None and time.monotonic() >= deadline:
            raise _late(array, index, value, timeout, found, call)
        looks += 1
        if looks <= _LOOKS_FIRST:
            continue
        if not look.watchable:
            time.sleep(look.pause(deadline))
            continue
        # The owner's NIC compares the bytes at once, then keeps the request until they differ.
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        if ask(core, look.part, call, look.request(), left, also=also).outcome == AGAIN and also is not None and also():
            return found


async def _await(
    array: RemoteArray,
    index: Any,
    holds: Callable[[Any], bool],
    value: Any,
    deadline: float | None,
    timeout: float | None,
    call: str,
) -> Any:
    import asyncio

    look = _Look(array, index)
    found: Any = None
    posted: APosted | None = None
    # A function may depend on more than the elements.
    also = (lambda: holds(found)) if callable(value) else None
    try:
        while True:
            found = await look.aread()
            if holds(found):
                return found
            if deadline is not None and time.monotonic() >= deadline:
                raise _late(array, index, value, timeout, found, call)
            if not look.watchable:
                await asyncio.sleep(look.pause(deadline))
                continue
            node = array._node
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
