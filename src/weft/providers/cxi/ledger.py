"""The ledger of a device: the limits of its services, and the resources that each process has taken.

    book = at(folder, "cxi0")               # the file use/cxi0.ledger in the registry's folder, mapped
    slot = book.open(me(), service)         # `_nic.Ledger`: kinds of resources are numbers, in the order of KINDS
    book.take(slot, KINDS.index("les"), 1)  # no system call

Limits are exact between processes. The file is binary, because every region changes it; `weft service show` prints it.
It stays correct if a process is killed at any instant; `drop_dead` returns the resources of dead processes. A copy of a
ledger, or a ledger from before the system's last boot, is replaced.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ... import _nic, errors
from ..._files import explained, locked, open_regular, private_folder
from ..._process import client
from . import processes
from .record import TOTALS, Record

KINDS = tuple(TOTALS)
OWN_TLES = 8  # trigger entries of each service for the provider itself
_MAGIC = b"ledger2"  # bytes 1 to 7 of the file; byte 0 is of the system's locks
_BOOT = Path("/proc/sys/kernel/random/boot_id")

_SPACE_BITS = 32  # an inode number of the kernel's file system of namespaces

_known: dict[str, tuple[tuple[int, int], _nic.Ledger]] = {}


class Held(NamedTuple):
    """The resources of one process in one service: its slot, and a count for each of KINDS."""

    slot: int
    service: int
    process: tuple[int, int, int]
    counts: list[int]

    @property
    def pid(self) -> int:
        """The process that people know: the C program for which a policy helper has taken the resources, or itself."""
        return self.process[2] >> _SPACE_BITS or self.process[0]


def me() -> tuple[int, int, int]:
    """The identity of this process, for `Ledger.open`; above its namespace the process on whose behalf it acts."""
    found = processes.identity()
    return found["pid"], found["start"], found["space"] | client.get() << _SPACE_BITS


def path_of(folder: Path, device: str) -> Path:
    """The file of a device's ledger."""
    return folder / "use" / f"{device}.ledger"


def at(folder: Path, device: str) -> _nic.Ledger:
    """The ledger of a device in a registry's folder, made if necessary. Raises InvalidArgument for another file."""
    path = path_of(folder, device)
    known = _known.get(str(path))
    if known is not None and known[0] == _place(path):
        return known[1]
    private_folder(path.parent)
    with locked(path.with_suffix(".lock"), "resources"), explained(path):
        made = _open(path)
        while made is None:
            path.unlink()
            made = _open(path)
    place = _place(path)
    if place is not None:
        _known[str(path)] = place, made
    return made


def _place(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _open(path: Path) -> _nic.Ledger | None:
    """The ledger; None if the file is a copy, or from before the last boot. Requires the lock."""
    fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        begun = os.pread(fd, 8, 0)
        other = begun[1:] != _MAGIC or found.st_size != _nic.Ledger.bytes()
        if found.st_size > _nic.Ledger.bytes() or (begun.strip(b"\0") and other):
            raise errors.InvalidArgument(
                f"resources: {path} is no ledger of this version of weft\n"
                f"  try: rm {path}, when no process uses the device"
            )
        os.posix_fallocate(fd, 0, _nic.Ledger.bytes())  # a store into a hole of a file on a full disk kills
        ledger = _nic.Ledger(fd)
        id = _identity(found)
        if not begun.strip(b"\0"):
            ledger.begin(id, list(TOTALS.values()))
        return ledger if ledger.begun(id) else None
    finally:
        os.close(fd)


def _identity(found: os.stat_result) -> int:
    try:
        boot = _BOOT.read_text()
    except OSError:
        boot = ""
    text = f"{boot} {found.st_dev} {found.st_ino}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def depth(limit: Sequence[int]) -> int:
    """Trigger entries that the processes of a service can have together, of its limit (most, reserved)."""
    most, reserved = limit
    return max((reserved or most) - OWN_TLES, 0)


def _limit(kind: str, limit: Sequence[int]) -> Sequence[int]:
    if kind != "tles":
        return limit
    return depth(limit), depth(limit) if limit[1] else 0


def set_limits(ledger: _nic.Ledger, services: list[Record]) -> None:
    """Set the limits of all services of a device."""
    limits = [(one["id"], [_limit(kind, one["limits"][kind]) for kind in KINDS]) for one in services]
    ledger.set_limits([(id, [most for most, _ in all], [reserved for _, reserved in all]) for id, all in limits])


def follow(folder: Path, record: Record) -> None:
    """Copy the limits of a changed registry to the ledgers that exist."""
    for device, part in record["services"].items():
        if (folder / "use" / f"{device}.ledger").exists():
            set_limits(at(folder, device), part["all"])


def living(ledger: _nic.Ledger) -> Iterator[Held]:
    """The resources of living processes."""
    return (one for one in map(Held._make, ledger.held()) if _lives(one))


def drop_dead(ledger: _nic.Ledger) -> None:
    """Return the resources of dead processes."""
    for one in map(Held._make, ledger.held()):
        if not _lives(one):
            ledger.drop(one.slot, one.process)


def _lives(one: Held) -> bool:
    pid, start, space = one.process
    return processes.alive({"pid": pid, "start": start, "space": space & ((1 << _SPACE_BITS) - 1)})
