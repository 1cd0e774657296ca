"""Resources of a NIC: the limits of each service, and the resources that processes have taken.

The device's ledger (ledger.py), a file that all processes map, has the numbers. So limits are exact between processes,
as on the hardware, and the resources of a killed process are free for the next process that needs them.

    pool = open_pool(device, service)
    pool.take("ptes", 4)        # raises Exhausted, which lists the processes that have them
    pool.give("ptes", 4)
    pool.close()                # returns all entries that are still taken

Source: fi_cxi(7) "Authorization Keys": a service is a container of local resources.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ... import _nic, errors
from ..._process import client
from . import ledger, processes, registry
from .ledger import KINDS
from .record import TOTALS, Record

if TYPE_CHECKING:
    from pathlib import Path

    from .device import Device
    from .service import Service


class Exhausted(errors.NoSpace):
    """A limit of a service, or of the device, is reached (FI_ENOSPC).

    Attributes:
        kind: Kind of the resource.
        limit: Limit of the service.
        in_use: Number in use by all processes of the service together.
        by: Holders: [(process, number), ...]
    """

    kind: str = ""
    limit: int = 0
    in_use: int = 0
    by: tuple[tuple[str, int], ...] = ()


# ---- this process's share --------------------------------------------------------------------------------------------


class _Share:
    """This process's slot in the ledger for one service, which its pools share."""

    def __init__(self, folder: Path, device: str, service: int) -> None:
        self.folder, self.device, self.service = folder, device, service
        self.lock = threading.RLock()  # a finalizer may run on the thread that holds it
        self.pid = os.getpid()
        self.key = _key(folder, device, service)
        self.pools = 0
        self.ledger = ledger.at(folder, device)
        try:
            self.slot = self.ledger.open(ledger.me(), service)
        except errors.NoSpace:  # dead processes occupy the slots
            ledger.drop_dead(self.ledger)
            self.slot = self.ledger.open(ledger.me(), service)
        ledger.set_limits(self.ledger, _services(folder, device))

    def want(self, kind: str, n: int) -> None:
        """Return the resources of dead processes. Raises Exhausted if fewer than `n` are free even then."""
        index = KINDS.index(kind)
        ledger.set_limits(self.ledger, _services(self.folder, self.device))
        ledger.drop_dead(self.ledger)
        if self.ledger.there(self.service, index) < n:
            raise self._exhausted(kind, index, n)

    def _exhausted(self, kind: str, index: int, n: int) -> Exhausted:
        by = tuple(_by(self.ledger, self.service, index))
        who = ", ".join(f"{name} has {count}" for name, count in by) or "nobody has any"
        used = sum(count for _, count in by)
        limits = next((s["limits"] for s in _services(self.folder, self.device) if s["id"] == self.service), None)
        most = limits[kind][0] if limits is not None else 0
        there = self.ledger.there(self.service, index)
        why = (
            f"the service's limit is {most}, {used} are in use"
            if most - used <= there
            else f"the device has {TOTALS[kind]}, of which other services have or have reserved all but {used + there}"
        )
        error = Exhausted(
            f"resources: {n} {kind} of {self.device}, service {self.service}: {why}\n  in use by: {who}\n"
            f"  try: close what is not needed, or a service with more: `weft service create --device {self.device} "
            f"--limit {kind}=<more>`"
        )
        error.kind, error.limit, error.in_use, error.by = kind, most, used, by
        return error


def _services(folder: Path, device: str) -> list[Record]:
    found: list[Record] = registry.at(folder).read().record["services"].get(device, {"all": []})["all"]
    return found


def _by(book: _nic.Ledger, service: int, index: int) -> list[tuple[str, int]]:
    """(process, number) of all processes of a service that have entries of a kind."""
    found: dict[int, int] = {}
    for one in ledger.living(book):
        if one.service == service and one.counts[index]:
            found[one.pid] = found.get(one.pid, 0) + one.counts[index]
    return [(processes.name(pid), count) for pid, count in found.items()]


def _key(folder: Path, device: str, service: int) -> tuple[str, str, int, int]:
    """A share's place: a policy helper has one for each of its clients, so that refusals name the client."""
    return str(folder), device, service, client.get()


_shares: dict[tuple[str, str, int, int], _Share] = {}
_shares_lock = threading.RLock()


def _after_fork() -> None:
    global _shares_lock
    _shares_lock = threading.RLock()
    _shares.clear()


os.register_at_fork(after_in_child=_after_fork)


class Pool:
    """One domain's resources of a service. Thread-safe. In a forked child its calls have no effect."""

    def __init__(self, share: _Share) -> None:
        self._share = share
        self._taken = _nic.Stock(list(KINDS))
        self._takes: _nic.RegionTakes | None = None
        self._open = True

    @property
    def taken(self) -> dict[str, int]:
        """Kind -> number of entries in this pool."""
        return {kind: n for kind in KINDS if (n := self._taken[kind])}

    @property
    def place(self) -> tuple[Path, int]:
        """The ledger's file, and the service."""
        return ledger.path_of(self._share.folder, self._share.device), self._share.service

    def take(self, kind: str, n: int = 1) -> None:
        """Take `n` entries. Raises Exhausted, and then has taken none."""
        share = self._share
        with share.lock:
            self._check_open()
            while not share.ledger.take(share.slot, KINDS.index(kind), n):
                share.want(kind, n)
            self._taken.add(kind, n)

    def _check_open(self) -> None:
        if not self._open or self._share.pid != os.getpid():
            raise errors.BadState(
                "resources: the pool is closed, or a parent's\n  try: open the domain in this process"
            )

    def give(self, kind: str, n: int = 1) -> None:
        """Return `n` entries; nothing after close(). Raises InvalidArgument for more than were taken."""
        share = self._share
        if share.pid != os.getpid():
            return
        with share.lock:
            if not self._open:  # a collected cycle: the domain's finalizer may run before its children's
                return
            if not self._taken.take(kind, n):
                raise errors.InvalidArgument(f"resources: {n} {kind} given back, {self._taken[kind]} were taken")
            share.ledger.give(share.slot, KINDS.index(kind), n)

    def lend(self, messages: _nic.MessageConfig) -> None:
        """Let the NIC take list entries for the messages of an endpoint, and return them, by itself."""
        share = self._share
        messages.set_entries(share.ledger, share.slot, KINDS.index("les"))

    def lend_triggers(self, domain: _nic.DomainCore) -> None:
        """Let the NIC take trigger entries for the domain's deferred work, and return them, by itself."""
        share = self._share
        _nic.limit_work(domain, share.ledger, share.slot, KINDS.index("tles"))

    def users(self, kind: str) -> list[tuple[str, int]]:
        """(process, number) of all processes of the service that have entries."""
        return _by(self._share.ledger, self._share.service, KINDS.index(kind))

    def reclaim(self, kind: str) -> bool:
        """Return the resources of dead processes; True if an entry of the kind is free then. Never waits."""
        share = self._share
        if share.pid != os.getpid() or not share.lock.acquire(blocking=False):
            return False
        try:
            ledger.drop_dead(share.ledger)
            return share.ledger.there(share.service, KINDS.index(kind)) > 0
        except errors.FabricError:  # another process holds the ledger for long
            return False
        finally:
            share.lock.release()

    def held(self, kind: str) -> int:
        """Entries that all processes of the service have."""
        share, index = self._share, KINDS.index(kind)
        return sum(one.counts[index] for one in ledger.living(share.ledger) if one.service == share.service)

    def limit(self, kind: str) -> int:
        """The most that the service may have; 0 if the service is gone."""
        share = self._share
        all_of_it = _services(share.folder, share.device)
        return next((int(one["limits"][kind][0]) for one in all_of_it if one["id"] == share.service), 0)

    def want(self, kind: str, n: int) -> None:
        """Return the resources of dead processes. Raises Exhausted if fewer than `n` are free even then."""
        share = self._share
        with share.lock:
            self._check_open()
            share.want(kind, n)

    def takes(
        self,
        numbers: _nic.Numbers,
        *,
        below: int,
        low: tuple[str, int],
        high: tuple[str, int],
        refuse: Callable[[Exhausted], Exception],
    ) -> _nic.RegionTakes:
        """The resources that a region takes from this pool, as data for the extension: most regions then run no Python.

        Args:
            refuse: Makes the error of a region that is refused; it must not refer to the domain.

        Other arguments as of `RegionTakes`.
        """
        share = self._share

        def more(kind: str, n: int) -> None:
            with share.lock:
                if share.pools == 0 or share.pid != os.getpid():
                    raise errors.BadState("resources: the domain is closed, or a parent's")
                try:
                    share.want(kind, n)
                except Exhausted as none:
                    raise refuse(none) from none

        self._takes = _nic.RegionTakes(
            numbers, share.ledger, share.slot, self._taken, below=below, low=low, high=high, more=more
        )
        return self._takes

    def close(self) -> None:
        """Return all entries. A second close does nothing."""
        share = self._share
        if share.pid != os.getpid():
            return
        with share.lock:
            if not self._open:
                return
            self._open = False
            if self._takes is not None:
                self._takes.close()
            for index, kind in enumerate(KINDS):
                share.ledger.give(share.slot, index, self._taken.clear(kind))
        with _shares_lock:
            share.pools -= 1
            if share.pools == 0:
                _shares.pop(share.key, None)
                share.ledger.close(share.slot)


def open_pool(device: Device, service: Service) -> Pool:
    """A pool for a new domain; the service is then in use. Raises NotFound if the service has been destroyed."""
    here = registry.here()
    key = _key(here.path, device.name, service.id)
    with _shares_lock:
        while True:
            share = _shares.get(key)
            if share is None:
                share = _shares[key] = _Share(here.path, device.name, service.id)
            share.pools += 1
            if _shares.get(key) is share:  # no finalizer closed its last pool meanwhile
                break
    pool = Pool(share)
    if all(one["id"] != service.id for one in _services(here.path, device.name)):
        pool.close()
        raise errors.NotFound(f"service: {device.name} has no service {service.id} any more")
    return pool


def users(device: str, service: int | None = None) -> list[str]:
    """The processes that use a device, or one of its services."""
    pids = dict.fromkeys(one.pid for one in _living(device) if service in (None, one.service))
    return [processes.name(pid) for pid in pids]


def usage(device: str) -> dict[int, dict[str, int]]:
    """Service -> kind -> number of entries of its processes."""
    found: dict[int, dict[str, int]] = {}
    for one in _living(device):
        held = found.setdefault(one.service, {})
        for kind, n in zip(KINDS, one.counts, strict=True):
            if n:
                held[kind] = held.get(kind, 0) + n
    return found


def _living(device: str) -> list[ledger.Held]:
    folder = registry.here().path
    if not (folder / "use" / f"{device}.ledger").exists():
        return []
    return list(ledger.living(ledger.at(folder, device)))
