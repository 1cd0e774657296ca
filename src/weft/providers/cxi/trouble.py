"""What is stuck, in files that all processes of a user can read: `stuck/<process>.json` in the registry's folder.

A process in trouble writes its file and removes it when the trouble is over, or at its exit (watch.py). Files of dead
processes are removed by readers (`weft doctor --watch`).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..._files import open_regular, private_folder, read_regular
from . import processes, registry

_FOLDER = "stuck"


class Stuck(NamedTuple):
    """A resource that keeps messages from moving.

    Attributes:
        resource: Name of the resource.
        what: The trouble, in words.
        in_force: The sizes in force.
        wanted: The largest number wanted so far.
        advice: The smallest setting that would have sufficed.
        device: The device concerned.
        service: The service concerned.
        endpoint: The pid of the endpoint concerned.
    """

    resource: str
    what: str
    in_force: str
    wanted: int
    advice: str
    device: str = ""
    service: int = 0
    endpoint: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """What is stuck, without the figures."""
        return self.device, self.service, self.endpoint, self.resource

    def line(self, seconds: float) -> str:
        """A line for the log."""
        return (
            f"device {self.device}, service {self.service}, endpoint {self.endpoint}: stuck for {seconds:.0f} s, "
            f"{self.resource}: {self.what}; in force: {self.in_force}; largest wanted: {self.wanted}; "
            f"try: {self.advice}"
        )


class Report(NamedTuple):
    """One line of one process: since (seconds since 1970) a resource is stuck."""

    process: str
    since: float
    stuck: Stuck


_mine: Path | None = None


def write(found: Sequence[tuple[float, Stuck]]) -> None:
    """Make this process's file from (since, what) pairs; without pairs remove the file. Raises OSError, FabricError."""
    global _mine
    if not found:
        _remove()
        return
    who = processes.identity()
    folder = registry.folder() / _FOLDER
    private_folder(folder)
    path = folder / f"{who['pid']}-{who['start']}-{who['space']}.json"
    if _mine is None:
        atexit.register(_remove)
    _mine = path
    said = {"process": who, "stuck": [{"since": since, **one._asdict()} for since, one in found]}
    new = path.with_suffix(".new")
    with open(open_regular(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW), "w") as file:
        json.dump(said, file, indent=1)
    os.rename(new, path)


def _remove() -> None:
    global _mine
    path, _mine = _mine, None
    if path is not None:
        atexit.unregister(_remove)
        path.unlink(missing_ok=True)


def _after_fork() -> None:
    global _mine
    _mine = None
    atexit.unregister(_remove)


os.register_at_fork(after_in_child=_after_fork)


def read() -> list[Report]:
    """What is stuck in the living processes of this registry, oldest first. Removes the files of dead processes."""
    found: list[Report] = []
    for path in sorted((registry.folder() / _FOLDER).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            said = json.loads(read_regular(path))
            if not processes.alive(said["process"]):
                path.unlink(missing_ok=True)
                continue
            name = processes.name(said["process"]["pid"])
            for one in said["stuck"]:
                since = float(one.pop("since"))
                found.append(Report(name, since, Stuck(**one)))
    return sorted(found, key=lambda one: one.since)
