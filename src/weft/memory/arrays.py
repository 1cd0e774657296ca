"""Arrays in memory that peers can map.

The NIC allocates from memfd segments. A peer on the same host maps a segment once; a put into the segment is then a key
check and a copy in the caller's thread. Arrays made elsewhere can be registered too, at the speed of process_vm_writev.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

from .. import _nic, _process
from .reserve import part, whole_shape

if TYPE_CHECKING:
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"
Shape: TypeAlias = "SupportsIndex | Sequence[SupportsIndex]"


def empty(shape: Shape, dtype: Any = float, *, reserve: SupportsIndex | None = None) -> Array:
    """A new C-contiguous array, uninitialised, in memory that peers can map.

    Args:
        shape: As for numpy.empty.
        dtype: As for numpy.empty; no object dtypes.
        reserve: Rows (elements of the first dimension) that the array can get by `Shared.resize`, those of its shape
            included; None: no room. The system allocates a reserved page when it is first used.

    The memory is freed with the last reference to the array and its views; its pages are allocated when they are first
    used.

    Raises:
        NoMemory: More than the machine has; a MemoryError, as NumPy's.
        TypeError: `dtype`, `shape` or `reserve` is wrong.
        ValueError: Negative lengths, or more than an address space has.
        InvalidArgument: `reserve` is less than the shape has.
    """
    return _array(shape, dtype, False, reserve, "empty")


def zeros(shape: Shape, dtype: Any = float, *, reserve: SupportsIndex | None = None) -> Array:
    """Like `empty`, filled with zeros: 0, False, "", also in every field of a structured dtype and in reserved rows."""
    return _array(shape, dtype, True, reserve, "zeros")


def _array(shape: Shape, dtype: Any, zero: bool, reserve: SupportsIndex | None, call: str) -> Array:
    if reserve is None:
        return _process.array(shape, dtype, zero=zero, call=call)
    whole, length = whole_shape(shape, reserve, call)
    return part(_process.array(whole, dtype, fresh=zero, sparse=True, call=call), length)


def ones(shape: Shape, dtype: Any = float) -> Array:
    """Like `empty`, filled with ones."""
    return full(shape, 1, dtype)


def full(shape: Shape, fill_value: Any, dtype: Any = None) -> Array:
    """Like `empty`, filled with a value.

    Args:
        fill_value: A value, or values that broadcast to the shape: converted as NumPy's assignment does.
        dtype: None: the dtype of the value, as numpy.full.

    Raises:
        ValueError: The values do not fit the shape or the dtype.
    """
    import numpy as np

    found = _process.array(shape, np.asarray(fill_value).dtype if dtype is None else dtype, filled=True, call="full")
    found[...] = fill_value
    return found


def array(object: Any, dtype: Any = None) -> Array:
    """A copy of anything that NumPy makes an array of (lists, arrays, a RemoteArray), in memory that peers can map.

    Args:
        dtype: None: as numpy.array chooses.

    Always a C-contiguous copy. Raises as `empty`, and NumPy's errors.
    """
    import numpy as np

    source = np.asarray(object, dtype)
    found = _process.array(source.shape, source.dtype, filled=True, call="array")
    found[...] = source
    return found


def empty_like(prototype: Any, dtype: Any = None, shape: Shape | None = None) -> Array:
    """An array of the shape and dtype of another (or as given), as `empty` makes it. Nothing of the other is read."""
    return empty(*_like(prototype, dtype, shape))


def zeros_like(a: Any, dtype: Any = None, shape: Shape | None = None) -> Array:
    """An array of zeros of the shape and dtype of another (or as given). Nothing of the other is read."""
    return zeros(*_like(a, dtype, shape))


def ones_like(a: Any, dtype: Any = None, shape: Shape | None = None) -> Array:
    """An array of ones of the shape and dtype of another (or as given). Nothing of the other is read."""
    return ones(*_like(a, dtype, shape))


def full_like(a: Any, fill_value: Any, dtype: Any = None, shape: Shape | None = None) -> Array:
    """An array of one value, of the shape and dtype of another (or as given). Nothing of the other is read."""
    shape, dtype = _like(a, dtype, shape)
    return full(shape, fill_value, dtype)


def _like(a: Any, dtype: Any, shape: Shape | None) -> tuple[Shape, Any]:
    import numpy as np

    if not (hasattr(a, "shape") and isinstance(getattr(a, "dtype", None), np.dtype)):
        a = np.asarray(a)
    return a.shape if shape is None else shape, a.dtype if dtype is None else dtype


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
