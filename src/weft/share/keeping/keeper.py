"""The keeper: a process that owns kept arrays, so that they outlive the processes that made them (share(keep=True)).

    Keeper      the kept arrays and coordination objects by name, and when the process ends
    Session     one connection: a room for an array that is just being handed over

A process that keeps an array asks for a room (memory that Weft allocates here), writes the elements into it, and then
asks to keep it under a name. If that process dies in between, the connection ends and the room is freed. From then on
the keeper is the owner: peers reach the array as any other array of `weft.empty`, and the keeper runs no code for them.
Kept locks, events, semaphores, barriers and queues are made here, by the numbers that the request has.

The keeper ends when it keeps nothing and nobody is connected. It holds the lock of the start meanwhile, so a process
that starts a keeper sees a listening keeper, or none. Started by `weft keep --stay`, it stays. A keeper that is killed
takes the arrays along; the kernel drops their names, and attached peers get ConnectionReset.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _files, _nic, _process, errors
from ...fi import _handle
from ...memory.reserve import part
from ..arrays.show import human_bytes
from ..names.processes import pid_namespace
from ..names.server import check_name
from ..names.ticket import decode_dtype
from ..names.unixsockets import credentials
from ..node import Node
from ..offer import Offer
from ..shared import Shared
from . import protocol

_FIRST_CALL_S = 30.0  # for the first call of the process that started the keeper
_LOOK_S = 1.0
_TEXT_MAX = 8192  # characters of an error

_Object = tuple[str, np.ndarray[Any, Any]]
"""A coordination object: its class and its memory."""


class Keeper:
    """The process's kept arrays, and its sockets.

    Attributes:
        stay: Do not end when nothing is kept.
        folder: Folder of the socket (protocol.py).

    Raises:
        Busy: A keeper of this user and registry runs already.
        AccessDenied: As `protocol.folder`, or InvalidArgument.
    """

    def __init__(self, stay: bool = False) -> None:
        self._stay = stay
        self.folder = protocol.folder()
        self._lock = threading.Lock()
        self._kept: dict[str, Shared] = {}
        self._objects: dict[str, _Object] = {}  # objects that are no arrays
        self._sessions = 0
        self._ends_at = time.monotonic() + _FIRST_CALL_S
        self._place: tuple[int, int] | None = None  # device and inode of our socket's file
        self.node = Node()
        self.name = f"weft-keeper-{os.geteuid()}-{secrets.token_hex(8)}"
        self._wake = os.pipe()
        os.set_blocking(self._wake[1], False)
        self._listeners = [self._listen_in_folder(), _listener(b"\0" + self.name.encode())]

    def _listen_in_folder(self) -> socket.socket:
        final, first = f"{protocol.stem()}.socket", f"{protocol.stem()}.new"
        place = _files.locked(self.folder / f"{protocol.stem()}.place", "keep", protocol.START_S)
        with protocol.at_folder(self.folder) as short, place:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{short}/{first}")
            listener = _listener(f"{short}/{first}")
            try:
                for _ in range(2):
                    try:
                        os.link(f"{short}/{first}", f"{short}/{final}")  # fails if the file exists
                        found = os.stat(f"{short}/{final}")
                        self._place = found.st_dev, found.st_ino
                        return listener
                    except FileExistsError:
                        self._sweep(f"{short}/{final}")
                raise errors.Busy(f"keep: another keeper has just started in {self.folder}")
            except BaseException:
                listener.close()
                raise
            finally:
                os.unlink(f"{short}/{first}")

    def _sweep(self, path: str) -> None:
        """Remove the file of a keeper that was killed. Raises Busy if a keeper listens there."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.setblocking(False)
            try:
                connection.connect(path)
            except (ConnectionRefusedError, FileNotFoundError):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                return
            except OSError:
                pass
            pid = credentials(connection)[0]
        raise errors.Busy(f"keep: process {pid} is the keeper of {self.folder} already\n  try: weft ls")

    # ---- serving -----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer requests until nothing is kept, or until stop()."""
        while not self._ended():
            poller = select.poll()
            for listener in self._listeners:
                poller.register(listener, select.POLLIN)
            poller.register(self._wake[0], select.POLLIN)
            ready = {fd for fd, _ in poller.poll(_LOOK_S * 1000 if self._may_end() else None)}
            if self._wake[0] in ready and b"q" in os.read(self._wake[0], 4096):
                break
            for listener in self._listeners:
                if listener.fileno() in ready:
                    self._accept(listener)

    def stop(self, *_: Any) -> None:
        """Let serve() return. May be called by a signal handler."""
        os.write(self._wake[1], b"q")

    def close(self) -> None:
        """End all arrays, and remove the socket's file."""
        self._unlink()
        for listener in self._listeners:
            listener.close()
        self.node.close()

    def _accept(self, listener: socket.socket) -> bool:
        try:
            connection = listener.accept()[0]
        except OSError:
            return False
        if credentials(connection)[1] != os.geteuid():
            connection.close()
            return False
        with self._lock:
            self._sessions += 1
        session = Session(self, connection)
        threading.Thread(target=session.run, name="weft-keep", daemon=True).start()
        return True

    def _session_ended(self) -> None:
        with self._lock:
            self._sessions -= 1
            self._ends_at = 0.0
        with contextlib.suppress(OSError):
            os.write(self._wake[1], b"!")

    def _may_end(self) -> bool:
        """Nothing is kept: the end waits for the first call, or for the lock."""
        with self._lock:
            return not self._stay and not self._kept

    def _is_empty(self) -> bool:
        with self._lock:
            return not self._kept and not self._sessions and time.monotonic() >= self._ends_at

    def _ended(self) -> bool:
        """True if nothing is kept: then nobody can connect any more."""
        if self._stay or not self._is_empty():
            return False
        try:
            with _files.locked(self.folder / f"{protocol.stem()}.lock", "keep"):
                for listener in self._listeners:
                    if self._accept(listener):
                        return False
                self._unlink()
                for listener in self._listeners:
                    listener.close()
                return True
        except errors.FabricError:  # another process holds the lock, or the folder is gone
            return not self.folder.exists()

    def _unlink(self) -> None:
        """Remove the socket's file if it is ours."""
        with contextlib.suppress(OSError):
            path = self.folder / f"{protocol.stem()}.socket"
            found = os.stat(path)
            if (found.st_dev, found.st_ino) == self._place:
                os.unlink(path)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def keep(self, room: np.ndarray[Any, Any] | None, request: dict[str, Any]) -> dict[str, Any]:
        """Share the array in a room under a name."""
        offer = _offer(room, request)
        return {"ticket": str(self._begin(offer, request, {}).ticket)}

    def make(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make a coordination object under a name. This process's NIC finds its holders by their pids, so the object
        gets the pid namespace of this process."""
        kind, number = str(request["kind"]), int(request["number"])
        n, item = int(request["n"]), int(request["item"])
        form = str(request.get("form", "")).encode()
        size = _nic.sync_bytes(number, n, item, len(form))
        if size is None:
            raise errors.InvalidArgument(f"{kind}: no such object: {n} of {item} bytes")
        memory = _process.array((size,), np.uint8, fresh=True, call="keep")
        _nic.sync_create(memory, number, n, item, pid_namespace(), form)
        offer = Offer(memory, memory, None)
        shared = self._begin(offer, {**request, "access": "rw"}, {"kind": kind}, (kind, memory))
        return {"ticket": str(shared.ticket)}

    def _begin(
        self, offer: Offer, request: dict[str, Any], more: dict[str, Any], is_object: _Object | None = None
    ) -> Shared:
        name, maker = check_name(request["name"], "keep"), request["maker"]
        with self._lock:
            if name in self._kept:
                raise errors.AddressInUse(
                    f"share: the name {name!r} is taken: the keeper, process {os.getpid()}, has it\n"
                    f"  try: another name, or weft.forget({name!r}) if nobody needs what it has"
                )
        info = {"keeper": self.name, "maker": [int(maker[0]), str(maker[1])], **more}
        shared = Shared._begin(self.node, offer, name, str(request["access"]), _handle.here(1), info)
        with self._lock:
            self._kept[name] = shared
            if is_object is not None:
                self._objects[name] = is_object
        return shared

    def lend(self, request: dict[str, Any]) -> tuple[Shared, Offer]:
        """A kept array, and its memory as bytes, for a process that takes its maker's place."""
        name = str(request["name"])
        with self._lock:
            shared, object_ = self._kept.get(name), self._objects.get(name)
        if shared is None:
            raise errors.NotFound(f"kept: no array is kept as {name!r}")
        if object_ is not None:
            raise _is_object("kept", name, object_[0])
        local, room = shared._local, shared._room
        whole = local if room is None else room
        assert whole is not None
        memory = whole.reshape(-1).view(np.uint8) if whole.nbytes else np.empty(0, np.uint8)
        return shared, Offer(memory, memory, room)

    def replace(self, room: np.ndarray[Any, Any] | None, request: dict[str, Any]) -> dict[str, Any]:
        """Put the array in a room under a name that is kept."""
        offer = _offer(room, request)
        shared = self._present(request)
        try:
            with shared._changing:
                self._present(request)  # again: it may have changed while this thread waited
                shared._put(offer, "replace")
        except errors.Busy as reason:
            return {"ticket": str(shared.ticket), "busy": reason.message}
        return {"ticket": str(shared.ticket)}

    def resize(self, request: dict[str, Any]) -> dict[str, Any]:
        """Change the length of a kept array."""
        shared = self._present(request)
        try:
            with shared._changing:
                self._present(request)  # again: it may have changed while this thread waited
                shared.resize(int(request["length"]))
        except errors.Busy as reason:
            return {"ticket": str(shared.ticket), "busy": reason.message}
        return {"ticket": str(shared.ticket)}

    def forget(self, request: dict[str, Any]) -> dict[str, Any]:
        """End a kept array: its name goes, and the access of its peers."""
        name = str(request["name"])
        with self._lock:
            shared = self._kept.get(name)
        if shared is None:
            raise errors.NotFound(f"forget: no array is kept as {name!r}")
        if name in self._objects:
            _nic.sync_close(self._objects[name][1])  # wakes those who wait
        shared.close()
        with self._lock:
            if self._kept.get(name) is shared:
                del self._kept[name]
                self._objects.pop(name, None)
        return {}

    def _present(self, request: dict[str, Any]) -> Shared:
        name, call = str(request["name"]), str(request["op"])
        with self._lock:
            shared = self._kept.get(name)
        if shared is None:
            raise errors.KeyRejected(
                f"{call}: {name!r} was kept, and is forgotten (weft.forget, weft rm)\n"
                "  try: node.share(array, name, keep=True) keeps it again"
            )
        if name in self._objects:
            raise _is_object(call, name, self._objects[name][0])
        if str(shared.ticket) != request["ticket"]:
            raise errors.Replaced(
                f"{call}: another process has replaced or resized {name!r} meanwhile\n"
                f"  try: node.kept({name!r}) for the array that the name has now; node.attach({name!r}) to read it"
            )
        return shared


class Session:
    """One connection."""

    def __init__(self, keeper: Keeper, connection: socket.socket) -> None:
        self._keeper = keeper
        self._connection = connection
        self._room: np.ndarray[Any, Any] | None = None
        self._shared: Shared | None = None  # of the room, while the array is written

    def run(self) -> None:
        """Answer requests until the other side hangs up."""
        try:
            with self._connection:
                while data := self._connection.recv(protocol.MESSAGE_BYTES_MAX):
                    self._answer_to(data)
        except OSError:
            pass
        finally:
            self._drop_room()
            self._keeper._session_ended()

    def _answer_to(self, data: bytes) -> None:
        answer = self._answer(data)
        if "error" in answer:  # the text may repeat the whole request, and must fit a packet
            answer["error"] = answer["error"][:_TEXT_MAX]
        self._connection.send(json.dumps(answer).encode())

    def _answer(self, data: bytes) -> dict[str, Any]:
        try:
            request = json.loads(data)
            return self._requests()[request["op"]](request)
        except errors.FabricError as reason:
            return {"errno": reason.errno, "error": reason.message, "replaced": isinstance(reason, errors.Replaced)}
        except Exception as reason:  # a request that no Weft of this version makes
            text = (
                f"keep: the keeper refused: {reason!r}\n"
                "  try: the same version of Weft in both processes; the keeper ends with its last array (weft rm NAME)"
            )
            return {"errno": errors.InvalidArgument.code, "error": text}

    def _requests(self) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        return {
            "hello": lambda request: {"pid": os.getpid()},
            "room": self._make_room,
            "make": self._keeper.make,
            "kept": self._lend,
            "keep": lambda request: self._with_room(self._keeper.keep, request),
            "replace": lambda request: self._with_room(self._keeper.replace, request),
            "resize": self._keeper.resize,
            "forget": self._keeper.forget,
        }

    def _make_room(self, request: dict[str, Any]) -> dict[str, Any]:
        self._drop_room()
        nbytes = int(request["nbytes"])
        left = _available_bytes()
        if left is not None and nbytes > left:
            raise errors.NoMemory(
                f"keep: the kept array takes {human_bytes(nbytes)}, and {human_bytes(left)} of memory are available\n"
                "  rule: a kept array is in memory (not in swap, not in /dev/shm)\n"
                "  try: weft ls shows what is kept, weft rm NAME ends it"
            )
        self._room = _process.array((nbytes,), np.uint8, fresh=True, call="keep")
        offer = Offer(self._room, self._room, None)
        self._shared = Shared._begin(self._keeper.node, offer, None, "rw", _handle.here(1), {})
        return {"ticket": str(self._shared.ticket)}

    def _lend(self, request: dict[str, Any]) -> dict[str, Any]:
        self._drop_room()
        shared, offer = self._keeper.lend(request)
        found = {"ticket": str(shared.ticket), "rows": None if offer.room is None else len(offer.room), "memory": None}
        if offer.local.nbytes:
            # A region of its own, with all rights: the access of the peers does not bind the maker, and its successor.
            self._shared = Shared._begin(
                self._keeper.node, Offer(offer.local, offer.local, None), None, "rw", _handle.here(1), {}
            )
            found["memory"] = str(self._shared.ticket)
        return found

    def _with_room(self, call: Callable[..., dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
        found = call(self._room, request)
        self._drop_room()  # the array has a region of its own now
        return found

    def _drop_room(self) -> None:
        if self._shared is not None:
            with contextlib.suppress(errors.FabricError):
                self._shared.close()
        self._room = self._shared = None


def _offer(room: np.ndarray[Any, Any] | None, request: dict[str, Any]) -> Offer:
    """The array that a process has written into a room."""
    dtype = decode_dtype(str(request["dtype"]))
    shape = tuple(int(n) for n in request["shape"])
    rows = request.get("rows")
    order = str(request["order"])
    whole_shape = shape if rows is None else (int(rows), *shape[1:])
    if any(n < 0 for n in (*shape, *whole_shape)):  # NumPy divides by the size of such an array: SIGFPE
        raise errors.InvalidArgument(f"keep: the request has a negative length: shape {shape}, rows {rows}")
    buffer: Any = room if room is not None else b""
    whole: np.ndarray[Any, Any] = np.ndarray(whole_shape, dtype, buffer=buffer)
    if rows is None:
        return Offer(whole, whole, None, order)
    local = part(whole, shape[0])
    return Offer(local, local, whole, order)


def _is_object(call: str, name: str, kind: str) -> errors.NotSupported:
    return errors.NotSupported(f"{call}: {name!r} is a {kind}, and no array\n  try: weft.{kind}({name!r})")


def _available_bytes() -> int | None:
    """Memory that the system can give without swapping; None if it does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _listener(address: str | bytes) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.setblocking(False)
    listener.bind(address)
    listener.listen(128)
    return listener


# ---- the process -----------------------------------------------------------------------------------------------------


def run(stay: bool, ready: Callable[[Keeper], None]) -> None:
    """Be the keeper, until nothing is kept, SIGTERM or SIGINT. `ready` is called when the keeper listens."""
    keeper = Keeper(stay)
    try:
        with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
            comm.write("weft-keep")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, keeper.stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        ready(keeper)
        keeper.serve()
    finally:
        keeper.close()


def main(tell: int) -> None:
    """The process that `protocol` starts. tell: a pipe, for "ready" or the reason why there is no keeper."""

    def say(words: str) -> None:
        with contextlib.suppress(OSError):  # the starter was killed: another process may be waiting for this keeper
            os.write(tell, words.encode())

    def ready(_: Keeper) -> None:
        say("ready")
        os.close(tell)

    try:
        run(False, ready)
    except errors.Busy:  # another keeper was faster: the caller finds that keeper
        say("ready")
    except errors.FabricError as reason:
        say(str(reason))
        sys.exit(1)
