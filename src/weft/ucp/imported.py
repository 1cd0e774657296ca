"""Imported handles: memory of another process as the local buffer of operations.

Memory that Weft allocated is mapped into this process, and operations move its bytes in place. Memory that its owner
registered, and all memory under WEFT_ISOLATION=strict, cannot be mapped: Weft fetches its bytes from the owner before a
put, and sends them to the owner after a get.

Source: UCP of UCX 1.17, "ucp_mem_map", exported_memh_buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _keys, _nic
from .constants import MemoryType, Prot
from .memh import MemHandle
from .packed import PackedBuffer
from .request import Request
from .status import Status, UcsError, unsupported

if TYPE_CHECKING:
    from .context import Context
    from .ep import Endpoint
    from .rkey import RemoteKey

_WAIT_S = 10.0  # limit for answers of the owner of memory that is not mapped here


def _ended(request: Request, what: str) -> None:
    try:
        request.wait(_WAIT_S)
    except UcsError as reason:
        if reason.status == Status.ERR_TIMED_OUT:
            raise UcsError(
                Status.ERR_TIMED_OUT, f"memh: {what} in {_WAIT_S:g} s: is the owner's process stopped?"
            ) from None
        raise


class Bounce(bytearray):
    """The buffer of a get whose destination is not mapped here."""

    def __init__(self, ep: Endpoint, rkey: RemoteKey, address: int, nbytes: int) -> None:
        super().__init__(nbytes)
        self._to = ep, rkey, address

    def deliver(self) -> None:
        """Send the bytes to the destination's owner. The data path calls this when the get has ended."""
        ep, rkey, address = self._to
        _ended(ep.put_nbx(memoryview(self), address, rkey), "the bytes of a get could not be sent to their owner")
        _ended(ep.flush_nbx(), "the bytes of a get did not arrive at their owner")


class Imported(MemHandle):
    """Memory of another process of this host, as a local buffer.

    `address` is the exporter's address. `memory` and `memh[a:b]` are this process's mapping. Without a mapping they
    raise UNSUPPORTED, and operations name a part of the memory by (address, length) and memh=.

    After the exporter has unmapped the memory, or is gone, every call but mem_unmap refuses the handle (IO_ERROR).
    The exporter does not reuse the memory before this handle's mem_unmap: older views show the old contents.
    """

    context: Context
    address: int
    length: int
    memory_type: MemoryType
    prot: Prot
    unmapped: bool

    def __init__(
        self, context: Context, found: _keys.Packed, window: _nic.PeerMemory | None, ep: Endpoint, rkey: RemoteKey
    ) -> None:
        self.context = context
        self.address = found.address
        self.length = found.length
        self.memory_type = MemoryType(min(found.memory_type, MemoryType.UNKNOWN))
        self._window = window
        self._way: tuple[Endpoint, RemoteKey] | None = (ep, rkey)
        self.prot = Prot.LOCAL_READ
        if found.prot & Prot.REMOTE_WRITE:
            self.prot |= Prot.LOCAL_WRITE
        self.unmapped = False
        context._imports.add(self)

    def _unmap(self) -> None:
        self.unmapped = True
        self._window = None
        self._way = None

    def _view(self) -> memoryview:
        if self._window is None:
            raise unsupported(
                f"memh: {self!r} is not mapped here: its owner registered it, or WEFT_ISOLATION is strict\n"
                "  try: (address, length) with memh=, as the buffer of a put or get"
            )
        if not self._window.current:
            raise UcsError(
                Status.ERR_IO_ERROR,
                f"memh: {self!r} is void: the process that exported the memory has unmapped it, or is gone\n"
                "  try: mem_unmap, and import a handle of memory that is mapped",
            )
        return memoryview(self._window)  # type: ignore[arg-type]

    def __getitem__(self, index: slice) -> memoryview:
        self._check("memh")
        return self._view()[index]

    def _part(self, buffer: Any, at: int, nbytes: int, writes: bool) -> Any:
        if self._window is not None:
            return self._view()[at : at + nbytes]
        assert self._way is not None  # _as_local() has refused an unmapped handle
        ep, rkey = self._way
        if writes:
            return Bounce(ep, rkey, self.address + at, nbytes)
        copy = bytearray(nbytes)
        _ended(ep.get_nbx(copy, self.address + at, rkey), "the buffer could not be fetched from its owner")
        return copy

    def _pack_key(self, by: str) -> PackedBuffer:
        raise unsupported(
            f"{by}: {self!r} was imported: it serves only operations of this process\n"
            "  try: a remote key that the memory's owner packs"
        )
