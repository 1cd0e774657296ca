"""Answers about authorization keys: those of a domain's address vectors (FI_AV_AUTH_KEY), and those of regions.

The helper's vector of a domain opened with FI_AV_AUTH_KEY has the same keys and peers as the program's, so that it
knows which key is in use.
"""

from __future__ import annotations

from typing import Any

from ..fi.mr_attr import PLAIN, MrAttr, MrAuthKey
from ..fi.mr_register import authorized, refuse_without_keys
from ..flags import AddrFormat, AvFlag
from .records import Record, Value

_Answer = dict[str, Value]


def insert(av: Any, asked: Record) -> _Answer:
    """fi_av_insert_auth_key."""
    key = asked.bytes_of("key") or b""
    return {"fi_addr": av.insert_auth_key(key, asked.number("size"), asked.number("flags"))}


def lookup(av: Any, asked: Record) -> _Answer:
    """fi_av_lookup_auth_key."""
    return {"key": bytes(av.lookup_auth_key(asked.number("fi_addr")))}


def insert_peer(av: Any, asked: Record) -> _Answer:
    """fi_av_insert of one address, with the number of its key."""
    address: Any = asked.bytes_of("address") or b""
    if av.domain.provider.addresses.format == AddrFormat.ADDR_STR:
        address = address.rstrip(b"\0").decode("utf-8", "replace")
    found = av.insert(address, flags=asked.number("flags"), fi_addr=asked.number("key") if "key" in asked else None)
    nic, pid, vni = av.lookup_address(found)
    return {"fi_addr": found, "nic": nic, "pid": pid, "vni": vni}


def remove(av: Any, asked: Record) -> _Answer:
    """fi_av_remove of one peer, or of one key; gone: the peer is not in the vector any more."""
    flags, before = asked.number("flags"), av.count()
    av.remove(asked.number("fi_addr"), flags=flags)
    return {"gone": int(not flags & AvFlag.AUTH_KEY and av.count() < before)}


def user_id(av: Any, asked: Record) -> _Answer:
    """fi_av_set_user_id of a key."""
    av.set_user_id(asked.number("fi_addr"), asked.number("id"), asked.number("flags"))
    return {}


def of_sender(cq: Any, asked: Record) -> _Answer:
    """The number of the key with an unknown sender's VNI."""
    return {"fi_addr": cq._key_of((0, 0, asked.number("vni")), asked.number("otherwise"))}


def of_region(domain: Any, av: Any, asked: Record) -> _Answer:
    """The peers that a region's authorization key admits: those of some VNIs, or one endpoint."""
    call, size = asked.text("call") or "", asked.number("size")
    if call != "fi_mr_regattr":
        refuse_without_keys(domain, call)
    key: Any = asked.bytes_of("key") if av is None else MrAuthKey(av, asked.number("src_addr"))
    attr = MrAttr(auth_key=key, auth_key_size=size)
    found = authorized(domain, call, attr, asked.number("flags"), PLAIN)
    if found.source is None:
        return {"vni": list(found.vnis)}
    nic, pid, vni = found.source
    return {"source.nic": nic, "source.pid": pid, "source.vni": vni}
