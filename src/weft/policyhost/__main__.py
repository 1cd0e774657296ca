"""The process of the policy helper: python -m weft.policyhost SOCKET. It ends when it has had no client for a while.

The library of a C program starts the helper, in a session of its own, and connects to the socket. The socket's name has
a hash of the environment, so the programs of a helper all have its environment. A client has one connection, and a
thread here serves it; when the connection ends, what the client had is given back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .answers import Client

IDLE_S = 10.0
_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
QUESTION_BYTES_MAX = 1 << 25  # a join of the most members, 2**20, has 16 bytes for each
_OWN = {"WEFT_TOP": "0", "WEFT_TRACE": ""}  # viewers show the clients' NICs: the helper's own carries nothing
_PATH_BYTES_MAX = 108  # of struct sockaddr_un, with its final zero


class Server:
    """The helper of a socket.

    Args:
        idle_s: Seconds without a client after which run() returns.
        environ: The environment by which the clients' NICs are made; None: this process's.
    """

    def __init__(self, path: Path, idle_s: float = IDLE_S, environ: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.environ = environ
        self.idle_s = idle_s
        self._serving: dict[threading.Thread, tuple[int, socket.socket]] = {}
        self._lock = threading.Lock()

    def run(self) -> bool:
        """Serve clients until there are none. False: another helper has the socket."""
        lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally_close = contextlib.ExitStack()
        with finally_close:
            finally_close.callback(os.close, lock)
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()  # a file of a killed helper
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                _bind(listener, self.path)
                os.chmod(self.path, 0o600)
                listener.listen(256)
                listener.settimeout(self.idle_s)
                self._accept(listener)
                with contextlib.suppress(FileNotFoundError):
                    self.path.unlink()
        return True

    def _accept(self, listener: socket.socket) -> None:
        from . import answers  # this makes the first answer slow; the socket is there already

        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                with self._lock:
                    if not self._serving:
                        return
                continue
            connection.settimeout(None)
            pid, uid, _ = _CREDENTIALS.unpack(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            client = answers.Client(pid, self.environ, self.path.parent)
            with self._lock:
                given_up = [thread for thread, of in self._serving.items() if of[0] == pid and _has_ended(of[1])]
                thread = threading.Thread(target=self._serve, args=(connection, client, uid, given_up), daemon=True)
                self._serving[thread] = pid, connection
            thread.start()

    def _serve(self, connection: socket.socket, client: Client, uid: int, given_up: Sequence[threading.Thread]) -> None:
        """Answer a client until it ends.

        Args:
            given_up: Serve connections that the client has ended because an answer was late. What they have open is
                closed before the client opens it here again.
        """
        try:
            with connection:
                for one in given_up:
                    one.join()
                while uid == os.geteuid():
                    question = _receive(connection)
                    if question is None:
                        break
                    answer = client.answer(question)
                    connection.sendall(_LENGTH.pack(len(answer)) + answer)
        except OSError:
            pass  # the client is gone
        finally:
            client.close()
            with self._lock:
                del self._serving[threading.current_thread()]


def _has_ended(connection: socket.socket) -> bool:
    """Whether the client has ended a connection; True of a closed one."""
    try:
        state = select.poll()
        state.register(connection, select.POLLRDHUP)
        return bool(state.poll(0))
    except (OSError, ValueError):
        return True


def _bind(listener: socket.socket, path: Path) -> None:
    """Bind a socket to a path of any length.

    Its folder's descriptor stands for a path that does not fit into a socket's address.
    """
    if len(os.fsencode(path)) < _PATH_BYTES_MAX:
        listener.bind(str(path))
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def _receive(connection: socket.socket) -> bytes | None:
    """One question; None: the client has ended, or sends something else."""
    head = _exactly(connection, _LENGTH.size)
    if head is None:
        return None
    (size,) = _LENGTH.unpack(head)
    return _exactly(connection, size) if size <= QUESTION_BYTES_MAX else None


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            return None
        found += part
    return bytes(found)


def main(arguments: list[str]) -> int:
    """The helper of the socket that the arguments name."""
    if len(arguments) != 1 or not os.path.isabs(arguments[0]):
        print("usage: python -m weft.policyhost SOCKET, an absolute path", file=sys.stderr)
        return 2
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
        most = resource.getrlimit(limit)[1]  # other programs have other limits
        resource.setrlimit(limit, (most, most))
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # descriptors of the program that started the helper
    os.chdir("/")
    from .._files import private_folder_in_runtime

    path = Path(arguments[0])
    private_folder_in_runtime(path.parent)
    theirs = dict(os.environ)
    os.environ.update(_OWN)
    if not Server(path, environ=theirs).run():
        os.write(1, b"\n")  # the pipe of the program that started this process: another helper serves it
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
