"""The registry: a host's CXI devices and services, in one file that all processes of a user share.

    with registry.here().change() as record:        # under the lock; written when the block ends without an error
        record["devices"][0]["up"] = False
    registry.here().read().record                   # the newest state; costs a stat if it has not changed

The folder is WEFT_CXI_REGISTRY, by default $XDG_RUNTIME_DIR/weft/cxi, or weft-<uid>/cxi in the temporary directory:

    registry.json   devices, services, launches; a text file. Replaced by rename: a reader never sees half of it, and a
                    writer killed at any time leaves the old or the new file
    lock            a process holds it (flock) during a change; the kernel releases it when the holder dies
    use/            resources of each device that processes have taken (ledger.py), binary: `weft service show`
    launch/         one file for each launch, held by its processes (vni.py)
    telemetry/      counters of each device (telemetry.py)

Each folder is a separate fabric. Its number is unique among the folders of a user (fabrics.py) and is part of the NIC
addresses in the engine.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ... import errors
from ..._files import (
    explained,
    locked,
    open_regular,
    private_folder_in_runtime,
    registry_said,
    replace,
    runtime_folder,
)
from . import fabrics, ledger, vni
from .record import Record, check, first_record, what_to_do

_FILE = "registry.json"


def folder() -> Path:
    """The folder of this process's registry. Raises InvalidArgument if WEFT_CXI_REGISTRY is not an absolute path."""
    return registry_said() or runtime_folder() / "cxi"


# ---- the registry ----------------------------------------------------------------------------------------------------


class Snapshot:
    """One state of the registry. `record` is shared and must not be changed; `derived` caches values made from it."""

    __slots__ = ("_derived", "record", "stamp")

    def __init__(self, record: Record, stamp: tuple[int, int, int]) -> None:
        self.record = record
        self.stamp = stamp
        self._derived: dict[Any, Any] = {}

    def derived(self, key: Any, make: Callable[[Record], Any]) -> Any:
        """`make(record)`, made once."""
        try:
            return self._derived[key]
        except KeyError:
            return self._derived.setdefault(key, make(self.record))


class Registry:
    """The registry in a folder. Made on first use, with one device and its default service."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.path.join(path, _FILE)
        self._now: Snapshot | None = None

    def read(self) -> Snapshot:
        """The newest state. Raises AccessDenied, Busy, InvalidArgument (an invalid file)."""
        now = self._now
        try:
            found = os.stat(self._file)
        except FileNotFoundError:
            return self._make()
        except OSError as reason:
            raise errors.AccessDenied(
                f"registry: {self._file}: {reason.strerror}\n  try: WEFT_CXI_REGISTRY=<a folder of your own>"
            ) from None
        if now is not None and now.stamp == (found.st_ino, found.st_mtime_ns, found.st_size):
            return now
        self._check_folder()
        now = self._load()
        if not fabrics.at_home(now.record["home"], self.path):  # the folder was copied, or moved
            with self.change() as record:
                self._settle(record)
            return self.read()
        self._now = now
        return now

    @contextlib.contextmanager
    def change(self) -> Iterator[Record]:
        """The newest state, to be changed in place; written when the block ends without an error."""
        self._check_folder()
        with locked(self.path / "lock", "registry"):
            before = self._load() if os.path.exists(self._file) else self._first()
            record = json.loads(json.dumps(before.record))
            vni.sweep(record, self.path)
            yield record
            if record != before.record or not before.stamp[0]:
                self._write(record, before.stamp[1])

    def _check_folder(self) -> None:
        private_folder_in_runtime(self.path)

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Only the lock, for the other files of the folder."""
        return locked(self.path / "lock", "registry")

    def _make(self) -> Snapshot:
        with self.change():
            pass
        return self.read()

    def _write(self, record: Record, after_ns: int) -> None:
        check(record, self._file)
        replace(Path(self._file), json.dumps(record, indent=1) + "\n", after_ns)
        ledger.follow(self.path, record)  # if this fails, the next user of a service does it

    def _load(self) -> Snapshot:
        with explained(Path(self._file)), open(open_regular(self._file), "rb") as file:
            found = os.fstat(file.fileno())
            data = file.read()
        try:
            record = json.loads(data)
        except (ValueError, RecursionError) as reason:
            raise errors.InvalidArgument(
                f"registry: {self._file} is no JSON: {reason}\n  {what_to_do(self.path)}"
            ) from None
        check(record, self._file)
        return Snapshot(record, (found.st_ino, found.st_mtime_ns, found.st_size))

    def _first(self) -> Snapshot:
        record = first_record()
        self._settle(record)
        return Snapshot(record, (0, 0, 0))

    def _settle(self, record: Record) -> None:
        record["fabric"], record["home"] = fabrics.settle(self.path, record["fabric"])


_known: dict[str, Registry] = {}


def at(path: Path) -> Registry:
    """The registry in a folder."""
    return _known.setdefault(str(path), Registry(path))


def here() -> Registry:
    """The registry of this process (WEFT_CXI_REGISTRY)."""
    return at(folder())
