"""`weft perf` in two terminals: --server in one process, --connect in another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import patience

from .test_perf import COMMAND, check
from .test_perf_ends import children_of

pytestmark = pytest.mark.procs

FEW = ("--ops", "write,inject_write", "--sizes", "8", "--seconds", "0.2")


def eventually(happened: Callable[[], bool]) -> None:
    left = patience.Patience(60)
    while not happened():
        assert not left.over
        time.sleep(0.01)


class Server:
    """A running `weft perf --server`; its output goes to `said`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.said: list[str] = []
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  a pipe would stay open in those it starts
        self.process = subprocess.Popen(
            [*COMMAND, "--server", "--name", name], stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        assert self.process.stdout is not None
        self.said.append(self.process.stdout.readline())
        self._reader = threading.Thread(target=lambda: self.said.extend(self.process.stdout or ()), daemon=True)
        self._reader.start()

    def end(self, number: int = signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = patience.wait(self.process, 60)
        self._reader.join(timeout=60)
        if not self.errors.closed:
            self.errors.seek(0)
            self.said += self.errors.readlines()
            self.errors.close()
        return code


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server(f"test-{os.getpid()}")
    try:
        yield running
    finally:
        running.end(signal.SIGKILL)


def connect(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return patience.run([*COMMAND, "--connect", name, *arguments], timeout=100)


def test_perf_connect_measures_every_path_against_the_server(server: Server) -> None:
    for text in (f"serving as '{server.name}'", f"weft perf --connect {server.name}", "Ctrl-C ends it"):
        assert text in server.said[0]
    result = connect(server.name, "--json", *FEW)
    assert (result.returncode, result.stderr) == (0, "")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    for row in rows:
        check(row)
    assert {(row["op"], row["path"]) for row in rows} == {
        (op, path) for op in ("write", "inject_write") for path in ("direct", "foreign", "ring")
    }
    eventually(lambda: not children_of(server.process.pid))
    eventually(lambda: "".join(server.said).count("is done") == 1)
    assert server.end() == 0
    assert "".join(server.said).count("measures") == 1
    assert "the server has ended" in server.said[-1]
    assert "Traceback" not in "".join(server.said)


def test_perf_server_of_a_name_that_is_taken_is_refused(server: Server) -> None:
    result = patience.run([*COMMAND, "--server", "--name", server.name], timeout=100)
    assert result.returncode == 2
    assert f"another server has the name '{server.name}'" in result.stderr
    assert "try: weft perf --server --name" in result.stderr


def test_perf_connect_to_a_wrong_name_lists_the_servers(server: Server) -> None:
    result = connect(server.name + "x")
    assert result.returncode == 2
    assert server.name in result.stderr.partition("servers here:")[2].partition("\n")[0]


class Measuring:
    """A `weft perf --connect` that has printed its first row and has many to go."""

    def __init__(self, server: Server) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "--connect", server.name, "--json", "--seconds", "10"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline()
        self.targets = children_of(server.process.pid)
        assert len(self.targets) == 2

    def end(self) -> tuple[int, str]:
        _, errors = patience.communicate(self.process, 60)
        return self.process.returncode, errors

    def __enter__(self) -> Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def test_perf_client_reports_a_server_that_ended(server: Server) -> None:
    with Measuring(server) as measuring:
        assert server.end() == 0
        code, errors = measuring.end()
        assert code == 1
        assert f"the process of the server '{server.name}'" in errors
        assert "was the server stopped?" in errors
        assert "Traceback" not in errors
        patience.wait_for_end(*measuring.targets)


def test_perf_killed_server_leaves_nothing_after_the_client_ends(server: Server) -> None:
    with Measuring(server) as measuring:
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
        measuring.process.send_signal(signal.SIGINT)
        code, errors = measuring.end()
        assert code == 130
        assert "Traceback" not in errors
        patience.wait_for_end(*measuring.targets)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_perf_server_continues_after_a_client_ends(server: Server, number: signal.Signals) -> None:
    with Measuring(server) as measuring:
        measuring.process.send_signal(number)
        code, errors = measuring.end()
        assert code == (130 if number == signal.SIGINT else -number)
        assert "Traceback" not in errors
        patience.wait_for_end(*measuring.targets)
    assert server.process.poll() is None


def test_perf_server_survives_invalid_requests(server: Server) -> None:
    program = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        f"s.connect('\\0weft-perf-{os.geteuid()}-{server.name}')\n"
        "s.sendall(b'{\"nbytes\": -1}')\n"
        "print(s.recv(4096).decode())"
    )
    result = patience.run([sys.executable, "-c", program], timeout=100)
    assert "the server could not start the process" in json.loads(result.stdout)["error"]
    assert connect(server.name, "--json", "--path", "direct", *FEW).returncode == 0
    assert not list(Path("/dev/shm").glob(f"*{server.name}*"))
