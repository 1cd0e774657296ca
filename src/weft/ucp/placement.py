"""Allocation of memory at a chosen or any address: MEM_MAP_ALLOCATE, hints and MEM_MAP_FIXED.

Host memory comes from the NIC's segments, which peers reach by load and store. MEM_MAP_FIXED replaces mappings at the
address, as mmap's MAP_FIXED does, but never pages that hold data nor a mapped region, whose contents would be lost. It
may replace reserved addresses (PROT_NONE, or private memory that was never touched).

Source: UCP of UCX 1.17, "ucp_mem_map", "UCP memory mapping flags".
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from .. import _nic, _process, buffers, errors
from ..flags import HmemIface
from ..memory import hmem
from .constants import MemoryType
from .status import Status, UcsError, of, unsupported

_PAGE = os.sysconf("SC_PAGESIZE")
_TYPES = {
    (HmemIface.HMEM_CUDA, "device"): MemoryType.CUDA,
    (HmemIface.HMEM_CUDA, "managed"): MemoryType.CUDA_MANAGED,
    (HmemIface.HMEM_ROCR, "device"): MemoryType.ROCM,
    (HmemIface.HMEM_ROCR, "managed"): MemoryType.ROCM_MANAGED,
    (HmemIface.HMEM_ZE, "device"): MemoryType.ZE_DEVICE,
    (HmemIface.HMEM_ZE, "managed"): MemoryType.ZE_MANAGED,
}


def type_of(address: int) -> MemoryType:
    """The type of the memory at an address."""
    found = hmem.locate(address)
    return MemoryType.HOST if found is None else _TYPES.get((found.iface, found.kind), MemoryType.HOST)


class Allocated:
    """Memory that mem_map allocated. `buffer` is the registered range."""

    method = "memfd"  # the word that ucp_mem_print_info prints

    def __init__(self, memory: _nic.Allocation) -> None:
        self._memory: _nic.Allocation | None = memory
        self.buffer: Any = memory
        self.address = memory.address
        self.nbytes = memory.nbytes

    def view(self) -> memoryview:
        """The memory as bytes. The memory lives as long as any view of it."""
        return memoryview(self._memory)  # type: ignore[arg-type]

    def free(self) -> None:
        """Free the memory when its last view is gone."""
        self._memory = self.buffer = None


class _DeviceMemory:
    """Owns device memory, and frees it with the last reference; an operation under way holds a reference."""

    def __init__(self, iface: HmemIface, managed: bool, nbytes: int) -> None:
        self._nic, self._iface = _process.nic(), int(iface)
        self.address = self._nic.hmem_alloc(self._iface, nbytes, managed)

    def __del__(self) -> None:
        with contextlib.suppress(
            errors.FabricError, AttributeError
        ):  # the NIC is closed, or its process forked this one
            self._nic.hmem_free(self._iface, self.address)


class DeviceAllocated(Allocated):
    """Memory of a device, allocated by the device's runtime."""

    def __init__(self, iface: HmemIface, managed: bool, nbytes: int) -> None:
        memory = _DeviceMemory(iface, managed, nbytes)
        self.address = memory.address
        self.nbytes = nbytes
        self.buffer = buffers.BufferInfo(
            memory.address, nbytes, False, int(iface), memory, 1, (nbytes,), (1,), "B", "device runtime"
        )
        self.method = iface.name.removeprefix("HMEM_").lower()

    def view(self) -> memoryview:
        raise unsupported("the CPU cannot access device memory")

    def free(self) -> None:
        self.buffer = None


def types_here() -> list[MemoryType]:
    """The types of memory that can be allocated in this process."""
    found = hmem.interfaces()
    return [
        MemoryType.HOST,
        *(kind for (iface, _), kind in _TYPES.items() if iface != HmemIface.HMEM_ZE and found[iface].ready),
    ]


def allocate(length: int, address: int, fixed: bool, memory_type: int, lazy: bool) -> Allocated:
    """Memory of whole pages that reads as zero.

    Args:
        address: The preferred address, or with `fixed` the required address; 0: any.
        lazy: A page exists only after its first access.

    Raises:
        UcsError: NO_MEMORY: the system refuses the memory or the address.
    """
    nbytes = -(-length // _PAGE) * _PAGE
    if memory_type not in (MemoryType.HOST, MemoryType.UNKNOWN):
        return _allocate_device(nbytes, MemoryType(memory_type))
    if fixed and address == 0:
        raise _no_memory(nbytes, "MEM_MAP_FIXED at address 0: nothing can be mapped there")
    available = _available()
    if nbytes > available:
        raise _no_memory(nbytes, f"the system has {available} B left")
    if fixed:
        _may_replace(address, nbytes)
    try:
        memory = _process.nic().alloc(nbytes, address=address & -_PAGE, fixed=fixed, fresh=True)
    except errors.FabricError as reason:
        raise _no_memory(nbytes, reason.message) from None
    if not lazy and not _nic.populate(memory.address, nbytes):
        raise _no_memory(nbytes, "the system has no pages for it")
    return Allocated(memory)


def _no_memory(nbytes: int, why: str) -> UcsError:
    return UcsError(Status.ERR_NO_MEMORY, f"mem_map: {nbytes} B cannot be allocated: {why}")


def _allocate_device(nbytes: int, kind: MemoryType) -> Allocated:
    iface = next((key[0] for key, value in _TYPES.items() if value == kind), None)
    if iface is None or iface == HmemIface.HMEM_ZE:
        raise _no_memory(nbytes, f"Weft has no way to allocate {kind.text} memory")
    found = hmem.interfaces()[iface]
    if not found.ready:
        raise _no_memory(nbytes, f"no {kind.text} memory here: {found.why}")
    try:
        return DeviceAllocated(iface, kind in (MemoryType.CUDA_MANAGED, MemoryType.ROCM_MANAGED), nbytes)
    except errors.FabricError as reason:
        raise of(reason) from None


def _available() -> int:
    """Bytes that the system can provide without swapping; the limit of an allocation."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


def _may_replace(address: int, nbytes: int) -> None:
    """Raise UcsError (NO_MEMORY) if pages of the range hold data, or are mapped for peers."""
    end = address + nbytes
    region = _process.nic().region_in(address, nbytes)
    if region is not None:
        raise _no_memory(
            nbytes,
            f"MEM_MAP_FIXED: {region[1]} B at {region[0]:#x} are a mapped region\n"
            "  rule: a region that peers may access is not replaced, even if its pages were never touched\n"
            "  try: another address, or mem_unmap of that region first",
        )
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            span, perms, _, _, inode, *name = line.split(None, 5)
            low, high = (int(part, 16) for part in span.split("-"))
            if high <= address or low >= end:
                continue
            if perms.startswith("---p") and inode == "0":
                continue
            low, high = max(low, address), min(high, end)
            if perms[3] == "p" and inode == "0" and not name and not _resident(low, high - low):
                continue
            what = name[0].strip() if name else "memory in use"
            raise _no_memory(
                nbytes,
                f"MEM_MAP_FIXED: pages at {low:#x} hold data ({perms}, {what}), which would be lost\n"
                "  rule: free addresses, or reserved ones (PROT_NONE, or private memory that was never touched)\n"
                "  try: another address, or munmap them first",
            )


def _resident(address: int, nbytes: int) -> bool:
    """Whether any page of the range exists, in memory or swapped out."""
    pages = nbytes // _PAGE
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(address // _PAGE * 8)
        while pages:
            data = file.read(min(pages, 1 << 16) * 8)
            if not data:
                return True
            entries = memoryview(data).cast("Q")
            if any(entry >> 62 for entry in entries):  # bit 63: present, bit 62: swapped
                return True
            pages -= len(entries)
    return False
