"""The buffer protocol. Source: PEP 3118."""

from __future__ import annotations

import ctypes
import re
from typing import Any

from ._info import HMEM_SYSTEM, BufferInfo, Hold, c_strides, name_of, refuse_objects


class _PyBuffer(ctypes.Structure):
    """Py_buffer of the CPython ABI."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


_BUF_FORMAT, _BUF_STRIDES = 0x4, 0x18  # PyBUF_FORMAT; PyBUF_STRIDES, which includes PyBUF_ND

_check_buffer = ctypes.pythonapi.PyObject_CheckBuffer
_check_buffer.argtypes = [ctypes.py_object]
_check_buffer.restype = ctypes.c_int
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None


class _Export(Hold):
    """An exported Py_buffer. A memoryview is not sufficient: it rejects formats that the struct module does not know,
    and does not give the address of read-only memory."""

    def __init__(self, obj: object, flags: int) -> None:
        self.view = _PyBuffer()
        self._open = False
        _get_buffer(obj, ctypes.byref(self.view), flags)  # raises what the exporter raised
        self._open = True

    def close(self) -> None:
        if self._open:
            self._open = False
            _release_buffer(ctypes.byref(self.view))

    def __del__(self) -> None:
        self.close()


def from_buffer(obj: object) -> BufferInfo | None:
    if isinstance(obj, ctypes.py_object):  # a ctypes call would receive the referenced object instead
        refuse_objects(obj)
    if not _check_buffer(obj):
        return None
    try:
        export = _Export(obj, _BUF_STRIDES | _BUF_FORMAT)
    except (BufferError, ValueError, TypeError) as with_format:
        # Some NumPy dtypes have no PEP 3118 format (datetime64, ml_dtypes' bfloat16 and float8): export without format.
        try:
            export = _Export(obj, _BUF_STRIDES)
        except (BufferError, ValueError, TypeError):
            raise BufferError(f"{name_of(obj)} does not export its buffer: {with_format}") from with_format
    view = export.view
    shape = tuple(view.shape[: view.ndim]) if view.shape else (view.len // max(view.itemsize, 1),) * bool(view.ndim)
    strides = tuple(view.strides[: view.ndim]) if view.strides else c_strides(shape, view.itemsize)
    code = view.format.decode() if view.format else _typestr_of(obj)
    exporter = obj.obj if isinstance(obj, memoryview) else obj
    if (
        (view.format and _holds_objects(code))
        or getattr(getattr(exporter, "dtype", None), "hasobject", False) is True
        or _ctypes_holds_objects(type(exporter))
    ):
        refuse_objects(obj)
    return BufferInfo(
        view.buf or 0,
        view.len,
        bool(view.readonly),
        HMEM_SYSTEM,
        export,
        view.itemsize,
        shape,
        strides,
        code,
        "buffer protocol",
    )


def _typestr_of(obj: object) -> str:
    dtype = getattr(obj, "dtype", None)
    return str(dtype) if dtype is not None else ""


def _holds_objects(code: str) -> bool:
    """True if a PEP 3118 format contains O, a Python object. Field names (between colons) are ignored."""
    return "O" in re.sub(r":[^:]*:", "", code)


def _ctypes_holds_objects(kind: Any) -> bool:
    """True if a ctypes type, or one of its fields or elements, is a py_object. The format does not tell: ctypes gives
    unions and packed structures the format "B"."""
    if issubclass(kind, ctypes.py_object):
        return True
    if issubclass(kind, ctypes.Array):
        return _ctypes_holds_objects(kind._type_)
    if issubclass(kind, (ctypes.Structure, ctypes.Union)):
        fields = (field for base in kind.__mro__ for field in base.__dict__.get("_fields_", ()))
        return any(_ctypes_holds_objects(field[1]) for field in fields)
    return False
