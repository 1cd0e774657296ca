"""Aliases of a real libfabric's endpoints (fi_ep_alias). Source: fi_endpoint(3) fi_ep_alias."""

from __future__ import annotations

from typing import Any

from ... import _nic, errors
from ...fi import _handle
from ...fi.ep_alias import OfOriginal
from ...flags import Errno, Flag
from ._common import stands_for
from .endpoint import RealEndpoint


class RealEndpointAlias(OfOriginal, RealEndpoint):
    """Another view of an endpoint of the library (struct fid_ep). Made by `Endpoint.alias`.

    Its transfers use the original's address, queues and address vector, and operation flags of its own. Operations
    under way continue when the alias is closed: they are the original's. Close the aliases before the original.
    Thread safety: any thread. Source: fi_endpoint(3) fi_ep_alias.
    """

    __class__ = stands_for("ep_alias.EndpointAlias")

    def __init__(self, original: RealEndpoint, parent: RealEndpoint, flags: int, context: Any) -> None:
        if not original._linked:
            raise errors.make(
                Errno.ENOTCONN,
                f"ep.alias: {original!r} is not connected\n  try: wait for the CONNECTED event of its event queue",
            )
        self.original = original
        self.domain = original.domain
        self.info = original.info
        self.context = context
        self._linked = True
        _nic.OfiEndpointCore.__init__(self, parent, flags)
        self._opened(5, original)

    def setname(self, addr: object) -> None:
        """Choose the address of the original (fi_setname)."""
        _handle.check(self, "ep.setname")
        self.original.setname(addr)

    def connect(self, addr: object = None, param: Any = None, paramlen: int | None = None) -> None:
        """Connect the original (fi_connect)."""
        _handle.check(self, "ep.connect")
        self.original.connect(addr, param, paramlen)

    def accept(self, param: Any = None, paramlen: int | None = None) -> None:
        """Accept the request of the original (fi_accept)."""
        _handle.check(self, "ep.accept")
        self.original.accept(param, paramlen)

    def shutdown(self, flags: int = 0) -> None:
        """End the connection of the original (fi_shutdown)."""
        _handle.check(self, "ep.shutdown")
        self.original.shutdown(flags)

    def getpeer(self) -> Any:
        """The address of the original's peer (fi_getpeer)."""
        _handle.check(self, "ep.getpeer")
        return self.original.getpeer()

    def join_collective(self, coll_addr: int, set: Any, flags: int = 0, context: Any = None) -> Any:
        """Join a group with the original (fi_join_collective); its calls take the group from the alias too."""
        _handle.check(self, "ep.join_collective")
        return self.original.join_collective(coll_addr, set, flags, context)

    def close(self) -> None:
        """Close the alias (fi_close); the original stays, and so do operations under way."""
        _handle.Life.close(self)

    def __repr__(self) -> str:
        return f"<EndpointAlias {'closed' if self._closed else f'of {self.original!r}'}>"


def alias_of(ep: RealEndpoint, flags: int, context: Any) -> RealEndpointAlias:
    """`Endpoint.alias` with flags that name a side: of an alias, another alias of its original.

    Raises NotSupported where the library's provider has no aliases."""
    original = ep.original if isinstance(ep, RealEndpointAlias) else ep
    try:
        return RealEndpointAlias(original, original, flags, context)
    except errors.FabricError as reason:
        if reason.errno not in (Errno.ENOSYS, Errno.EOPNOTSUPP):
            raise
        said = reason.message.splitlines()[0]
        raise errors.NotSupported(
            f"ep.alias: {ep.domain.provider.name} gives no alias with {Flag(flags)!s} ({said})\n"
            "  try: the ...msg calls, which take flags, or a second endpoint"
        ) from reason
