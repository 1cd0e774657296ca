"""What processes exchange about endpoints and regions, in both dialects: places, and packed keys.

A packed key names a region (where its owner's endpoint is, its key, its bounds, its rights); a packed address names an
endpoint. Both begin with a magic number, a version and a length, and end with a checksum, so that a truncated or
modified buffer is detected. Neither grants access: the owner's NIC checks every operation.

Layout, little-endian: magic 4s, version u8, kind u8, memory type u8, flags u8, bytes u16, nic u32, vni u16, pid u32,
port u16, process u64, context u64, key u64, address u64, base u64, length u64, prot u32, host (u8 length, then
that many bytes), crc32 u32.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

from . import _nic, _process, errors
from .flags import Flag

MAGIC = b"WEFT"
VERSION = 1
ADDRESS, KEY, EXPORT = 1, 2, 3
"""Kinds."""
SYMMETRIC, EMPTY = 1, 2
"""Flags."""

VNI_DEFAULT = 1
"""The VNI of addresses and endpoints that name none: one number, so that both dialects reach each other."""
REMOTE_NIC = 1 << 31
"""NIC numbers from here on belong to NICs of other hosts (_nic.route_number)."""
# UCP's protection bits LOCAL_READ, LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE -> the NIC's access bits. The local bits are
# swapped: libfabric names local access after the operation, and the source buffer of a write is read.
PROT = {1: int(Flag.WRITE), 2: int(Flag.READ), 1 << 8: int(Flag.REMOTE_READ), 1 << 9: int(Flag.REMOTE_WRITE)}
_HEAD = struct.Struct("<4sBBBBHIHIHQQQQQQI")
_CRC = struct.Struct("<I")


class Place(NamedTuple):
    """Where an endpoint is. host is "" and port 0 for a process that can be reached only from its own host."""

    host: str
    port: int
    nic: int
    vni: int
    pid: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        where = f"{host}:{self.port}/" if host else ""
        return f"weft://{where}{self.nic}/{self.vni}/{self.pid}"

    def address(self) -> tuple[int, int, int]:
        """(nic, pid, vni) for address vectors of this process."""
        if not self.host:
            return self.nic, self.pid, self.vni
        return _process.own_nic(_nic.route_number(self.host, self.port, self.nic)), self.pid, self.vni


def place_of(address: tuple[int, int, int], on: _nic.Nic | None = None) -> Place:
    """The place that peers use for an endpoint, (nic, pid, vni), of a NIC of this process (None: its own NIC)."""
    nic, pid, vni = address
    route = _nic.route_of(_process.public_nic(nic, on))
    return Place("", 0, nic, vni, pid) if route is None else Place(*route, vni, pid)


def of_endpoint(endpoint: _nic.EndpointCore) -> Packed:
    """The packed address of an enabled endpoint of this process, of either dialect."""
    on = _nic_of(endpoint)
    return Packed(ADDRESS, place_of(endpoint.address, on), _process.identity(on))


def of_region(region: _nic.MemoryRegionCore, endpoint: _nic.EndpointCore, memory_type: int = 0) -> Packed:
    """The packed key of a region of one buffer, reached through an endpoint of its domain."""
    on = _nic_of(endpoint)
    prot = sum(bit for bit, flag in PROT.items() if region.access & flag)
    return Packed(
        KEY,
        place_of(endpoint.address, on),
        _process.identity(on),
        0,
        region.key,
        region.address,
        region.base,
        region.length,
        prot,
        memory_type,
    )


def _nic_of(endpoint: Any) -> _nic.Nic | None:
    """The NIC of an endpoint of weft.fi; None: the process's own."""
    domain = getattr(endpoint, "domain", None)
    return None if domain is None else domain.policy.nic


def format_address(nic: int, pid: int | None, vni: int) -> str:
    """`weft://[host:port/]nic/vni[/pid]` of an address that has this process's number of the NIC."""
    where = str(nic)
    if nic >= REMOTE_NIC:
        route = _nic.route_of(nic)
        if route is None:
            raise errors.InvalidArgument(f"NIC number {nic} is no route to another host in this process")
        ip, port, number = route
        where = f"[{ip}]:{port}/{number}" if ":" in ip else f"{ip}:{port}/{number}"
    return f"weft://{where}/{vni}" if pid is None else f"weft://{where}/{vni}/{pid}"


class Packed(NamedTuple):
    """A key or an address, decoded.

    Attributes:
        process: Random number that identifies the process.
        context: Random number that identifies the context within the process; 0: weft.fi.
        key: The region's key in its owner's memory table.
        base: The table's address of the region's first byte.
        address: Virtual address in the owner's process.
        length: Bytes.
        prot: UCP's protection bits.
    """

    kind: int
    place: Place
    process: int
    context: int = 0
    key: int = 0
    address: int = 0
    base: int = 0
    length: int = 0
    prot: int = 0
    memory_type: int = 0
    flags: int = 0

    def pack(self) -> bytes:
        """The bytes to send."""
        host = self.place.host.encode()
        size = _HEAD.size + 1 + len(host) + _CRC.size
        p = self.place
        head = _HEAD.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.memory_type,
            self.flags,
            size,
            p.nic,
            p.vni,
            p.pid,
            p.port,
            self.process,
            self.context,
            self.key,
            self.address,
            self.base,
            self.length,
            self.prot,
        )
        body = head + bytes([len(host)]) + host
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def parse(cls, data: bytes) -> Packed:
        """Read what pack() wrote; more bytes may follow. Raises ValueError, saying what is wrong."""
        if len(data) < _HEAD.size + 1 + _CRC.size:
            raise ValueError(f"it has {len(data)} bytes; the shortest has {_HEAD.size + 1 + _CRC.size}")
        (
            magic,
            version,
            kind,
            memory_type,
            flags,
            size,
            nic,
            vni,
            pid,
            port,
            process,
            context,
            key,
            address,
            base,
            length,
            prot,
        ) = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise ValueError("it does not begin with the magic number")
        if version != VERSION:
            raise ValueError(f"it has version {version}, this Weft reads version {VERSION}")
        if not _HEAD.size + 1 + _CRC.size <= size <= len(data) or size != _HEAD.size + 1 + data[_HEAD.size] + _CRC.size:
            raise ValueError(f"its header says {size} bytes, and there are {len(data)}: was it cut short?")
        if _CRC.unpack_from(data, size - _CRC.size)[0] != zlib.crc32(data[: size - _CRC.size]):
            raise ValueError("its checksum is wrong: it was changed on the way")
        host = data[_HEAD.size + 1 : size - _CRC.size].decode("ascii", "replace")
        place = Place(host, port, nic, vni, pid)
        return cls(kind, place, process, context, key, address, base, length, prot, memory_type, flags)
