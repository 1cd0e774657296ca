"""A Fabric Manager in this process, and requests to it as exact bytes."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.fm.scripted import whole_message

from weft.fm import client, server
from weft.fm.store import Limits, Store

TOKEN = "administrator"


class Manager:
    """A running manager. `url`: of POST; `at`: (host, port)."""

    def __init__(self, url: str, store: Store) -> None:
        self.url = url
        self.store = store
        parts = urlsplit(url)
        self.at = (str(parts.hostname), int(parts.port or 0))

    def send(self, data: bytes, answers: int = 1) -> bytes:
        """Send these bytes; this many answers, or all that come before the connection's end."""
        with socket.create_connection(self.at, timeout=60) as peer:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                peer.sendall(data)
            return b"".join(whole_message(peer) for _ in range(answers))

    def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = TOKEN, raw: bytes | None = None
    ) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        data = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(data)}"]
        lines += ["Content-Type: application/json"] + ([] if token is None else [f"Authorization: Bearer {token}"])
        answer = self.send("\r\n".join([*lines, "", ""]).encode() + data)
        return parsed(answer)

    def create(
        self, *macs: str, job: str = "j", step: str = "0", token: str | None = TOKEN, **more: Any
    ) -> tuple[int, Any]:
        body = {"macs": list(macs), "vni": 1, "timeout": 32000, "jobID": job, "jobStepID": step, **more}
        return self.ask("POST", server.MULTICAST, body, token=token)


def parsed(answer: bytes) -> tuple[int, Any]:
    """Status and JSON of an answer's bytes."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    return status, json.loads(body) if body else None


Start = Callable[..., Manager]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts managers; all end with the test."""
    with contextlib.ExitStack() as stack:

        def one(limits: Limits | None = None, *, path: Path | None = None, **more: Any) -> Manager:
            store = stack.enter_context(Store(path or tmp_path / "fabric.db", limits, wait_s=more.pop("wait_s", 1.0)))
            secure = {name: more.pop(name) for name in ("cert", "key") if name in more}
            app = server.application(store, [TOKEN], **more)
            return Manager(stack.enter_context(server.running(app, server.listen("127.0.0.1", 0), **secure)), store)

        yield one


@pytest.fixture
def manager(start: Start) -> Manager:
    """A manager with the default limits."""
    return start()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """One manager for all tests of a module that leave it as it was."""
    with (
        Store(tmp_path_factory.mktemp("fm") / "fabric.db") as store,
        server.running(server.application(store, [TOKEN]), server.listen("127.0.0.1", 0)) as url,
    ):
        yield Manager(url, store)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of this process waits for a busy machine, where the test does not set the limit of an exchange."""
    monkeypatch.setattr(client, "LIMIT_S", 60.0)
