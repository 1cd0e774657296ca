"""Address vectors (fi_av): addresses become small numbers. Source: fi_av(3)."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from .. import _nic, errors
from ..flags import ADDR_NOTAVAIL, AvFlag, AvType, EqEvent, Errno, Flag
from . import _handle
from .eq import EqEntry, EqErrEntry, EventQueue

if TYPE_CHECKING:
    from .domain import Domain

__all__ = ["AddressVector"]

_INSERT_FLAGS = int(Flag.MORE) | int(AvFlag.SYNC_ERR)


class AddressVector(_nic.AddressVectorCore):
    """The peers that an endpoint can name (struct fid_av). Made by `Domain.av_open`.

    An inserted address gets the lowest free index, from 0; both types work that way (fi_av(3) asks FI_AV_MAP to follow
    FI_AV_TABLE).

    Thread safety: any thread. Source: fi_av(3).
    """

    _closed = False
    _site: _handle.Site | None = None

    def __init__(
        self,
        domain: Domain,
        *,
        type: int,
        rx_ctx_bits: int,
        count: int,
        ep_per_node: int,
        name: str | None,
        flags: int,
        context: Any,
    ) -> None:
        if flags & ~int(Flag.EVENT):
            raise errors.BadFlags(f"av_open: flags {AvFlag(flags)!s}; EVENT is supported")
        if name is not None:
            raise errors.NoSys(
                "av_open: named address vectors, shared between processes, are not supported; leave name None"
            )
        if rx_ctx_bits:
            raise errors.InvalidArgument("av_open: rx_ctx_bits is for scalable endpoints, which this provider has not")
        if type not in AvType.__members__.values():
            raise errors.InvalidArgument(f"av_open: type {type!r} is none of FI_AV_*")
        self.domain = domain
        self.context = context
        self.type = AvType(type or AvType.AV_TABLE)
        self.flags = flags
        self._eq: EventQueue | None = None
        self._children: _handle.Children = {}
        super().__init__(domain)
        self._site = _handle.here(3)
        _handle.adopt(self, domain)

    @property
    def _made_in(self) -> int:
        return self.domain._made_in

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed

    def bind(self, eq: EventQueue, flags: int = 0) -> None:
        """Report insertions to an event queue (fi_av_bind; deprecated). For vectors opened with `fi.EVENT`.

        eq      is held until the vector is closed.
        flags   0.

        Raises BadFlags, BadState (one of the two is closed). Source: fi_av(3) fi_av_bind.
        """
        _handle.check(self, "av.bind")
        _handle.expect(eq, EventQueue, "av.bind", "eq")
        _handle.check(eq, "av.bind")
        if flags:
            raise errors.BadFlags(f"av.bind: flags {flags:#x}; they are reserved and must be 0")
        self._eq = eq
        _handle.adopt(self, eq)

    @overload
    def insert(  # type: ignore[overload-overlap]  # a str is an Iterable[str], but one address
        self, addr: str | bytes | tuple[str, int], count: int | None = None, flags: int = 0, context: Any = None
    ) -> int: ...
    @overload
    def insert(
        self,
        addr: Iterable[str | bytes | tuple[str, int]],
        count: int | None = None,
        flags: int = 0,
        context: Any = None,
    ) -> list[int]: ...
    def insert(
        self,
        addr: str | bytes | tuple[str, int] | Iterable[str | bytes | tuple[str, int]],
        count: int | None = None,
        flags: int = 0,
        context: Any = None,
    ) -> int | list[int]:
        """Insert addresses (fi_av_insert).

        addr      an address as `Endpoint.getname()` returns it, or several. `(host, port)`, a struct sockaddr_in or
                  sockaddr_in6 stand for the endpoint at that host and port whose number is the port.
        count     how many of several are read; None for all.
        flags     `fi.MORE` (a hint). `fi.SYNC_ERR`: context is a list that receives an error number for each address,
                  0 for those inserted; bad addresses then do not raise.
        context   of the event, for a vector opened with `fi.EVENT`.

        Returns the fi_addr of one address, or a list of them in order (`fi.ADDR_NOTAVAIL` where one failed).
        Raises InvalidArgument (an address that is none; nothing is inserted), NoEq (opened with `fi.EVENT`, no event
        queue bound), BadFlags.
        Source: fi_av(3) fi_av_insert.
        """
        _handle.check(self, "av.insert")
        if flags & ~_INSERT_FLAGS:
            raise errors.BadFlags(f"av.insert: flags {AvFlag(flags)!s}; MORE and SYNC_ERR are supported")
        # (host, port) is an address; a tuple of addresses has no number in it.
        pair = isinstance(addr, tuple) and len(addr) in (2, 4) and isinstance(addr[1], int)
        one = pair or isinstance(addr, (str, bytes, bytearray))
        names: list[Any] = [addr] if one else list(addr)
        if count is not None:
            names = names[:count]
        sync_err = bool(flags & AvFlag.SYNC_ERR)
        if sync_err and not isinstance(context, list):
            raise errors.InvalidArgument(
                "av.insert: with SYNC_ERR, context has to be a list to write the error numbers to"
            )
        if self.flags & Flag.EVENT and self._eq is None:
            raise errors.NoEq("av.insert: the vector was opened with EVENT: bind an event queue to it first")

        parsed: list[tuple[int, int, int] | errors.FabricError] = [self._parse(name) for name in names]
        if not sync_err and self._eq is None:
            for entry in parsed:
                if isinstance(entry, errors.FabricError):
                    raise entry
        found: list[int] = []
        status: list[int] = []
        for entry in parsed:
            if isinstance(entry, errors.FabricError):
                found.append(ADDR_NOTAVAIL)
                status.append(int(entry.errno or Errno.EINVAL))
            else:
                found.append(self.insert_address(*entry))
                status.append(0)
        if sync_err:
            context[:] = status
        if self._eq is not None:
            for i, err in enumerate(status):
                if err:
                    self._eq.post_error(EqErrEntry(self, context, i, err))
            self._eq.post(EqEvent.AV_COMPLETE, EqEntry(self, context, status.count(0)))
        return found[0] if one else found

    def insertsvc(self, node: str | None, service: str | None = None, flags: int = 0, context: Any = None) -> int:
        """Insert an address given as node and service, as for getinfo (fi_av_insertsvc).

        node      NIC: `"weft0"`, `"0"`, or a whole address string; or another host: `"host"`, `"host:port"`.
        service   the endpoint's number at that node, as text. With a `"host"`: the port, and the endpoint's number.

        Returns the fi_addr. Raises InvalidArgument (neither was given; no endpoint is named), NotAvailable (no such NIC
        or number), and as `insert`. Source: fi_av(3) fi_av_insertsvc.
        """
        _handle.check(self, "av.insertsvc")
        _, dest = self.domain.provider.resolve(node, service, 0, None)
        if dest is None:
            raise errors.InvalidArgument("av.insertsvc: neither node nor service was given")
        return self.insert(str(dest), None, flags, context)

    def remove(self, fi_addr: int | Iterable[int], count: int | None = None, flags: int = 0) -> None:
        """Remove addresses (fi_av_remove). Their fi_addr may be given to other addresses later.

        fi_addr   one, or several.
        count     how many of several are removed; None for all.
        flags     0.

        Raises InvalidArgument for a fi_addr that is not in use, BadFlags. Source: fi_av(3) fi_av_remove.
        """
        _handle.check(self, "av.remove")
        if flags:
            raise errors.BadFlags(f"av.remove: flags {AvFlag(flags)!s}; none are supported")
        which = [fi_addr] if isinstance(fi_addr, int) else list(fi_addr)
        for index in which[:count]:
            self.remove_address(index)

    def lookup(self, fi_addr: int) -> Any:
        """The address of a fi_addr, as it was inserted (fi_av_lookup).

        Raises InvalidArgument for one that is not in use. Source: fi_av(3) fi_av_lookup.
        """
        _handle.check(self, "av.lookup")
        return self.domain.provider.format_address(self.lookup_address(fi_addr))

    def straddr(self, addr: object) -> str:
        """An address in printable form, inserted or not (fi_av_straddr).

        Raises InvalidArgument for what is no address of this provider. Source: fi_av(3) fi_av_straddr.
        """
        return str(self.domain.provider.format_address(self.domain.provider.parse_address(addr)))

    def close(self) -> None:
        """Close the vector (fi_close). Raises Busy while an endpoint uses it."""
        _handle.close(self, super().close, self._children, self._parents())

    def _parents(self) -> tuple[Any, ...]:
        return (self.domain,) if self._eq is None else (self.domain, self._eq)

    def _parse(self, name: Any) -> tuple[int, int, int] | errors.FabricError:
        try:
            nic, pid, vni = self.domain.provider.parse_address(name)
        except errors.FabricError as e:
            return e
        if pid is None:
            return errors.InvalidArgument(
                f"av.insert: {name!r} names no endpoint: the pid is missing\n  try: the peer's Endpoint.getname()"
            )
        return nic, pid, vni

    def __enter__(self) -> AddressVector:
        return _handle.enter(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        _handle.finalize(self, super().close, self._parents() if self._site else ())

    def __repr__(self) -> str:
        kind = self.type.name.removeprefix("AV_")
        return f"<AddressVector {kind} {'closed' if self._closed else f'{self.count()} peers'}>"
