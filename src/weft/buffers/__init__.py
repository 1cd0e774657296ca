"""Address and length of arrays.

`describe` accepts objects with the buffer protocol (bytes, bytearray, memoryview, array.array, mmap, ctypes, NumPy),
`__array_interface__`, `__cuda_array_interface__` or DLPack (PyTorch, CuPy, JAX), and a bare `(address, length)`:

    info = describe(array, writable=True)
    info.address, info.nbytes, info.readonly, info.device, info.keepalive

Memory whose elements are Python objects (dtype object, StringDType, a structure with such a field, ctypes' py_object)
raises TypeError: the elements are pointers of this process, and a peer's write would crash it. Memory given as
`(address, length)` is not checked.

No data is copied. An array that is not contiguous raises NotContiguous, with a remedy in the message; `scatter_list`
returns its pieces instead. While `keepalive` exists, the memory stays valid, and a buffer-protocol export stays open (a
bytearray cannot be resized, a memoryview not released). The package imports no array library. The extension has a fast
path in C++ for the common kinds; this package handles all kinds and is the reference.

Protocols are tried in this order: `(address, length)`, buffer protocol, `__array_interface__`,
`__cuda_array_interface__`, DLPack. Host protocols come first because the device protocols may synchronize the device.

Source: PEP 3118; the NumPy array interface, version 3; the CUDA array interface, version 3; DLPack 1.1 dlpack.h.
"""

from __future__ import annotations

import operator
from itertools import product
from typing import Any, NoReturn

from ..errors import InvalidArgument
from ._dlpack import from_dlpack
from ._export import from_buffer
from ._info import ADDRESS_LIMIT, HMEM_SYSTEM, BufferInfo, name_of
from ._info import DEVICE_ID_UNKNOWN as DEVICE_ID_UNKNOWN
from ._info import HMEM_CUDA as HMEM_CUDA
from ._info import HMEM_ROCR as HMEM_ROCR
from ._info import HMEM_ZE as HMEM_ZE
from ._info import NotContiguous as NotContiguous
from ._info import ReadOnly as ReadOnly
from ._info import ScatterList as ScatterList
from ._info import is_contiguous as is_contiguous
from ._interface import from_array_interface, from_cuda_array_interface

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


def describe(obj: object, writable: bool = False) -> BufferInfo:
    """Address and length of the memory behind `obj`, which must be one contiguous piece.

    Args:
        obj: See the module's docstring; for `(address, length)` two ints, length in bytes.
        writable: True: the caller will write to the memory, so read-only memory raises ReadOnly.

    Raises:
        NotContiguous: The memory is not one piece (a BufferError).
        ReadOnly: The memory is read-only (a BufferError).
        BufferError: The exporter refuses, or Weft does not know the kind of memory.
        TypeError: `obj` is not an array.
        ValueError: An invalid address, or contradictory fields.
    """
    info = _inspect(obj)
    if writable and info.readonly:
        _refuse_readonly(obj, info)
    if not info.contiguous:
        _refuse_strides(obj, info)
    return info


def scatter_list(obj: object, writable: bool = False) -> ScatterList:
    """The memory behind `obj` as (address, length) pieces, in C order; one piece if it is contiguous, none if empty.

    Raises like `describe`, except that strides are allowed. Writable memory whose elements overlap by a stride of 0 (a
    broadcast) raises ValueError, because the result would depend on the order of the writes.
    """
    info = _inspect(obj)
    if writable and info.readonly:
        _refuse_readonly(obj, info)
    if info.nbytes == 0:
        return ScatterList([], info)
    dimensions = [(n, stride) for n, stride in zip(info.shape, info.strides, strict=True) if n > 1]
    if writable and any(stride == 0 for _, stride in dimensions):
        raise ValueError(
            f"cannot write to {name_of(obj)}: a stride of 0 makes elements share memory\n"
            f"  found: shape {info.shape}, strides {info.strides} bytes\n"
            f"  try: numpy.ascontiguousarray(a), which gives each element its own memory"
        )
    block = info.itemsize
    while dimensions and dimensions[-1][1] == block:  # join the contiguous inner dimensions
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
    """`describe` in the form that the extension calls: (address, nbytes, readonly, device, keepalive).

    None is C's NULL: a call that needs memory refuses it with FI_EINVAL (InvalidArgument), as a provider does.
    """
    if obj is None:
        raise InvalidArgument("a buffer is None (NULL)\n  try: memory, or b'' where a transfer of no bytes is meant")
    info = describe(obj, writable)
    return info.address, info.nbytes, info.readonly, info.device, info.keepalive


def _inspect(obj: object) -> BufferInfo:
    if isinstance(obj, BufferInfo):
        return obj
    if isinstance(obj, tuple):
        return from_address(obj)
    if isinstance(obj, str):
        raise TypeError("cannot use str as a buffer: text has no defined bytes\n  try: text.encode()")
    first_refusal: Exception | None = None
    for door in (from_buffer, from_array_interface, from_cuda_array_interface, from_dlpack):
        try:
            info = door(obj)
        except BufferError as refusal:  # another protocol may work; if none does, the first refusal is raised
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
        f"cannot use {name_of(obj)} as a buffer\n"
        "  looked for: buffer protocol, __array_interface__, __cuda_array_interface__, DLPack: it has none" + hint
    )


def _refuse_readonly(obj: object, info: BufferInfo) -> NoReturn:
    remedy = {
        "bytes": "bytearray(data)",
        "mmap.mmap": "mmap.mmap(..., access=mmap.ACCESS_WRITE)",
        "memoryview": "a memoryview of writable memory (bytearray, array.array)",
    }.get(name_of(obj), "a.copy(), or a.flags.writeable = True where the array owns its memory")
    raise ReadOnly(
        f"cannot write to {name_of(obj)} of {info.nbytes} B: its memory is read-only (says its {info.door})\n"
        f"  try: {remedy}"
    )


def _refuse_strides(obj: object, info: BufferInfo) -> NoReturn:
    message = (
        f"cannot use {name_of(obj)} as one buffer: it is not C-contiguous\n"
        f"  found: shape {info.shape}, strides {info.strides} bytes, itemsize {info.itemsize}\n"
        "  try: numpy.ascontiguousarray(a) (a copy that you keep), or weft.buffers.scatter_list(a): its pieces,\n"
        "       for the descriptors of a vectored call over the memory behind it"
    )
    if is_contiguous(info.shape[::-1], info.strides[::-1], info.itemsize):
        message += "\n  or: a.T, which is C-contiguous and the same memory (the array is in Fortran order)"
    raise NotContiguous(message)


def from_address(pair: tuple[Any, ...]) -> BufferInfo:
    """A virtual address, as in fi_rma(3). The caller keeps the memory valid."""
    if len(pair) != 2 or any(isinstance(x, bool) or not hasattr(x, "__index__") for x in pair):
        raise TypeError(f"cannot use {pair!r} as a buffer: a tuple must be (address, length), two ints")
    address, length = operator.index(pair[0]), operator.index(pair[1])
    if length < 0 or address < 0 or address + length > ADDRESS_LIMIT:
        raise ValueError(f"cannot use address {address:#x}, length {length}: outside of the 64-bit address space")
    if address == 0 and length > 0:
        raise ValueError(f"cannot use {length} B at address 0: a null pointer\n  try: the address of allocated memory")
    return BufferInfo(address, length, False, HMEM_SYSTEM, None, 1, (length,), (1,), "B", "(address, length)")
