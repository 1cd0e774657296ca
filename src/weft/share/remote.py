"""RemoteArray: another process's array, with NumPy's shape, dtype and basic indexing.

How a call becomes operations: a selection (indexing.py) is a byte offset, a shape and byte strides; its contiguous
pieces become one read or write, or one vectored operation with a descriptor for each piece; a `Job` holds what is to be
posted. A synchronous call runs its job on a lane, an awaitable one on the event loop's. Single elements and slices of
contiguous arrays take a way of their own (HOT below) that allocates nothing but the result.
"""

from __future__ import annotations

import html
import os
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .. import _process, errors, fi
from .._nic import Status
from .arrays import Array, alias, values
from .comparing import Comparing
from .indexing import indices_along, offsets, pieces, select
from .lane import CELL_BYTES_MAX, Lane, Post
from .ticket import USER_DEFINED, Ticket, host_id, process_is_stopped, process_start
from .waiting import condition, deadline_in, pauses

if TYPE_CHECKING:
    from .node import Node

__all__ = ["RemoteArray", "human_bytes", "table_html"]

# Descriptors of one vectored operation: 3 MiB of them, which bounds the memory that a call needs.
BATCH_MAX = 1 << 16
# The source of a fill of contiguous memory.
FILL_BYTES = 1 << 20
# Awaitable calls that copy for longer than this run in the loop's executor, whose start costs about as much.
LOOP_COPY_NS_MAX = 150_000
_NS_PER_BYTE = 0.1
_NS_PER_PIECE_DIRECT, _NS_PER_PIECE_FOREIGN = 40, 1500

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
_FETCH, _COMPARE, _BASE = 1, 2, 0
_GONE = frozenset({Status.no_endpoint, Status.peer_gone, Status.refused, Status.closed})
_REVOKED = frozenset({Status.no_key, Status.stale_key})


class Job:
    """Operations to post, one completion each, and what the call returns when all are done."""

    __slots__ = ("cost_ns", "posts", "result", "what")

    def __init__(self, posts: list[Post], result: Callable[[], Any], cost_ns: float, what: str) -> None:
        self.posts = posts
        self.result = result
        self.cost_ns = cost_ns
        self.what = what


def _nothing() -> None:
    return None


def _no_lane() -> Lane:
    raise IndexError  # as an empty list: the caller asks _lane(), which attaches


class RemoteArray(Comparing):
    """An array of another process. Made by `Node.attach`; pickled, it is used wherever it arrives.

    shape dtype ndim size nbytes itemsize, len(t)     as NumPy's
    t[10:20], t[3, :], t[..., None], t[::-1]         reads: NumPy arrays, or a scalar for one element
    t[10:20] = x                                     writes
    t == x, t < x ..., x in t, bool(t)               as NumPy's, of all elements, which are read
    t[[4, 2, 2]], t.take(...), t.put(...)            rows by index arrays: one vectored operation
    t.at[10:20]                                      the selection as a RemoteArray: nothing is moved
    read(out=...) write(x) fill(v) numpy.asarray(t)  the whole
    fetch_add compare_swap swap fetch_op add         atomic for each element
    wait_until(index, value)                         until an element has a value
    aread awrite atake aput afill afetch_add ...     the same, to be awaited

    Reads and writes of several elements are not atomic as a whole: another process may be writing meanwhile. Aligned
    elements of 1, 2, 4 or 8 bytes are whole.

    What a read returns is a copy, and the caller's: `t[0][1] = 7` changes the copy and is lost, `t[0, 1] = 7` or
    `t.at[0][1] = 7` writes.

    Thread safety: any thread. Raises ConnectionReset (the owner's process is gone), KeyRejected (the owner closed the
    share), AccessDenied (not shared for that), and as NumPy IndexError, ValueError (shapes), TypeError (dtypes).
    """

    __slots__ = (
        "__weakref__",
        "_base",
        "_code",
        "_datatypes",
        "_dtype",
        "_itemsize",
        "_key",
        "_n",
        "_node",
        "_peer",
        "_pop",
        "_push",
        "_row",
        "_shape",
        "_step",
        "_strides",
        "_vector",
        "ticket",
    )

    ticket: Ticket
    _base: int
    _code: str
    _datatypes: dict[int, int]
    _dtype: np.dtype[Any]
    _itemsize: int
    _key: int
    _n: int
    _node: Node | None
    _peer: int
    _row: int
    _shape: tuple[int, ...]
    _step: int
    _strides: tuple[int, ...]
    _vector: bool
    _pop: Callable[[], Lane]
    _push: Callable[[Lane], None]

    def __init__(self) -> None:
        raise TypeError("a RemoteArray is made by node.attach(name or ticket)")

    @classmethod
    def _make(
        cls,
        ticket: Ticket,
        node: Node | None = None,
        view: tuple[int, tuple[int, ...], tuple[int, ...]] | None = None,
    ) -> RemoteArray:
        """node None: attached through the process's default node when it is first used."""
        ticket.check()
        if not ticket.here and not ticket.place:
            raise errors.Unreachable(
                f"attach: {_named(ticket)} belongs to a process of host {ticket.host}, this is {host_id()}\n"
                "  rule: a process that other hosts shall reach has to listen before it shares\n"
                "  try: weft.open(listen='tcp://0.0.0.0:0', secret=...) or WEFT_LISTEN and WEFT_SECRET in its owner"
            )
        dtype = ticket.numpy_dtype
        if view is None:
            strides: list[int] = []
            step = dtype.itemsize
            for n in reversed(ticket.shape):
                strides.append(step)
                step *= max(n, 1)
            view = 0, ticket.shape, tuple(reversed(strides))
        self = cls._view(ticket, dtype, node, *view)
        if node is not None:
            self._bind(node)
        return self

    @classmethod
    def _view(
        cls,
        ticket: Ticket,
        dtype: np.dtype[Any],
        node: Node | None,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
    ) -> RemoteArray:
        self = object.__new__(cls)
        self.ticket = ticket
        self._dtype = dtype
        self._itemsize = dtype.itemsize
        self._base = ticket.base + offset
        self._key = -1 if ticket.key is None else ticket.key
        self._shape = shape
        self._strides = strides
        # For the short ways. _code: elements are scalars that fit a lane's cell. _vector: one dimension. _row: bytes
        # of a row, where rows are contiguous and follow one another.
        scalar = 0 < dtype.itemsize <= CELL_BYTES_MAX and (dtype.kind != "V" or dtype.num >= USER_DEFINED)
        self._code = dtype.str + dtype.name if scalar else ""
        self._vector = len(shape) == 1
        self._n = shape[0] if shape else 0
        stride = strides[0] if strides else 0
        row = dtype.itemsize
        for n, inner in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
            row = row * n if inner == row or n == 1 else 0
        self._row = row if stride == row else 0
        # What an integer index steps by, where it selects an element or a contiguous row; 0: the long way.
        self._step = stride if row and dtype.itemsize else 0
        self._datatypes = {}
        self._node = node
        self._peer = -1
        self._pop = _no_lane
        self._push = _nothing_to_push
        return self

    # ---- as NumPy's -------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements in each dimension."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The elements' dtype."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """Dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Elements."""
        n = 1
        for k in self._shape:
            n *= k
        return n

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self._itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self._itemsize

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of a remote array without dimensions")
        return self._shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self._shape:
            raise TypeError("iteration over a remote array without dimensions")
        return iter(self.read())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """A copy, read now. `copy=False` is refused: the memory is another process's."""
        if copy is False:
            raise ValueError(
                "a remote array cannot become a NumPy array without a copy: the memory is another process's"
            )
        found = np.empty(self._shape, self._dtype)  # not read(): of one text it makes a str, which has another dtype
        self._run(self._move_job(True, found, self._base, self._shape, self._strides, _nothing))
        return found if dtype is None else found.astype(dtype, copy=False)

    # ---- short ways -------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        """Read a selection: a new NumPy array, or a scalar for one element.

        key   as NumPy's basic indexing: integers, slices with any step, `...`, `numpy.newaxis`; or, alone, an array of
              integers or a mask, which takes rows.

        Raises IndexError, and as the class says.
        """
        # HOT: no allocation but the result's. Two calls into the NIC: bench/bench_share.py.
        kind = type(key)
        if (kind is int and self._step) or (kind is tuple and self._code):
            at = key * self._step if kind is int and 0 <= key < self._n else self._element(key)
            if at is not None:
                code = self._code
                if not code or (kind is int and not self._vector):
                    out = self._read_now(np.empty(self._shape[1:], self._dtype), self._base + at)
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
                out = np.empty((stop - start, *self._shape[1:]), self._dtype)
                return self._read_now(out, self._base + start * self._row)
        elif isinstance(key, (list, np.ndarray)):
            return self.take(key)
        offset, shape, strides = select(key, self._shape, self._strides)
        found = np.empty(shape, self._dtype)
        self._run(self._move_job(True, found, self._base + offset, shape, strides, _nothing))
        if shape or key is Ellipsis or (kind is tuple and any(k is Ellipsis for k in key)):
            return found  # as NumPy: with an ellipsis one element stays an array without dimensions
        return found[()]

    def _element(self, key: Any) -> int | None:
        """Byte offset of one element, or of one row where that is contiguous: `key` an integer, or a tuple of as
        many as there are dimensions. None for what the long way has to look at."""
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

    def _read_now(self, out: Array, addr: int) -> Any:
        """HOT. Read into a contiguous array."""
        if out.nbytes == 0:
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
        return out

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write a selection. `value` is converted and broadcast as NumPy does. Complete when the call returns.

        key   as for reading.

        Raises IndexError, ValueError (the shape does not fit), TypeError, and as the class says.
        """
        kind = type(key)
        if self._code and ((kind is int and self._vector) or kind is tuple):
            at = key * self._step if kind is int and 0 <= key < self._n else self._element(key)
            if at is not None:
                # HOT: no allocation. Two calls into the NIC: bench/bench_share.py.
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
        if isinstance(key, (list, np.ndarray)):
            self.put(key, value)
            return
        self._run(self._set_job(key, value, "write"))

    # ---- the whole, and selections that stay remote -----------------------------------------------------------------

    @property
    def at(self) -> At:
        """`t.at[10:20]`: that part as a RemoteArray of its own. Nothing is read; basic indexing only.

        `t.at[3].fill(0)`, `await t.at[10:20].aread()`, `t.at[:, 0].read(out=column)`.
        """
        return At(self)

    def read(self, out: Any = None) -> Any:
        """Read all of it, in one copy.

        out   where to: a writable C-contiguous array of the same shape and dtype (NumPy, torch ...), or a writable
              buffer of bytes as long; None for a new NumPy array.

        Returns the new array, or `out`. Raises ValueError (shape), TypeError (dtype), AccessDenied (out is read-only).
        """
        return self._run(self._read_job(out))

    def write(self, value: Any) -> None:
        """Write all of it, in one copy where `value` is a C-contiguous array of the same dtype.

        value   an array of the same shape (NumPy, torch, a list ...), of a dtype that converts within its kind.

        To broadcast or to convert at will, `t[...] = value`. Raises ValueError (shape), TypeError (dtype).
        """
        self._run(self._write_job(value))

    def fill(self, value: Any) -> None:
        """Set every element to a value.

        value   one value, converted as NumPy's assignment does.

        Raises ValueError (an array), TypeError (dtype), and as the class says.
        """
        self._run(self._fill_job(value))

    # ---- index arrays -----------------------------------------------------------------------------------------------

    def take(self, indices: Any, axis: int = 0, out: Any = None) -> Any:
        """Rows by index, in one vectored operation: `numpy.asarray(t).take(indices, axis)`.

        indices   array of integers of any shape, negative ones counted from the end; or a mask along the axis.
        axis      of the array; the first (NumPy's own default is the flattened array).
        out       where to, as for `read`.

        Returns an array of shape `shape[:axis] + indices.shape + shape[axis+1:]`, or `out`.
        Raises IndexError (out of bounds: nothing is read), TypeError.
        """
        return self._run(self._take_job(indices, axis, out))

    def put(self, indices: Any, values: Any, axis: int = 0) -> None:
        """Write rows by index, in one vectored operation: `a[indices] = values` along an axis.

        indices, axis   as for `take`. Of rows named twice the last value stays.
        values          converted and broadcast to the shape that `take` returns.

        Raises IndexError (out of bounds: nothing is written), ValueError, TypeError.
        """
        self._run(self._put_job(indices, values, axis))

    # ---- atomics ----------------------------------------------------------------------------------------------------

    def fetch_add(self, index: Any, value: Any = 1) -> Any:
        """Add to elements, each atomically, and return what they were before.

        index   basic index of one element or several; `...` for all.
        value   what to add: a number, or an array that broadcasts to the selection.

        Returns a scalar for one element, otherwise an array. Atomic with respect to all atomic calls, of any process.
        Raises TypeError (a dtype without atomics; a value of another kind), AccessDenied (not shared "rw").
        """
        return self._atomic(_FETCH, fi.SUM, index, value, None, "fetch_add")

    def compare_swap(self, index: Any, expected: Any, value: Any) -> Any:
        """Set elements to `value` where they are `expected`, each atomically, and return what they were before.

        It happened where the returned value equals `expected`: `if t.compare_swap(3, 0, pid) == 0: ...mine...`.
        Arguments and errors as `fetch_add`.
        """
        return self._atomic(_COMPARE, fi.CSWAP, index, value, expected, "compare_swap")

    def swap(self, index: Any, value: Any) -> Any:
        """Set elements, each atomically, and return what they were before. Arguments and errors as `fetch_add`."""
        return self._atomic(_FETCH, fi.ATOMIC_WRITE, index, value, None, "swap")

    def fetch_op(self, index: Any, op: str, value: Any) -> Any:
        """Combine elements with a value, each atomically, and return what they were before.

        op   "sum", "prod", "min", "max", "and", "or", "xor" (bits), "replace".

        Other arguments and errors as `fetch_add`; InvalidArgument for another op.
        """
        return self._atomic(_FETCH, _op(op), index, value, None, "fetch_op")

    def add(self, index: Any, value: Any = 1, op: str = "sum") -> None:
        """Add to elements (or combine them as `fetch_op` does), each atomically, and return nothing. Needs only "w"
        access, and moves half the bytes of a `fetch_add`."""
        self._atomic(_BASE, _op(op), index, value, None, "add")

    def wait_until(self, index: Any, value: Any, timeout: float | None = None) -> Any:
        """Read elements until they have a value; return them.

        index     basic index.
        value     what to wait for: a value that all elements are to equal; or a function of what was read, for anything
                  else: `t.wait_until(0, lambda x: x >= 5)`.
        timeout   seconds; None for ever.

        Reads again and again, at once at first, then at growing intervals of up to 2 ms: the owner sends no notice.
        Raises TimedOut, saying what was there.
        """
        holds = condition(value, self._dtype, "wait_until")
        deadline = deadline_in(timeout, "wait_until: timeout")
        for pause in pauses():
            found = self[index]
            if holds(found):
                return found
            if deadline is not None and time.monotonic() >= deadline:
                raise self._timed_out(index, value, timeout, found)
            if pause >= 0:
                time.sleep(pause)

    # ---- to be awaited ----------------------------------------------------------------------------------------------

    async def aread(self, out: Any = None) -> Any:
        """`read`, awaitable. Where it is cancelled, `out` may still be written to for a while.

        Waits on the NIC's descriptor; copies that take long run in the loop's executor. The loop is never blocked for
        more than a fraction of a millisecond. One item: `await t.at[3].aread()`.
        """
        return await self._arun(self._read_job(out))

    async def awrite(self, value: Any) -> None:
        """`write`, awaitable. `value` has to stay as it is until then."""
        await self._arun(self._write_job(value))

    async def afill(self, value: Any) -> None:
        """`fill`, awaitable."""
        await self._arun(self._fill_job(value))

    async def atake(self, indices: Any, axis: int = 0, out: Any = None) -> Any:
        """`take`, awaitable."""
        return await self._arun(self._take_job(indices, axis, out))

    async def aput(self, indices: Any, values: Any, axis: int = 0) -> None:
        """`put`, awaitable."""
        await self._arun(self._put_job(indices, values, axis))

    async def afetch_add(self, index: Any, value: Any = 1) -> Any:
        """`fetch_add`, awaitable."""
        return await self._arun(self._atomic_job(_FETCH, fi.SUM, index, value, None, "fetch_add"))

    async def acompare_swap(self, index: Any, expected: Any, value: Any) -> Any:
        """`compare_swap`, awaitable."""
        return await self._arun(self._atomic_job(_COMPARE, fi.CSWAP, index, value, expected, "compare_swap"))

    async def aswap(self, index: Any, value: Any) -> Any:
        """`swap`, awaitable."""
        return await self._arun(self._atomic_job(_FETCH, fi.ATOMIC_WRITE, index, value, None, "swap"))

    async def afetch_op(self, index: Any, op: str, value: Any) -> Any:
        """`fetch_op`, awaitable."""
        return await self._arun(self._atomic_job(_FETCH, _op(op), index, value, None, "fetch_op"))

    async def aadd(self, index: Any, value: Any = 1, op: str = "sum") -> None:
        """`add`, awaitable."""
        await self._arun(self._atomic_job(_BASE, _op(op), index, value, None, "add"))

    async def await_until(self, index: Any, value: Any, timeout: float | None = None) -> Any:
        """`wait_until`, awaitable: `await t.await_until(0, 7)`."""
        import asyncio

        holds = condition(value, self._dtype, "await_until")
        deadline = deadline_in(timeout, "await_until: timeout")
        part = self.at[index]
        for pause in pauses():
            found = await part.aread()
            if holds(found):
                return found
            if deadline is not None and time.monotonic() >= deadline:
                raise self._timed_out(index, value, timeout, found)
            await asyncio.sleep(max(pause, 0))

    # ---- jobs -------------------------------------------------------------------------------------------------------

    def _read_job(self, out: Any) -> Job:
        if out is None:
            fresh = np.empty(self._shape, self._dtype)
            result = (lambda: fresh) if self._shape else (lambda: fresh[()])
            return self._move_job(True, fresh, self._base, self._shape, self._strides, result)
        target = self._out(out, self._shape, "read")
        return self._move_job(True, target, self._base, self._shape, self._strides, lambda: out)

    def _write_job(self, value: Any) -> Job:
        source = values(value, self._dtype, "write") if not isinstance(value, np.ndarray) else value
        if source.shape != self._shape:
            raise ValueError(
                f"write: the value has shape {source.shape}, {self._what()} has {self._shape}\n"
                "  try: t[...] = value, which broadcasts, or t.at[...].write(value) for a part"
            )
        if source.dtype != self._dtype:
            if not np.can_cast(source.dtype, self._dtype, "same_kind"):
                raise TypeError(
                    f"write: the value is {source.dtype}, {self._what()} is {self._dtype}: no safe conversion\n"
                    "  try: value.astype(t.dtype), or t[...] = value, which converts as NumPy's assignment does"
                )
            source = values(source, self._dtype, "write")
        return self._move_job(False, np.ascontiguousarray(source), self._base, self._shape, self._strides, _nothing)

    def _set_job(self, key: Any, value: Any, what: str) -> Job:
        offset, shape, strides = select(key, self._shape, self._strides)
        source = values(value, self._dtype, what)
        if source.ndim == 0 and len(shape):
            return self._spread_job(source, self._base + offset, shape, strides)
        return self._move_job(False, self._fit(source, shape, what), self._base + offset, shape, strides, _nothing)

    def _fill_job(self, value: Any) -> Job:
        source = values(value, self._dtype, "fill")
        if source.ndim:
            raise ValueError(f"fill: one value is needed, not an array of shape {source.shape}\n  try: t[...] = values")
        return self._spread_job(source, self._base, self._shape, self._strides)

    def _move_job(
        self,
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
        block, outer, outer_strides = pieces(shape, strides, self._itemsize)
        if not outer:
            key = self._key

            def post(ep: fi.Endpoint, context: Any) -> None:
                (ep.read if reading else ep.write)(local, None, self._peer, base, key, context)

            return Job([post], result, local.nbytes * _NS_PER_BYTE, what)
        return self._pieces_job(reading, local, base + offsets(outer, outer_strides), block, None, result)

    def _spread_job(self, value: Array, base: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Job:
        """One value to all elements of a selection."""
        if 0 in shape or self._itemsize == 0:
            return Job([], _nothing, 0, "write")
        block, outer, outer_strides = pieces(shape, strides, self._itemsize)
        chunk = min(block, max(FILL_BYTES // self._itemsize, 1) * self._itemsize)
        source = np.full(chunk // self._itemsize, value, self._dtype)
        starts = base + offsets(outer, outer_strides)
        posts: list[Post] = []
        for done in range(0, block, chunk):
            part = source if block - done >= chunk else source[: (block - done) // self._itemsize]
            job = self._pieces_job(False, part, starts + done, part.nbytes, 0, _nothing)
            posts += job.posts
        return Job(posts, _nothing, len(starts) * block * _NS_PER_BYTE + len(starts) * self._piece_ns(), "write")

    def _pieces_job(
        self,
        reading: bool,
        local: Array,
        starts: np.ndarray[Any, Any],
        block: int,
        local_step: int | None,
        result: Callable[[], Any],
    ) -> Job:
        """One vectored operation (for each BATCH_MAX pieces): piece i of `block` bytes at starts[i] and, locally, at
        i * local_step (one after another where None)."""
        step = block if local_step is None else local_step
        posts: list[Post] = []
        for first in range(0, len(starts), BATCH_MAX):
            part = starts[first : first + BATCH_MAX]
            # fi.RMA_DESC as columns of 64 bits, which NumPy fills faster than named fields.
            descs = _template(len(part), first, step).copy()
            descs[:, _LENGTH] = block
            descs[:, _REMOTE_ADDR] = part
            descs[:, _KEY] = self._key

            def post(ep: fi.Endpoint, context: Any, descs: Array = descs) -> None:
                descs[:, _DEST_ADDR] = self._peer
                (ep.read_batch if reading else ep.write_batch)(local, descs, context)

            posts.append(post)
        cost = len(starts) * (block * _NS_PER_BYTE + self._piece_ns())
        return Job(posts, result, cost, "read" if reading else "write")

    def _along(self, indices: Any, axis: int, call: str) -> tuple[np.ndarray[Any, Any], int, tuple[int, ...]]:
        """Starts and length of the pieces that index arrays select along an axis, and the shape of the selection."""
        if isinstance(axis, bool) or not hasattr(axis, "__index__"):
            raise TypeError(f"{call}: axis is an integer, not {axis!r}")
        if not -self.ndim <= axis < self.ndim:
            raise IndexError(f"{call}: axis {axis} is out of bounds for an array of {self.ndim} dimensions")
        axis = int(axis) % self.ndim
        found = indices_along(indices, self._shape[axis], axis, call)
        before, after = self._shape[:axis], self._shape[axis + 1 :]
        shape = (*before, *found.shape, *after)
        if 0 in shape or self._itemsize == 0:
            return np.zeros(0, np.int64), 0, shape
        if axis == 0 and self._row:
            return found.reshape(-1) * self._row + self._base, self._row, shape
        block, outer, outer_strides = pieces(after, self._strides[axis + 1 :], self._itemsize)
        starts = np.add.outer(offsets(before, self._strides[:axis]), found.reshape(-1) * self._strides[axis])
        starts = np.add.outer(starts.reshape(-1), offsets(outer, outer_strides)).reshape(-1)
        return starts + self._base, block, shape

    def _take_job(self, indices: Any, axis: int, out: Any) -> Job:
        starts, block, shape = self._along(indices, axis, "take")
        if out is None:
            target = np.empty(shape, self._dtype)
            result = (lambda: target) if shape else (lambda: target[()])
        else:
            target = self._out(out, shape, "take")

            def result() -> Any:
                return out

        return self._pieces_job(True, target, starts, block, None, result)

    def _put_job(self, indices: Any, value: Any, axis: int) -> Job:
        starts, block, shape = self._along(indices, axis, "put")
        source = self._fit(values(value, self._dtype, "put"), shape, "put")
        return self._pieces_job(False, source, starts, block, None, _nothing)

    def _atomic_job(self, family: int, op: fi.Op, index: Any, value: Any, expected: Any, call: str) -> Job:
        datatype, count_max = self._datatype(family, op, call)
        offset, shape, strides = select(index, self._shape, self._strides)
        operand = self._operand(value, shape, call)
        compare = self._operand(expected, shape, call) if family == _COMPARE else operand
        result = np.empty(shape, self._dtype) if family != _BASE else operand
        posts: list[Post] = []
        if operand.size:
            block, outer, outer_strides = pieces(shape, strides, self._itemsize)
            flat = operand.reshape(-1), compare.reshape(-1), result.reshape(-1)
            per_block = block // self._itemsize
            for i, start in enumerate((self._base + offset + offsets(outer, outer_strides)).tolist()):
                for first in range(0, per_block, count_max):
                    n = min(count_max, per_block - first)
                    at = slice(i * per_block + first, i * per_block + first + n)
                    a, c, r = (x[at] for x in flat)
                    addr = start + first * self._itemsize
                    posts.append(self._atomic_post(family, op, datatype, a, c, r, addr))
        if family == _BASE:
            returned: Callable[[], Any] = _nothing
        else:
            returned = (lambda: result) if shape else (lambda: result[()])
        return Job(posts, returned, len(posts) * 500 + operand.size * 8, call)

    def _atomic_post(
        self, family: int, op: fi.Op, datatype: fi.Datatype, a: Array, c: Array, r: Array, addr: int
    ) -> Post:
        def post(ep: fi.Endpoint, context: Any) -> None:
            if family == _FETCH:
                ep.fetch_atomic(a, None, r, None, self._peer, addr, self._key, datatype, op, context)
            elif family == _COMPARE:
                ep.compare_atomic(a, None, c, None, r, None, self._peer, addr, self._key, datatype, op, context)
            else:
                ep.atomic(a, None, self._peer, addr, self._key, datatype, op, context)

        return post

    def _atomic(self, family: int, op: fi.Op, index: Any, value: Any, expected: Any, call: str) -> Any:
        # HOT for one element of one dimension and a Python integer: no array is made.
        if self._code and type(value) is int and (family != _COMPARE or type(expected) is int):
            kind = type(index)
            if kind is int and self._vector and 0 <= index < self._n:
                at = index * self._step if self._step else None
            else:
                at = self._element(index) if (kind is int and self._vector) or kind is tuple else None
            if at is not None:
                which = family << 8 | op._value_  # an Op is hashed by its name, a dtype by its parts: both are slow
                datatype = self._datatypes.get(which)
                if datatype is None:
                    datatype = self._datatypes[which] = int(self._datatype(family, op, call)[0])
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
                    if family == _COMPARE:
                        cell[5][0] = expected
                except (OverflowError, ValueError):
                    self._push(lane)  # the long way says what is wrong, or wraps
                    return self._run(self._atomic_job(family, op, index, value, expected, call))
                addr = self._base + at
                ep, peer, key = lane.ep, self._peer, self._key
                try:
                    if family == _FETCH:
                        lane.fetch_atomic(cell[0], None, cell[2], None, peer, addr, key, datatype, op)
                    elif family == _COMPARE:
                        ep.compare_atomic(cell[0], None, cell[4], None, cell[2], None, peer, addr, key, datatype, op)
                    else:
                        ep.atomic(cell[0], None, peer, addr, key, datatype, op)
                    if not lane.take(1):
                        lane.wait()
                    found = cell[3][0] if family != _BASE else None
                except BaseException as reason:
                    self._failed(lane, reason, call)
                self._push(lane)
                return found
        return self._run(self._atomic_job(family, op, index, value, expected, call))

    def _datatype(self, family: int, op: fi.Op, call: str) -> tuple[fi.Datatype, int]:
        try:
            return _atomics[self._dtype, family, op]
        except KeyError:
            pass
        try:
            if not self._dtype.isnative:
                raise errors.NotSupported("its byte order is not this machine's")
            datatype = fi.datatype_of(self._dtype)
            count = _count_of(datatype, op, family)
        except errors.FabricError as reason:
            raise TypeError(
                f"{call}: no atomic {_op_name(op)} on elements of dtype {self._dtype}: {reason.message}\n"
                "  try: integers and floats have them; for anything else a lock of your own with compare_swap"
            ) from None
        _atomics[self._dtype, family, op] = datatype, count
        return datatype, count

    def _operand(self, value: Any, shape: tuple[int, ...], call: str) -> Array:
        dtype = self._dtype
        if isinstance(value, int) and not isinstance(value, bool) and dtype.kind == "u" and -(1 << 63) <= value < 0:
            value = value & ((1 << 8 * dtype.itemsize) - 1)  # adding -1 is adding 2**n - 1
        given = value if isinstance(value, np.ndarray) else np.asarray(value)
        integers = given.dtype.kind in "iub" and dtype.kind in "iu"
        if not integers and not np.can_cast(given.dtype, dtype, "same_kind"):
            raise TypeError(
                f"{call}: the value {_short(value)} is {given.dtype}, the elements are {dtype}\n"
                f"  try: a value of kind {dtype.name}"
            )
        return self._fit(values(value, dtype, call), shape, call)

    def _fit(self, source: Array, shape: tuple[int, ...], call: str) -> Array:
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
                    f"a part of {self._what()} of shape {self._shape}"
                ) from None
        return np.ascontiguousarray(source) if source.ndim else source

    def _out(self, out: Any, shape: tuple[int, ...], call: str) -> Array:
        target = alias(out, f"{call}: out", writable=True)
        if target.dtype != self._dtype:
            nbytes = self._itemsize
            for n in shape:
                nbytes *= n
            if (
                not isinstance(out, np.ndarray)
                and target.itemsize == 1
                and target.ndim == 1
                and target.nbytes == nbytes
            ):
                return target
            raise TypeError(
                f"{call}: out is {target.dtype}, {self._what()} is {self._dtype}\n  try: numpy.empty(shape, t.dtype)"
            )
        if target.shape != shape:
            raise ValueError(
                f"{call}: out has shape {target.shape}, {shape} is to be read\n  try: numpy.empty({shape}, t.dtype)"
            )
        return target

    def _piece_ns(self) -> int:
        return _NS_PER_PIECE_DIRECT if self.ticket.direct else _NS_PER_PIECE_FOREIGN

    # ---- running ----------------------------------------------------------------------------------------------------

    def _run(self, job: Job) -> Any:
        if job.posts:
            try:
                lane = self._pop()
            except IndexError:
                lane = self._lane(job.what)
            try:
                lane.run(job.posts)
            except BaseException as reason:
                self._failed(lane, reason, job.what)
            self._push(lane)
        return job.result()

    async def _arun(self, job: Job) -> Any:
        import asyncio

        loop = asyncio.get_running_loop()
        if not job.posts:
            return job.result()
        if job.cost_ns > LOOP_COPY_NS_MAX:
            return await loop.run_in_executor(None, self._run, job)
        from .aio import loop_lane

        if self._peer < 0 or self._node is None or self._node._made_in != _process.generation:
            await loop.run_in_executor(None, self._attach_now, job.what)
        node = self._node
        assert node is not None
        try:
            await loop_lane(node, loop, job.what).run(job.posts)
        except errors.TimedOut:
            raise self._unanswered(job.what) from None
        except FailedOperation as failed:
            raise self._explain(failed.entry, job.what) from None
        return job.result()

    def _attach_now(self, what: str) -> None:
        lane = self._lane(what)
        self._push(lane)

    def _lane(self, what: str) -> Lane:
        """A lane when none is idle: the first use, another thread's first use, a closed node, the child of a fork."""
        node = self._node
        if node is None or node._made_in != _process.generation:
            from .node import default_node

            node = default_node()
            self._bind(node)
        return node._lane(what)

    def _bind(self, node: Node) -> None:
        self._peer = node._peer(self.ticket.address)
        self._push = node._idle.append
        self._pop = node._idle.pop
        self._node = node
        node._attached.add(self)

    def _probe(self) -> None:
        """Move no bytes, so that an owner that is gone is noticed now."""
        if self.ticket.key is None:
            return
        nothing = np.empty(0, np.uint8)
        base = self._base

        def post(ep: fi.Endpoint, context: Any) -> None:
            (ep.read if "r" in self.ticket.access else ep.write)(nothing, None, self._peer, base, self._key, context)

        self._run(Job([post], _nothing, 0, "attach"))

    def _failed(self, lane: Lane, reason: BaseException, what: str) -> NoReturn:
        """End a call that did not go well. The lane is kept where nothing is under way on it."""
        node = self._node
        assert node is not None
        if isinstance(reason, errors.Available):
            entry = lane.cq.readerr()
            if node._closed:
                node._check(what)
            self._push(lane)
            raise self._explain(entry, what) from None
        node._drop(lane)
        if isinstance(reason, errors.FabricError):
            node._check(what)
        if isinstance(reason, errors.TimedOut):
            raise self._unanswered(what) from None
        raise reason

    def _unanswered(self, what: str) -> errors.TimedOut:
        """The owner's NIC did not do what only it can do."""
        ticket = self.ticket
        stopped = ticket.here and process_is_stopped(ticket.pid)
        why = "is stopped (Ctrl-Z, a debugger)" if stopped else "is too busy, or makes no progress"
        path = self.path
        rule = (
            "the first operation needs an answer of the owner's NIC"
            if path == "unknown"
            else f"on this path ({path}) the owner's NIC does every access"
        )
        assert self._node is not None
        limit = "" if self._node.timeout is None else f" within {self._node.timeout:g} s"
        return errors.TimedOut(
            f"{what}: process {ticket.pid}, the owner of {_named(ticket)}, did not answer{limit}\n"
            f"  rule: {rule}; it seems that the owner {why}\n"
            "  try: let the owner continue, or weft.open(timeout=...) with more seconds (None: no limit)\n"
            "  note: the operation may still be done later"
        )

    def _explain(self, entry: fi.CqErrEntry, what: str) -> errors.FabricError:
        """The exception for a failed operation, in the words of this layer."""
        ticket = self.ticket
        status = entry.status
        detail = entry.err_data.decode("utf-8", "replace") if entry.err_data else errors.strerror(entry.err)
        if self._node is not None and self._node._closed:
            text = f"{what}: the node was closed while the operation was under way"
            return errors.BadState(text)
        if entry.err == fi.ETIMEDOUT:
            unanswered = self._unanswered(what)
            unanswered.completion = entry
            return unanswered
        across = ticket.place and not ticket.here
        if (status in _GONE or entry.err == fi.ECONNRESET) and not (across and entry.err == fi.EACCES):
            start = 0 if across else process_start(ticket.pid)
            # A process that dies hangs up before the kernel lists it as dead; one that closes says goodbye first.
            if status is Status.closed or (status is not Status.peer_gone and start and start == ticket.start):
                text = (
                    f"{what}: the owner of {_named(ticket)}, process {ticket.pid}, has closed its node\n"
                    "  try: attach again when it has shared the array anew"
                )
            else:
                text = (
                    f"{what}: the owner of {_named(ticket)}, process {ticket.pid}"
                    + (f" at {ticket.place}" if across else "")
                    + ", is gone\n"
                    "  rule: an array lives as long as the process that shares it\n"
                    "  try: attach again when a new owner has shared it"
                )
            failed: errors.FabricError = errors.ConnectionReset(text)
        elif status in _REVOKED:
            failed = errors.KeyRejected(
                f"{what}: process {ticket.pid} has closed its share of {_named(ticket)}\n"
                "  try: attach again when it has shared the array anew"
            )
        elif status is Status.access:
            failed = errors.AccessDenied(
                f"{what}: {_named(ticket)} is shared with access {ticket.access!r}\n"
                f"  try: node.share(array, access='rw') in its owner, process {ticket.pid}"
            )
        else:
            failed = errors.make(entry.err, f"{what} of {_named(ticket)} of process {ticket.pid}: {detail}")
        failed.completion = entry
        failed.op = what
        return failed

    def _timed_out(self, index: Any, value: Any, timeout: float | None, found: Any) -> errors.TimedOut:
        wanted = "the condition" if callable(value) else _short(value)
        return errors.TimedOut(
            f"wait_until: {self._what()}[{_short(index)}] is {_short(found)} after {float(timeout or 0):g} s, "
            f"not {wanted}"
        )

    # ---- what it is -------------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """How its elements are reached: "memory" (this process's own), "load/store", "process_vm", "engine" (the
        owner's) or "tcp" (another host's); "unknown" before it is first used."""
        return self._path()[0]

    @property
    def why(self) -> str:
        """Why by that path."""
        return self._path()[1]

    def _path(self) -> tuple[str, str]:
        ticket = self.ticket
        if ticket.key is None:
            return "memory", "it has no elements"
        if ticket.here and ticket.pid == os.getpid() and ticket.start == process_start(ticket.pid):
            return "memory", "it is this process's own"
        nic = _process.nic_if_open()
        for peer in [] if nic is None or self._peer < 0 else nic.peers():
            if peer["path"] == "tcp" and not peer["dead"] and ticket.place and str(peer["peer"]).endswith(ticket.place):
                return "tcp", f"its owner is called at {ticket.place}"
            if peer["pid"] != ticket.pid or peer["dead"]:
                continue
            if peer["path"] == "frames":
                return "engine", "WEFT_ISOLATION=strict on one of the two sides: nothing is mapped"
            if ticket.direct:
                return "load/store", "its memory was allocated by Weft and is mapped here"
            if peer["path"] == "direct+cma":
                return (
                    "process_vm",
                    "the owner's array was not allocated by Weft (weft.empty() makes arrays that are mapped)",
                )
            return (
                "engine",
                f"the owner's array was not allocated by Weft, and {peer['cma_reason'] or 'process_vm is off'}",
            )
        return "unknown", "not connected to its owner"

    def _what(self) -> str:
        return _named(self.ticket)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.ticket, (self._base - self.ticket.base, self._shape, self._strides))

    def __repr__(self) -> str:
        path, why = self._path()
        name = f" {self.ticket.name!r}" if self.ticket.name else ""
        whole = "" if self._shape == self.ticket.shape else f", part of {self.ticket.shape}"
        return (
            f"<weft.RemoteArray{name} {self._dtype} {self._shape}{whole}, {human_bytes(self.nbytes)}, of process "
            f"{self.ticket.pid}, access {self.ticket.access}, by {path}: {why}>"
        )

    def _repr_html_(self) -> str:
        path, why = self._path()
        return table_html(
            f"weft.RemoteArray {self.ticket.name}",
            [
                ("array", f"{self._dtype} {self._shape}, {human_bytes(self.nbytes)}"),
                ("owner", f"process {self.ticket.pid}"),
                ("access", self.ticket.access),
                ("path", f"{path}: {why}"),
            ],
        )


class At:
    """`t.at[...]`: see RemoteArray.at."""

    __slots__ = ("_array",)

    def __init__(self, array: RemoteArray) -> None:
        self._array = array

    def __getitem__(self, key: Any) -> RemoteArray:
        a = self._array
        offset, shape, strides = select(key, a._shape, a._strides)
        view = RemoteArray._view(a.ticket, a._dtype, a._node, a._base - a.ticket.base + offset, shape, strides)
        view._peer, view._pop, view._push = a._peer, a._pop, a._push
        return view

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise TypeError(
            "t.at[...] names a part, it is not assigned to\n  try: t[...] = value, or t.at[...].write(value)"
        )

    def __repr__(self) -> str:
        return f"{self._array!r}.at"


class FailedOperation(Exception):
    """Carries the error entry of an awaited operation to where it is explained."""

    def __init__(self, entry: fi.CqErrEntry) -> None:
        super().__init__(entry)
        self.entry = entry


# ---- helpers --------------------------------------------------------------------------------------------------------

_atomics: dict[tuple[np.dtype[Any], int, fi.Op], tuple[fi.Datatype, int]] = {}


def _count_of(datatype: fi.Datatype, op: fi.Op, family: int) -> int:
    from .. import _nic

    count, _ = _nic.atomic_valid(int(datatype), int(op), family)
    if not count:
        raise errors.NotSupported("the NIC does not do it")
    return count


# Columns of fi.RMA_DESC; 0 is local_offset, 5 status and padding.
_LENGTH, _DEST_ADDR, _REMOTE_ADDR, _KEY = 1, 2, 3, 4


@lru_cache(maxsize=16)
def _template(count: int, first: int, step: int) -> Array:
    """Descriptors for pieces that lie `step` bytes apart locally, from piece `first` on. Read-only: it is shared."""
    descs = np.zeros((count, 6), np.uint64)
    descs[:, 0] = np.arange(first, first + count, dtype=np.uint64) * np.uint64(step)
    descs.flags.writeable = False
    return descs


def _nothing_to_push(lane: Lane) -> None:
    raise AssertionError("a lane came from nowhere")


def _unpickle(ticket: Ticket, view: tuple[int, tuple[int, ...], tuple[int, ...]]) -> RemoteArray:
    return RemoteArray._make(ticket, None, view)


def _op(op: Any) -> fi.Op:
    found = _OPS.get(op) if isinstance(op, str) else None
    if found is None:
        raise errors.InvalidArgument(f"fetch_op: no operation {op!r}; there are {', '.join(map(repr, _OPS))}")
    return found


def _op_name(op: fi.Op) -> str:
    return next((name for name, known in _OPS.items() if known == op), op.name.lower())


def _named(ticket: Ticket) -> str:
    return repr(ticket.name) if ticket.name else f"the array of {ticket.shape}"


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, np.generic) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def human_bytes(n: int) -> str:
    """Bytes as people write them: 512 B, 1.5 MiB."""
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{n} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def table_html(title: str, rows: list[tuple[str, str]]) -> str:
    """A small table for notebooks."""
    body = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left;word-break:break-all'>{html.escape(value)}</td></tr>"
        for name, value in rows
    )
    return f"<table><caption style='text-align:left'><b>{html.escape(title.strip())}</b></caption>{body}</table>"
