"""Address vectors (fi_av): addresses become small numbers. Source: fi_av(3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload

from .. import _nic, errors
from ..flags import ADDR_NOTAVAIL, AvFlag, AvType, EqEvent, Errno, Flag
from . import _args, _handle
from .attrs import LIBRARY_VERSION
from .auth_key import auth_key_bytes, keys_of_vector
from .eq import EqEntry, EqErrEntry, EventQueue
from .policy import Asked, Credential
from .rules import Rule

if TYPE_CHECKING:
    from .domain import Domain

__all__ = ["AddressVector"]


class AddressVector(_handle.LifeInDomain, _nic.AddressVectorCore):
    """The peers that an endpoint can name (struct fid_av). Made by `Domain.av_open`.

    An inserted address gets the lowest free index, from 0; both types work that way (fi_av(3) asks FI_AV_MAP to follow
    FI_AV_TABLE).

    Thread safety: any thread. Source: fi_av(3).
    """

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
        rules = domain.policy.vectors
        self._refuse = domain.policy.refusals.refuse
        if flags & ~rules.open_flags:
            raise self._refuse(Rule.AV_OPEN_FLAGS, f"av_open: flags {AvFlag(flags)!s}; EVENT is supported")
        if name is not None:
            raise self._refuse(
                Rule.AV_OPEN_NAME,
                "av_open: named address vectors, shared between processes, are not supported; leave name None",
            )
        if rx_ctx_bits:
            raise self._refuse(
                Rule.AV_OPEN_RX_CTX_BITS,
                "av_open: rx_ctx_bits is for scalable endpoints, which this provider does not have",
            )
        if type not in AvType.__members__.values():
            raise self._refuse(Rule.AV_OPEN_TYPE, f"av_open: type {type!r} is not one of FI_AV_*")
        if type and type not in rules.types:
            known = ", ".join(str(kind) for kind in AvType if kind in rules.types)
            raise self._refuse(Rule.AV_OPEN_TYPE, f"av_open: no {AvType(type)} here; there are {known}")
        self.domain = domain
        self.context = context
        self.type = AvType(type or rules.type_unspec)
        self.flags = flags
        self._eq: EventQueue | None = None
        self._children: _handle.Children = {}
        self._keys: list[Credential | None] = []  # by fi_addr
        self._key_of: dict[int, int] = {}  # fi_addr of a peer -> that of its key
        super().__init__(domain)
        self._site = _handle.here(3)
        _handle.adopt(self, domain)

    def bind(self, eq: EventQueue, flags: int = 0) -> None:
        """Report insertions to an event queue (fi_av_bind; deprecated). For vectors opened with `fi.EVENT`.

        eq      is held until the vector is closed.
        flags   0.

        Raises BadFlags, BadState (one of the two is closed). Source: fi_av(3) fi_av_bind.
        """
        _handle.check(self, "av.bind")
        _handle.expect(eq, EventQueue, "av.bind", "eq")
        _handle.check(eq, "av.bind")
        _args.whole("av.bind", flags=flags)
        if flags:
            raise self._refuse(Rule.AV_BIND_FLAGS, f"av.bind: flags {flags:#x}; they are reserved and must be 0")
        self._eq = eq
        _handle.adopt(self, eq)

    @overload
    def insert(  # type: ignore[overload-overlap]  # a str is an Iterable[str], but one address
        self,
        addr: str | bytes | tuple[str, int],
        count: int | None = None,
        flags: int = 0,
        context: Any = None,
        *,
        fi_addr: int | None = None,
    ) -> int: ...
    @overload
    def insert(
        self,
        addr: Iterable[str | bytes | tuple[str, int]],
        count: int | None = None,
        flags: int = 0,
        context: Any = None,
        *,
        fi_addr: int | None = None,
    ) -> list[int]: ...
    def insert(
        self,
        addr: str | bytes | tuple[str, int] | Iterable[str | bytes | tuple[str, int]],
        count: int | None = None,
        flags: int = 0,
        context: Any = None,
        *,
        fi_addr: int | None = None,
    ) -> int | list[int]:
        """Insert addresses (fi_av_insert).

        addr      an address as `Endpoint.getname()` returns it, or several. `(host, port)`, a struct sockaddr_in or
                  sockaddr_in6 mean the endpoint on that host and port whose number is the port.
        count     how many of several are read; None for all.
        flags     `fi.MORE` (a hint). `fi.SYNC_ERR`: context is a list that receives an error number for each address,
                  0 for those inserted; bad addresses then do not raise.
        context   of the event, for a vector opened with `fi.EVENT`.
        fi_addr   with the flag `fi.AUTH_KEY`, which a domain opened with `fi.AV_AUTH_KEY` wants: the authorization key
                  that these peers use, as insert_auth_key returned it.

        Returns the fi_addr of one address, or a list of them in order (`fi.ADDR_NOTAVAIL` where one failed).
        Raises InvalidArgument (a bad address; nothing is inserted), NoEq (opened with `fi.EVENT`, no event
        queue bound), BadFlags.
        Source: fi_av(3) fi_av_insert.
        """
        _handle.check(self, "av.insert")
        _args.whole("av.insert", flags=flags)
        _args.maybe("av.insert", count=count, fi_addr=fi_addr)
        if flags & ~self.domain.policy.vectors.insert_flags:
            raise self._refuse(
                Rule.AV_INSERT_FLAGS, f"av.insert: flags {AvFlag(flags)!s}; MORE, SYNC_ERR and AUTH_KEY are supported"
            )
        vni = self._vni_for("av.insert", flags, fi_addr)
        codec = self.domain.provider.addresses
        packed = codec.split(addr)
        one = packed is None and codec.single(addr)
        names: list[Any] = [addr] if one else packed or _args.each("av.insert", "addr", addr, "addresses, or one")
        if count is not None:
            names = names[:count]
        sync_err = bool(flags & AvFlag.SYNC_ERR)
        if sync_err and not isinstance(context, list):
            raise self._refuse(
                Rule.AV_INSERT_CONTEXT,
                "av.insert: with SYNC_ERR, context has to be a list to write the error numbers to",
            )
        if self.flags & Flag.EVENT and self._eq is None:
            raise self._refuse(
                Rule.AV_INSERT_EQ, "av.insert: the vector was opened with EVENT: bind an event queue to it first"
            )

        parsed: list[tuple[int, int, int] | errors.FabricError] = [self._parse(name, vni) for name in names]
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
                if fi_addr is not None:
                    self._key_of[found[-1]] = fi_addr
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
        _args.text("av.insertsvc", node=node, service=service)
        _args.whole("av.insertsvc", flags=flags)
        asked = Asked(LIBRARY_VERSION, node, service)
        _, dest = self.domain.provider.resolve(asked, None)
        if dest is None:
            raise self._refuse(Rule.AV_INSERTSVC_NAME, "av.insertsvc: neither node nor service was given")
        found: int = self.insert(dest, None, flags, context)
        return found

    def remove(self, fi_addr: int | Iterable[int], count: int | None = None, flags: int = 0) -> None:
        """Remove addresses (fi_av_remove). Their fi_addr may be given to other addresses later.

        fi_addr   one, or several.
        count     how many of several are removed; None for all.
        flags     `fi.AUTH_KEY`: they are authorization keys.

        Raises InvalidArgument for a fi_addr that is not in use, Busy for a key that a peer or an enabled endpoint uses,
        BadFlags. Source: fi_av(3) fi_av_remove.
        """
        _handle.check(self, "av.remove")
        _args.whole("av.remove", flags=flags)
        _args.maybe("av.remove", count=count)
        if flags & ~int(AvFlag.AUTH_KEY):
            raise self._refuse(Rule.AV_REMOVE_FLAGS, f"av.remove: flags {AvFlag(flags)!s}; AUTH_KEY is supported")
        which = (
            [fi_addr] if isinstance(fi_addr, int) else _args.each("av.remove", "fi_addr", fi_addr, "numbers, or one")
        )
        for index in which[:count]:
            _args.whole("av.remove", fi_addr=index)
            if flags & AvFlag.AUTH_KEY:
                self._remove_auth_key(index)
            else:
                try:
                    self.remove_address(index)
                except errors.InvalidArgument as unknown:
                    if self.domain.policy.vectors.remove_unknown == "ignore":
                        continue
                    raise self._refuse(Rule.AV_REMOVE_UNKNOWN, unknown.message) from None
                self._key_of.pop(index, None)

    def lookup(self, fi_addr: int) -> Any:
        """The address of a fi_addr, as it was inserted (fi_av_lookup).

        Raises InvalidArgument for one that is not in use. Source: fi_av(3) fi_av_lookup.
        """
        _handle.check(self, "av.lookup")
        _args.whole("av.lookup", fi_addr=fi_addr)
        return self.domain.provider.addresses.emit(self.lookup_address(fi_addr))

    # ---- authorization keys: domains opened with FI_AV_AUTH_KEY ------------------------------------------------------

    @property
    def vnis(self) -> list[int]:
        """The VNIs of the vector's authorization keys."""
        return [key.vni for key in self._keys if key is not None]

    def insert_auth_key(self, auth_key: Any, auth_key_size: int = 0, flags: int = 0) -> int:
        """Insert an authorization key (fi_av_insert_auth_key), before an endpoint of the vector is enabled.

        auth_key        bytes, as the provider has them.
        auth_key_size   how many; 0 for all.
        flags           0.

        Returns its fi_addr, of a numbering of its own; the same for a key that is there already.
        Raises InvalidArgument (no key; a domain opened without `fi.AV_AUTH_KEY`), NoSpace (more than
        domain_attr.max_ep_auth_key), Busy (an endpoint of the vector is enabled), BadFlags.
        Source: fi_av(3) fi_av_insert_auth_key.
        """
        op = "av.insert_auth_key"
        _handle.check(self, op)
        _args.whole(op, auth_key_size=auth_key_size, flags=flags)
        if flags:
            raise self._refuse(Rule.AV_AUTH_KEY_FLAGS, f"{op}: flags {AvFlag(flags)!s}; they have to be 0")
        self._keyed(op)
        provider = self.domain.provider
        key = self.domain.policy.credential_of(auth_key_bytes(provider, auth_key, auth_key_size))
        if key in self._keys:
            return self._keys.index(key)
        self._no_enabled(op)
        most = self.domain.attr.max_ep_auth_key
        if len(self.vnis) >= most:
            raise self._refuse(
                Rule.AV_AUTH_KEY_COUNT,
                f"{op}: {self!r} holds {most} keys, max_ep_auth_key\n"
                "  try: a larger domain_attr.max_ep_auth_key in the hints",
            )
        if None in self._keys:
            at = self._keys.index(None)
            self._keys[at] = key
            return at
        self._keys.append(key)
        return len(self._keys) - 1

    def lookup_auth_key(self, fi_addr: int) -> bytes:
        """The authorization key of a fi_addr that `insert_auth_key` returned (fi_av_lookup_auth_key).

        Raises InvalidArgument for another. Source: fi_av(3) fi_av_lookup_auth_key.
        """
        _handle.check(self, "av.lookup_auth_key")
        _args.whole("av.lookup_auth_key", fi_addr=fi_addr)
        self._keyed("av.lookup_auth_key")
        return self._key(fi_addr).raw

    def _keyed(self, op: str) -> None:
        if not keys_of_vector(self.domain.info):
            raise self._refuse(
                Rule.AV_AUTH_KEY_MODE,
                f"{op}: the domain was not opened with AV_AUTH_KEY\n"
                "  try: domain_attr.auth_key_size = fi.AV_AUTH_KEY in the hints",
            )

    def _key(self, fi_addr: int) -> Credential:
        key = self._keys[fi_addr] if 0 <= fi_addr < len(self._keys) else None
        if key is None:
            raise self._refuse(Rule.AV_AUTH_KEY_UNKNOWN, f"fi_addr {fi_addr} is no authorization key of {self!r}")
        return key

    def _vni_for(self, op: str, flags: int, fi_addr: int | None) -> int | None:
        """The VNI that the addresses of an insertion have to be on."""
        if not keys_of_vector(self.domain.info):
            if flags & AvFlag.AUTH_KEY or fi_addr is not None:
                raise self._refuse(Rule.AV_AUTH_KEY_MODE, f"{op}: AUTH_KEY is for domains opened with AV_AUTH_KEY")
            return None
        if not flags & AvFlag.AUTH_KEY or fi_addr is None:
            raise self._refuse(
                Rule.AV_INSERT_KEY,
                f"{op}: on a domain opened with AV_AUTH_KEY every peer has a key\n"
                "  try: insert(address, flags=fi.AUTH_KEY, fi_addr=av.insert_auth_key(key))",
            )
        return self._key(fi_addr).vni

    def _no_enabled(self, op: str) -> None:
        users = [user for user in _handle.live(self._children) if getattr(user, "_enabled", False)]
        if users:
            raise self._refuse(
                Rule.AV_AUTH_KEY_BUSY,
                f"{op}: {users[0]!r} has taken the vector's keys when it was enabled; close it first",
                op=op,
            )

    def _remove_auth_key(self, fi_addr: int) -> None:
        op = "av.remove"
        self._keyed(op)
        self._key(fi_addr)
        self._no_enabled(op)
        if fi_addr in self._key_of.values():
            raise self._refuse(
                Rule.AV_AUTH_KEY_BUSY, f"{op}: peers of {self!r} use the key {fi_addr}; remove them first", op=op
            )
        self._keys[fi_addr] = None

    def straddr(self, addr: object) -> str:
        """An address in printable form, inserted or not (fi_av_straddr).

        Raises InvalidArgument for what is no address of this provider. Source: fi_av(3) fi_av_straddr.
        """
        codec = self.domain.provider.addresses
        return codec.text(codec.parse(addr))

    def close(self) -> None:
        """Close the vector (fi_close). Raises Busy while an endpoint uses it."""
        _handle.close(self, super().close, self._children, self._parents())

    def _parents(self) -> tuple[Any, ...]:
        return (self.domain,) if self._eq is None else (self.domain, self._eq)

    def _parse(self, name: Any, key_vni: int | None = None) -> tuple[int, int, int] | errors.FabricError:
        try:
            nic, pid, vni = self.domain.provider.addresses.parse(name)
        except errors.FabricError as e:
            return e
        if pid is None:
            return self._refuse(
                Rule.AV_INSERT_ADDRESS,
                f"av.insert: {name!r} names no endpoint: the pid is missing\n  try: the peer's Endpoint.getname()",
            )
        if key_vni is not None and vni != key_vni:
            return self._refuse(
                Rule.AV_INSERT_KEY,
                f"av.insert: {name!r} is on VNI {vni}, its authorization key is for VNI {key_vni}",
            )
        return nic, pid, vni

    def __del__(self) -> None:
        _handle.finalize(self, super().close, self._parents() if self._site else ())

    def __repr__(self) -> str:
        kind = self.type.name.removeprefix("AV_")
        return f"<AddressVector {kind} {'closed' if self._closed else f'{self.count()} peers'}>"
