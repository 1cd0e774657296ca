"""Arguments of calls: seconds, whole numbers, and conditions to wait for."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import errors


def seconds(value: Any, what: str) -> float:
    """A number of seconds. Raises TypeError, and InvalidArgument for NaN."""
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{what} is a number of seconds, not {value!r}") from None
    if math.isnan(found):
        raise errors.InvalidArgument(f"{what} is {value!r}; it must be a number of seconds")
    return found


def whole(value: Any, what: str, least: int, most: int) -> int:
    """An integer. Raises TypeError, InvalidArgument."""
    try:
        if isinstance(value, bool):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is an integer, not {value!r}") from None
    if not least <= found <= most:
        raise errors.InvalidArgument(f"{what} is {found}; it must be {least} to {most}")
    return found


def deadline_in(timeout: Any, what: str) -> float | None:
    """The end of a timeout that starts now, by time.monotonic(); None: no limit. Raises as `seconds`."""
    return None if timeout is None else time.monotonic() + seconds(timeout, what)


def condition(value: Any, dtype: np.dtype[Any], call: str) -> Callable[[Any], bool]:
    """A function that tells whether the array that was read fulfils `value`: every element equals `value`, or `value`
    is a function and returns true.

    Raises TypeError for a value that no element of the dtype can equal, because the call would never end. The returned
    function raises ValueError if the value does not broadcast to the array that was read.
    """
    if callable(value):
        return lambda found: bool(value(found))
    wanted = _wanted(value, dtype, call)

    def holds(found: Any) -> bool:
        same = found == wanted
        if np.shape(same) != np.shape(found):
            raise ValueError(
                f"{call}: values of shape {wanted.shape} do not broadcast to the selection's shape {np.shape(found)}"
            )
        return bool(np.all(same))

    return holds


def _wanted(value: Any, dtype: np.dtype[Any], call: str) -> Any:
    try:
        if isinstance(value, int) and dtype.kind in "fc":
            return np.asarray(value, dtype)  # so that integers of more than 64 bits are accepted
        wanted = np.asarray(value)
        if dtype.kind == "V" and wanted.dtype.kind != "V":
            return np.asarray(value, dtype)  # a record given as a tuple; dtypes of other packages
        if wanted.dtype.hasobject or (wanted.dtype.kind in "fc" and np.isnan(wanted).any()):
            raise TypeError
        if dtype.kind != "V":  # structured elements have no ufuncs, and compare by ==
            np.equal(np.empty(0, dtype), wanted.reshape(-1)[:0])
        return wanted
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"{call}: no element of dtype {dtype} can equal {value!r:.200}\n"
            "  try: a value of that dtype, or a function of the elements: lambda x: x >= 5"
        ) from None
