"""Every kind of array that weft.buffers knows, each made by one function, so that a test can run over all kinds.

A maker takes nbytes (a multiple of 16) and returns an object of that many zero bytes. Kinds whose library is not
installed are omitted.
"""

from __future__ import annotations

import array
import ctypes
import importlib.util
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HAVE_NUMPY = importlib.util.find_spec("numpy") is not None
HAVE_ML_DTYPES = HAVE_NUMPY and importlib.util.find_spec("ml_dtypes") is not None
HAVE_TORCH = importlib.util.find_spec("torch") is not None


@dataclass(frozen=True)
class Kind:
    name: str
    make: Callable[[int], Any]
    door: str
    writable: bool = True


def _mmap(nbytes: int) -> mmap.mmap:
    return mmap.mmap(-1, nbytes)


def _readonly_view(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes)).toreadonly()


def _numpy(dtype: Any) -> Callable[[int], Any]:
    def make(nbytes: int) -> Any:
        import numpy as np

        return np.zeros(nbytes // np.dtype(dtype).itemsize, dtype=dtype)

    return make


def _numpy_readonly(nbytes: int) -> Any:
    import numpy as np

    a = np.zeros(nbytes, dtype=np.uint8)
    a.flags.writeable = False
    return a


def _torch(dtype: str) -> Callable[[int], Any]:
    def make(nbytes: int) -> Any:
        import torch

        return torch.zeros(
            nbytes // torch.empty(0, dtype=getattr(torch, dtype)).element_size(), dtype=getattr(torch, dtype)
        )

    return make


class OnlyArrayInterface:
    """NumPy's memory with only __array_interface__."""

    def __init__(self, a: Any) -> None:
        self._a = a

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return dict(self._a.__array_interface__)


class OnlyDLPack:
    """NumPy's memory with only DLPack; versioned, or as before 1.0."""

    def __init__(self, a: Any, versioned: bool) -> None:
        self._a, self._versioned = a, versioned

    def __dlpack_device__(self) -> Any:
        return self._a.__dlpack_device__()

    def __dlpack__(self, **arguments: Any) -> Any:
        if not self._versioned:
            if arguments:
                raise TypeError("unexpected keyword argument 'max_version'")
            return self._a.__dlpack__()
        return self._a.__dlpack__(**arguments)


KINDS = [
    Kind("bytes", bytes, "buffer protocol", writable=False),
    Kind("bytearray", bytearray, "buffer protocol"),
    Kind("array.array", lambda n: array.array("d", bytes(n)), "buffer protocol"),
    Kind("memoryview", lambda n: memoryview(bytearray(n)), "buffer protocol"),
    Kind("memoryview-readonly", _readonly_view, "buffer protocol", writable=False),
    Kind("memoryview-cast", lambda n: memoryview(bytearray(n)).cast("d", (2, n // 16)), "buffer protocol"),
    Kind("mmap", _mmap, "buffer protocol"),
    Kind("ctypes", lambda n: (ctypes.c_int32 * (n // 4))(), "buffer protocol"),
    Kind("ctypes-2d", lambda n: ((ctypes.c_int16 * 8) * (n // 16))(), "buffer protocol"),
]
if HAVE_NUMPY:
    import numpy

    DTYPES: list[Any] = [
        *"?bBhHiIlLqQefdgFDG",
        "S16",
        "U4",
        "M8[ns]",
        "m8[s]",
        "V16",
        [("a", "<f8"), ("b", "<i4"), ("O", "<i4")],
    ]
    if HAVE_ML_DTYPES:
        import ml_dtypes

        DTYPES += [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4]
    KINDS += [
        Kind(f"numpy-{numpy.dtype(d).name if not isinstance(d, list) else 'struct'}-{i}", _numpy(d), "buffer protocol")
        for i, d in enumerate(DTYPES)
        if 16 * 1024 % numpy.dtype(d).itemsize == 0 and 16 % numpy.dtype(d).itemsize == 0
    ]
    KINDS += [
        Kind("numpy-readonly", _numpy_readonly, "buffer protocol", writable=False),
        Kind("array_interface", lambda n: OnlyArrayInterface(_numpy("f8")(n)), "__array_interface__"),
        Kind(
            "array_interface-readonly",
            lambda n: OnlyArrayInterface(_numpy_readonly(n)),
            "__array_interface__",
            writable=False,
        ),
        Kind("dlpack", lambda n: OnlyDLPack(_numpy("f4")(n), versioned=False), "DLPack"),
        Kind("dlpack-versioned", lambda n: OnlyDLPack(_numpy("f4")(n), versioned=True), "DLPack"),
        Kind("dlpack-readonly", lambda n: OnlyDLPack(_numpy_readonly(n), versioned=True), "DLPack", writable=False),
    ]
if HAVE_TORCH:
    KINDS += [
        Kind(f"torch-{d}", _torch(d), "DLPack")
        for d in (
            "float32",
            "float64",
            "float16",
            "bfloat16",
            "int8",
            "uint8",
            "int64",
            "bool",
            "complex64",
            "float8_e4m3fn",
            "float8_e5m2",
        )
    ]
