"""A manager that answers as a test says, and keeps the requests."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

Answer = Callable[[socket.socket], None]


def answer(status: int, body: Any = None, *, raw: bytes | None = None) -> Answer:
    """An answer with this status and JSON body."""
    data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Word\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"

    def send(peer: socket.socket) -> None:
        peer.sendall(head.encode() + data)

    return send


def bytes_of(data: bytes) -> Answer:
    """These bytes and then the end of the connection."""
    return lambda peer: peer.sendall(data)


def silence(peer: socket.socket) -> None:
    """No answer until the client goes."""
    peer.settimeout(60)
    with contextlib.suppress(OSError):
        while peer.recv(1 << 16):
            pass


def dripping(peer: socket.socket) -> None:
    """A header that never ends, one byte at a time, each well within the limit of a single read."""
    gone = threading.Event()
    with contextlib.suppress(OSError):
        peer.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while True:
            peer.sendall(b"x")
            gone.wait(0.1)


class Scripted:
    """The manager: `url`, the requests it has got, the remaining answers (the last stays)."""

    def __init__(self, answers: list[Answer], context: ssl.SSLContext | None = None) -> None:
        self.requests: list[bytes] = []
        self._answers = answers
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        scheme = "https" if context else "http"
        self.url = f"{scheme}://127.0.0.1:{self.port}/fabric/collectives/multicast"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                threading.Thread(target=self._one, args=(peer,), daemon=True).start()

    def _one(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.closing(peer):
            if self._context is not None:
                peer = self._context.wrap_socket(peer, server_side=True)
            with contextlib.closing(peer):
                self.requests.append(whole_message(peer))
                found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                found(peer)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(30)

    def body(self, at: int = -1) -> Any:
        """The JSON of a request."""
        return json.loads(self.requests[at].partition(b"\r\n\r\n")[2])


def whole_message(peer: socket.socket) -> bytes:
    """A request or an answer, with the body that its Content-Length says."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        more = peer.recv(1)  # the next message stays where it is
        if not more:
            return data
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(rest) < length:
        more = peer.recv(length - len(rest))
        if not more:
            break
        rest, data = rest + more, data + more
    return data


@contextlib.contextmanager
def scripted(*answers: Answer, context: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    found = Scripted(list(answers), context)
    try:
        yield found
    finally:
        found.close()
