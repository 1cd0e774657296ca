"""Collective groups of a real libfabric (fi_join_collective, fi_mc). The calls are in the extension.

Source: fi_collective(3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import _nic, errors
from ...fi import _handle
from ...fi.av_set import AvSet
from ...fi.group import CollectiveGroup
from ...flags import ADDR_NOTAVAIL, Flag
from ._common import later
from .av_set import RealAvSet

if TYPE_CHECKING:
    from .endpoint import RealEndpoint

# Joins of an endpoint under libfabric's own collectives, whose groups have an 8-bit number that is never reused.
_JOINS_MAX = 255


@later("the library does not tell: Weft's NIC does", "statistics")
class RealCollectiveGroup(CollectiveGroup, _nic.OfiGroupCore):
    """An endpoint's membership of a collective group of the library (struct fid_mc). Made by
    `Endpoint.join_collective`.

    Attributes:
        addr: Number that the calls of the group take as coll_addr (fi_mc_addr).
        joined: True after the JOIN_COMPLETE event was read.

    Thread safety: any thread. Source: fi_collective(3).
    """

    ep: Any
    set: RealAvSet
    domain: Any

    def __init__(self, ep: RealEndpoint, av_set: RealAvSet, members: list[int], mine: int, flags: int, context: Any):
        self.ep = ep
        self.set = av_set
        self.domain = ep.domain
        self.context = context
        self.joined = False
        # The library's event of the join names another object than the group: the group is found by this number.
        number = ep.domain.fabric._expect(self, context)
        try:
            _nic.OfiGroupCore.__init__(
                self, ep, av_set.av, members, mine, av_set.comm_key, av_set._flags, flags, number
            )
        except BaseException:
            ep.domain.fabric._expect_nothing(self)
            raise
        self._opened(4, ep, av_set)

    def _joined(self) -> None:
        """JOIN_COMPLETE was read."""
        self.joined = True
        self.join_complete()

    def close(self) -> None:
        """Leave the group (fi_close). Calls that are under way go on, and so does a join, without event: the library
        uses the group until they end, or the endpoint is closed. Source: fi_collective(3)."""
        _handle.Life.close(self)

    def _release(self, quiet: bool = True) -> None:
        self.close_core()
        self.domain.fabric._expect_nothing(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "joined" if self.joined else "joining"
        return f"<CollectiveGroup {self.domain.provider.name} {state}, {len(self.set)} members>"


def join(ep: RealEndpoint, coll_addr: int, av_set: Any, flags: int, context: Any) -> RealCollectiveGroup:
    """`Endpoint.join_collective`."""
    op = "ep.join_collective"
    _handle.check(ep, op, coll_addr=coll_addr, flags=flags)
    _handle.expect(av_set, AvSet, op, "set")
    _handle.check(av_set, op)
    if coll_addr != ADDR_NOTAVAIL:
        raise errors.InvalidArgument(
            f"{op}: coll_addr {coll_addr:#x}; it has to be ADDR_NOTAVAIL\n  try: fi.ADDR_NOTAVAIL, or set.addr()"
        )
    if not ep.info.caps & Flag.COLLECTIVE:
        raise errors.NotSupported(f"{op}: {ep!r} was opened without COLLECTIVE: ask for it in the hints of getinfo")
    if not ep.enabled:
        raise errors.BadState(f"{op}: {ep!r} is not enabled\n  try: ep.enable()")
    if ep._eq is None:
        raise errors.NoEq(f"{op}: no event queue is bound\n  try: ep.bind(fabric.eq_open()) before enable()")
    if av_set.av is not ep._av:
        raise errors.InvalidArgument(f"{op}: {av_set!r} is of {av_set.av!r}, the endpoint's vector is {ep._av!r}")
    members = list(av_set)
    mine = _place(ep, op, av_set, members)
    if ep.domain.soft_groups:
        _refuse_soft(ep, op)
    group = RealCollectiveGroup(ep, av_set, members, mine, int(flags), context)
    ep._joins += 1
    return group


def _refuse_soft(ep: RealEndpoint, op: str) -> None:
    """Refuse requests that libfabric's own collectives cannot serve."""
    waiting = [one for one, _ in ep.domain.fabric._expected.values() if getattr(one, "ep", None) is ep]
    if waiting:
        raise errors.Again(
            f"{op}: {waiting[0]!r} of this endpoint is not joined yet, and libfabric mixes up joins under way\n"
            "  try: read the event queue until JOIN_COMPLETE, or close that group, then call again"
        )
    if ep._joins >= _JOINS_MAX:
        raise errors.NoSpace(
            f"{op}: {ep!r} has joined {ep._joins} groups, and libfabric has no number for another\n"
            "  try: another endpoint, or one group for several purposes"
        )


def _place(ep: RealEndpoint, op: str, av_set: RealAvSet, members: list[int]) -> int:
    """The endpoint's place among the members; libfabric's own collectives would join a set without the endpoint, and
    crash later. A provider with collectives of its own may have another address in the vector; the result is then a
    place that no member has.
    """
    if not members:
        raise errors.InvalidArgument(f"{op}: {av_set!r} has no members")
    for name in members:
        if name not in av_set.av._inserted:
            raise errors.InvalidArgument(f"{op}: fi_addr {name} of the set is not in use in {av_set.av!r}")
    own = ep.getname()
    mine = [place for place, name in enumerate(members) if av_set.av.lookup(name) == own]
    if len(mine) != 1 and ep.domain.soft_groups:
        raise errors.InvalidArgument(
            f"{op}: {ep!r} is {'no member' if not mine else f'{len(mine)} members'} of the set\n"
            "  rule: the endpoint that joins is one of the set's members\n"
            "  try: av_set.insert(av.insert(ep.getname())) at its place"
        )
    return mine[0] if mine else len(members)
