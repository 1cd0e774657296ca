"""Remote keys (ucp_rkey_h), with which an endpoint accesses a peer's memory.

Source: UCP of UCX 1.17, "ucp_ep_rkey_unpack", "ucp_rkey_ptr", "ucp_rkey_destroy", "ucp_rkey_compare".
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .. import _keys, _nic
from .._with import With
from . import _args
from .constants import MemoryType, Prot
from .status import Status, UcsError, invalid

if TYPE_CHECKING:
    from .ep import Endpoint

_WAIT_S = 10.0  # limit for the mapping of a peer's memory, which takes milliseconds
_AGAIN = int(_nic.Status.again)


class RemoteKey(With, _nic.UcpRkeyCore):
    """The key of a peer's region, for one endpoint (ucp_rkey_h). Made by `Endpoint.rkey_unpack`; a context manager.

    Attributes:
        address: Address of the region in the peer's process: the first valid remote address.
        length: Bytes.
        memory_type: Type of the memory.
        prot: The rights, as the peer mapped the memory.
        endpoint: The endpoint that unpacked the key.
        symmetric: True: the key serves the worker's other endpoints, too; see below.
        in_flight: Operations under way that use the key.
        destroyed: True after destroy(), and when the endpoint was closed.

    A key serves only the endpoint that unpacked it. But a key of a region that was mapped with MEM_MAP_SYMMETRIC_RKEY
    serves every endpoint of the worker whose peer has a region of the same layout.

    Source: UCP, "ucp_rkey_h".
    """

    def __init__(self, ep: Endpoint, found: _keys.Packed, dest: int) -> None:
        self.endpoint = ep
        self.memory_type = MemoryType(min(found.memory_type, MemoryType.UNKNOWN))
        self.prot = Prot(found.prot)
        self._packed = found
        self._window: _nic.PeerMemory | None = None
        super().__init__(
            ep,
            found.key,
            dest,
            found.address,
            found.length,
            found.base - found.address & (1 << 64) - 1,
            bool(found.flags & _keys.SYMMETRIC),
        )

    def ptr(self, raddr: int) -> int:
        """The local address at which loads and stores reach the peer's memory at raddr (ucp_rkey_ptr).

        The address is valid until the key is destroyed; accesses through it are not checked. Until then the peer does
        not reuse the memory, even after it has unmapped the region: the pointer then shows the old contents.
        A forked child's copy of the pointer is valid as long as this process has the key.

        Raises UcsError: INVALID_ADDR (raddr lies outside of the region), UNREACHABLE (the memory cannot be reached by
        load and store: another host, memory that Weft did not allocate, WEFT_ISOLATION=strict, a region that peers may
        not both read and write), or why the peer's NIC refuses the key. Source: UCP, "ucp_rkey_ptr".
        """
        self._check("rkey_ptr", raddr, 1)
        if not self.prot & Prot.REMOTE_WRITE:
            raise UcsError(
                Status.ERR_UNREACHABLE,
                f"rkey_ptr: {self!r} does not grant REMOTE_WRITE, but a pointer would\n  try: rkey.view(raddr, length)",
            )
        return self._map(True).address + raddr - self.address

    def view(self, raddr: int, length: int) -> memoryview:
        """The peer's memory at raddr as bytes, which stay valid after the key is destroyed; read-only if the region
        does not grant REMOTE_WRITE.

        Raises as ptr(). Unmapped memory is refused; earlier views stay valid.
        """
        self._check("rkey_ptr", raddr, length)
        at = raddr - self.address
        window = self._map(bool(self.prot & Prot.REMOTE_WRITE))
        return memoryview(window)[at : at + length]  # type: ignore[arg-type]

    def destroy(self) -> None:
        """Destroy the key (ucp_rkey_destroy).

        Raises UcsError: BUSY (operations that use it are under way: flush first), INVALID_PARAM (destroyed already).
        Source: UCP, "ucp_rkey_destroy".
        """
        if self.destroyed:
            raise invalid("rkey_destroy: the key was destroyed already")
        if self.in_flight:
            raise UcsError(
                Status.ERR_BUSY,
                f"rkey_destroy: {self.in_flight} operations with this key are under way\n"
                "  rule: the operations of a key are flushed before the key is destroyed, ucp_rkey_destroy\n"
                "  try: ep.flush_nbx().wait()",
            )
        self._end()

    def _end(self) -> None:
        self._window = None
        self.forget()
        self.endpoint._keys.discard(self)

    def _check(self, op: str, raddr: int, length: int) -> None:
        if self.destroyed:
            raise invalid(f"{op}: the remote key was destroyed\n  try: ep.rkey_unpack(buffer)")
        _args.needed(op, raddr=raddr, length=length)
        at = raddr - self.address
        if not (0 <= at < self.length and 0 <= length <= self.length - at):
            raise UcsError(Status.ERR_INVALID_ADDR, f"{op}: {length} B at {raddr:#x} do not lie within {self!r}")

    def _map(self, writable: bool) -> _nic.PeerMemory:
        found = self._map_if_near(writable)
        if found is None:
            raise UcsError(
                Status.ERR_UNREACHABLE,
                f"rkey_ptr: {self!r} cannot be reached by load and store\n"
                "  rule: memory that Weft allocated, of a process of this host, not under WEFT_ISOLATION=strict",
            )
        return found

    def _map_if_near(self, writable: bool) -> _nic.PeerMemory | None:
        """The peer's memory, mapped in this process; None if loads and stores cannot reach it."""
        if self._window is not None:
            if self._window.current:
                return self._window
            self._window = None  # the transfer below says why
        ep = self.endpoint
        worker = ep.worker
        if not self.prot & Prot.REMOTE_READ:
            raise UcsError(
                Status.ERR_UNREACHABLE, f"rkey_ptr: {self!r} does not grant REMOTE_READ, but a mapping would"
            )
        # A transfer connects to the peer, and shows whether the key is valid.
        ep.get_nbx(bytearray(1), self.address, self).wait(_WAIT_S)
        deadline = time.monotonic() + _WAIT_S
        while True:
            found = _nic.peer_memory(
                worker._ep, self.dest, self.key, self.address + self.bias & (1 << 64) - 1, self.length, writable
            )
            if isinstance(found, _nic.PeerMemory):
                self._window = found
                return found
            if found is None:
                return None
            if found != _AGAIN or time.monotonic() > deadline:
                raise UcsError(
                    Status.ERR_IO_ERROR,
                    f"rkey_ptr: the peer's NIC refuses the key (status {found}); was its memory unmapped?\n"
                    "  try: a get_nbx, whose error has the reason",
                )
            worker.progress()

    def _order(self) -> tuple[int, ...]:
        """The tuple that rkey_compare compares: keys with equal tuples are interchangeable."""
        p = self._packed
        whose = (0, 0, 0) if p.flags & _keys.SYMMETRIC else (1, self.endpoint._number, p.context)
        return (*whose, p.key, p.address, p.length, p.prot, p.memory_type)

    def _leave(self) -> None:
        try:
            if self.in_flight:
                self.endpoint.flush_nbx().wait()
        finally:
            if not self.destroyed and not self.in_flight:
                self.destroy()

    def __repr__(self) -> str:
        rights = "|".join(p.name or "" for p in Prot if p & self.prot) or "no rights"
        state = ", destroyed" if self.destroyed else ", symmetric" if self.symmetric else ""
        return f"<ucp.RemoteKey 0x{self.address:x}, {self.length} B of {self.memory_type.text} memory, {rights}{state}>"
