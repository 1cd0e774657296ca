"""Authorization keys of the CXI provider: a service and a VNI, and the search for them if no key is given.

Source: fi_cxi(7) "Authorization Keys".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ... import errors
from ...fi.policy import Credential
from . import profile, service
from .address import check_number
from .device import Device

_LAYOUT = struct.Struct("<IHxx")
KEY_BYTES = _LAYOUT.size


class AuthKey(bytes):
    """An authorization key (struct cxi_auth_key), as eight bytes.

    Attributes:
        svc_id: The service, 32 bits.
        vni: The virtual network, 16 bits.

    Raises:
        InvalidArgument: Numbers out of range.

    Source: fi_cxi(7) "Authorization Keys".
    """

    __slots__ = ()

    def __new__(cls, svc_id: int, vni: int) -> AuthKey:
        for name, value, top in (("svc_id", svc_id, 0xFFFFFFFF), ("vni", vni, 0xFFFF)):
            check_number(f"cxi.AuthKey: {name}", value, top)
        return super().__new__(cls, _LAYOUT.pack(svc_id, vni))

    @classmethod
    def from_bytes(cls, data: Any) -> AuthKey:
        """The key in eight bytes, as C programs have it; the padding is ignored.

        Raises InvalidArgument for another number of bytes.
        """
        try:
            raw = bytes(memoryview(data))
        except TypeError:
            raw = b""
        if len(raw) != KEY_BYTES:
            raise errors.InvalidArgument(
                f"{data!r:.60} is no authorization key of the provider cxi\n"
                f"  rule: struct cxi_auth_key, {KEY_BYTES} bytes: svc_id of 4, vni of 2, and 2 of padding\n"
                "  try: cxi.AuthKey(svc_id=1, vni=10)"
            )
        return cls(*_LAYOUT.unpack(raw))

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        return self.svc_id, self.vni

    @property
    def svc_id(self) -> int:
        """The service."""
        return int(_LAYOUT.unpack(self)[0])

    @property
    def vni(self) -> int:
        """The virtual network."""
        return int(_LAYOUT.unpack(self)[1])

    def __repr__(self) -> str:
        return f"cxi.AuthKey(svc_id={self.svc_id}, vni={self.vni})"

    __str__ = __repr__


@dataclass(frozen=True)
class Found:
    """The result of a search for a key.

    Attributes:
        key: The key; None if the search found none.
        steps: The steps of the search with their results, in order.
    """

    key: AuthKey | None
    steps: tuple[str, ...]

    @property
    def svc_id(self) -> int:
        """Its service; 0 for none (cxip_nic_attr.default_rgroup_id)."""
        return 0 if self.key is None else self.key.svc_id

    @property
    def vni(self) -> int:
        """Its VNI; 0 for none (cxip_nic_attr.default_vni)."""
        return 0 if self.key is None else self.key.vni

    def text(self) -> str:
        """The steps, for an error message."""
        return "  looked at: " + "; ".join(self.steps)


def find(device: Device) -> Found:
    """The key of a domain opened without one: from the environment, otherwise from the device's services."""
    chosen = profile.load()
    steps: list[str] = []
    key = _from_environment(device, steps)
    if key is not None:
        return Found(key, tuple(steps))
    usable = _usable(device, steps)
    if chosen.newest_service:
        usable.reverse()
    for step in chosen.key_steps:
        value, name = _who(step)
        matching = [one for one in usable if _member(one, step, value)]
        for one in matching:
            vni = _vni(one, chosen)
            if vni is not None:
                steps.append(f"{name}: service {one.id} of {device.name}, VNI {vni}")
                return Found(AuthKey(one.id, vni), tuple(steps))
            steps.append(f"{name}: service {one.id} allows no VNI")
        if not matching:
            steps.append(f"{name}: no service")
    return Found(None, tuple(steps))


def check(device: Device, key: AuthKey) -> str | None:
    """Why a key is not valid on a device, and what to do; None if the key is valid."""
    found = service.service(device.name, key.svc_id)
    if found is None:
        known = ", ".join(str(one.id) for one in service.services(device.name)) or "none"
        return f"{device.name} has no service {key.svc_id}\n  services: {known}\n  try: `weft service list`"
    if not found.enabled:
        return (
            f"service {key.svc_id} of {device.name} is disabled\n  try: `weft service enable {key.svc_id}`, or another"
        )
    if key.vni == 0 or not found.admits(key.vni):
        return f"service {key.svc_id} of {device.name} does not allow VNI {key.vni}\n  VNIs: {_vnis(found)}"
    return None


def excludes(found: service.Service) -> str | None:
    """Why this user may not use a service; None if the service admits the user."""
    steps = ("netns", "uid", "gid", "unrestricted")
    if any(_member(found, step, _who(step)[0]) for step in steps):
        return None
    members = ", ".join(f"{one.kind} {one.value}" for one in found.members)
    return f"service {found.id} of {found.device} is for others: {members}"


# ---- step 1: the environment -----------------------------------------------------------------------------------------


def _from_environment(device: Device, steps: list[str]) -> AuthKey | None:
    names = ("SLINGSHOT_VNIS", "SLINGSHOT_DEVICES", "SLINGSHOT_SVC_IDS")
    texts = {name: os.environ.get(name) for name in names}
    unset = [name for name, text in texts.items() if not text]
    if unset:
        steps.append(f"{', '.join(unset)}: not set")
        return None
    vnis, devices, services = (str(texts[name]).split(",") for name in names)
    devices = [name.strip() for name in devices]
    if device.name not in devices:
        steps.append(f"SLINGSHOT_DEVICES={texts['SLINGSHOT_DEVICES']}: without {device.name}")
        return None
    at = devices.index(device.name)
    if at >= len(services):
        steps.append(f"SLINGSHOT_SVC_IDS={texts['SLINGSHOT_SVC_IDS']}: no entry {at + 1}, that of {device.name}")
        return None
    try:
        key = AuthKey(int(services[at]), int(vnis[0]))
    except (ValueError, errors.InvalidArgument):
        steps.append(
            f"SLINGSHOT_SVC_IDS={texts['SLINGSHOT_SVC_IDS']}, SLINGSHOT_VNIS={texts['SLINGSHOT_VNIS']}: not numbers of "
            "a service and a VNI"
        )
        return None
    steps.append(f"SLINGSHOT_*: service {key.svc_id} of {device.name}, VNI {key.vni}")
    return key


# ---- the other steps: the services -----------------------------------------------------------------------------------


def _usable(device: Device, steps: list[str]) -> list[service.Service]:
    """The services that the search considers, oldest first."""
    found = []
    for one in service.services(device.name):
        if one.system:
            continue
        if one.enabled:
            found.append(one)
        else:
            steps.append(f"service {one.id} is disabled")
    return found


def _who(step: str) -> tuple[int, str]:
    """The number of this process's user, group or namespace, as the step needs it, and the name of the step."""
    if step == "uid":
        return os.getuid(), f"uid {os.getuid()}"
    if step == "gid":
        return os.getgid(), f"gid {os.getgid()}"
    if step == "netns":
        number = _network_namespace()
        return number, f"network namespace {number}"
    return 0, "unrestricted"


def _network_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return -1  # without /proc no namespace matches


def _member(one: service.Service, step: str, value: int) -> bool:
    if step == "unrestricted":
        return not one.members or any(member.kind == "unrestricted" for member in one.members)
    return any(member.kind == step and member.value == value for member in one.members)


def _vni(one: service.Service, chosen: profile.Profile) -> int | None:
    """The VNI from a service: its first VNI, or the default VNI if the service allows all."""
    if one.vnis is None:
        return chosen.default_vni
    return next(_numbers(one), None)


def _numbers(one: service.Service) -> Iterator[int]:
    for part in one.vnis or ():
        yield from part


def _vnis(one: service.Service) -> str:
    if one.vnis is None:
        return "1 to 65535"
    named = (f"{part.start}" if len(part) == 1 else f"{part.start}-{part.stop - 1}" for part in one.vnis)
    return ", ".join(named) or "none"


def credential(key: AuthKey, *found: str) -> Credential:
    """The `Credential` of a key."""
    return Credential(key.vni, key.svc_id, bytes(key), found)
