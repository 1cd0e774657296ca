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


def sockets(address: str, port: int = 0) -> list[str]:
    """Lines of /proc/net about an endpoint's abstract name, and about who listens at its host's port."""
    *_, nic, vni, pid = address.removeprefix("weft://").split("/")
    ending = f"-{nic}-{vni}-{pid}"
    with open("/proc/net/unix") as table:
        found = [line for line in table if "@weft-" in line and line.rstrip().endswith(ending)]
    with open("/proc/net/tcp") as table:
        # "  0: 0100007F:1F90 00000000:0000 0A ...": 0A is TCP_LISTEN, <net/tcp_states.h>
        rows = [(line, line.split()) for line in table]
    return found + [line for line, row in rows if port and row[1].endswith(f":{port:04X}") and row[3] == "0A"]
