"""`==`, `<` and `bool()` for an array of another process: as for NumPy arrays, on a copy that the call reads.

With Python's defaults (identity; always true) `(t == 0).all()` and `if t:` would silently give wrong results.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

Array = np.ndarray[Any, Any]


def _by(compare: Callable[[Any, Any], Any], symbol: str) -> Callable[[Any, object], Any]:
    def compared(self: Any, other: object) -> Any:
        return compare(np.asarray(self), np.asarray(other) if isinstance(other, Comparing) else other)

    compared.__name__ = compare.__name__
    compared.__doc__ = f"`t {symbol} x`: element by element, as in NumPy. Reads all of the array."
    return compared


class Comparing:
    """Comparisons and truth of a class that has `__array__`, `shape` and `size`."""

    __slots__ = ()

    if TYPE_CHECKING:  # what the function above makes

        def __eq__(self, other: object) -> Array: ...  # type: ignore[override]
        def __ne__(self, other: object) -> Array: ...  # type: ignore[override]
        def __lt__(self, other: Any) -> Array: ...
        def __le__(self, other: Any) -> Array: ...
        def __gt__(self, other: Any) -> Array: ...
        def __ge__(self, other: Any) -> Array: ...

    else:
        __eq__ = _by(operator.eq, "==")
        __ne__ = _by(operator.ne, "!=")
        __lt__ = _by(operator.lt, "<")
        __le__ = _by(operator.le, "<=")
        __gt__ = _by(operator.gt, ">")
        __ge__ = _by(operator.ge, ">=")

    __hash__ = object.__hash__  # by identity, so that arrays can be keys

    def __bool__(self) -> bool:
        """The truth value of the only element, which is read. Raises ValueError for arrays of other sizes, as NumPy
        does.
        """
        array: Any = self
        if array.size != 1:
            raise ValueError(
                f"the truth of an array of shape {array.shape} is ambiguous: it has {array.size} elements\n"
                "  try: (t != 0).any() or (t != 0).all(), which read it; `t is not None`, `len(t)`, `t.size` do not"
            )
        return bool(np.asarray(array).reshape(())[()])
