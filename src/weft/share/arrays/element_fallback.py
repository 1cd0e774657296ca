"""The calls of a remote array that `Elements` (cpp/bind/elements.cpp) leaves to Python.

`Elements` executes what needs no frames. This module has all other paths to the owner, all other indices and
values, and the errors. One element, one row, a contiguous slice and one atomic need no job, and allocate nothing but
the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import fi
from .atomics import BASE, COMPARE, FETCH, atomic_job, block_job, datatype_of, op_of, scatter_job
from .checks import Array
from .comparing import Comparing
from .copies import ReadOnlyCopy, own
from .indexing import select
from .jobs import fill_job, move_job, nothing, put_job, read_job, set_job, take_job, write_job
from .masks import get_by_array, set_by_array
from .ordering import empty_like_view
from .parts import Parts


class ElementFallback(Parts):
    """`t[key]`, `t[key] = x`, and the atomic calls, in Python. The methods of `Elements` call these."""

    __slots__ = ("_datatypes",)

    _datatypes: dict[int, int]

    def _get_item(self, key: Any) -> Any:
        """`t[key]`."""
        # No allocation but the result's, and two calls into the NIC.
        kind = type(key)
        if (kind is int and self._step) or (kind is tuple and self._code):
            at = key * self._step if kind is int and 0 <= key < self._n else self._element(key)
            if at is not None:
                code = self._code
                if not code or (kind is int and not self._vector):
                    out = self._read_now(ReadOnlyCopy(self._shape[1:], self._dtype), self._base + at)
                    return out if out.ndim else out[()]
                try:
                    lane = self._pop()
                except IndexError:
                    lane = self._lane("read")
                try:
                    cell = lane.cells[code]
                except KeyError:
                    cell = lane.cell(self._dtype, code)
                try:
                    lane.read(cell[0], None, self._peer, self._base + at, self._key)
                    if not lane.take(1):
                        lane.wait()
                    found = cell[1][0]
                except BaseException as reason:
                    self._failed(lane, reason, "read")
                self._push(lane)
                return found
        elif kind is slice and self._row and key.step is None:
            start, stop, _ = key.indices(self._n)
            if stop > start:
                out = ReadOnlyCopy((stop - start, *self._shape[1:]), self._dtype)
                return self._read_now(out, self._base + start * self._row)
        elif kind is str:
            return self._whole.field(key)
        elif isinstance(key, (list, np.ndarray, Comparing)):
            return get_by_array(self._whole, key)
        offset, shape, strides = select(key, self._shape, self._strides)
        found = empty_like_view(shape, strides, self._dtype)
        self._run(move_job(self, True, found, self._base + offset, shape, strides, nothing))
        found = own(found)
        if shape or key is Ellipsis or (kind is tuple and any(k is Ellipsis for k in key)):
            return found  # as in NumPy: with an ellipsis the result is an array without dimensions
        return found[()]

    def _set_item(self, key: Any, value: Any) -> None:
        """`t[key] = value`."""
        kind = type(key)
        if self._code and ((kind is int and self._vector) or kind is tuple):
            at = key * self._step if kind is int and 0 <= key < self._n else self._element(key)
            if at is not None:
                # No allocation, and two calls into the NIC.
                try:
                    lane = self._pop()
                except IndexError:
                    lane = self._lane("write")
                try:
                    cell = lane.cells[self._code]
                except KeyError:
                    cell = lane.cell(self._dtype, self._code)
                try:
                    cell[1][0] = value
                except BaseException:
                    self._push(lane)  # NumPy's own error: nothing was posted
                    raise
                try:
                    lane.write(cell[0], None, self._peer, self._base + at, self._key)
                    if not lane.take(1):
                        lane.wait()
                except BaseException as reason:
                    self._failed(lane, reason, "write")
                self._push(lane)
                return
        if kind is str:
            self._whole.field(key)[...] = value
            return
        if isinstance(key, (list, np.ndarray, Comparing)):
            set_by_array(self._whole, key, value)
            return
        self._run(set_job(self, key, value, "write"))

    def _read(self, out: Any) -> Any:
        return self._run(read_job(self, out))

    def _write(self, value: Any) -> None:
        self._run(write_job(self, value))

    def _fill(self, value: Any) -> None:
        self._run(fill_job(self, value))

    def _take_rows(self, indices: Any, axis: int, out: Any) -> Any:
        return self._run(take_job(self, indices, axis, out))

    def _put_rows(self, indices: Any, values: Any, axis: int) -> None:
        self._run(put_job(self, indices, values, axis))

    def _add_block(self, block: Any, op: Any, done: int) -> None:
        """`t.add(block)`. done: the number of leading elements that are updated already."""
        self._run(block_job(self, op_of(op), block, done))

    def _add_at(self, indices: Any, value: Any, op: Any, done: int) -> None:
        """`t.add.at(indices, value)`. done: the number of leading rows that are updated already."""
        self._run(scatter_job(self, op_of(op), indices, value, done))

    def _atomic(self, family: int, op_name: Any, index: Any, value: Any, expected: Any, call: str) -> Any:
        """The atomic calls. op_name is None for compare_swap."""
        op = fi.CSWAP if family == COMPARE else op_of(op_name)
        # For one element of one dimension and a Python integer no array is made.
        if self._code and type(value) is int and (family != COMPARE or type(expected) is int):
            kind = type(index)
            if kind is int and self._vector and 0 <= index < self._n:
                at = index * self._step if self._step else None
            else:
                at = self._element(index) if (kind is int and self._vector) or kind is tuple else None
            if at is not None:
                which = family << 8 | op._value_  # not the Op or the dtype, whose hashes are slow
                datatype = self._datatypes.get(which)
                if datatype is None:
                    datatype = self._datatypes[which] = int(datatype_of(self, family, op, call)[0])
                try:
                    lane = self._pop()
                except IndexError:
                    lane = self._lane(call)
                code = self._code
                try:
                    cell = lane.cells[code]
                except KeyError:
                    cell = lane.cell(self._dtype, code)
                try:
                    cell[1][0] = value
                    if family == COMPARE:
                        cell[5][0] = expected
                except (OverflowError, ValueError):
                    self._push(lane)  # the slow path raises the error, or converts a negative index
                    return self._run(atomic_job(self, family, op, index, value, expected, call))
                addr = self._base + at
                ep, peer, key = lane.ep, self._peer, self._key
                try:
                    if family == FETCH:
                        lane.fetch_atomic(cell[0], None, cell[2], None, peer, addr, key, datatype, op)
                    elif family == COMPARE:
                        ep.compare_atomic(cell[0], None, cell[4], None, cell[2], None, peer, addr, key, datatype, op)
                    else:
                        ep.atomic(cell[0], None, peer, addr, key, datatype, op)
                    if not lane.take(1):
                        lane.wait()
                    found = cell[3][0] if family != BASE else None
                except BaseException as reason:
                    self._failed(lane, reason, call)
                self._push(lane)
                return found
        return self._run(atomic_job(self, family, op, index, value, expected, call))

    def _read_now(self, out: Array, addr: int) -> Any:
        """Read into a contiguous array, and make it read-only."""
        if out.nbytes == 0:
            out.setflags(write=False)
            return out
        try:
            lane = self._pop()
        except IndexError:
            lane = self._lane("read")
        try:
            lane.read(out, None, self._peer, addr, self._key)
            if not lane.take(1):
                lane.wait()
        except BaseException as reason:
            self._failed(lane, reason, "read")
        self._push(lane)
        out.setflags(write=False)
        return out

    def _element(self, key: Any) -> int | None:
        """Byte offset of one element, or of one contiguous row: `key` is an integer, or a tuple with one integer a
        dimension. None for an index that the slow path must examine."""
        if type(key) is int:
            n, step = self._n, self._step
            if not step:
                return None
            if not -n <= key < n:
                raise IndexError(f"index {key} is out of bounds for axis 0 with size {n}")
            return (key + n if key < 0 else key) * step
        shape = self._shape
        if len(key) != len(shape):
            return None
        at = 0
        for k, n, stride in zip(key, shape, self._strides):  # noqa: B905  (strict costs 100 ns)
            if type(k) is not int or not -n <= k < n:
                return None
            at += (k + n if k < 0 else k) * stride
        return at
