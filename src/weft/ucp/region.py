"""Mapped memory of this process: regions of the NIC's memory table, and memory of no bytes.

Source: UCP of UCX 1.17, "ucp_mem_map" and the routines after it.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from typing import TYPE_CHECKING, Any

from .. import _keys, _nic, _process, errors
from . import placement
from .constants import MemoryType, Prot
from .memh import MemHandle
from .packed import PackedBuffer
from .params import MemMapParams
from .status import invalid, of, unsupported

if TYPE_CHECKING:
    from .context import Context

PROT_ALL = int(Prot.LOCAL_READ | Prot.LOCAL_WRITE | Prot.REMOTE_READ | Prot.REMOTE_WRITE)
ACCESS_OF = {
    bits: sum(flag for prot, flag in _keys.PROT.items() if bits & prot)
    for bits in (a | b | c | d for a in (0, 1) for b in (0, 2) for c in (0, 256) for d in (0, 512))
}
_PROT_OF = {access: Prot(bits) for bits, access in ACCESS_OF.items()}
ACCESS_ALL = ACCESS_OF[PROT_ALL]
_NOWHERE = _keys.Place("", 0, 0, 0, 0)


class Region(_nic.MemoryRegionCore, MemHandle):
    """Registered memory of this process. For plain buffers the extension makes the object, without extra attributes."""

    flags = 0
    _closed: bool
    _allocation: placement.Allocated | None = None

    def __init__(
        self, context: Context, buffer: Any, prot: int, symmetric: bool, allocation: placement.Allocated | None
    ) -> None:
        access = ACCESS_OF[prot & PROT_ALL]
        if symmetric:
            address, length = _nic.describe_buffer(buffer)[:2]
            wanted = _symmetric_key(address, length, prot)
            try:
                _nic.MemoryRegionCore.__init__(self, context, (buffer,), access=access, requested_key=wanted)
                self.flags = _keys.SYMMETRIC
            except errors.NoKey:  # this layout is mapped already: SYMMETRIC_RKEY is a hint
                symmetric = False
        if not symmetric:
            key = context.take_key()
            _nic.MemoryRegionCore.__init__(self, context, (buffer,), access=access, requested_key=key)
        self.domain = context  # enters it into the context's list
        if allocation is not None:
            self._allocation = allocation
            self._special = True  # the extension's close() then calls this class's _close()

    @property
    def context(self) -> Context:
        return self.domain  # type: ignore[no-any-return]

    @property
    def prot(self) -> Prot:
        return _PROT_OF[self.access & ACCESS_ALL]

    @property
    def memory_type(self) -> MemoryType:
        return MemoryType.HOST if self.iface == 0 else placement.type_of(self.address)

    @property
    def unmapped(self) -> bool:
        return self._closed

    def _unmap(self) -> None:
        try:
            self.close()
        except errors.FabricError as reason:
            raise of(reason) from None

    def _close(self) -> None:
        if self._closed:
            return
        self.close_core()
        self._closed = True
        allocation, self._allocation = self._allocation, None
        if allocation is not None:
            allocation.free()

    def _view(self) -> memoryview:
        if self._allocation is not None:
            return self._allocation.view()
        bare = (ctypes.c_char * self.length).from_address(self.address)
        bare._held = _nic.region_exporters(self)  # type: ignore[attr-defined]
        return memoryview(bare).cast("B")

    @property
    def fi_key(self) -> tuple[int, int]:
        self._check("fi_key")
        if not self.prot & (Prot.REMOTE_READ | Prot.REMOTE_WRITE):
            raise invalid(
                f"fi_key: {self!r} gives peers no rights\n  try: map it with MEM_MAP_PROT_REMOTE_READ or REMOTE_WRITE"
            )
        return self.key, self.base

    def _packed(self, kind: int, place: _keys.Place) -> _keys.Packed:
        return _keys.Packed(
            kind,
            place,
            _process.identity(),
            self.context._id,
            self.key,
            self.address,
            self.address,
            self.length,
            int(self.prot),
            int(self.memory_type),
            self.flags,
        )

    def _pack_key(self, by: str) -> PackedBuffer:
        return PackedBuffer(self._packed(_keys.KEY, _NOWHERE).pack(), by)

    def _pack_export(self) -> PackedBuffer:
        if not self.prot & Prot.REMOTE_READ:
            raise unsupported(
                f"memh_pack: EXPORT: {self!r} may not be read by peers, so no process may import it\n"
                "  try: map it with MEM_MAP_PROT_REMOTE_READ (and REMOTE_WRITE)"
            )
        return PackedBuffer(self._packed(_keys.EXPORT, self.context._export_place()).pack(), "ucp_memh_pack")

    def _populate(self, address: int, length: int) -> None:
        if self.memory_type == MemoryType.HOST:
            _nic.populate(address, length, not self.readonly)


class Nothing(MemHandle):
    """Memory of no bytes. It may be unmapped any number of times."""

    context: Context
    address: int
    length: int
    memory_type: MemoryType
    prot: Prot
    unmapped: bool

    def __init__(self, context: Context) -> None:
        self.context = context
        self.address = self.length = 0
        self.memory_type = MemoryType.HOST
        self.prot = Prot(PROT_ALL)
        self.unmapped = False

    def _unmap(self) -> None:
        pass

    def _view(self) -> memoryview:
        return memoryview(b"")

    def _pack_key(self, by: str, kind: int = _keys.KEY) -> PackedBuffer:
        packed = _keys.Packed(kind, _NOWHERE, _process.identity(), self.context._id, flags=_keys.EMPTY)
        return PackedBuffer(packed.pack(), by)

    def _pack_export(self) -> PackedBuffer:
        return self._pack_key("ucp_memh_pack", _keys.EXPORT)

    def __getitem__(self, index: slice) -> memoryview:
        return self._view()[index]


def _symmetric_key(address: int, length: int, prot: int) -> int:
    """The same key for all regions of one layout, in any process."""
    layout = struct.pack("<QQI", address, length, prot & PROT_ALL)
    digest = hashlib.blake2b(layout, digest_size=8, person=b"weft-symmetric").digest()
    return int.from_bytes(digest, "little") | 1 << 63  # counted keys have the upper bit clear


_nic.set_ucp_region(Region, MemMapParams)
