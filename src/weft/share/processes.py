"""Processes of this host, as they are shown: their commands."""

from __future__ import annotations

__all__ = ["command_of"]

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
