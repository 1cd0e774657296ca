"""One door for arrays: what Python calls an array, as the address and length that the NIC needs.

Everything with the buffer protocol (bytes, bytearray, memoryview, array.array, mmap, ctypes, NumPy),
`__array_interface__`, `__cuda_array_interface__` or DLPack (PyTorch, CuPy, JAX), and a bare `(address, length)`, comes
in here:

    info = describe(array, writable=True)
    info.address, info.nbytes, info.readonly, info.device, info.keepalive

Memory whose elements are Python objects (dtype object, StringDType, a structure with such a field, ctypes' py_object)
is refused with TypeError: they are pointers of this process, and a peer's write into them would end it. What
`(address, length)` names is not looked at.

Nothing is ever copied. What is not one contiguous piece is refused with the remedy in the message, or sent in pieces
where the caller asks for it (`scatter_list`). The memory stays valid, and for the buffer protocol exported (a bytearray
cannot be resized, a memoryview not released), for as long as `keepalive` lives. No array library is imported: the
object brings its own. The NIC has a fast path in C++ for the common kinds; this is the door for all of them, and the
reference.

Order of the doors: `(address, length)`, buffer protocol, `__array_interface__`, `__cuda_array_interface__`, DLPack. The
host's come first because asking a device for its memory may synchronize it.

Source: PEP 3118; the NumPy array interface, version 3; the CUDA array interface, version 3; DLPack 1.1 dlpack.h.
"""

from __future__ import annotations

import ctypes
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NoReturn

__all__ = [
    "BufferInfo",
    "NotContiguous",
    "ReadOnly",
    "ScatterList",
    "buffer_hook",
    "describe",
    "is_contiguous",
    "scatter_list",
]

HMEM_SYSTEM, HMEM_CUDA, HMEM_ROCR, HMEM_ZE = 0, 1, 2, 3  # enum fi_hmem_iface, fi_mr(3)
DEVICE_ID_UNKNOWN = -1  # the CUDA array interface does not say on which device its pointer lies
ADDRESS_LIMIT = 1 << 64


class NotContiguous(BufferError):
    """The array is not one piece of memory, and nobody asked for a scatter list."""


class ReadOnly(BufferError):
    """The memory is read-only and was asked for writing (fi_mr(3): FI_EACCES)."""


@dataclass(frozen=True, eq=False)
class BufferInfo:
    """Memory behind a Python object.

    address    of the first byte (of the first element, where strides are negative); may be 0 when nbytes is 0.
    nbytes     itemsize times the number of elements.
    readonly   True if the exporter forbids writing. (An unversioned DLPack capsule cannot say; it counts as writable.)
    device     enum fi_hmem_iface: 0 system, 1 CUDA, 2 ROCR, 3 ZE. Pinned host memory is system.
    device_id  ordinal of the device, -1 where the exporter does not say, 0 for system memory.
    host_access  True if the CPU can load and store it: system, pinned and managed memory.
    keepalive  hold it while the memory is used. Dropping the last reference releases the export.
    shape, strides  in elements and bytes; () for a scalar. format: PEP 3118 or array-interface code, "" if unknown.
    door       which protocol answered.
    """

    address: int
    nbytes: int
    readonly: bool
    device: int
    keepalive: object
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    format: str
    door: str
    device_id: int = 0
    host_access: bool = True

    @property
    def contiguous(self) -> bool:
        """True if the elements in C order are one piece of memory in that order."""
        return is_contiguous(self.shape, self.strides, self.itemsize)

    def release(self) -> None:
        """Give the memory back now instead of with the last reference. The address must not be used any more."""
        close = getattr(self.keepalive, "close", None)
        if isinstance(self.keepalive, (_Export, _DLPackHold)) and close is not None:
            close()


class ScatterList(list[tuple[int, int]]):
    """(address, length) pieces in the C order of an array's elements; neighbours that touch are joined.

    `info` describes the whole array; hold it (or this list) while the pieces are used.
    """

    info: BufferInfo

    def __init__(self, pieces: list[tuple[int, int]], info: BufferInfo) -> None:
        super().__init__(pieces)
        self.info = info


# ---- the door --------------------------------------------------------------------------------------------------------


def describe(obj: object, writable: bool = False) -> BufferInfo:
    """Address and length of the memory behind `obj`, which must be one contiguous piece.

    obj       see the module; for `(address, length)` two ints, length in bytes.
    writable  the memory will be written to: read-only memory is refused.

    Raises NotContiguous and ReadOnly (both BufferError), BufferError (the exporter refuses, or a kind of memory that
    Weft does not know), TypeError (no array), ValueError (an address or an interface that contradicts itself).
    """
    info = _inspect(obj)
    if writable and info.readonly:
        _refuse_readonly(obj, info)
    if not info.contiguous:
        _refuse_strides(obj, info)
    return info


def scatter_list(obj: object, writable: bool = False) -> ScatterList:
    """The memory behind `obj` as (address, length) pieces, in C order; one piece if it is contiguous, none if empty.

    Raises as `describe`, except that strides are welcome; writable memory whose elements overlap by a stride of 0
    (a broadcast) is refused with ValueError, because the last writer would win.
    """
    info = _inspect(obj)
    if writable and info.readonly:
        _refuse_readonly(obj, info)
    if info.nbytes == 0:
        return ScatterList([], info)
    dimensions = [(n, stride) for n, stride in zip(info.shape, info.strides, strict=True) if n > 1]
    if writable and any(stride == 0 for _, stride in dimensions):
        raise ValueError(
            f"cannot write to {_name(obj)}: a stride of 0 makes elements share memory\n"
            f"  found: shape {info.shape}, strides {info.strides} bytes\n"
            f"  try: numpy.ascontiguousarray(a), which gives each element its own memory"
        )
    block = info.itemsize
    while dimensions and dimensions[-1][1] == block:  # the inner dimensions that are one piece
        block *= dimensions.pop()[0]
    pieces: list[tuple[int, int]] = []
    end = -1
    for offsets in product(*(range(0, n * stride, stride) if stride else (0,) * n for n, stride in dimensions)):
        start = info.address + sum(offsets)
        if start == end:
            pieces[-1] = (pieces[-1][0], pieces[-1][1] + block)
        else:
            pieces.append((start, block))
        end = start + block
    return ScatterList(pieces, info)


def buffer_hook(obj: object, writable: bool) -> tuple[int, int, bool, int, object]:
    """`describe` in the form that the extension calls: (address, nbytes, readonly, device, keepalive)."""
    info = describe(obj, writable)
    return info.address, info.nbytes, info.readonly, info.device, info.keepalive


def is_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """C-contiguity as NumPy defines it: the stride of a dimension shorter than 2 does not matter, nor does any of an
    array without elements."""
    if 0 in shape:
        return True
    expected = itemsize
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n > 1:
            if stride != expected:
                return False
            expected *= n
    return True


def _inspect(obj: object) -> BufferInfo:
    if isinstance(obj, BufferInfo):
        return obj
    if isinstance(obj, tuple):
        return _from_address(obj)
    if isinstance(obj, str):
        raise TypeError("cannot use str as a buffer: text has no defined bytes\n  try: text.encode()")
    first_refusal: Exception | None = None
    for door in (_from_buffer, _from_array_interface, _from_cuda_array_interface, _from_dlpack):
        try:
            info = door(obj)
        except BufferError as refusal:  # perhaps another door is open; if not, the first answer is the one to tell
            first_refusal = first_refusal or refusal
            continue
        if info is not None:
            return info
    if first_refusal is not None:
        raise first_refusal
    hint = ""
    if isinstance(obj, int):
        hint = "\n  try: (address, length) for memory at a virtual address"
    elif isinstance(obj, (list, set, dict)):
        hint = "\n  try: numpy.array(...) or array.array(...), held by you: its memory is used in place"
    raise TypeError(
        f"cannot use {_name(obj)} as a buffer\n"
        "  looked for: buffer protocol, __array_interface__, __cuda_array_interface__, DLPack: it has none" + hint
    )


def _name(obj: object) -> str:
    kind = type(obj)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _refuse_readonly(obj: object, info: BufferInfo) -> NoReturn:
    remedy = {
        "bytes": "bytearray(data)",
        "mmap.mmap": "mmap.mmap(..., access=mmap.ACCESS_WRITE)",
        "memoryview": "a memoryview of writable memory (bytearray, array.array)",
    }.get(_name(obj), "a.copy(), or a.flags.writeable = True where the array owns its memory")
    raise ReadOnly(
        f"cannot write to {_name(obj)} of {info.nbytes} B: its memory is read-only (says its {info.door})\n"
        f"  try: {remedy}"
    )


def _refuse_strides(obj: object, info: BufferInfo) -> NoReturn:
    message = (
        f"cannot use {_name(obj)} as one buffer: it is not C-contiguous\n"
        f"  found: shape {info.shape}, strides {info.strides} bytes, itemsize {info.itemsize}\n"
        "  try: numpy.ascontiguousarray(a) (a copy that you keep), or weft.buffers.scatter_list(a): its pieces,\n"
        "       for the descriptors of a vectored call over the memory behind it"
    )
    if is_contiguous(info.shape[::-1], info.strides[::-1], info.itemsize):
        message += "\n  or: a.T, which is C-contiguous and the same memory (the array is in Fortran order)"
    raise NotContiguous(message)


def _c_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides = []
    step = itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def _count(shape: Sequence[int]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


# ---- (address, length) -----------------------------------------------------------------------------------------------


def _from_address(pair: tuple[Any, ...]) -> BufferInfo:
    """fi_rma(3) speaks of virtual addresses: the caller answers for the memory, nothing is kept alive."""
    if len(pair) != 2 or any(isinstance(x, bool) or not hasattr(x, "__index__") for x in pair):
        raise TypeError(f"cannot use {pair!r} as a buffer: a tuple must be (address, length), two ints")
    address, length = operator.index(pair[0]), operator.index(pair[1])
    if length < 0 or address < 0 or address + length > ADDRESS_LIMIT:
        raise ValueError(f"cannot use address {address:#x}, length {length}: outside of the 64-bit address space")
    if address == 0 and length > 0:
        raise ValueError(f"cannot use {length} B at address 0: a null pointer\n  try: the address of allocated memory")
    return BufferInfo(address, length, False, HMEM_SYSTEM, None, 1, (length,), (1,), "B", "(address, length)")


# ---- buffer protocol -------------------------------------------------------------------------------------------------


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


class _Export:
    """A held Py_buffer. A memoryview would do, if it could be made of every exporter (it insists on a format that the
    struct module can spell) and told its address when read-only."""

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


def _from_buffer(obj: object) -> BufferInfo | None:
    if isinstance(obj, ctypes.py_object):  # a ctypes call would be given the object that it refers to
        _refuse_objects(obj)
    if not _check_buffer(obj):
        return None
    try:
        export = _Export(obj, _BUF_STRIDES | _BUF_FORMAT)
    except (BufferError, ValueError, TypeError) as with_format:
        # NumPy has dtypes that PEP 3118 cannot spell (datetime64, ml_dtypes' bfloat16 and float8): without a format
        # then.
        try:
            export = _Export(obj, _BUF_STRIDES)
        except (BufferError, ValueError, TypeError):
            raise BufferError(f"{_name(obj)} does not export its buffer: {with_format}") from with_format
    view = export.view
    shape = tuple(view.shape[: view.ndim]) if view.shape else (view.len // max(view.itemsize, 1),) * bool(view.ndim)
    strides = tuple(view.strides[: view.ndim]) if view.strides else _c_strides(shape, view.itemsize)
    code = view.format.decode() if view.format else _typestr_of(obj)
    exporter = obj.obj if isinstance(obj, memoryview) else obj
    if (
        (view.format and _holds_objects(code))
        or getattr(getattr(exporter, "dtype", None), "hasobject", False) is True
        or _ctypes_holds_objects(type(exporter))
    ):
        _refuse_objects(obj)
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


def _refuse_objects(obj: object) -> NoReturn:
    raise TypeError(
        f"cannot use {_name(obj)} with elements of type object as a buffer: its memory holds pointers of this process\n"
        "  found: Python objects, or NumPy's StringDType, as elements or as a field of them\n"
        "  try: a dtype of numbers, bytes or fixed-width text, or pickle.dumps(...) for a message"
    )


def _holds_objects(code: str) -> bool:
    """PEP 3118: O is a Python object. Field names, between colons, do not count."""
    return "O" in re.sub(r":[^:]*:", "", code)


def _ctypes_holds_objects(kind: Any) -> bool:
    """Is a ctypes type, or one of its fields or elements, a py_object? ctypes gives unions and packed structures the
    format "B", so that their format says nothing."""
    if issubclass(kind, ctypes.py_object):
        return True
    if issubclass(kind, ctypes.Array):
        return _ctypes_holds_objects(kind._type_)
    if issubclass(kind, (ctypes.Structure, ctypes.Union)):
        fields = (field for base in kind.__mro__ for field in base.__dict__.get("_fields_", ()))
        return any(_ctypes_holds_objects(field[1]) for field in fields)
    return False


def _descr_holds_objects(descr: Any) -> bool:
    """The fields of an array interface: (name, typestr or fields, shape), whichever a field gives."""
    if isinstance(descr, str):
        return re.match(r"[<>|=]?O", descr) is not None
    return any(_descr_holds_objects(field[1]) for field in descr if isinstance(field, tuple) and len(field) > 1)


# ---- __array_interface__ and __cuda_array_interface__ ----------------------------------------------------------------


def _interface(obj: object, name: str) -> Mapping[str, Any] | None:
    """The interface's dictionary. Looked up on instances too, as NumPy does; None where there is none."""
    if isinstance(obj, type):
        return None
    try:
        interface = getattr(obj, name)
    except AttributeError:
        return None
    except (RuntimeError, TypeError, ValueError) as reason:  # PyTorch: tensors that require a gradient
        raise BufferError(f"{_name(obj)} does not give its {name}: {reason}") from reason
    if not isinstance(interface, Mapping):
        raise TypeError(f"{name} of {_name(obj)} must be a dict, not {_name(interface)}")
    return interface


def _layout(interface: Mapping[str, Any], obj: object, name: str) -> tuple[int, tuple[int, ...], tuple[int, ...], str]:
    """itemsize, shape, strides and typestr of an interface of either kind."""
    try:
        typestr = str(interface["typestr"])
        shape = tuple(operator.index(n) for n in interface["shape"])
    except (KeyError, TypeError) as reason:
        raise ValueError(
            f"{name} of {_name(obj)} is not valid: {reason!r} (shape and typestr are required)"
        ) from reason
    match = re.fullmatch(r"[<>|=]?([a-zA-Z?])(\d*)", typestr)
    if match is None or match[1] == "t":
        raise ValueError(f"{name} of {_name(obj)} has typestr {typestr!r}: not a whole number of bytes an element")
    if match[1] == "O" or _descr_holds_objects(interface.get("descr") or ()):
        _refuse_objects(obj)
    itemsize = int(match[2] or 1) * (4 if match[1] == "U" else 1)
    if any(n < 0 for n in shape):
        raise ValueError(f"{name} of {_name(obj)} has a negative length: shape {shape}")
    raw = interface.get("strides")
    strides = _c_strides(shape, itemsize) if raw is None else tuple(operator.index(s) for s in raw)
    if len(strides) != len(shape):
        raise ValueError(f"{name} of {_name(obj)}: {len(shape)} lengths but {len(strides)} strides")
    if interface.get("mask") is not None:
        raise BufferError(
            f"cannot use {_name(obj)} as a buffer: it is a masked array\n  try: a.filled(), or its .data and .mask"
        )
    return itemsize, shape, strides, typestr


def _from_array_interface(obj: object) -> BufferInfo | None:
    interface = _interface(obj, "__array_interface__")
    if interface is None:
        return None
    itemsize, shape, strides, typestr = _layout(interface, obj, "__array_interface__")
    data = interface.get("data")
    door = "__array_interface__"
    nbytes = itemsize * _count(shape)
    if isinstance(data, tuple):
        if len(data) != 2:
            raise ValueError(f"{door} of {_name(obj)}: data must be (address, read-only)")
        info = BufferInfo(
            int(data[0] or 0),
            nbytes,
            bool(data[1]),
            HMEM_SYSTEM,
            (obj, interface),
            itemsize,
            shape,
            strides,
            typestr,
            door,
        )
        return _checked(info, obj)
    # Otherwise data is an object with the buffer protocol (or the object itself has it), and there may be an offset.
    source = obj if data is None else data
    inner = _from_buffer(source)
    if inner is None:
        raise ValueError(
            f"{door} of {_name(obj)}: data is neither (address, read-only) nor a buffer, but {_name(source)}"
        )
    offset = int(interface.get("offset", 0))
    last = offset + itemsize + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True) if stride > 0)
    if offset < 0 or (nbytes > 0 and last > inner.nbytes):
        raise ValueError(
            f"{door} of {_name(obj)}: {last} B from offset {offset} on do not fit its data of {inner.nbytes} B"
        )
    return BufferInfo(
        inner.address + offset,
        nbytes,
        inner.readonly,
        HMEM_SYSTEM,
        inner.keepalive,
        itemsize,
        shape,
        strides,
        typestr,
        door,
    )


def _from_cuda_array_interface(obj: object) -> BufferInfo | None:
    """The producer's stream is not waited for: who registers or sends device memory has finished writing it."""
    door = "__cuda_array_interface__"
    interface = _interface(obj, door)
    if interface is None:
        return None
    itemsize, shape, strides, typestr = _layout(interface, obj, door)
    data = interface.get("data")
    if not isinstance(data, tuple) or len(data) != 2:
        raise ValueError(f"{door} of {_name(obj)}: data must be (address, read-only)")
    device_id = DEVICE_ID_UNKNOWN
    if hasattr(obj, "__dlpack_device__"):  # says what this interface leaves out
        device_type, ordinal = obj.__dlpack_device__()
        device_id = int(ordinal) if int(device_type) == _DL_CUDA else DEVICE_ID_UNKNOWN
    info = BufferInfo(
        int(data[0] or 0),
        itemsize * _count(shape),
        bool(data[1]),
        HMEM_CUDA,
        (obj, interface),
        itemsize,
        shape,
        strides,
        typestr,
        door,
        device_id,
        False,
    )
    return _checked(info, obj)


def _checked(info: BufferInfo, obj: object) -> BufferInfo:
    if info.nbytes > 0 and info.address == 0:
        raise ValueError(f"{info.door} of {_name(obj)} has a null pointer for {info.nbytes} B")
    return info


# ---- DLPack ----------------------------------------------------------------------------------------------------------


class _DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", _DLTensor),
    ]


_DL_FLAG_READ_ONLY, _DL_FLAG_IS_COPIED = 1, 2
_DL_CODES = {0: "int", 1: "uint", 2: "float", 3: "handle", 4: "bfloat", 5: "complex", 6: "bool"}  # enum DLDataTypeCode
_DL_HANDLE = 3
_DL_CUDA = 2
_DL_DEVICES = {  # enum DLDeviceType: name, fi_hmem_iface, can the CPU load and store it
    1: ("CPU", HMEM_SYSTEM, True),
    2: ("CUDA", HMEM_CUDA, False),
    3: ("CUDA pinned host", HMEM_SYSTEM, True),
    10: ("ROCm", HMEM_ROCR, False),
    11: ("ROCm pinned host", HMEM_SYSTEM, True),
    13: ("CUDA managed", HMEM_CUDA, True),
    14: ("oneAPI", HMEM_ZE, False),
}

# A capsule keeps a pointer to its name, not a copy: these live as long as the process.
_NAME, _NAME_USED = b"dltensor", b"used_dltensor"
_NAME_VERSIONED, _NAME_VERSIONED_USED = b"dltensor_versioned", b"used_dltensor_versioned"

_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_is_valid.restype = ctypes.c_int
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer.restype = ctypes.c_void_p
_capsule_rename = ctypes.pythonapi.PyCapsule_SetName
_capsule_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_rename.restype = ctypes.c_int

# Called with the GIL held, which every deleter copes with (the usual ones take it themselves, recursively).
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _DLPackHold:
    """A consumed DLPack tensor: its deleter is ours to call, once."""

    def __init__(self, obj: object, managed: int, deleter: int | None) -> None:
        self._obj: object = obj
        self._managed = managed
        self._deleter: Callable[[int], None] | None = _Deleter(deleter) if deleter else None

    def close(self) -> None:
        deleter, self._deleter = self._deleter, None
        if deleter is not None:
            deleter(self._managed)
        self._obj = None

    def __del__(self) -> None:
        self.close()


def _from_dlpack(obj: object) -> BufferInfo | None:
    if isinstance(obj, type) or not hasattr(obj, "__dlpack__") or not hasattr(obj, "__dlpack_device__"):
        return None
    dlpack: Any = obj
    device_type, device_id = (int(x) for x in dlpack.__dlpack_device__())
    if device_type not in _DL_DEVICES:
        known = ", ".join(name for name, _, _ in _DL_DEVICES.values())
        raise BufferError(
            f"cannot use {_name(obj)} as a buffer: its memory is on DLPack device type {device_type}\n"
            f"  known: {known}\n  try: a copy on the host (for example a.cpu())"
        )
    device_name, device, host_access = _DL_DEVICES[device_type]
    capsule = _ask_dlpack(dlpack)
    if _capsule_is_valid(capsule, _NAME_VERSIONED):
        pointer = _capsule_pointer(capsule, _NAME_VERSIONED)
        versioned = _DLManagedTensorVersioned.from_address(pointer)
        _capsule_rename(capsule, _NAME_VERSIONED_USED)  # from here on the deleter is ours, on errors too
        hold = _DLPackHold(obj, pointer, versioned.deleter)
        if versioned.major != 1:
            raise BufferError(
                f"{_name(obj)} gives DLPack version {versioned.major}.{versioned.minor}; known: 1.x and before"
            )
        if versioned.flags & _DL_FLAG_IS_COPIED:
            raise BufferError(
                f"cannot use {_name(obj)} as a buffer: it exports a copy, which a peer's writes would never leave\n"
                "  try: an array whose memory DLPack can share"
            )
        readonly, tensor = bool(versioned.flags & _DL_FLAG_READ_ONLY), versioned.dl_tensor
    elif _capsule_is_valid(capsule, _NAME):
        pointer = _capsule_pointer(capsule, _NAME)
        managed = _DLManagedTensor.from_address(pointer)
        _capsule_rename(capsule, _NAME_USED)
        hold = _DLPackHold(obj, pointer, managed.deleter)
        readonly, tensor = False, managed.dl_tensor
    else:
        raise ValueError(f"__dlpack__ of {_name(obj)} gave no DLPack capsule, or one that has been used already")
    bits = tensor.dtype.bits * tensor.dtype.lanes
    if tensor.dtype.code == _DL_HANDLE:
        _refuse_objects(obj)
    code = f"{_DL_CODES.get(tensor.dtype.code, 'code' + str(tensor.dtype.code))}{tensor.dtype.bits}"
    if tensor.dtype.lanes != 1:
        code += f"x{tensor.dtype.lanes}"
    if bits % 8 != 0 or bits == 0:
        raise BufferError(
            f"cannot use {_name(obj)} of {code} as a buffer: {bits} bits an element\n"
            "  try: a view of whole bytes (uint8)"
        )
    if tensor.device.device_type != device_type:
        raise ValueError(
            f"DLPack of {_name(obj)} contradicts itself: {device_name} asked, type {tensor.device.device_type} given"
        )
    itemsize = bits // 8
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim > 0 else ()
    if tensor.strides and tensor.ndim > 0:
        strides = tuple(stride * itemsize for stride in tensor.strides[: tensor.ndim])
    else:
        strides = _c_strides(shape, itemsize)
    address = (tensor.data or 0) + tensor.byte_offset if tensor.data else 0
    info = BufferInfo(
        address,
        itemsize * _count(shape),
        readonly,
        device,
        hold,
        itemsize,
        shape,
        strides,
        code,
        "DLPack",
        0 if device == HMEM_SYSTEM else device_id,
        host_access,
    )
    return _checked(info, obj)


def _ask_dlpack(dlpack: Any) -> object:
    try:
        try:
            return dlpack.__dlpack__(max_version=(1, 1))
        except TypeError:  # before DLPack 1.0 there was no such argument
            return dlpack.__dlpack__()
    except BufferError:
        raise
    except (RuntimeError, ValueError, AttributeError) as reason:
        raise BufferError(f"{_name(dlpack)} does not give its DLPack tensor: {reason}") from reason
