"""The processes of this user on this host that use Weft, and what each says of its NIC.

    viewer = Viewer()
    for process in viewer.look():
        process.pid, process.command, process.state, process.view

Each NIC listens at an abstract Unix socket, "weft.top.<user>.<pid>.<random>". A viewer connects, and the thread that
makes the NIC's progress answers with a file in memory (cpp/host/viewers.hpp). Nothing runs in the process while nobody
looks. A process without an engine thread (WEFT_ENGINE=manual) answers when it next makes progress, and a stopped one
when it continues: until then its last answer is stale. A process that has ended has no socket any more.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import socket
import stat
import struct
import time
from collections.abc import Container
from dataclasses import dataclass

from .._with import With
from .views import View, parse

ANSWER_BYTES_MAX = 64 << 20
_LISTENS = "00010000"  # flags of a listening socket in /proc/net/unix: __SO_ACCEPTCON
_CREDENTIALS = struct.Struct("=iII")  # struct ucred


@dataclass(frozen=True)
class Process:
    """A NIC of a process.

    Attributes:
        pid: Process id in this pid namespace; of a process of another namespace, in its own.
        command: Its command line, "" if it is not visible here.
        state: "live"; "stale": the process gave no answer in time, and `view` is its last one; "broken": this version
            of Weft does not understand the answer.
        age_s: Seconds since the answer, or, without an answer, since the first question.
        view: None: the process has given no answer yet.
    """

    name: str
    pid: int
    command: str
    state: str
    age_s: float
    view: View | None


class _Asked:
    """A process, and the question that it has not answered."""

    def __init__(self, name: str, pid: int) -> None:
        self.name, self.pid = name, pid
        self.socket: socket.socket | None = None
        self.since = time.monotonic()
        self.view: View | None = None
        self.wrong = self.ended = False

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None


class Viewer(With):
    """Looks at processes again and again. Not for use by several threads at a time."""

    def __init__(self, pids: Container[int] | None = None) -> None:
        """pids: only these processes; None: all of this user."""
        self._pids = pids
        self._known: dict[str, _Asked] = {}

    def close(self) -> None:
        """Drop the questions that are under way."""
        for one in self._known.values():
            one.close()
        self._known.clear()

    def look(self, timeout_s: float = 0.25) -> list[Process]:
        """All processes, by pid, with their answers; those that give none within `timeout_s` are stale."""
        names = dict(_names())
        for name in [name for name in self._known if name not in names]:
            self._known.pop(name).close()
        for name, pid in names.items():
            if name not in self._known and (self._pids is None or pid in self._pids):
                self._known[name] = _Asked(name, pid)
        answered = self._ask(timeout_s)
        for name in [name for name, one in self._known.items() if one.ended]:
            self._known.pop(name).close()
        found = []
        for name, one in self._known.items():
            state = "broken" if one.wrong else "live" if name in answered else "stale"
            found.append(Process(name, one.pid, _command(one.pid), state, time.monotonic() - one.since, one.view))
        return sorted(found, key=lambda each: (each.pid, each.name))

    def _ask(self, timeout_s: float) -> set[str]:
        answered: set[str] = set()
        end = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as waiting:
            for one in list(self._known.values()):
                if one.socket is None and not _connect(one):
                    continue
                if one.socket is not None:
                    waiting.register(one.socket, selectors.EVENT_READ, one)
            while waiting.get_map():
                for key, _ in waiting.select(max(end - time.monotonic(), 0)):
                    one = key.data
                    waiting.unregister(key.fileobj)
                    self._take(one, answered)
                if time.monotonic() >= end:
                    break
        return answered

    def _take(self, one: _Asked, answered: set[str]) -> None:
        assert one.socket is not None
        try:
            data = _answer(one.socket)
            if data is None:  # it closed the connection: it is ending, or could not answer
                return
            one.view, one.wrong = parse(data), False
            answered.add(one.name)
        except ConnectionError:  # the socket was closed before the process took the connection
            one.ended = True
        except (OSError, ValueError):
            one.wrong = True
        finally:
            one.since = time.monotonic() if one.name in answered else one.since
            one.close()


def _names() -> list[tuple[str, int]]:
    """(name, pid as the process sees it) of each NIC of this user in this network namespace."""
    pattern = re.compile(rf"@(weft\.top\.{os.geteuid()}\.(\d+)\.[0-9a-f]{{16}})$")
    found = []
    with contextlib.suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        for line in file:
            match = pattern.search(line)
            if match is not None and line.split(maxsplit=4)[3:4] == [_LISTENS]:
                found.append((match[1], int(match[2])))
    return found


def _connect(one: _Asked) -> bool:
    """Ask; False: the process has just ended, or belongs to another user, or too many viewers wait already."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect("\0" + one.name)
        pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid != os.geteuid():  # any user may bind such a name
            raise PermissionError
        one.pid = pid or one.pid
    except OSError:
        sock.close()
        return False
    one.socket = sock
    return True


def _answer(sock: socket.socket) -> bytes | None:
    """The file that the process sent; None: it sent none. Raises OSError, ValueError."""
    _, descriptors, _, _ = socket.recv_fds(sock, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        return None
    with open(descriptors[0], "rb", buffering=0) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > ANSWER_BYTES_MAX:
            raise ValueError("no file in memory")
        return os.pread(file.fileno(), about.st_size, 0)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
        return " ".join(file.read().split("\0")).strip()
    return ""
