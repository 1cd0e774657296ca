"""Any Python array as a NumPy array over the same memory: memory from weft.buffers, and a dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import buffers, errors
from .comparing import Array as Array
from .comparing import Comparing

__all__ = ["Array", "alias", "type_name", "values"]

_PLAIN = (int, float, complex, str, bytes, list, tuple)


def type_name(obj: object) -> str:
    """A type as its users write it."""
    kind = type(obj)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def alias(obj: Any, call: str, *, writable: bool = False) -> Array:
    """A NumPy array over the memory of `obj`; it keeps `obj` alive. Never a copy.

    Raises TypeError (not an array; Python objects as elements), InvalidArgument (not C-contiguous, a masked array; the
    message has the remedy), AccessDenied (read-only memory, and writable is set), NotSupported (device memory).
    """
    if isinstance(obj, np.ndarray):
        if obj.dtype.hasobject:
            raise TypeError(
                f"{call}: an array of dtype {obj.dtype} holds Python objects: pointers, invalid in other processes\n"
                "  try: a numeric or structured dtype, or pickle.dumps(...) as bytes"
            )
        if isinstance(obj, np.ma.MaskedArray):
            raise errors.InvalidArgument(
                f"{call}: a masked array is two arrays\n  try: a.filled(), or a.data and a.mask separately"
            )
        if not obj.flags.c_contiguous:
            raise errors.InvalidArgument(_not_contiguous(call, obj, obj.shape, obj.strides))
        if writable and not obj.flags.writeable:
            raise errors.AccessDenied(
                f"{call}: the array of shape {obj.shape} is read-only\n"
                "  try: a.flags.writeable = True if the array owns its memory, or a.copy()"
            )
        return obj
    try:
        info = buffers.describe(obj, writable)
    except buffers.NotContiguous:
        found = buffers.scatter_list(obj).info
        raise errors.InvalidArgument(_not_contiguous(call, obj, found.shape, found.strides)) from None
    except buffers.ReadOnly as reason:
        raise errors.AccessDenied(f"{call}: {reason}") from None
    except (TypeError, BufferError) as reason:
        raise TypeError(f"{call}: {reason}") from None
    if not info.host_access:
        raise errors.NotSupported(
            f"{call}: {type_name(obj)} is in device memory, which weft.share does not support\n"
            "  try: a copy on the host (a.cpu())"
        )
    if isinstance(obj, tuple):
        raise TypeError(f"{call}: {obj!r} has no dtype\n  try: numpy.ctypeslib.as_array for memory at an address")
    dtype = _dtype_of(obj, info)
    if info.nbytes == 0:
        return np.empty(info.shape, dtype)
    raw = np.asarray(_Bytes(info))
    return raw.view(dtype).reshape(info.shape)


class _Bytes:
    """The bytes of a described buffer, for numpy.asarray, which keeps this object as the base of its array."""

    def __init__(self, info: buffers.BufferInfo) -> None:
        self.info = info
        self.__array_interface__ = {
            "version": 3,
            "shape": (info.nbytes,),
            "typestr": "|u1",
            "data": (info.address, info.readonly),
        }


def _dtype_of(obj: Any, info: buffers.BufferInfo) -> np.dtype[Any]:
    code = info.format
    if info.door == "DLPack":
        if code == "bool8":
            code = "bool"
        try:
            known: np.dtype[Any] = np.dtype(code)
            return known
        except TypeError:
            pass
        try:
            import ml_dtypes

            known = np.dtype(getattr(ml_dtypes, code))
            return known
        except (ImportError, AttributeError):
            raise errors.InvalidArgument(
                f"NumPy has no dtype for {type_name(obj)} of {code}\n"
                "  try: pip install ml_dtypes, or a view of a dtype of the same size (tensor.view(torch.uint16))"
            ) from None
    try:
        # NumPy reads the format itself if it can, from PEP 3118 or the array interface.
        found: Array = np.asarray(memoryview(obj) if info.door == "buffer protocol" else obj)
        if found.dtype.itemsize == info.itemsize and not found.dtype.hasobject:
            kind: np.dtype[Any] = found.dtype
            return kind
    except (TypeError, ValueError, BufferError, NotImplementedError):
        pass
    return np.dtype(f"V{info.itemsize}")


def _not_contiguous(call: str, obj: object, shape: tuple[int, ...], strides: tuple[int, ...]) -> str:
    message = (
        f"{call}: {type_name(obj)} of shape {shape} and strides {strides} is not C-contiguous\n"
        "  try: numpy.ascontiguousarray(a), a copy that you keep, or "
    )
    out = call.endswith(": out")
    if len(shape) > 1 and not out and list(strides) == sorted(strides) and strides[0] != strides[-1]:
        return message + "a.T, which is the same memory in C order"
    return message + ("no out=, and a[...] = the result" if out else "the whole array, which peers index (t[:, 3])")


def values(value: Any, dtype: np.dtype[Any], call: str) -> Array:
    """Values to be written, as an array of `dtype`: converted as NumPy's assignment converts, without a copy if the
    dtype is `dtype` already. Raises TypeError, ValueError."""
    if isinstance(value, np.ndarray):
        found = value
    elif isinstance(value, np.generic):
        found = np.empty((), dtype)
        try:
            found[()] = value
        except (TypeError, ValueError) as reason:
            raise type(reason)(f"{call}: {value!r} cannot be converted to {dtype}: {reason}") from None
        return found
    elif isinstance(value, _PLAIN) or value is None:
        try:
            return np.asarray(value, dtype)
        except (TypeError, ValueError) as reason:
            raise type(reason)(f"{call}: {value!r} cannot be converted to {dtype}: {reason}") from None
    elif isinstance(value, Comparing):  # a RemoteArray or a Shared
        found = np.asarray(value)  # not read(), which returns a scalar for one element
    else:
        try:
            found = alias(value, call)
        except errors.InvalidArgument:
            found = np.asarray(value)  # strided: NumPy copies
    if found.dtype.hasobject:
        raise TypeError(f"{call}: values of dtype {found.dtype} are Python objects; the array has {dtype}")
    if found.dtype == dtype:
        return found
    try:
        return found.astype(dtype)
    except (TypeError, ValueError) as reason:
        raise TypeError(f"{call}: values of dtype {found.dtype} cannot be converted to {dtype}: {reason}") from None
