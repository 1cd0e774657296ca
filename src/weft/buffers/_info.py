"""The result of every protocol, and the checks and refusals that the protocols share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

HMEM_SYSTEM, HMEM_CUDA, HMEM_ROCR, HMEM_ZE = 0, 1, 2, 3  # enum fi_hmem_iface, fi_mr(3)
DEVICE_ID_UNKNOWN = -1  # the CUDA array interface does not give the device of its pointer
ADDRESS_LIMIT = 1 << 64
DLPACK_CUDA = 2  # enum DLDeviceType


class NotContiguous(BufferError):
    """The array is not one piece of memory, and the call needs one."""


class ReadOnly(BufferError):
    """The memory is read-only, and the caller wants to write to it (fi_mr(3): FI_EACCES)."""


class Hold:
    """An export; `close` releases it once."""

    def close(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class BufferInfo:
    """Memory behind a Python object.

    Attributes:
        address: Address of the first byte (of the first element if strides are negative); may be 0 if nbytes is 0.
        nbytes: itemsize times the number of elements.
        readonly: True if the exporter forbids writing. (An unversioned DLPack capsule cannot say, and counts as
            writable.)
        device: Enum fi_hmem_iface: 0 system, 1 CUDA, 2 ROCR, 3 ZE. Pinned host memory is system.
        device_id: Ordinal of the device; -1 if the exporter does not say, 0 for system memory.
        host_access: True if the CPU can load and store it: system, pinned and managed memory.
        keepalive: Keep a reference while the memory is used; dropping the last reference releases the export.
        shape: In elements; () for a scalar.
        strides: In bytes; () for a scalar.
        format: PEP 3118 or array-interface code, "" if unknown.
        door: The protocol that supplied the description.
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
        """Release the export now instead of with the last reference. The address must no longer be used."""
        if isinstance(self.keepalive, Hold):
            self.keepalive.close()


class ScatterList(list[tuple[int, int]]):
    """(address, length) pieces in the C order of an array's elements; adjacent neighbours are joined.

    `info` describes the whole array; keep `info` or this list while the pieces are used.
    """

    info: BufferInfo

    def __init__(self, pieces: list[tuple[int, int]], info: BufferInfo) -> None:
        super().__init__(pieces)
        self.info = info


def is_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """C-contiguity as NumPy defines it: the stride of a dimension shorter than 2 does not matter, and no stride
    matters in an array without elements."""
    if 0 in shape:
        return True
    expected = itemsize
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n > 1:
            if stride != expected:
                return False
            expected *= n
    return True


def name_of(obj: object) -> str:
    kind = type(obj)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def c_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides = []
    step = itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def count(shape: Sequence[int]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def refuse_objects(obj: object) -> NoReturn:
    raise TypeError(
        f"cannot use {name_of(obj)} with elements of type object as a buffer: "
        "its memory holds pointers of this process\n"
        "  found: Python objects, or NumPy's StringDType, as elements or as a field of them\n"
        "  try: a dtype of numbers, bytes or fixed-width text, or pickle.dumps(...) for a message"
    )


def checked(info: BufferInfo, obj: object) -> BufferInfo:
    if info.nbytes > 0 and info.address == 0:
        raise ValueError(f"{info.door} of {name_of(obj)} has a null pointer for {info.nbytes} B")
    return info
