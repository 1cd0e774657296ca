"""`weft doctor --cxi`: the search for the authorization key of each CXI device, step by step. Opens nothing.

Source: fi_cxi(7) "Authorization Keys".
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from .. import fi  # noqa: F401  # first: it registers the provider, and the modules import each other
from ..providers.cxi import auth_key, device, env, registry, service
from ._text import console, plain_table


@dataclass(frozen=True)
class DeviceKey:
    """The key that a domain of a device gets if it is opened without a key.

    Attributes:
        steps: The steps of the search with their results, in order.
        key: (service, VNI); None if none is found.
        wrong: Why the key cannot be used, or why there is none; "" if a domain can be opened.
        todo: The remedy.
    """

    device: str
    up: bool
    steps: tuple[str, ...]
    key: tuple[int, int] | None
    wrong: str
    todo: str


def search() -> list[DeviceKey]:
    """The search of each device."""
    chosen = env.load().FI_CXI_DEVICE_NAME
    return [_search(one, not chosen or one.name in chosen) for one in device.devices()]


def _search(one: device.Device, wanted: bool) -> DeviceKey:
    found = auth_key.find(one)
    key = None if found.key is None else (found.svc_id, found.vni)
    wrong, todo = "", ""
    if not one.up:
        wrong, todo = f"the link of {one.name} is down, so the device is not offered", f"weft device up {one.name}"
    elif not wanted:
        wrong, todo = (
            f"FI_CXI_DEVICE_NAME leaves {one.name} out",
            f"unset FI_CXI_DEVICE_NAME, or add {one.name} to the variable",
        )
    elif found.key is None:
        wrong, todo = f"no service admits user {os.getuid()}", _remedy(one)
    else:
        why = auth_key.check(one, found.key)
        if why is not None:
            wrong, _, rest = why.partition("\n")
            todo = rest.rpartition("try: ")[2] if "try: " in rest else "correct SLINGSHOT_VNIS and SLINGSHOT_SVC_IDS"
    return DeviceKey(one.name, one.up, found.steps, key, wrong, todo)


def _remedy(one: device.Device) -> str:
    off = next((s.id for s in service.services(one.name) if not s.enabled and auth_key.excludes(s) is None), None)
    if off is not None:
        return f"weft service enable --device {one.name} {off}"
    return f"weft service create --device {one.name} --uid {os.getuid()}"


def doctor_cxi(as_json: bool) -> int:
    """The command; its exit status: 0 if each device that is up can be opened without a key."""
    found = search()
    bad = not found or any(one.wrong for one in found if one.up)
    if as_json:
        said = {"registry": str(registry.folder()), "release": env.release(), "ok": not bad}
        print(json.dumps({**said, "devices": [vars(one) for one in found]}, indent=1))
        return int(bad)
    table = plain_table(
        f"keys of domains that are opened without a key, in {registry.folder()}", "device", "", "looked at"
    )
    for one in found:
        for n, step in enumerate(one.steps, 1):
            table.add_row("" if n > 1 else one.device, str(n), step)
        table.add_row("", "", _outcome(one))
        table.add_section()
    console().print(table)
    if not found:
        print("There is no device.\n  try: weft device add")
    for one in found:
        if one.wrong:
            print(f"{one.device}: {one.wrong}\n  try: {one.todo}")
    return int(bad)


def _outcome(one: DeviceKey) -> str:
    if one.key is None:
        return "result: no key; fi_domain fails with ENOSYS"
    key = f"AuthKey(svc_id={one.key[0]}, vni={one.key[1]})"
    return f"result: {key}, which cannot be used: {one.wrong}" if one.wrong else f"result: {key}"
