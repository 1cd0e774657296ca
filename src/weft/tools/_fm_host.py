"""What `weft fm serve` knows of its host: what its page shows, and the NICs that it registers."""

from __future__ import annotations

import logging
import socket
import threading
from typing import TYPE_CHECKING, Any

from .. import errors, fi  # noqa: F401  # first: fi registers the provider, and the modules import each other
from ..fm.addresses import mac_text
from ..fm.store import Nic, Refused, Store
from ..providers.cxi import device, join, registry, resources, service, telemetry, trouble
from . import _fm_job
from .service import as_plain

if TYPE_CHECKING:
    from ..providers.cxi.device import Device

LOOK_S = 2.0
_log = logging.getLogger("weft.fm")


def live() -> dict[str, Any]:
    """Devices, their services with the resources in use, counters as [value, time in ns], what is stuck, own groups."""
    found = device.devices()
    devices, services, counters = [], [], {}
    for one in found:
        telemetry.publish(one)
        counters[one.name] = {name: list(reading) for name, reading in telemetry.read_all(one.name).items()}
        devices.append(
            {
                "name": one.name,
                "up": one.up,
                "mac": one.mac,
                "group": one.group,
                "switch": one.switch,
                "port": one.port,
                "users": resources.users(one.name),
            }
        )
        used = resources.usage(one.name)
        for each in service.services(one.name):
            services.append(
                {**as_plain(each), "in_use": used.get(each.id, {}), "users": resources.users(one.name, each.id)}
            )
    stuck = [{"process": one.process, "since": one.since, **one.stuck._asdict()} for one in trouble.read()]
    return {"devices": devices, "services": services, "counters": counters, "stuck": stuck, "groups": _own_groups()}


def _own_groups() -> list[dict[str, Any]]:
    """Groups of this host that were joined without a manager: their processes keep them in a file."""
    file = registry.here().path / join.FILE
    if not file.exists():
        return []
    try:
        with Store(file, wait_s=0.2) as store:
            found = store.groups()
    except (Refused, ValueError):  # busy, or of another version: the page shows the rest
        return []
    return [
        {
            "mcastID": one.mcast_id,
            "hwRoot": mac_text(one.hw_root),
            "members": len(one.macs),
            "vni": one.vni,
            "process": one.job_id,
            "created": one.created_ns / 1e9,
        }
        for one in found
    ]


class Registrar:
    """A thread that keeps this host's part of the manager's registry of NICs equal to the host's devices."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._host = socket.gethostname()
        self._last: tuple[Device, ...] | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weft-fm-nics", daemon=True)
        self.look()
        self._thread.start()

    def look(self) -> None:
        """Register what has changed; release launches that have ended. After an error the next look tries again."""
        try:
            for name in _fm_job.sweep(self._store):
                _log.info("job %s has ended: released", name)
            found = device.devices()
            if found == self._last:
                return
            mine = {one.nic: one for one in self._store.nics() if one.host == self._host}
            for one in found:
                wanted = Nic(one.nic, self._host, one.name, one.topology, one.up)
                known = mine.pop(one.nic, None)
                if known is None or wanted != Nic(known.nic, known.host, known.device, known.topology, known.up):
                    self._store.put_nic(wanted)
            for nic in mine:
                self._store.remove_nic(nic)
            self._last = found
        except (Refused, errors.FabricError, OSError) as reason:
            _log.warning("the devices of this host are not registered: %s", reason)

    def _run(self) -> None:
        while not self._end.wait(LOOK_S):
            self.look()

    def close(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join()
