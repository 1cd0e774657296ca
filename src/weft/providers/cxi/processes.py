"""Identity of a process across reuse of its pid: pid, start time and pid namespace; and whether it still lives."""

from __future__ import annotations

import contextlib
import os
from typing import Any

PROC = "/proc"


def _stat(pid: int | str) -> tuple[str, int] | None:
    """State and start time (ticks since boot) of a process; None if it does not exist. Raises OSError."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb") as file:
            rest = file.read().rpartition(b")")[2].split()  # the name, in (), may have any character
        return rest[0].decode(), int(rest[19])
    except (FileNotFoundError, ProcessLookupError, LookupError, ValueError):
        return None


def _space() -> int:
    """This process's pid namespace, 32 bits; two containers with different ones may share a registry."""
    with contextlib.suppress(OSError):
        return os.stat(f"{PROC}/self/ns/pid").st_ino & 0xFFFFFFFF  # above these a ledger has something else
    return 0


def identity(pid: int = 0) -> dict[str, Any]:
    """The identity of a process of this pid namespace, for a file that other processes read; 0: of this process."""
    found = None
    with contextlib.suppress(OSError):
        found = _stat(pid or "self")
    return {"pid": pid or os.getpid(), "start": found[1] if found else 0, "space": _space()}


def alive(who: dict[str, Any]) -> bool:
    """True if the process of an `identity` lives. A process of another pid namespace counts as living, and so does one
    that cannot be looked at, because this process has no descriptor left."""
    if who["space"] != _space():
        return True
    try:
        found = _stat(who["pid"])
    except OSError:
        return True
    if found is None and not os.path.exists(f"{PROC}/self"):  # a container without /proc: nobody knows start times
        try:
            os.kill(who["pid"], 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass
        return True
    return found is not None and found[1] == who["start"] and found[0] not in "ZX"


def name(pid: int) -> str:
    """The name of a process for people."""
    with contextlib.suppress(OSError), open(f"{PROC}/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return f"process {pid} ({file.read().strip()})"
    return f"process {pid}"
