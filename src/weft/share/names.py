"""Names on one host, without a server: an abstract Unix socket for each, answered by the process that has the name.

The kernel keeps names unique and drops them with the process: after kill -9 nothing is left. Both sides look at the
other's credentials: another user's process can neither ask nor answer. A network namespace has names of its own.

What travels: the asker connects and receives one packet, "T" and the ticket, or "E" and the reason of a refusal.
"""

from __future__ import annotations

import difflib
import os
import select
import socket
import struct
import threading
import time
import weakref

from .. import errors

__all__ = ["NameServer", "check_name", "lookup", "names"]

NAME_BYTES_MAX = 64  # sun_path has 108; this leaves room for the prefix, and names fit a line
_ANSWER_BYTES_MAX = 1 << 17
_ANSWER_TIMEOUT_S = 5.0
_RELEASE_S = 0.2  # another process may take the name at once: then it stays, and is not ours to wait for
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_TROUBLE = frozenset("\0\n\r\t \"'")


def _prefix() -> str:
    return f"weft-name-{os.geteuid()}-"


def _socket_name(name: str) -> bytes:
    return b"\0" + (_prefix() + name).encode()


def check_name(name: object, call: str) -> str:
    """The name, if it can be one. Raises TypeError, InvalidArgument."""
    if not isinstance(name, str):
        raise TypeError(f"{call}: a name is a str, not {type(name).__name__}: {name!r}")
    if not name or len(name.encode()) > NAME_BYTES_MAX or _TROUBLE & set(name) or not name.isprintable():
        raise errors.InvalidArgument(
            f"{call}: {name!r} cannot be a name: 1 to {NAME_BYTES_MAX} bytes, printable, without blanks and quotes"
        )
    return name


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the other side."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


# ---- asking ---------------------------------------------------------------------------------------------------------


def names() -> list[str]:
    """Names of this user that exist on this host now, sorted."""
    found = set()
    start = "@" + _prefix()
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            for line in file:
                path = line.rstrip("\n").split(" ")[-1]
                if path.startswith(start):
                    found.add(path[len(start) :])
    except OSError:
        return []
    return sorted(found)


def lookup(name: str, wait: float = 0.0) -> str:
    """The ticket that `name` stands for.

    wait   seconds to wait for a name that is not there yet.

    Raises NotFound (listing the names that exist), NotPermitted (another user has the name),
    TimedOut (its owner does not answer).
    """
    deadline = time.monotonic() + wait
    pause = 0.002
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_ANSWER_TIMEOUT_S)
            try:
                connection.connect(_socket_name(name))
            except ConnectionRefusedError:
                pass
            except TimeoutError:
                raise errors.TimedOut(f"attach: the owner of {name!r} accepts no connection: is it stopped?") from None
            else:
                answer = _ask(connection, name)
                if answer is not None:
                    return answer
        left = deadline - time.monotonic()
        if left <= 0:
            raise _unknown(name, wait)
        time.sleep(min(pause, left))
        pause = min(pause * 2, 0.05)


def _ask(connection: socket.socket, name: str) -> str | None:
    """None where the owner hung up: it is closing."""
    pid, uid = _credentials(connection)
    if uid != os.geteuid():
        raise errors.NotPermitted(
            f"attach: {name!r} is held by process {pid} of user {uid}, and you are user {os.geteuid()}\n"
            "  rule: arrays are shared between processes of one user"
        )
    try:
        answer = connection.recv(_ANSWER_BYTES_MAX)
    except TimeoutError:
        raise errors.TimedOut(
            f"attach: process {pid}, which has the name {name!r}, did not answer within {_ANSWER_TIMEOUT_S:g} s\n"
            "  try: see whether it is stopped (SIGSTOP, a debugger)"
        ) from None
    except ConnectionResetError:
        return None
    if answer[:1] == b"T":
        return answer[1:].decode()
    if answer[:1] == b"E":
        raise errors.NotPermitted(f"attach: process {pid} refused: {answer[1:].decode('utf-8', 'replace')}")
    return None


def _unknown(name: str, wait: float) -> errors.NotFound:
    here = names()
    lines = [f"attach: no array is shared as {name!r} on this host" + (f" (waited {wait:g} s)" if wait > 0 else "")]
    close = difflib.get_close_matches(name, here, 1)
    if close:
        lines.append(f"  did you mean: {close[0]!r}")
    if here:
        shown = ", ".join(here[:12]) + (f" and {len(here) - 12} more" if len(here) > 12 else "")
        lines.append(f"  names here: {shown}")
    else:
        lines.append(f"  names here: none (of user {os.geteuid()})")
    lines.append(f"  try: node.share(array, name={name!r}) in the owner; attach(..., wait=10) if it is still starting")
    return errors.NotFound("\n".join(lines))


# ---- answering ------------------------------------------------------------------------------------------------------

_servers: weakref.WeakSet[NameServer] = weakref.WeakSet()


class NameServer:
    """Holds names and answers who asks for them, in a daemon thread that starts with the first name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[int, tuple[socket.socket, str, str]] = {}  # fd: socket, name, ticket
        self._wake: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None
        _servers.add(self)

    def publish(self, name: str, ticket: str) -> None:
        """Take a name. Raises AddressInUse, naming the process that has it."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.setblocking(False)
            listener.bind(_socket_name(name))
            listener.listen(128)
        except OSError as reason:
            listener.close()
            raise errors.AddressInUse(
                f"share: the name {name!r} is taken {_holder(name)}\n"
                f"  try: another name, or node.attach({name!r}) to reach what it stands for\n"
                f"  ({reason.strerror})"
            ) from None
        with self._lock:
            self._listeners[listener.fileno()] = (listener, name, ticket)
            if self._thread is None:
                self._wake = os.pipe()
                os.set_blocking(self._wake[1], False)
                self._thread = threading.Thread(
                    target=_serve, args=(weakref.ref(self), self._wake[0]), name="weft-names", daemon=True
                )
                self._thread.start()
        self._poke()

    def withdraw(self, name: str) -> None:
        """Give a name back; nothing where it is not ours."""
        with self._lock:
            for fd, (listener, held, _) in list(self._listeners.items()):
                if held == name:
                    del self._listeners[fd]
                    listener.close()
        self._poke()
        # The thread's poll() holds the socket, and with it the name, until it was poked out of it.
        deadline = time.monotonic() + _RELEASE_S
        while name in names() and time.monotonic() < deadline:
            time.sleep(0.0002)

    def close(self) -> None:
        """Give all names back and end the thread."""
        with self._lock:
            for listener, _, _ in self._listeners.values():
                listener.close()
            self._listeners.clear()
            wake, self._wake = self._wake, None
            thread, self._thread = self._thread, None
        if wake is not None:
            os.close(wake[1])  # the thread sees the end of the pipe, and closes the other side
        if thread is not None and thread is not threading.current_thread():
            thread.join(_ANSWER_TIMEOUT_S)

    def _poke(self) -> None:
        wake = self._wake
        if wake is not None:
            try:
                os.write(wake[1], b"!")
            except OSError:
                pass  # full: the thread has been poked often enough

    def _after_fork_in_child(self) -> None:
        # The names are the parent's: a copy of their sockets here would keep them alive after its death.
        for listener, _, _ in self._listeners.values():
            listener.close()
        self._listeners = {}
        if self._wake is not None:
            os.close(self._wake[0])
            os.close(self._wake[1])
        self._wake = self._thread = None
        self._lock = threading.Lock()

    def _snapshot(self) -> list[int]:
        with self._lock:
            return list(self._listeners)

    def _answer(self, fd: int) -> None:
        with self._lock:
            found = self._listeners.get(fd)
            if found is None:
                return
            listener, name, ticket = found
            try:
                connection, _ = listener.accept()
            except OSError:
                return
        with connection:
            try:
                connection.setblocking(False)  # the packet fits the socket's buffer; nobody can hold us up
                _, uid = _credentials(connection)
                if uid == os.geteuid():
                    connection.send(b"T" + ticket.encode())
                else:
                    connection.send(f"E{name} belongs to user {os.geteuid()}, you are user {uid}".encode())
            except OSError:
                pass


def _serve(server: weakref.ref[NameServer], wake: int) -> None:
    """The thread. It holds the server only while it works, so that a forgotten server can be collected."""
    try:
        while True:
            here = server()
            if here is None:
                return
            poller = select.poll()
            poller.register(wake, select.POLLIN)
            for fd in here._snapshot():
                poller.register(fd, select.POLLIN)
            del here
            ready = poller.poll()
            here = server()
            if here is None:
                return
            for fd, _ in ready:
                if fd != wake:
                    here._answer(fd)
                elif not os.read(wake, 4096):
                    return
            del here
    except OSError:
        return
    finally:
        try:
            os.close(wake)
        except OSError:
            pass


def _holder(name: str) -> str:
    """Who has a name, in words."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(1.0)
            connection.connect(_socket_name(name))
            pid, uid = _credentials(connection)
    except OSError:
        return "by another process"
    if pid == os.getpid():
        return f"in this process (pid {pid}) already"
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            comm = f" ({file.read().strip()})"
    except OSError:
        comm = ""
    return f"by process {pid}{comm}" + (f" of user {uid}" if uid != os.geteuid() else "")


def _after_fork_in_child() -> None:
    for server in list(_servers):
        server._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
