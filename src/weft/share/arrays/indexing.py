"""NumPy's basic indexing on a shape and strides, and the contiguous pieces of memory of a selection."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ..._nic import pieces_of, select_part

Selection = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Byte offset, shape, byte strides."""


def select(key: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Selection:
    """The selection `a[key]` of an array, as in NumPy: integers, slices, `...` and `numpy.newaxis`.

    Raises IndexError as NumPy does; for index arrays and masks the message names the calls that take them.
    """
    found = select_part(key, shape, strides)
    if isinstance(found, tuple):
        return found
    item = key[found] if isinstance(key, tuple) else key
    if isinstance(item, (bool, np.bool_)):
        raise IndexError("a remote array cannot be indexed with a bool\n  try: numpy.newaxis for a new dimension")
    try:
        operator.index(item)
    except TypeError:
        pass
    raise IndexError(no_index(item))


def no_index(k: object) -> str:
    """The text of an IndexError: what an index may be."""
    if isinstance(k, (list, np.ndarray, range)) or hasattr(k, "__array__"):
        return (
            "index arrays and masks select along one axis at a time: t[indices] alone, or "
            "t.take(indices, axis=...) and t.put(indices, values, axis=...)"
        )
    return (
        f"{k!r} is not an index\n"
        "  try: integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`), or a single array of integers"
    )


def pieces(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """A selection as equal pieces of contiguous memory: (bytes of a piece, shape, strides) of the pieces' starts.

    Shape () means one piece. The selection must have elements.
    """
    return pieces_of(shape, strides, itemsize)


def offsets(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Byte offsets of the elements of a shape with strides, in C order."""
    found: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(1, np.int64)
    for n, stride in zip(shape, strides, strict=True):
        found = np.add.outer(found, np.arange(n, dtype=np.int64) * stride).reshape(-1)
    return found


def indices_along(indices: Any, n: int, axis: int, call: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Index arrays as int64, with negative ones counted from the end, and masks as the indices where they are true.

    Raises TypeError (not integers), IndexError (out of bounds; a mask of another length).
    """
    found = np.asarray(indices)
    if found.size == 0 and found.dtype == np.float64:
        found = found.astype(np.int64)  # [] is float64 to NumPy
    if found.dtype == np.bool_:
        if found.shape != (n,):
            raise IndexError(f"{call}: a mask of shape {found.shape} for axis {axis} with size {n}")
        return np.flatnonzero(found).astype(np.int64, copy=False)
    if found.dtype.kind not in "iu":
        raise TypeError(f"{call}: indices are integers, not {found.dtype}\n  try: indices.astype(int)")
    # A copy, also of int64: another thread or process may write the caller's array after the check.
    whole = found.astype(np.int64)
    # One comparison checks both ends: as unsigned numbers, negative indices are the largest.
    if whole.size == 0 or whole.view(np.uint64).max() < n:
        return whole
    if whole.min() < -n or whole.max() >= n:
        bad = (whole < -n) | (whole >= n)
        raise IndexError(
            f"{call}: index {whole[bad].flat[0]} is out of bounds for axis {axis} with size {n}"
            + (f" (and {int(bad.sum()) - 1} more)" if int(bad.sum()) > 1 else "")
        )
    return whole if whole.min() >= 0 else np.where(whole < 0, whole + n, whole)
