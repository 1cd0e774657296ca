"""`weft pingpong`: server and client in processes of their own, as fi_pingpong(1) describes them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import patience
from tests.patience import communicate
from tests.ports import free_port
from tests.procs.hosts import PATIENT, Wire

from weft import fi
from weft.tools import _pingpong, pingpong

from .conftest import Command

pytestmark = pytest.mark.procs

S = 60.0
COMMAND = [sys.executable, "-m", "weft.tools.cli", "pingpong"]
HEAD = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec"
ROW = re.compile(r"(\S+) +(\S+) +(=?\S+) +(\S+) +(\d+\.\d\d)s +(\d+\.\d\d) +(\d+\.\d\d) +(\d+\.\d\d)")
SECRET = "of the tests, for weft pingpong"
NIC = {"a": 0x840, "b": 0x880}


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    yield
    shutil.rmtree(tmp_path / "cxi", ignore_errors=True)


class Server:
    """A running server that waits at a port of its own."""

    def __init__(self, *options: str, before: list[str] | None = None, **env: str) -> None:
        self.port = str(free_port())
        self.process = subprocess.Popen(
            [*(before or []), *COMMAND, "-v", "-B", self.port, *options],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        assert f"waiting at port {self.port}" in self.process.stderr.readline()

    def end(self) -> tuple[int, str, str]:
        out, err = communicate(self.process, S)
        return self.process.returncode, out, err

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def client(*options: str, host: str = "localhost", before: list[str] | None = None, **env: str) -> tuple[int, str, str]:
    process = subprocess.Popen(
        [*(before or []), *COMMAND, *options, host],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = communicate(process, S)
    return process.returncode, out, err


def table(text: str) -> list[list[str]]:
    lines = text.splitlines()
    assert lines[0] == HEAD
    rows = []
    for line in lines[1:]:
        found = ROW.fullmatch(line)
        assert found, line
        rows.append(list(found.groups()))
    return rows


@pytest.mark.parametrize("mode", ["msg", "tagged"])
@pytest.mark.parametrize("kind", ["-p weft -e rdm", "-p weft -e msg", "-p cxi -e rdm"])
def test_both_sides_print_a_row_for_each_size(kind: str, mode: str) -> None:
    """fi_pingpong(1) "Defaults", "Output": six sizes; messages sent, answers, bytes of both directions."""
    options = [*kind.split(), "-m", mode, "-c", "-I", "20"]
    with Server(*options) as server:
        code, out, err = client("-P", server.port, *options)
        assert (code, err) == (0, "")
        server_code, server_out, _ = server.end()
        assert server_code == 0
    for text in (out, server_out):
        assert [row[:4] for row in table(text)] == [
            ["64", "20", "=20", "2.5k"],
            ["256", "20", "=20", "10k"],
            ["1k", "20", "=20", "40k"],
            ["4k", "20", "=20", "160k"],
            ["64k", "20", "=20", "2.5m"],
            ["1m", "20", "=20", "40m"],
        ]


def test_figures_of_a_row_are_those_of_its_time() -> None:
    """fi_pingpong(1) "Output": throughput of all bytes, time of a message one way, messages a second."""
    line = pingpong.line(_pingpong.Result(4096, 1500, 1500, 0.5))
    assert line == "4k      1k      =1k      11m         0.50s     24.58     166.67       0.01"
    lost = pingpong.line(_pingpong.Result(0, 10, 9, 0.001))
    assert lost.split()[:4] == ["0", "10", "9", "0"]


def test_one_size_and_all_sizes() -> None:
    for size, sizes in (("100", ["100"]), ("0", ["0"])):
        with Server("-S", size) as server:
            code, out, _ = client("-S", size, "-P", server.port)
            assert code == 0
            assert [row[0] for row in table(out)] == sizes
            assert table(out)[0][1] == "10"  # round trips without -I
    with Server("-S", "all", "-I", "1") as server:
        code, out, _ = client("-S", "all", "-I", "1", "-P", server.port)
    assert code == 0
    sizes = [row[0] for row in table(out)]
    assert sizes[:9] == ["0", "1", "2", "3", "4", "6", "8", "12", "16"]
    assert sizes[-4:] == ["2m", "3m", "4m", "6m"]


def test_client_may_have_a_port_and_a_domain_of_its_own() -> None:
    own = str(free_port())
    with Server("-d", "weft0") as server:
        assert client("-B", own, "-P", server.port, "-d", "weft0")[0] == 0
        _, _, said = server.end()
    assert "domain weft0" in said


def test_control_connection_over_ipv6() -> None:
    with Server("-6", "-S", "8") as server:
        assert client("-6", "-P", server.port, "-S", "8", host="::1")[0] == 0


@pytest.mark.parametrize(
    ("there", "here", "name"),
    [("-S 64", "-S 128", "sizes"), ("-I 3", "-I 4", "iterations"), ("-m tagged", "-m msg", "mode")],
)
def test_sides_with_different_options_are_told(there: str, here: str, name: str) -> None:
    """fi_pingpong(1) "Options": both sides get the same options."""
    with Server(*there.split()) as server:
        code, out, err = client(*here.split(), "-P", server.port)
        assert (code, out) == (2, "")
        assert f"the server was given another {name}" in err
        code, out, err = server.end()
        assert (code, out) == (1, "")
        assert f"the client was given another {name}" in err


def test_bytes_that_came_wrong_end_a_test_with_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """fi_pingpong(1) "Test Options": -c checks the data."""
    plan = _pingpong.Plan("weft", "rdm", "msg", (1000,), 5, True)
    right = _pingpong._Patterns.of

    def wrong(patterns: Any, number: int, of_client: bool) -> Any:
        found = right(patterns, number, of_client).copy()
        if of_client and number == 3:
            found[-1] ^= 1
        return found

    with Server("-p", "weft", "-S", "1000", "-I", "5", "-c") as server:
        connection = _pingpong.call("localhost", int(server.port), None, socket.AF_INET)
        monkeypatch.setattr(_pingpong._Patterns, "of", wrong)
        with pytest.raises(_pingpong.PeerGone, match="message 3 of 1000 B came with other bytes"):
            list(_pingpong.run(plan, None, connection, True, lambda text: None))
        code, out, err = server.end()
    assert (code, out) == (1, "")
    assert "message 3 of 1000 B came with other bytes" in err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_client_is_told_of_a_server_that_ended(number: signal.Signals) -> None:
    options = ["-S", "65536", "-I", "100000000"]
    with Server(*options) as server:
        here = subprocess.Popen(
            [*COMMAND, "-v", *options, "-P", server.port, "localhost"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert here.stderr is not None
            while "65536 B, 100000000 times" not in (line := here.stderr.readline()):
                assert line
            server.process.send_signal(number)
            out, err = communicate(here, S)
        finally:
            here.kill()
            here.wait()
    assert (here.returncode, out) == (1, "")
    assert "Traceback" not in err


PLAN = {"provider": None, "ep_type": "rdm", "mode": "msg", "sizes": [8], "iterations": 10, "check": False}


@pytest.mark.parametrize(
    "lines",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"7\n",
        b"[]\n",
        b'{"plan": 7}\n',
        json.dumps({"plan": PLAN}).encode() + b'\n{"address": 7}\n',
        json.dumps({"plan": PLAN}).encode() + b'\n{"address": "0xnothing"}\n',
    ],
)
def test_stranger_on_the_control_connection_ends_the_server_with_a_message(lines: bytes) -> None:
    with Server("-S", "8") as server, socket.create_connection(("localhost", int(server.port))) as stranger:
        stranger.sendall(lines)
        code, out, err = server.end()
    assert (code, out) == (1, "")
    assert "the other side is not weft pingpong" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("-e stream", ("-e", "'stream'", "known: rdm, msg, dgram")),
        ("-m both", ("-m", "'both'", "known: msg, tagged")),
        ("-S some", ("-S", "'some'")),
        ("-S 2147483648", ("-S", "at most 1073741824")),
        ("-B 0", ("-B", "1 to 65535")),
        ("-P 70000 localhost", ("-P", "1 to 65535")),
        ("-I 0", ("-I", "1")),
    ],
)
def test_wrong_option_is_answered_with_what_to_do(command: Command, arguments: str, said: tuple[str, ...]) -> None:
    ended = command("pingpong", *arguments.split())
    assert ended.code == 2
    for text in said:
        assert text in ended.err


def test_client_without_a_server_is_told_what_to_start(command: Command) -> None:
    ended = command("pingpong", "-P", str(free_port()), "localhost")
    assert ended.code == 2
    assert "no server at localhost" in ended.err
    assert "first `weft pingpong`" in ended.err


def test_server_of_a_port_that_is_taken_is_refused(command: Command) -> None:
    with socket.create_server(("", 0)) as other:
        ended = command("pingpong", "-B", str(other.getsockname()[1]))
    assert ended.code == 2
    assert "try: another port" in ended.err


@pytest.mark.parametrize("options", ["-e dgram", "-p nothing", "-d weft9"])
def test_what_no_provider_offers_is_refused_before_the_other_side_is_waited_for(command: Command, options: str) -> None:
    ended = command("pingpong", *options.split())
    assert ended.code == 1
    assert "ENODATA" in ended.err


def test_patterns_differ_between_messages_and_directions() -> None:
    patterns = _pingpong._Patterns(1)
    found = [bytes(patterns.of(n, of_client)) for n in range(100) for of_client in (True, False)]
    assert len(set(found)) == len(found)


# ---- two hosts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def wire(seed: int) -> Iterator[Wire]:
    with Wire(seed) as made:
        yield made


def between(wire: Wire, options: list[str], env: dict[str, dict[str, str]]) -> tuple[tuple[int, str, str], ...]:
    with Server(*options, before=wire.inside("a"), **env["a"]) as server:
        here = client("-P", server.port, *options, host=wire.ip["a"], before=wire.inside("b"), **env["b"])
        return here, server.end()


@pytest.mark.parametrize("kind", ["-e rdm", "-e msg"])
def test_two_hosts_by_the_tcp_link(wire: Wire, kind: str) -> None:
    options = [*kind.split(), "-c", "-I", "5", "-m", "tagged"]
    env = {"WEFT_SECRET": SECRET, **PATIENT}
    (code, out, err), (server_code, _, server_err) = between(wire, options, {"a": env, "b": env})
    assert (code, err) == (0, ""), server_err
    assert server_code == 0
    assert [row[0] for row in table(out)] == ["64", "256", "1k", "4k", "64k", "1m"]


def test_two_hosts_without_a_secret_are_told_how_to_make_one(wire: Wire) -> None:
    env = {"WEFT_SECRET": "", "WEFT_SECRET_FILE": ""}
    (code, out, err), (server_code, server_out, server_err) = between(wire, [], {"a": env, "b": env})
    assert (out, server_out) == ("", "")
    assert code != 0
    assert server_code != 0
    assert "two hosts need a common secret" in err + server_err


def test_two_hosts_with_the_cxi_provider(wire: Wire, tmp_path: Path) -> None:
    """The hosts' NIC addresses differ, and WEFT_CXI_HOSTS says where each is."""
    places = ",".join(f"{NIC[h]:#x}={wire.ip[h]}:7411" for h in "ab")
    env = {
        h: {
            **PATIENT,
            "WEFT_LISTEN": f"tcp://{wire.ip[h]}:7411",
            "WEFT_SECRET": SECRET,
            "WEFT_CXI_HOSTS": places,
            "WEFT_CXI_REGISTRY": str(tmp_path / h),
        }
        for h in "ab"
    }
    set_nic = "import sys; from weft.providers.cxi import device; device.set_values('cxi0', nic=int(sys.argv[1]))"
    for h in "ab":
        done = patience.run([sys.executable, "-c", set_nic, str(NIC[h])], env={**os.environ, **env[h]}, timeout=60)
        assert done.returncode == 0
    (code, out, err), (server_code, _, server_err) = between(wire, ["-p", "cxi", "-c", "-I", "5"], env)
    assert (code, err) == (0, ""), server_err
    assert server_code == 0
    assert [row[0] for row in table(out)] == ["64", "256", "1k", "4k", "64k", "1m"]


def test_cxi_provider_between_hosts_without_a_list_of_nics_is_told(wire: Wire) -> None:
    env = {"WEFT_SECRET": SECRET, **PATIENT}
    (code, _, err), (server_code, _, server_err) = between(wire, ["-p", "cxi"], {"a": env, "b": env})
    assert code != 0
    assert server_code != 0
    assert "WEFT_CXI_HOSTS" in err + server_err


def test_failed_operation_is_the_exit_status(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise fi.ConnectionReset("the peer is gone")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(_pingpong, "run", fail)
        ended = command("pingpong", "-P", str(listener.getsockname()[1]), "localhost")
    assert ended.code == 1
    assert "the peer is gone" in ended.err
