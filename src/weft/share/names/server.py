"""Names on one host, without a server: one abstract Unix socket per name, answered by the process that holds the name.

The kernel keeps names unique and drops them with the process: after kill -9 nothing is left. Both sides check the
other's credentials: another user's process can neither ask nor answer. Each network namespace has its own names.

Abstract sockets have no permissions, so another user's process can bind the socket that a name should have (its first
place). The name is then served at another place, with a random suffix that cannot be guessed and bound in advance.
Look-ups consider only places of this user, and before a process takes a name it checks all places of that name.

Protocol: the caller connects and receives a packet: "T" and the ticket, or "E" and the reason of a refusal. After a
ticket comes a second packet: "I" and what `weft ls` shows, as JSON.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
import weakref
from dataclasses import dataclass
from typing import NamedTuple

from ... import errors
from .unixsockets import bound, credentials
from .users import unmapped

NAME_BYTES_MAX = 64  # sun_path has 108 bytes; the prefix and the end need the rest
_ANSWER_BYTES_MAX = 1 << 17
_ANSWER_TIMEOUT_S = 5.0
_RELEASE_S = 0.2  # how long to wait for a closed name to vanish; another process may take the name meanwhile
_TROUBLE = frozenset("\0\n\r\t \"'")
_END = "'"  # before the random end of a place; no name contains this character
_TAKE_TRIES = 8  # two processes that take a name at the same time may both see the other and retry
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_INQUIRIES = 64  # sockets that `inquire` has open at a time
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.01, 1.0  # between tries to accept, while the server has no free descriptor


def _prefix() -> str:
    return f"weft-name-{os.geteuid()}-"


def _address(place: str) -> bytes:
    return b"\0" + place.encode()


def _places(name: str) -> list[tuple[str, int | None]]:
    """(place, uid) of the sockets that are bound for a name, also those of other users."""
    first = _prefix() + name
    return [(place, uid) for place, uid in bound(first) if place == first or place.startswith(first + _END)]


def check_name(name: object, call: str) -> str:
    """Return the name if it is valid. Raises TypeError, InvalidArgument."""
    if not isinstance(name, str):
        raise TypeError(f"{call}: a name is a str, not {type(name).__name__}: {name!r}")
    # isprintable() first: encode() raises for a lone surrogate, which is not printable.
    if not name or not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX or _TROUBLE & set(name):
        raise errors.InvalidArgument(
            f"{call}: {name!r} is not a valid name: 1 to {NAME_BYTES_MAX} bytes, printable, without blanks and quotes"
        )
    return name


def check_ticket(ticket: str, call: str) -> None:
    """Refuse a ticket that is longer than an answer. Raises MessageTooLong."""
    if len(ticket) >= _ANSWER_BYTES_MAX:
        raise errors.MessageTooLong(
            f"{call}: the ticket has {len(ticket)} bytes, and the answer to who asks for a name has room for "
            f"{_ANSWER_BYTES_MAX - 1}\n  try: a dtype with fewer fields, or shorter names of fields; or no name, and "
            "shared.ticket for the peers"
        )


def _socket(call: str, kind: type[socket.socket] = socket.socket) -> socket.socket:
    """A socket for a name. Raises FabricError (EMFILE, ENFILE ...)."""
    try:
        return kind(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as reason:
        import resource  # imported here, because it is needed for a refusal alone

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise errors.make(
            reason.errno or 0,
            f"{call}: no socket for the name: {reason.strerror}\n"
            "  rule: a name takes one descriptor of its owner, and a question for it one of who asks\n"
            f"  try: ulimit -n with more than {limit[0]} (the most is {limit[1]}); or tickets instead of names",
        ) from None


# ---- asking ---------------------------------------------------------------------------------------------------------


def names() -> list[str]:
    """Names of this user that exist on this host now, sorted."""
    start, me = _prefix(), os.geteuid()
    places = bound(start, listening=True)  # a name that is shown can be attached to
    return sorted({place[len(start) :].partition(_END)[0] for place, uid in places if uid in (None, me)})


def lookup(name: str, wait: float = 0.0) -> str:
    """The ticket that is shared under `name`.

    Args:
        wait: Seconds to wait for a name that does not exist yet.

    Raises:
        NotFound: There is no such name; the message lists the names that exist.
        NotPermitted: A process of another user holds the name, and no process of this user does.
        TimedOut: The owner does not answer.
    """
    deadline = time.monotonic() + wait
    pause = 0.002
    first, me = _prefix() + name, os.geteuid()
    while True:
        stranger: tuple[int, int] | None = None
        try:
            return _look(first, name)
        except _Stranger as found:
            stranger = found.who
        except _Nobody:
            pass
        for place, uid in _places(name):
            if place != first and uid in (None, me):
                try:
                    return _look(place, name)
                except (_Stranger, _Nobody):
                    pass
        left = deadline - time.monotonic()
        if left <= 0:
            raise unknown(name, "attach", wait) if stranger is None else _not_yours(name, *stranger)
        time.sleep(min(pause, left))
        pause = min(pause * 2, 0.05)


class Answer(NamedTuple):
    """What the holder of a name says.

    Attributes:
        pid: Id of the process that listens; 0 if the kernel does not tell.
        ticket: The ticket as text; None if the process did not answer in time.
        info: JSON, as given to `NameServer.publish`; "" of a process with an older Weft.
    """

    name: str
    pid: int
    ticket: str | None
    info: str


def inquire(wait: float, only: str | None = None) -> list[Answer]:
    """Answers of the holders of all names of this user, sorted by name; names of dead processes do not exist.

    Args:
        wait: Seconds for the answers; a process that is stopped gives none.
        only: Ask only for this name.
    """
    start, me = _prefix() + (only or ""), os.geteuid()
    deadline = time.monotonic() + wait
    if only is not None:  # at its first place, nearly always, which asks the kernel for no other name
        there = _inquire([start], deadline)
        if there and there[0].ticket is not None:
            return there
    wanted = [place for place, uid in bound(start) if uid in (None, me)]
    if only is not None:
        wanted = [place for place in wanted if place == start or place.startswith(start + _END)]
    found: list[Answer] = []
    for first in range(0, len(wanted), _INQUIRIES):
        found += _inquire(wanted[first : first + _INQUIRIES], deadline)
    return sorted(found, key=lambda answer: answer.name)


def _inquire(places: list[str], deadline: float) -> list[Answer]:
    found: list[Answer] = []
    open_: dict[int, tuple[socket.socket, Answer]] = {}
    poller = select.poll()
    try:
        for place in places:
            connection = _socket("names")
            name = place[len(_prefix()) :].partition(_END)[0]
            try:
                connection.setblocking(False)
                connection.connect(_address(place))
                pid, uid = credentials(connection)
            except BlockingIOError:  # its queue of callers is full: the process is stopped
                connection.close()
                found.append(Answer(name, 0, None, ""))
                continue
            except OSError:  # the name has just gone
                connection.close()
                continue
            if uid != os.geteuid():
                connection.close()
                continue
            open_[connection.fileno()] = connection, Answer(name, pid, None, "")
            poller.register(connection, select.POLLIN)
        while open_:
            left = deadline - time.monotonic()
            for fd, _ in poller.poll(max(left, 0) * 1000):
                connection, answer = open_[fd]
                more = _hear(connection, answer)
                if isinstance(more, Answer):
                    open_[fd] = connection, more
                    continue
                poller.unregister(fd)
                connection.close()
                del open_[fd]
                if answer.ticket is not None:
                    found.append(answer)
            if left <= 0:
                break
        return found + [answer for _, answer in open_.values()]
    finally:
        for connection, _ in open_.values():
            connection.close()


def _hear(connection: socket.socket, so_far: Answer) -> Answer | None:
    """The answer with the next packet; None after the last one."""
    try:
        packet = connection.recv(_ANSWER_BYTES_MAX)
    except OSError:
        return None
    text = packet[1:].decode("utf-8", "replace")
    if packet[:1] == b"T":
        return Answer(so_far.name, so_far.pid, text, "")
    if packet[:1] == b"I":
        return Answer(so_far.name, so_far.pid, so_far.ticket, text)
    return None


class _Nobody(Exception):
    """No process listens at a place, or the owner hung up because it is closing."""


class _Stranger(Exception):
    """Another user's process listens at a place."""

    def __init__(self, pid: int, uid: int) -> None:
        super().__init__(pid, uid)
        self.who = pid, uid


def _look(place: str, name: str) -> str:
    """The ticket that is served at a place. Raises _Nobody, _Stranger, and as `lookup`."""
    with _socket("attach") as connection:
        connection.setblocking(False)
        try:
            try:
                connection.connect(_address(place))
            except BlockingIOError:  # the queue of callers is full: do not wait for a process of another user
                uid = next((uid for found, uid in _places(name) if found == place), None)
                if uid not in (None, os.geteuid()):
                    raise _Stranger(0, uid or 0) from None
                connection.settimeout(_ANSWER_TIMEOUT_S)
                connection.connect(_address(place))
        except ConnectionRefusedError:
            raise _Nobody from None
        except TimeoutError:
            raise errors.TimedOut(f"attach: the owner of {name!r} accepts no connection: is it stopped?") from None
        connection.settimeout(_ANSWER_TIMEOUT_S)
        return _ask(connection, name)


def _not_yours(name: str, pid: int, uid: int) -> errors.NotPermitted:
    who = f"process {pid} of user {uid}" if pid else f"a process of user {uid}"
    return errors.NotPermitted(
        f"attach: {name!r} is held by {who}, and you are user {os.geteuid()}\n"
        "  rule: arrays are shared between processes of one user, and you share no array of that name\n"
        "  try: node.share(array, name=...) in your owner process: both users can have the name"
    )


def _ask(connection: socket.socket, name: str) -> str:
    pid, uid = credentials(connection)
    if uid != os.geteuid():
        raise _Stranger(pid, uid)
    try:
        answer = connection.recv(_ANSWER_BYTES_MAX)
    except TimeoutError:
        raise errors.TimedOut(
            f"attach: process {pid}, which has the name {name!r}, did not answer within {_ANSWER_TIMEOUT_S:g} s\n"
            "  try: check whether the process is stopped (SIGSTOP, a debugger) or has no free descriptor (ulimit -n)"
        ) from None
    except ConnectionResetError:
        raise _Nobody from None
    if answer[:1] == b"T":
        return answer[1:].decode()
    if answer[:1] == b"E":
        raise errors.NotPermitted(f"attach: process {pid} refused: {answer[1:].decode('utf-8', 'replace')}")
    raise _Nobody


def unknown(name: str, call: str, wait: float = 0.0) -> errors.NotFound:
    """The error for a name that does not exist: it lists the names that do."""
    import difflib  # imported here, because it is needed for a refusal alone

    here = names()
    lines = [f"{call}: no array is shared as {name!r} on this host" + (f" (waited {wait:g} s)" if wait > 0 else "")]
    close = difflib.get_close_matches(name, here, 1)
    if close:
        lines.append(f"  did you mean: {close[0]!r}")
    if here:
        shown = ", ".join(here[:12]) + (f" and {len(here) - 12} more" if len(here) > 12 else "")
        lines.append(f"  names here: {shown}")
    else:
        lines.append(f"  names here: none (of user {os.geteuid()})")
    if why := unmapped():
        lines.append(why)
    elif call == "attach":
        lines.append(f"  try: node.share(array, name={name!r}) in the owner; attach(..., wait=10) while it is starting")
    return errors.NotFound("\n".join(lines))


# ---- answering ------------------------------------------------------------------------------------------------------

_servers: weakref.WeakSet[NameServer] = weakref.WeakSet()


class _Listener(socket.socket):
    """Closes without a warning when it is collected.

    A node and its listeners are collected in any order, and the node itself warns (a ResourceWarning that names the
    share). A plain socket that is collected first would add a warning of its own about a descriptor.
    """

    def __del__(self) -> None:
        if self.fileno() >= 0:  # otherwise the socket is closed, or was never made and has no attributes
            self.close()


@dataclass
class _Held:
    listener: socket.socket
    name: str
    ticket: str
    info: str


class NameServer:
    """Holds names and answers look-ups, in a daemon thread that starts with the first name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[int, _Held] = {}  # by descriptor
        self._every: select.epoll | None = None  # the listeners, and the reading end of _wake
        self._wake: tuple[int, int] | None = None
        self._spare = -1  # a reserved descriptor, closed to accept a caller when the process has no free descriptor
        self._thread: threading.Thread | None = None
        _servers.add(self)

    def publish(self, name: str, ticket: str, info: str = "{}") -> None:
        """Take a name.

        Args:
            info: The facts of the array that `weft ls` shows, as JSON.

        Raises:
            AddressInUse: Another process has the name; the message names it.
            OSError: No descriptor is free.
        """
        self._start()
        listener = _take(name)
        with self._lock:
            if self._every is not None:  # the server was not closed meanwhile
                try:
                    self._every.register(listener, select.EPOLLIN)
                except BaseException:
                    listener.close()
                    raise
            self._listeners[listener.fileno()] = _Held(listener, name, ticket, info)

    def update(self, name: str, ticket: str) -> None:
        """Give callers another ticket from now on, if this server holds the name."""
        with self._lock:
            for held in self._listeners.values():
                if held.name == name:
                    held.ticket = ticket

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._wake = os.pipe()
                try:
                    self._every = select.epoll()
                    self._every.register(self._wake[0], select.EPOLLIN)
                    self._keep_spare()
                    thread = threading.Thread(
                        target=_serve,
                        args=(weakref.ref(self), self._wake[0], self._every),
                        name="weft-names",
                        daemon=True,
                    )
                    thread.start()
                except BaseException:
                    for fd in self._wake:
                        os.close(fd)
                    self._wake = self._every = None
                    raise
                self._thread = thread

    def _keep_spare(self) -> None:
        if self._spare < 0:
            try:
                self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                pass

    def _drop_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def withdraw(self, name: str) -> None:
        """Release a name, if this server holds it."""
        places = []
        with self._lock:
            for fd, held in list(self._listeners.items()):
                if held.name == name:
                    del self._listeners[fd]
                    places.append(held.listener.getsockname()[1:].decode())
                    if self._every is not None:
                        self._every.unregister(fd)
                    held.listener.close()
        # The name has gone with the socket, unless a child that was forked a moment ago has not closed its copy yet.
        deadline = time.monotonic() + _RELEASE_S
        for place in places:
            while _at(place)[0] == os.getpid() and time.monotonic() < deadline:
                time.sleep(0.0002)

    def close(self) -> None:
        """Release all names and end the thread."""
        with self._lock:
            for held in self._listeners.values():
                held.listener.close()
            self._listeners.clear()
            wake, self._wake = self._wake, None
            self._every = None  # the thread's, which ends
            thread, self._thread = self._thread, None
            self._drop_spare()
        if wake is not None:
            os.close(wake[1])  # the thread sees the closed pipe, and closes the other end
        if thread is not None and thread is not threading.current_thread():
            thread.join(_ANSWER_TIMEOUT_S)

    def __del__(self) -> None:
        # As close(), without the wait.
        if self._wake is not None:
            os.close(self._wake[1])

    def _after_fork_in_child(self) -> None:
        # The names belong to the parent: copies of their sockets here would keep the names alive after its death.
        for held in self._listeners.values():
            held.listener.close()
        self._listeners = {}
        if self._wake is not None:
            os.close(self._wake[0])
            os.close(self._wake[1])
        if self._every is not None:
            self._every.close()  # this process's descriptor of it
        self._drop_spare()
        self._wake = self._every = self._thread = None
        self._lock = threading.Lock()

    def _answer(self, fd: int) -> bool:
        """Answer one caller. False if there is no free descriptor: the caller stays in the queue."""
        with self._lock:
            found = self._listeners.get(fd)
            if found is None:
                return True
            ticket = found.ticket
            try:
                connection = self._accept(found.listener)
            except OSError as reason:
                return reason.errno not in _NO_DESCRIPTOR
        with connection:
            try:
                connection.setblocking(False)  # the packet fits the socket's buffer, and no caller can block the thread
                _, uid = credentials(connection)
                if uid == os.geteuid():
                    connection.send(b"T" + ticket.encode())
                    connection.send(b"I" + found.info.encode())
                else:
                    connection.send(f"E{found.name} belongs to user {os.geteuid()}, you are user {uid}".encode())
            except OSError:
                pass
        with self._lock:
            if self._thread is not None:  # the server was not closed meanwhile
                self._keep_spare()
        return True

    def _accept(self, listener: socket.socket) -> socket.socket:
        try:
            return listener.accept()[0]
        except OSError as reason:
            if reason.errno not in _NO_DESCRIPTOR or self._spare < 0:
                raise
        self._drop_spare()
        try:
            return listener.accept()[0]
        except OSError:
            self._keep_spare()  # another thread accepted the caller, or the caller is gone
            raise


def _serve(server: weakref.ref[NameServer], wake: int, every: select.epoll) -> None:
    """The thread. It references the server only while it works, so that an unused server can be collected.

    every: Has the listeners and `wake`. An epoll, because it holds no socket: a name goes when its socket is closed,
    while poll() would keep it until the thread is woken; and its cost does not grow with the names.
    """
    pause = 0.0  # above 0: callers wait, and there is no free descriptor
    waker = select.poll()
    waker.register(wake, select.POLLIN)
    try:
        while True:
            if pause:
                waker.poll(pause * 1000)
            ready = every.poll(0 if pause else None)
            here = server()
            if here is None:
                return
            answered = True
            for fd, _ in ready:
                if fd == wake:
                    return  # its other end was closed
                answered = here._answer(fd) and answered
            del here
            pause = 0.0 if answered else min(max(pause * 2, _PAUSE_S_MIN), _PAUSE_S_MAX)
    except OSError:
        return
    finally:
        try:
            os.close(wake)
        except OSError:
            pass


def _take(name: str) -> socket.socket:
    """A socket that listens at a place of the name. Raises AddressInUse if another process of this user has it."""
    first = _prefix() + name
    other: str | None = None
    for again in range(_TAKE_TRIES):
        listener: socket.socket | None = _socket("share", _Listener)
        assert listener is not None
        try:
            listener.setblocking(False)
            place = first
            try:
                listener.bind(_address(place))
            except OSError as reason:
                if reason.errno != errno.EADDRINUSE:
                    raise
                if not any(found == first for found, _ in _places(name)):
                    continue  # its holder has just released the name
                if _is_ours(first, name):
                    raise _taken(name, first) from None
                place = first + _END + os.urandom(8).hex()
                listener.bind(_address(place))
            listener.listen(128)
            other = next((p for p, uid in _places(name) if p != place and _is_ours(p, name, uid)), None)
            if other is None:
                taken, listener = listener, None
                return taken
        finally:
            if listener is not None:
                listener.close()
        if again + 1 < _TAKE_TRIES:
            import random  # imported here, because it is slow to import and two takers at once are rare

            time.sleep(random.uniform(0.001, 0.01))
    raise _taken(name, other or first)


def _is_ours(place: str, name: str, uid: int | None = None) -> bool:
    """Whether a socket of this user holds a place; true if the owner is unknown."""
    if uid is None:
        uid = next((found for p, found in _places(name) if p == place), None)
    if uid is None:
        uid = _at(place)[1]
    return uid in (None, os.geteuid())


def _at(place: str) -> tuple[int, int | None]:
    """(pid, uid) of the process that listens at a place; (0, None) if unknown."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.setblocking(False)
            connection.connect(_address(place))
            return credentials(connection)
    except OSError:
        return 0, None


def taken(name: str) -> errors.AddressInUse:
    """The error for a name that exists."""
    return _taken(name, next((place for place, uid in _places(name) if uid in (None, os.geteuid())), _prefix() + name))


def _taken(name: str, place: str) -> errors.AddressInUse:
    return errors.AddressInUse(
        f"share: the name {name!r} is taken {_holder(place)}\n"
        f"  try: another name, or node.attach({name!r}) to reach that array"
    )


def _holder(place: str) -> str:
    """The process that holds a place, in words."""
    pid, _ = _at(place)
    if pid == 0:
        return "by another process"
    if pid == os.getpid():
        return f"in this process (pid {pid}) already"
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            comm = f" ({file.read().strip()})"
    except OSError:
        comm = ""
    return f"by process {pid}{comm}"


def _after_fork_in_child() -> None:
    for server in list(_servers):
        server._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
