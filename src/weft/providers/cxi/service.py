"""Services: the users of a device, their VNIs, traffic classes and limits.

A service corresponds to libCXI's: members (users, groups, network namespaces; none: unrestricted), VNIs, traffic
classes and limits of the NIC's resources. Service 1 of a device is the default service, without restrictions.
Source: fi_cxi(7) "Authorization Keys".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from ... import errors
from ...flags import Tc
from . import device as devices
from . import registry, vni
from .record import TOTALS, Record

KINDS = tuple(TOTALS)
"""Kinds of resources: address translation contexts, counters, event queues, portal entries, transmit and target command
queues, list entries, triggered operations."""

TCLASSES = MappingProxyType(
    {
        "BEST_EFFORT": Tc.TC_BEST_EFFORT,
        "LOW_LATENCY": Tc.TC_LOW_LATENCY,
        "DEDICATED_ACCESS": Tc.TC_DEDICATED_ACCESS,
        "BULK_DATA": Tc.TC_BULK_DATA,
        "SCAVENGER": Tc.TC_SCAVENGER,
    }
)
"""Traffic classes that a service can allow, by name."""

_MEMBERS = ("uid", "gid", "netns", "unrestricted")


class Member(NamedTuple):
    """A member of a service: a user, a group, a network namespace (its inode), or everybody."""

    kind: Literal["uid", "gid", "netns", "unrestricted"]
    value: int


@dataclass(frozen=True)
class Service:
    """A service of a device.

    Attributes:
        id: Number from 1; never reused on a device.
        device: Name of the device.
        enabled: True if domains can use it.
        system: True for a service of the system, which the search never selects.
        members: The allowed users; empty: everybody.
        vnis: Allowed VNIs, as ranges; None: all.
        tclasses: Allowed traffic classes; None: all.
        limits: kind -> (limit of all its users together, number reserved for them).
        launch: The launch that made the service and with which it ends; None: it stays until it is destroyed.
    """

    id: int
    device: str
    enabled: bool
    system: bool
    members: tuple[Member, ...]
    vnis: tuple[range, ...] | None
    tclasses: frozenset[Tc] | None
    limits: Mapping[str, tuple[int, int]]
    launch: str | None = None

    def admits(self, vni: int) -> bool:
        """True if the service allows a VNI."""
        return self.vnis is None or any(vni in one for one in self.vnis)

    def serves(self, tclass: int) -> bool:
        """True if the service allows a traffic class."""
        return self.tclasses is None or tclass in self.tclasses


def services(device: str) -> tuple[Service, ...]:
    """The services of a device, in order of creation; empty for an unknown device. Cost: like `device.devices`.

    Services of launches whose processes have all ended are omitted.
    """
    now = registry.here().read()
    found: tuple[Service, ...] = now.derived(("services", device), lambda record: _all(record, device))
    if any(one.launch is not None for one in found):
        over = vni.over(registry.here().path, {one.launch for one in found if one.launch is not None})
        found = tuple(one for one in found if one.launch not in over)
    return found


def service(device: str, id: int) -> Service | None:
    """One service of a device."""
    return next((one for one in services(device) if one.id == id), None)


def _all(record: Record, device: str) -> tuple[Service, ...]:
    part = record["services"].get(device)
    return () if part is None else tuple(_made(device, one) for one in part["all"])


def _made(device: str, one: Record) -> Service:
    return Service(
        id=one["id"],
        device=device,
        enabled=one["enabled"],
        system=one["system"],
        members=tuple(Member(kind, value) for kind, value in one["members"]),
        vnis=None if one["vnis"] is None else tuple(range(low, high + 1) for low, high in one["vnis"]),
        tclasses=None if one["tclasses"] is None else frozenset(TCLASSES[name] for name in one["tclasses"]),
        limits=MappingProxyType({kind: (most, reserved) for kind, (most, reserved) in one["limits"].items()}),
        launch=one["launch"],
    )


# ---- changes ---------------------------------------------------------------------------------------------------------


def create(
    device: str = "cxi0",
    *,
    members: Iterable[Member | tuple[str, int]] = (),
    vnis: Iterable[int | range] | None = None,
    tclasses: Iterable[Tc | str] | None = None,
    limits: Mapping[str, int | tuple[int, int]] | None = None,
    enabled: bool = True,
    system: bool = False,
) -> Service:
    """Make a service of a device; its id.

    Args:
        members: Pairs of "uid", "gid", "netns" or "unrestricted" and a number; none: everybody.
        vnis: Numbers and ranges, 1 to 65535; None: all.
        tclasses: Members of Tc or names ("LOW_LATENCY"); None: all.
        limits: kind -> limit, or (limit, reserved); only the device limits other kinds.

    Raises:
        NoDevice: There is no such device.
        InvalidArgument: An argument is wrong.
        NoSpace: The limits reserve more than the device has.
    """
    with registry.here().change() as record:
        made = add(record, device, members, vnis, tclasses, limits, enabled=enabled, system=system)
    return _made(device, made)


def add(
    record: Record,
    device: str,
    members: Iterable[Member | tuple[str, int]] = (),
    vnis: Iterable[int | range] | None = None,
    tclasses: Iterable[Tc | str] | None = None,
    limits: Mapping[str, int | tuple[int, int]] | None = None,
    *,
    enabled: bool = True,
    system: bool = False,
    launch: str | None = None,
) -> Record:
    """`create` within a change of the registry."""
    part = _part(record, device)
    made: Record = {
        "id": part["next"],
        "enabled": bool(enabled),
        "system": bool(system),
        "members": [_member(one) for one in members],
        "vnis": None if vnis is None else [_vnis(one) for one in vnis],
        "tclasses": None if tclasses is None else sorted({_tclass(one) for one in tclasses}),
        "limits": _limits(limits or {}),
        "launch": launch,
    }
    if any(kind == "unrestricted" for kind, _ in made["members"]):
        made["members"] = []
    for kind, total in TOTALS.items():
        held = sum(one["limits"][kind][1] for one in part["all"])
        if held + made["limits"][kind][1] > total:
            raise errors.NoSpace(
                f"service: {made['limits'][kind][1]} {kind} of {device} cannot be reserved: of {total}, other services "
                f"have reserved {held}\n  try: a smaller reservation, or `weft service destroy` of one that nobody uses"
            )
    part["next"] += 1
    part["all"].append(made)
    return made


def enable(device: str, id: int, enabled: bool = True) -> None:
    """Enable or disable a service; open domains keep it. Raises NoDevice, NotFound."""
    with registry.here().change() as record:
        _one(record, device, id)["enabled"] = bool(enabled)


def destroy(device: str, id: int) -> None:
    """Remove a service. Raises NoDevice, NotFound, Busy (a process uses it), InvalidArgument (service 1)."""
    from . import resources

    with registry.here().change() as record:
        made = _one(record, device, id)
        if id == 1:
            raise errors.InvalidArgument(
                "service: 1 is the default service, which cannot be destroyed\n"
                f"  try: `weft service disable --device {device} 1`"
            )
        users = resources.users(device, id)
        if users:
            raise errors.Busy(
                f"service: {id} of {device} is in use by {', '.join(users)}\n"
                f"  try: end them first, or `weft service disable --device {device} {id}`"
            )
        record["services"][device]["all"].remove(made)


def _part(record: Record, device: str) -> Record:
    if device not in record["services"]:
        devices._one(record, device)
    return record["services"][device]  # type: ignore[no-any-return]


def _one(record: Record, device: str, id: int) -> Record:
    part = _part(record, device)
    for one in part["all"]:
        if one["id"] == id:
            return one  # type: ignore[no-any-return]
    there = ", ".join(str(one["id"]) for one in part["all"]) or "none"
    raise errors.NotFound(f"service: {device} has no service {id!r}\n  services: {there}")


def _member(one: Any) -> list[Any]:
    try:
        kind, value = one
    except (TypeError, ValueError):
        kind, value = one, None
    if kind not in _MEMBERS or type(value) is not int or not 0 <= value < 1 << 32:
        raise errors.InvalidArgument(
            f"service: {one!r} is no member\n  rule: a pair of {', '.join(_MEMBERS)} and a number of 32 bits"
        )
    return [kind, value]


def _vnis(one: Any) -> list[int]:
    low, high = (one.start, one.stop - 1) if isinstance(one, range) else (one, one)
    if (isinstance(one, range) and one.step != 1) or type(low) is not int or not 1 <= low <= high <= vni.VNI_MAX:
        raise errors.InvalidArgument(
            f"service: {one!r} is no VNI\n  rule: a number from 1 to {vni.VNI_MAX}, or a range"
        )
    return [low, high]


def _tclass(one: Any) -> str:
    for name, value in TCLASSES.items():
        if one == name or (one == value and not isinstance(one, str)):
            return name
    raise errors.InvalidArgument(f"service: {one!r} is no traffic class of a service\n  classes: {', '.join(TCLASSES)}")


def _limits(wanted: Mapping[str, Any]) -> dict[str, list[int]]:
    limits = {kind: [most, 0] for kind, most in TOTALS.items()}
    for kind, value in wanted.items():
        if kind not in limits:
            raise errors.InvalidArgument(f"service: {kind!r} is no kind of resource\n  kinds: {', '.join(KINDS)}")
        most, reserved = (value, 0) if type(value) is int else value if _is_pair(value) else (-1, 0)
        if not 0 <= reserved <= most <= TOTALS[kind]:
            raise errors.InvalidArgument(
                f"service: the limit of {kind} cannot be {value!r}\n"
                f"  rule: 0 <= reserved <= most <= {TOTALS[kind]}, what the device has"
            )
        limits[kind] = [most, reserved]
    return limits


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(type(n) is int for n in value)
