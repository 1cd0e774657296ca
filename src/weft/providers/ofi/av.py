"""Address vectors of a real libfabric (fi_av). Source: fi_av(3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ... import _nic, errors
from ...fi import _args, _handle
from ...fi._control import Controlled
from ...fi.attrs import AvAttr
from ...fi.av_set import AvSetAttr
from ...flags import ADDR_NOTAVAIL, AddrFormat, AvFlag, AvType, Errno, Flag
from ._common import stands_for
from .av_set import RealAvSet
from .info import octets_of, packed

if TYPE_CHECKING:
    from .domain import RealDomain

_IP_SIZES = {int(AddrFormat.SOCKADDR_IN): 16, int(AddrFormat.SOCKADDR_IN6): 28}
_NAME_MAX = 255  # bytes of a name under FI_ADDR_STR


class RealAddressVector(Controlled, _handle.LifeInDomain, _nic.OfiAddressVectorCore):
    """The peers that an endpoint can name (struct fid_av). Made by `Domain.av_open`.

    Addresses are what getname() returned at the peer: bytes, or a str under FI_ADDR_STR; over IP also (host, port).
    Source: fi_av(3).
    """

    __class__ = stands_for("av.AddressVector")

    _called = "av"
    domain: Any

    def __init__(self, domain: RealDomain, attr: AvAttr, context: Any) -> None:
        self.domain = domain
        self.context = context
        self._inserted: set[int] = set()
        self._keys: set[int] = set()
        self._eq: Any = None
        self.type = AvType(attr.type) if attr.type in AvType.__members__.values() else attr.type
        self.flags = attr.flags
        _nic.OfiAddressVectorCore.__init__(
            self, domain, int(attr.type), attr.rx_ctx_bits, attr.count, attr.ep_per_node, attr.name, attr.flags
        )
        self._opened(3, domain)

    def _format(self) -> int:
        return int(self.domain.info.addr_format)

    def insert(
        self,
        addr: Any,
        count: int | None = None,
        flags: int = 0,
        context: Any = None,
        *,
        fi_addr: int | Iterable[int] | None = None,
    ) -> Any:
        """Insert one address or several (fi_av_insert): the fi_addr, or a list of them.

        Args:
            flags: The library's flags. `fi.SYNC_ERR`: context is a list that receives an error number for each
                address.
            fi_addr: With `fi.AV_USER_ID` the peers' ids, with `fi.AUTH_KEY` the key's fi_addr: a number, or one for
                each.

        Raises:
            InvalidArgument: An argument is wrong.
            FabricError: The library refuses; none of the addresses is inserted then, except under SYNC_ERR.

        Source: fi_av(3) fi_av_insert.
        """
        op = "av.insert"
        _handle.check(self, op, flags=flags)
        _args.maybe(op, count=count)
        names, one = self._split(op, addr)
        if count is not None:
            names = names[:count]
        given = self._given(op, int(flags), fi_addr, len(names))
        if self._eq is not None and self.flags & Flag.EVENT:
            if given != [None] * len(names) or int(flags) & AvFlag.SYNC_ERR:
                raise errors.InvalidArgument(
                    f"{op}: fi_addr and SYNC_ERR do not go with insertions that are events\n"
                    "  try: a vector without fi.EVENT; the event queue has the errors of this one"
                )
            return self._insert_with_event(names, one, int(flags), context)
        sync = bool(int(flags) & AvFlag.SYNC_ERR)
        if sync and not isinstance(context, list):
            raise errors.InvalidArgument(f"{op}: with SYNC_ERR, context has to be a list for the error numbers")
        found: list[int] = []
        status: list[int] = []
        new: list[int] = []
        for name, number in zip(names, given, strict=True):
            try:
                found.append(
                    self.insert_one(packed_name(name, self._format()), int(flags) & ~int(AvFlag.SYNC_ERR), number)
                )
                if found[-1] not in self._inserted:
                    new.append(found[-1])
                    self._inserted.add(found[-1])
                status.append(0)
            except errors.FabricError as reason:
                if not sync:
                    if new:
                        self.remove(new)
                    raise
                found.append(ADDR_NOTAVAIL)
                status.append(int(reason.errno or Errno.EINVAL))
        if sync:
            context[:] = status
        return found[0] if one and found else found

    def bind(self, eq: Any, flags: int = 0) -> None:
        """Report insertions to an event queue (fi_av_bind; deprecated), of a vector opened with `fi.EVENT`. Raises the
        library's refusal. Few providers report them. Source: fi_av(3) fi_av_bind."""
        from .eq import RealEventQueue

        _handle.check(self, "av.bind")
        if type(eq) is not RealEventQueue or eq.fabric is not self.domain.fabric:
            raise errors.InvalidArgument(
                f"av.bind: a vector takes an event queue of its fabric, not {eq!r}\n  try: fabric.eq_open()"
            )
        _handle.check(eq, "av.bind", flags=flags)
        self.bind_eq(eq, int(flags))
        self._eq = eq
        _handle.adopt(self, eq)

    def _no_events(self, op: str, flags: int) -> None:
        """Refuse an insertion whose event or errors the library would write through a NULL context."""
        _args.whole(op, flags=flags)
        if (self._eq is not None and self.flags & Flag.EVENT) or int(flags) & AvFlag.SYNC_ERR:
            raise errors.InvalidArgument(
                f"{op}: SYNC_ERR, and vectors whose insertions are events, are for av.insert()\n"
                "  try: av.insert() of what getname() returned at the peer"
            )

    def _insert_with_event(self, names: list[Any], one: bool, flags: int, context: Any) -> Any:
        raw: list[bytes] = []
        for name in names:
            raw.append(packed_name(name, self._format()))
            if self._format() == AddrFormat.ADDR_STR:
                raw[-1] += b"\0"
        if len({len(each) for each in raw}) > 1:
            raise errors.InvalidArgument(
                "av.insert: with events, the addresses of a call have one size\n  try: a call for each"
            )
        number = self.domain.fabric._expect(self, context)
        try:
            count, fi_addrs = self.insert_event(raw, flags, number)
        except BaseException:
            self.domain.fabric._expected.pop(number, None)
            raise
        if count:  # no event comes: some providers ignore FI_EVENT
            self.domain.fabric._expected.pop(number, None)
        self._inserted.update(each for each in fi_addrs if each != ADDR_NOTAVAIL)
        return fi_addrs[0] if one else fi_addrs

    @staticmethod
    def _given(op: str, flags: int, fi_addr: Any, count: int) -> list[int | None]:
        """fi_addr as an argument, for each address."""
        if not flags & (int(Flag.AV_USER_ID) | int(AvFlag.AUTH_KEY)):
            if fi_addr is not None:
                raise errors.InvalidArgument(f"{op}: fi_addr goes with the flags AV_USER_ID and AUTH_KEY")
            return [None] * count
        if fi_addr is None:
            raise errors.InvalidArgument(f"{op}: flags {AvFlag(flags)!s}: fi_addr must hold the ids, or the key")
        numbers = [fi_addr] * count if isinstance(fi_addr, int) else list(_args.each(op, "fi_addr", fi_addr, "numbers"))
        for number in numbers:
            _args.whole(op, fi_addr=number)
        if len(numbers) != count:
            raise errors.InvalidArgument(f"{op}: {len(numbers)} numbers in fi_addr for {count} addresses")
        return numbers

    def insert_auth_key(self, auth_key: Any, auth_key_size: int = 0, flags: int = 0) -> int:
        """Insert an authorization key (fi_av_insert_auth_key): its fi_addr, numbered apart from peers. auth_key: bytes,
        in the provider's format; auth_key_size: 0 for all. Raises the library's refusal. Source: fi_av(3)."""
        op = "av.insert_auth_key"
        _handle.check(self, op, auth_key_size=auth_key_size, flags=flags)
        key = bytes(_args.octets(op, "auth_key", auth_key))
        if auth_key_size > len(key):
            raise errors.InvalidArgument(f"{op}: auth_key_size {auth_key_size}, auth_key has {len(key)} bytes")
        found: int = self.insert_auth_key_core(key[: auth_key_size or len(key)], int(flags))
        self._keys.add(found)
        return found

    def lookup_auth_key(self, fi_addr: int) -> bytes:
        """The authorization key of a fi_addr that `insert_auth_key` returned (fi_av_lookup_auth_key). Raises
        InvalidArgument for any other number. Source: fi_av(3)."""
        op = "av.lookup_auth_key"
        _handle.check(self, op, fi_addr=fi_addr)
        if fi_addr not in self._keys:
            raise errors.InvalidArgument(
                f"{op}: {fi_addr} is no key of {self!r}\n  try: what insert_auth_key() returned"
            )
        return self.lookup_auth_key_core(int(fi_addr))

    def _split(self, op: str, addr: Any) -> tuple[list[Any], bool]:
        if isinstance(addr, (bytes, bytearray, memoryview)):
            size = _IP_SIZES.get(self._format())
            raw = bytes(addr)
            if size is not None and len(raw) > size and len(raw) % size == 0:
                return [raw[i : i + size] for i in range(0, len(raw), size)], False
            return [raw], True
        if isinstance(addr, str) or (isinstance(addr, tuple) and len(addr) in (2, 4) and isinstance(addr[1], int)):
            return [addr], True
        return list(_args.each(op, "addr", addr, "addresses, or one")), False

    def insertsvc(self, node: str | None, service: str | None = None, flags: int = 0, context: Any = None) -> int:
        """Insert an address given as node and service (fi_av_insertsvc). Raises InvalidArgument without one of them,
        and the library's refusal."""
        _handle.check(self, "av.insertsvc")
        _args.text("av.insertsvc", node=node, service=service)
        self._no_events("av.insertsvc", flags)
        if node is None or service is None:  # providers read both
            raise errors.InvalidArgument(
                "av.insertsvc: the library needs a node and a service\n"
                "  try: av.insert() of what getname() returned at the peer"
            )
        found: int = self.insertsvc_core(node, service, int(flags))
        self._inserted.add(found)
        return found

    def insertsym(
        self, node: str, nodecnt: int, service: str, svccnt: int, flags: int = 0, context: Any = None
    ) -> list[int]:
        """Insert the addresses of numbered nodes and services (fi_av_insertsym). Raises the library's refusal."""
        _handle.check(self, "av.insertsym")
        _args.text("av.insertsym", node=node, service=service)
        _args.whole("av.insertsym", nodecnt=nodecnt, svccnt=svccnt)
        self._no_events("av.insertsym", flags)
        found: list[int] = self.insertsym_core(node, int(nodecnt), service, int(svccnt), int(flags))
        self._inserted.update(one for one in found if one != ADDR_NOTAVAIL)
        return found

    def set_user_id(self, fi_addr: int, user_id: int, flags: int = 0) -> None:
        """Set the id that completions report for a peer (fi_av_set_user_id). Raises the library's refusal."""
        _handle.check(self, "av.set_user_id", fi_addr=fi_addr, user_id=user_id, flags=flags)
        self.set_user_id_core(fi_addr, user_id, int(flags))

    def remove(self, fi_addr: int | Iterable[int], count: int | None = None, flags: int = 0) -> None:
        """Remove addresses (fi_av_remove). Raises the library's refusal; InvalidArgument for one that is not in use."""
        op = "av.remove"
        _handle.check(self, op, flags=flags)
        _args.maybe(op, count=count)
        each = [fi_addr] if isinstance(fi_addr, int) else list(_args.each(op, "fi_addr", fi_addr, "fi_addrs"))
        for one in each[:count]:
            self._known(op, one)
            self._remove_one(one, int(flags))  # type: ignore[attr-defined]  # private: not in the stub
            self._inserted.discard(one)

    def lookup(self, fi_addr: int) -> Any:
        """The address of a fi_addr (fi_av_lookup). Raises InvalidArgument for one that is not in use."""
        _handle.check(self, "av.lookup")
        self._known("av.lookup", fi_addr)
        return self._lookup(fi_addr)  # type: ignore[attr-defined]  # private: not in the stub

    def _known(self, op: str, fi_addr: int) -> None:
        """The library does not check: an unknown fi_addr would crash some providers."""
        _args.whole(op, fi_addr=fi_addr)
        if int(fi_addr) not in self._inserted:
            raise errors.InvalidArgument(f"{op}: {fi_addr} is no fi_addr of {self!r}")

    def count(self) -> int:
        """Addresses in the vector."""
        return len(self._inserted)

    def av_set(self, attr: AvSetAttr, context: Any = None) -> RealAvSet:
        """An ordered set of addresses of this vector, for collective groups (fi_av_set); arguments as
        `fi.AddressVector.av_set`. Raises NotSupported where the provider has no collectives, and the library's refusal.
        Source: fi_av_set(3) fi_av_set."""
        _handle.check(self, "av_set")
        _handle.expect(attr, AvSetAttr, "av_set", "attr")
        return RealAvSet(self, attr, context)

    def straddr(self, addr: object) -> str:
        """An address in printable form (fi_av_straddr)."""
        _handle.check(self, "av.straddr")
        return self.straddr_core(packed_name(addr, self._format()))

    def _release(self) -> None:
        self.close_core()
        self.domain.fabric._expect_nothing(self)

    def _parents(self) -> tuple[Any, ...]:
        return (self.domain,) if self._eq is None else (self.domain, self._eq)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.count()} peers"
        return f"<AddressVector {self.domain.provider.name} {state}>"


def packed_name(addr: Any, addr_format: int) -> bytes:
    """An address as the extension takes it: under FI_ADDR_STR a name without its NUL. Raises InvalidArgument.

    The library does not check: it would read past the end of a short socket address, and cut a long name.
    """
    if addr_format == AddrFormat.ADDR_STR:
        if not isinstance(addr, (str, bytes, bytearray)):
            raise errors.InvalidArgument(
                f"{addr!r} is no address of this provider, which has names: str or bytes\n"
                "  try: what getname() returned at the peer"
            )
        raw = octets_of(addr) if isinstance(addr, str) else bytes(addr)
        name = raw.removesuffix(b"\0")
        if not name or b"\0" in name or len(name) > _NAME_MAX:
            raise errors.InvalidArgument(
                f"{addr!r} is no address of this provider: 1 to {_NAME_MAX} bytes, no NUL\n"
                "  try: what getname() returned at the peer"
            )
        return name
    packed_addr = packed(addr, addr_format)
    if packed_addr is None:
        raise errors.InvalidArgument("None is no address\n  try: what getname() returned at the peer")
    if len(packed_addr) != _IP_SIZES.get(addr_format, len(packed_addr)) or not packed_addr:
        raise errors.InvalidArgument(
            f"{addr!r} is no address of this provider\n  try: what getname() returned at the peer, or (host, port)"
        )
    return packed_addr
