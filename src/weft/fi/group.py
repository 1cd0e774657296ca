"""Joining collective groups, and the groups (fi_join_collective, fi_mc_addr).

    av_set = av.av_set(fi.AvSetAttr(flags=fi.UNIVERSE))
    group = ep.join_collective(fi.ADDR_NOTAVAIL, av_set)       # every member calls it
    event, entry = eq.sread()                                  # JOIN_COMPLETE; entry.fid is the group
    ep.allreduce(values, result=sums, coll_addr=group.addr, op=fi.SUM)

The NIC joins (cpp/nic/group.hpp) and reduces. This file finds this member in the set, asks a provider that has
multicast addresses for one, and turns the NIC's messages into events. The calls of a group, `barrier broadcast reduce
allreduce`, are in the extension, like every data transfer.

Source: fi_collective(3), fi_cxi(7) "fi_join_collective()".
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .. import _nic, errors
from .._nic import CmKind
from ..flags import ADDR_NOTAVAIL, EqEvent, Flag
from . import _args, _handle
from .av_set import AvSet
from .eq import EqEntry, EqErrEntry, EventQueue
from .policy import Address, GroupPlan
from .rules import Rule

if TYPE_CHECKING:
    from .endpoint import Endpoint

__all__ = ["CollectiveGroup", "GroupStatistics", "Joins"]

_KINDS = frozenset((int(CmKind.group_agreed), int(CmKind.group_joined), int(CmKind.group_failed)))
_BLOCKLESS_RADIX = 4  # of members that are spread over hosts in no order


@dataclass(frozen=True)
class GroupStatistics:
    """One member's view of its group. Not part of libfabric's interface.

    Attributes:
        state: "queued", "gathering", "agreed" (all members have joined), "joined", "broken" or "closed".
        posted: Reductions that this member has begun.
        done: Reductions of this member that are complete.
        frames: Frames that this member has sent.
        ignored: Frames of other members that fitted nothing.
        children: Members that send their contributions to this one.
        radix: Most children of a member in the tree, among members of one block.
        block: Members that follow each other and share a host.
        multicast: The multicast address; None: the group has none.
        root: The member at the root of the multicast address; None: the group has none.
        number: Number of the group, the same for all members; 0 before they have agreed.
    """

    state: str
    posted: int
    done: int
    frames: int
    ignored: int
    children: int
    radix: int
    block: int
    multicast: int | None
    root: int | None
    number: int


class CollectiveGroup(_handle.LifeInDomain):
    """This endpoint's membership of a collective group (struct fid_mc). Made by `Endpoint.join_collective`.

    Attributes:
        addr: Number that the calls of the group take as coll_addr (fi_mc_addr).
        joined: True after the JOIN_COMPLETE event was read.

    Every member closes the group; until then its endpoint and its set cannot be closed. When a member closes it, or is
    lost, the other members' reductions, running and later ones, end as errors.

    Thread safety: any thread. Source: fi_collective(3).
    """

    _called = "group"

    def __init__(
        self,
        ep: Endpoint,
        av_set: AvSet,
        context: Any,
        plan: GroupPlan,
        core: _nic.GroupCore,
        members: list[tuple[int, int, int]],
    ) -> None:
        self.ep = ep
        self.set = av_set
        self.domain = ep.domain
        self.context = context
        self.joined = False
        self.addr: int = core.addr
        self._core = core
        self._plan = plan
        self._members = members  # of member 0
        self._last: dict[str, Any] = {}  # of a closed group
        self._stop = threading.Event()
        self._lock = threading.Lock()  # guards _multicast against the thread that asks for it
        self._multicast: int | None = None
        self._refusal: Exception | None = None
        self._children: _handle.Children = {}
        self._site = _handle.here(3)
        _handle.adopt(self, ep, av_set)

    def statistics(self) -> GroupStatistics:
        """A snapshot; works on a closed group, too."""
        look = self._last or self._core.look()
        has = look["multicast"] is not None
        return GroupStatistics(
            **{name: look[name] for name in ("state", "posted", "done", "frames", "ignored", "children")},
            **{name: look[name] for name in ("radix", "block", "multicast", "number")},
            root=look["root"] if has else None,
        )

    # ---- the join ----------------------------------------------------------------------------------------------------

    def _on_event(self, eq: EventQueue, kind: int) -> None:
        """A message of the NIC, under the queue's lock."""
        if self._closed:
            return
        if kind == CmKind.group_agreed:
            if self._plan.blocks:
                threading.Thread(target=self._ask, name="weft-join", daemon=True).start()
            else:
                self._ask()
            return
        _joining(self.ep).pop(self.addr, None)
        if kind == CmKind.group_joined:
            self.joined = True
            eq.post(EqEvent.JOIN_COMPLETE, EqEntry(self, self.context))
            return
        look = self._core.look()
        error = look["error"]
        text = look["text"] if not error else str(self._refusal or self._plan.explain(error))
        eq.post_error(
            EqErrEntry(
                self,
                self.context,
                int(EqEvent.JOIN_COMPLETE),
                self._plan.failed_err,
                error or self._plan.other_errno,
                f"join_collective: {text}".encode(),
            )
        )
        self._release()
        self._closed = True
        _handle.abandon(self, (self.ep, self.set))

    def _ask(self) -> None:
        """Member 0: a multicast address for the group, or the number of the error that every member gets."""
        assert self._plan.ask is not None
        try:
            address, root = self._plan.ask(self._members, self._stop)
        except errors.FabricError as reason:
            self._refusal = reason
            self._core.supply(0, 0, getattr(reason, "prov_errno", 0) or self._plan.other_errno)
            return
        except Exception as reason:  # the others must not wait for ever
            self._refusal = reason
            self._core.supply(0, 0, self._plan.other_errno)
            raise
        with self._lock:
            self._multicast = address
        if self._stop.is_set():  # closed meanwhile
            self._give_back(quiet=True)
        self._core.supply(address, root, 0)

    def _give_back(self, quiet: bool) -> None:
        with self._lock:
            address, self._multicast = self._multicast, None
        if address is None or self._plan.release is None:
            return
        try:
            self._plan.release(address)
        except errors.FabricError:
            if not quiet:
                raise

    # ---- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the group (fi_close). Running reductions of this member end as canceled, a running join without event.

        Member 0 gives the multicast address back, which may take seconds; if the Fabric Manager refuses the address,
        the group is closed all the same, and the call raises the manager's error (prov_errno 2052). Source:
        fi_collective(3).
        """
        failed: list[errors.FabricError] = []

        def release() -> None:
            try:
                self._release(quiet=False)
            except errors.FabricError as reason:
                failed.append(reason)

        _handle.close(self, release, self._children, self._parents())
        if failed:
            raise failed[0]

    def _release(self, quiet: bool = True) -> None:
        self._stop.set()
        _joining(self.ep).pop(self.addr, None)
        self._core.close()
        self._last = self._core.look()
        self._give_back(quiet)

    def _parents(self) -> tuple[Any, ...]:
        return self.ep, self.set

    def __repr__(self) -> str:
        if self._closed or _handle.elsewhere(self):
            return f"<CollectiveGroup {'closed' if self._closed else 'of the parent process'}>"
        look = self._core.look()
        return f"<CollectiveGroup {look['state']}, {len(self.set)} members, {look['done']}/{look['posted']} reductions>"


class Joins:
    """The part of an endpoint that joins groups."""

    __slots__ = ()

    def join_collective(self, coll_addr: int, set: AvSet, flags: int = 0, context: Any = None) -> CollectiveGroup:
        """Join the collective group of a set's members (fi_join_collective). Every member of the set calls it, with an
        equal set in the same order; joins of one set follow each other in the order of the calls.

        Args:
            coll_addr: `fi.ADDR_NOTAVAIL`, or `set.addr()`, which is the same.
            set: A set that contains this endpoint, and addresses in use in the endpoint's vector. The set must not
                change, nor be closed, before the group.
            flags: 0; the provider cxi ignores them.
            context: The context of the event.

        Returns:
            The group, at once. It is usable after the event JOIN_COMPLETE, whose `fid` is the group, in the endpoint's
            event queue.

        The join makes progress when queues are read (without an engine thread). It ends as an error event
        (`eq.readerr`), at every member, if a member is lost or closes its endpoint, or if the Fabric Manager refuses:
        err is ECONNREFUSED (provider cxi: negative), err_data the reason, data JOIN_COMPLETE.

        Raises:
            InvalidArgument: `coll_addr` is another address, or `set` is of another vector, lacks this endpoint or has a
                number that is not in use.
            BadState: The endpoint is not enabled.
            NoEq: No event queue is bound.
            NotSupported: COLLECTIVE is not among the endpoint's capabilities.
            BadFlags: Unknown flags.

        Source: fi_collective(3) fi_join_collective.
        """
        ep: Endpoint = self  # type: ignore[assignment]
        return _join(ep, coll_addr, set, flags, context)


def _joining(ep: Endpoint) -> dict[int, CollectiveGroup]:
    """The endpoint's groups whose event was not read yet, by coll_addr."""
    found: dict[int, CollectiveGroup] = ep.__dict__.setdefault("_joining", {})
    return found


def on_event(ep: Endpoint, eq: EventQueue, kind: int, addr: int) -> bool:
    """Handle the NIC's message of a group. False: the message is of no group."""
    if kind not in _KINDS:
        return False
    group = _joining(ep).get(addr)
    if group is not None:
        group._on_event(eq, kind)
    return True


def _join(ep: Endpoint, coll_addr: int, av_set: AvSet, flags: int, context: Any) -> CollectiveGroup:
    op = "ep.join_collective"
    _handle.check(ep, op)
    _args.whole(op, coll_addr=coll_addr, flags=flags)
    _handle.expect(av_set, AvSet, op, "set")
    _handle.check(av_set, op)
    refuse = ep._refuse
    if not ep.info.caps & Flag.COLLECTIVE:
        raise refuse(
            Rule.JOIN_NO_CAP, f"{op}: {ep!r} was opened without COLLECTIVE: ask for it in the hints of getinfo", op=op
        )
    if coll_addr != ADDR_NOTAVAIL:
        raise refuse(Rule.JOIN_ADDR, f"{op}: coll_addr {coll_addr:#x}; it has to be ADDR_NOTAVAIL", op=op)
    if int(flags) and not ep.policy.binds.join_flags:
        raise refuse(Rule.JOIN_FLAGS, f"{op}: flags {int(flags):#x}; they have to be 0", op=op)
    if not ep._enabled:
        raise refuse(Rule.JOIN_STATE, f"{op}: {ep!r} is not enabled\n  try: ep.enable()", op=op)
    if ep._eq is None:
        raise refuse(Rule.EP_NO_EQ, f"{op}: no event queue is bound\n  try: ep.bind(fabric.eq_open())", op=op)
    if av_set.av is not ep._av:
        raise refuse(Rule.JOIN_SET, f"{op}: {av_set!r} is of {av_set.av!r}, the endpoint's vector is {ep._av!r}", op=op)
    names = list(av_set)
    if not names:
        raise refuse(Rule.JOIN_SET, f"{op}: {av_set!r} has no members", op=op)
    own = ep._codec.own(ep._address)
    plan = ep.policy.group(own, av_set.comm_key, len(names))
    members, mine = _members(ep, op, plan, names, own)
    if plan.member is not None:
        names = list(range(len(names)))
    import hashlib  # imported here, because it is slow to import and few endpoints join

    key = hashlib.blake2b(
        b"".join([bytes([plan.member is not None]), *(struct.pack("<I", pid) for _, pid, _ in members)]), digest_size=8
    )
    radix, block = _tree(ep, members, plan.radix)
    with ep._eq._changed:  # nobody reads messages of the group before it is known
        core = _nic.GroupCore(
            ep,
            members=members,
            member=mine,
            names=names,
            name=names[mine],
            key=int.from_bytes(key.digest(), "little"),
            join_radix=plan.join_radix,
            radix=radix,
            block=block,
            asks=mine == 0 and plan.ask is not None,
        )
        group = CollectiveGroup(ep, av_set, context, plan, core, members if mine == 0 else [])
        _joining(ep)[group.addr] = group
    return group


def _members(
    ep: Endpoint, op: str, plan: GroupPlan, names: list[int], own: Address
) -> tuple[list[tuple[int, int, int]], int]:
    """The members' addresses, and this one's number."""
    refuse = ep._refuse
    nic, pid, vni = own
    assert pid is not None
    if plan.member is not None:
        return [(nic, pid, vni)] * len(names), plan.member
    assert ep._av is not None
    members: list[tuple[int, int, int]] = []
    mine: list[int] = []
    for name in names:
        try:
            found = ep._av.lookup_address(name)
        except errors.InvalidArgument as reason:
            raise refuse(
                Rule.JOIN_SET,
                f"{op}: fi_addr {name} of the set is not in use in {ep._av!r}\n  {reason.message}",
                op=op,
            ) from None
        there = ep._codec.own(found)
        if there[:2] == (nic, pid):
            mine.append(len(members))
        members.append(found)
    if len(mine) != 1:
        raise refuse(
            Rule.JOIN_SET,
            f"{op}: {ep!r} is {'no member' if not mine else f'{len(mine)} members'} of the set\n"
            "  rule: the endpoint that joins is one of the set's members\n"
            "  try: av_set.insert(av.insert(ep.getname())) at its place",
            op=op,
        )
    return members, mine[0]


def _tree(ep: Endpoint, members: list[tuple[int, int, int]], radix: int) -> tuple[int, int]:
    """Radix and block of the group's tree, of which member 0's are used. A block is the members of one host, if all
    hosts have equally many members, which follow each other.
    """
    hosts = [urlsplit(ep._codec.text(one)).hostname for one in members]
    block = next((i for i, one in enumerate(hosts) if one != hosts[0]), 0)
    if not block:
        return radix, 0
    if all(one == hosts[i - i % block] for i, one in enumerate(hosts)):
        return radix, block
    return _BLOCKLESS_RADIX, 0
