"""`t + x`, `-t`, `t += x`, `float(t)`: as for NumPy arrays, on a copy that the call reads.

`t += x` reads, computes and writes back in tiles: other processes' writes in between are lost, whereas `t.add(..., x)`
is atomic. Without a definition, Python would bind the name to a local array, and the update would be lost silently.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .comparing import Array, Comparing
from .tiles import read_tiles

if TYPE_CHECKING:
    from typing_extensions import Self


def _local(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, Comparing) else value


def _by(combine: Callable[[Any, Any], Any], symbol: str) -> Callable[[Any, Any], Any]:
    def combined(self: Any, other: Any) -> Any:
        return combine(np.asarray(self), _local(other))

    combined.__doc__ = f"`t {symbol} x`: element by element, as in NumPy. Reads all of the array."
    return combined


def _from(combine: Callable[[Any, Any], Any], symbol: str) -> Callable[[Any, Any], Any]:
    def combined(self: Any, other: Any) -> Any:
        return combine(_local(other), np.asarray(self))

    combined.__doc__ = f"`x {symbol} t`: element by element, as in NumPy. Reads all of the array."
    return combined


def _of(compute: Callable[[Any], Any], symbol: str) -> Callable[[Any], Any]:
    def computed(self: Any) -> Any:
        return compute(np.asarray(self))

    computed.__doc__ = f"`{symbol}`: element by element, as in NumPy. Reads all of the array."
    return computed


def _into(combine: Callable[[Any, Any], Any], symbol: str) -> Callable[[Any, Any], Any]:
    def combined(self: Any, other: Any) -> Any:
        array = self._array()
        given = _local(other)
        if isinstance(given, (bool, int, float, complex)):
            for key, tile in read_tiles(array):
                array[key] = combine(tile, given)
            return self
        values = np.asarray(given)
        combine(np.empty(0, array.dtype), np.empty(0, values.dtype))  # NumPy's error about the dtypes, at once
        if np.broadcast_shapes(values.shape, array.shape) != array.shape:
            raise ValueError(
                f"t {symbol} x: x has shape {values.shape}, which does not broadcast to the array's {array.shape}"
            )
        values = np.broadcast_to(values, array.shape)
        for key, tile in read_tiles(array):
            array[key] = combine(tile, values[key])
        return self

    combined.__doc__ = (
        f"`t {symbol} x`: reads, computes and writes back, in tiles. Not atomic: `t.add(..., x)` is. "
        "Raises as NumPy's in-place operators, and the errors of reading and writing."
    )
    return combined


class Arithmetic(Comparing):
    """Operators of a class that has `__array__` and `_array()`, the RemoteArray to write to."""

    __slots__ = ()

    if TYPE_CHECKING:  # what the functions above make

        def __add__(self, other: Any) -> Array: ...
        def __radd__(self, other: Any) -> Array: ...
        def __iadd__(self, other: Any) -> Self: ...
        def __sub__(self, other: Any) -> Array: ...
        def __rsub__(self, other: Any) -> Array: ...
        def __isub__(self, other: Any) -> Self: ...
        def __mul__(self, other: Any) -> Array: ...
        def __rmul__(self, other: Any) -> Array: ...
        def __imul__(self, other: Any) -> Self: ...
        def __truediv__(self, other: Any) -> Array: ...
        def __rtruediv__(self, other: Any) -> Array: ...
        def __itruediv__(self, other: Any) -> Self: ...
        def __floordiv__(self, other: Any) -> Array: ...
        def __rfloordiv__(self, other: Any) -> Array: ...
        def __ifloordiv__(self, other: Any) -> Self: ...
        def __mod__(self, other: Any) -> Array: ...
        def __rmod__(self, other: Any) -> Array: ...
        def __imod__(self, other: Any) -> Self: ...
        def __pow__(self, other: Any) -> Array: ...
        def __rpow__(self, other: Any) -> Array: ...
        def __ipow__(self, other: Any) -> Self: ...
        def __lshift__(self, other: Any) -> Array: ...
        def __rlshift__(self, other: Any) -> Array: ...
        def __ilshift__(self, other: Any) -> Self: ...
        def __rshift__(self, other: Any) -> Array: ...
        def __rrshift__(self, other: Any) -> Array: ...
        def __irshift__(self, other: Any) -> Self: ...
        def __and__(self, other: Any) -> Array: ...
        def __rand__(self, other: Any) -> Array: ...
        def __iand__(self, other: Any) -> Self: ...
        def __or__(self, other: Any) -> Array: ...
        def __ror__(self, other: Any) -> Array: ...
        def __ior__(self, other: Any) -> Self: ...
        def __xor__(self, other: Any) -> Array: ...
        def __rxor__(self, other: Any) -> Array: ...
        def __ixor__(self, other: Any) -> Self: ...
        def __matmul__(self, other: Any) -> Array: ...
        def __rmatmul__(self, other: Any) -> Array: ...
        def __divmod__(self, other: Any) -> tuple[Array, Array]: ...
        def __rdivmod__(self, other: Any) -> tuple[Array, Array]: ...
        def __neg__(self) -> Array: ...
        def __pos__(self) -> Array: ...
        def __abs__(self) -> Array: ...
        def __invert__(self) -> Array: ...
        def __int__(self) -> int: ...
        def __float__(self) -> float: ...
        def __complex__(self) -> complex: ...
        def __index__(self) -> int: ...

    else:
        __add__, __radd__, __iadd__ = _by(operator.add, "+"), _from(operator.add, "+"), _into(operator.iadd, "+=")
        __sub__, __rsub__, __isub__ = _by(operator.sub, "-"), _from(operator.sub, "-"), _into(operator.isub, "-=")
        __mul__, __rmul__, __imul__ = _by(operator.mul, "*"), _from(operator.mul, "*"), _into(operator.imul, "*=")
        __truediv__, __rtruediv__ = _by(operator.truediv, "/"), _from(operator.truediv, "/")
        __itruediv__ = _into(operator.itruediv, "/=")
        __floordiv__, __rfloordiv__ = _by(operator.floordiv, "//"), _from(operator.floordiv, "//")
        __ifloordiv__ = _into(operator.ifloordiv, "//=")
        __mod__, __rmod__, __imod__ = _by(operator.mod, "%"), _from(operator.mod, "%"), _into(operator.imod, "%=")
        __pow__, __rpow__, __ipow__ = _by(operator.pow, "**"), _from(operator.pow, "**"), _into(operator.ipow, "**=")
        __lshift__, __rlshift__ = _by(operator.lshift, "<<"), _from(operator.lshift, "<<")
        __ilshift__ = _into(operator.ilshift, "<<=")
        __rshift__, __rrshift__ = _by(operator.rshift, ">>"), _from(operator.rshift, ">>")
        __irshift__ = _into(operator.irshift, ">>=")
        __and__, __rand__, __iand__ = _by(operator.and_, "&"), _from(operator.and_, "&"), _into(operator.iand, "&=")
        __or__, __ror__, __ior__ = _by(operator.or_, "|"), _from(operator.or_, "|"), _into(operator.ior, "|=")
        __xor__, __rxor__, __ixor__ = _by(operator.xor, "^"), _from(operator.xor, "^"), _into(operator.ixor, "^=")
        __divmod__, __rdivmod__ = _by(divmod, "divmod"), _from(divmod, "divmod")
        __matmul__, __rmatmul__ = _by(operator.matmul, "@"), _from(operator.matmul, "@")

        __neg__ = _of(operator.neg, "-t")
        __pos__ = _of(operator.pos, "+t")
        __abs__ = _of(operator.abs, "abs(t)")
        __invert__ = _of(operator.invert, "~t")

        __int__ = _of(int, "int(t)")
        __float__ = _of(float, "float(t)")
        __complex__ = _of(complex, "complex(t)")
        __index__ = _of(operator.index, "operator.index(t)")

    def __imatmul__(self, other: Any) -> NoReturn:
        """`t @= x` would need all elements at once. Raises TypeError."""
        raise TypeError("t @= x is not done in place: it needs all elements at once\n  try: t[...] = t @ x")

    def __contains__(self, value: object) -> bool:
        """Whether an element equals a value. Stops reading at the first tile with such an element."""
        wanted = _local(value)
        if np.ndim(wanted):
            return bool(np.any(np.asarray(self) == wanted))
        return any(bool(np.any(tile == wanted)) for _, tile in read_tiles(self._array()))

    def _array(self) -> Any:
        """The RemoteArray that in-place operators write to."""
        return self
