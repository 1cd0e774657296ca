"""The keeper of a test: its process, and its end."""

from __future__ import annotations

import os
import signal

from tests.patience import wait_for_end

import weft
from weft.share.keeping import protocol
from weft.share.names.listing import NameInfo


def kept() -> list[NameInfo]:
    """The arrays of this user's keepers whose socket is in this process's registry."""
    pid = keeper_pid()
    return [one for one in weft.names(wait=10) if one.kept and one.keeper == pid]


def keeper_pid() -> int | None:
    """The process that listens as the keeper of this process's registry."""
    connection = protocol._try(protocol.folder())
    if connection is None:
        return None
    with protocol.Link(connection) as link:
        try:
            return int(link.call("hello")["pid"])
        except protocol.KeeperEnded:  # it was just ending
            return None


def kill(pid: int) -> None:
    """SIGKILL, and wait until the process is gone."""
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pid)


def end() -> None:
    """Forget all kept arrays; the keeper then ends."""
    pid = keeper_pid()
    if pid is None:
        return
    for one in kept():
        weft.forget(one.name)
    wait_for_end(pid)
