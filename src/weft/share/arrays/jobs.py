"""Converts a call to operations: a read, a write, a fill, or rows by index arrays.

A selection (indexing.py) is a byte offset, a shape and byte strides; its contiguous pieces become one read or write, or
one vectored operation with a descriptor for each piece. A `Job` holds the operations to post.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .checks import Array, alias, values
from .indexing import indices_along, offsets, pieces, select
from .lane import Post
from .ordering import empty_like_view, in_order, memory_order
from .show import named

if TYPE_CHECKING:
    from ... import fi
    from .view import View

# Descriptors of one vectored operation: 3 MiB of them, which bounds the memory that a call needs.
BATCH_MAX = 1 << 16
# The source of a fill of contiguous memory.
FILL_BYTES = 1 << 20
_NS_PER_BYTE = 0.1
_NS_PER_PIECE_DIRECT, _NS_PER_PIECE_FOREIGN = 40, 1500


class Job:
    """Operations to post, with one completion each, and the call's result when all are done."""

    __slots__ = ("cost_ns", "posts", "result", "what")

    def __init__(self, posts: list[Post], result: Callable[[], Any], cost_ns: float, what: str) -> None:
        self.posts = posts
        self.result = result
        self.cost_ns = cost_ns
        self.what = what


def nothing() -> None:
    """The result of a call that returns None."""


def read_job(a: View, out: Any) -> Job:
    """`RemoteArray.read`."""
    if out is None:
        fresh = empty_like_view(a._shape, a._strides, a._dtype)
        result = (lambda: fresh) if a._shape else (lambda: fresh[()])
        return move_job(a, True, fresh, a._base, a._shape, a._strides, result)
    target = _out(a, out, a._shape, "read")
    return move_job(a, True, target, a._base, a._shape, a._strides, lambda: out)


def write_job(a: View, value: Any) -> Job:
    """`RemoteArray.write`."""
    source = values(value, a._dtype, "write") if not isinstance(value, np.ndarray) else value
    if source.shape != a._shape:
        raise ValueError(
            f"write: the value has shape {source.shape}, {named(a.ticket)} has {a._shape}\n"
            "  try: t[...] = value, which broadcasts, or t.at[...].write(value) for a part"
        )
    if source.dtype != a._dtype:
        if not np.can_cast(source.dtype, a._dtype, "same_kind"):
            raise TypeError(
                f"write: the value is {source.dtype}, {named(a.ticket)} is {a._dtype}: there is no safe conversion\n"
                "  try: value.astype(t.dtype), or t[...] = value, which converts as NumPy's assignment does"
            )
        source = values(source, a._dtype, "write")
    return move_job(a, False, np.ascontiguousarray(source), a._base, a._shape, a._strides, nothing)


def set_job(a: View, key: Any, value: Any, what: str) -> Job:
    """`t[key] = value`."""
    offset, shape, strides = select(key, a._shape, a._strides)
    source = values(value, a._dtype, what)
    if source.ndim == 0 and len(shape):
        return _spread_job(a, source, a._base + offset, shape, strides)
    return move_job(a, False, fit(a, source, shape, what), a._base + offset, shape, strides, nothing)


def fill_job(a: View, value: Any) -> Job:
    """`RemoteArray.fill`."""
    source = values(value, a._dtype, "fill")
    if source.ndim:
        raise ValueError(f"fill: one value is needed, not an array of shape {source.shape}\n  try: t[...] = values")
    return _spread_job(a, source, a._base, a._shape, a._strides)


def take_job(a: View, indices: Any, axis: int, out: Any) -> Job:
    """`RemoteArray.take`."""
    starts, block, shape = rows_along(a, indices, axis, "take")
    if out is None:
        target = np.empty(shape, a._dtype)
        result = (lambda: target) if shape else (lambda: target[()])
    else:
        target = _out(a, out, shape, "take")

        def result() -> Any:
            return out

    return _pieces_job(a, True, target, starts, block, None, result)


def put_job(a: View, indices: Any, value: Any, axis: int) -> Job:
    """`RemoteArray.put`."""
    starts, block, shape = rows_along(a, indices, axis, "put")
    source = fit(a, values(value, a._dtype, "put"), shape, "put")
    return _pieces_job(a, False, source, starts, block, None, nothing)


def move_job(
    a: View,
    reading: bool,
    local: Array,
    base: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    result: Callable[[], Any],
) -> Job:
    """Between a C-contiguous local array and a selection of the same shape."""
    what = "read" if reading else "write"
    if local.nbytes == 0:
        return Job([], result, 0, what)
    block, outer, outer_strides = pieces(shape, strides, a._itemsize)
    if not outer:
        key = a._key

        def post(ep: fi.Endpoint, context: Any) -> None:
            (ep.read if reading else ep.write)(local, None, a._peer, base, key, context)

        return Job([post], result, local.nbytes * _NS_PER_BYTE, what)
    order = memory_order(shape, strides)
    if not in_order(order):
        return _reordered_job(a, reading, local, base, shape, strides, result, order)
    return _pieces_job(a, reading, local, base + offsets(outer, outer_strides), block, None, result)


def _reordered_job(
    a: View,
    reading: bool,
    local: Array,
    base: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    result: Callable[[], Any],
    order: tuple[int, ...],
) -> Job:
    """`move_job` along the axes in memory's order: a transposed array is one piece, not one for each element."""
    shape, strides = tuple(shape[axis] for axis in order), tuple(strides[axis] for axis in order)
    turned = local.transpose(order)
    if not reading:
        return move_job(a, False, np.ascontiguousarray(turned), base, shape, strides, result)
    if turned.flags.c_contiguous:
        return move_job(a, True, turned, base, shape, strides, result)
    found = np.empty(shape, a._dtype)

    def turn() -> Any:
        turned[...] = found
        return result()

    return move_job(a, True, found, base, shape, strides, turn)


def _spread_job(a: View, value: Array, base: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Job:
    """One value to all elements of a selection."""
    if 0 in shape or a._itemsize == 0:
        return Job([], nothing, 0, "write")
    block, outer, outer_strides = pieces(shape, strides, a._itemsize)
    chunk = min(block, max(FILL_BYTES // a._itemsize, 1) * a._itemsize)
    source = np.full(chunk // a._itemsize, value, a._dtype)
    starts = base + offsets(outer, outer_strides)
    posts: list[Post] = []
    for done in range(0, block, chunk):
        part = source if block - done >= chunk else source[: (block - done) // a._itemsize]
        job = _pieces_job(a, False, part, starts + done, part.nbytes, 0, nothing)
        posts += job.posts
    return Job(posts, nothing, len(starts) * block * _NS_PER_BYTE + len(starts) * _piece_ns(a), "write")


def _pieces_job(
    a: View,
    reading: bool,
    local: Array,
    starts: np.ndarray[Any, Any],
    block: int,
    local_step: int | None,
    result: Callable[[], Any],
) -> Job:
    """One vectored operation (for each BATCH_MAX pieces): piece i of `block` bytes at starts[i] and, locally, at
    i * local_step (None: one after another)."""
    step = block if local_step is None else local_step
    posts: list[Post] = []
    for first in range(0, len(starts), BATCH_MAX):
        part = starts[first : first + BATCH_MAX]
        # fi.RMA_DESC as columns of 64 bits, which NumPy fills faster than named fields.
        descs = _template(len(part), first, step).copy()
        descs[:, _LENGTH] = block
        descs[:, _REMOTE_ADDR] = part
        descs[:, _KEY] = a._key

        def post(ep: fi.Endpoint, context: Any, descs: Array = descs) -> None:
            descs[:, _DEST_ADDR] = a._peer
            (ep.read_batch if reading else ep.write_batch)(local, descs, context)

        posts.append(post)
    cost = len(starts) * (block * _NS_PER_BYTE + _piece_ns(a))
    return Job(posts, result, cost, "read" if reading else "write")


def rows_along(a: View, indices: Any, axis: int, call: str) -> tuple[np.ndarray[Any, Any], int, tuple[int, ...]]:
    """Starts and length of the pieces that index arrays select along an axis, and the shape of the selection."""
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise TypeError(f"{call}: axis is an integer, not {axis!r}")
    if not -a.ndim <= axis < a.ndim:
        raise IndexError(f"{call}: axis {axis} is out of bounds for an array of {a.ndim} dimensions")
    axis = int(axis) % a.ndim
    found = indices_along(indices, a._shape[axis], axis, call)
    before, after = a._shape[:axis], a._shape[axis + 1 :]
    shape = (*before, *found.shape, *after)
    if 0 in shape or a._itemsize == 0:
        return np.zeros(0, np.int64), 0, shape
    if axis == 0 and a._row:
        return found.reshape(-1) * a._row + a._base, a._row, shape
    block, outer, outer_strides = pieces(after, a._strides[axis + 1 :], a._itemsize)
    starts = np.add.outer(offsets(before, a._strides[:axis]), found.reshape(-1) * a._strides[axis])
    starts = np.add.outer(starts.reshape(-1), offsets(outer, outer_strides)).reshape(-1)
    return starts + a._base, block, shape


def fit(a: View, source: Array, shape: tuple[int, ...], call: str) -> Array:
    """Values broadcast to a shape, in one piece."""
    if source.shape != shape:
        shown = source.shape
        while source.ndim > len(shape) and source.shape[0] == 1:  # as NumPy's assignment
            source = source[0]
        try:
            source = np.broadcast_to(source, shape)
        except ValueError:
            raise ValueError(
                f"{call}: values of shape {shown} do not broadcast to the selection's shape {shape}, "
                f"a part of {named(a.ticket)} of shape {a._shape}"
            ) from None
    return np.ascontiguousarray(source) if source.ndim else source


def _out(a: View, out: Any, shape: tuple[int, ...], call: str) -> Array:
    """`out=` of a call as an array that bytes can be read into; checked."""
    target = alias(out, f"{call}: out", writable=True)
    if target.dtype != a._dtype:
        nbytes = a._itemsize
        for n in shape:
            nbytes *= n
        if not isinstance(out, np.ndarray) and target.itemsize == 1 and target.ndim == 1 and target.nbytes == nbytes:
            return target
        raise TypeError(
            f"{call}: out is {target.dtype}, {named(a.ticket)} is {a._dtype}\n  try: numpy.empty(shape, t.dtype)"
        )
    if target.shape != shape:
        raise ValueError(
            f"{call}: out has shape {target.shape}, the read has shape {shape}\n  try: numpy.empty({shape}, t.dtype)"
        )
    return target


def _piece_ns(a: View) -> int:
    return _NS_PER_PIECE_DIRECT if a.ticket.direct else _NS_PER_PIECE_FOREIGN


# Columns of fi.RMA_DESC; 0 is local_offset, 5 status and padding.
_LENGTH, _DEST_ADDR, _REMOTE_ADDR, _KEY = 1, 2, 3, 4


@lru_cache(maxsize=16)
def _template(count: int, first: int, step: int) -> Array:
    """Descriptors for pieces that lie `step` bytes apart locally, from piece `first` on. Read-only: it is shared."""
    descs = np.zeros((count, 6), np.uint64)
    descs[:, 0] = np.arange(first, first + count, dtype=np.uint64) * np.uint64(step)
    descs.flags.writeable = False
    return descs
