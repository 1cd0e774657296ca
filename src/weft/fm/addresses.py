"""Addresses of NICs as the exchange writes them, and the place in the network that an address says.

A NIC's address has 20 bits. A request names it by five hexadecimal digits, "0:08:40"; an answer by six octets,
"02:00:00:00:08:40", of which the low 20 bits count.

Source: fi_cxi(7) "Addressing Format".
"""

from __future__ import annotations

import re
from typing import NamedTuple

NIC_MAX = (1 << 20) - 1
MAC_PATTERN = r"^[0-9a-fA-F]:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}$"
_OCTET = re.compile(r"\s*([0-9a-fA-F]{1,2})(:?)", re.ASCII)
_PORT_BITS, _SWITCH_BITS, _TREE_SWITCH_BITS = 6, 5, 14
_LOCAL = 0x02 << 40  # a locally administered Ethernet address


class Place(NamedTuple):
    """Where a NIC is: group of a dragonfly (0 in a fat tree), switch, port of the switch."""

    group: int
    switch: int
    port: int


def nic_text(nic: int) -> str:
    """The address as a request has it: "0:08:40"."""
    return f"{nic >> 16 & 0xF:x}:{nic >> 8 & 0xFF:02x}:{nic & 0xFF:02x}"


def mac_text(nic: int) -> str:
    """The address as an answer has it: "02:00:00:00:08:40"."""
    whole = _LOCAL | nic
    return ":".join(f"{whole >> shift & 0xFF:02x}" for shift in range(40, -1, -8))


def nic_of_mac(text: str) -> int | None:
    """The low 20 bits of an address of six octets, read as the provider reads it; None if it has fewer than three.

    With three to five octets, the missing low octets count as 0.
    """
    octets: list[int] = []
    at, more = 0, True
    while more and len(octets) < 6 and (found := _OCTET.match(text, at)):
        octets.append(int(found[1], 16))
        at, more = found.end(), bool(found[2])
    if len(octets) < 3:
        return None
    octets += [0] * (6 - len(octets))
    return int.from_bytes(bytes(octets), "big") & NIC_MAX


def place(nic: int, topology: str = "dragonfly") -> Place:
    """Where the NIC with this address is in a "dragonfly" or a "fat-tree"."""
    port, above = nic & (1 << _PORT_BITS) - 1, nic >> _PORT_BITS
    if topology == "fat-tree":
        return Place(0, above & (1 << _TREE_SWITCH_BITS) - 1, port)
    return Place(above >> _SWITCH_BITS, above & (1 << _SWITCH_BITS) - 1, port)
