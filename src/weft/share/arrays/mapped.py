"""Views: the owner's memory, mapped in this process, as a NumPy array. Nothing is copied.

    RemoteArray.view        the array; numpy.asarray(t, copy=False) and DLPack use it, too
    _nic.PeerMemory         the mapping (cpp/mem/lease.hpp): read-only pages for mode "r". Arrays keep it alive, and the
                            owner does not reuse the place for as long as any process has it mapped

All views of one array in one mode share a mapping.
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _nic, _process, errors, fi
from ..._nic import Status
from .checks import Array
from .explain import explain, path_of, unanswered
from .show import named, short

if TYPE_CHECKING:
    from ..names.ticket import Ticket
    from ..shared import Shared
    from .attached import Attached

_COPY = "numpy.asarray(t) or t.read(out=...), which copy"
_AGAIN = int(Status.again)
_PAUSE_S = 0.00005, 0.002  # the first and the longest pause while the peer sends its segment

_lock = threading.Lock()
_mappings: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()  # of PeerMemory
# The open shares of this process. Their memory may come from any allocator; then it lies in no segment.
_shares: weakref.WeakValueDictionary[tuple[str, int], Shared] = weakref.WeakValueDictionary()


def view(a: Attached, mode: str | None = None, call: str = "view") -> Array:
    """`RemoteArray.view`."""
    writable = _is_writable(a.ticket, mode, call)
    n = math.prod(a._shape)
    if n * a._itemsize == 0:
        nothing = np.empty(a._shape, a._dtype)
        nothing.flags.writeable = writable
        return nothing
    memory = _memory(a, writable, call)
    offset = a._base - a.ticket.base
    found: Array = np.ndarray(a._shape, a._dtype, buffer=memory, offset=offset, strides=a._strides)
    return found


def as_array(a: Attached, dtype: Any = None) -> Array:
    """`numpy.asarray(t, dtype, copy=False)`. Raises ValueError as NumPy does if a copy is needed."""
    if dtype is not None and np.dtype(dtype) != a._dtype:
        raise ValueError(
            f"asarray: {named(a.ticket)} is {a._dtype}: a conversion to {np.dtype(dtype)} needs a copy\n"
            "  try: numpy.asarray(t, dtype) without copy=False"
        )
    try:
        return view(a, None, "asarray(copy=False)")
    except (errors.NotSupported, errors.AccessDenied) as reason:
        raise ValueError(_text(reason)) from reason


def as_dlpack(a: Attached, **options: Any) -> Any:
    """`__dlpack__` with the arguments of the array API standard. Raises BufferError as the standard says."""
    given = {name: value for name, value in options.items() if value is not None}
    copy = given.get("copy")
    try:
        array = np.array(a) if copy else view(a, None, "__dlpack__")
    except (errors.NotSupported, errors.AccessDenied) as reason:
        raise BufferError(_text(reason)) from reason
    try:
        try:
            return array.__dlpack__(**given)
        except TypeError:  # NumPy before 2.1 knows only `stream`
            if tuple(given.get("dl_device", (1, 0))) != (1, 0):
                raise
            return array.__dlpack__()
    except BufferError as reason:  # a read-only array for a consumer before DLPack 1.0; a dtype
        raise BufferError(f"__dlpack__ of {named(a.ticket)}: {reason}\n  try: {_COPY}") from reason


def register(shared: Shared) -> None:
    """Remember a new share of this process."""
    if shared.ticket.key is not None:
        with _lock:
            _shares[shared.ticket.address, shared.ticket.key] = shared


def _text(reason: errors.FabricError) -> str:
    return str(reason.strerror or reason)


def _is_writable(ticket: Ticket, mode: Any, call: str) -> bool:
    """Whether the view can be written to. Raises InvalidArgument (mode), AccessDenied."""
    if mode is not None and not (isinstance(mode, str) and mode in ("r", "rw")):
        hint = "t.view() shares the memory; t.view().view(dtype) sees it as another dtype"
        if isinstance(mode, str) and mode == "w":
            hint = "'rw': who can write to mapped memory can also read it"
        raise errors.InvalidArgument(f"{call}: mode is 'r' or 'rw', not {short(mode)}\n  try: {hint}")
    who = f"node.share(array, access='rw') in its owner, process {ticket.pid}"
    if "r" not in ticket.access:
        raise errors.AccessDenied(
            f"{call}: {named(ticket)} is shared with access {ticket.access!r}\n"
            f"  try: {who}; or t.write(x), t[...] = x: a view could also be read"
        )
    if mode == "rw" and "w" not in ticket.access:
        raise errors.AccessDenied(
            f"{call}: {named(ticket)} is shared with access {ticket.access!r}\n  try: {who}; or t.view('r')"
        )
    return mode != "r" and "w" in ticket.access


def _memory(a: Attached, writable: bool, call: str) -> Any:
    """The memory of the whole array, an object with the buffer protocol."""
    ticket = a.ticket
    assert ticket.key is not None  # arrays without elements were handled
    length = math.prod(ticket.shape) * a.ticket.numpy_dtype.itemsize
    which = (_process.generation, ticket.address, ticket.key, ticket.base, length, writable)
    with _lock:
        known = _mappings.get(which)
    if known is not None and known.current and a._node is not None:
        a._node._check(call)
        return known
    found = None if ticket.fabric else _map(a, length, writable, call)
    if found == _AGAIN:
        a._probe(call)  # connects to the owner; raises the errors of an access
        found = _map_when_ready(a, length, writable, call)
    if isinstance(found, _nic.PeerMemory):
        with _lock:
            _mappings[which] = found
        return found
    if found is not None:
        raise _refused(a, Status(found), call)
    own = _own_memory(ticket, writable)
    if own is None:
        raise _not_mapped(a, call)
    return own


def _map(a: Attached, length: int, writable: bool, call: str) -> Any:
    """The mapping; None if loads and stores do not reach the memory; the number of a Status."""
    try:
        lane = a._pop()
    except IndexError:
        lane = a._lane(call)
    try:
        found = _nic.peer_memory(lane.ep, a._peer, a._key, a.ticket.base, length, writable, own=True)
        if found == _AGAIN:
            lane.take(1)  # progress, under WEFT_ENGINE=manual
        return found
    finally:
        a._push(lane)


def _map_when_ready(a: Attached, length: int, writable: bool, call: str) -> Any:
    """`_map`, when the owner has sent the file of its segment."""
    timeout = None if a._node is None else a._node.timeout
    deadline = None if timeout is None else time.monotonic() + timeout
    pause, longest = _PAUSE_S
    while True:
        found = _map(a, length, writable, call)
        if found != _AGAIN:
            return found
        if deadline is not None and time.monotonic() > deadline:
            raise unanswered(a, call, timeout)
        time.sleep(pause)
        pause = min(2 * pause, longest)


def _refused(a: Attached, status: Status, call: str) -> errors.FabricError:
    detail = f"the NIC refused the access: {status.name}".encode()
    entry = fi.CqErrEntry(None, 0, 0, 0, 0, 0, 0, fi.EIO, 0, detail, fi.ADDR_NOTAVAIL, status)
    return explain(a, entry, call)


def _not_mapped(a: Attached, call: str) -> errors.FabricError:
    path, why = path_of(a)
    if path == "tcp" or a.ticket.fabric:
        remedy = _COPY
    elif path == "engine" and "strict" in why:
        remedy = f"{_COPY}; or both processes without WEFT_ISOLATION=strict"
    elif a.ticket.direct:
        why, remedy = "its owner counts the accesses to it", _COPY
    else:
        why = "its memory was not allocated by Weft"
        remedy = f"weft.empty(), weft.zeros() or weft.allocator() in its owner; or {_COPY}"
    return errors.NotSupported(
        f"{call}: {named(a.ticket)} of process {a.ticket.pid} is not mapped here: {why}\n"
        "  rule: a view is the owner's memory, so this process must reach it by load and store\n"
        f"  try: {remedy}"
    )


# ---- memory of this process that is in no segment --------------------------------------------------------------------


class _OwnMemory:
    """The bytes of an array that this process shares, for numpy.ndarray; keeps the array."""

    def __init__(self, local: Array, readonly: bool) -> None:
        self.local = local
        self.__array_interface__ = {
            "version": 3,
            "shape": (local.nbytes,),
            "typestr": "|u1",
            "data": (local.ctypes.data, readonly),
        }


def _own_memory(ticket: Ticket, writable: bool) -> Any:
    """Memory that this process shares and Weft did not allocate: used directly, because it needs no mapping."""
    if ticket.pid != os.getpid() or ticket.key is None:
        return None
    with _lock:
        shared = _shares.get((ticket.address, ticket.key))
    local = None if shared is None else shared._local
    return None if local is None else np.asarray(_OwnMemory(local, not writable))
