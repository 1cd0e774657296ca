"""Dask's side of `weft://`: comm, connector, listener, backend (distributed.comm.core, distributed.comm.registry)."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import logging
import weakref
from typing import Any

import dask
import numpy as np
from distributed import protocol
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import BaseListener, Comm, CommClosedError, Connector
from distributed.comm.registry import Backend
from distributed.comm.utils import ensure_concrete_host, from_frames, to_frames
from distributed.protocol import Serialize
from distributed.utils import ensure_ip, ensure_memoryview, get_ip
from tornado.netutil import bind_sockets

from .fabric import fabric_of_process
from .link import Link

logger = logging.getLogger("distributed.comm.weft")

PREFIX = "weft://"
# Frames are not split, so that an array arrives in one buffer. Only for compressors, which have limits, are they split.
_WHOLE = 1 << 62
# A thread serialises a message of more parts or longer text, by distributed's decision.
_PARTS_MAX = 64
_TEXT_MAX = 1 << 16


class WeftComm(Comm):
    """An established `weft://` communication. Used in the thread of the event loop that made it."""

    def __init__(self, link: Link, local_addr: str, peer_addr: str, deserialize: bool = True) -> None:
        super().__init__(deserialize=deserialize)
        self._link = link
        self._local_addr = local_addr
        self._peer_addr = peer_addr
        self._finalizer = weakref.finalize(self, _dangling, link, repr(self))
        self._finalizer.atexit = False

    @property
    def local_address(self) -> str:
        """This side's address."""
        return self._local_addr

    @property
    def peer_address(self) -> str:
        """The peer's address."""
        return self._peer_addr

    @property
    def paths(self) -> dict[str, Any]:
        """How large frames move, in each direction.

        Returns:
            A dict with the keys "fabric" (the setting distributed.comm.weft.fabric, "weft" for Weft's own links),
            "reads_peer" (True: from the peer's memory; False: by the connection; None: not known yet), "read_by_peer"
            (the same for frames that this side sends) and "because" (why a direction is False; "" if neither is).
        """
        link = self._link
        reads: bool | None = None if link.greeting_pending else link.peer is not None
        refused = link.fabric.reason or (link.readable.result() if link.readable.done() else None)
        readable = None if refused is None else not refused
        reasons = [link.peer_reason if reads is False else "", refused]
        return {
            "fabric": link.fabric.hello["fabric"],
            "reads_peer": reads,
            "read_by_peer": readable,
            "because": "; ".join(dict.fromkeys(filter(None, reasons))),
        }

    async def read(self, deserializers: Any = None) -> Any:
        """The next message. Raises CommClosedError. An error of any kind, or cancelling, aborts the comm."""
        context = contextvars.copy_context()

        def load(frames: list[Any]) -> Any:
            return context.run(protocol.loads, frames, deserialize=self.deserialize, deserializers=deserializers)

        try:
            message = await self._link.receive(load)
        except BaseException:
            self.abort()
            raise
        try:
            loaded, message.loaded = message.loaded, None  # the thread that made it may hold the message a while longer
            if loaded is not None:
                return loaded()
            return await from_frames(
                message.frames,
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError:
            self.abort()
            raise CommClosedError("aborted comm on truncated data") from None

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        """Send a message; returns its bytes. Returns before the peer has it, as tcp:// does: large arrays must not be
        changed until then. Raises CommClosedError."""
        if self._link.ended:
            raise self._link._closed()
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload and not _sent_as_they_lie(msg),
            serializers=serializers,
            on_error=on_error,
            context={
                "sender": self.local_info,
                "recipient": self.remote_info,
                **self.handshake_options,
            },
            frame_split_size=None if self.handshake_options.get("compression") else _WHOLE,
        )
        try:
            whole = [ensure_memoryview(frame) for frame in frames]
            await self._link.send(whole)
        except asyncio.CancelledError:
            raise  # nothing was sent: send waits only before its first byte
        except BaseException:
            self.abort()
            raise
        return sum(frame.nbytes for frame in whole)

    async def close(self) -> None:
        """Flush and close; waits until the peer has read the frames that were offered to it."""
        self._finalizer.detach()
        await self._link.close()

    def abort(self) -> None:
        """Close at once. Any thread whose loop is the comm's; a second call has no effect."""
        self._finalizer.detach()
        if not self._link.closing:
            self._link.abort()

    def closed(self) -> bool:
        """True after close() or abort(), or when the peer has closed and everything that it sent is read."""
        return self._link.ended


def _dangling(link: Link, shown: str) -> None:
    if link.lost or link.closing:
        return
    logger.warning("Closing dangling comm in %s", shown)
    try:
        link.loop.call_soon_threadsafe(link.close_soon)
    except RuntimeError:  # the loop is closed
        pass


def _sent_as_they_lie(msg: Any, depth: int = 4) -> bool:
    """True if nothing of a message takes long to serialise: large parts are arrays, whose memory becomes frames. Then
    the event loop's thread serialises: waking another thread, and being woken by it, takes longer.
    """
    if isinstance(msg, Serialize):
        data = msg.data
        return type(data) is np.ndarray and data.flags.forc and not data.dtype.hasobject
    if isinstance(msg, (dict, list, tuple)):
        parts = msg.values() if isinstance(msg, dict) else msg
        return depth > 0 and len(parts) <= _PARTS_MAX and all(_sent_as_they_lie(part, depth - 1) for part in parts)
    return msg is None or isinstance(msg, (int, float)) or (isinstance(msg, (str, bytes)) and len(msg) <= _TEXT_MAX)


def _refuse_tls(address: str, connection_args: dict[str, Any]) -> None:
    if connection_args.get("require_encryption") or connection_args.get("ssl_context") is not None:
        raise RuntimeError(
            f"TLS was requested (distributed.security), but {address!r} is not encrypted: weft:// has no TLS\n"
            "  try: tls://, or no TLS settings; between hosts a secret (WEFT_SECRET_FILE) encrypts the large frames"
        )


class WeftConnector(Connector):
    """Connects to `weft://host:port`."""

    prefix = PREFIX
    comm_class = WeftComm
    encrypted = False

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> WeftComm:
        """Raises OSError (nobody listens there), RuntimeError (TLS requested), ValueError (address)."""
        _refuse_tls(PREFIX + address, connection_args)
        host, port = parse_host_port(address)
        loop = asyncio.get_running_loop()
        try:
            _, link = await loop.create_connection(Link, host, port)
        except OSError as reason:
            raise CommClosedError(f"in weft://{address}: {type(reason).__name__}: {reason}") from reason
        return self.comm_class(link, PREFIX + link.name("sockname"), PREFIX + address, deserialize)


class WeftListener(BaseListener):
    """Listens at `weft://host:port`; calls comm_handler with a comm for each connection."""

    prefix = PREFIX
    comm_class = WeftComm
    encrypted = False

    def __init__(
        self,
        address: str,
        comm_handler: Any,
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **connection_args: Any,
    ) -> None:
        super().__init__()
        _refuse_tls(PREFIX + address, connection_args)
        self.ip, self.port = parse_host_port(address, default_port)
        self.default_host = default_host
        self.comm_handler = comm_handler
        self.deserialize = deserialize
        self.allow_offload = allow_offload
        self._servers: list[asyncio.AbstractServer] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._bound: tuple[str, int] | None = None

    async def start(self) -> None:
        """Listen. Raises OSError."""
        loop = asyncio.get_running_loop()
        fabric = fabric_of_process(ensure_ip(self.ip) if self.ip else "0.0.0.0")
        backlog = int(dask.config.get("distributed.comm.socket-backlog"))
        for attempt in range(5):
            try:
                sockets = bind_sockets(self.port, address=self.ip or None, backlog=backlog)
                break
            except OSError as reason:  # of two families with one free port, the second may be taken
                if self.port or reason.errno != errno.EADDRINUSE or attempt == 4:
                    raise
        names = [sock.getsockname()[:2] for sock in sockets]
        self._bound = next((name for name in names if ":" not in name[0]), names[0])
        for sock in sockets:
            self._servers.append(
                await loop.create_server(lambda: Link(self._connected, fabric), sock=sock, backlog=backlog)
            )

    def stop(self) -> None:
        """Stop listening; comms go on."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()

    def _connected(self, link: Link) -> None:
        if not self._servers:
            link.abort("the listener was stopped")
            return
        task = link.loop.create_task(self._handle(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, link: Link) -> None:
        comm = self.comm_class(link, PREFIX + link.name("sockname"), PREFIX + link.name("peername"), self.deserialize)
        comm.allow_offload = self.allow_offload
        try:
            await self.on_connection(comm)
        except CommClosedError:
            logger.info("Connection from %s closed before handshake completed", comm.peer_address)
            return
        await self.comm_handler(comm)

    def get_host_port(self) -> tuple[str, int]:
        """Where it listens. Raises ValueError before start()."""
        if self._bound is None:
            raise ValueError("invalid operation on non-started WeftListener")
        return self._bound

    @property
    def listen_address(self) -> str:
        """Where it listens, as an address."""
        return f"{PREFIX}{unparse_host_port(*self.get_host_port())}"

    @property
    def contact_address(self) -> str:
        """An address for peers: a wildcard is replaced by an address of this host."""
        host, port = self.get_host_port()
        return f"{PREFIX}{unparse_host_port(ensure_concrete_host(host, default_host=self.default_host), port)}"


class WeftBackend(Backend):
    """What the entry point `distributed.comm.backends` of the name `weft` leads to."""

    def get_connector(self) -> WeftConnector:
        """A connector."""
        return WeftConnector()

    def get_listener(self, loc: str, handle_comm: Any, deserialize: bool, **connection_args: Any) -> WeftListener:
        """A listener, not started."""
        return WeftListener(loc, handle_comm, deserialize, **connection_args)

    def get_address_host(self, loc: str) -> str:
        """The host of `host:port`."""
        return str(parse_host_port(loc)[0])

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        """Host and port."""
        host, port = parse_host_port(loc)
        return host, port

    def resolve_address(self, loc: str) -> str:
        """With an IP address for the host."""
        host, port = parse_host_port(loc)
        return str(unparse_host_port(ensure_ip(host), port))

    def get_local_address_for(self, loc: str) -> str:
        """This host's address from which `loc` is reached."""
        host, _ = parse_host_port(loc)
        return str(unparse_host_port(get_ip(ensure_ip(host)), None))
