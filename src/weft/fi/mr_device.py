"""Regions of device memory: checks of the declared iface and device against the runtime, and DMA-bufs.

Source: fi_mr(3) "iface", "device", "dmabuf", FLAGS.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import _nic
from ..flags import Flag, HmemIface, MrFlag, MrMode
from ..memory import hmem
from .mr_attr import PLAIN, Extra, MrAttr, MrDmabuf
from .rules import Rule

if TYPE_CHECKING:
    from .domain import Domain

DEVICE_FLAGS = MrFlag.MR_DMABUF | MrFlag.HMEM_DEVICE_ONLY | MrFlag.HMEM_HOST_ALLOC


def _address_of(buffer: Any) -> int:
    return int(_nic.describe_buffer(buffer)[0])


def refuse_undeclared(domain: Domain, op: str, buffers: Sequence[Any]) -> None:
    """Under FI_MR_HMEM, refuse device memory that is registered without its interface."""
    for buffer in buffers:
        found = hmem.locate(_address_of(buffer))
        if found is not None and found.kind != "host":
            raise domain._refuse(
                Rule.MR_DEVICE,
                f"{op}: the buffer is {found.kind} memory of {found.iface.name} {found.device}, which the call omits\n"
                "  rule: under MR_HMEM device memory is registered with fi_mr_regattr, with iface and device\n"
                f"  try: mr_regattr(fi.MrAttr(..., iface=fi.{found.iface.name}, device={found.device}))",
            )


def of_device(flags: Any) -> bool:
    """True if the flags of a registration contain a flag of device memory; False for flags that are no number."""
    return isinstance(flags, int) and bool(flags & int(DEVICE_FLAGS))


def declared(domain: Domain, op: str, attr: MrAttr, iov: Sequence[Any], flags: int) -> Extra:
    """Check iface, device and flags against the runtime's facts about the memory."""
    if not domain._hmem or domain.policy.regions.memory == "detected":
        return PLAIN
    if attr.iface not in HmemIface.__members__.values():
        raise domain._refuse(Rule.MR_DEVICE, f"{op}: iface {attr.iface!r} is not one of FI_HMEM_*")
    iface = HmemIface(attr.iface)
    only, host = bool(flags & MrFlag.HMEM_DEVICE_ONLY), bool(flags & MrFlag.HMEM_HOST_ALLOC)
    if only and host:
        raise domain._refuse(Rule.MR_DEVICE_FLAGS, f"{op}: HMEM_DEVICE_ONLY and HMEM_HOST_ALLOC exclude each other")
    if iface == HmemIface.HMEM_SYSTEM:
        if only or host:
            raise domain._refuse(
                Rule.MR_DEVICE,
                f"{op}: {MrFlag(flags & int(DEVICE_FLAGS))!s} with iface HMEM_SYSTEM\n"
                "  rule: the flags do not replace iface, which names the interface of the device, fi_mr(3) FLAGS",
            )
        if domain.mr_mode & MrMode.MR_HMEM:
            refuse_undeclared(domain, op, iov)
        return PLAIN
    state = hmem.require(iface, op)
    number = hmem.device_number(iface, attr.device)
    # A number of Level Zero contains the number of the driver: only the runtime knows which numbers exist.
    known = iface == HmemIface.HMEM_ZE or 0 <= number < state.devices
    if not host and not known:
        raise domain._refuse(
            Rule.MR_DEVICE, f"{op}: device {number} of {iface.name}; there are {state.devices}, numbered from 0"
        )
    for buffer in iov:
        address = _address_of(buffer)
        found = hmem.locate(address)
        what = f"{found.kind} memory of {found.iface.name} {found.device}" if found else "no device memory there"
        if host and (found is None or found.kind == "host"):
            continue
        wrong = (
            host
            or found is None
            or found.iface != iface
            or (only and found.kind != "device")
            or (found.kind == "device" and found.device != number)
        )
        if wrong:
            said = "HMEM_HOST_ALLOC" if host else f"device {number}" + (", HMEM_DEVICE_ONLY" if only else "")
            raise domain._refuse(
                Rule.MR_DEVICE,
                f"{op}: the buffer at {address:#x} is declared as {iface.name}, {said}; the runtime reports {what}\n"
                "  try: weft.memory.hmem.locate(address), or iface HMEM_SYSTEM for memory of the host",
            )
    return Extra(by_owner=host, owned=host)


def map_dmabuf(domain: Domain, op: str, attr: MrAttr) -> tuple[Any, Extra]:
    """The buffer to register for the DMA-buf of an MrAttr, and its properties (`dmabuf` is read, mr_iov is not)."""
    piece = attr.dmabuf
    if not isinstance(piece, MrDmabuf):
        raise domain._refuse(Rule.MR_DMABUF, f"{op}: under MR_DMABUF, dmabuf has to be a MrDmabuf, not {piece!r}")
    if attr.base_mr is not None:
        raise domain._refuse(Rule.MR_DMABUF, f"{op}: base_mr has to be None under MR_DMABUF, fi_mr(3) base_mr")
    try:
        size = os.lseek(piece.fd, 0, os.SEEK_END)
    except (OSError, OverflowError) as e:
        raise domain._refuse(Rule.MR_DMABUF, f"{op}: fd {piece.fd} is no DMA-buf: {e}") from None
    if (piece.base_addr or 0) + piece.offset + piece.len >= 1 << 64:
        raise domain._refuse(
            Rule.MR_DMABUF,
            f"{op}: {piece.len} B at offset {piece.offset} from {piece.base_addr or 0:#x} pass the end of the address "
            "space",
        )
    if piece.len <= 0 or piece.offset < 0 or piece.offset + piece.len > size:
        raise domain._refuse(
            Rule.MR_DMABUF,
            f"{op}: {piece.len} B from offset {piece.offset} of a DMA-buf of {size} B\n"
            "  rule: at least 1 byte, within the DMA-buf, fi_mr(3) dmabuf",
        )
    if piece.base_addr is not None and piece.base_addr % mmap.PAGESIZE:
        raise domain._refuse(
            Rule.MR_DMABUF, f"{op}: base_addr {piece.base_addr:#x} is not page-aligned, fi_mr(3) dmabuf"
        )
    start = (piece.base_addr or 0) + piece.offset
    found = hmem.locate(start) if piece.base_addr is not None else None
    if found is not None and start + piece.len <= found.base + found.length:
        # This process has mapped the memory already: the device's runtime copies it.
        return (start, piece.len), Extra(base_addr=start)
    first = piece.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    writes = attr.access & (Flag.REMOTE_WRITE | Flag.READ | Flag.RECV)
    try:
        window = mmap.mmap(
            piece.fd,
            piece.offset + piece.len - first,
            prot=mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0),
            offset=first,
        )
    except (OSError, ValueError) as e:
        raise domain._refuse(
            Rule.MR_DMABUF_MAP,
            f"{op}: the DMA-buf of fd {piece.fd} cannot be mapped ({e}), and base_addr names no memory of a device's "
            "runtime in this process\n"
            "  try: base_addr of the allocation, in the process that made it",
        ) from None
    mapped = memoryview(window)[piece.offset - first :]
    # If the kernel reads the memory for us, it returns an error when the exporter removes pages.
    readable = domain.policy.nic.missing_page(_address_of(mapped), 1) is None
    return mapped, Extra(by_owner=True, unowned=readable, base_addr=start)
