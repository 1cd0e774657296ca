"""Room behind an array: memory that `weft.empty(..., reserve=n)` allocates, and `Shared.resize` uses."""

from __future__ import annotations

import operator
import weakref
from typing import TYPE_CHECKING, Any

from .. import errors

if TYPE_CHECKING:
    import numpy as np

# The whole rooms, by id(): arrays are not hashable. An entry goes with its room.
_rooms: dict[int, weakref.ReferenceType[np.ndarray[Any, Any]]] = {}


def whole_shape(shape: Any, reserve: Any, call: str) -> tuple[tuple[Any, ...], int]:
    """The shape of a room for `reserve` rows, and the rows of `shape`. Raises TypeError, InvalidArgument."""
    try:
        wanted = operator.index(reserve)
    except TypeError:
        raise TypeError(f"{call}: reserve is a number of rows, an integer, not {reserve!r}") from None
    dims = (shape,) if hasattr(shape, "__index__") else shape
    try:
        length, *rest = map(operator.index, dims)
    except TypeError:
        raise TypeError(f"{call}: a shape is an integer or a tuple of integers, not {shape!r}") from None
    except ValueError:
        raise errors.InvalidArgument(
            f"{call}: an array without dimensions has no rows to reserve\n  try: shape 1 instead of ()"
        ) from None
    if length < 0:
        raise ValueError(f"{call}: shape {shape!r} has a negative length")
    if wanted < length:
        raise errors.InvalidArgument(
            f"{call}: reserve={wanted} is less than the {length} rows of shape {shape}\n"
            "  rule: reserve is the most rows that the array can get, those of its shape included"
        )
    return (wanted, *rest), length


def part(room: np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
    """The first rows of a room; `room_of` finds the room again."""
    key = id(room)
    if key not in _rooms:
        _rooms[key] = weakref.ref(room, lambda _: _rooms.pop(key, None))
    return room[:length]


def room_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """The room of an array that was made with `reserve`: all rows that the array can get; None if it has no room.

    A part of such an array, or an array with other rows, has no room.
    """
    base: Any = array
    while base is not None:
        known = _rooms.get(id(base))
        room = None if known is None else known()
        if room is not None and room is base:
            same_rows = array.ndim > 0 and array.shape[1:] == room.shape[1:] and array.dtype == room.dtype
            starts = array.__array_interface__["data"][0] == room.__array_interface__["data"][0]
            return room if same_rows and starts and array.flags.c_contiguous else None
        base = getattr(base, "base", None)
    return None
