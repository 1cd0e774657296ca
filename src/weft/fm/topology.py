"""The tree of a multicast group: how its members hang together over the switches.

The root's NIC is at the top, then its switch, then the other switches of its group, then the groups: the first switch
of each is its entry. A tree has each NIC and each switch once. In a fat tree every other switch is a child of the
root's switch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .addresses import mac_text, place


class Edge(NamedTuple):
    """From a parent to a child. Names: an address of six octets for a NIC, "group/switch" for a switch."""

    parent: str
    child: str


def switch_name(nic: int, topology: str = "dragonfly") -> str:
    """The switch that a NIC is plugged into."""
    at = place(nic, topology)
    return f"{at.group}/{at.switch}"


def tree(root: int, macs: Iterable[int], topologies: Mapping[int, str] | None = None) -> list[Edge]:
    """The edges of the group's tree, parents before children.

    Args:
        topologies: NIC -> its kind of network; "dragonfly" where it is missing.
    """
    kinds = topologies or {}
    members = dict.fromkeys([root, *macs])
    top = _switch(root, kinds)
    edges = [Edge(mac_text(root), _name(top))]
    entry = {top[0]: top}  # group -> the switch through which the tree comes in
    known = {top}
    for nic in members:
        at = _switch(nic, kinds)
        if at not in known:
            known.add(at)
            above = entry.setdefault(at[0], at)
            edges.append(Edge(_name(top if above == at else above), _name(at)))
        if nic != root:
            edges.append(Edge(_name(at), mac_text(nic)))
    return edges


def _switch(nic: int, kinds: Mapping[int, str]) -> tuple[int, int]:
    at = place(nic, kinds.get(nic, "dragonfly"))
    return at.group, at.switch


def _name(switch: tuple[int, int]) -> str:
    return f"{switch[0]}/{switch[1]}"
