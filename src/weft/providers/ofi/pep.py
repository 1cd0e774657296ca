"""Passive endpoints of a real libfabric (fi_passive_ep). Source: fi_cm(3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import _nic, _process, errors
from ...fi import _handle
from ...fi.attrs import Info, dupinfo
from ...fi.cm import PassiveEndpoint
from ...flags import AddrFormat
from .av import packed_name
from .eq import RealEventQueue
from .quirks import Quirk, has
from .request import RealRequest, private_bytes

if TYPE_CHECKING:
    from .fabric import RealFabric

_kept_infos: list[_nic.OfiInfo] = []


class RealPassiveEndpoint(PassiveEndpoint, _nic.OfiPassiveEndpointCore):
    """An endpoint of the library that receives connection requests (struct fid_pep). Made by `Fabric.passive_ep`.

    Thread safety: any thread. Source: fi_endpoint(3) fi_passive_ep, fi_cm(3).
    """

    fabric: RealFabric
    _eq: Any = None

    def __init__(self, fabric: RealFabric, info: Info, context: Any) -> None:
        self.fabric = fabric
        self.provider = fabric.provider
        self.info = dupinfo(info)
        self.context = context
        self._made_in = _process.generation
        native = fabric.native(self.info)
        _nic.OfiPassiveEndpointCore.__init__(self, fabric._core, native)
        if has(self.provider.name, Quirk.PASSIVE_KEEPS_INFO):
            _kept_infos.append(native)  # kept for ever, because the library's thread reads it until the process ends
        fabric._fids[self.fid] = self
        self._opened(3, fabric)

    def bind(self, eq: Any, flags: int = 0) -> None:
        """Set the event queue for connection requests (fi_pep_bind), before listen(). flags: 0."""
        op = "pep.bind"
        _handle.check(self, op)
        if type(eq) is not RealEventQueue:
            raise TypeError(f"{op}: eq must be an event queue of the same fabric, not {eq!r}")
        _handle.check(eq, op, flags=flags)
        if flags:
            raise errors.BadFlags(f"{op}: flags {flags:#x}; they have to be 0")
        if eq.fabric is not self.fabric:
            raise errors.WrongDomain(f"{op}: {eq!r} belongs to another fabric")
        self.bind_eq(eq)
        self._eq = eq
        _handle.adopt(self, eq)

    def _text(self) -> bool:
        return bool(self.info.addr_format == AddrFormat.ADDR_STR)

    @property
    def address(self) -> Any:
        """Not of the library: raises AttributeError."""
        raise AttributeError(f"{self!r} has no (nic, pid, vni)\n  try: getname()")

    def setname(self, addr: object) -> None:
        """Choose the address, before listen() (fi_setname). Raises the library's refusal."""
        _handle.check(self, "pep.setname")
        self.setname_core(packed_name(addr, int(self.info.addr_format)), self._text())

    def getname(self) -> Any:
        """The address that peers connect to (fi_getname). Raises the library's refusal."""
        _handle.check(self, "pep.getname")
        return self.getname_core(self._text())

    def listen(self) -> None:
        """Start to receive requests (fi_listen): each is a CONNREQ event. Raises the library's refusal."""
        _handle.check(self, "pep.listen")
        if self._eq is None:
            raise errors.NoEq("pep.listen: no event queue is bound\n  try: pep.bind(fabric.eq_open())")
        self.listen_core()

    def reject(self, handle: Any, param: Any = None, paramlen: int | None = None) -> None:
        """Turn a request down (fi_reject). handle: `info.handle` of the CONNREQ event."""
        op = "pep.reject"
        _handle.check(self, op)
        if not isinstance(handle, RealRequest):
            raise TypeError(f"{op}: handle must be info.handle of a CONNREQ event, not {handle!r}")
        if handle.answered or handle.pep is not self:
            raise errors.InvalidArgument(f"{op}: {handle!r} is answered already, or was not made to {self!r}")
        if handle.taken:
            raise errors.InvalidArgument(f"{op}: {handle!r} has an endpoint\n  try: close that endpoint")
        handle.answered = True
        self.reject_core(handle.number, private_bytes(op, param, paramlen))

    def _release(self) -> None:
        self.close_core()

    def __repr__(self) -> str:
        return f"<PassiveEndpoint {self.provider.name} {'closed' if self._closed else 'open'}>"
