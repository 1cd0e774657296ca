"""weft.Queue: a bounded ring of records in shared memory, for many producers and many consumers."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
import queue
from typing import Any

import numpy as np

from ... import _nic, errors
from ..arrays import calls
from ..arrays.calls import AGAIN, CALL_BYTES_MAX, DONE, Answer
from ..arrays.checks import Array, alias, values
from ..arrays.show import human_bytes
from ..names.ticket import Ticket, decode_dtype, encode_dtype
from ..names.waiting import whole
from ..node import Node
from .sync_object import TOO_LONG, Result, SyncObject, limit, patience

_OP = _nic.SyncOp
_PUT, _GET, _RESERVE, _COMMIT = map(int, (_OP.put, _OP.get, _OP.reserve, _OP.commit))
_CLAIM, _FREE, _LOOK, _PUT_BACK = map(int, (_OP.claim, _OP.free_slot, _OP.look, _OP.put_back))
_FORM_BYTES_MAX = 1 << 16
_Form = tuple[np.dtype[Any], tuple[int, ...]]
_BYTES, _PICKLE, _RECORD = 0, 1, 2
"""Types of records."""
_SLOTS, _NBYTES = 1024, 1024
_FIRST_AGAIN = 2  # of _FREE: the record of the slot is not read, and is the next one again
# On paths other than load/store, records up to this size travel with their call; longer ones are read or written in the
# slot that the call has reserved.
_INLINE = CALL_BYTES_MAX


class Full(errors.TimedOut, queue.Full):
    """ETIMEDOUT: put() found no room in a queue. Also the queue.Full of Python's own queues."""


class Empty(errors.TimedOut, queue.Empty):
    """ETIMEDOUT: get() found no item in a queue. Also the queue.Empty of Python's own queues."""


class Queue(SyncObject, _nic.QueueCore):
    """A queue that processes share: first in, first out, bounded.

        jobs = weft.Queue("jobs")                               # any objects; they are pickled
        frames = weft.Queue("frames", 8, dtype="u1", shape=(1080, 1920))    # arrays of one dtype and shape

    Args:
        slots: The most items at a time; 1,024 by default.
        nbytes: The most bytes of an item; 1,024 by default. bytes are put as they are, other objects are pickled. Each
            slot has this size, but memory is used only once it is written to.
        dtype: Instead of nbytes: items are arrays of this dtype and of `shape`, which are copied and not pickled.
        shape: Shape of these arrays; () for scalars.

    Of a queue that exists these arguments are None, or the maker's; others are refused. The queue remembers them: a
    process that attaches a queue of arrays without dtype and shape puts and gets arrays of the maker's dtype and shape.

    Killed processes: an item whose put() did not return may be lost, and is never delivered in part. An item that a
    consumer had taken, or was taking, is lost with it. Nothing is delivered twice. The others go on within a quarter of
    a second. A Queue unpickles what it gets: share it only with processes that you trust, as with
    multiprocessing.Queue. Further arguments and errors: see `SyncObject`.
    """

    _KIND = int(_nic.SyncKind.queue)
    _CORE = _nic.QueueCore

    def __init__(
        self,
        name: str | Ticket | None = None,
        slots: int | None = None,
        *,
        nbytes: int | None = None,
        dtype: Any = None,
        shape: int | tuple[int, ...] = (),
        node: Node | None = None,
        create: bool | None = None,
        wait: float = 0.0,
        keep: bool = False,
    ) -> None:
        n = _SLOTS if slots is None else whole(slots, "Queue: slots", 1, 1 << 31)
        item = _NBYTES if nbytes is None else whole(nbytes, "Queue: nbytes", 1, 1 << 40)
        form: _Form | None = None
        if dtype is not None:
            if nbytes is not None:
                raise TypeError("Queue: give nbytes, or dtype and shape")
            form = _form(dtype, shape)
            item = form[0].itemsize * math.prod(form[1])
        elif shape != ():
            raise TypeError("Queue: a shape needs a dtype")
        self._form = form
        if self._begin(name, n, item, node, create, wait, keep):
            return
        if slots is not None and self._n != n:
            raise self._differs(f"{self._n} slots", f"{n}")
        if (form is not None and self._form != form) or (nbytes is not None and self._form is not None):
            raise self._differs(f"items of {_shown(self._form)}", _shown(form))
        if nbytes is not None and self._item != item:
            raise self._differs(f"slots of {self._item} bytes", f"{item}")

    def _differs(self, has: str, asked: str) -> errors.InvalidArgument:
        self._unmap()
        return errors.InvalidArgument(
            f"Queue: {self._shown()} has {has}, and this one asks for {asked}\n"
            f"  rule: all who use a queue use it as its maker, process {self.ticket.pid}, made it\n"
            "  try: none of slots, nbytes, dtype and shape, to take over what the queue has; or another name"
        )

    def _form_text(self) -> bytes:
        if self._form is None:
            return b""
        text = json.dumps([encode_dtype(self._form[0]), self._form[1]], separators=(",", ":")).encode()
        if len(text) > _FORM_BYTES_MAX:
            raise errors.InvalidArgument(
                f"Queue: the description of dtype and shape has {len(text)} bytes; at most {_FORM_BYTES_MAX} are kept "
                "with a queue\n  try: a dtype with fewer fields"
            )
        return text

    def _learn(self, form: bytes) -> None:
        if form:
            try:
                dtype, shape = json.loads(form)
                self._form = found = _form(decode_dtype(str(dtype)), tuple(shape))
            except (ValueError, TypeError, UnicodeError, RecursionError):
                raise self._damaged("Queue") from None
            if found[0].itemsize * math.prod(found[1]) != self._item:
                raise self._damaged("Queue")
        else:
            self._form = None
        self._records = self._form is not None

    # put and get are in C++; what they cannot do at once they pass to these methods.

    def _put(
        self,
        item: Any,
        first: Any = None,
        second: Any = None,
        *,
        timeout: float | None = None,
        block: bool | None = None,
    ) -> None:
        left, _ = patience("put", first, second, timeout, block, None)
        self._ensure("put")
        data, kind = self._pack(item, "put")
        self._put_data(data, kind, left)

    def _put_pickled(self, data: bytes) -> None:
        self._put_data(data, _PICKLE, None)

    def _put_data(self, data: Any, kind: int, timeout: float | None) -> None:
        nbytes = memoryview(data).nbytes
        self._fits(nbytes, "put")
        if self._mapped or nbytes <= _INLINE:
            found = self._do("put", _PUT, kind, 0, data, timeout)
            if found.outcome == AGAIN:
                raise self._full("put", timeout)
            return
        found = self._do("put", _RESERVE, nbytes, kind, timeout=timeout)
        if found.outcome == AGAIN:
            raise self._full("put", timeout)
        # If an exception ends this before the commit, the extension gives the slot back.
        self._array.at[found.value2 : found.value2 + nbytes].write(np.frombuffer(data, np.uint8))
        with contextlib.suppress(errors.TimedOut):  # of a stopped owner, whose NIC has the call, and does it later
            self._do("put", _COMMIT, found.value)

    # Items that are no arrays are made of their bytes in C++: the result of this method is then not used.
    def _get(
        self,
        first: Any = None,
        second: Any = None,
        /,
        *,
        timeout: float | None = None,
        out: Any = None,
        block: bool | None = None,
    ) -> Any:
        if second is not None and not isinstance(first, bool):
            if out is not None:
                raise TypeError("get: out is given twice")
            out, second = second, None
        left, _ = patience("get", first, second, timeout, block, None)
        self._ensure("get")
        target = self._target(out, "get")
        kept = self._take_kept()
        if kept is not None:
            return self._unpack(kept[1], kept[0], target, None, "get")
        if self._mapped:
            room = None if target is None or not target.nbytes else _raw(target)
            found = self._do("get", _GET, 0, 0, room, left)
            if found.outcome == AGAIN:
                raise self._empty("get", left)
            return self._unpack(found.data, found.value3, target, found.value, "get")
        if self._item <= _INLINE:
            found = self._do("get", _GET, timeout=left, room=self._item)
            if found.outcome == AGAIN:
                raise self._empty("get", left)
            return self._unpack(found.data, found.value3, target, None, "get")
        found = self._do("get", _CLAIM, timeout=left)
        if found.outcome == AGAIN:
            raise self._empty("get", left)
        # As in put(). The record travels with the call that frees its slot, in case the call is the last.
        data = self._array.at[found.value2 : found.value2 + found.state].read().tobytes()
        self._do("get", _FREE, found.value, data=data)
        return self._unpack(data, found.value3, target, None, "get")

    def qsize(self) -> int:
        """Items in the queue, those included that are just being put."""
        return self._do("qsize", _LOOK).value + self._kept_items

    def empty(self) -> bool:
        """Whether the queue has no items."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether the queue has no room."""
        return self.qsize() >= self._n

    def __len__(self) -> int:
        return self.qsize()

    def __bool__(self) -> bool:
        return True  # a queue is not false because it is empty

    @property
    def slots(self) -> int:
        """The most items at a time."""
        self._ensure("slots")
        return self._n

    @property
    def nbytes(self) -> int:
        """The most bytes of an item."""
        self._ensure("nbytes")
        return self._item

    # ---- awaitable calls --------------------------------------------------------------------------------------------

    async def aput(self, item: Any, timeout: float | None = None) -> None:
        """`put`, awaitable."""
        patience = limit(timeout, "aput")
        await self._aready("aput")
        data, kind = self._pack(item, "aput")
        nbytes = memoryview(data).nbytes
        self._fits(nbytes, "aput")
        if nbytes <= _INLINE:
            found = await self._ado("aput", _PUT, kind, 0, data, patience)
            if found.outcome == AGAIN:
                raise self._full("aput", patience)
            return
        found = await self._ado("aput", _RESERVE, nbytes, kind, timeout=patience, undo=self._agive_up)
        if found.outcome == AGAIN:
            raise self._full("aput", patience)
        try:
            await self._array.at[found.value2 : found.value2 + nbytes].awrite(np.frombuffer(data, np.uint8))
        except BaseException:
            self._give_back(found.value)
            raise
        with contextlib.suppress(errors.TimedOut):  # as in put()
            await self._ado("aput", _COMMIT, found.value)

    async def aget(self, timeout: float | None = None, out: Any = None) -> Any:
        """`get`, awaitable. An item that arrives just when the task is canceled goes back to the head of the queue."""
        patience = limit(timeout, "aget")
        await self._aready("aget")
        target = self._target(out, "aget")
        kept = self._take_kept()
        if kept is not None:
            return self._unpack(kept[1], kept[0], target, None, "aget")
        if self._item <= _INLINE:
            found = await self._ado("aget", _GET, timeout=patience, room=self._item, undo=self._aput_back)
            if found.outcome == AGAIN:
                raise self._empty("aget", patience)
            return self._unpack(found.data, found.value3, target, None, "aget")
        found = await self._ado("aget", _CLAIM, timeout=patience, undo=self._aput_first)
        if found.outcome == AGAIN:
            raise self._empty("aget", patience)
        try:
            data = (await self._array.at[found.value2 : found.value2 + found.state].aread()).tobytes()
        except BaseException:
            self._give_back(found.value, _FIRST_AGAIN)
            raise
        self._give_back(found.value)  # not awaited: the task may be canceled, and the item would be nobody's
        return self._unpack(data, found.value3, target, None, "aget")

    async def _aput_back(self, late: Answer) -> None:
        if late.outcome == DONE:
            back = await self._ado("aget", _PUT_BACK, late.value3, data=late.data)
            if back.outcome != DONE:  # others have filled the queue: the next get() of this handle
                self._keep(late.value3, late.data)

    async def _aput_first(self, late: Answer) -> None:
        if late.outcome == DONE:
            self._give_back(late.value, _FIRST_AGAIN)

    async def _agive_up(self, late: Answer) -> None:
        if late.outcome == DONE:
            self._give_back(late.value)

    def _give_back(self, slot: int, how: int = 0) -> None:
        """Free a slot, without a turn of the loop: it may end, or be canceling this task."""
        with contextlib.suppress(errors.FabricError):  # the queue has ended
            if self._mapped and self._do("queue", _FREE, slot, how).outcome != AGAIN:
                return
            request = calls.Request(_FREE, calls.MAPPED if self._mapped else 0, slot, how)
            calls.do_eventually(self._array, "queue", request)

    # ---- items ------------------------------------------------------------------------------------------------------

    def _pack(self, item: Any, call: str) -> tuple[Any, int]:
        """The bytes of an item, and their type."""
        if self._form is None:
            if type(item) is bytes:
                return item, _BYTES
            return pickle.dumps(item, 5), _PICKLE
        dtype, shape = self._form
        source = values(item, dtype, call)
        if source.shape != shape:
            source = np.broadcast_to(source, shape) if source.ndim == 0 else source
        if source.shape != shape:
            raise ValueError(f"{call}: the item has shape {source.shape}, items of this queue have {shape}")
        return _raw(np.ascontiguousarray(source)), _RECORD

    def _unpack(self, data: Any, kind: int, target: Array | None, moved: int | None, call: str) -> Any:
        """The item of a record's bytes. moved: so many bytes have been copied to `target`."""
        if self._form is None:
            if call == "get":
                return None
            if kind == _BYTES:
                return data
            if kind == _PICKLE:
                return pickle.loads(data)
            raise self._damaged(call)
        dtype, shape = self._form
        length = len(data) if moved is None else moved
        if kind != _RECORD or length != dtype.itemsize * math.prod(shape):
            raise self._damaged(call)
        if moved is None:
            found = np.frombuffer(data, dtype).reshape(shape)
            if target is None:
                return found.copy() if shape else found[()]
            target[...] = found
        return target

    def _target(self, out: Any, call: str) -> Array | None:
        """Where an item goes: `out`, or a new array."""
        if self._form is None:
            if out is not None:
                raise TypeError(f"{call}: out is for queues of arrays (dtype=..., shape=...)")
            return None
        dtype, shape = self._form
        if out is None:
            return np.empty(shape, dtype)
        target = alias(out, f"{call}: out", writable=True)
        if target.dtype != dtype or target.shape != shape:
            raise ValueError(f"{call}: out is {target.dtype} {target.shape}, items of this queue are {dtype} {shape}")
        return target

    def _fits(self, nbytes: int, call: str) -> None:
        self._ensure(call)
        if nbytes > self._item:
            raise errors.MessageTooLong(
                f"{call}: the item has {nbytes} bytes, a slot of {self._shown()} has {self._item}\n"
                "  try: weft.Queue(..., nbytes=...) with more; for large data an array, and its ticket as the item"
            )

    def _full(self, call: str, timeout: float | None) -> errors.TimedOut:
        return Full(f"{call}: {self._shown()} is full, with {self._n} items, after {timeout or 0:g} s")

    def _empty(self, call: str, timeout: float | None) -> errors.TimedOut:
        return Empty(f"{call}: {self._shown()} is empty after {timeout or 0:g} s")

    def _refused(self, call: str, result: Result) -> errors.FabricError:
        if result.outcome == TOO_LONG:
            return errors.MessageTooLong(
                f"{call}: the next item of {self._shown()} has {result.value} bytes, more than there is room for; it "
                "stays in the queue\n  rule: all who put and get use the same dtype and shape"
            )
        return super()._refused(call, result)

    def _state(self) -> str:
        return f"{self.qsize()} of {self._n} slots of {human_bytes(self._item)}"


def _form(dtype: Any, shape: Any) -> _Form:
    found = np.dtype(dtype)
    if found.hasobject:
        raise TypeError(f"Queue: dtype {found} holds Python objects\n  try: no dtype, so that items are pickled")
    sizes = shape if isinstance(shape, tuple) else (shape,)
    return found, tuple(whole(n, "Queue: shape", 0, 1 << 40) for n in sizes)


def _shown(form: _Form | None) -> str:
    return "pickled objects" if form is None else f"{form[0]} {form[1]}"


def _raw(array: Array) -> Any:
    """The bytes of a C-contiguous array."""
    return array.reshape(-1).view(np.uint8) if array.nbytes else b""
