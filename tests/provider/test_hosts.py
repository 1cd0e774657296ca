"""C programs on two hosts (network namespaces): over tcp links, with a secret."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.procs.hosts import Wire
from tests.provider import support
from tests.provider.far import Far, introduce
from tests.provider.two_hosts import PORT, SECRET, environment

pytest.importorskip("nacl")

# The connection ends, or nobody listens when it is made again.
KILLED = {"weft": {errno.ECONNRESET, errno.ECONNREFUSED}, "cxi": {errno.ENOTCONN, errno.EHOSTUNREACH}}
UNREACHABLE = {"weft": {errno.ETIMEDOUT, errno.EHOSTUNREACH}, "cxi": {errno.EHOSTUNREACH}}


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire() as made:
        yield made


@pytest.fixture
def pair(wire: Wire, programs: Path, tmp_path: Path, provider: str, request: pytest.FixtureRequest) -> Iterator[object]:
    program = support.compiled("far", programs)
    made: list[Far] = []

    def start(end: str, a: dict[str, str] | None = None, b: dict[str, str] | None = None) -> list[Far]:
        for host, more in (("a", a or {}), ("b", b or {})):
            env = environment(wire, host, tmp_path, provider, **more)
            side = "0" if host == "a" else "1"
            made.append(Far([*wire.inside(host), str(program), provider, side, end], env, tmp_path / host / "stderr"))
        return made

    yield start
    for one in made:
        one.close()


def test_messages_rma_and_atomics_between_hosts(pair, provider: str) -> None:  # type: ignore[no-untyped-def]
    a, b = pair("ends")
    names = introduce(a, b)
    if provider == "weft":
        assert names[0].startswith(f"weft://10.77.0.1:{PORT}/")
    first = a.ended()
    assert first == "40 messages each way\nfi_read: the same\nfi_fetch_atomic: 10\nclosed\n", first + a.said()
    assert b.ended() == "40 messages each way\nwindow: the same, 15\nclosed\n"
    assert (a.process.returncode, b.process.returncode) == (0, 0)


def parted(a: Far, b: Far) -> None:
    """Both have exchanged messages, and a waits for a word to send again."""
    introduce(a, b)
    for one in (a, b):
        while (line := one.line()) != "ready\n":
            assert line, one.said()


LOST = r"a send to the dead: error (\d+)\nclosed\n"


def test_send_to_a_killed_peer_of_another_host_fails(pair, provider: str) -> None:  # type: ignore[no-untyped-def]
    a, b = pair("lost")
    parted(a, b)
    b.process.kill()
    b.process.wait()
    a.tell("go\n")
    found = re.fullmatch(LOST, a.ended())
    assert found, a.said()
    assert int(found[1]) in KILLED[provider]


def test_send_to_an_unreachable_host_fails_after_the_timeout(pair, wire: Wire, provider: str) -> None:  # type: ignore[no-untyped-def]
    timeout_s = 8  # the default is 5
    a, b = pair("lost", a={"WEFT_TCP_TIMEOUT": str(timeout_s)})
    parted(a, b)
    wire.behave(loss=1)
    a.tell("go\n")
    found = re.fullmatch(LOST, a.ended())
    assert found, a.said()
    assert int(found[1]) in UNREACHABLE[provider]
    seconds = re.search(r"seconds ([\d.]+)", a.said())
    assert seconds
    assert float(seconds[1]) > 6


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
    env = {host: environment(wire, host, tmp_path, provider) for host in "ab"}
    support.pingpong(
        provider,
        kind,
        3,
        server=(wire.inside("a"), [], env["a"]),
        client=(wire.inside("b"), [wire.ip["a"]], env["b"]),
    )


def test_fi_pingpong_between_hosts_runs_as_the_page_says(wire: Wire, tmp_path: Path, provider: str) -> None:
    """docs/howto/c-programs.md: a file of the secret, `weft run --hosts`."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    more = {"WEFT_SECRET": "", "WEFT_SECRET_FILE": str(secret), "WEFT_LISTEN": ""}
    command = [sys.executable, "-m", "weft", "run", "-p", provider, "--hosts", ",".join(wire.ip.values()), "--"]
    ends = []
    for host, name in (("a", []), ("b", [wire.ip["a"]])):
        env = environment(wire, host, tmp_path, "weft", **more)
        del env["FI_PROVIDER_PATH"], env["FI_PROVIDER"]
        ends.append(([*wire.inside(host), *command], name, env))
    support.pingpong(provider, "rdm", 3, *ends)
