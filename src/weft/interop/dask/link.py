"""One control connection of `weft://`: messages in order, offers, acknowledgements.

A Link is the protocol of an asyncio transport and lives in its loop's thread. `Comm` (comm.py) is Dask's face of it.
Large frames are offered: the receiver reads them when the application asks for the message, and acknowledges. Until
then, or until the connection ends, the sender holds them.

What surprises: `send` does not wait for the receiver (as tcp:// does not), unless more than `unacknowledged` bytes are
offered. A Link always reads its socket, since acknowledgements arrive there, except while many unread messages lie here
and none of its own frames waits for an acknowledgement.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed.comm.core import CommClosedError
from distributed.system import MEMORY_LIMIT

from ... import errors
from . import wire
from .fabric import LOOP_BYTES_MAX, Fabric, Offer, Peer, Pull, Unavailable, fabric_of_process, parse_hello

logger = logging.getLogger("distributed.comm.weft")

# Unread bytes and messages above which the socket is not read.
UNREAD_BYTES_MAX = 64 << 20
UNREAD_MAX = 10_000
# Pieces in which the transport gets long frames: it copies what the socket does not take at once.
PIECE_BYTES = 1 << 18
# Peers about which a warning was printed, so that a large cluster prints each reason once.
_warned: set[str] = set()


def tcp_timeout() -> float:
    """Seconds after which a silent host is taken for dead: distributed.comm.timeouts.tcp."""
    return float(parse_timedelta(dask.config.get("distributed.comm.timeouts.tcp"), default="seconds"))


class Link(asyncio.BufferedProtocol):
    """Made by a transport's protocol factory. on_open is called with the Link when it is connected."""

    def __init__(self, on_open: Callable[[Link], None] | None = None, fabric: Fabric | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.fabric = fabric or fabric_of_process()
        self.lost = False  # nothing more is sent, and no offer is held
        self.closing = False  # close() or abort() was called here
        self.reason = "the connection is closed"
        self.peer: Peer | None = None  # its memory can be read
        self.peer_reason = "no greeting has arrived yet"
        self.readable: asyncio.Future[str] = self.loop.create_future()  # "" or why the peer cannot read us
        self._on_open = on_open
        self._transport: Any = None
        self._parser = wire.Parser(self._control, self._message, MEMORY_LIMIT, self.fabric.pool.take)
        self._unread: deque[wire.Arrived] = deque()
        self._unread_bytes = 0
        self._paused = False
        self._asking = 0  # writes that wait for the peer's verdict
        self._outbox: deque[memoryview] = deque()  # for the transport, which has enough at the moment
        self._full = False
        self._reader: asyncio.Future[None] | None = None
        self._met: asyncio.Future[None] | None = None  # done when the peer's greeting has been tried
        self._offers: dict[int, Offer] = {}
        self._offered_bytes = 0
        self._next_number = 0
        self._changed: asyncio.Future[None] | None = None  # an offer or the connection ended
        self._gone: asyncio.Future[None] = self.loop.create_future()
        self._peer_left = False
        self._task: asyncio.Task[None] | None = None

    # ---- the transport's calls -------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """The transport is connected."""
        self._transport = transport
        _keep_alive(transport.get_extra_info("socket"))
        transport.write(wire.pack_json(wire.HELLO, self.fabric.hello))
        if self._on_open is not None:
            self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is closed."""
        self._end("the peer closed the connection" if exc is None else f"{type(exc).__name__}: {exc}")
        if not self._gone.done():
            self._gone.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._parser.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes are here."""
        try:
            self._parser.feed(nbytes)
        except wire.Malformed as reason:
            logger.warning("weft:// drops the connection with %s: %s", self.name("peername"), reason)
            self.abort(str(reason))
        except MemoryError:
            self.abort("no memory for a message that arrives")

    def eof_received(self) -> bool:
        """The peer closed: the transport closes, too."""
        return False

    def pause_writing(self) -> None:
        """The transport has enough to send."""
        self._full = True

    def resume_writing(self) -> None:
        """The transport takes more."""
        self._full = False
        self._flush()

    def _write(self, data: bytes | memoryview) -> None:
        """Send bytes after those before them. Does not wait; long data is not copied but referred to."""
        if not self._outbox and not self._full and len(data) <= PIECE_BYTES:
            self._transport.write(data)
        else:
            self._outbox.append(memoryview(data))
            self._flush()

    def _flush(self) -> None:
        outbox = self._outbox
        while outbox and not self._full:
            data = outbox.popleft()
            if len(data) > PIECE_BYTES:
                outbox.appendleft(data[PIECE_BYTES:])
            self._transport.write(data[:PIECE_BYTES])
        if not outbox:
            self._wake_changed()

    def name(self, which: str) -> str:
        """`host:port` of this side ("sockname") or of the peer ("peername")."""
        found = self._transport.get_extra_info(which) if self._transport else None
        if not found:
            return "?"
        host, port = found[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    # ---- what arrives ----------------------------------------------------------------------------------------

    def _control(self, kind: int, body: Any) -> None:
        if kind == wire.ACK:
            number = wire.unpack_number(body)
            offer = self._offers.pop(number, None)
            if offer is None:
                raise wire.Malformed(f"an acknowledgement of message {number}, which was not offered")
            self._offered_bytes -= offer.nbytes
            try:
                offer.close()  # does not wait: the peer says that it has done
            except errors.FabricError:
                self.fabric.release([offer])
            self._wake_changed()
        elif kind == wire.BYE:
            self._peer_left = True
            self._wake_changed()
        elif kind == wire.HELLO:
            if self._met is not None:
                raise wire.Malformed("a second greeting")
            self._met = asyncio.ensure_future(self._meet(wire.unpack_json(body)))
        elif kind == wire.VERDICT:
            reason = wire.unpack_json(body).get("reason")
            if not isinstance(reason, str) or self.readable.done():
                raise wire.Malformed("a verdict that is none")
            self.readable.set_result(reason)
            if reason:
                _warn("does not read large frames from this process's memory", reason)

    async def _meet(self, hello: dict[str, Any]) -> None:
        """Try to read the peer's greeting, and tell the peer."""
        try:
            if self.fabric.reason:
                raise Unavailable(self.fabric.reason)
            self.peer = self._known(hello) or await self.loop.run_in_executor(
                self.fabric.threads, self.fabric.meet, hello, self._is_lost
            )
            self.peer_reason = ""
        except Unavailable as reason:
            self.peer_reason = str(reason)
            if not self.lost and not self.fabric.reason:
                _warn("is not read by this process", self.peer_reason)
        except RuntimeError as reason:  # the interpreter ends
            self.peer_reason = str(reason)
        if not self.lost:
            self._write(wire.pack_json(wire.VERDICT, {"reason": self.peer_reason[:2000]}))

    def _known(self, hello: dict[str, Any]) -> Peer | None:
        if hello.get("fabric") != self.fabric.hello["fabric"]:
            return None
        name, greeting, _, _ = parse_hello(hello)
        return self.fabric.known(name, greeting)

    def _message(self, message: wire.Arrived) -> None:
        if self.closing:
            return  # nobody will read it
        self._unread.append(message)
        self._unread_bytes += message.nbytes
        if self._unread_bytes > UNREAD_BYTES_MAX or len(self._unread) > UNREAD_MAX:
            self._pace()
        self._wake_reader()
        self.fabric.tidy()

    def _pace(self) -> None:
        """Stop or go on to read the socket. The socket is read while acknowledgements are due, because otherwise two
        peers that both write and do not read would wait for each other; and while a write waits for the peer's verdict.
        """
        many = self._unread_bytes > UNREAD_BYTES_MAX or len(self._unread) > UNREAD_MAX
        pause = many and not self._offers and not self._asking
        if pause != self._paused and not self.lost:
            self._paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_changed(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _change(self) -> asyncio.Future[None]:
        """Done at the next change. Not a coroutine, so that it counts changes from the call on."""
        if self._changed is None or self._changed.done():
            self._changed = self.loop.create_future()
        return asyncio.shield(self._changed)

    # ---- messages --------------------------------------------------------------------------------------------

    async def receive(self, load: Callable[[list[Any]], Any]) -> wire.Arrived:
        """The next message; its frames are writable memory. Raises CommClosedError.

        Args:
            load: Called with the frames by the thread that has read them, if a thread has: saves Dask to wake another.
        """
        if self._reader is not None:
            raise RuntimeError("weft://: two tasks read one comm; a comm has one reader at a time")
        while not self._unread:
            self._check()
            self._reader = self.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        self._check(unread=True)
        message = self._unread.popleft()
        self._unread_bytes -= message.nbytes
        if self._paused:
            self._pace()
        if message.number >= 0:
            await self._pull(message, load)
        return message

    async def _pull(self, message: wire.Arrived, load: Callable[[list[Any]], Any]) -> None:
        """Read the offered frames of a message, and acknowledge."""
        if self._met is not None and not self._met.done():
            await asyncio.shield(self._met)
        peer = self.peer
        if peer is None:
            self.abort("the peer offered frames to a process that had said it cannot read them")
            raise self._closed()
        places = [at for at, frame in enumerate(message.frames) if isinstance(frame, wire.Offered)]
        try:
            if message.offered > MEMORY_LIMIT:
                raise MemoryError
            buffers = [self.fabric.pool.take(message.frames[at].nbytes) for at in places]
        except MemoryError:
            self.abort(f"the peer offered {message.offered} B, for which this process has no memory")
            raise self._closed() from None
        frames = [
            (buffer, message.frames[at].addr, message.frames[at].key)
            for at, buffer in zip(places, buffers, strict=True)
            if buffer.nbytes
        ]
        pull = Pull(self.fabric, peer, frames)

        def place() -> None:
            for at, buffer in zip(places, buffers, strict=True):
                message.frames[at] = buffer

        def read(rest: Callable[[Callable[[], bool]], None]) -> None:
            rest(self._is_lost)
            place()
            if not self.lost:
                with self.fabric.loading:
                    message.loaded = _outcome(load, message.frames)
            # The executor's thread may hold this call a while longer; drop the buffers now, because the next message
            # needs them.
            message.frames = []
            buffers.clear()
            frames.clear()

        try:
            if message.offered > LOOP_BYTES_MAX:
                await self.loop.run_in_executor(self.fabric.threads, read, pull.run)
            elif pull.start():
                place()
            else:
                await self.loop.run_in_executor(self.fabric.threads, read, pull.finish)
        except errors.FabricError as reason:
            self.abort(f"a frame could not be read from the peer's memory: {reason.message}")
        self._check()
        self._write(wire.pack_ack(message.number))

    async def send(self, frames: list[memoryview]) -> None:
        """Send frames, each one-dimensional bytes; the receiver reads them later. Raises CommClosedError."""
        self._check()
        settings = self.fabric.settings
        large = [frame for frame in frames if frame.nbytes >= settings.offer_size]
        offer: Offer | None = None
        if large and await self._can_offer():
            size = sum(frame.nbytes for frame in large)
            while self._offers and self._offered_bytes + size > settings.unacknowledged:
                await self._change()
                self._check()
            try:
                offer = self.fabric.offer(large)
            except errors.FabricError as reason:
                _warn("is sent large frames by the connection", reason.message)
        rows, inline, apart = [], [], []
        regions = iter(offer.rows if offer is not None else ())
        for frame in frames:
            size = frame.nbytes
            if size < settings.offer_size:
                rows.append(wire.Row(wire.INLINE, size))
                inline.append(frame)
            elif offer is not None:
                rows.append(wire.Row(wire.OFFERED, size, *next(regions)))
            else:
                rows.append(wire.Row(wire.APART, size))
                apart.append(frame)
        if offer is not None:
            self._offers[self._next_number] = offer
            self._next_number += 1
            self._offered_bytes += offer.nbytes
            if self._paused:
                self._pace()
        self._write(wire.pack_message(rows, inline))
        for frame in apart:
            self._write(frame)

    async def _can_offer(self) -> bool:
        if not self.fabric.reason and not self.readable.done():
            self._asking += 1
            self._pace()
            try:
                await asyncio.shield(self.readable)
            finally:
                self._asking -= 1
                self._pace()
            self._check()
        return not self.fabric.reason and self.readable.result() == ""

    # ---- the end ---------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """True after close() or abort(), or if the connection is lost and all of its messages are read."""
        return self.closing or (self.lost and not self._unread)

    @property
    def greeting_pending(self) -> bool:
        """True until it is known whether the peer's memory can be read."""
        return not self.lost and (self._met is None or not self._met.done())

    def _is_lost(self) -> bool:
        return self.lost

    def _closed(self) -> CommClosedError:
        return CommClosedError(f"in weft://{self.name('peername')}: {self.reason}")

    def _check(self, unread: bool = False) -> None:
        if self.closing or (self.lost and not unread):
            raise self._closed()

    def abort(self, reason: str = "this side aborted the comm") -> None:
        """End at once. What was offered is withdrawn; an unread message is lost."""
        self.closing = True
        self._end(reason)
        self._unread.clear()
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: str) -> None:
        if not self.lost:
            self.lost = True
            if not self.closing or reason != "the peer closed the connection":
                self.reason = reason
        # An unread message whose frames are still in the peer's memory is lost, and so are the messages behind it.
        for at, message in enumerate(self._unread):
            if message.number >= 0:
                while len(self._unread) > at:
                    self._unread.pop()
                break
        self._outbox.clear()
        offers, self._offers, self._offered_bytes = list(self._offers.values()), {}, 0
        self.fabric.release(offers)
        if not self.readable.done():
            self.readable.set_result(reason)
        self._wake_reader()
        self._wake_changed()

    async def close(self) -> None:
        """Send what was written, wait until the peer has read what was offered, and close.

        The wait ends when the peer closes, and after distributed.comm.timeouts.tcp.
        """
        if self.closing:
            return
        self.closing = True
        if self.lost:
            return
        self.reason = "this side closed the comm"
        self._unread.clear()
        if self._paused:
            self._pace()
        self._wake_reader()
        self._write(wire.pack(wire.BYE))
        deadline = time.monotonic() + tcp_timeout()
        while not self._is_lost() and (self._outbox or (self._offers and not self._peer_left)):
            left = deadline - time.monotonic()
            try:
                await asyncio.wait_for(self._change(), left)
            except asyncio.TimeoutError:
                break
        if not self.lost:
            self._transport.close()
            await asyncio.wait({self._gone}, timeout=max(deadline - time.monotonic(), 0.0))
        if not self.lost:
            self.abort(self.reason)

    def close_soon(self) -> None:
        """Close in a task, for a comm that was collected: what it wrote is still delivered."""
        self._task = self.loop.create_task(self.close())


def _outcome(load: Callable[[list[Any]], Any], frames: list[Any]) -> Callable[[], Any]:
    """What `load` returns or raises, to be had later."""
    try:
        found = load(frames)
    except Exception as reason:
        error = reason

        def failed() -> Any:
            raise error

        return failed
    return lambda: found


def _warn(what: str, reason: str) -> None:
    if reason not in _warned and len(_warned) < 100:
        _warned.add(reason)
        logger.warning("weft://: a peer %s; its large frames go by the connection: %s", what, reason)


def _keep_alive(sock: Any) -> None:
    """A host that is gone without a word is noticed after distributed.comm.timeouts.tcp, as by tcp://."""
    if sock is None:
        return
    timeout = max(int(tcp_timeout()), 11)
    probes = 10
    idle = max(2, timeout // 4)
    between = max(1, (timeout - idle) // probes)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, timeout - between * probes)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, between)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout * 1000)
    except OSError:  # the peer is gone already: the loop says so next
        pass
