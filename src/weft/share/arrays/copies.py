"""What `t[key]` returns where NumPy would return a view: a read-only copy, whose errors say how to write to the owner.

`t[0][1] = 7` would otherwise silently change a copy that nobody keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _nic

_HOW = (
    "assignment destination is read-only: t[key] is a copy, and a change of it would not reach the array's owner\n"
    "  try: t[0, 1] = 7 or t.at[0][1] = 7 for t[0][1] = 7, which write to the owner; t[key].copy() or t.at[key].read() "
    "for an array of your own"
)


def _in_place(name: str, symbol: str) -> Callable[[Any, Any], Any]:
    def combined(self: Any, other: Any) -> Any:
        own = np.asarray(self) if self.flags.writeable else np.array(self)
        return getattr(own, name)(other)

    combined.__name__ = name
    combined.__doc__ = f"`a {symbol} x` gives a new array of your own, so that `t[key] {symbol} x` writes to the owner."
    return combined


class ReadOnlyCopy(np.ndarray[Any, Any]):
    """A NumPy array that cannot be assigned to: elements of another process's array, as they were when they were read.

    `t[10:20] += 1` reads, computes and writes: writes of other processes in between are lost; t.add(slice(10, 20), 1)
    is atomic. `t[0][1] = 7` raises ValueError, which names the call that writes. `t[0].copy()` and `t[0] + 1` are
    ordinary arrays, as are all results of NumPy's functions.
    """

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        if not self.flags.writeable:
            raise ValueError(_HOW)
        super().__setitem__(key, value)

    __iadd__ = _in_place("__iadd__", "+=")
    __isub__ = _in_place("__isub__", "-=")
    __imul__ = _in_place("__imul__", "*=")
    __itruediv__ = _in_place("__itruediv__", "/=")
    __ifloordiv__ = _in_place("__ifloordiv__", "//=")
    __imod__ = _in_place("__imod__", "%=")
    __ipow__ = _in_place("__ipow__", "**=")
    __ilshift__ = _in_place("__ilshift__", "<<=")
    __irshift__ = _in_place("__irshift__", ">>=")
    __iand__ = _in_place("__iand__", "&=")
    __ior__ = _in_place("__ior__", "|=")
    __ixor__ = _in_place("__ixor__", "^=")
    __imatmul__ = _in_place("__imatmul__", "@=")

    # ---- results are ordinary arrays --------------------------------------------------------------------------------

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        plain = np.asarray(array)
        return plain[()] if return_scalar or not plain.ndim else plain

    def copy(self, order: Any = "C") -> np.ndarray[Any, Any]:
        """An array of your own."""
        return np.array(self, order=order)

    def __copy__(self) -> np.ndarray[Any, Any]:
        return np.array(self)

    def __deepcopy__(self, memo: Any) -> np.ndarray[Any, Any]:
        return np.array(self)

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        """As NumPy's; an ordinary array."""
        found: np.ndarray[Any, Any] = np.asarray(self).astype(dtype, *args, **kwargs)
        return found

    def __reduce__(self) -> Any:
        return np.array(self).__reduce__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return np.array(self).__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return repr(np.asarray(self))


_nic.set_copy_type(ReadOnlyCopy)


def own(found: np.ndarray[Any, Any]) -> ReadOnlyCopy:
    """The array as a read-only copy: a view of the same memory. For copies that were made as ordinary arrays."""
    copy = found.view(ReadOnlyCopy)
    copy.flags.writeable = False
    return copy
