"""Processes of this host: their commands, and the namespace in which their numbers mean something."""

from __future__ import annotations

import os
from functools import lru_cache

_LENGTH_MAX = 200


def command_of(pid: int) -> str:
    """The command line of a process; its name if the command line is hidden; "" if the process is gone."""
    for file, end in (("cmdline", b"\0"), ("comm", b"\n")):
        try:
            with open(f"/proc/{pid}/{file}", "rb") as stream:
                text = stream.read(4096)
        except OSError:
            continue
        if text.strip(b"\0\n "):
            words = text.rstrip(end).replace(b"\0", b" ").decode("utf-8", "replace")
            return "".join(c if c.isprintable() else " " for c in words)[:_LENGTH_MAX]
    return ""


@lru_cache(maxsize=1)
def pid_namespace() -> int:
    """Of this process: pids, and the start times of processes, mean the same within it."""
    found = 0
    for of in ("pid", "time"):
        try:
            found = found * 31 + os.stat(f"/proc/self/ns/{of}").st_ino
        except OSError:
            found *= 31
    return found & 0xFFFFFFFF
