"""Addresses of endpoints on other hosts: `weft://<host>:<port>/<nic>/<vni>/<pid>`, and socket addresses.

The endpoint's process listens at host and port (`weft.open(listen=...)`, `WEFT_LISTEN`). `weft://<host>:<port>` alone,
`(host, port)` or a struct sockaddr_in means endpoint number `port` on that host: open an endpoint with
`service=str(port)` to make it reachable by such an address.

This process gives each NIC of another host a local number (`_nic.route_number`), from REMOTE_NIC on.
"""

from __future__ import annotations

import re
import struct
import sys

from .. import _nic, errors
from .._keys import REMOTE_NIC, VNI_DEFAULT
from ..fi.policy import Address

__all__ = ["REMOTE_NIC", "bracketed", "ip_of", "named", "parse", "sockaddr"]


_HOST = re.compile(
    r"weft://(?P<host>\[[^\]/]+\]|[^\[\]/:]+):(?P<port>\d+)(?:/(?P<nic>\d+)(?:/(?P<vni>\d+)(?:/(?P<pid>\d+))?)?)?/?\Z",
    re.ASCII,
)
_PLACE = re.compile(r"(?P<host>\[[^\]/]+\]|[^\[\]/:]+):(?P<port>\d+)\Z", re.ASCII)


def _port(text: str, whole: object) -> int:
    port = int(text)
    if not 0 < port < 1 << 16:
        raise errors.InvalidArgument(f"{whole!r}: {text} is not a port (1 to 65535)")
    return port


def ip_of(host: str, port: int) -> str:
    """A numeric address of a host. Raises NotAvailable for an unknown name."""
    import socket  # imported here because it is slow to import and most programs stay on their host

    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError as reason:
        raise errors.NotAvailable(
            f"the host {host!r} is not known here: {reason.strerror}\n  try: its IP address"
        ) from None
    # IPv4 first: a name often has both kinds, and a listener on 0.0.0.0 accepts only IPv4.
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return str(found[0][4][0])


def bracketed(ip: str) -> str:
    """An IP address as it stands before a port."""
    return f"[{ip}]" if ":" in ip else ip


def parse(text: str) -> Address | None:
    """(nic, pid, vni) of an address with a host; None for other texts."""
    found = _HOST.match(text)
    if found is None:
        return None
    port = _port(found["port"], text)
    nic = int(found["nic"] or 0)
    vni = VNI_DEFAULT if found["vni"] is None else int(found["vni"])
    pid = int(found["pid"]) if found["pid"] is not None else port if found["nic"] is None else None
    if nic >= REMOTE_NIC or vni >= 1 << 16 or (pid or 0) >= 1 << 32:
        raise errors.InvalidArgument(f"{text!r}: nic has 31 bits, vni 16, pid 32")
    return _nic.route_number(ip_of(found["host"], port), port, nic), pid, vni


def named(node: str, service: str | None) -> Address | None:
    """The endpoint of a node and a service: (`host`, port) or (`host:port`, endpoint number); None for other pairs."""
    found = _PLACE.match(node)
    number = int(service) if service is not None and service.isascii() and service.isdecimal() else None
    if found is not None:
        port = _port(found["port"], node)
        return _nic.route_number(ip_of(found["host"], port), port), port if service is None else number, VNI_DEFAULT
    if number is None:
        return None
    port = _port(str(number), service)
    return _nic.route_number(ip_of(node, port), port), port, VNI_DEFAULT


def sockaddr(address: object) -> Address | None:
    """The endpoint of a Python socket address `(host, port)`, or of a struct sockaddr_in or sockaddr_in6."""
    if isinstance(address, tuple):
        if len(address) in (2, 4) and isinstance(address[0], str) and isinstance(address[1], int):
            port = _port(str(address[1]), address)
            return _nic.route_number(ip_of(address[0], port), port), port, VNI_DEFAULT
        return None
    if not isinstance(address, (bytes, bytearray)) or len(address) < 16:
        return None
    import socket

    data = bytes(address)
    (family,) = struct.unpack_from("=H", data)
    (port,) = struct.unpack_from("!H", data, 2)
    if family == socket.AF_INET and len(data) == 16:
        ip = socket.inet_ntop(socket.AF_INET, data[4:8])
    elif family == socket.AF_INET6 and len(data) == 28:
        scope = int.from_bytes(data[24:28], sys.byteorder)
        ip = socket.inet_ntop(socket.AF_INET6, data[8:24]) + (f"%{scope}" if scope else "")
    else:
        return None
    return _nic.route_number(ip, _port(str(port), address)), port, VNI_DEFAULT
