"""RemoteArray: another process's array, with NumPy's shape, dtype and basic indexing.

Elements (in C++) has t[key], t[key] = x, read, write, fill, take, put and the atomic calls, by load and store. View has
the owner's array and the selected part. Attached runs jobs on the lanes of a node. ElementFallback has the calls of
Elements for which load and store are not enough; they make jobs (jobs.py, atomics.py). RemoteArray has the other public
calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

import numpy as np

from ... import errors, fi
from ..names.ticket import Ticket, decode_dtype, encode_dtype, host_id
from .atomics import BASE, COMPARE, FETCH, ONE, atomic_job, is_block, op_of
from .checks import Array
from .element_fallback import ElementFallback
from .explain import path_of
from .functions import Functions
from .indexing import select
from .jobs import fill_job, move_job, nothing, put_job, read_job, set_job, take_job, write_job
from .mapped import as_array, as_dlpack, view
from .ordering import empty_like_view, strides_of
from .reattaching import reattach
from .shapes import Shapes
from .show import human_bytes, named, table_html
from .tiles import TILE_BYTES
from .totals import Totals
from .watching import await_signal, await_until, check_signal, wait_signal, wait_until

if TYPE_CHECKING:
    from types import EllipsisType

    from ..node import Node


_Out = TypeVar("_Out")

Part = tuple[int, tuple[int, ...], tuple[int, ...], str]
"""Of a pickled RemoteArray: offset in bytes, shape, strides, and the dtype if it is not the ticket's (a field)."""


class RemoteArray(ElementFallback, Shapes, Totals, Functions):
    """An array of another process. Made by `Node.attach`; it can be pickled and used in any process that receives it.

        shape dtype ndim size nbytes itemsize, len(t)     as in NumPy
        t[10:20], t[3, :], t[..., None], t[::-1]         reads: read-only copies as NumPy arrays, or a scalar
        t[10:20] = x                                     writes
        t == x, t + x, -t, x in t, bool(t), float(t)     as in NumPy; they read all elements
        t += x, t *= x ...                               read, compute and write; not atomic, as add() is
        t[[4, 2, 2]], t.take(...), t.put(...)            rows by index arrays: one vectored operation
        t[mask], t[mask] = x                             elements or rows where a mask is true
        t["a"], t.T, t.reshape(...), t.at[10:20]         fields, other shapes, parts: RemoteArrays, nothing is moved
        t.sum(axis) mean min max prod any all astype     read in tiles of 2 MiB
        np.sum(t), np.concatenate([t, u]), np.add(t, 1)  NumPy's functions; they read, and write into `out=t`
        t.view("r") t.view("rw") numpy.asarray(t, copy=False)   the owner's memory as a NumPy array: no copy
        read(out=...) write(x) fill(v) numpy.asarray(t)  all elements
        fetch_add compare_swap swap fetch_op add         atomic for each element
        t.add(block), t.add.at(indices, values)          all elements, and rows by index: as +=, and as numpy.add.at
        wait_until(index, value)                         waits until an element has a value
        reattach()                                       goes on with the array that the name has now
        notify(index) wait(index)                        signals: data first, then the signal
        aread awrite atake aput afill afetch_add ...     the same, awaitable

    Reads and writes of several elements are not atomic: another process may write at the same time. Each aligned
    element of 1, 2, 4 or 8 bytes is read and written atomically.

    Where NumPy's index would give a view, `t[key]` gives a read-only copy: `t[0][1] = 7` raises ValueError instead of
    being lost. `t[0, 1] = 7` and `t.at[0][1] = 7` write; `t[0] += 1` reads, computes and writes; `t[0].copy()` and
    `t.at[0].read()` are the caller's own.

    Raises:
        ConnectionReset: The owner's process is gone.
        KeyRejected: The owner closed the share.
        Replaced: The name has another array: call `reattach`.
        AccessDenied: The share does not grant the access.
        IndexError: As NumPy; so are ValueError (shapes) and TypeError (dtypes).

    Thread safety: any thread.
    """

    __slots__ = ()

    def __init__(self) -> None:
        raise TypeError("a RemoteArray is made by node.attach(name or ticket)")

    @classmethod
    def _make(cls, ticket: Ticket, node: Node | None = None, view: Part | None = None) -> RemoteArray:
        """A remote array of a ticket, whose owner is not asked.

        Args:
            node: None: the array attaches through the process's default node at its first use.
        """
        ticket.check()
        if not ticket.here and not ticket.place and not ticket.fabric:
            raise errors.Unreachable(
                f"attach: {named(ticket)} belongs to a process of host {ticket.host}, this is {host_id()}\n"
                "  rule: a process must listen before it shares arrays with other hosts\n"
                "  try: weft.open(listen='tcp://0.0.0.0:0', secret=...) or WEFT_LISTEN and WEFT_SECRET in its owner"
            )
        dtype = ticket.numpy_dtype
        if view is None:
            view = 0, ticket.shape, strides_of(ticket.shape, dtype.itemsize, ticket.order), ""
        offset, shape, strides, code = view
        self = cls._view(ticket, decode_dtype(code) if code else dtype, node, offset, shape, strides)
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
        self = cls.__new__(cls)
        self._select(ticket, dtype, offset, shape, strides)
        self._start(node)
        self._datatypes = {}
        return self

    if TYPE_CHECKING:  # Elements.__getitem__ has no types

        @overload
        def __getitem__(self, key: str) -> RemoteArray: ...
        @overload
        def __getitem__(self, key: slice | EllipsisType | list[Any] | Array | None) -> Array: ...
        @overload
        def __getitem__(self, key: Any) -> Any: ...
        def __getitem__(self, key: Any) -> Any: ...

    def __iter__(self) -> Iterator[Any]:
        if not self._shape:
            raise TypeError("iteration over a remote array without dimensions")
        return self._rows()

    def _rows(self) -> Iterator[Any]:
        step = max(TILE_BYTES * self._n // max(self.nbytes, 1), 1)
        for first in range(0, self._n, step):
            yield from self[first : first + step]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """A copy, read now; with `copy=False` the view that `view()` returns, or ValueError if there is none."""
        if copy is False:
            return as_array(self, dtype)
        # Not read(), which returns a str for one text, with another dtype.
        found = empty_like_view(self._shape, self._strides, self._dtype)
        self._run(move_job(self, True, found, self._base, self._shape, self._strides, nothing))
        return found if dtype is None else found.astype(dtype, copy=False)

    # ---- the owner's memory itself ----------------------------------------------------------------------------------

    def view(self, mode: Literal["r", "rw"] | None = None) -> Array:
        """The owner's own memory as a NumPy array: nothing is copied, and loads and stores reach it at memory speed.

        Args:
            mode: "r": a read-only array over read-only pages; "rw": writable; None: the access that the share grants.

        For arrays by path "load/store" and arrays of this process. `t.at[10:20].view()` is the view of a part.
        `numpy.asarray(t, copy=False)` and DLPack (`numpy.from_dlpack(t)`, `torch.from_dlpack(t)`) give the same view.

        Each side sees the other's stores at once. An aligned element of 1, 2, 4 or 8 bytes is never seen half-written.
        Stores to different elements have no order, and `v[0] += 1` is not atomic: use the atomic calls, which work on
        the same memory.

        The view keeps the memory: it stays valid after this node, the share or the owner ends. It then shows the
        owner's further changes of the array; after the owner has freed the array, or has died, the last contents. The
        owner never reuses the memory while any process (also a forked child) has it mapped. Only this call checks the
        rights: closing the share does not end its views.

        Raises:
            AccessDenied: The share does not grant the mode.
            NotSupported: The memory is not mapped here: strict isolation, another host, memory that Weft did not
                allocate.
            InvalidArgument: `mode` is wrong.
        """
        return view(self, mode)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """The view as a DLPack capsule; with `copy=True` a copy. Raises BufferError if there is no view."""
        return as_dlpack(self, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU (kDLCPU, 0)."""
        return 1, 0

    # ---- all elements, and selections that stay remote --------------------------------------------------------------

    @property
    def at(self) -> At:
        """`t.at[10:20]`: a part of the array as a RemoteArray. Nothing is read; basic indexing only.

        `t.at[3].fill(0)`, `await t.at[10:20].aread()`, `t.at[:, 0].read(out=column)`.
        """
        return At(self)

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def wait_until(self, index: Any, value: Any, timeout: float | None = None) -> Any:
        """Wait until elements have a value; return them.

        Args:
            index: Basic index.
            value: The value that all elements must equal; or a function of the read elements that returns true when the
                wait is over: `t.wait_until(0, lambda x: x >= 5)`.
            timeout: Seconds; None: no limit.

        The thread sleeps until a process changes the elements through Weft. Stores into NumPy arrays, the owner's own
        and those of `view()`, wake nobody: the owner's NIC looks for them, at last every 0.25 s. Elements that are not
        contiguous, or have more than 1 KiB, are read again and again: when half of the time waited so far has passed,
        at the latest after 0.25 s.

        Raises:
            TimedOut: The time is over; the message has the values that were read last.
        """
        return wait_until(self, index, value, timeout)

    def notify(self, index: Any, value: Any = 1, *, at: Any = None, data: Any = None) -> None:
        """Signal an element, after the data: add a value to it, which wakes the waiters for the element.

        Args:
            index: One element, the signal: integers or floats.
            value: The number to add; 1 counts the signals.
            at: Key at which to write `data` first, as `t[at] = data` does.
            data: The elements to write. A process that gets the signal sees the data, and everything that this thread
                wrote before through Weft.

        Raises:
            IndexError: `index` does not select one element.
            TypeError: The elements are no numbers, or `data` comes without `at`.
        """
        if type(index) is not int or len(self._shape) != 1:
            check_signal(self, index, "notify")
        if at is not None:
            self[at] = data
        elif data is not None:
            raise TypeError("notify: data needs at=, the place to write it to")
        self.add(index, value)

    def wait(self, index: Any, timeout: float | None = None) -> Any:
        """Wait until an element is not 0, and set it to 0 again.

        Returns the value before: the number of signals since the last wait, if all of them added 1. Each signal is
        given to one waiter. Needs "rw" access. Sleeps as `wait_until` does. Raises TimedOut.
        """
        return wait_signal(self, index, timeout)

    # ---- awaitable calls --------------------------------------------------------------------------------------------

    @overload
    async def aread(self, out: None = None) -> Array: ...
    @overload
    async def aread(self, out: _Out) -> _Out: ...
    async def aread(self, out: Any = None) -> Any:
        """`read`, awaitable. After a cancellation, `out` may still be written to for a while.

        Waits on the NIC's descriptor; long copies run in the loop's executor. The loop is never blocked for more than a
        fraction of a millisecond. One item: `await t.at[3].aread()`.
        """
        return await self._arun(read_job(self, out))

    async def awrite(self, value: Any) -> None:
        """`write`, awaitable. `value` must not change until the call is done."""
        await self._arun(write_job(self, value))

    async def afill(self, value: Any) -> None:
        """`fill`, awaitable."""
        await self._arun(fill_job(self, value))

    async def atake(self, indices: Any, axis: int = 0, out: Any = None) -> Any:
        """`take`, awaitable."""
        return await self._arun(take_job(self, indices, axis, out))

    async def aput(self, indices: Any, values: Any, axis: int = 0) -> None:
        """`put`, awaitable."""
        await self._arun(put_job(self, indices, values, axis))

    async def afetch_add(self, index: Any, value: Any = 1) -> Any:
        """`fetch_add`, awaitable."""
        return await self._arun(atomic_job(self, FETCH, fi.SUM, index, value, None, "fetch_add"))

    async def acompare_swap(self, index: Any, expected: Any, value: Any) -> Any:
        """`compare_swap`, awaitable."""
        return await self._arun(atomic_job(self, COMPARE, fi.CSWAP, index, value, expected, "compare_swap"))

    async def aswap(self, index: Any, value: Any) -> Any:
        """`swap`, awaitable."""
        return await self._arun(atomic_job(self, FETCH, fi.ATOMIC_WRITE, index, value, None, "swap"))

    async def afetch_op(self, index: Any, op: str, value: Any) -> Any:
        """`fetch_op`, awaitable."""
        return await self._arun(atomic_job(self, FETCH, op_of(op), index, value, None, "fetch_op"))

    async def aadd(self, index: Any, value: Any = ONE, op: str = "sum") -> None:
        """`add`, awaitable. A block is added in the loop's executor, and must not change until the call is done."""
        if value is ONE and is_block(index):
            import asyncio

            await asyncio.get_running_loop().run_in_executor(None, lambda: self.add(index, op=op))
        else:
            await self._arun(atomic_job(self, BASE, op_of(op), index, value, None, "add"))

    async def aadd_at(self, indices: Any, values: Any = 1, op: str = "sum") -> None:
        """`add.at`, awaitable: in the loop's executor. Arrays must not change until the call is done."""
        import asyncio

        await asyncio.get_running_loop().run_in_executor(None, self.add.at, indices, values, op)

    async def await_until(self, index: Any, value: Any, timeout: float | None = None) -> Any:
        """`wait_until`, awaitable: `await t.await_until(0, 7)`."""
        return await await_until(self, index, value, timeout)

    async def anotify(self, index: Any, value: Any = 1, *, at: Any = None, data: Any = None) -> None:
        """`notify`, awaitable."""
        if type(index) is not int or len(self._shape) != 1:
            check_signal(self, index, "anotify")
        if at is not None:
            await self._arun(set_job(self, at, data, "anotify"))
        elif data is not None:
            raise TypeError("anotify: data needs at=, the place to write it to")
        await self.aadd(index, value)

    async def await_(self, index: Any, timeout: float | None = None) -> Any:
        """`wait`, awaitable."""
        return await await_signal(self, index, timeout)

    # ---- another array under the name -------------------------------------------------------------------------------

    def reattach(self, source: Any = None, wait: float = 0.0) -> RemoteArray:
        """Go on with the array that the name has now: after `weft.Replaced`, after the owner has made the array longer,
        or when a new owner has taken the name. Shape and dtype may be others then. Returns this array.

        Args:
            source: As for `Node.attach`; None: the array's name. An array without a name, or of another host, needs a
                ticket.
            wait: Seconds to wait for the name.

        Without a change of the array, nothing changes. Parts (`t.at[...]`) and views (`t.view()`) made before stay as
        they are.

        Raises:
            InvalidArgument: The array is a part, or has no name.
            FabricError: As `Node.attach`; the array is then as before.
        """
        reattach(self, source, wait)
        return self

    async def areattach(self, source: Any = None, wait: float = 0.0) -> RemoteArray:
        """`reattach`, awaitable."""
        import asyncio

        return await asyncio.get_running_loop().run_in_executor(None, self.reattach, source, wait)

    # ---- properties -------------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """How Weft reaches the elements: "memory" (of this process), "load/store", "process_vm", "engine" (the owner's)
        or "tcp" (another host); "unknown" before the first use."""
        return path_of(self)[0]

    @property
    def why(self) -> str:
        """Why Weft uses this path."""
        return path_of(self)[1]

    def __reduce__(self) -> tuple[Any, ...]:
        dtype = "" if self._dtype == self.ticket.numpy_dtype else encode_dtype(self._dtype)
        return _unpickle, (self.ticket, (self._base - self.ticket.base, self._shape, self._strides, dtype))

    def __repr__(self) -> str:
        path, why = path_of(self)
        name = f" {self.ticket.name!r}" if self.ticket.name else ""
        whole = "" if self._shape == self.ticket.shape else f", part of {self.ticket.shape}"
        if self._dtype != self.ticket.numpy_dtype:
            whole = f", a field of {self.ticket.numpy_dtype} {self.ticket.shape}"
        return (
            f"<weft.RemoteArray{name} {self._dtype} {self._shape}{whole}, {human_bytes(self.nbytes)}, of process "
            f"{self.ticket.pid}, access {self.ticket.access}, by {path}: {why}>"
        )

    def _repr_html_(self) -> str:
        path, why = path_of(self)
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
        if type(key) is str:
            return a.field(key)
        offset, shape, strides = select(key, a._shape, a._strides)
        return a._part(offset, shape, strides)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise TypeError(
            "t.at[...] names a part and cannot be assigned to\n  try: t[...] = value, or t.at[...].write(value)"
        )

    def __repr__(self) -> str:
        return f"{self._array!r}.at"


def _unpickle(ticket: Ticket, view: Part) -> RemoteArray:
    return RemoteArray._make(ticket, None, view)
