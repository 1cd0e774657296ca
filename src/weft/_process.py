"""The process: its one NIC, and what fork does to it.

One NIC engine a process (DESIGN.md). It is made at the first use and closed at exit. A forked child starts without one:
the parent's NIC stays the parent's, every handle made on it refuses use in the child, and the child's first use makes a
NIC of its own.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Any

from . import _nic

if TYPE_CHECKING:
    import numpy as np

    from ._nic import Nic

__all__ = ["array", "generation", "nic", "nic_if_open", "numpy_memory_handler"]

generation = 0
"""How many forks lie between this process and the first importer. A handle of another generation is not ours."""

_lock = threading.Lock()
_current: Nic | None = None
_handler: tuple[Nic, object] | None = None  # NumPy's way to the segments of that NIC
# NICs of ancestors: never dropped, so that no destructor of theirs runs here.
_inherited: list[Nic] = []


def nic() -> Nic:
    """The NIC of this process, made on the first call from the environment (weft.settings)."""
    global _current
    if _current is None:
        with _lock:
            if _current is None:
                from . import settings

                s, cache = settings.load(), settings.load_cache()
                # fi_hmem_iface of the switches that are 0: their memory is not cached.
                switches = (
                    cache.cuda_cache_monitor_enabled,
                    cache.rocr_cache_monitor_enabled,
                    cache.ze_cache_monitor_enabled,
                )
                _current = _nic.Nic(
                    engine=s.engine,
                    isolation=s.isolation,
                    cma=s.cma,
                    cache_monitor=cache.cache_monitor,
                    cache_count_max=cache.cache_max_count,
                    cache_bytes_max=2**64 - 1 if cache.cache_max_size is None else cache.cache_max_size,
                    cache_off=[iface for iface, on in enumerate(switches, 1) if not on],
                )
                atexit.register(_close, os.getpid())
    return _current


def nic_if_open() -> Nic | None:
    """The NIC of this process where it was made already."""
    return _current


def array(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """An uninitialised array in memory of the NIC's segments; freed with the last reference to it and its views."""
    import numpy

    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"dtype {kind} holds Python objects; another process could not use them")
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = kind.itemsize
    for n in dims:
        nbytes *= n
    if nbytes <= 0:
        return numpy.empty(dims, kind)
    memory: Any = nic().alloc(nbytes)
    found: np.ndarray[Any, Any] = numpy.ndarray(dims, kind, buffer=memory)
    return found


def numpy_memory_handler() -> object:
    """NumPy's memory handler over the segments of this process's NIC; one a NIC."""
    global _handler
    here = nic()
    if _handler is None or _handler[0] is not here:
        _handler = (here, _nic.numpy_memory_handler(here))
    return _handler[1]


def _close(pid: int) -> None:
    global _current
    if pid == os.getpid() and _current is not None:
        closing, _current = _current, None
        closing.close()


def _after_fork_in_child() -> None:
    global _current, _handler, _lock, generation
    generation += 1
    _lock = threading.Lock()
    if _handler is not None:  # forked under weft.allocator(): the segments are the parent's
        before = _nic.set_numpy_memory_handler(None)
        if before is not _handler[1]:
            _nic.set_numpy_memory_handler(before)
        _handler = None
    if _current is not None:
        _inherited.append(_current)
        _current = None


os.register_at_fork(after_in_child=_after_fork_in_child)
