"""The order of an array's axes in memory, and arrays that are made in another array's order."""

from __future__ import annotations

from typing import Any

import numpy as np

from .checks import Array


def memory_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The axes from the one with the largest stride to the one with the smallest. Axes of one element have no order."""
    long = sorted((axis for axis, n in enumerate(shape) if n != 1), key=lambda axis: -abs(strides[axis]))
    if long == sorted(long):
        return tuple(range(len(shape)))
    return (*long, *(axis for axis, n in enumerate(shape) if n == 1))


def in_order(order: tuple[int, ...]) -> bool:
    """Whether the order of axes is C order."""
    return order == tuple(range(len(order)))


def strides_of(shape: tuple[int, ...], itemsize: int, order: str = "C") -> tuple[int, ...]:
    """Byte strides of a contiguous array, in C or in Fortran order."""
    strides: list[int] = []
    step = itemsize
    for n in shape if order == "F" else reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(strides) if order == "F" else tuple(reversed(strides))


def empty_like_view(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array whose axes have a view's order in memory: reading the whole view is then one copy."""
    order = memory_order(shape, strides)
    if in_order(order):
        return np.empty(shape, dtype)
    turned: Array = np.empty(tuple(shape[axis] for axis in order), dtype)
    found: Array = turned.transpose(tuple(np.argsort(order)))
    return found


def stand_in(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array of a shape, strides and dtype without memory behind it. Its elements must never be touched.

    NumPy then computes the shape and strides of transposed and reshaped views, and raises its own errors.
    """
    return np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, strides, writeable=False)
