"""Helpers of the tests of elements: mapped arrays, and values of every dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft

Array = np.ndarray[Any, Any]

DTYPES = [
    *("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", "c8", "c16"),
    *(">i2", ">i4", ">i8", ">f4", ">f8", ">c8", "S3", "U2", "m8[s]", "M8[D]", "i4,f8"),
]
NUMBERS = [dtype for dtype in DTYPES if dtype[0] in "?iufc" and "," not in dtype]


def values_of(dtype: str, shape: tuple[int, ...]) -> Array:
    size = int(np.prod(shape))
    if dtype[0] in "SU":
        return np.arange(size).astype(dtype).reshape(shape)
    if dtype == "?":
        return (np.arange(size) % 3 == 0).reshape(shape)
    if dtype == "g":
        return np.arange(size).astype("g").reshape(shape)
    return (np.arange(size * np.dtype(dtype).itemsize) % 113).astype("u1").view(dtype).reshape(shape)


def same(found: Array, wanted: Array) -> None:
    """Equal bytes; of long doubles, whose padding may differ, equal values."""
    if wanted.dtype.kind == "f" and wanted.itemsize == 16:
        assert np.array_equal(found, wanted, equal_nan=True)
    else:
        assert found.tobytes() == wanted.tobytes()


def mapped(node: weft.Node, given_values: Any) -> tuple[Array, Any, weft.share.Shared]:
    """An array in memory that peers map, the remote array that reaches it, and its share."""
    first = np.asarray(given_values)
    local = weft.empty(first.shape, first.dtype)
    local[...] = first
    share = node.share(local)
    return local, node.attach(share), share
