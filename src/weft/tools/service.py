"""`weft service`: users, VNIs and resource limits of a CXI device. Source: fi_cxi(7) "Authorization Keys"."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._command import Command, Group, option, switch
from ._text import UsageError, console, parse_number, plain_table

if TYPE_CHECKING:
    from ..providers.cxi.service import Service

app = typer.Typer(cls=Group, help="The services of a CXI device.", no_args_is_help=True, rich_markup_mode=None)

_Many = list[str] | None
_Device = Annotated[str, option("DEVICE", "The device.", "--device", "-d")]
_Id = Annotated[int, typer.Argument(metavar="ID", help="Number of the service.", show_default=False)]


@app.command(cls=Command)
def create(
    device: _Device = "cxi0",
    uid: Annotated[_Many, option("USER", "A member: name or number; may be repeated.")] = None,
    gid: Annotated[_Many, option("GROUP", "A member: name or number; may be repeated.")] = None,
    netns: Annotated[_Many, option("INODE", "A network namespace; may be repeated.")] = None,
    vni: Annotated[_Many, option("N|A-B", "A VNI or a range; may be repeated. [all]")] = None,
    tclass: Annotated[_Many, option("CLASS", "BEST_EFFORT, LOW_LATENCY ...; repeated. [all]")] = None,
    limit: Annotated[_Many, option("KIND=MOST[:RESERVED]", "acs, cts, eqs, ptes, txqs, tgqs, les, tles.")] = None,
    disabled: Annotated[bool, switch("Make it disabled.", "--disabled")] = False,
    system: Annotated[bool, switch("Only for explicit use: never chosen automatically.", "--system")] = False,
) -> None:
    """Make a service; prints its id. Without a member every user may use it, without a VNI it allows all VNIs."""
    from ..providers.cxi import service

    made = service.create(
        device,
        members=members_of(uid, gid, netns),
        vnis=None if not vni else vnis_of(vni),
        tclasses=None if not tclass else [word.upper() for text in tclass for word in text.split(",")],
        limits=limits_of(limit),
        enabled=not disabled,
        system=system,
    )
    print(made.id)


@app.command("list", cls=Command)
def list_(
    device: Annotated[str | None, option("DEVICE", "The device. [all]", "--device", "-d")] = None,
    as_json: Annotated[bool, switch("One JSON object a line.", "--json")] = False,
) -> None:
    """Show services: members, VNIs, traffic classes, users."""
    from ..providers.cxi import device as devices
    from ..providers.cxi import resources, service

    names = [one.name for one in devices.devices()] if device is None else [_known(device)]
    found = [one for name in names for one in service.services(name)]
    if as_json:
        for one in found:
            print(json.dumps(as_plain(one)))
        return
    table = plain_table("services", "device", "id", "", "members", "VNIs", "traffic classes", "launch", "in use by")
    for one in found:
        said = as_plain(one)
        table.add_row(
            one.device,
            str(one.id),
            ("" if one.enabled else "disabled ") + ("system" if one.system else ""),
            " ".join(said["members"]) or "everybody",
            "all" if one.vnis is None else " ".join(said["vnis"]) or "none",
            "all" if one.tclasses is None else " ".join(said["tclasses"]) or "none",
            one.launch or "",
            ", ".join(resources.users(one.device, one.id)) or "nobody",
        )
    console().print(table)


@app.command(cls=Command)
def show(
    id: _Id,
    device: _Device = "cxi0",
    as_json: Annotated[bool, switch("One JSON object.", "--json")] = False,
) -> None:
    """Show a service with the limits and the use of its resources."""
    from ..providers.cxi import resources, service

    one = service.service(_known(device), id)
    if one is None:
        there = ", ".join(str(s.id) for s in service.services(device))
        raise UsageError(f"{device} has no service {id}\n  services: {there}")
    used = resources.usage(device).get(id, {})
    if as_json:
        print(json.dumps({**as_plain(one), "in_use": used}, indent=1))
        return
    table = plain_table(f"service {id} of {device}", "resource", "most", "reserved", "in use")
    for kind, (most, reserved) in one.limits.items():
        table.add_row(kind, str(most), str(reserved), str(used.get(kind, 0)))
    out = console()
    for name, value in as_plain(one).items():
        if name not in ("id", "device", "limits"):
            out.print(f"{name}: {' '.join(value) if isinstance(value, list) else value}")
    out.print(table)


@app.command(cls=Command)
def enable(id: _Id, device: _Device = "cxi0") -> None:
    """Enable a service."""
    from ..providers.cxi import service

    service.enable(device, id)


@app.command(cls=Command)
def disable(id: _Id, device: _Device = "cxi0") -> None:
    """Disable a service; open domains continue."""
    from ..providers.cxi import service

    service.enable(device, id, False)


@app.command(cls=Command)
def destroy(id: _Id, device: _Device = "cxi0") -> None:
    """Remove a service. Refused while a process uses it."""
    from ..providers.cxi import service

    service.destroy(device, id)


# ---- texts ---------------------------------------------------------------------------------------------------------


def _known(device: str) -> str:
    from ..providers.cxi import device as devices

    if devices.by_name(device) is None:
        there = ", ".join(one.name for one in devices.devices()) or "none"
        raise UsageError(f"--device: there is no {device!r}\n  devices: {there}")
    return device


def as_plain(one: Service) -> dict[str, Any]:
    from ..providers.cxi.service import TCLASSES

    return {
        "device": one.device,
        "id": one.id,
        "enabled": one.enabled,
        "system": one.system,
        "members": [f"{kind}:{value}" for kind, value in one.members],
        "vnis": None if one.vnis is None else [_range(each) for each in one.vnis],
        "tclasses": None if one.tclasses is None else [name for name, tc in TCLASSES.items() if tc in one.tclasses],
        "limits": {kind: list(pair) for kind, pair in one.limits.items()},
        "launch": one.launch,
    }


def _range(one: range) -> str:
    return str(one.start) if len(one) == 1 else f"{one.start}-{one.stop - 1}"


def members_of(uid: _Many, gid: _Many, netns: _Many) -> list[tuple[str, int]]:
    """Members from options; users and groups by name or number."""
    found: list[tuple[str, int]] = []
    for text in uid or ():
        found.append(("uid", _account("--uid", text)))
    for text in gid or ():
        found.append(("gid", _account("--gid", text)))
    for text in netns or ():
        found.append(("netns", parse_number("--netns", text)))
    return found


def _account(option: str, text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        if option == "--uid":
            import pwd

            return pwd.getpwnam(text).pw_uid
        import grp

        return grp.getgrnam(text).gr_gid
    except KeyError:
        raise UsageError(f"{option}: {text!r} is not a number or a known name") from None


def vnis_of(texts: list[str]) -> list[int | range]:
    """VNIs from options: "100", "200-300", several joined by ","."""
    found: list[int | range] = []
    for text in (word for each in texts for word in each.split(",")):
        low, dash, high = text.partition("-")
        first = parse_number("--vni", low)
        found.append(range(first, parse_number("--vni", high) + 1) if dash else first)
    return found


def limits_of(texts: _Many) -> dict[str, int | tuple[int, int]]:
    """Limits from options: "les=100", "tles=64:64"."""
    found: dict[str, int | tuple[int, int]] = {}
    for text in (word for each in texts or () for word in each.split(",")):
        kind, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--limit: {text!r} is not KIND=MOST\n  try: --limit les=100, or --limit tles=64:64")
        most, colon, reserved = value.partition(":")
        number = parse_number("--limit", most)
        found[kind.lower()] = (number, parse_number("--limit", reserved)) if colon else number
    return found
