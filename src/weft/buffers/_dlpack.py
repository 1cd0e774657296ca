"""DLPack tensors. Source: DLPack 1.1 dlpack.h."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ._info import (
    HMEM_CUDA,
    HMEM_ROCR,
    HMEM_SYSTEM,
    HMEM_ZE,
    BufferInfo,
    Hold,
    c_strides,
    checked,
    count,
    name_of,
    refuse_objects,
)


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
_DL_FLOAT8 = {  # enum DLDataTypeCode since 1.1, by the names of ml_dtypes and torch
    7: "float8_e3m4",
    8: "float8_e4m3",
    9: "float8_e4m3b11fnuz",
    10: "float8_e4m3fn",
    11: "float8_e4m3fnuz",
    12: "float8_e5m2",
    13: "float8_e5m2fnuz",
    14: "float8_e8m0fnu",
}
_DL_HANDLE = 3
_DL_DEVICES = {  # enum DLDeviceType: name, fi_hmem_iface, can the CPU load and store it
    1: ("CPU", HMEM_SYSTEM, True),
    2: ("CUDA", HMEM_CUDA, False),
    3: ("CUDA pinned host", HMEM_SYSTEM, True),
    10: ("ROCm", HMEM_ROCR, False),
    11: ("ROCm pinned host", HMEM_SYSTEM, True),
    13: ("CUDA managed", HMEM_CUDA, True),
    14: ("oneAPI", HMEM_ZE, False),
}

# A capsule stores a pointer to its name, not a copy, so these names must live as long as the process.
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

# Called with the GIL held, which every deleter allows (the usual ones take the GIL themselves, recursively).
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _DLPackHold(Hold):
    """A consumed DLPack tensor; `close` calls its deleter once."""

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


def from_dlpack(obj: object) -> BufferInfo | None:
    if isinstance(obj, type) or not hasattr(obj, "__dlpack__") or not hasattr(obj, "__dlpack_device__"):
        return None
    dlpack: Any = obj
    device_type, device_id = (int(x) for x in dlpack.__dlpack_device__())
    if device_type not in _DL_DEVICES:
        known = ", ".join(name for name, _, _ in _DL_DEVICES.values())
        raise BufferError(
            f"cannot use {name_of(obj)} as a buffer: its memory is on DLPack device type {device_type}\n"
            f"  known: {known}\n  try: a copy on the host (for example a.cpu())"
        )
    device_name, device, host_access = _DL_DEVICES[device_type]
    capsule = _ask_dlpack(dlpack)
    if _capsule_is_valid(capsule, _NAME_VERSIONED):
        pointer = _capsule_pointer(capsule, _NAME_VERSIONED)
        versioned = _DLManagedTensorVersioned.from_address(pointer)
        _capsule_rename(capsule, _NAME_VERSIONED_USED)  # now Weft must call the deleter, on errors too
        hold = _DLPackHold(obj, pointer, versioned.deleter)
        if versioned.major != 1:
            raise BufferError(
                f"{name_of(obj)} gives DLPack version {versioned.major}.{versioned.minor}; known: 1.x and before"
            )
        if versioned.flags & _DL_FLAG_IS_COPIED:
            raise BufferError(
                f"cannot use {name_of(obj)} as a buffer: it exports a copy, which a peer's writes would never leave\n"
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
        raise ValueError(f"__dlpack__ of {name_of(obj)} gave no DLPack capsule, or one that has been used already")
    bits = tensor.dtype.bits * tensor.dtype.lanes
    if tensor.dtype.code == _DL_HANDLE:
        refuse_objects(obj)
    code = f"{_DL_CODES.get(tensor.dtype.code, 'code' + str(tensor.dtype.code))}{tensor.dtype.bits}"
    if tensor.dtype.bits == 8:
        code = _DL_FLOAT8.get(tensor.dtype.code, code)
    if tensor.dtype.lanes != 1:
        code += f"x{tensor.dtype.lanes}"
    if bits % 8 != 0 or bits == 0:
        raise BufferError(
            f"cannot use {name_of(obj)} of {code} as a buffer: {bits} bits an element\n"
            "  try: a view of whole bytes (uint8)"
        )
    if tensor.device.device_type != device_type:
        raise ValueError(
            f"DLPack of {name_of(obj)} contradicts itself: {device_name} asked, type {tensor.device.device_type} given"
        )
    itemsize = bits // 8
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim > 0 else ()
    if tensor.strides and tensor.ndim > 0:
        strides = tuple(stride * itemsize for stride in tensor.strides[: tensor.ndim])
    else:
        strides = c_strides(shape, itemsize)
    address = (tensor.data or 0) + tensor.byte_offset if tensor.data else 0
    info = BufferInfo(
        address,
        itemsize * count(shape),
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
    return checked(info, obj)


def _ask_dlpack(dlpack: Any) -> object:
    try:
        try:
            return dlpack.__dlpack__(max_version=(1, 1))
        except TypeError:  # before DLPack 1.0 there was no such argument
            return dlpack.__dlpack__()
    except BufferError:
        raise
    except (RuntimeError, ValueError, AttributeError) as reason:
        raise BufferError(f"{name_of(dlpack)} does not give its DLPack tensor: {reason}") from reason
