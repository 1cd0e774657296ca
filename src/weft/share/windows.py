"""The memory of an array of another process, mapped here: for memory that the keeper has made for this process."""

from __future__ import annotations

import time

import numpy as np

from .. import _nic, errors
from .arrays import Array
from .attached import Attached

__all__ = ["window"]

_AGAIN = int(_nic.Status.again)
_WAIT_S = 30.0


def window(a: Attached) -> Array:
    """The bytes of a one-dimensional uint8 array, writable, over the owner's memory. Raises NotSupported, TimedOut."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            lane = a._pop()
        except IndexError:
            lane = a._lane("keep")
        found = _nic.peer_memory(lane.ep._core, a._peer, a._key, a._base, a.nbytes, True)
        lane.take(1)  # progress, under WEFT_ENGINE=manual
        a._push(lane)
        if isinstance(found, _nic.PeerMemory):
            return np.frombuffer(found, np.uint8)  # type: ignore[call-overload,no-any-return]
        if found != _AGAIN:
            raise errors.NotSupported(f"keep: the keeper's memory cannot be mapped here (status {found})")
        if time.monotonic() > deadline:
            raise errors.TimedOut(f"keep: the keeper's memory was not mapped within {_WAIT_S:g} s")
        time.sleep(0.0005)
