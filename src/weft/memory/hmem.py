"""Device memory interfaces (FI_HMEM): which exist, which work on this machine, and how devices are numbered.

`interfaces` tells of each interface whether it is ready, how many devices it has, and what is missing. `export_dmabuf`
exports device memory as a DMA-buf, for FI_MR_DMABUF.

Runtimes are loaded by name when a domain is opened with `fi.HMEM`, and only then: Weft installs and runs without them.
The NIC does the copies (cpp/mem/device.hpp).

| interface | library               | support in Weft                                                                  |
|-----------|-----------------------|----------------------------------------------------------------------------------|
| CUDA      | `libcuda.so.1`        | device, managed and pinned memory; IPC between processes; DMA-buf export         |
| ROCR      | `libhsa-runtime64.so.1` | device and pinned memory; IPC; DMA-buf export. Never run on a real device      |
| ZE        | `libze_loader.so.1`   | device, shared and host memory; DMA-buf export. Never run on a real device       |
| NEURON    | `libnrt.so.1`         | detection and device numbers; no data path (its memory has no addresses to copy) |
| SYNAPSEAI | `libSynapse.so`       | detection and device numbers; no data path                                       |

Source: fi_mr(3) "iface", "device" and NOTES.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _process, errors
from ..flags import HmemIface

if TYPE_CHECKING:
    from .._nic import Nic

__all__ = ["Interface", "Memory", "device_number", "export_dmabuf", "interfaces", "load", "locate", "require"]


class Interface(NamedTuple):
    """A device memory interface and whether it works in this process.

    Attributes:
        iface: Enum fi_hmem_iface.
        ready: True if memory of the interface's devices can be registered and transferred.
        devices: Number of devices that the runtime sees; 0 if the interface is not ready.
        library: The library that was looked for.
        why: If the interface is not ready: what was found and what to do.
    """

    iface: HmemIface
    ready: bool
    devices: int
    library: str
    why: str = ""


class Memory(NamedTuple):
    """The allocation around an address.

    Attributes:
        iface: Interface of the device that owns the memory.
        device: Number of the device.
        kind: "device" (the CPU cannot load or store it), "managed" (moves on demand) or "host" (pinned host memory of
            the device's runtime).
        base: Virtual address.
        length: Bytes.
    """

    iface: HmemIface
    kind: str
    device: int
    base: int
    length: int


_LIBRARIES = {
    HmemIface.HMEM_CUDA: ("libcuda.so.1", "the NVIDIA driver installs it"),
    HmemIface.HMEM_ROCR: ("libhsa-runtime64.so.1", "ROCm's package hsa-rocr installs it"),
    HmemIface.HMEM_ZE: ("libze_loader.so.1", "the package level-zero installs it"),
    HmemIface.HMEM_NEURON: ("libnrt.so.1", "the AWS Neuron runtime installs it"),
    HmemIface.HMEM_SYNAPSEAI: ("libSynapse.so", "Habana's package habanalabs-graph installs it"),
}
_DATA_PATH = (HmemIface.HMEM_CUDA, HmemIface.HMEM_ROCR, HmemIface.HMEM_ZE)

_loaded: tuple[Nic, tuple[Interface, ...]] | None = None


def load(nic: Nic) -> tuple[Interface, ...]:
    """Load every runtime of this machine into a NIC, once; returns the state of each interface.

    Environment: `WEFT_CUDA_LIBRARY`, `WEFT_ROCR_LIBRARY` and `WEFT_ZE_LIBRARY` select other libraries;
    `FI_HMEM_DISABLE_P2P` forbids device peer-to-peer. Raises InvalidArgument for a bad value.
    """
    global _loaded
    if _loaded is None or _loaded[0] is not nic:
        from .. import settings

        s = settings.load()
        nic.hmem_p2p(not s.FI_HMEM_DISABLE_P2P)
        chosen = {
            HmemIface.HMEM_CUDA: s.WEFT_CUDA_LIBRARY,
            HmemIface.HMEM_ROCR: s.WEFT_ROCR_LIBRARY,
            HmemIface.HMEM_ZE: s.WEFT_ZE_LIBRARY,
        }
        _loaded = (nic, (_SYSTEM, *(_load(nic, iface, chosen.get(iface, "")) for iface in _LIBRARIES)))
    return _loaded[1]


_SYSTEM = Interface(HmemIface.HMEM_SYSTEM, True, 0, "")


def _load(nic: Nic, iface: HmemIface, chosen: str) -> Interface:
    library, source = _LIBRARIES[iface]
    library = chosen or library
    if iface in _DATA_PATH:
        why = nic.hmem_load(int(iface), library)
        if why is None:
            return Interface(iface, True, nic.hmem_devices(int(iface)) or 0, library)
        return Interface(iface, False, 0, library, f"{why}; {source}")
    try:
        ctypes.CDLL(library)
    except OSError as e:
        return Interface(iface, False, 0, library, f"the runtime's library could not be loaded: {e}; {source}")
    return Interface(iface, False, 0, library, f"{library} is here, and this release of Weft has no data path to it")


def interfaces() -> tuple[Interface, ...]:
    """The state of all interfaces in this process, by number. Loads the runtimes that this machine has."""
    return load(_process.nic())


def require(iface: HmemIface, op: str) -> Interface:
    """The interface if it is ready. Otherwise raises NoSys, which says what was looked for and what to do."""
    found = interfaces()[iface]
    if not found.ready:
        raise errors.NoSys(
            f"{op}: no device memory of interface {iface.name} here\n"
            f"  found: {found.why}\n"
            "  try: register a copy in host memory (iface HMEM_SYSTEM)"
        )
    return found


def device_number(iface: int, device: int) -> int:
    """The device number in fi_mr_attr.device, read as the union member of an interface.

    Args:
        device: The union's 64 bits. For CUDA (the CUdevice), ZE (`fi.hmem_ze_device`), NEURON, SYNAPSEAI and ROCR the
            number is the low 32 bits as a signed int; for FI_HMEM_SYSTEM and unknown interfaces all 64 bits
            ("reserved").

    Raises:
        InvalidArgument: The value has more than 64 bits.

    Source: fi_mr(3) "device".
    """
    if not -(1 << 63) <= device < 1 << 64:
        raise errors.InvalidArgument(f"device {device:#x} does not fit the 64 bits of fi_mr_attr.device")
    if iface in _LIBRARIES:
        low = device & 0xFFFFFFFF
        return low - (1 << 32) if low >> 31 else low
    return device & 0xFFFFFFFFFFFFFFFF


def locate(address: int) -> Memory | None:
    """The device allocation around a virtual address; None for plain host memory."""
    found = _process.nic().hmem_find(address)
    return None if found is None else Memory(HmemIface(found[0]), *found[1:])


def export_dmabuf(buffer: Any) -> tuple[int, int]:
    """A DMA-buf of device memory, as (descriptor, offset of the buffer in the DMA-buf), for MrDmabuf.

    Args:
        buffer: An array in device memory, or (address, length). The call exports the whole allocation.

    The caller closes the descriptor. The memory stays valid while the descriptor or the allocation is open.

    Raises:
        InvalidArgument: `buffer` is not device memory.
        NotSupported: The driver or the device cannot export the allocation.

    Source: fi_mr(3) "fi_mr_dmabuf".
    """
    from .. import buffers

    interfaces()
    info = buffers.describe(buffer)
    found = locate(info.address)
    if found is None or found.kind != "device":
        raise errors.InvalidArgument(
            f"export_dmabuf: {info.nbytes} B at {info.address:#x} are "
            f"{'no device memory' if found is None else found.kind + ' memory'}; only a device's own is exported"
        )
    fd = _process.nic().hmem_dmabuf(int(found.iface), found.base, found.length)
    return fd, info.address - found.base
