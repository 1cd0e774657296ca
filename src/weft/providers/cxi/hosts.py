"""The hosts of NIC addresses of the network, and the addresses of the processes there.

On Slingshot the switches know the place of a NIC. Here `WEFT_CXI_HOSTS` has it, with the same text on every host:

    WEFT_CXI_HOSTS=0x840=10.0.0.1:7000,0x880=10.0.0.2:7000

Each NIC address belongs to the one process that listens there (`WEFT_LISTEN`), so a host needs a device for each
process that other hosts should reach. Processes of one host reach each other at any of its devices.

A host does not know the registries of other hosts, nor their numbers. With a list of hosts, all devices are in the
fabric NETWORK.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from ... import _nic, _process, errors, settings
from ..hosts import REMOTE_NIC, ip_of
from . import device
from .fabrics import NETWORK

_ENTRY = re.compile(r"(?P<nic>0[xX][0-9a-fA-F]+|\d+)=(?P<host>\[[^\]/]+\]|[^\[\]/:=]+):(?P<port>\d+)\Z", re.ASCII)


def listed() -> Mapping[int, tuple[str, int]]:
    """NIC address -> host and port of its process. Raises InvalidArgument for an invalid list."""
    return _parse(settings.load().WEFT_CXI_HOSTS)


@functools.lru_cache(maxsize=8)
def _parse(text: str) -> dict[int, tuple[str, int]]:
    found: dict[int, tuple[str, int]] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _ENTRY.match(entry)
        nic = -1 if match is None else int(match["nic"], 0)
        if match is None or nic > device.NIC_MAX or not 0 < int(match["port"]) < 1 << 16:
            raise errors.InvalidArgument(
                f"WEFT_CXI_HOSTS: {entry!r} is no NIC of a host\n"
                "  rule: nic=host:port, joined by commas, for example 0x840=10.0.0.1:7000,0x880=10.0.0.2:7000"
            )
        if nic in found:
            raise errors.InvalidArgument(
                f"WEFT_CXI_HOSTS: NIC {nic:#x} is listed twice\n  rule: an address is one NIC's in the whole fabric"
            )
        found[nic] = match["host"], int(match["port"])
    return found


def elsewhere(number: int) -> list[tuple[int, str, int]]:
    """The NICs of the fabric `number` that other hosts have: NIC address, IP address and port."""
    found = listed().items() if number == NETWORK else ()
    return [(nic, ip_of(*place), place[1]) for nic, place in found if device.by_nic(nic) is None]


def engine_nic(number: int, nic: int) -> int:
    """The engine's number of a NIC in the fabric `number`; the number of a route if another host has the NIC."""
    here = number << device.FABRIC_SHIFT | nic
    place = listed().get(nic) if number == NETWORK else None
    if place is None or device.by_nic(nic) is not None:
        return here
    return _process.own_nic(_nic.route_number(ip_of(*place), place[1], here))


def nic_address(engine: int) -> int:
    """The reverse of `engine_nic`: an address in the fabric."""
    route = _nic.route_of(engine) if engine >= REMOTE_NIC else None
    return (engine if route is None else route[2]) & device.NIC_MAX
