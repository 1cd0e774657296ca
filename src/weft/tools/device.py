"""`weft device`: the CXI devices of this host. Source: fi_cxi(7) "Addressing Format", "PCIe Atomics"."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ._command import Command, Group, option, switch
from ._text import UsageError, console, parse_number, plain_table

app = typer.Typer(
    cls=Group, help="The CXI devices of this host, made of software.", no_args_is_help=True, rich_markup_mode=None
)

_Number = str | None
_Name = Annotated[str, typer.Argument(metavar="DEVICE", help="cxi0 to cxi9.", show_default=False)]


@app.command("list", cls=Command)
def list_(as_json: Annotated[bool, switch("One JSON object.", "--json")] = False) -> None:
    """Show the devices: name, state, address, place in the network, users."""
    from ..providers.cxi import device, registry, resources, service

    found = device.devices()
    if as_json:
        said: dict[str, Any] = {"registry": str(registry.folder()), "devices": [_plain(one) for one in found]}
        print(json.dumps(said, indent=1))
        return
    table = plain_table(
        f"devices in {registry.folder()}", "device", "link", "address", "group switch port", "Gbit/s", "mtu",
        "amo_remap", "services", "in use by",
    )  # fmt: skip
    for one in found:
        table.add_row(
            one.name,
            "up" if one.up else "down",
            f"{one.nic:#07x}",
            f"{one.group} {one.switch} {one.port}" if one.topology == "dragonfly" else f"- {one.switch} {one.port}",
            f"{one.speed / 1e9:g}",
            str(one.mtu),
            str(one.amo_remap_to_pcie_fadd),
            ", ".join(str(s.id) for s in service.services(one.name)),
            ", ".join(resources.users(one.name)) or "nobody",
        )
    console().print(table)


def _plain(one: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(one), "group": one.group, "switch": one.switch, "port": one.port, "mac": one.mac}


@app.command(cls=Command)
def add(
    name: Annotated[_Number, typer.Argument(metavar="[DEVICE]", help="Its name. [first free one]")] = None,
    nic: Annotated[_Number, option("ADDRESS", "20 bits, for example 0x00840; or give a place:")] = None,
    group: Annotated[_Number, option("N", "Group of a dragonfly, 0 to 511.")] = None,
    switch: Annotated[_Number, option("N", "Switch: 0 to 31; in a fat tree to 16383.")] = None,
    port: Annotated[_Number, option("N", "Port of the switch, 0 to 63.")] = None,
    topology: Annotated[str, option("KIND", "dragonfly or fat-tree.")] = "dragonfly",
) -> None:
    """Add a device; prints its name. Without an address it gets the next free port."""
    from ..providers.cxi import device

    place = {"group": group, "switch": switch, "port": port}
    given = {what: parse_number(f"--{what}", text) for what, text in place.items() if text is not None}
    if nic is not None and given:
        raise UsageError("--nic and a place (--group, --switch, --port) exclude each other: give one of them")
    address = None if nic is None else parse_number("--nic", nic)
    if given:
        address = device.compose(topology, **given)
    print(device.add(name, address, topology=topology).name)


@app.command(cls=Command)
def remove(name: _Name) -> None:
    """Remove a device and its services. Refused while a process uses it."""
    from ..providers.cxi import device

    device.remove(name)


@app.command(cls=Command)
def up(name: _Name) -> None:
    """Bring the link of a device up."""
    from ..providers.cxi import device

    device.set_up(name, True)


@app.command(cls=Command)
def down(name: _Name) -> None:
    """Take the link of a device down: the device is no longer offered. Running processes notice it."""
    from ..providers.cxi import device

    device.set_up(name, False)


@app.command(cls=Command)
def get(
    name: _Name,
    what: Annotated[str, typer.Argument(metavar="NAME", help="nic_addr, or a name of `weft device list --json`.")],
) -> None:
    """Print one value of a device, as the driver's properties in sysfs: weft device get cxi0 nic_addr."""
    from ..providers.cxi import device

    found = device.by_name(name)
    if found is None:
        raise UsageError(f"no device {name}\n  devices: {', '.join(one.name for one in device.devices())}")
    values = {"nic_addr": f"{found.nic:#x}", **_plain(found)}
    if what not in values:
        raise UsageError(f"{what!r} is no value of a device\n  known: {', '.join(values)}")
    print(values[what])


@app.command("set", cls=Command)
def set_(
    name: _Name,
    values: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="nic, topology, speed, mtu, "
                      "amo_remap_to_pcie_fadd (-1: PCIe fetch-add off; 10: on, no other operation is lost), "
                      "rdzv_get_en (0: FI_CXI_RDZV_PROTO=alt_read is possible).")],
) -> None:  # fmt: skip
    """Change values of a device, for example `weft device set cxi0 amo_remap_to_pcie_fadd=10`."""
    from ..providers.cxi import device

    given: dict[str, Any] = {}
    for text in values:
        field, equals, value = text.partition("=")
        if not equals or not field:
            raise UsageError(f"{text!r} is not NAME=VALUE\n  try: weft device set {name} mtu=2048")
        try:
            given[field] = int(value, 0)
        except ValueError:
            given[field] = {"true": True, "false": False}.get(value, value)
    device.set_values(name, **given)
