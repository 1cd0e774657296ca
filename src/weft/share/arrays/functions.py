"""NumPy's functions on arrays of other processes: `np.sum(t)`, `np.copyto(t, x)`, `np.add(a, b, out=t)` ...

Reductions and comparisons read in tiles; functions of shape and dtype read nothing; functions that would write into a
copied argument raise TypeError; all other functions get a copy of the elements.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .arithmetic import Arithmetic
from .checks import values
from .comparing import Comparing
from .show import named
from .tiles import read_tiles
from .totals import reduced

_TILED = (np.add, np.multiply, np.minimum, np.maximum, np.logical_or, np.logical_and)


def _local(value: Any) -> Any:
    """The value with each RemoteArray in it, or in its lists, tuples and dicts, as a copy."""
    if isinstance(value, Comparing):
        return np.asarray(value)
    if type(value) in (list, tuple):
        return type(value)(_local(part) for part in value)
    if type(value) is dict:
        return {key: _local(part) for key, part in value.items()}
    return value


class Functions(Arithmetic):
    """NumPy's protocols (NEP 13, NEP 18) for RemoteArray and Shared."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "at" and isinstance(inputs[0], Comparing):
            raise TypeError(
                f"np.{ufunc.__name__}.at: the updates would be made in a copy\n"
                "  try: t.add.at(indices, values), or t.fetch_op(index, op, value), which are atomic"
            )
        if method == "reduce" and ufunc in _TILED and isinstance(inputs[0], Functions) and len(inputs) == 1:
            out = kwargs.get("out")
            if kwargs.keys() <= {"axis", "dtype", "out", "keepdims"}:
                target = out[0] if isinstance(out, tuple) else out
                found = reduced(
                    inputs[0]._array(),
                    ufunc,
                    kwargs.get("axis", 0),
                    kwargs.get("dtype"),
                    None if isinstance(target, Comparing) else target,
                    kwargs.get("keepdims", False),
                )
                return _write(target, found) if isinstance(target, Comparing) else found
        inputs = tuple(_local(value) for value in inputs)
        outs = kwargs.get("out", ())
        outs = outs if isinstance(outs, tuple) else (outs,)
        where = _local(kwargs.get("where", True))
        if "where" in kwargs:
            kwargs["where"] = where
        if not any(isinstance(out, Comparing) for out in outs):
            return getattr(ufunc, method)(*inputs, **kwargs)
        kwargs["out"] = tuple(_stage(out, where is not True) for out in outs)
        found = getattr(ufunc, method)(*inputs, **kwargs)
        if found is NotImplemented:
            return found
        several = found if isinstance(found, tuple) else (found,)
        given = tuple(_write(out, one) for out, one in zip(outs, several, strict=False))
        return given if isinstance(found, tuple) else given[0]

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not all(issubclass(kind, (Comparing, np.ndarray)) for kind in types):
            return NotImplemented  # another array library's turn
        known = _KNOWN.get(func)
        if known is not None:
            found = known(*args, **kwargs)
            if found is not NotImplemented:
                return found
        args, kwargs = _out_by_name(func, args, kwargs)
        out = kwargs.get("out")
        if isinstance(out, Comparing):
            staged = dict(kwargs, out=_stage(out, False))
            return _write(out, func(*_local(args), **_local(staged)))
        return func(*_local(args), **_local(kwargs))


def _out_by_name(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with a RemoteArray that was passed for `out` by position passed by name."""
    if not any(isinstance(value, Comparing) for value in args[1:]):
        return args, kwargs
    try:
        parameters = inspect.signature(func).parameters
    except ValueError:
        return args, kwargs
    names = [name for name, one in parameters.items() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    several = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
    at = names.index("out") if "out" in names and not several else len(args)
    if at >= len(args) or not isinstance(args[at], Comparing):
        return args, kwargs
    return args[:at], {**dict(zip(names[at:], args[at:], strict=False)), **kwargs}


def _stage(out: Any, keeps: bool) -> Any:
    """A local array in place of `out`; with the elements of `out` if the function will not write all of them."""
    if not isinstance(out, Comparing):
        return out
    array: Any = out
    return np.asarray(array) if keeps else np.empty(array.shape, array.dtype)


def _write(out: Any, found: Any) -> Any:
    """Give `out` the result of a function; return it."""
    if not isinstance(out, Comparing):
        return found
    array: Any = out
    if np.shape(found) != array.shape:
        raise ValueError(f"out has shape {array.shape}, the result has shape {np.shape(found)}")
    array.write(np.asarray(found))
    return out


# ---- functions that do not get a copy -------------------------------------------------------------------------------


def _method(name: str, arguments: tuple[str, ...]) -> Callable[..., Any]:
    """np.sum(t, ...) as t.sum(...); with arguments that the method does not have, NumPy's function gets a copy."""

    def called(a: Any, *args: Any, **kwargs: Any) -> Any:
        given = {key: value for key, value in kwargs.items() if value is not np._NoValue}
        if not isinstance(a, Functions) or len(args) > len(arguments) or not given.keys() <= set(arguments):
            return NotImplemented
        given.update(zip(arguments, args, strict=False))
        out = given.pop("out", None)
        if isinstance(out, Comparing):
            return _write(out, getattr(a._array(), name)(**given))
        if out is not None:
            given["out"] = out
        return getattr(a._array(), name)(**given)

    return called


def _shape_only(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function of shape and dtype, on an array that has them and no elements."""

    def called(*args: Any, **kwargs: Any) -> Any:
        def plain(value: Any) -> Any:
            if isinstance(value, Comparing):
                array: Any = value
                return np.broadcast_to(np.empty((), array.dtype), array.shape)
            return value

        return func(*map(plain, args), **{key: plain(value) for key, value in kwargs.items()})

    return called


def _full_like(a: Any, fill_value: Any, *args: Any, **kwargs: Any) -> Any:
    plain = _shape_only(lambda value: value)(a)
    return np.full_like(plain, _local(fill_value), *args, **kwargs)


def _copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> Any:
    if not isinstance(dst, Functions):
        return NotImplemented
    array = dst._array()
    source = np.asarray(src)
    number = isinstance(src, (bool, int, float, complex))  # NumPy decides their casting by value
    np.copyto(np.empty((), array.dtype), src if number else np.empty((), source.dtype), casting=casting)
    chosen = _local(where)
    if chosen is True:
        array[...] = source
        return None
    mask = np.broadcast_to(np.asarray(chosen, bool), array.shape)
    full = np.broadcast_to(values(source, array.dtype, "copyto"), array.shape)
    if array.shape:
        array[np.ascontiguousarray(mask)] = full[mask]
    elif mask:
        array[...] = full
    return None


def _equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """np.array_equal, in tiles, up to the first tile that differs."""
    first, second = (a1, a2) if isinstance(a1, Functions) else (a2, a1)
    try:
        other = second._array() if isinstance(second, Functions) else np.asarray(second)
    except Exception:
        return False  # as NumPy
    array = first._array()
    if array.shape != other.shape:
        return False
    return all(
        np.array_equal(tile, other[key] if isinstance(other, np.ndarray) else other._tile(key), equal_nan)
        for key, tile in read_tiles(array)
    )


def _transpose(a: Any, axes: Any = None) -> Any:
    return a._array().transpose(axes) if isinstance(a, Functions) else NotImplemented


def _reshape(a: Any, /, shape: Any, order: Any = "C", **other: Any) -> Any:
    return a._array().reshape(shape, order=order) if isinstance(a, Functions) and not other else NotImplemented


def _take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Any:
    if not isinstance(a, Functions) or axis is None or mode != "raise" or isinstance(out, Comparing):
        return NotImplemented
    return a._array().take(_local(indices), axis, out)


def _nan_to_num(x: Any, copy: Any = True, *args: Any, **kwargs: Any) -> Any:
    if copy or not isinstance(x, Functions):
        return NotImplemented
    return _refused("nan_to_num with copy=False", "t[...] = np.nan_to_num(t)")(x)


def _refused(name: str, how: str) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else next(iter(kwargs.values()))
        if not isinstance(given, Functions):
            return NotImplemented
        raise TypeError(
            f"np.{name} writes into its argument, and would get a copy of {named(given._array().ticket)}\n  try: {how}"
        )

    return called


_KNOWN: dict[Any, Callable[..., Any]] = {
    np.sum: _method("sum", ("axis", "dtype", "out", "keepdims")),
    np.prod: _method("prod", ("axis", "dtype", "out", "keepdims")),
    np.min: _method("min", ("axis", "out", "keepdims")),
    np.max: _method("max", ("axis", "out", "keepdims")),
    np.amin: _method("min", ("axis", "out", "keepdims")),
    np.amax: _method("max", ("axis", "out", "keepdims")),
    np.mean: _method("mean", ("axis", "dtype", "out", "keepdims")),
    np.any: _method("any", ("axis", "out", "keepdims")),
    np.all: _method("all", ("axis", "out", "keepdims")),
    np.transpose: _transpose,
    np.swapaxes: _method("swapaxes", ("axis1", "axis2")),
    np.squeeze: _method("squeeze", ("axis",)),
    np.take: _take,
    np.reshape: _reshape,
    np.ravel: _method("ravel", ("order",)),
    np.nan_to_num: _nan_to_num,
    np.copyto: _copyto,
    np.array_equal: _equal,
    np.full_like: _full_like,
    np.put: _refused("put", "t.put(indices, values, axis=...), or t.ravel().put(indices, values)"),
    np.place: _refused("place", "t[mask] = values"),
    np.putmask: _refused("putmask", "t[mask] = values[mask]"),
    np.put_along_axis: _refused("put_along_axis", "t.put(indices, values, axis=...)"),
    np.fill_diagonal: _refused("fill_diagonal", "a = t.read(); np.fill_diagonal(a, value); t.write(a)"),
    **{
        func: _shape_only(func)
        for func in (
            np.shape,
            np.ndim,
            np.size,
            np.empty_like,
            np.zeros_like,
            np.ones_like,
            np.result_type,
            np.can_cast,
            np.common_type,
            np.iscomplexobj,
            np.isrealobj,
        )
    },
}
