"""A bare TCP connection between the two processes of a measurement: the limit of the path tcp.

It takes the same route as Weft's own connection: the second process listens at the address of its NIC.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import _nic, _process

if TYPE_CHECKING:
    from ._pair import Target

_LIMIT_S = 10.0


def _plain(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if connection.getsockname()[0] == connection.getpeername()[0]:
        # Like the link, do not pace connections inside a host; otherwise the limit would be slower than the link.
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    connection.setblocking(False)
    return connection


class Partner:
    """The end in the second process."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._connection: socket.socket | None = None

    def do(self, request: Mapping[str, Any]) -> Any:
        """Execute a request: return the listening address, or take part in a ping-pong or a stream."""
        if request["do"] == "socket":
            listening = _process.nic().tcp_listening()
            family = socket.AF_INET6 if listening and ":" in listening[0] else socket.AF_INET
            self._listener = socket.create_server((listening[0] if listening else "127.0.0.1", 0), family=family)
            return self._listener.getsockname()[:2]
        if self._connection is None:
            assert self._listener is not None
            self._listener.settimeout(_LIMIT_S)
            self._connection = _plain(self._listener.accept()[0])
        fd, size = self._connection.fileno(), request["size"]
        if request["do"] == "socket_pingpong":
            return _nic.probe_socket_pingpong(fd, request["rounds"], size, False, _LIMIT_S)
        return _nic.probe_socket_stream(fd, bytearray(size), request["rounds"], request["receive"], _LIMIT_S)


class Bare:
    """The end in the first process: half a round trip, and streams in both directions."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connection = _plain(socket.create_connection(tuple(target.ask("socket")), _LIMIT_S))

    def pingpong_ns(self, size: int, rounds: int) -> float:
        """Nanoseconds of half a round trip of `size` bytes, both sides polling."""
        self._target.tell("socket_pingpong", size=size, rounds=rounds)
        ns = _nic.probe_socket_pingpong(self._connection.fileno(), rounds, size, True, _LIMIT_S)
        self._target.result()
        return ns

    def stream_ns(self, size: int, rounds: int, receive: bool = False) -> float:
        """Nanoseconds to send (or receive) `size` bytes until all have arrived, the mean of `rounds` in a row."""
        self._target.tell("socket_stream", size=size, rounds=rounds, receive=receive)
        ns = _nic.probe_socket_stream(self._connection.fileno(), bytearray(size), rounds, not receive, _LIMIT_S)
        self._target.result()
        return ns / rounds if ns > 0 else ns

    def close(self) -> None:
        """Hang up."""
        self._connection.close()
