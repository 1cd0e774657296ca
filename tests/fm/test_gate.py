"""The gate in front of the Fabric Manager, as an ASGI application without a server; how long its connections live."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest

from weft.fm import gate, server
from weft.fm.gate import BODY_MAX, PUBLIC_MAX, Gate

JOBS = {"token-of-a-job": "job"}


async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    """Reads the whole body; answers with its length and the bearer's job."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    body = json.dumps({"size": size, "who": scope.get("state", {}).get("who", "nobody")}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def asked(
    authorization: bytes = b"Bearer administrator",
    *,
    path: str = "/groups",
    length: bytes | None = None,
    pieces: tuple[int, ...] = (0,),
) -> tuple[int, dict[str, Any]]:
    """Status and body of the answer to a request whose body comes in pieces of these sizes."""
    headers = [(b"Authorization", authorization)]
    if length is not None:
        headers.append((b"Content-Length", length))
    left = list(pieces)
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        size = left.pop(0)
        return {"type": "http.request", "body": bytes(size), "more_body": bool(left)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    gate = Gate(app, ["administrator"], JOBS.get, frozenset({"/health"}))
    asyncio.run(gate({"type": "http", "path": path, "headers": headers}, receive, send))
    start, body = sent
    return start["status"], json.loads(body["body"])


def test_token_tells_who_asks() -> None:
    assert asked() == (200, {"size": 0, "who": None})
    assert asked(b"bEARER  administrator ") == (200, {"size": 0, "who": None})
    assert asked(b"Bearer token-of-a-job") == (200, {"size": 0, "who": "job"})
    assert asked(b"", path="/health") == (200, {"size": 0, "who": "nobody"})


@pytest.mark.parametrize(
    "authorization",
    [b"", b"Bearer", b"Bearer ", b"Bearer admin", b"Bearer administrators", b"Basic administrator", b"administrator",
     b"Bearer unknown", b"Bearer \xff"],
)  # fmt: skip
def test_wrong_token_is_refused(authorization: bytes) -> None:
    status, body = asked(authorization)
    assert status == 401
    assert "token" in body["message"]


@pytest.mark.parametrize(("path", "most"), [("/groups", BODY_MAX), ("/health", PUBLIC_MAX)])
def test_body_has_as_many_bytes_as_are_allowed_and_not_one_more(path: str, most: int) -> None:
    assert asked(path=path, length=b"%d" % most, pieces=(most,))[1]["size"] == most
    assert asked(path=path, pieces=(most - 1, 1))[1]["size"] == most
    assert asked(path=path, length=b"%d" % (most + 1))[0] == 413
    status, body = asked(path=path, pieces=(most, 1))  # without a length, or with a false one
    assert (status, body) == (413, {"message": f"the body is longer than {most} bytes"})


@pytest.mark.parametrize("length", [b"-1", b"x", b"", b"1.5", b"9" * 5000])
def test_length_that_is_no_number_is_refused(length: bytes) -> None:
    assert asked(length=length)[0] == 413


def test_body_that_is_there_counts_when_the_gate_looks_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may have been stopped since the headers came."""
    monkeypatch.setattr(gate, "BODY_S", 0.0)
    assert asked(pieces=(5, 6)) == (200, {"size": 11, "who": None})


# ---- connections -----------------------------------------------------------------------------------------------------


class Looks:
    """A connection of the service whose looks come when a test says; `closed`: after as many seconds."""

    def __init__(self) -> None:
        self.connection = object.__new__(server._impatient())
        self.connection.loop = self  # type: ignore[attr-defined]
        self.connection.transport = self  # type: ignore[attr-defined]
        self.connection.cycle = None  # type: ignore[attr-defined]
        self.now, self.closed = 0.0, -1.0
        self.connection._watch()  # type: ignore[attr-defined]

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.after, self.call = seconds, call

    def close(self) -> None:
        self.closed = self.now

    def look(self) -> float:
        self.now += self.after
        self.call()
        return self.closed


def test_silent_connection_ends_after_the_limit() -> None:
    one = Looks()
    assert [one.look(), one.look()] == [-1.0, server.HEAD_S]


def test_request_that_is_read_between_two_looks_keeps_its_connection() -> None:
    """The process may have been stopped: then the first look is late, and the request waits to be read."""
    one = Looks()
    assert one.look() == -1.0
    one.connection.cycle = SimpleNamespace(response_complete=False)  # type: ignore[attr-defined]
    assert [one.look(), one.look()] == [-1.0, -1.0]
    one.connection.cycle.response_complete = True  # type: ignore[attr-defined]
    assert one.look() == one.now
