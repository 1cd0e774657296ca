"""Address vector sets (fi_av_set): the members of a collective group. Source: fi_av_set(3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import errors
from ..flags import ADDR_NOTAVAIL, ADDR_UNSPEC, AvSetFlag, AvType
from . import _args, _handle
from .rules import Rule

if TYPE_CHECKING:
    from .av import AddressVector

__all__ = ["AvSet", "AvSetAttr"]

_FLAGS = sum(int(one) for one in AvSetFlag)


@dataclass(slots=True)
class AvSetAttr:
    """The first members of a set (struct fi_av_set_attr).

    Attributes:
        count: Expected number of members. Provider cxi: most members taken from the range; at least 1 if there is a
            range.
        start_addr: First fi_addr of a range; `fi.ADDR_NOTAVAIL` here and in end_addr: no range. Numbers of the range
            that are not in use are skipped. Only for vectors of type `fi.AV_TABLE`.
        end_addr: Last fi_addr of the range.
        stride: Distance of successive members; 0 means 1. Without a range: 0 or 1.
        comm_key_size: Bytes of comm_key; 0 for all of it.
        comm_key: Bytes in the provider's format, or None. Provider cxi: `cxi.CollCommKey`.
        flags: `fi.UNIVERSE`: all addresses of the vector; range, count and stride are ignored. `fi.BARRIER_SET` and the
            like are hints.

    Source: fi_av_set(3) fi_av_set_attr.
    """

    count: int = 0
    start_addr: int = ADDR_NOTAVAIL
    end_addr: int = ADDR_NOTAVAIL
    stride: int = 0
    comm_key_size: int = 0
    comm_key: Any = None
    flags: int = 0


class AvSet(_handle.LifeInDomain):
    """An ordered list of addresses of a vector, without duplicates (struct fid_av_set). Made by `AddressVector.av_set`.

    Making and changing a set is local: each member of a group makes an equal set by itself. `len(set)`, `in` and
    iteration see the fi_addr in order.

    Thread safety: any thread; calls that change one set exclude each other in the application.
    Source: fi_av_set(3).
    """

    _called = "av_set"

    def __init__(self, av: AddressVector, attr: AvSetAttr, context: Any) -> None:
        self.av = av
        self.domain = av.domain
        self.context = context
        self.comm_key: bytes | None = None  # as given; `None`: the provider manages the group
        self._children: _handle.Children = {}
        self._refuse = av.domain.policy.refusals.refuse
        self._members = self._first(attr)
        self._site = _handle.here(3)
        _handle.adopt(self, av)

    def _first(self, attr: AvSetAttr) -> list[int]:
        """Check the attributes; the members that they name."""
        op = "av_set"
        _args.whole(
            op,
            count=attr.count,
            start_addr=attr.start_addr,
            end_addr=attr.end_addr,
            stride=attr.stride,
            comm_key_size=attr.comm_key_size,
            flags=attr.flags,
        )
        rules, flags = self.domain.policy.vectors, int(attr.flags)
        if flags & ~_FLAGS:
            raise self._refuse(Rule.AV_SET_FLAGS, f"{op}: flags {AvSetFlag(flags)!s}; known: {AvSetFlag(_FLAGS)!s}")
        self.comm_key = self._key(attr)
        if flags & AvSetFlag.UNIVERSE:
            return self._in_use()
        start, end, stride, count = int(attr.start_addr), int(attr.end_addr), int(attr.stride), int(attr.count)
        ranged = start != ADDR_NOTAVAIL
        why = None
        if ranged != (end != ADDR_NOTAVAIL):
            why = "start_addr and end_addr are given together, or both are ADDR_NOTAVAIL"
        elif not ranged and stride > 1:
            why = f"stride {stride} needs a range: without one it is 0 or 1"
        elif ranged and self.av.type == AvType.AV_MAP:
            why = "a range needs a vector of type AV_TABLE; insert() takes single addresses"
        elif ranged and rules.set_count and not count:
            why = "count is 0; with a range it is the number of members"
        elif ranged and end < start:
            why = f"end_addr {end} is before start_addr {start}"
        if why is not None:
            raise self._refuse(Rule.AV_SET_RANGE, f"{op}: {why}", op=op)
        if not ranged:
            return []
        stride = stride or 1
        found = [at for at in self._in_use() if start <= at <= end and (at - start) % stride == 0]
        return found[:count] if rules.set_count else found

    def _in_use(self) -> list[int]:
        """The fi_addr numbers of the vector that are in use, ascending."""
        found: list[int] = []
        at = 0
        while len(found) < self.av.count():
            try:
                self.av.lookup_address(at)
                found.append(at)
            except errors.InvalidArgument:
                pass  # a free number
            at += 1
        return found

    def _key(self, attr: AvSetAttr) -> bytes | None:
        if attr.comm_key is None:
            if attr.comm_key_size:
                raise self._refuse(
                    Rule.AV_SET_COMM_KEY, f"av_set: comm_key is None, but comm_key_size is {attr.comm_key_size}"
                )
            return None
        key = _args.octets("av_set", "comm_key", attr.comm_key)
        size = int(attr.comm_key_size) or len(key)
        wanted = self.domain.policy.vectors.comm_key_bytes
        if not wanted:
            raise self._refuse(
                Rule.AV_SET_COMM_KEY,
                f"av_set: a comm_key of {size} bytes; this provider manages the membership itself and has no keys",
            )
        if size != wanted or len(key) < size:
            raise self._refuse(
                Rule.AV_SET_COMM_KEY,
                f"av_set: comm_key of {len(key)} bytes, comm_key_size {size}; a key has {wanted} bytes",
            )
        return key[:size]

    # ---- members -----------------------------------------------------------------------------------------------------

    @property
    def members(self) -> tuple[int, ...]:
        """The fi_addr of the set, in order."""
        return tuple(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[int]:
        return iter(self.members)

    def __contains__(self, fi_addr: object) -> bool:
        return fi_addr in self._members

    def insert(self, addr: int) -> None:
        """Append an address (fi_av_set_insert).

        Args:
            addr: A fi_addr; whether it is in use is checked when a group is joined.

        Raises:
            InvalidArgument: The address is in the set already.
            NotPermitted: A group of the provider cxi uses the set.

        Source: fi_av_set(3) fi_av_set_insert.
        """
        op = "av_set.insert"
        self._changing(op)
        _args.whole(op, addr=addr)
        if addr in (ADDR_NOTAVAIL, ADDR_UNSPEC):
            raise self._refuse(Rule.AV_SET_MEMBER, f"{op}: addr {addr:#x} is no fi_addr of a peer", op=op)
        if addr in self._members:
            raise self._refuse(Rule.AV_SET_MEMBER, f"{op}: fi_addr {addr} is in the set already", op=op)
        self._members.append(int(addr))

    def remove(self, addr: int) -> None:
        """Remove an address; the others keep their order (fi_av_set_remove).

        Raises InvalidArgument for an address that is not in the set, NotPermitted as `insert`.
        Source: fi_av_set(3) fi_av_set_remove.
        """
        op = "av_set.remove"
        self._changing(op)
        _args.whole(op, addr=addr)
        if addr not in self._members:
            raise self._refuse(Rule.AV_SET_MEMBER, f"{op}: fi_addr {addr} is not in the set", op=op)
        self._members.remove(addr)

    def union(self, src: AvSet) -> None:
        """Append the addresses of another set that this one has not (fi_av_set_union).

        Args:
            src: A set of the same vector; it does not change.

        Raises:
            InvalidArgument: `src` is a set of another vector.
            NotPermitted: As `insert`.

        Source: fi_av_set(3).
        """
        self._combine("av_set.union", src, lambda mine, theirs: [*mine, *(at for at in theirs if at not in mine)])

    def intersect(self, src: AvSet) -> None:
        """Keep only addresses that the other set has too (fi_av_set_intersect). As `union`."""
        self._combine("av_set.intersect", src, lambda mine, theirs: [at for at in mine if at in theirs])

    def diff(self, src: AvSet) -> None:
        """Remove the addresses of another set (fi_av_set_diff). As `union`."""
        self._combine("av_set.diff", src, lambda mine, theirs: [at for at in mine if at not in theirs])

    def addr(self) -> int:
        """The collective address of the set (fi_av_set_addr): `fi.ADDR_NOTAVAIL`, which a join takes as coll_addr.

        The address for collective calls comes from the join. Source: fi_av_set(3) fi_av_set_addr.
        """
        _handle.check(self, "av_set.addr")
        return ADDR_NOTAVAIL

    def _changing(self, op: str) -> None:
        _handle.check(self, op)
        if self.domain.policy.vectors.set_fixed and _handle.live(self._children):
            raise self._refuse(
                Rule.AV_SET_JOINED, f"{op}: a group uses {self!r}\n  try: close the group first, or another set", op=op
            )

    def _combine(self, op: str, src: AvSet, by: Callable[[list[int], list[int]], list[int]]) -> None:
        self._changing(op)
        _handle.expect(src, AvSet, op, "src")
        _handle.check(src, op)
        if src.av is not self.av:
            raise self._refuse(Rule.AV_SET_VECTOR, f"{op}: {src!r} is of another vector than {self!r}", op=op)
        self._members = by(self._members, src._members)

    # ---- life --------------------------------------------------------------------------------------------------------

    def _parents(self) -> tuple[Any, ...]:
        return (self.av,)

    def __repr__(self) -> str:
        return f"<AvSet {'closed' if self._closed else f'{len(self._members)} members'}>"
