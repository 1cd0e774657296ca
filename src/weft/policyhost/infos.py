"""Records of struct fi_info: hints from C programs, and offers for them. cpp/provider/info.cpp has the same names.

The name of a field is `part.field`, or the field alone for the fields of fi_info itself. Zeros and NULLs are left out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..fi.attrs import Info, NicAttr
from ..flags import AV_AUTH_KEY
from .records import Record, Value

_PARTS = ("tx", "rx", "ep", "domain", "fabric")
_TEXTS = {"domain": ("name",), "fabric": ("name", "prov_name")}
_KEYS = ("ep", "domain")  # the parts with an authorization key
_NOT_NUMBERS = {"domain", "fabric", "name", "prov_name", "auth_key", "auth_key_size"}
_NIC_NUMBERS = ("bus_type", "mtu", "speed", "state")
_NIC_PROV = ("version", "addr", "default_rgroup_id", "default_vni")
_NIC_TEXTS = tuple(one.name for one in dataclasses.fields(NicAttr) if one.name not in (*_NIC_NUMBERS, "prov_attr"))


def _numbers() -> dict[str, tuple[str, str]]:
    """Name in a record -> (part of the Info, field)."""
    found = {name: ("", name) for name in ("caps", "mode", "addr_format")}
    empty = Info()
    for part in _PARTS:
        for one in dataclasses.fields(getattr(empty, f"{part}_attr")):
            if one.name not in _NOT_NUMBERS:
                found[f"{part}.{one.name}"] = f"{part}_attr", one.name
    return found


NUMBERS = _numbers()
TEXTS = tuple(f"{part}.{name}" for part, names in _TEXTS.items() for name in names)


def record_of(info: Info) -> dict[str, Value]:
    """The record of an Info. Addresses are bytes, as in C: a text ends with a zero."""
    found: dict[str, Value] = {}
    for name, (part, field) in NUMBERS.items():
        value = int(getattr(getattr(info, part) if part else info, field))
        if value:
            found[name] = value
    for part, names in _TEXTS.items():
        for name in names:
            found[f"{part}.{name}"] = getattr(getattr(info, f"{part}_attr"), name)
    for part in _KEYS:
        key = getattr(info, f"{part}_attr").auth_key
        found[f"{part}.auth_key"] = None if key is None else bytes(memoryview(key))
    found["domain.av_auth_key"] = int(info.domain_attr.auth_key_size == AV_AUTH_KEY) or None
    for name in ("src_addr", "dest_addr"):
        found[name] = address_bytes(getattr(info, name))
    if info.nic is not None:
        for name in _NIC_TEXTS:
            found[f"nic.{name}"] = getattr(info.nic, name)
        for name in _NIC_NUMBERS:
            found[f"nic.{name}"] = int(getattr(info.nic, name))
        found |= record_of_prov(info.nic.prov_attr)
    return found


def record_of_prov(attr: Any) -> dict[str, Value]:
    """The record of a provider's attributes of a NIC, struct cxip_nic_attr; empty: the NIC has none."""
    return {} if attr is None else {f"nic.prov.{name}": getattr(attr, name) for name in _NIC_PROV}


def address_bytes(address: Any) -> bytes | None:
    """An address of a provider as C has it."""
    if address is None:
        return None
    return address.encode() + b"\0" if isinstance(address, str) else bytes(address)


def info_of(record: Record) -> Info:
    """The Info of a record."""
    info = Info()
    for name, (part, field) in NUMBERS.items():
        setattr(getattr(info, part) if part else info, field, record.number(name))
    for part, names in _TEXTS.items():
        for name in names:
            setattr(getattr(info, f"{part}_attr"), name, record.text(f"{part}.{name}"))
    for part in _KEYS:
        key = record.bytes_of(f"{part}.auth_key")
        if key:
            attr = getattr(info, f"{part}_attr")
            attr.auth_key, attr.auth_key_size = key, len(key)
    if record.number("domain.av_auth_key"):
        info.domain_attr.auth_key_size = AV_AUTH_KEY
    info.src_addr, info.dest_addr = record.bytes_of("src_addr"), record.bytes_of("dest_addr")
    return info
