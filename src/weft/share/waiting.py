"""What the waiting calls take: seconds, and what to wait for; and how they pause between two looks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import errors

__all__ = ["condition", "deadline_in", "pauses", "seconds"]


def seconds(value: Any, what: str) -> float:
    """A number of seconds. Raises TypeError, and InvalidArgument where it is not a number ("nan")."""
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{what} is a number of seconds, not {value!r}") from None
    if math.isnan(found):
        raise errors.InvalidArgument(f"{what} is {value!r}: a number of seconds is needed")
    return found


def deadline_in(timeout: Any, what: str) -> float | None:
    """When a timeout that starts now ends, by time.monotonic(); None for never. Raises as `seconds`."""
    return None if timeout is None else time.monotonic() + seconds(timeout, what)


def condition(value: Any, dtype: np.dtype[Any], call: str) -> Callable[[Any], bool]:
    """Whether what was read is what `value` asks for: all elements equal it, or it is a function and says so.

    Raises TypeError for a value that no element of the dtype can ever equal: the call would wait for ever.
    """
    if callable(value):
        return lambda found: bool(value(found))
    if dtype.kind != "V":  # structured elements have no ufuncs, and compare by ==
        try:
            if value is None:
                raise TypeError
            np.equal(np.empty(0, dtype), np.asarray(value).reshape(-1)[:0])
        except TypeError:
            raise TypeError(
                f"{call}: {value!r} is nothing that elements of dtype {dtype} can become\n"
                "  try: a value of that dtype, or a function of what is read: lambda x: x >= 5"
            ) from None
    return lambda found: bool(np.all(found == value))


def pauses() -> Iterator[float]:
    """Seconds to sleep between looks, -1 for not at all: at once, then giving the core away, then longer and longer."""
    for _ in range(100):
        yield -1
    for _ in range(100):
        yield 0
    pause = 50e-6
    while True:
        yield pause
        pause = min(pause * 1.5, 2e-3)
