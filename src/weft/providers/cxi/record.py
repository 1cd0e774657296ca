"""The format of registry.json: its first content, and its validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ... import errors
from . import fabrics

FORMAT = 1
Record = dict[str, Any]

_MINE = "cxi registry"
NIC_FIRST = 1 << 11 | 1 << 6  # group 1, switch 1, port 0
# Resources of a NIC, as the real driver counts them: counters, event queues and address contexts without those that the
# driver keeps; list entries: 16384 of a processing element, less those of the NIC itself.
TOTALS = {
    "acs": 1022,
    "cts": 2047,
    "eqs": 2047,
    "ptes": 2560,
    "txqs": 1024,
    "tgqs": 512,
    "les": 13955,
    "tles": 2048,
}
DEFAULT_TLES = 512  # reserved by the default service; FI_QUEUE_WORK of all its processes shares them


LATER_VALUES: Record = {"rdzv_get_en": 1}
"""Values of a device that registries of earlier versions do not have."""


def first_device(name: str, nic: int) -> Record:
    """The record of a new device."""
    return {
        "name": name,
        "nic": nic,
        "topology": "dragonfly",
        "up": True,
        "speed": 200_000_000_000,
        "mtu": 2112,
        "amo_remap_to_pcie_fadd": 10,
        **LATER_VALUES,
    }


def default_service() -> Record:
    """The record of service 1, without restrictions."""
    limits = {kind: [most, 0] for kind, most in TOTALS.items()}
    limits["tles"] = [DEFAULT_TLES, DEFAULT_TLES]
    return {
        "id": 1,
        "enabled": True,
        "system": False,
        "members": [],
        "vnis": None,
        "tclasses": None,
        "limits": limits,
        "launch": None,
    }


def first_record() -> Record:
    """The registry of a host with one device; the caller sets fabric and home."""
    return {
        "weft": _MINE,
        "format": FORMAT,
        "fabric": 0,
        "home": [],
        "devices": [first_device("cxi0", NIC_FIRST)],
        "services": {"cxi0": {"next": 2, "all": [default_service()]}},
        "launches": [],
    }


def what_to_do(path: Path) -> str:
    return (
        f"try: rm -r {path}, which loses its devices and services (`weft device list` makes it anew), "
        "or WEFT_CXI_REGISTRY=<another folder>"
    )


_NUMBER: Callable[[Any], bool] = lambda x: type(x) is int and x >= 0  # noqa: E731
_PAIR: Callable[[Any], bool] = lambda x: isinstance(x, list) and len(x) == 2 and all(map(_NUMBER, x))  # noqa: E731
_DEVICE: dict[str, Callable[[Any], bool]] = {
    "name": lambda x: isinstance(x, str),
    "nic": lambda x: _NUMBER(x) and x < 1 << 20,
    "topology": lambda x: x in ("dragonfly", "fat-tree"),
    "up": lambda x: type(x) is bool,
    "speed": _NUMBER,
    "mtu": _NUMBER,
    "amo_remap_to_pcie_fadd": lambda x: type(x) is int,
}
_DEVICE_LATER: dict[str, Callable[[Any], bool]] = {"rdzv_get_en": lambda x: x in (0, 1) and type(x) is int}
_SERVICE: dict[str, Callable[[Any], bool]] = {
    "id": lambda x: _NUMBER(x) and x > 0,
    "enabled": lambda x: type(x) is bool,
    "system": lambda x: type(x) is bool,
    "members": lambda x: isinstance(x, list) and all(isinstance(m, list) and len(m) == 2 for m in x),
    "vnis": lambda x: x is None or (isinstance(x, list) and all(map(_PAIR, x))),
    "tclasses": lambda x: x is None or (isinstance(x, list) and all(isinstance(t, str) for t in x)),
    "limits": lambda x: isinstance(x, dict) and x.keys() == TOTALS.keys() and all(map(_PAIR, x.values())),
    "launch": lambda x: x is None or isinstance(x, str),
}
_LAUNCH: dict[str, Callable[[Any], bool]] = {
    "id": lambda x: isinstance(x, str),
    "vnis": lambda x: isinstance(x, list) and all(map(_NUMBER, x)),
}


def check(record: Any, file: str) -> None:
    """Raises InvalidArgument, with a remedy, if a record does not have this format."""
    path = Path(file).parent
    if not isinstance(record, dict) or record.get("weft") != _MINE:
        raise errors.InvalidArgument(f"registry: {file} is no registry of weft\n  {what_to_do(path)}")
    if record.get("format") != FORMAT:
        raise errors.InvalidArgument(
            f"registry: {file} has format {record.get('format')!r}, this weft reads format {FORMAT}: another version "
            f"of weft made it\n  {what_to_do(path)}"
        )
    wrong = next(_faults(record), None)
    if wrong is not None:
        raise errors.InvalidArgument(f"registry: {file}: {wrong}\n  {what_to_do(path)}")


def _faults(record: Record) -> Iterator[str]:
    if not (_NUMBER(record.get("fabric")) and 1 <= record["fabric"] <= fabrics.MOST):
        yield f"fabric is {record.get('fabric')!r}"
    if not isinstance(record.get("home"), list):
        yield f"home is {record.get('home')!r}"
    devices, services, launches = record.get("devices"), record.get("services"), record.get("launches")
    if not isinstance(devices, list) or not isinstance(services, dict) or not isinstance(launches, list):
        yield "devices, services or launches are missing"
        return
    for one in devices:
        later = {name: good for name, good in _DEVICE_LATER.items() if isinstance(one, dict) and name in one}
        yield from _wrong_fields("device", one, _DEVICE | later)
        if isinstance(one, dict) and one.get("name") not in services:
            yield f"device {one.get('name')!r} has no services"
    for name, part in services.items():
        if not (isinstance(part, dict) and _NUMBER(part.get("next")) and isinstance(part.get("all"), list)):
            yield f"services of {name!r} are {part!r}"
            continue
        for one in part["all"]:
            yield from _wrong_fields(f"service of {name}", one, _SERVICE)
    for one in launches:
        yield from _wrong_fields("launch", one, _LAUNCH)


def _wrong_fields(what: str, one: Any, fields: dict[str, Callable[[Any], bool]]) -> Iterator[str]:
    if not isinstance(one, dict):
        yield f"a {what} is {one!r}"
        return
    for name, good in fields.items():
        if name not in one:
            yield f"a {what} has no {name!r}"
        elif not good(one[name]):
            yield f"a {what} has {name} {one[name]!r}"
