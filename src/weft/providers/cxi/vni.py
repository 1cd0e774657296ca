"""VNIs of launches: finding free ones, and freeing those of launches that have ended.

A launch holds a lock on its file, `launch/<id>` in the registry's folder, and its processes inherit the lock. So the
kernel releases the lock when the last process has ended, for any reason; the next access to the registry then frees the
VNIs and removes the services. Source: fi_cxi(7) "Authorization Keys", the launch workflow.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from ... import errors
from ..._files import forks_wait, open_regular, private_folder
from .record import Record

VNI_MAX = 65535
VNI_AUTO = range(1024, VNI_MAX + 1)
"""The range of VNIs for launches."""
VNIS_MOST = 64


def allocate(record: Record, count: int) -> list[int]:
    """Free VNIs, used by no service and no launch: the lowest after those allocated last. Raises NoSpace."""
    if type(count) is not int or not 1 <= count <= VNIS_MOST:
        raise errors.InvalidArgument(f"vni: {count!r} VNIs cannot be had\n  rule: 1 to {VNIS_MOST} for a launch")
    taken = _taken(record)
    # Do not reuse a VNI at once: a late packet of the old job must not reach the new one.
    first = record.get("vni_next", VNI_AUTO.start)
    found = [vni for vni in (*range(first, VNI_MAX + 1), *range(VNI_AUTO.start, first)) if vni not in taken][:count]
    if len(found) < count:
        raise errors.NoSpace(
            f"vni: {count} are wanted, {len(found)} of {VNI_AUTO.start} to {VNI_MAX} are free\n"
            "  try: `weft service list`, and destroy services that nobody uses"
        )
    record["vni_next"] = found[-1] + 1 if found[-1] < VNI_MAX else VNI_AUTO.start
    return found


def claim(record: Record, wanted: Sequence[int]) -> list[int]:
    """Take these VNIs. Raises InvalidArgument, Busy (a service or a launch has one)."""
    taken = _taken(record)
    for one in wanted:
        if type(one) is not int or not 1 <= one <= VNI_MAX:
            raise errors.InvalidArgument(f"vni: {one!r} is no VNI\n  rule: a number from 1 to {VNI_MAX}")
        if one in taken:
            raise errors.Busy(
                f"vni: {one} is a service's or a launch's\n  try: `weft service list --all`, or `--vni auto`"
            )
    if not 1 <= len(set(wanted)) == len(wanted) <= VNIS_MOST:
        raise errors.InvalidArgument(f"vni: {list(wanted)} cannot be had\n  rule: 1 to {VNIS_MOST}, each once")
    return list(wanted)


def _taken(record: Record) -> set[int]:
    """VNIs of services and launches; a service without a restriction of VNIs has none."""
    found = {one for launch in record["launches"] for one in launch["vnis"]}
    for part in record["services"].values():
        for service in part["all"]:
            for low, high in service["vnis"] or ():
                found.update(range(low, high + 1))
    return found


def hold(folder: Path, id: str) -> int:
    """Begin a launch; the descriptor that its processes inherit. Requires the registry's lock."""
    private_folder(folder / "launch")
    fd = os.open(folder / "launch" / id, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def nics(folder: Path, id: str) -> Path:
    """The registry of a launch that has devices of its own."""
    return folder / "nics" / id


def over(folder: Path, ids: Iterable[str]) -> set[str]:
    """The launches whose processes have all ended."""
    return {id for id in ids if not _is_held(folder / "launch" / id)}


def _is_held(path: Path) -> bool:
    with forks_wait:
        try:
            fd = open_regular(path)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(fd)


def sweep(record: Record, folder: Path) -> None:
    """Remove ended launches, their services, devices and files. Requires the registry's lock."""
    files = set()
    with contextlib.suppress(FileNotFoundError):
        files = set(os.listdir(folder / "launch"))
    known = {launch["id"] for launch in record["launches"]}
    gone = over(folder, known | files)
    if not gone:
        return
    record["launches"] = [launch for launch in record["launches"] if launch["id"] not in gone]
    for part in record["services"].values():
        part["all"] = [one for one in part["all"] if one["launch"] not in gone]
    for id in gone & files:
        shutil.rmtree(nics(folder, id), ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder / "launch" / id)
