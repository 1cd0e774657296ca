"""Arrays in memory that peers can map.

The NIC allocates from memfd segments. A peer on the same host maps a segment once; a put into the segment is then a key
check and a copy in the caller's thread. Arrays made elsewhere can be registered too, at the speed of process_vm_writev.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .. import _nic, _process

if TYPE_CHECKING:
    import numpy as np

__all__ = ["allocator", "empty", "zeros"]


def empty(shape: int | tuple[int, ...], dtype: Any = float) -> np.ndarray[Any, Any]:
    """A new C-contiguous array, uninitialised, in memory that peers can map.

    shape, dtype   as numpy.empty; no object dtypes.

    The memory is freed with the last reference to the array and its views. Raises NoMemory, TypeError (dtype, shape),
    ValueError (negative lengths).
    """
    return _process.array(shape, dtype)


def zeros(shape: int | tuple[int, ...], dtype: Any = float) -> np.ndarray[Any, Any]:
    """Like `empty`, filled with zeros: 0, False, "", also in every field of a structured dtype."""
    return _process.array(shape, dtype, zero=True, call="zeros")


@contextmanager
def allocator() -> Iterator[None]:
    """Context manager: NumPy allocates every new array in memory that peers can map.

        with weft.allocator():
            table = np.arange(10**8)        # in the same memory as weft.empty
            embeddings = np.load("e.npy")   # also inside code that does not know Weft

    Sets NumPy's memory handler (NEP 49) for this thread or task; arrays keep the handler after the block. Each array
    takes whole pages of 4 KiB, so the allocator suits large arrays. NumPy raises MemoryError when no segment has room.
    Arrays that are views of other memory (np.frombuffer, np.memmap, DLPack) stay where they are.

    A forked child starts with NumPy's own handler and shares the existing arrays with its parent: a write of the child
    changes the parent's array, whereas an ordinary NumPy array would be copied. The first such fork of a process warns
    (RuntimeWarning).
    """
    before = _nic.set_numpy_memory_handler(_process.numpy_memory_handler())
    try:
        yield
    finally:
        _nic.set_numpy_memory_handler(before)
