"""`weft perf` on two hosts: --server --listen on one, --connect host:port on the other."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests import patience
from tests.procs.hosts import PATIENT, Wire

from weft.tools._hosts import HostTarget
from weft.tools._text import UsageError

from .test_perf import COMMAND

pytestmark = pytest.mark.procs

SECRET = "of the tests, for weft perf"
FEW = ("--ops", "write,inject_write,tsend", "--sizes", "8", "--seconds", "0.2", "--json")


@pytest.fixture
def wire(seed: int) -> Iterator[Wire]:
    with Wire(seed) as made:
        yield made


def connect(wire: Wire, secret: str, *options: str, port: int = 7000) -> subprocess.CompletedProcess[str]:
    return patience.run(
        [*wire.inside("b"), *COMMAND, "--connect", f"{wire.ip['a']}:{port}", *options],
        env={**os.environ, **PATIENT, "WEFT_SECRET": secret},
        timeout=90,
    )


def test_two_hosts_measure_beside_a_bare_socket(wire: Wire) -> None:
    server = subprocess.Popen(
        [*wire.inside("a"), *COMMAND, "--server", "--listen", "tcp://0.0.0.0:7000"],
        env={**os.environ, **PATIENT, "WEFT_SECRET": SECRET},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        assert "serving at 0.0.0.0 port 7000" in server.stdout.readline()
        done = connect(wire, SECRET, *FEW)
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert {(row["op"], row["path"]) for row in rows} == {(op, "tcp") for op in ("write", "inject_write", "tsend")}
        assert all("bare socket" in row["limit_name"] and row["limit_value"] > 0 for row in rows)
        stranger = connect(wire, "quite another secret")
        assert stranger.returncode == 2
        assert "the secrets differ" in stranger.stderr
        server.send_signal(signal.SIGINT)
        said, _ = patience.communicate(server, 60)
        assert f"{wire.ip['b']} was refused" in said
    finally:
        server.kill()
        server.communicate()


def test_host_target_that_is_turned_away_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    connect = socket.create_connection

    def remembered(*where: Any) -> socket.socket:
        made.append(connect(*where))
        return made[-1]

    monkeypatch.setenv("WEFT_SECRET", SECRET)
    monkeypatch.setattr(socket, "create_connection", remembered)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            with listener.accept()[0] as caller:
                caller.sendall(b'{"nonce": "1"}\n{"error": "the secrets differ"}\n')
                caller.recv(4096)

        server = threading.Thread(target=refuse)
        server.start()
        with pytest.raises(UsageError, match="the secrets differ"):
            HostTarget(f"127.0.0.1:{listener.getsockname()[1]}", 4096)
        server.join()
    assert [s.fileno() for s in made] == [-1]


def test_failed_connect_shows_a_remedy(wire: Wire) -> None:
    nobody = connect(wire, SECRET, port=7001)
    assert nobody.returncode == 2
    assert "--server --listen" in nobody.stderr
    none = connect(wire, "")
    assert none.returncode == 2
    assert "WEFT_SECRET" in none.stderr
