"""node and service of getinfo as addresses of the CXI provider. Source: fi_cxi(7) "Addressing Format"."""

from __future__ import annotations

import re
from typing import Any

from ... import errors
from ...fi.policy import Asked
from ...flags import Flag
from . import device
from .address import NIC_MAX, PID_ANY, Address

# The part of a text that sscanf's %i reads: blanks, a sign, and digits of base 16 (0x), 8 (0) or 10.
_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", re.ASCII)
_ETHERNET = re.compile(r"[0-9a-fA-F]{1,2}(?::[0-9a-fA-F]{1,2}){5}\Z", re.ASCII)


def peer(asked: Asked) -> Address:
    """The address of a peer, for fi_av_insertsvc: node is no device's name there, because devices are this host's.

    Raises InvalidArgument for an invalid node or service.
    """
    return Address(_nic(asked.node or "", "av.insertsvc", devices=False), _pid(asked.service or "", "av.insertsvc"))


def addresses(asked: Asked, name: str | None) -> tuple[Address | None, Address | None]:
    """Source and destination for an offer of the device `name`; None: that of the offer.

    Raises InvalidArgument for an invalid node or service, NotAvailable if FI_SOURCE names another device.
    """
    node = None if asked.node is None else _nic(asked.node, "getinfo")
    pid = None if asked.service is None else _pid(asked.service, "getinfo")
    hints = asked.hints
    hinted_source = None if hints is None else _hinted(hints.src_addr)
    hinted_peer = None if hints is None else _hinted(hints.dest_addr)
    if not asked.flags & Flag.SOURCE:
        peer = hinted_peer if node is None else Address(node, pid or 0)
        return hinted_source, peer
    own = None if name is None else device.by_name(name)
    if node is not None:
        there = device.by_nic(node)
        if there is None:
            known = ", ".join(f"{one.name} ({one.nic:#x})" for one in device.devices()) or "none"
            raise errors.InvalidArgument(
                f"getinfo: node {asked.node!r} is NIC {node:#x}, which is not on this host\n  devices: {known}"
            )
        if own is not None and there.name != own.name:
            raise errors.NotAvailable(f"node {asked.node!r} is {there.name}")
        own = there
    source = None if own is None or pid is None else Address(own.nic, pid)
    return source, hinted_peer


def _hinted(address: Any) -> Address | None:
    return None if address is None else Address.from_bytes(address)


def _nic(node: str, op: str, *, devices: bool = True) -> int:
    """The address of a NIC: of a device by name, of an Ethernet address its low 20 bits, or the number itself."""
    named = device.by_name(node) if devices else None
    if named is not None:
        return named.nic
    if _ETHERNET.match(node):
        octets = bytes(int(octet, 16) for octet in node.split(":"))
        return int.from_bytes(octets, "big") & NIC_MAX
    number = _number(node)
    if number is None or not 0 <= number <= NIC_MAX:
        known = ", ".join(one.name for one in device.devices()) or "none"
        rule = f"an Ethernet address, or the number of a NIC, 0 to {NIC_MAX:#x}"
        rule = f"a device ({known}), {rule}" if devices else f"{rule}; devices have names on their own host only"
        raise errors.InvalidArgument(f"{op}: node {node!r} is no NIC\n  rule: {rule}")
    return number


def _pid(service: str, op: str) -> int:
    number = _number(service)
    if number is None or not 0 <= number < PID_ANY:
        raise errors.InvalidArgument(
            f"{op}: service {service!r} is no PID\n  rule: a number from 0 to {PID_ANY - 1}, as C reads it (0x, 0)"
        )
    return number


def _number(text: str) -> int | None:
    """The number that C's %i reads."""
    found = _NUMBER.match(text)
    if found is None:
        return None
    sign, digits = found.groups()
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    value = int(digits, base)
    return -value if sign == "-" else value
