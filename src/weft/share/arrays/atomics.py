"""Atomic calls on elements: the operation, the datatype, and the operations that a call on many elements posts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import errors, fi
from .checks import Array, values
from .indexing import indices_along, offsets, pieces, select
from .jobs import Job, fit, nothing, rows_along
from .lane import Post
from .show import named, short

if TYPE_CHECKING:
    from .view import View

_OPS: dict[str, fi.Op] = {
    "sum": fi.SUM,
    "prod": fi.PROD,
    "min": fi.MIN,
    "max": fi.MAX,
    "and": fi.BAND,
    "or": fi.BOR,
    "xor": fi.BXOR,
    "replace": fi.ATOMIC_WRITE,
}
FETCH, COMPARE, BASE = 1, 2, 0


class _One(int):
    """The default of `value`: an integer 1 that is not the same object as any 1 of the caller."""


ONE = _One(1)
_atomics: dict[tuple[np.dtype[Any], int, fi.Op], tuple[fi.Datatype, int]] = {}


def atomic_job(a: View, family: int, op: fi.Op, index: Any, value: Any, expected: Any, call: str) -> Job:
    """Atomic operations on the elements that `index` selects.

    Args:
        family: FETCH, COMPARE or BASE (nothing is returned).
        expected: Values to compare with, for COMPARE.
    """
    datatype_of(a, family, op, call)  # its error comes first
    offset, shape, strides = select(index, a._shape, a._strides)
    operand = _operand(a, value, shape, call)
    compare = _operand(a, expected, shape, call) if family == COMPARE else operand
    result = np.empty(shape, a._dtype) if family != BASE else operand
    posts: list[Post] = []
    if operand.size:
        block, outer, outer_strides = pieces(shape, strides, a._itemsize)
        starts = a._base + offset + offsets(outer, outer_strides)
        posts = _posts(a, family, op, starts, block, (operand, compare, result), call)
    if family == BASE:
        returned: Callable[[], Any] = nothing
    else:
        returned = (lambda: result) if shape else (lambda: result[()])
    return Job(posts, returned, len(posts) * 500 + operand.size * 8, call)


def is_block(given: Any) -> bool:
    """Whether the first argument of `add` is a block of values: an array, because atomic calls take no arrays as
    indices.
    """
    if isinstance(given, np.ndarray):
        return given.ndim != 0
    if given is None or given is Ellipsis or isinstance(given, (int, float, str, tuple, slice, list, np.generic)):
        return False
    if hasattr(given, "__array__") or hasattr(given, "__dlpack__"):
        return True
    try:
        memoryview(given)
    except TypeError:
        return False
    return True


def block_job(a: View, op: fi.Op, block: Any, done: int) -> Job:
    """`t.add(block)`: to all elements. done: number of leading elements to leave out; the array is contiguous then."""
    given = block if isinstance(block, np.ndarray) else np.asarray(values(block, a._dtype, "add"))
    if given.shape != a._shape:
        raise ValueError(
            f"add: the values have shape {given.shape}, {named(a.ticket)} has {a._shape}\n"
            "  try: t.add(..., values), which broadcasts; t.at[...].add(values) for a part; t.add.at(indices, values)"
        )
    if not done:
        return atomic_job(a, BASE, op, ..., given, None, "add")
    rest = _operand(a, given, a._shape, "add").reshape(-1)[done:]
    start = np.array([a._base + done * a._itemsize])
    return Job(_posts(a, BASE, op, start, rest.nbytes, (rest, rest, rest), "add"), nothing, rest.size * 8, "add")


def scatter_job(a: View, op: fi.Op, indices: Any, value: Any, done: int) -> Job:
    """`t.add.at(indices, value)`: to rows in the order of the indices, without the first `done` rows. Updates at once
    the rows that load and store reach; the job has the rest.
    """
    call = "add.at"
    datatype_of(a, BASE, op, call)  # its error comes first
    if isinstance(indices, tuple):
        starts, block, shape = _places(a, indices, call)
    elif isinstance(indices, slice) or indices is Ellipsis or indices is None:
        return atomic_job(a, BASE, op, indices, value, None, call)
    elif not a._shape:
        raise IndexError("too many indices: the array has 0 dimensions, 1 were indexed")
    else:
        starts, block, shape = rows_along(a, indices, 0, call)
    operand = _operand(a, value, shape, call)
    if operand.size == 0:
        return Job([], nothing, 0, call)
    flat = operand.reshape(-1)
    done += a._scatter(int(op), starts[done:], block, flat[done * (block // a._itemsize) :])
    rest = flat[done * (block // a._itemsize) :]
    posts = _posts(a, BASE, op, starts[done:], block, (rest, rest, rest), call)
    return Job(posts, nothing, len(posts) * 500, call)


def _places(a: View, indices: tuple[Any, ...], call: str) -> tuple[np.ndarray[Any, Any], int, tuple[int, ...]]:
    """Starts and length of the pieces that a tuple of index arrays selects, and the shape of the selection."""
    if len(indices) > len(a._shape):
        raise IndexError(f"too many indices: the array has {len(a._shape)} dimensions, {len(indices)} were indexed")
    for each in indices:
        if isinstance(each, slice) or each is Ellipsis or each is None:
            raise IndexError(
                f"{call}: a tuple has one array of integers, or one mask, a dimension\n"
                "  try: t.at[...].add.at(indices, values) for a part of the array"
            )
    found = np.broadcast_arrays(*(indices_along(k, a._shape[i], i, call) for i, k in enumerate(indices)))
    used = len(indices)
    chosen = found[0].shape if found else ()
    shape = (*chosen, *a._shape[used:])
    if 0 in shape:
        return np.zeros(0, np.int64), 0, shape
    at = np.full(chosen, a._base, np.int64)
    for each, stride in zip(found, a._strides, strict=False):
        at = at + each * stride
    block, outer, outer_strides = pieces(a._shape[used:], a._strides[used:], a._itemsize)
    return np.add.outer(at.reshape(-1), offsets(outer, outer_strides)).reshape(-1), block, shape


def _posts(
    a: View,
    family: int,
    op: fi.Op,
    starts: np.ndarray[Any, Any],
    block: int,
    local: tuple[Array, Array, Array],
    call: str,
) -> list[Post]:
    """Operations on pieces of `block` bytes. local: operands, values to compare with, results, of all pieces."""
    datatype, count_max = datatype_of(a, family, op, call)
    flat = tuple(each.reshape(-1) for each in local)
    per_block = block // a._itemsize
    posts: list[Post] = []
    for i, start in enumerate(starts.tolist()):
        for first in range(0, per_block, count_max):
            n = min(count_max, per_block - first)
            at = slice(i * per_block + first, i * per_block + first + n)
            x, c, r = (each[at] for each in flat)
            posts.append(_atomic_post(a, family, op, datatype, x, c, r, start + first * a._itemsize))
    return posts


def _atomic_post(
    view: View, family: int, op: fi.Op, datatype: fi.Datatype, a: Array, c: Array, r: Array, addr: int
) -> Post:
    def post(ep: fi.Endpoint, context: Any) -> None:
        peer, key = view._peer, view._key
        if family == FETCH:
            ep.fetch_atomic(a, None, r, None, peer, addr, key, datatype, op, context)
        elif family == COMPARE:
            ep.compare_atomic(a, None, c, None, r, None, peer, addr, key, datatype, op, context)
        else:
            ep.atomic(a, None, peer, addr, key, datatype, op, context)

    return post


def datatype_of(a: View, family: int, op: fi.Op, call: str) -> tuple[fi.Datatype, int]:
    """The fabric's datatype of the elements, and the maximum number of elements of one operation. Raises TypeError."""
    real = a._real_node() if a.ticket.fabric else None
    try:
        if real is None:
            return _atomics[a._dtype, family, op]
    except KeyError:
        pass
    try:
        if not a._dtype.isnative:
            raise errors.NotSupported("the byte order of the dtype is not this machine's")
        datatype = fi.datatype_of(a._dtype)
        count = _count_of(datatype, op, family) if real is None else _real_count(real, datatype, op, family)
    except errors.FabricError as reason:
        raise TypeError(
            f"{call}: no atomic {op_name(op)} on elements of dtype {a._dtype}: {reason.message}\n"
            "  try: integers or floats; for other dtypes a lock made with compare_swap"
        ) from None
    if real is None:
        _atomics[a._dtype, family, op] = datatype, count
    return datatype, count


def _operand(a: View, value: Any, shape: tuple[int, ...], call: str) -> Array:
    """The caller's value as elements of the array's dtype, in the selection's shape."""
    dtype = a._dtype
    if isinstance(value, int) and not isinstance(value, bool) and dtype.kind == "u" and -(1 << 63) <= value < 0:
        value = value & ((1 << 8 * dtype.itemsize) - 1)  # adding -1 is adding 2**n - 1
    given = value if isinstance(value, np.ndarray) else np.asarray(value)
    integers = given.dtype.kind in "iub" and dtype.kind in "iu"
    if not integers and not np.can_cast(given.dtype, dtype, "same_kind"):
        raise TypeError(
            f"{call}: the value {short(value)} is {given.dtype}, the elements are {dtype}\n"
            f"  try: a value of dtype {dtype.name}"
        )
    return fit(a, values(value, dtype, call), shape, call)


def _count_of(datatype: fi.Datatype, op: fi.Op, family: int) -> int:
    from ... import _nic

    count, _ = _nic.atomic_valid(int(datatype), int(op), family)
    if not count:
        raise errors.NotSupported("the NIC does not support it")
    return count


def _real_count(node: Any, datatype: fi.Datatype, op: fi.Op, family: int) -> int:
    found: int = node._real.atomic_count(node._domain, int(datatype), int(op), family)
    if not found:
        raise errors.NotSupported(f"{node._real.name} does not support it")
    return found


def op_of(op: Any) -> fi.Op:
    """The operation of `fetch_op` and `add` by name. Raises InvalidArgument."""
    found = _OPS.get(op) if isinstance(op, str) else None
    if found is None:
        raise errors.InvalidArgument(f"fetch_op: no operation {op!r}; there are {', '.join(map(repr, _OPS))}")
    return found


def op_name(op: fi.Op) -> str:
    return next((name for name, known in _OPS.items() if known == op), op.name.lower())
