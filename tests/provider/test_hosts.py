"""C programs on two hosts (network namespaces): over tcp links, with a secret."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import patience
from tests.procs.hosts import Wire
from tests.provider import support

pytest.importorskip("nacl")

SECRET = "one secret of two hosts, long enough"
NICS = {"a": 0x840, "b": 0x880}  # of cxi0 on each host
PORT = 7000


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire() as made:
        yield made


def environment(wire: Wire, host: str, folder: Path, provider: str, **more: str) -> dict[str, str]:
    """The environment on a host, with a policy helper and CXI devices of that host's own. An empty text: not set."""
    run = folder / host
    run.mkdir(mode=0o700)
    hosts = ",".join(f"{nic:#x}={wire.ip[h]}:{PORT}" for h, nic in NICS.items())
    env = support.environment(
        provider,
        XDG_RUNTIME_DIR=str(run),
        WEFT_CXI_REGISTRY=str(run / "registry"),
        FI_LOG_LEVEL="warn",
        **({"WEFT_CXI_HOSTS": hosts} if provider == "cxi" else {}),
        **{"WEFT_SECRET": SECRET, "WEFT_LISTEN": f"tcp://{wire.ip[host]}:{PORT}"} | more,
    )
    env = {name: value for name, value in env.items() if value}
    if provider == "cxi":
        bare = {name: value for name, value in env.items() if name != "WEFT_LISTEN"}
        command = [sys.executable, "-m", "weft", "device", "set", "cxi0", f"nic={NICS[host]:#x}"]
        done = patience.run(command, support.PROGRAM_S, env=bare)
        assert done.returncode == 0, done.stderr
    return env


class Far:
    """The program far.c on a host."""

    def __init__(
        self, wire: Wire, host: str, program: Path, folder: Path, provider: str, end: str, **more: str
    ) -> None:
        env = environment(wire, host, folder, provider, **more)
        self.err = open(folder / host / "stderr", "w+")  # noqa: SIM115  # closed by the program's end
        self.process = subprocess.Popen(
            [*wire.inside(host), str(program), provider, "0" if host == "a" else "1", end],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.err,
            text=True,
            env=env,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def ended(self) -> str:
        out, _ = patience.communicate(self.process, support.PROGRAM_S)
        return str(out)

    def said(self) -> str:
        self.err.seek(0)
        return self.err.read()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.err.close()


@pytest.fixture
def pair(wire: Wire, programs: Path, tmp_path: Path, provider: str, request: pytest.FixtureRequest) -> Iterator[object]:
    program = support.compiled("far", programs)
    made: list[Far] = []

    def start(end: str, a: dict[str, str] | None = None, b: dict[str, str] | None = None) -> list[Far]:
        for host, more in (("a", a or {}), ("b", b or {})):
            made.append(Far(wire, host, program, tmp_path, provider, end, **more))
        return made

    yield start
    for one in made:
        one.close()


def introduce(a: Far, b: Far) -> list[str]:
    """Each hears of the other's address; the addresses."""
    names = []
    for one, other in ((a, b), (b, a)):
        line = one.line()
        assert line.startswith("me "), one.said()
        names.append(line)
        other.tell(line[3:])
    return [bytes.fromhex(name.split()[1]).rstrip(b"\0").decode("latin-1") for name in names]


def test_messages_rma_and_atomics_between_hosts(pair, provider: str) -> None:  # type: ignore[no-untyped-def]
    a, b = pair("ends")
    names = introduce(a, b)
    if provider == "weft":
        assert names[0].startswith(f"weft://10.77.0.1:{PORT}/")
    first = a.ended()
    assert first == "40 messages each way\nfi_read: the same\nfi_fetch_atomic: 10\nclosed\n", first + a.said()
    assert b.ended() == "40 messages each way\nwindow: the same, 15\nclosed\n"
    assert (a.process.returncode, b.process.returncode) == (0, 0)


def test_send_to_a_killed_peer_of_another_host_fails(pair) -> None:  # type: ignore[no-untyped-def]
    a, b = pair("killed")
    introduce(a, b)
    for one in (a, b):
        while (line := one.line()) != "ready\n":
            assert line, one.said()
    b.process.kill()
    b.process.wait()
    a.tell("go\n")
    assert a.ended() == "a send to the dead: an error\nclosed\n"


REFUSED = {"weft": "error 13", "cxi": "error 113"}  # EACCES; EHOSTUNREACH, as cxi counts an unreachable NIC


def test_host_with_another_secret_is_refused(pair, provider: str) -> None:  # type: ignore[no-untyped-def]
    a, b = pair("ends", b={"WEFT_SECRET": "another secret, which is long enough"})
    a.tell(b.line()[3:])  # b itself calls nobody
    out = a.ended()
    assert REFUSED[provider] in out, out + a.said()
    assert "secret" in a.said()


def test_without_a_secret_a_program_does_not_listen(pair) -> None:  # type: ignore[no-untyped-def]
    a, b = pair("ends", a={"WEFT_SECRET": ""})
    assert b.line().startswith("me ")
    assert "fi_domain(fabric, info, &domain, NULL): -13" in a.ended()
    assert "without a secret anybody could call" in a.said()


def test_without_a_secret_a_program_does_not_call(pair, provider: str) -> None:  # type: ignore[no-untyped-def]
    a, b = pair("ends", a={"WEFT_SECRET": "", "WEFT_LISTEN": ""})
    line = b.line()
    assert line.startswith("me "), b.said()
    assert a.line().startswith("me "), a.said()
    a.tell(line[3:])
    out = a.ended()
    assert REFUSED[provider] in out, out + a.said()
    assert "WEFT_SECRET" in a.said()


@pytest.mark.parametrize(("provider", "kind"), [("cxi", "rdm"), ("weft", "rdm"), ("weft", "msg")])
def test_fi_pingpong_between_hosts_moves_and_checks_all_sizes(
    wire: Wire, tmp_path: Path, provider: str, kind: str
) -> None:
    tool = support.need_tool("fi_pingpong")
    env = {host: environment(wire, host, tmp_path, provider) for host in "ab"}
    common = [tool, "-p", provider, "-e", kind, "-c", "-I", "3", "-S", "all"]
    with subprocess.Popen([*wire.inside("a"), *common], env=env["a"], stdout=subprocess.PIPE, text=True) as server:
        try:
            for _ in range(50):  # until the server listens
                client = patience.run([*wire.inside("b"), *common, wire.ip["a"]], support.PROGRAM_S, env=env["b"])
                if client.returncode == 0 or server.poll() is not None:
                    break
            out, _ = patience.communicate(server, support.PROGRAM_S)
        finally:
            server.kill()
    assert client.returncode == 0, client.stderr
    assert server.returncode == 0
    assert {"64", "1k", "1m", "6m"} <= {line.split()[0] for line in out.splitlines() if line.split()}
