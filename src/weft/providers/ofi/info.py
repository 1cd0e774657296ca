"""struct fi_info, between the library and `weft.fi`.

The library allocates and frees its structs; `Native.native` keeps the one that an Info was made of, so that what
`fi.Info` does not have (a connection request, pointers of the provider) is still there when the Info is used.

Source: fi_getinfo(3).
"""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import socket
import struct
import sys
from dataclasses import dataclass, field
from typing import Any

from ... import _nic, errors
from ...fi import attrs
from ...fi.attrs import LIBRARY_VERSION, DomainAttr, EpAttr, FabricAttr, NicAttr, RxAttr, TxAttr
from ...fi.offer import Candidate
from ...fi.policy import Asked
from ...flags import AddrFormat, EpType, Flag, Mode
from .library import PREFIX, load

_OURS = int(Mode.CONTEXT | Mode.CONTEXT2)  # duties of the application that the extension fulfils
_ANY = "surrogateescape"  # names may have any bytes: those that are no text are escaped, as os.fsdecode() does
_PARTS: dict[str, type[Any]] = {
    "tx_attr": TxAttr,
    "rx_attr": RxAttr,
    "ep_attr": EpAttr,
    "domain_attr": DomainAttr,
    "fabric_attr": FabricAttr,
}


@dataclass(repr=False, slots=True)
class Info(attrs.Info):
    """An Info of the library."""

    native: Any = field(default=None, repr=False, compare=False)


def to_python(native: _nic.OfiInfo) -> Info:
    """The Info of a struct of the library."""
    found = native.fields()
    text = found["addr_format"] == AddrFormat.ADDR_STR
    info = Info(native=native)
    for name, cls in _PARTS.items():
        setattr(info, name, _filled(cls, found[name]))
    for name in ("caps", "mode", "addr_format"):
        setattr(info, name, _typed(attrs.Info, name, found[name]))
    info.mode = Mode(int(info.mode) & ~_OURS)
    for part in (info.tx_attr, info.rx_attr, info.domain_attr):
        part.mode = Mode(int(part.mode) & ~_OURS)
    if info.fabric_attr.prov_name is not None:  # some infos of connection requests name no provider
        info.fabric_attr.prov_name = PREFIX + str(info.fabric_attr.prov_name)
    for name in ("src_addr", "dest_addr"):
        raw = found[name]
        setattr(info, name, raw.split(b"\0")[0].decode(errors=_ANY) if text and raw is not None else raw)
    if found["nic"] is not None:
        info.nic = _filled(NicAttr, found["nic"])
    return info


def _filled(cls: type[Any], values: dict[str, Any]) -> Any:
    names = {f.name for f in dataclasses.fields(cls)}
    return cls(**{name: _typed(cls, name, value) for name, value in values.items() if name in names})


def _typed(cls: type[Any], name: str, value: Any) -> Any:
    """A number as the enumeration of its field, where it has the value."""
    kind = next(f for f in dataclasses.fields(cls) if f.name == name).metadata.get("kind")
    if not isinstance(kind, enum.EnumMeta):
        return value
    try:
        return kind(value)
    except ValueError:  # of a newer library
        return value


def to_native(info: attrs.Info, *, hints: bool = False) -> _nic.OfiInfo:
    """A struct of the library with the values of an Info.

    Args:
        hints: The Info is getinfo's hints: nothing is taken over from the struct that it was made of.
    """
    fields: dict[str, Any] = {
        "caps": int(info.caps),
        "mode": int(info.mode) | _OURS,
        "addr_format": int(info.addr_format),
    }
    for name in ("src_addr", "dest_addr"):
        fields[name] = packed(getattr(info, name), int(info.addr_format))
    for name, cls in _PARTS.items():
        part = getattr(info, name)
        if part is not None:
            fields[name] = _numbers(part if isinstance(part, cls) else cls())
    if hints:
        _name_opened(info, fields)
    fabric = fields.get("fabric_attr", {})
    name = fabric.get("prov_name")
    if name is not None:
        fabric["prov_name"] = name.removeprefix(PREFIX) or None
        if name == PREFIX.rstrip(":"):
            fabric["prov_name"] = None
    native = getattr(info, "native", None)
    if not hints and native is not None:  # keep the duties of the application that the provider asked for
        before = native.fields()
        fields["mode"] = int(info.mode) | before["mode"] & _OURS
        for name in ("tx_attr", "rx_attr", "domain_attr"):
            if name in fields:
                fields[name]["mode"] |= before[name].get("mode", 0) & _OURS
    elif hints:
        fabric.pop("api_version", None)
        for name in ("tx_attr", "rx_attr", "domain_attr"):
            if name in fields and fields[name]["mode"]:
                fields[name]["mode"] |= _OURS
    return _nic.ofi_info(fields, None if hints else native)


def _name_opened(info: attrs.Info, fields: dict[str, Any]) -> None:
    """Hints that are opened objects, by their names: fi_getinfo(3) domain_attr.domain and fabric_attr.fabric."""
    domain, fabric = getattr(info.domain_attr, "domain", None), getattr(info.fabric_attr, "fabric", None)
    for one, parts in ((domain, ("name", "fabric")), (fabric, ("name", "provider"))):
        if one is not None and not all(hasattr(one, part) for part in parts):
            raise errors.InvalidArgument(f"getinfo: the hints name an opened fabric or domain, not {one!r}")
    if domain is not None:
        fields["domain_attr"]["name"] = domain.name
        fabric = domain.fabric
    if fabric is not None:
        names = fields.setdefault("fabric_attr", _numbers(FabricAttr()))
        names["name"], names["prov_name"] = fabric.name, fabric.provider.name


def _numbers(part: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        if f.name in ("domain", "fabric", "auth_key_size"):
            continue
        if f.name == "auth_key":
            found[f.name] = None if value is None else bytes(memoryview(value))[: part.auth_key_size or None]
        else:
            found[f.name] = value if value is None or isinstance(value, str) else int(value)
    return found


def packed(address: Any, addr_format: int) -> bytes | None:
    """An address as the library has it. Raises InvalidArgument.

    bytes are taken as they are; a str is an address of FI_ADDR_STR, or `host:port`; (host, port) is a socket address.
    """
    if address is None:
        return None
    if isinstance(address, (bytes, bytearray, memoryview)):
        return bytes(address) + (b"\0" if addr_format == AddrFormat.ADDR_STR else b"")
    if isinstance(address, str) and addr_format == AddrFormat.ADDR_STR:
        return octets_of(address) + b"\0"
    if isinstance(address, str):
        host, _, port = address.rpartition("://")[2].rpartition(":")
        if host and port.isascii() and port.isdecimal():
            return _sockaddr(host.strip("[]"), int(port))
    elif isinstance(address, tuple) and len(address) in (2, 4) and isinstance(address[0], str):
        return _sockaddr(address[0], address[1])
    raise errors.InvalidArgument(
        f"{address!r} is no address of this provider\n"
        "  try: what getname() returned at the peer, or (host, port) for providers over IP"
    )


def octets_of(name: str) -> bytes:
    """The bytes of a name under FI_ADDR_STR. Raises InvalidArgument for a str that does not encode to bytes."""
    try:
        return name.encode(errors=_ANY)
    except UnicodeEncodeError as reason:
        raise errors.InvalidArgument(f"{name!r} is no address of this provider: {reason}") from None


def _sockaddr(host: str, port: Any) -> bytes:
    if not isinstance(port, int) or not 0 <= port < 1 << 16:
        raise errors.InvalidArgument(f"{port!r} is not a port (0 to 65535)")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        try:
            ip = ipaddress.ip_address(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as reason:
            raise errors.NotAvailable(f"the host {host!r} is not known here: {reason.strerror}") from None
    order = sys.byteorder
    if ip.version == 4:
        return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + ip.packed + bytes(8)
    scope = int(ip.scope_id) if ip.scope_id and ip.scope_id.isdecimal() else 0
    return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", port, 0) + ip.packed + scope.to_bytes(4, order)


_listed: list[Info] | None = None  # what the library offers without hints


def candidates(asked: Asked, *, named: str | None, bare: bool) -> list[Candidate]:
    """The library's offers, as getinfo's candidates. Raises the library's refusal.

    Args:
        named: The provider that the hints name.
        bare: A request for everything, whose answer is kept: looking for devices takes long.
    """
    global _listed
    load()
    flags = int(asked.flags)
    if bare and _listed is not None and not flags:
        return [_candidate(to_python(info.native)) for info in _listed]
    hints = None
    if asked.hints is not None:
        hints = to_native(asked.hints, hints=True)
    elif named is not None:
        hints = _nic.ofi_info({"mode": _OURS, "fabric_attr": {"prov_name": named.removeprefix(PREFIX)}})
    version = min(asked.version, LIBRARY_VERSION)
    found = _nic.ofi_getinfo(version, asked.node, asked.service, flags & ~int(Flag.RESCAN), hints)
    infos = [to_python(one) for one in found]
    domain = getattr(getattr(asked.hints, "domain_attr", None), "domain", None)
    if domain is not None:  # not every provider looks at the name
        infos = [one for one in infos if one.domain_attr.name == domain.name]
    if bare and not flags & ~int(Flag.RESCAN):
        _listed = infos
    return [_candidate(info) for info in infos]


def _candidate(info: Info) -> Candidate:
    kind: Any = info.ep_attr.type
    kind = EpType(kind) if kind in EpType.__members__.values() else kind
    return Candidate(str(info.fabric_attr.prov_name), str(info.domain_attr.name or ""), kind, info, [])
