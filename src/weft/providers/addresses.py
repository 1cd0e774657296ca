"""Addresses of the general provider: `weft://<nic>/<vni>/<pid>`; hosts.py has those of other hosts."""

from __future__ import annotations

import re
from typing import Any

from .. import _keys, _process, errors
from .._keys import VNI_DEFAULT
from ..fi.policy import Address
from ..flags import AddrFormat
from . import hosts

_ADDRESS = re.compile(r"weft://(\d+)(?:/(\d+)(?:/(\d+))?)?/?\Z", re.ASCII)


class WeftAddresses:
    """An `AddressCodec` for strings (FI_ADDR_STR), which also accepts socket addresses."""

    format = AddrFormat.ADDR_STR
    size = None
    tells_vni = True

    def parse(self, address: object) -> Address:
        """Read `weft://[host:port/]nic/vni/pid` (str or bytes), `(host, port)` or a struct sockaddr_in or _in6."""
        there = hosts.sockaddr(address)
        if there is not None:
            return there
        text = address
        if isinstance(text, (bytes, bytearray)):
            text = bytes(text).rstrip(b"\0").decode("ascii", "replace")
        there = hosts.parse(text) if isinstance(text, str) else None
        if there is not None:
            return there
        found = _ADDRESS.match(text) if isinstance(text, str) else None
        if found is None:
            raise errors.InvalidArgument(
                f"{address!r} is no address of the provider weft\n"
                "  rule: FI_ADDR_STR, weft://<nic>/<vni>/<pid> or weft://<host>:<port>/<nic>/<vni>/<pid>, as "
                "Endpoint.getname() returns it"
            )
        nic, vni, pid = found.groups()
        parsed = int(nic), None if pid is None else int(pid), VNI_DEFAULT if vni is None else int(vni)
        if parsed[0] >= hosts.REMOTE_NIC or (parsed[1] or 0) >= 1 << 32 or parsed[2] >= 1 << 16:
            raise errors.InvalidArgument(f"{address!r}: nic has 31 bits, pid 32, vni 16")
        return parsed

    def emit(self, address: Address) -> str:
        """Write `weft://nic/vni/pid`, with `host:port/` before it for an endpoint of another host."""
        return _keys.format_address(*address)

    text = emit

    def split(self, given: object) -> list[Any] | None:
        """Strings have no fixed size: a buffer is one address."""
        return None

    def single(self, given: object) -> bool:
        """True for a str, bytes or `(host, port)`; a tuple of addresses contains no number."""
        pair = isinstance(given, tuple) and len(given) in (2, 4) and isinstance(given[1], int)
        return pair or isinstance(given, (str, bytes, bytearray))

    def public(self, address: Address) -> Address:
        """The address with this process's host and port, if the process listens."""
        nic, pid, vni = address
        return _process.public_nic(nic), pid, vni

    def own(self, address: Address) -> Address:
        """The address without the host and port, if they are this process's."""
        nic, pid, vni = address
        return _process.own_nic(nic), pid, vni
