"""The CXI devices of this host: their fields, the list of them, and changes.

The address of a NIC is its place in the network, 20 bits: from the low end 6 of a port and, in a dragonfly, 5 of a
switch and 9 of a group; in a fat tree 14 of a switch. Source: fi_cxi(7) "Addressing Format", "CXI Domain Extensions".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from ... import errors
from . import fabrics, registry
from .record import LATER_VALUES, Record, default_service, first_device

NIC_MAX = (1 << 20) - 1
FABRIC_SHIFT = 20
_PORT_BITS, _SWITCH_BITS, _GROUP_BITS, _TREE_SWITCH_BITS = 6, 5, 9, 14
_NAME = re.compile(r"cxi[0-9]\Z", re.ASCII)  # fi_cxi(7) "Addressing Format": cxi and one digit
# Valid values of amo_remap_to_pcie_fadd; fi_cxi(7) "PCIe Atomics" does not describe 3.
PCIE_REMAPS = (-1, 0, 1, 2, 4, 5, 6, 7, 8, 9, 10)


@dataclass(frozen=True)
class Device:
    """A NIC of this host.

    Attributes:
        name: "cxi0" ...
        nic: The NIC's address, 20 bits.
        topology: "dragonfly" or "fat-tree": the structure of the address.
        up: True if the link is up; getinfo does not offer a device whose link is down.
        speed: Bits a second.
        mtu: Bytes.
        amo_remap_to_pcie_fadd: The driver's parameter: the atomic operation that PCIe fetch-add replaces; -1: off.
        rdzv_get_en: The driver's property: 1: the NIC fetches the rest of long messages itself; 0: alt_read may
            (FI_CXI_RDZV_PROTO).
        fabric: Number of the registry, 1 to 1023.
    """

    name: str
    nic: int
    topology: str
    up: bool
    speed: int
    mtu: int
    amo_remap_to_pcie_fadd: int
    rdzv_get_en: int
    fabric: int

    @property
    def pcie_remap(self) -> int:
        """`amo_remap_to_pcie_fadd`."""
        return self.amo_remap_to_pcie_fadd

    @property
    def port(self) -> int:
        """Port of the switch."""
        return self.nic & (1 << _PORT_BITS) - 1

    @property
    def switch(self) -> int:
        """Switch of the group; of the whole tree in a fat tree."""
        bits = _SWITCH_BITS if self.topology == "dragonfly" else _TREE_SWITCH_BITS
        return self.nic >> _PORT_BITS & (1 << bits) - 1

    @property
    def group(self) -> int:
        """Group of a dragonfly; 0 in a fat tree."""
        return self.nic >> _PORT_BITS + _SWITCH_BITS if self.topology == "dragonfly" else 0

    @property
    def mac(self) -> str:
        """Its Ethernet address: the low 20 bits are those of the NIC."""
        return "02:00:00:" + ":".join(f"{self.nic >> shift & 0xFF:02x}" for shift in (16, 8, 0))

    def engine_nic(self) -> int:
        """The engine's number of this NIC, which no NIC of another registry has."""
        return fabrics.in_force(self.fabric) << FABRIC_SHIFT | self.nic


def devices() -> tuple[Device, ...]:
    """The devices of this host, by name. The first use makes the registry; without a change the call costs a stat.

    Raises AccessDenied, Busy, InvalidArgument like `registry.Registry.read`.
    """
    found: tuple[Device, ...] = registry.here().read().derived("devices", _all)
    return found


def by_name(name: str) -> Device | None:
    """The device of that name."""
    return next((one for one in devices() if one.name == name), None)


def by_nic(nic: int) -> Device | None:
    """The device with that address."""
    return next((one for one in devices() if one.nic == nic), None)


def _all(record: Record) -> tuple[Device, ...]:
    names = [field.name for field in fields(Device) if field.name != "fabric"]
    found = ({**LATER_VALUES, **one} for one in record["devices"])
    made = (Device(**{name: one[name] for name in names}, fabric=record["fabric"]) for one in found)
    return tuple(sorted(made, key=lambda one: one.name))


# ---- changes ---------------------------------------------------------------------------------------------------------


def compose(topology: str, *, group: int = 0, switch: int = 0, port: int = 0) -> int:
    """The NIC address of a place in the network. Raises InvalidArgument for numbers that do not fit."""
    switches = _SWITCH_BITS if topology == "dragonfly" else _TREE_SWITCH_BITS
    groups = _GROUP_BITS if topology == "dragonfly" else 0
    for what, value, bits in (("group", group, groups), ("switch", switch, switches), ("port", port, _PORT_BITS)):
        if not 0 <= value < 1 << bits:
            raise errors.InvalidArgument(
                f"device: {what} {value} does not fit: a {topology} has {bits} bits for it, 0 to {(1 << bits) - 1}"
            )
    return (group << switches | switch) << _PORT_BITS | port


def add(name: str | None = None, nic: int | None = None, **values: Any) -> Device:
    """Add a device: by default with the first free name, at the next free port.

    Raises InvalidArgument (a bad name or value), Busy (name or address is another device's), NoSpace.
    """
    with registry.here().change() as record:
        taken = {one["name"] for one in record["devices"]}
        if name is None:
            name = next((f"cxi{n}" for n in range(10) if f"cxi{n}" not in taken), "")
            if not name:
                raise errors.NoSpace("device: cxi0 to cxi9 are all there\n  try: `weft device remove` first")
        if not _NAME.match(name):
            raise errors.InvalidArgument(
                f"device: {name!r} is no name of a device\n  rule: cxi and one digit, cxi0 to cxi9 "
                '(fi_cxi(7) "Addressing Format")'
            )
        if name in taken:
            raise errors.Busy(f"device: {name} is there already\n  try: `weft device list`, or leave the name out")
        addresses = {one["nic"] for one in record["devices"]}
        if nic is None:
            start = max(addresses, default=compose("dragonfly", group=1, switch=1) - 1) + 1
            nic = next(n % (NIC_MAX + 1) for n in range(start, start + NIC_MAX) if n % (NIC_MAX + 1) not in addresses)
        made = first_device(name, nic)
        record["devices"].append(made)
        record["services"][name] = {"next": 2, "all": [default_service()]}
        _set(record, made, {"nic": nic, **values})
    found = by_name(name)
    assert found is not None
    return found


def remove(name: str) -> None:
    """Remove a device with its services. Raises NoDevice, Busy (a process uses resources of the device)."""
    from . import resources

    with registry.here().change() as record:
        made = _one(record, name)
        users = resources.users(name)
        if users:
            raise errors.Busy(
                f"device: {name} is in use by {', '.join(users)}\n  try: end them first, or `weft device down {name}`"
            )
        record["devices"].remove(made)
        del record["services"][name]


def set_up(name: str, up: bool) -> Device:
    """Take the link of a device up or down; running processes see it. Raises NoDevice."""
    return set_values(name, up=up)


def set_values(name: str, /, **values: Any) -> Device:
    """Change fields of a device: nic, topology, up, speed, mtu, amo_remap_to_pcie_fadd, rdzv_get_en.

    Raises NoDevice, InvalidArgument (a bad value), Busy (the address is another device's).
    """
    from . import telemetry

    with registry.here().change() as record:
        _set(record, _one(record, name), values)
    if "up" in values:
        telemetry.show_link(name)
    found = by_name(name)
    assert found is not None
    return found


def _one(record: Record, name: str) -> Record:
    for one in record["devices"]:
        if one["name"] == name:
            return one  # type: ignore[no-any-return]
    there = ", ".join(sorted(one["name"] for one in record["devices"])) or "none"
    raise errors.NoDevice(f"device: there is no {name!r}\n  devices: {there}\n  try: `weft device add {name}`")


def _set(record: Record, made: Record, values: dict[str, Any]) -> None:
    for field, default in LATER_VALUES.items():
        made.setdefault(field, default)
    for field, value in values.items():
        if field not in made or field == "name":
            raise errors.InvalidArgument(
                f"device: {field!r} is no value of a device\n  values: {', '.join(f for f in made if f != 'name')}"
            )
        rule = _rule(field, value)
        if rule:
            raise errors.InvalidArgument(f"device: {field} of {made['name']} cannot be {value!r}\n  rule: {rule}")
        made[field] = value
    other = next((one for one in record["devices"] if one is not made and one["nic"] == made["nic"]), None)
    if other is not None:
        raise errors.Busy(
            f"device: the address {made['nic']:#x} is {other['name']}'s\n  try: another address, or none for a free one"
        )


def _rule(field: str, value: Any) -> str:
    """What a bad value breaks; "" for a good one."""
    whole = type(value) is int
    if field == "nic" and not (whole and 0 <= value <= NIC_MAX):
        return f"a number of 20 bits, 0 to {NIC_MAX:#x}"
    if field == "topology" and value not in ("dragonfly", "fat-tree"):
        return "dragonfly or fat-tree"
    if field == "up" and type(value) is not bool:
        return "True or False"
    if field in ("speed", "mtu") and not (whole and 0 < value < 1 << 63):
        return "a whole number above 0"
    if field == "rdzv_get_en" and not (whole and value in (0, 1)):
        return "0 or 1"
    if field == "amo_remap_to_pcie_fadd" and not (whole and value in PCIE_REMAPS):
        return '-1, 0, 1, 2 or 4 to 10 (fi_cxi(7) "PCIe Atomics"); 10 costs no other operation, -1 is off'
    return ""
