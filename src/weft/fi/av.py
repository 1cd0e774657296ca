"""Address vectors (fi_av): addresses become small numbers. Source: fi_av(3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload

from .. import _nic, errors
from ..flags import ADDR_NOTAVAIL, AvFlag, AvType, EqEvent, Errno, Flag
from . import _args, _handle
from ._control import Controlled
from .attrs import LIBRARY_VERSION, AvAttr
from .auth_key import auth_key_bytes, keys_of_vector
from .av_set import AvSet, AvSetAttr
from .eq import EqEntry, EqErrEntry, EventQueue
from .policy import Asked, Credential
from .rules import Rule

if TYPE_CHECKING:
    from .domain import Domain


class AddressVector(Controlled, _handle.LifeInDomain, _nic.AddressVectorCore):
    """The peers that an endpoint can name (struct fid_av). Made by `Domain.av_open`.

    An inserted address gets the lowest free index, from 0; both types work that way (fi_av(3) asks FI_AV_MAP to follow
    FI_AV_TABLE).

    Attributes:
        reverse_lookups: Number of searches for the fi_addr of a sender's address, for completions with FI_SOURCE. With
            FI_SYMMETRIC (a promise that the tables of all processes have the same entries, their own address included)
            messages name their sender by its fi_addr, and only that entry is compared.

    Thread safety: any thread. Source: fi_av(3).
    """

    _called = "av"

    def __init__(self, domain: Domain, attr: AvAttr, context: Any) -> None:
        rules, type, flags = domain.policy.vectors, attr.type, attr.flags
        self._refuse = domain.policy.refusals.refuse
        if flags & ~rules.open_flags:
            raise self._refuse(
                Rule.AV_OPEN_FLAGS, f"av_open: flags {AvFlag(flags)!s}; known: {AvFlag(rules.open_flags)!s}"
            )
        if flags & Flag.AV_USER_ID and not domain.attr.caps & Flag.AV_USER_ID:
            raise self._refuse(
                Rule.AV_USER_ID,
                "av_open: AV_USER_ID needs a domain opened with that capability\n"
                "  try: fi.AV_USER_ID among domain_attr.caps of the hints",
            )
        if attr.name is not None:
            raise self._refuse(
                Rule.AV_OPEN_NAME,
                "av_open: named address vectors, shared between processes, are not supported; leave name None",
            )
        if attr.rx_ctx_bits:
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
        self._keys: list[Credential | None] = []  # by fi_addr
        self._key_uses: dict[int, int] = {}  # fi_addr of a key -> number of insertions
        self._key_ids: dict[int, int] = {}  # fi_addr of a key -> its user id
        self._key_of: dict[int, int] = {}  # fi_addr of a peer -> fi_addr of its key
        self._uses: dict[int, int] = {}  # fi_addr of a peer -> number of insertions, if the provider counts them
        # A vector of authorization keys is not symmetric: its keys have numbers among the peers'.
        symmetric = bool(flags & AvFlag.SYMMETRIC) and self.type == AvType.AV_TABLE
        super().__init__(domain, symmetric and not keys_of_vector(domain.info), bool(flags & Flag.AV_USER_ID))
        self._opened(3, domain)

    def bind(self, eq: EventQueue, flags: int = 0) -> None:
        """Report insertions to an event queue (fi_av_bind; deprecated). For vectors opened with `fi.EVENT`.

        Args:
            eq: The event queue; held until the vector is closed.
            flags: 0.

        Raises:
            BadFlags: Unknown flags.
            BadState: The vector or the queue is closed.

        Source: fi_av(3) fi_av_bind.
        """
        _handle.check(self, "av.bind")
        if not self.domain.policy.vectors.binds:
            raise self._refuse(
                Rule.AV_BIND, f"av.bind: {self.domain.provider.name} reports insertions by their return value"
            )
        _handle.expect(eq, EventQueue, "av.bind", "eq")
        _handle.check(eq, "av.bind")
        flags = _args.number("av.bind", flags=flags)
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
        fi_addr: int | Iterable[int] | None = None,
    ) -> list[int]: ...
    def insert(
        self,
        addr: str | bytes | tuple[str, int] | Iterable[str | bytes | tuple[str, int]],
        count: int | None = None,
        flags: int = 0,
        context: Any = None,
        *,
        fi_addr: int | Iterable[int] | None = None,
    ) -> int | list[int]:
        """Insert addresses (fi_av_insert).

        Args:
            addr: An address from `Endpoint.getname()`, or several. `(host, port)`, a struct sockaddr_in or sockaddr_in6
                mean endpoint number `port` of the process that listens at that host and port.
            count: Number of addresses to read; None: all.
            flags: `fi.MORE` (a hint). `fi.SYNC_ERR`: context is a list that receives an error number for each address,
                0 for those inserted; bad addresses then do not raise.
            context: The context of the event, for a vector opened with `fi.EVENT`.
            fi_addr: With the flag `fi.AUTH_KEY`, required on a domain opened with `fi.AV_AUTH_KEY`: the authorization
                key of these peers, from insert_auth_key. With the flag `fi.AV_USER_ID`: the peer's id in completions,
                or a list with an id for each address.

        Returns:
            The fi_addr of one address, or a list of them in order (`fi.ADDR_NOTAVAIL` where one failed).

        Raises:
            InvalidArgument: An address is bad; nothing is inserted.
            NoEq: The vector was opened with `fi.EVENT`, and no event queue is bound.
            BadFlags: Unknown flags.

        Source: fi_av(3) fi_av_insert.
        """
        _handle.check(self, "av.insert")
        flags = _args.number("av.insert", flags=flags)
        _args.maybe("av.insert", count=count)
        known = self.domain.policy.vectors.insert_flags
        if flags & ~known:
            raise self._refuse(
                Rule.AV_INSERT_FLAGS, f"av.insert: flags {AvFlag(flags)!s}; known here: {AvFlag(known)!s}"
            )
        ids = self._ids_of(flags, fi_addr)
        if ids is not None:
            key = None
        else:
            _args.maybe("av.insert", fi_addr=fi_addr)
            key = fi_addr if isinstance(fi_addr, int) else None
        vni = self._vni_for("av.insert", flags, key)
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
        if ids is not None and len(ids) < len(parsed):
            raise self._refuse(Rule.AV_USER_ID, f"av.insert: {len(ids)} user ids for {len(parsed)} addresses")
        found: list[int] = []
        status: list[int] = []
        for entry in parsed:
            if isinstance(entry, errors.FabricError):
                found.append(ADDR_NOTAVAIL)
                status.append(int(entry.errno or Errno.EINVAL))
            else:
                found.append(self.insert_address(*entry))
                status.append(0)
                if self.domain.policy.vectors.counted:
                    self._uses[found[-1]] = self._uses.get(found[-1], 0) + 1
                if key is not None:
                    self._key_of[found[-1]] = key
                if ids is not None:
                    self.set_user_id_of(found[-1], ids[len(found) - 1])
        if sync_err:
            context[:] = status
        if self._eq is not None:
            for i, err in enumerate(status):
                if err:
                    self._eq.post_error(EqErrEntry(self, context, i, err))
            self._eq.post(EqEvent.AV_COMPLETE, EqEntry(self, context, status.count(0)))
        return found[0] if one and found else found

    def insertsvc(self, node: str | None, service: str | None = None, flags: int = 0, context: Any = None) -> int:
        """Insert an address given as node and service, as for getinfo (fi_av_insertsvc).

        Args:
            node: NIC: `"weft0"`, `"0"`, or a whole address string; or another host: `"host"`, `"host:port"`.
            service: The endpoint's number at that node, as text. With a `"host"`: the port, and the endpoint's number.

        Returns:
            The fi_addr.

        Raises:
            InvalidArgument: Neither was given, no endpoint is named, or the address is bad.
            NotAvailable: There is no such NIC or number.
            NoEq: As `insert`.

        Source: fi_av(3) fi_av_insertsvc.
        """
        _handle.check(self, "av.insertsvc")
        _args.text("av.insertsvc", node=node, service=service)
        flags = _args.number("av.insertsvc", flags=flags)
        asked = Asked(LIBRARY_VERSION, node, service)
        if not self.domain.policy.vectors.service_alone and (node is None or service is None):
            raise self._refuse(
                Rule.AV_INSERTSVC_NAME, f"av.insertsvc: node {node!r}, service {service!r}: both are needed here"
            )
        try:
            _, dest = self.domain.provider.resolve(asked, None)
        except errors.InvalidArgument as reason:
            raise self._refuse(Rule.AV_INSERTSVC_SENSE, reason.message, op="av.insertsvc") from None
        except errors.NotAvailable as reason:
            raise self._refuse(Rule.AV_INSERTSVC_UNKNOWN, reason.message, op="av.insertsvc") from None
        if dest is None:
            raise self._refuse(Rule.AV_INSERTSVC_NAME, "av.insertsvc: neither node nor service was given")
        found: int = self.insert(dest, None, flags, context)
        return found

    def insertsym(
        self,
        node: str | None,
        nodecnt: int = 1,
        service: str | None = None,
        svccnt: int = 1,
        flags: int = 0,
        context: Any = None,
    ) -> list[int]:
        """Insert the addresses of numbered nodes and services (fi_av_insertsym). No provider of Weft supports
        the call: raises NoSys.

        Source: fi_av(3) fi_av_insertsym.
        """
        _handle.check(self, "av.insertsym")
        _args.text("av.insertsym", node=node, service=service)
        _args.whole("av.insertsym", nodecnt=nodecnt, svccnt=svccnt, flags=flags)
        flags = int(flags)
        raise self._refuse(
            Rule.AV_INSERTSYM,
            "av.insertsym: not supported\n  try: insert(addresses), or insertsvc for each node and service",
        )

    def set_user_id(self, fi_addr: int, user_id: int, flags: int = 0) -> None:
        """Set the id that completions report for a peer in place of its fi_addr (fi_av_set_user_id).

        Args:
            user_id: Any number of 64 bits; until it is set, completions report `fi.ADDR_NOTAVAIL`.
            flags: 0, or `fi.AUTH_KEY`: fi_addr is that of an authorization key, which errors of unknown senders report.

        Raises:
            InvalidArgument: The vector was opened without `fi.AV_USER_ID`, or the fi_addr is not in use.
            BadFlags: Unknown flags.

        Source: fi_av(3) fi_av_set_user_id.
        """
        op = "av.set_user_id"
        _handle.check(self, op, fi_addr=fi_addr, user_id=user_id, flags=flags)
        flags = int(flags)
        if flags & ~int(AvFlag.AUTH_KEY):
            raise self._refuse(Rule.AV_INSERT_FLAGS, f"{op}: flags {AvFlag(flags)!s}; AUTH_KEY is supported")
        if not self.flags & Flag.AV_USER_ID:
            raise self._refuse(
                Rule.AV_USER_ID, f"{op}: {self!r} was not opened with AV_USER_ID\n  try: av_open(flags=fi.AV_USER_ID)"
            )
        if flags:
            self._keyed(op)
            self._key(fi_addr)
            self._key_ids[fi_addr] = user_id
        else:
            self.set_user_id_of(fi_addr, user_id)

    def user_id(self, fi_addr: int) -> int:
        """The number that completions report for a peer: its user id; without an id its fi_addr, or `fi.ADDR_NOTAVAIL`
        in a vector opened with `fi.AV_USER_ID`. Not part of libfabric's interface.
        """
        _handle.check(self, "av.user_id", fi_addr=fi_addr)
        return self.user_id_of(fi_addr)

    def _ids_of(self, flags: int, fi_addr: Any) -> list[int] | None:
        """The user ids of an insertion; None without FI_AV_USER_ID."""
        if not flags & Flag.AV_USER_ID:
            return None
        why = None
        if flags & AvFlag.AUTH_KEY:
            why = "AUTH_KEY uses fi_addr for the key"
        elif self.flags & Flag.AV_USER_ID:
            why = "the vector was opened with AV_USER_ID: set_user_id() gives the ids"
        elif self.flags & AvFlag.SYMMETRIC:
            why = "a symmetric vector names peers by their index"
        elif fi_addr is None:
            why = "fi_addr must hold the ids"
        if why is not None:
            raise self._refuse(Rule.AV_USER_ID, f"av.insert: flags {AvFlag(flags)!s}: {why}")
        ids = [fi_addr] if isinstance(fi_addr, int) else _args.each("av.insert", "fi_addr", fi_addr, "numbers, or one")
        for one in ids:
            _args.whole("av.insert", fi_addr=one)
        return ids

    def remove(self, fi_addr: int | Iterable[int], count: int | None = None, flags: int = 0) -> None:
        """Remove addresses (fi_av_remove). Their fi_addr may be given to other addresses later.

        Args:
            fi_addr: One number, or several.
            count: How many of several are removed; None for all.
            flags: `fi.AUTH_KEY`: the numbers are those of authorization keys.

        Raises:
            InvalidArgument: A fi_addr is not in use.
            Busy: A peer or an enabled endpoint uses the key.
            BadFlags: Unknown flags.

        Source: fi_av(3) fi_av_remove.
        """
        _handle.check(self, "av.remove")
        flags = _args.number("av.remove", flags=flags)
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
            elif self._uses.get(index, 0) > 1:
                self._uses[index] -= 1
            else:
                try:
                    self.remove_address(index)
                except errors.InvalidArgument as unknown:
                    if self.domain.policy.vectors.remove_unknown == "ignore":
                        continue
                    raise self._refuse(Rule.AV_REMOVE_UNKNOWN, unknown.message) from None
                for kept in (self._key_of, self._uses):
                    kept.pop(index, None)

    def lookup(self, fi_addr: int) -> Any:
        """The address of a fi_addr, in the form in which it was inserted (fi_av_lookup).

        Raises InvalidArgument for a fi_addr that is not in use. Source: fi_av(3) fi_av_lookup.
        """
        _handle.check(self, "av.lookup", fi_addr=fi_addr)
        return self.domain.provider.addresses.emit(self.lookup_address(fi_addr))

    def av_set(self, attr: AvSetAttr, context: Any = None) -> AvSet:
        """An ordered set of addresses of this vector, for collective groups (fi_av_set).

        Args:
            attr: The first members; `fi.AvSetAttr()` for an empty set.
            context: Kept as `AvSet.context`.

        Raises:
            InvalidArgument: A range of a vector of type AV_MAP, half a range, or a communication key of a wrong size.
            BadFlags: Unknown flags.

        Source: fi_av_set(3) fi_av_set.
        """
        _handle.check(self, "av_set")
        _handle.expect(attr, AvSetAttr, "av_set", "attr")
        return AvSet(self, attr, context)

    # ---- authorization keys: domains opened with FI_AV_AUTH_KEY ------------------------------------------------------

    @property
    def vnis(self) -> list[int]:
        """The VNIs of the vector's authorization keys."""
        return [key.vni for key in self._keys if key is not None]

    def _key_with(self, vni: int) -> int | None:
        """The number that errors report for the authorization key with this VNI: its user id in a vector opened with
        FI_AV_USER_ID, otherwise its fi_addr; None if there is no such key.
        """
        found = next((at for at, key in enumerate(self._keys) if key is not None and key.vni == vni), None)
        if found is None or not self.flags & Flag.AV_USER_ID:
            return found
        return self._key_ids.get(found, ADDR_NOTAVAIL)

    def insert_auth_key(self, auth_key: Any, auth_key_size: int = 0, flags: int = 0) -> int:
        """Insert an authorization key (fi_av_insert_auth_key), before an endpoint of the vector is enabled.

        Args:
            auth_key: Bytes, in the provider's format.
            auth_key_size: Number of bytes; 0 for all.
            flags: 0.

        Returns:
            The key's fi_addr, numbered separately from peers; a known key gets the same number again.

        Raises:
            InvalidArgument: There is no key, or the domain was opened without `fi.AV_AUTH_KEY`.
            NoSpace: More keys than domain_attr.max_ep_auth_key.
            Busy: An endpoint of the vector is enabled.
            BadFlags: Unknown flags.

        Source: fi_av(3) fi_av_insert_auth_key.
        """
        op = "av.insert_auth_key"
        _handle.check(self, op, auth_key_size=auth_key_size, flags=flags)
        flags = int(flags)
        if flags:
            raise self._refuse(Rule.AV_AUTH_KEY_FLAGS, f"{op}: flags {AvFlag(flags)!s}; they have to be 0")
        self._keyed(op)
        provider = self.domain.provider
        raw = auth_key_bytes(provider, auth_key, auth_key_size)
        rules = self.domain.policy.vectors
        most = self.domain.attr.max_ep_auth_key
        full = self._refuse(
            Rule.AV_AUTH_KEY_COUNT,
            f"{op}: {self!r} holds {most} keys, max_ep_auth_key\n"
            "  try: a larger domain_attr.max_ep_auth_key in the hints",
        )
        if rules.counted and len(self.vnis) >= most:
            raise full
        key = self.domain.policy.credential_of(raw)
        if key in self._keys:
            at = self._keys.index(key)
            self._key_uses[at] += 1
            return at
        if not rules.keys_later:
            self._no_enabled(op)
        if len(self.vnis) >= most:
            raise full
        if None in self._keys:
            at = self._keys.index(None)
            self._keys[at] = key
        else:
            at = len(self._keys)
            self._keys.append(key)
        self._key_uses[at] = 1
        return at

    def lookup_auth_key(self, fi_addr: int) -> bytes:
        """The authorization key of a fi_addr that `insert_auth_key` returned (fi_av_lookup_auth_key).

        Raises InvalidArgument for any other number. Source: fi_av(3) fi_av_lookup_auth_key.
        """
        _handle.check(self, "av.lookup_auth_key", fi_addr=fi_addr)
        self._keyed("av.lookup_auth_key")
        return self.domain.policy.key_of(self._key(fi_addr))

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
                f"{op}: {users[0]!r} took the vector's keys when it was enabled; close the endpoint first",
            )

    def _remove_auth_key(self, fi_addr: int) -> None:
        op = "av.remove"
        self._keyed(op)
        self._key(fi_addr)
        if self._key_uses[fi_addr] > 1 and self.domain.policy.vectors.counted:
            self._key_uses[fi_addr] -= 1
            return
        self._no_enabled(op)
        if fi_addr in self._key_of.values():
            raise self._refuse(
                Rule.AV_AUTH_KEY_BUSY, f"{op}: peers of {self!r} use the key {fi_addr}; remove them first"
            )
        self._keys[fi_addr] = None
        self._key_ids.pop(fi_addr, None)

    def straddr(self, addr: object) -> str:
        """An address in printable form, inserted or not (fi_av_straddr).

        Raises InvalidArgument for anything but an address of this provider. Source: fi_av(3) fi_av_straddr.
        """
        codec = self.domain.provider.addresses
        return codec.text(codec.parse(addr))

    def _release(self) -> None:
        _nic.AddressVectorCore.close(self)

    def _parents(self) -> tuple[Any, ...]:
        return (self.domain,) if self._eq is None else (self.domain, self._eq)

    def _parse(self, name: Any, key_vni: int | None = None) -> tuple[int, int, int] | errors.FabricError:
        try:
            nic, pid, vni = self.domain.policy.peer(self.domain.provider.addresses.parse(name), key_vni)
        except errors.FabricError as e:
            return e
        if pid is None:
            return self._refuse(
                Rule.AV_INSERT_ADDRESS,
                f"av.insert: {name!r} names no endpoint: the pid is missing\n  try: the peer's Endpoint.getname()",
            )
        return nic, pid, vni

    def __repr__(self) -> str:
        kind = self.type.name.removeprefix("AV_")
        return f"<AddressVector {kind} {'closed' if self._closed else f'{self.count()} peers'}>"
