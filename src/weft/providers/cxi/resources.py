"""Resources of a NIC: the limits of each service, and the resources that processes have taken.

`use/<device>.json` in the registry's folder lists the resources of each process. `Pool.take` usually accesses no file,
because a process takes several entries at once, fewer if few are left. So a limit is exact within a process; between
processes it is exact to a 64th of the remaining entries per process. The next access to the file frees the resources of
dead processes.

    pool = open_pool(device, service)
    pool.take("ptes", 4)        # raises Exhausted, which lists the processes that have them
    pool.give("ptes", 4)
    pool.close()                # returns all entries that are still taken

Source: fi_cxi(7) "Authorization Keys": a service is a container of local resources.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import _nic, errors
from . import processes, registry
from .files import locked, private_folder, replace
from .record import TOTALS

if TYPE_CHECKING:
    from .device import Device
    from .service import Service

__all__ = ["Exhausted", "Pool", "open_pool", "usage", "users"]

FORMAT = 1
CHUNK_MOST, CHUNK_PART = 256, 64  # taken at once: a 64th of the remaining entries, at most 256


class Exhausted(errors.NoSpace):
    """A limit of a service, or of the device, is reached (FI_ENOSPC).

    kind     of the resource.   limit    of the service.
    in_use   by all processes of the service together.   by    holders: [(process, number), ...]
    """

    kind: str = ""
    limit: int = 0
    in_use: int = 0
    by: tuple[tuple[str, int], ...] = ()


# ---- the file --------------------------------------------------------------------------------------------------------


class _Book:
    """The file with the processes' resources of one device."""

    def __init__(self, folder: Path, device: str) -> None:
        self.path = folder / "use" / f"{device}.json"

    @contextlib.contextmanager
    def open(self) -> Iterator[list[dict[str, Any]]]:
        """The shares of living processes, to be changed; written when the block ends without an error."""
        private_folder(self.path.parent)
        with locked(self.path.with_suffix(".lock"), "resources"):
            before, shares = self._load()
            yield shares
            if shares != before:
                replace(self.path, json.dumps({"format": FORMAT, "shares": shares}, indent=1) + "\n")

    def shares(self) -> list[dict[str, Any]]:
        """The current shares."""
        return self._load()[1]

    def _load(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        try:
            found = json.loads(self.path.read_bytes())
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']!r}, this weft reads {FORMAT}")
            before = found["shares"]
            living = [
                {**one, "held": {kind: int(n) for kind, n in one["held"].items()}}
                for one in before
                if processes.alive(one)
            ]
        except FileNotFoundError:
            return [], []
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as reason:
            raise errors.InvalidArgument(
                f"resources: {self.path} is not understood: {reason}\n"
                f"  try: rm {self.path}, when no process uses the device"
            ) from None
        return before, living


# ---- this process's share --------------------------------------------------------------------------------------------


class _Share:
    """This process's resources of one service; `free`: those that none of its pools uses."""

    def __init__(self, book: _Book, device: str, service: int) -> None:
        self.book, self.device, self.service = book, device, service
        self.lock = _locks.setdefault(str(book.path), threading.Lock())  # of all shares of the device
        self.me = processes.identity()
        self.pid = os.getpid()
        self.held = dict.fromkeys(TOTALS, 0)
        self.free = _nic.Stock(list(TOTALS))  # regions take of it in the extension, without the lock
        self.left = dict.fromkeys(TOTALS, 0)  # remaining for other processes at the last access to the file
        self.pools = 0

    def is_mine(self, one: dict[str, Any]) -> bool:
        return one["service"] == self.service and all(one[key] == value for key, value in self.me.items())

    def write(self, shares: list[dict[str, Any]]) -> None:
        shares[:] = [one for one in shares if not self.is_mine(one)]
        if self.pools:
            shares.append({**self.me, "service": self.service, "held": {k: n for k, n in self.held.items() if n}})

    def begin(self) -> None:
        """Add this process to the file, with some entries of each kind: most domains then need no further access."""
        limits = self._limits()
        with self.book.open() as shares:
            for kind in TOTALS:
                there, _, _ = self._there(kind, limits, shares)
                self._add(kind, max(_chunk(there), 0), there)
            self.write(shares)

    def refill(self, kind: str, n: int) -> None:
        """Take entries until `n` are free, and some in advance. Raises Exhausted."""
        limits = self._limits()
        with self.book.open() as shares:
            there, most, mine = self._there(kind, limits, shares)
            want = n - self.free[kind]
            if there < want:  # first return the unused entries of this process's other services
                for other in list(_shares.values()):
                    if other is self or other.book.path != self.book.path:
                        continue
                    unused = other.free.clear(kind)
                    if unused:
                        other.held[kind] -= unused
                        other.write(shares)
                there, most, mine = self._there(kind, limits, shares)
            if there < want:
                raise self._exhausted(kind, n, most, mine, there, shares)
            self._add(kind, min(there, max(want, _chunk(there))), there)
            self.write(shares)

    def _add(self, kind: str, more: int, there: int) -> None:
        self.held[kind] += more
        self.left[kind] = there - more
        self._limit(kind)
        self.free.add(kind, more)

    def _limit(self, kind: str) -> None:
        """With so many free, `give_back` has nothing to do."""
        self.free.set_ceiling(kind, 2 * _chunk(self.left[kind]) + 1)

    def _limits(self) -> dict[int, dict[str, list[int]]]:
        """Service of the device -> kind -> most, reserved."""
        record = registry.at(self.book.path.parent.parent).read().record
        return {one["id"]: one["limits"] for one in record["services"].get(self.device, {"all": []})["all"]}

    def _there(
        self, kind: str, limits: dict[int, dict[str, list[int]]], shares: list[dict[str, Any]]
    ) -> tuple[int, int, int]:
        """Remaining entries of this service, its limit, and the number that its processes hold."""
        held: dict[int, int] = {}
        for one in shares:
            held[one["service"]] = held.get(one["service"], 0) + one["held"].get(kind, 0)
        mine = held.get(self.service, 0)
        most = limits[self.service][kind][0] if self.service in limits else 0
        # Other services keep their entries and their reservations.
        kept = sum(
            max(held.get(id, 0), limits[id][kind][1] if id in limits else 0)
            for id in limits.keys() | held
            if id != self.service
        )
        return min(most - mine, TOTALS[kind] - kept - mine), most, mine

    def give_back(self, kind: str) -> None:
        """Keep no more in advance than `refill` would take."""
        keep = _chunk(self.left[kind] + self.free[kind])
        if self.free[kind] > 2 * keep + 1:
            more = self.free[kind] - keep
            with self.book.open() as shares:
                if self.free.take(kind, more):
                    self.held[kind] -= more
                    self.left[kind] += more
                    self._limit(kind)
                    self.write(shares)

    def _exhausted(
        self, kind: str, n: int, most: int, mine: int, there: int, shares: list[dict[str, Any]]
    ) -> Exhausted:
        by = tuple(
            (processes.name(one["pid"]), one["held"][kind])
            for one in shares
            if one["service"] == self.service and one["held"].get(kind)
        )
        who = ", ".join(f"{name} has {count}" for name, count in by) or "nobody has any"
        used = mine - self.free[kind]
        why = (
            f"the service's limit is {most}, {used} are in use"
            if most - mine <= there
            else f"the device has {TOTALS[kind]}, of which other services have or have reserved all but {mine + there}"
        )
        error = Exhausted(
            f"resources: {n} {kind} of {self.device}, service {self.service}: {why}\n  in use by: {who}\n"
            f"  try: close what is not needed, or a service with more: `weft service create --device {self.device} "
            f"--limit {kind}=<more>`"
        )
        error.kind, error.limit, error.in_use, error.by = kind, most, used, by
        return error


def _chunk(left: int) -> int:
    return min(CHUNK_MOST, left // CHUNK_PART)


_shares: dict[tuple[str, str, int], _Share] = {}
_locks: dict[str, threading.Lock] = {}
_shares_lock = threading.Lock()


def _after_fork() -> None:
    global _shares_lock
    _shares_lock = threading.Lock()
    _shares.clear()
    _locks.clear()


os.register_at_fork(after_in_child=_after_fork)


class Pool:
    """One domain's resources of a service. Thread-safe. In a forked child its calls have no effect."""

    def __init__(self, share: _Share) -> None:
        self._share = share
        self._taken = _nic.Stock(list(TOTALS))
        self._open = True

    @property
    def taken(self) -> dict[str, int]:
        """Kind -> number of entries in this pool."""
        return {kind: n for kind in TOTALS if (n := self._taken[kind])}

    def take(self, kind: str, n: int = 1) -> None:
        """Take `n` entries. Raises Exhausted, and then has taken none."""
        with self._share.lock:
            self._check_open()
            while not self._share.free.take(kind, n):
                self._share.refill(kind, n)
            self._taken.add(kind, n)

    def _check_open(self) -> None:
        if not self._open or self._share.pid != os.getpid():
            raise errors.BadState(
                "resources: the pool is closed, or a parent's\n  try: open the domain in this process"
            )

    def give(self, kind: str, n: int = 1) -> None:
        """Return `n` entries. Raises InvalidArgument for more than were taken."""
        share = self._share
        if share.pid != os.getpid():
            return
        with share.lock:
            if not self._taken.take(kind, n):
                raise errors.InvalidArgument(f"resources: {n} {kind} given back, {self._taken[kind]} were taken")
            share.free.add(kind, n)
            share.give_back(kind)

    def takes(
        self,
        numbers: _nic.Numbers,
        *,
        below: int,
        low: tuple[str, int],
        high: tuple[str, int],
        refuse: Callable[[Exhausted], Exception],
    ) -> _nic.RegionTakes:
        """What regions take of this pool, for the extension: then a region mostly costs no Python.

        refuse   makes the error of a region that is refused; it must not refer to the domain.
        Other arguments as of `RegionTakes`.
        """

        def more(kind: str, n: int) -> None:
            with self._share.lock:
                self._check_open()
                if self._share.free[kind] < n:
                    try:
                        self._share.refill(kind, n)
                    except Exhausted as none:
                        raise refuse(none) from none

        def over(kind: str) -> None:
            # A region may be collected at any place, also where this thread has the lock: then the next one does it.
            if self._share.lock.acquire(blocking=False):
                try:
                    self._share.give_back(kind)
                finally:
                    self._share.lock.release()

        return _nic.RegionTakes(
            numbers, self._share.free, self._taken, below=below, low=low, high=high, more=more, over=over
        )

    def close(self) -> None:
        """Return all entries. A second close does nothing."""
        share = self._share
        if share.pid != os.getpid():
            return
        with _shares_lock, share.lock:
            if not self._open:
                return
            self._open = False
            for kind in TOTALS:
                share.free.add(kind, self._taken.clear(kind))
            share.pools -= 1
            if share.pools == 0:
                for kind in TOTALS:
                    share.free.clear(kind)
                    share.held[kind] = 0
                _shares.pop((str(share.book.path), share.device, share.service), None)
                with share.book.open() as shares:
                    share.write(shares)
            else:
                for kind in TOTALS:
                    share.give_back(kind)


def open_pool(device: Device, service: Service) -> Pool:
    """A pool for a new domain; the service is then in use. Raises NotFound if the service has been destroyed."""
    here = registry.here()
    book = _Book(here.path, device.name)
    key = (str(book.path), device.name, service.id)
    with _shares_lock:
        share = _shares.get(key)
        if share is None:
            share = _shares[key] = _Share(book, device.name, service.id)
        with share.lock:
            share.pools += 1
            if share.pools == 1:
                try:
                    share.begin()
                except BaseException:
                    share.pools = 0
                    del _shares[key]
                    raise
    pool = Pool(share)
    part = here.read().record["services"].get(device.name, {"all": []})["all"]
    if all(one["id"] != service.id for one in part):
        pool.close()
        raise errors.NotFound(f"service: {device.name} has no service {service.id} any more")
    return pool


def users(device: str, service: int | None = None) -> list[str]:
    """The processes that have resources of a device, or of one of its services."""
    found = _Book(registry.here().path, device).shares()
    return [processes.name(one["pid"]) for one in found if service in (None, one["service"])]


def usage(device: str) -> dict[int, dict[str, int]]:
    """Service -> kind -> number of entries of its processes, including those taken in advance."""
    found: dict[int, dict[str, int]] = {}
    for one in _Book(registry.here().path, device).shares():
        held = found.setdefault(one["service"], {})
        for kind, n in one["held"].items():
            held[kind] = held.get(kind, 0) + n
    return found
