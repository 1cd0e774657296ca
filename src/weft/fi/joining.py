"""What a join of a collective group is decided from, and what the NIC then joins. The endpoints of Python programs ask
here, and the policy helper for those of C programs.

Source: fi_collective(3), fi_cxi(7) "fi_join_collective()".
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .. import errors
from ..flags import ADDR_NOTAVAIL, Flag
from .rules import Rule

if TYPE_CHECKING:
    from .endpoint import Endpoint
    from .policy import GroupPlan

_Enabled = tuple[int, int, int]  # the address of an enabled endpoint: nic, pid, vni
_BLOCKLESS_RADIX = 4  # of members that are spread over hosts in no order


class Joiner(NamedTuple):
    """The state of an endpoint that joins, and the set of its call.

    Attributes:
        enabled: The endpoint is enabled.
        has_eq: An event queue is bound to it.
        own: Its address.
        other_vector: Why the set is of another vector than the endpoint's; empty: it is not.
        comm_key: The set's communication key.
        names: The fi_addr of the set, in order.
        find: The address of a fi_addr, called for each in order. Raises InvalidArgument where it is not in use.
        is_own: Whether an address is the endpoint's.
        hosts: For each of them, what members of one host have in common; called once the addresses are known.
    """

    enabled: bool
    has_eq: bool
    own: _Enabled
    other_vector: str
    comm_key: bytes | None
    names: Sequence[int]
    find: Callable[[int], _Enabled]
    is_own: Callable[[_Enabled], bool]
    hosts: Callable[[list[_Enabled]], Sequence[object]]


class GroupShape(NamedTuple):
    """What the NIC joins: the arguments of `_nic.GroupCore`, and the provider's plan.

    Attributes:
        plan: The provider's.
        members: The addresses, in the order that all members use.
        mine: This one's place there.
        names: The numbers by which calls name the members.
        key: The same for all members of this join, another for other sets.
        radix: Most children of a member in the group's tree, among the members of one block; member 0's counts.
        block: Members that follow each other and share a host; 0: all.
        asks: This member supplies the multicast address.
    """

    plan: GroupPlan
    members: list[_Enabled]
    mine: int
    names: list[int]
    key: int
    radix: int
    block: int
    asks: bool


def shape(ep: Endpoint, op: str, coll_addr: int, flags: int, of: Joiner) -> GroupShape:
    """Check a join, and decide what it joins. Raises as `Endpoint.join_collective`."""
    refuse = ep._refuse
    if not ep.info.caps & Flag.COLLECTIVE:
        raise refuse(
            Rule.JOIN_NO_CAP, f"{op}: {ep!r} was opened without COLLECTIVE: ask for it in the hints of getinfo"
        )
    if coll_addr != ADDR_NOTAVAIL:
        raise refuse(Rule.JOIN_ADDR, f"{op}: coll_addr {coll_addr:#x}; it has to be ADDR_NOTAVAIL")
    if flags and not ep.policy.binds.join_flags:
        raise refuse(Rule.JOIN_FLAGS, f"{op}: flags {flags:#x}; they have to be 0")
    if not of.enabled:
        raise refuse(Rule.JOIN_STATE, f"{op}: {ep!r} is not enabled\n  try: ep.enable()")
    if not of.has_eq:
        raise refuse(Rule.EP_NO_EQ, f"{op}: no event queue is bound\n  try: ep.bind(fabric.eq_open())")
    if of.other_vector:
        raise refuse(Rule.JOIN_SET, f"{op}: {of.other_vector}")
    if not of.names:
        raise refuse(Rule.JOIN_SET, f"{op}: the set has no members")
    plan = ep.policy.group(of.own, of.comm_key, len(of.names))
    members, mine = _members(ep, op, plan, of)
    import hashlib  # imported here, because it is slow to import and few endpoints join

    key = hashlib.blake2b(
        b"".join([bytes([plan.member is not None]), *(struct.pack("<I", pid) for _, pid, _ in members)]), digest_size=8
    )
    radix, block = _tree(of.hosts(members), plan.radix)
    return GroupShape(
        plan,
        members,
        mine,
        list(of.names) if plan.member is None else list(range(len(members))),
        int.from_bytes(key.digest(), "little"),
        radix,
        block,
        mine == 0 and plan.ask is not None,
    )


def _members(ep: Endpoint, op: str, plan: GroupPlan, of: Joiner) -> tuple[list[_Enabled], int]:
    """The members' addresses, and this one's number."""
    refuse = ep._refuse
    if plan.member is not None:
        return [of.own] * len(of.names), plan.member
    members: list[_Enabled] = []
    mine: list[int] = []
    for name in of.names:
        try:
            found = of.find(name)
        except errors.InvalidArgument as reason:
            raise refuse(
                Rule.JOIN_SET,
                f"{op}: fi_addr {name} of the set is not in use in the endpoint's vector\n  {reason.message}",
            ) from None
        if of.is_own(found):
            mine.append(len(members))
        members.append(found)
    if len(mine) != 1:
        raise refuse(
            Rule.JOIN_SET,
            f"{op}: {ep!r} is {'no member' if not mine else f'{len(mine)} members'} of the set\n"
            "  rule: the endpoint that joins is one of the set's members\n"
            "  try: av_set.insert(av.insert(ep.getname())) at its place",
        )
    return members, mine[0]


def _tree(hosts: Sequence[object], radix: int) -> tuple[int, int]:
    """Radix and block of the group's tree. A block is the members of one host, if all hosts have equally many members,
    which follow each other.
    """
    block = next((i for i, one in enumerate(hosts) if one != hosts[0]), 0)
    if not block:
        return radix, 0
    if all(one == hosts[i - i % block] for i, one in enumerate(hosts)):
        return radix, block
    return _BLOCKLESS_RADIX, 0


class Multicast:
    """The multicast address of a group, of which member 0 asks the provider's manager, and which it gives back.

    Attributes:
        refusal: Why the provider gave no address.

    Thread safety: any thread; one asks, another gives back.
    """

    def __init__(self, plan: GroupPlan, members: list[_Enabled]) -> None:
        self.refusal: Exception | None = None
        self._plan = plan
        self._members = members
        self._stop = threading.Event()
        self._lock = threading.Lock()  # guards _address
        self._address: int | None = None

    def ask(self, supply: Callable[[int, int, int], object]) -> None:
        """Ask, and supply address, root and 0; or the number of the error that every member gets."""
        assert self._plan.ask is not None
        try:
            address, root = self._plan.ask(self._members, self._stop)
        except errors.FabricError as reason:
            self.refusal = reason
            supply(0, 0, getattr(reason, "prov_errno", 0) or self._plan.other_errno)
            return
        except Exception as reason:  # the others must not wait for ever
            self.refusal = reason
            supply(0, 0, self._plan.other_errno)
            raise
        with self._lock:
            self._address = address
        if self._stop.is_set():  # closed meanwhile
            self.give_back(quiet=True)
        supply(address, root, 0)

    def have(self, address: int) -> None:
        """The group has this address, which another object asked for."""
        with self._lock:
            self._address = address

    def give_back(self, quiet: bool) -> None:
        """Give the address back, and ask no longer. quiet: also if the manager refuses it."""
        self._stop.set()
        with self._lock:
            address, self._address = self._address, None
        if address is None or self._plan.release is None:
            return
        try:
            self._plan.release(address)
        except errors.FabricError:
            if not quiet:
                raise
