"""Arrays in memory that peers can map.

The NIC allocates in memfd segments; a peer on the same host maps a segment once, and a put into it is a key check and a
copy in the caller's thread. Arrays made elsewhere work everywhere as well, at the speed of process_vm_writev.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _process

if TYPE_CHECKING:
    import numpy as np

__all__ = ["empty", "zeros"]


def empty(shape: int | tuple[int, ...], dtype: Any = float) -> np.ndarray[Any, Any]:
    """A new C-contiguous array, uninitialised, in memory that peers can map.

    shape, dtype   as numpy.empty; no object dtypes.

    The memory is freed with the last reference to the array and its views. Raises NoMemory, TypeError (dtype).
    """
    return _process.array(shape, dtype)


def zeros(shape: int | tuple[int, ...], dtype: Any = float) -> np.ndarray[Any, Any]:
    """As `empty`, filled with zeros."""
    array = empty(shape, dtype)
    array.fill(0)
    return array
