"""Finds leftovers of processes: files, sockets, shared memory. No process may leave any, however it ends."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class Folders:
    """Runtime folder and folder for temporary files of the processes of one test: other processes live in the system's.

    settings   the environment that makes processes use them.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.settings = {}
        for name, folder in (("XDG_RUNTIME_DIR", "run"), ("TMPDIR", "tmp")):
            (root / folder).mkdir(mode=0o700)
            self.settings[name] = str(root / folder)

    def files(self) -> list[str]:
        """The processes' leftovers in them."""
        return [str(path) for folder in ("run", "tmp") for path in (self._root / folder).rglob("*")]


def named_memory(pid: int) -> list[str]:
    """Files of /dev/shm that a living process has mapped or open: they would outlive it."""
    with open(f"/proc/{pid}/maps") as maps:
        found = [line.split(maxsplit=5)[5].strip() for line in maps if "/dev/shm/" in line]
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(fd))
    return [path for path in found if path.startswith("/dev/shm/")]


def sockets(address: str, port: int = 0) -> list[str]:
    """Lines of /proc/net about an endpoint's abstract name, and about listeners at its host's port."""
    *_, nic, vni, pid = address.removeprefix("weft://").split("/")
    ending = f"-{nic}-{vni}-{pid}"
    with open("/proc/net/unix") as table:
        found = [line for line in table if "@weft-" in line and line.rstrip().endswith(ending)]
    with open("/proc/net/tcp") as table:
        # "  0: 0100007F:1F90 00000000:0000 0A ...": 0A is TCP_LISTEN, <net/tcp_states.h>
        rows = [(line, line.split()) for line in table]
    return found + [line for line, row in rows if port and row[1].endswith(f":{port:04X}") and row[3] == "0A"]
