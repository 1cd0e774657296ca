"""What a process may leave behind: files, sockets, shared memory. Nothing, whatever ends it."""

from __future__ import annotations

import os
from pathlib import Path


def runtime_folder() -> Path:
    return Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}") / "weft"


def files() -> set[str]:
    """Everything of ours in /dev/shm and the runtime folder, and in the folder for temporary files."""
    found = {str(p) for p in Path("/dev/shm").glob("*weft*")}
    found |= {str(p) for p in Path("/tmp").glob("weft*")}
    return found | {str(p) for p in runtime_folder().rglob("*")}


def sockets(address: str) -> list[str]:
    """Lines of /proc/net/unix about an endpoint's abstract name."""
    nic, vni, pid = address.removeprefix("weft://").split("/")
    ending = f"-{nic}-{vni}-{pid}"
    with open("/proc/net/unix") as table:
        return [line for line in table if "@weft-" in line and line.rstrip().endswith(ending)]
