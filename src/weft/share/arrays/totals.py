"""Reductions of a remote array along axes: sum, mean, min ... Read in tiles, so that no copy of the array is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .checks import Array
from .parts import Parts
from .tiles import read_tiles

if TYPE_CHECKING:
    from .remote import RemoteArray


def reduced(
    array: RemoteArray, function: np.ufunc, axis: Any, dtype: Any = None, out: Any = None, keepdims: Any = False
) -> Any:
    """`function.reduce(a, axis, dtype, out, keepdims)` of the elements, which are read in tiles."""
    shape = array._shape
    axes = _axes(axis, len(shape))
    if not array.size or not shape:  # NumPy's own result and errors
        found = function.reduce(array._copy(), axis=axis, dtype=dtype, keepdims=bool(keepdims))
        return _into(out, found)
    total: Array | None = None
    until_known = function in (np.logical_or, np.logical_and) and len(axes) == len(shape) and dtype is None
    for key, tile in read_tiles(array):
        part = np.asarray(function.reduce(tile, axis=axes, dtype=dtype, keepdims=True))
        if total is None:
            total = np.empty(tuple(1 if i in axes else n for i, n in enumerate(shape)), part.dtype)
        place = tuple(slice(0, 1) if i in axes else k for i, k in enumerate(key))
        if all(key[i].start == 0 for i in axes):  # the first tile for this part of the result
            total[place] = part
        else:
            function(total[place], part, out=total[place])
        if until_known and bool(total.flat[0]) == (function is np.logical_or):
            break
    assert total is not None
    return _into(out, total if keepdims else total.reshape(tuple(n for i, n in enumerate(shape) if i not in axes)))


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """`axis` of a reduction as numbers of axes. Raises NumPy's errors: AxisError, ValueError (twice), TypeError."""
    np.add.reduce(np.empty((1,) * ndim), axis=axis)
    if axis is None or not ndim:
        return tuple(range(ndim))
    return tuple(int(i) % ndim for i in (axis if isinstance(axis, tuple) else (axis,)))


def _into(out: Any, found: Any) -> Any:
    """The result in `out=`, or a scalar for one without dimensions."""
    if out is None:
        return found[()]
    if np.shape(out) != np.shape(found):
        raise ValueError(f"out has shape {np.shape(out)}, the result has shape {np.shape(found)}")
    np.copyto(out, found, casting="same_kind")
    return out


class Totals(Parts):
    """`sum`, `prod`, `min`, `max`, `mean`, `any`, `all`, along axes as in NumPy.

    Elements are read in tiles of 2 MiB, and each tile is read while the previous one is reduced: the calls need no
    memory for the array. Sums of floating-point numbers may differ from NumPy's in the last bits, because NumPy adds in
    another order.
    """

    __slots__ = ()

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The sum along axes, by default of all elements. Arguments and result as `numpy.sum`."""
        return reduced(self._whole, np.add, axis, dtype, out, keepdims)

    def prod(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The product along axes. Arguments and result as `numpy.prod`."""
        return reduced(self._whole, np.multiply, axis, dtype, out, keepdims)

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The least element along axes. Arguments and result as `numpy.min`; ValueError for no elements."""
        return reduced(self._whole, np.minimum, axis, None, out, keepdims)

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The greatest element along axes. Arguments and result as `numpy.max`; ValueError for no elements."""
        return reduced(self._whole, np.maximum, axis, None, out, keepdims)

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Whether an element along axes is true. Without an axis it stops reading at the first tile with a true
        element.
        """
        return reduced(self._whole, np.logical_or, axis, None, out, keepdims)

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Whether all elements along axes are true. Without an axis it stops reading at the first tile with a false
        element.
        """
        return reduced(self._whole, np.logical_and, axis, None, out, keepdims)

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """The arithmetic mean along axes. Arguments and result as `numpy.mean`."""
        if not self.size or not self._shape or self._dtype.kind not in "biufc":
            whole = self._copy()
            return whole.mean(axis, dtype, out, keepdims=keepdims)  # NumPy's results, warnings and errors
        count = 1
        for i in _axes(axis, len(self._shape)):
            count *= self._shape[i]
        wide = dtype
        if dtype is None:
            half = self._dtype == np.float16
            wide = np.float64 if self._dtype.kind in "biu" else np.float32 if half else None
        total = np.asarray(reduced(self._whole, np.add, axis, wide, None, keepdims))
        found = np.true_divide(total, count).astype(self._dtype if dtype is None and half else total.dtype, copy=False)
        return _into(out, found)
