"""Address vector sets (fi_av_set): the members of a collective group. Source: fi_av_set(3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _nic
from ..flags import ADDR_NOTAVAIL, AvSetFlag, AvType
from . import _args, _handle
from .rules import Rule

if TYPE_CHECKING:
    from .av import AddressVector

_FLAGS = sum(int(one) for one in AvSetFlag)
_ALL = (1 << 64) - 1


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


class Range(NamedTuple):
    """Numbers of a vector: first, first + stride ... to last, those in use; of them at most `most`."""

    first: int = 0
    last: int = _ALL
    stride: int = 1
    most: int = _ALL


class Named(NamedTuple):
    """What the attributes of a set name.

    Attributes:
        first: The first members; None: there are none.
        comm_key: The communication key; None: the provider manages the group.
    """

    first: Range | None
    comm_key: bytes | None


def named(av: AddressVector, attr: AvSetAttr, key_of: Callable[[AvSetAttr], bytes | None] | None = None) -> Named:
    """Check the attributes of a set. key_of: finds the key in the place of the provider's rules."""
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
    policy, flags = av.domain.policy, int(attr.flags)
    refuse, rules = policy.refusals.refuse, policy.vectors
    if flags & ~_FLAGS:
        raise refuse(Rule.AV_SET_FLAGS, f"{op}: flags {AvSetFlag(flags)!s}; known: {AvSetFlag(_FLAGS)!s}")
    comm_key = _key(av, attr) if key_of is None else key_of(attr)
    if flags & AvSetFlag.UNIVERSE:
        return Named(Range(), comm_key)
    start, end, stride, count = int(attr.start_addr), int(attr.end_addr), int(attr.stride), int(attr.count)
    ranged = start != ADDR_NOTAVAIL
    why = None
    if ranged != (end != ADDR_NOTAVAIL):
        why = "start_addr and end_addr are given together, or both are ADDR_NOTAVAIL"
    elif not ranged and stride > 1:
        why = f"stride {stride} needs a range: without one it is 0 or 1"
    elif ranged and av.type == AvType.AV_MAP:
        why = "a range needs a vector of type AV_TABLE; insert() takes single addresses"
    elif ranged and rules.set_count and not count:
        why = "count is 0; with a range it is the number of members"
    elif ranged and end < start:
        why = f"end_addr {end} is before start_addr {start}"
    if why is not None:
        raise refuse(Rule.AV_SET_RANGE, f"{op}: {why}")
    return Named(Range(start, end, stride or 1, count if rules.set_count else _ALL) if ranged else None, comm_key)


def _key(av: AddressVector, attr: AvSetAttr) -> bytes | None:
    refuse = av.domain.policy.refusals.refuse
    if attr.comm_key is None:
        if attr.comm_key_size:
            raise refuse(Rule.AV_SET_COMM_KEY, f"av_set: comm_key is None, but comm_key_size is {attr.comm_key_size}")
        return None
    key = _args.octets("av_set", "comm_key", attr.comm_key)
    size = int(attr.comm_key_size) or len(key)
    wanted = av.domain.policy.vectors.comm_key_bytes
    if not wanted:
        raise refuse(
            Rule.AV_SET_COMM_KEY,
            f"av_set: a comm_key of {size} bytes; this provider manages the membership itself and has no keys",
        )
    if size != wanted or len(key) < size:
        raise refuse(
            Rule.AV_SET_COMM_KEY,
            f"av_set: comm_key of {len(key)} bytes, comm_key_size {size}; a key has {wanted} bytes",
        )
    return key[:size]


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
        self._refuse = av.domain.policy.refusals.refuse
        first, self.comm_key = self._named(attr)  # comm_key: as given; `None`: the provider manages the group
        self._core = _nic.AddressSet([] if first is None else self._in_use(first))
        self._opened(3, av)

    def _named(self, attr: AvSetAttr) -> Named:
        return named(self.av, attr)

    def _in_use(self, of: Range) -> list[int]:
        """The fi_addr numbers of a range that are in use, ascending."""
        return _nic.addresses_in_use(self.av, *of)

    # ---- members -----------------------------------------------------------------------------------------------------

    @property
    def members(self) -> tuple[int, ...]:
        """The fi_addr of the set, in order."""
        return tuple(self._core.addresses())

    def __len__(self) -> int:
        return len(self._core)

    def __iter__(self) -> Iterator[int]:
        return iter(self.members)

    def __contains__(self, fi_addr: object) -> bool:
        return fi_addr in self.members

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
        self._changed(op, self._core.insert(addr))

    def remove(self, addr: int) -> None:
        """Remove an address; the others keep their order (fi_av_set_remove).

        Raises InvalidArgument for an address that is not in the set, NotPermitted as `insert`.
        Source: fi_av_set(3) fi_av_set_remove.
        """
        op = "av_set.remove"
        self._changing(op)
        _args.whole(op, addr=addr)
        self._changed(op, self._core.remove(addr))

    def union(self, src: AvSet) -> None:
        """Append the addresses of another set that this one has not (fi_av_set_union).

        Args:
            src: A set of the same vector; it does not change.

        Raises:
            InvalidArgument: `src` is a set of another vector.
            NotPermitted: As `insert`.

        Source: fi_av_set(3).
        """
        self._combine("av_set.union", src, self._core.unite)

    def intersect(self, src: AvSet) -> None:
        """Keep only addresses that the other set has too (fi_av_set_intersect). As `union`."""
        self._combine("av_set.intersect", src, self._core.intersect)

    def diff(self, src: AvSet) -> None:
        """Remove the addresses of another set (fi_av_set_diff). As `union`."""
        self._combine("av_set.diff", src, self._core.subtract)

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
                Rule.AV_SET_JOINED, f"{op}: a group uses {self!r}\n  try: close the group first, or another set"
            )

    def _changed(self, op: str, why: str) -> None:
        """Raise the reason why the set did not change, if there is one."""
        if why:
            raise self._refuse(Rule.AV_SET_MEMBER, f"{op}: {why}")

    def _combine(self, op: str, src: AvSet, by: Callable[[_nic.AddressSet], None]) -> None:
        self._changing(op)
        _handle.expect(src, AvSet, op, "src")
        _handle.check(src, op)
        if src.av is not self.av:
            raise self._refuse(Rule.AV_SET_VECTOR, f"{op}: {src!r} is of another vector than {self!r}")
        by(src._core)

    # ---- life --------------------------------------------------------------------------------------------------------

    def _parents(self) -> tuple[Any, ...]:
        return (self.av,)

    def __repr__(self) -> str:
        return f"<AvSet {'closed' if self._closed else f'{len(self)} members'}>"
