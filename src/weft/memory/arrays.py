"""Arrays in memory that peers can map.

The NIC allocates in memfd segments; a peer on the same host maps a segment once, and a put into it is a key check and a
copy in the caller's thread. Arrays made elsewhere work everywhere as well, at the speed of process_vm_writev.
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
    """As `empty`, filled with zeros: 0, False, "", and these in every field of a structured dtype."""
    return _process.array(shape, dtype, zero=True, call="zeros")


@contextmanager
def allocator() -> Iterator[None]:
    """Under it, every array that NumPy makes lies in memory that peers can map.

        with weft.allocator():
            table = np.arange(10**8)        # as weft.empty would have made it
            embeddings = np.load("e.npy")   # by code that knows nothing of Weft, too

    It is NumPy's memory handler (NEP 49) of this thread or task, as a context manager; arrays keep it beyond the block.
    Each array takes whole pages of 4 KiB, so it suits large ones. Under it NumPy raises MemoryError when no segment has
    room. Arrays that are views of other memory (np.frombuffer, np.memmap, DLPack) stay where they are.

    A forked child starts with NumPy's own handler, and shares the arrays that are there with its parent: it writes into
    the parent's, where arrays of NumPy's own would be copied. The first such fork of a process warns (RuntimeWarning).
    """
    before = _nic.set_numpy_memory_handler(_process.numpy_memory_handler())
    try:
        yield
    finally:
        _nic.set_numpy_memory_handler(before)
