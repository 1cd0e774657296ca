"""Joining collective groups, and the groups (fi_join_collective, fi_mc_addr).

    av_set = av.av_set(fi.AvSetAttr(flags=fi.UNIVERSE))
    group = ep.join_collective(fi.ADDR_NOTAVAIL, av_set)       # every member calls it
    event, entry = eq.sread()                                  # JOIN_COMPLETE; entry.fid is the group
    ep.allreduce(values, result=sums, coll_addr=group.addr, op=fi.SUM)

The NIC joins (cpp/nic/group.hpp) and reduces. This file turns the NIC's messages into events; joining.py decides what
the NIC joins, and asks a provider that has multicast addresses for one. The calls of a group, `barrier broadcast reduce
allreduce`, are in the extension, like every data transfer.

Source: fi_collective(3), fi_cxi(7) "fi_join_collective()".
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .. import _nic, errors
from .._nic import CmKind
from ..flags import EqEvent
from . import _handle
from .av_set import AvSet
from .eq import EqEntry, EqErrEntry, EventQueue
from .joining import GroupShape, Joiner, Multicast, shape

if TYPE_CHECKING:
    from .endpoint import Endpoint

_KINDS = frozenset((int(CmKind.group_agreed), int(CmKind.group_joined), int(CmKind.group_failed)))


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

    def __init__(self, ep: Endpoint, av_set: AvSet, context: Any, made: GroupShape, core: _nic.GroupCore) -> None:
        self.ep = ep
        self.set = av_set
        self.domain = ep.domain
        self.context = context
        self.joined = False
        self.addr: int = core.addr
        self._core = core
        self._plan = made.plan
        self._multicast = Multicast(made.plan, made.members) if made.asks else None
        self._last: dict[str, Any] = {}  # of a closed group
        self._opened(3, ep, av_set)

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
        refusal = self._multicast.refusal if self._multicast is not None else None
        text = look["text"] if not error else str(refusal or self._plan.meaning(error))
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
        """Member 0: a multicast address for the group."""
        assert self._multicast is not None
        self._multicast.ask(self._core.supply)

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
        _joining(self.ep).pop(self.addr, None)
        self._core.close()
        self._last = self._core.look()
        if self._multicast is not None:
            self._multicast.give_back(quiet)

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
    _handle.check(ep, op, coll_addr=coll_addr, flags=flags)
    _handle.expect(av_set, AvSet, op, "set")
    _handle.check(av_set, op)
    made = shape(ep, op, coll_addr, int(flags), _joiner(ep, av_set))
    assert ep._eq is not None
    with ep._eq._changed:  # nobody reads messages of the group before it is known
        core = _nic.GroupCore(
            ep,
            members=made.members,
            member=made.mine,
            names=made.names,
            name=made.names[made.mine],
            key=made.key,
            join_radix=made.plan.join_radix,
            radix=made.radix,
            block=made.block,
            asks=made.asks,
        )
        group = CollectiveGroup(ep, av_set, context, made, core)
        _joining(ep)[group.addr] = group
    return group


def _joiner(ep: Endpoint, av_set: AvSet) -> Joiner:
    of_other = av_set.av is not ep._av
    codec = ep._codec
    nic, pid, vni = codec.own(ep._address)
    return Joiner(
        enabled=ep._enabled,
        has_eq=ep._eq is not None,
        own=(nic, pid or 0, vni),  # without a pid, it is not enabled
        other_vector=f"{av_set!r} is of {av_set.av!r}, the endpoint's vector is {ep._av!r}" if of_other else "",
        comm_key=av_set.comm_key,
        names=av_set.members,
        find=av_set.av.lookup_address,
        is_own=lambda one: codec.own(one)[:2] == (nic, pid),
        hosts=lambda members: [urlsplit(codec.text(one)).hostname for one in members],
    )
