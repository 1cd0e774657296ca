"""Selections by arrays: rows by index, elements by a mask of several dimensions, several fields by name."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import fi
from .checks import Array, values
from .indexing import offsets, pieces
from .jobs import BATCH_MAX, Job, fit, nothing, put_job, take_job

if TYPE_CHECKING:
    from .remote import RemoteArray


def get_by_array(a: RemoteArray, key: Any) -> Array:
    """`t[key]` for a list or an array: an array that belongs to the caller, as NumPy's is a copy."""
    if _is_fields(key):
        return _plain(a._copy()[key])
    key = np.asarray(key)
    if key.dtype != np.bool_ or key.ndim == 1:
        found: Array = a._run(take_job(a, key, 0, None))
        return found
    starts, lengths, shape = _runs(a, key)
    out = np.empty(shape, a._dtype)
    a._run(_job(a, True, out, starts, lengths))
    return out


def set_by_array(a: RemoteArray, key: Any, value: Any) -> None:
    """`t[key] = value` for a list or an array."""
    if _is_fields(key):
        dtype = np.dtype([(name, a.field(name).dtype, a._dtype[name].shape) for name in key])
        source = np.broadcast_to(values(value, dtype, "write"), a._shape)
        for name in key:
            a.field(name)[...] = source[name]
        return
    key = np.asarray(key)
    if key.dtype != np.bool_ or key.ndim == 1:
        a._run(put_job(a, key, value, 0))
        return
    starts, lengths, shape = _runs(a, key)
    source = fit(a, values(value, a._dtype, "write"), shape, "write")
    a._run(_job(a, False, source, starts, lengths))


def _is_fields(key: Any) -> bool:
    return isinstance(key, list) and bool(key) and all(isinstance(name, str) for name in key)


def _plain(found: Array) -> Array:
    """Some fields of records, without room for the others."""
    packed = np.dtype([(name, found.dtype[name]) for name in found.dtype.names or ()])
    return found.astype(packed)


def _runs(a: RemoteArray, mask: Array) -> tuple[Array, Array, tuple[int, ...]]:
    """Starts and lengths in bytes of the contiguous pieces where a mask is true, and the shape of the selection."""
    n = mask.ndim
    if mask.shape != a._shape[:n]:
        axis = next((i for i, k in enumerate(mask.shape) if i >= a.ndim or k != a._shape[i]), a.ndim)
        raise IndexError(
            f"the mask has shape {mask.shape}, the array has {a._shape}: they differ along axis {axis}\n"
            "  try: a mask of the array's shape, or of its first dimensions"
        )
    inner, inner_strides = a._shape[n:], a._strides[n:]
    count = int(np.count_nonzero(mask))
    shape = (count, *inner)
    none = np.zeros(0, np.int64)
    if not count or 0 in inner or not a._itemsize:
        return none, none, shape
    block, outer, outer_strides = pieces(a._shape, a._strides, a._itemsize)
    if not outer:  # the whole array is one piece: neighbours in the mask are neighbours in memory
        row = block // mask.size
        flat = np.zeros(mask.size + 2, np.int8)
        flat[1:-1] = mask.reshape(-1)
        edges = np.flatnonzero(np.diff(flat))
        return edges[::2] * row + a._base, (edges[1::2] - edges[::2]) * row, shape
    block, outer, outer_strides = pieces(inner, inner_strides, a._itemsize)
    starts = np.full(count, a._base, np.int64)
    for indices, stride in zip(np.nonzero(mask) if n else (), a._strides[:n], strict=True):
        starts += indices * stride
    starts = np.add.outer(starts, offsets(outer, outer_strides)).reshape(-1)
    return starts, np.full(len(starts), block, np.int64), shape


def _job(a: RemoteArray, reading: bool, local: Array, starts: Array, lengths: Array) -> Job:
    """One vectored operation for each BATCH_MAX pieces; the local pieces lie one after another."""
    places = np.cumsum(lengths) - lengths
    posts: list[Any] = []
    for first in range(0, len(starts), BATCH_MAX):
        part = slice(first, first + BATCH_MAX)
        descs = np.zeros(len(starts[part]), fi.RMA_DESC)
        descs["local_offset"] = places[part]
        descs["length"] = lengths[part]
        descs["remote_addr"] = starts[part]
        descs["key"] = a._key

        def post(ep: fi.Endpoint, context: Any, descs: Array = descs) -> None:
            descs["dest_addr"] = a._peer
            (ep.read_batch if reading else ep.write_batch)(local, descs, context)

        posts.append(post)
    return Job(posts, nothing, int(local.nbytes) * 0.1 + len(starts) * 40.0, operator.getitem.__name__)
