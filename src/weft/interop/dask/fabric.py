"""Weft's objects of a process that speaks `weft://`: regions that peers read, and the threads and endpoints that read.

    Fabric ──► Offer       regions over the frames of one message, until the receiver has read them
      │ ├────► Peer        another process, which this process has proved to be able to read
      │ └────► Lane        endpoint + queue + address vector, used by one read at a time
      └──────► BufferPool  memory for what is read

A process has one Fabric for all its comms, so a comm costs no descriptor but its socket. What differs between providers
(keys, virtual addresses, registration of local memory, binding to an endpoint) is decided here by the mr_mode bits.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np

from ... import _process, errors, fi
from ...fi import _handle
from ...fi._progress import ProgressThread
from .config import OFF, Settings, load
from .pool import BufferPool

logger = logging.getLogger("distributed.comm.weft")

_MR_MODES = fi.MR_PROV_KEY | fi.MR_VIRT_ADDR | fi.MR_ALLOCATED | fi.MR_LOCAL | fi.MR_ENDPOINT
GREETING_BYTES = 16
# Reads of so many bytes run in the event loop's thread: they take less time than to wake another thread.
LOOP_BYTES_MAX = 1 << 20
_POSTED_MAX = 32
_WAIT_S = 0.25
BUSY_S = 10.0
# Time for which a provider may refuse transfers (EAGAIN) while it connects.
CONNECT_S_MAX = 10.0


class Unavailable(Exception):
    """Why this process offers no memory to peers, or why it cannot read a peer's memory."""


class Peer:
    """A process whose memory can be read. name: its endpoint's, as text or bytes."""

    __slots__ = ("name",)

    def __init__(self, name: str | bytes) -> None:
        self.name = name


class Lane:
    """An endpoint for reads, with its own queue and addresses; not thread-safe."""

    def __init__(self, fabric: Fabric) -> None:
        domain = fabric.domain
        self._fabric = fabric
        self.cq = domain.cq_open(size=_POSTED_MAX * 2, format=fi.CQ_FORMAT_CONTEXT, wait_obj=fi.WAIT_UNSPEC)
        self.av = domain.av_open()
        self.ep = domain.endpoint(fabric.info)
        self.ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
        self.ep.bind(self.av)
        self.ep.enable()
        _handle.owned(self.cq, self.av, self.ep)
        self._addresses: dict[str | bytes, int] = {}

    def address(self, name: str | bytes) -> int:
        """The fi_addr of a peer. Raises FabricError."""
        found = self._addresses.get(name)
        if found is None:
            found = self._addresses[name] = int(self.av.insert(name))
        return found

    def close(self) -> None:
        """Close it; an operation under way ends as canceled, so that its buffer may be freed afterwards."""
        for part in (self.ep, self.cq, self.av):
            try:
                part.close()
            except errors.FabricError:
                pass


class Pull:
    """Reads frames of a peer into local buffers. `start` and `finish` run one after the other, in any threads."""

    def __init__(self, fabric: Fabric, peer: Peer, frames: list[tuple[memoryview, int, int]]) -> None:
        self._fabric = fabric
        self._peer = peer
        self._todo = deque(fabric.pieces(frames))
        self._under_way = 0
        self._lane: Lane | None = None
        self._connected_by = time.monotonic() + CONNECT_S_MAX
        self._local: list[Any] = []

    def start(self) -> bool:
        """Post what the queue takes. True if everything is read already. Raises FabricError."""
        lane = self._lane = self._fabric.lane()
        try:
            address = lane.address(self._peer.name)
            while self._todo:
                if self._under_way < _POSTED_MAX:
                    local, base, key = self._todo[0]
                    try:
                        self._post(lane, address, local, base, key)
                    except errors.Again:  # a provider that connects at the first use, or has no room
                        return False
                    self._todo.popleft()
                    self._under_way += 1
                    self._reap(lane.cq.read(_POSTED_MAX))
                elif not self._reap(lane.cq.read(_POSTED_MAX)):
                    return False
            self._reap(lane.cq.read(_POSTED_MAX))
        except BaseException as reason:
            raise self._failed(reason) from None
        return self._done()

    def finish(self, gave_up: Callable[[], bool]) -> None:
        """Wait for the rest. gave_up: asked from time to time. Raises FabricError; Canceled if it gave up."""
        lane = self._lane
        if lane is None:
            return
        try:
            address = lane.address(self._peer.name)
            while self._todo or self._under_way:
                while self._todo and self._under_way < _POSTED_MAX:
                    local, base, key = self._todo[0]
                    try:
                        self._post(lane, address, local, base, key)
                    except errors.Again:
                        if not self._under_way:
                            if time.monotonic() > self._connected_by:
                                raise
                            lane.cq.read(_POSTED_MAX)  # makes it connect
                            time.sleep(0.001)
                        break
                    self._todo.popleft()
                    self._under_way += 1
                    self._connected_by = time.monotonic() + CONNECT_S_MAX
                if gave_up():
                    raise errors.Canceled("the comm was closed while its frames were read")
                if self._under_way:
                    try:
                        self._reap(lane.cq.sread(_POSTED_MAX, None, _WAIT_S))
                    except errors.Again:
                        pass
        except BaseException as reason:
            raise self._failed(reason) from None
        self._done()

    def run(self, gave_up: Callable[[], bool]) -> None:
        """Start and finish."""
        if not self.start():
            self.finish(gave_up)

    def _post(self, lane: Lane, address: int, local: Any, base: int, key: int) -> None:
        if self._fabric.local_keys:
            mr = self._fabric.register(local, fi.READ)
            self._local.append(mr)
            lane.ep.read(mr[0 : len(local)], None, address, base, key, None)
        else:
            lane.ep.read(local, None, address, base, key, None)

    def _reap(self, entries: list[Any]) -> bool:
        self._under_way -= len(entries)
        return bool(entries)

    def _done(self) -> bool:
        if self._todo or self._under_way:
            return False
        lane, self._lane = self._lane, None
        if lane is not None:
            self._release_local()
            self._fabric.put_back(lane)
        return True

    def _failed(self, reason: BaseException) -> BaseException:
        """Close the lane, so that nothing writes to the buffers any more. Returns the error in the queue, or None."""
        lane, self._lane = self._lane, None
        if lane is not None:
            if isinstance(reason, errors.Available):
                try:
                    reason = lane.cq.readerr().exception()
                except errors.FabricError as other:
                    reason = other
            lane.close()
            self._release_local()
        return reason

    def _release_local(self) -> None:
        while self._local:
            self._local.pop().close()


class Offer:
    """Frames of one message that a peer may read. rows: (key, address) of each. Holds the frames until `close`."""

    __slots__ = ("_regions", "frames", "nbytes", "rows")

    def __init__(self, fabric: Fabric, frames: list[memoryview]) -> None:
        self.frames = frames
        self._regions: list[Any] = []
        self.rows: list[tuple[int, int]] = []
        self.nbytes = 0
        try:
            for frame in frames:
                mr = fabric.register(frame, fi.REMOTE_READ)
                self._regions.append(mr)
                self.rows.append((int(mr.key), fabric.remote_address(mr)))
                self.nbytes += frame.nbytes
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Withdraw the frames. Waits while a peer is copying. Raises Busy if the peer was stopped in its copy: the
        frames that it may still read are kept; close again later."""
        while self._regions:
            self._regions[-1].close()
            self._regions.pop()


class Fabric:
    """The objects of one process. Thread safety: any thread.

    Attributes:
        hello: The fabric, address and greeting that peers need. Without an address this process offers nothing, and
            `reason` says why.
    """

    def __init__(self, settings: Settings, listen_at: str) -> None:
        self.settings = settings
        self.pool = BufferPool(settings.pool)
        self.threads = ThreadPoolExecutor(settings.read_threads, thread_name_prefix="Weft-Dask")
        self.pid = os.getpid()
        self.reason = ""
        self.closed = False
        self.local_keys = False
        self.loading = threading.Lock()  # held by a deserializer: Dask, too, runs one at a time
        self._lock = threading.Lock()
        self._idle: deque[Lane] = deque()
        self._peers: dict[bytes, Peer] = {}
        self._busy: list[Offer] = []  # withdrawn, but a stopped peer may still copy from them
        self._tidied = 0.0
        # Frames whose comm ended before the acknowledgement. They stay alive for a while under a provider that, unlike
        # Weft's, does not promise that nobody reads a region after its close.
        self._resting: deque[tuple[float, list[memoryview]]] = deque()
        self.foreign = settings.fabric is not None
        self._progress: ProgressThread | None = None
        self._keys = count(1)
        self._greeting_mr: Any = None
        self.greeting = os.urandom(GREETING_BYTES)
        self.hello: dict[str, Any] = {"fabric": settings.fabric or "weft"}
        try:
            self._open(listen_at)
        except Unavailable as reason:
            self.reason = str(reason)
        except errors.FabricError as reason:
            self.reason = reason.message
        if self.reason and settings.fabric != OFF:
            logger.warning("weft:// sends large frames of this process by the connection: %s", self.reason)

    def _open(self, listen_at: str) -> None:
        wanted = self.settings.fabric
        if wanted == OFF:
            raise Unavailable(f"the setting distributed.comm.weft.fabric is {OFF!r}")
        if wanted is None:
            if _process.nic().engine == "manual":
                raise Unavailable(
                    "this process has no engine thread (WEFT_ENGINE=manual), which would answer its peers"
                )
            self._listen(listen_at)
        hints = fi.Info(
            caps=fi.RMA,
            domain_attr=fi.DomainAttr(mr_mode=_MR_MODES, threading=fi.THREAD_SAFE),
            ep_attr=fi.EpAttr(type=fi.EP_RDM),
            fabric_attr=fi.FabricAttr(prov_name=wanted),
            addr_format=0 if wanted else fi.ADDR_STR,
        )
        self.info = fi.getinfo(hints=hints)[0]
        if wanted is None:
            self.info.domain_attr.mr_mode |= (
                fi.MR_PROV_KEY
            )  # Weft never makes a key twice: a late read meets no newer frame
        self.info.tx_attr.msg_order = 0  # each read has its own completion
        self._fabric = fi.Fabric(self.info.fabric_attr)
        self.domain = self._fabric.domain(self.info)
        _handle.owned(self._fabric, self.domain)
        mode = int(self.domain.mr_mode)
        self.local_keys = bool(mode & int(fi.MR_LOCAL))
        self._bound = bool(mode & int(fi.MR_ENDPOINT))
        self._own_keys = not mode & int(fi.MR_PROV_KEY)
        self._home = Lane(self)
        if int(self.info.domain_attr.data_progress) == int(fi.PROGRESS_MANUAL):
            self._progress = ProgressThread(self._home.cq, "Weft-Dask-progress", self.tidy)
        name = self._home.ep.getname()
        greeting = np.frombuffer(bytearray(self.greeting), np.uint8)
        self._greeting_mr = self.register(greeting, fi.REMOTE_READ)
        text = name if isinstance(name, str) else None
        self.hello |= {
            "name": text if text is not None else bytes(name).hex(),
            "binary": text is None,
            "key": int(self._greeting_mr.key),
            "addr": self.remote_address(self._greeting_mr),
            "greeting": self.greeting.hex(),
        }

    def _listen(self, at: str) -> None:
        """With a secret, let other hosts read this process's frames; else the frames go by the connection."""
        try:
            _process.listen(f"tcp://{f'[{at}]' if ':' in at else at}:0")
        except errors.Busy:
            pass  # WEFT_LISTEN, or weft.open(listen=...)
        except errors.AccessDenied:
            pass  # no secret
        except errors.FabricError as reason:
            logger.warning("weft:// does not listen for reads of other hosts: %s", reason.message)

    # ---- memory ----------------------------------------------------------------------------------------------------

    def register(self, memory: Any, access: int) -> Any:
        """A region over memory, enabled. Raises FabricError."""
        key = next(self._keys) if self._own_keys else 0
        mr = self.domain.mr_reg(memory, access, requested_key=key)
        _handle.owned(mr)
        if self._bound:
            mr.bind(self._home.ep)
            mr.enable()
        return mr

    def remote_address(self, mr: Any) -> int:
        """Where a region begins, for peers."""
        return int(mr.address) if self.domain.virt_addr else 0

    def offer(self, frames: list[memoryview]) -> Offer:
        """Let peers read frames. Raises FabricError."""
        return Offer(self, frames)

    def release(self, offers: list[Offer]) -> None:
        """Withdraw offers, also earlier offers whose peer was stopped in a copy. In a thread, because a peer may be
        copying.
        """
        if self.closed or not (offers or self._busy):
            return

        def close() -> None:
            with self._lock:
                left, self._busy = self._busy + offers, []
            for offer in left:
                try:
                    offer.close()
                    if self.foreign:
                        self._resting.append((time.monotonic(), offer.frames))
                except errors.Busy:
                    with self._lock:
                        self._busy.append(offer)  # its frames stay alive
                except errors.FabricError:
                    pass  # the domain is closed

        try:
            self.threads.submit(close)
        except RuntimeError:  # the interpreter ends, and the NIC with it
            pass

    def tidy(self) -> None:
        """Called with each message: frees what was kept for a while. Cheap."""
        self.pool.trim()
        now = time.monotonic()
        while self._resting and now - self._resting[0][0] > BUSY_S:
            self._resting.popleft()
        if self._busy and now - self._tidied > BUSY_S:
            self._tidied = now
            self.release([])

    # ---- reading ---------------------------------------------------------------------------------------------------

    def lane(self) -> Lane:
        """An idle lane, or a new one. Raises FabricError."""
        try:
            return self._idle.pop()
        except IndexError:
            return Lane(self)

    def put_back(self, lane: Lane) -> None:
        """Of a lane on which nothing is under way."""
        self._idle.append(lane)

    def pieces(self, frames: list[tuple[memoryview, int, int]]) -> list[tuple[memoryview, int, int]]:
        """Frames, cut at the provider's longest transfer."""
        most = int(self.info.ep_attr.max_msg_size)
        found = []
        for local, base, key in frames:
            if local.nbytes <= most:
                found.append((local, base, key))
            else:
                found += [(local[at : at + most], base + at, key) for at in range(0, local.nbytes, most)]
        return found

    def known(self, name: str | bytes, greeting: bytes) -> Peer | None:
        """A peer that was met before."""
        return self._peers.get(_identity(name, greeting))

    def meet(self, hello: dict[str, Any], gave_up: Callable[[], bool]) -> Peer:
        """Prove that the process that sent `hello` can be read: its greeting. Blocks. Raises Unavailable."""
        if self.reason:
            raise Unavailable(self.reason)
        name, greeting, key, addr = parse_hello(hello)
        if hello.get("fabric") != self.hello["fabric"]:
            raise Unavailable(f"it uses the fabric {hello.get('fabric')!r:.60}, this process {self.hello['fabric']!r}")
        found = memoryview(bytearray(len(greeting)))
        peer = Peer(name)
        try:
            Pull(self, peer, [(found, addr, key)]).run(gave_up)
        except errors.FabricError as reason:
            raise Unavailable(reason.message) from None
        if bytes(found) != greeting:
            raise Unavailable(f"its address {name!r:.100} is that of another process here")
        self._peers[_identity(name, greeting)] = peer
        return peer

    def close(self) -> None:
        """At exit."""
        self.closed = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        if self._progress is not None:
            self._progress.close()


def _identity(name: str | bytes, greeting: bytes) -> bytes:
    return greeting + (name.encode() if isinstance(name, str) else name)


def parse_hello(hello: dict[str, Any]) -> tuple[str | bytes, bytes, int, int]:
    """Name, greeting, key and address of what a peer sent. Raises Unavailable."""
    name, greeting, key, addr = (hello.get(word) for word in ("name", "greeting", "key", "addr"))
    if name is None:
        raise Unavailable("it offers no memory")
    if not (isinstance(name, str) and isinstance(greeting, str) and len(name) <= 4096 and name):
        raise Unavailable("it sent a greeting without an address")
    if not all(type(n) is int and 0 <= n < 1 << 64 for n in (key, addr)):
        raise Unavailable("it sent a greeting without a key")
    try:
        secret = bytes.fromhex(greeting)
        found = bytes.fromhex(name) if hello.get("binary") else name
    except ValueError:
        raise Unavailable("it sent a greeting that is not hexadecimal") from None
    if len(secret) != GREETING_BYTES:
        raise Unavailable("it sent a greeting of the wrong length")
    return found, secret, int(key), int(addr)  # type: ignore[arg-type]


_lock = threading.Lock()
_current: Fabric | None = None


def fabric_of_process(listen_at: str = "0.0.0.0") -> Fabric:
    """This process's Fabric, made at the first use; a forked child gets its own.

    Args:
        listen_at: IP address of this host at which peers of other hosts may read, where a secret is set.
    """
    global _current
    found = _current
    if found is None or found.pid != os.getpid() or found.closed:
        with _lock:
            found = _current
            if found is None or found.pid != os.getpid() or found.closed:
                _process.nic()  # registers its handler of the exit first, so that ours runs before it
                found = _current = Fabric(load(), listen_at)
                atexit.register(found.close)
    return found


def _after_fork_in_child() -> None:
    global _lock, _current
    _lock = threading.Lock()
    _forgotten.append(_current)  # the parent's handles: never dropped, so that nothing of them runs here
    _current = None


_forgotten: list[Fabric | None] = []
os.register_at_fork(after_in_child=_after_fork_in_child)
