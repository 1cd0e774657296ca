"""The way to the keeper: its socket in a private folder, its start, and the requests.

There is one keeper for a user, a registry and a network namespace. Its folder is `keep` in WEFT_CXI_REGISTRY if that is
set, otherwise $XDG_RUNTIME_DIR/weft/keep, or weft-<uid>/keep in the temporary folder:

    <namespace>.socket   where the keeper listens. The file is linked there when the keeper listens already, so a file
    without a listener belongs to a keeper that was killed
    <namespace>.lock     held (flock) while a process starts a keeper, and while a keeper ends
    <namespace>.place    held while a keeper takes its place: the keeper of a starter that was killed runs beside the
    next starter's, and only one of them may remove a killed keeper's file

The keeper also listens at an abstract socket, which it tells to all who ask for a name: `weft rm` reaches it without
the folder. Both sides check the other's user.

A request is one packet of JSON, with the key "op"; so is the answer, which has "error" and "errno" after a failure.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ... import _files, errors
from ..._with import With
from ..names.ticket import process_is_stopped
from ..names.unixsockets import credentials

MESSAGE_BYTES_MAX = 1 << 17
START_S = 60.0  # a Python process that imports NumPy, on a machine that is busy
ANSWER_S = 60.0
_TRIES = 20  # an empty keeper may end between our look and our call

# Variables that a keeper must not inherit: a keeper serves its peers from a thread, maps memory to them, and listens
# to no other host.
_NOT_INHERITED = ("WEFT_ENGINE", "WEFT_ISOLATION", "WEFT_LISTEN", "WEFT_ADVERTISE", "WEFT_TRACE", "WEFT_SHM")
# The process forks before it imports anything, so that the keeper is no child of the process that starts it.
_PROGRAM = (
    "import os, sys; os.fork() and os._exit(0); from weft.share.keeping.keeper import main; main(int(sys.argv[1]))"
)


class KeeperEnded(errors.ConnectionReset):
    """The keeper ended before it answered."""


class Link(With):
    """A connection to the keeper."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid, uid = credentials(connection)
        if uid != os.geteuid():
            connection.close()
            raise errors.NotPermitted(
                f"keep: process {self.pid}, which listens as the keeper, belongs to user {uid}; you are user "
                f"{os.geteuid()}\n  rule: arrays are kept for one user\n"
                "  try: WEFT_CXI_REGISTRY=<a folder of your own>"
            )
        connection.settimeout(ANSWER_S)

    def call(self, op: str, **values: Any) -> dict[str, Any]:
        """Send a request and return the answer. Raises the error that the keeper reports; KeeperEnded, TimedOut."""
        data = json.dumps({"op": op, **values}, separators=(",", ":")).encode()
        if len(data) > MESSAGE_BYTES_MAX:
            raise errors.MessageTooLong(
                f"keep: the description of the array has {len(data)} bytes, the keeper takes {MESSAGE_BYTES_MAX}\n"
                "  try: a dtype with fewer fields"
            )
        try:
            self._connection.send(data)
            answer = self._connection.recv(MESSAGE_BYTES_MAX)
        except TimeoutError:
            why = "is stopped (SIGSTOP, a debugger)" if process_is_stopped(self.pid) else "is too busy"
            raise errors.TimedOut(
                f"keep: the keeper, process {self.pid}, did not answer within {ANSWER_S:g} s: it {why}"
            ) from None
        except OSError:
            answer = b""
        if not answer:
            raise KeeperEnded(f"keep: the keeper, process {self.pid}, ended during the call\n  try: again")
        found: dict[str, Any] = json.loads(answer)
        if "error" in found:
            if found.get("replaced"):
                raise errors.Replaced(str(found["error"]))
            raise errors.make(int(found["errno"]), str(found["error"]))
        return found

    def close(self) -> None:
        """End the connection: the keeper drops what it was about to keep."""
        self._connection.close()


@contextmanager
def connected() -> Iterator[Link]:
    """A connection to the keeper of this user and registry; the keeper is started if there is none.

    Raises AccessDenied (the folder belongs to another user, or others have access), NotPermitted, TimedOut, Busy, and
    FabricError if the keeper could not be started: the message has its reason.
    """
    for _ in range(_TRIES):
        link = Link(_connect(True))
        try:
            link.call("hello")
        except KeeperEnded:  # it was just ending
            link.close()
            continue
        except BaseException:
            link.close()
            raise
        try:
            yield link
        finally:
            link.close()
        return
    raise errors.Busy(f"keep: the keeper ended {_TRIES} times before it answered\n  try: again")


def to_socket(name: str) -> Link:
    """A connection to the keeper at an abstract socket. Raises KeeperEnded, NotPermitted."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(ANSWER_S)
        connection.connect(b"\0" + name.encode())
        return Link(connection)
    except (ConnectionRefusedError, ConnectionResetError, TimeoutError):
        connection.close()
        raise KeeperEnded("keep: the keeper is gone, or is stopped") from None
    except BaseException:
        connection.close()
        raise


def was_killed() -> bool:
    """True if the last keeper of this user and registry left its socket's file behind. Starts no keeper."""
    try:
        where = _folder()
        if not (where / f"{stem()}.socket").exists():
            return False
        found = _try(where)
    except (OSError, errors.FabricError):  # the folder is another user's, or its keeper does not answer
        return False
    if found is not None:
        found.close()
    return found is None


# ---- places ----------------------------------------------------------------------------------------------------------


def folder() -> Path:
    """The keeper's folder, made private. Raises AccessDenied, InvalidArgument."""
    said = _files.registry_said()
    if said is not None:
        _files.private_folder(said)
    found = _folder()
    _files.private_folder_in_runtime(found)
    return found


def _folder() -> Path:
    return (_files.registry_said() or _files.runtime_folder()) / "keep"


def stem() -> str:
    """The beginning of the names of the keeper's files: the network namespace, which is the scope of array names."""
    try:
        return f"{os.stat('/proc/self/ns/net').st_ino:x}"
    except OSError:
        return "net"


@contextmanager
def at_folder(path: Path) -> Iterator[str]:
    """A short path of a folder: the address of a socket has room for 108 bytes."""
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


# ---- the start -------------------------------------------------------------------------------------------------------


def _connect(start: bool) -> socket.socket:
    """A socket that is connected to the keeper."""
    where = folder()
    found = _try(where)
    if found is not None:
        return found
    with _files.locked(where / f"{stem()}.lock", "keep", START_S + _files.LOCK_S_MAX):
        found = _try(where)  # another process has just started it
        if found is None:
            _start(where)
            found = _try(where)
    if found is None:
        raise errors.ConnectionReset("keep: the keeper has started, and ended at once\n  try: weft keep, in a terminal")
    return found


def _try(where: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(ANSWER_S)
        with at_folder(where) as short:
            connection.connect(f"{short}/{stem()}.socket")
        return connection
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
        connection.close()
        return None
    except TimeoutError:
        connection.close()
        raise errors.TimedOut(
            f"keep: the keeper accepts no connection within {ANSWER_S:g} s: is it stopped?\n"
            f"  try: fuser {where / stem()}.socket shows its process"
        ) from None
    except BaseException:
        connection.close()
        raise


def _start(where: Path) -> None:
    """Start a keeper, under the lock. It says on a pipe that it listens, or why it cannot."""
    import subprocess  # these two are slow to import, and few processes start a keeper
    import sysconfig

    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    source = str(Path(__file__).resolve().parents[2])
    if source not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        # The same Weft, also if only this program's sys.path leads to it.
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [source, environment.get("PYTHONPATH")]))
    hear, tell = os.pipe()
    try:
        first = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(tell)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            pass_fds=[tell],
            start_new_session=True,
        )
    except OSError as reason:
        os.close(hear)
        raise errors.make(
            reason.errno or 0, f"keep: {sys.executable} cannot be started: {reason.strerror}\n  try: weft keep"
        ) from None
    finally:
        os.close(tell)
    try:
        said = _read(hear, time.monotonic() + START_S)
    finally:
        os.close(hear)
        first.wait()
    if said != "ready":
        raise errors.FabricError(f"keep: the keeper could not be started: {said or 'it ended without a word'}")


def _read(fd: int, deadline: float) -> str:
    data = b""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        if poller.poll(left * 1000):
            piece = os.read(fd, 4096)
            if not piece:
                return data.decode("utf-8", "replace").strip()
            data += piece
    raise errors.TimedOut(f"keep: the keeper did not start within {START_S:g} s\n  try: weft keep, in a terminal")
