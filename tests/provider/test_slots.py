"""`weft run --hosts`: each program of a host gets a place at which the programs of the other hosts reach it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import patience
from tests.provider import support

Env = dict[str, str]
SECRET = "of all hosts, long enough"
HERE = "127.1.{}.{}".format(*divmod(os.getpid() % 65536, 256))  # ports of its own: other runs have slots, too
PROGRAM = "import json, os, sys; print(json.dumps(dict(os.environ)), flush=True); sys.stdin.readline()"


@pytest.fixture
def env(tmp_path: Path) -> Env:
    support.provider_files()
    found = {name: value for name, value in os.environ.items() if not name.startswith(("FI_", "WEFT_"))}
    return found | support.registry(tmp_path) | {"WEFT_SECRET": SECRET}


def command(hosts: str, *more: str, provider: str = "cxi") -> list[str]:
    return [sys.executable, "-m", "weft", "run", "-p", provider, "--hosts", hosts, *more]


Start = Callable[..., tuple[Env, "subprocess.Popen[str]"]]


@pytest.fixture
def start(env: Env) -> Iterator[Start]:
    """Starts a program that waits; returns its variables, and the process."""
    running: list[subprocess.Popen[str]] = []

    def begin(*more: str, hosts: str = HERE, provider: str = "cxi") -> tuple[Env, subprocess.Popen[str]]:
        words = command(hosts, *more, "--", sys.executable, "-c", PROGRAM, provider=provider)
        one = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(one)
        assert one.stdout is not None
        return json.loads(one.stdout.readline()), one

    yield begin
    for one in running:
        one.kill()
        one.communicate()


def refused(env: Env, hosts: str, provider: str = "cxi") -> str:
    done = patience.run(command(hosts, "--", "true", provider=provider), support.PROGRAM_S, env=env)
    assert done.returncode != 0
    return done.stderr


def nics(of: Env) -> dict[int, str]:
    pairs = (entry.split("=") for entry in of["WEFT_CXI_HOSTS"].split(","))
    return {int(nic, 0): place for nic, place in pairs}


def own_nic(of: Env) -> int:
    """The address of the program's device, as its own registry has it."""
    done = patience.run([sys.executable, "-m", "weft", "device", "get", "cxi0", "nic_addr"], support.PROGRAM_S, env=of)
    return int(done.stdout, 0)


def test_programs_of_a_job_have_its_vni_and_a_service_each(start: Start) -> None:
    for _ in range(2):
        found, one = start("--vni", "1024", "--limit", "eqs=3")
        assert found["SLINGSHOT_VNIS"] == "1024"
        listed = patience.run([sys.executable, "-m", "weft", "service", "list"], support.PROGRAM_S, env=found).stdout
        row = next(line.split() for line in listed.splitlines() if "1024" in line)
        assert row[:2] == ["cxi0", found["SLINGSHOT_SVC_IDS"]]
        assert "/slots/" in found["WEFT_CXI_REGISTRY"]
        assert one.poll() is None


def test_programs_of_a_host_have_each_a_nic_and_a_port(start: Start) -> None:
    both = [start()[0] for _ in range(2)]
    places = [one["WEFT_LISTEN"].removeprefix("tcp://") for one in both]
    assert len(set(places)) == 2
    assert both[0]["WEFT_CXI_HOSTS"] == both[1]["WEFT_CXI_HOSTS"]
    assert [nics(one)[own_nic(one)] for one in both] == places


def test_hosts_have_nics_of_their_own(start: Start) -> None:
    found = nics(start(hosts=f"10.255.255.1,{HERE},fd77::9")[0])
    assert len(found) == 3 * 64
    assert {place.rpartition(":")[0] for place in found.values()} == {"10.255.255.1", HERE, "[fd77::9]"}


def test_host_of_loopback_alone_listens_on_all_networks(start: Start) -> None:
    """Debian's hosts call themselves 127.0.1.1; others do not reach this address."""
    assert start(hosts="127.0.1.1,10.255.255.1")[0]["WEFT_LISTEN"].startswith("tcp://0.0.0.0:")
    assert start(hosts="127.0.1.1")[0]["WEFT_LISTEN"].startswith("tcp://127.0.1.1:")


@pytest.mark.parametrize("more", [[], ["--explain"]])
def test_place_of_a_killed_program_is_free(start: Start, more: list[str]) -> None:
    first, process = start(*more)
    if more:  # `weft run` itself is killed, and the program goes on
        child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[-1])
        process.kill()
        process.wait()
        assert start()[0]["WEFT_LISTEN"] != first["WEFT_LISTEN"]
        os.kill(child, signal.SIGKILL)
        patience.wait_for_end(child)
    else:
        process.kill()
        process.wait()
    assert start()[0]["WEFT_LISTEN"] == first["WEFT_LISTEN"]


def test_port_of_another_program_is_left_out(start: Start) -> None:
    first, process = start()
    process.kill()
    process.wait()
    host, _, port = first["WEFT_LISTEN"].removeprefix("tcp://").rpartition(":")
    with socket.create_server((host, int(port))):
        assert start()[0]["WEFT_LISTEN"] != first["WEFT_LISTEN"]
    assert start()[0]["WEFT_LISTEN"] == first["WEFT_LISTEN"]


def test_place_of_another_users_program_is_taken_before_it_listens(start: Start, env: Env, tmp_path: Path) -> None:
    """Another user's locks are elsewhere: here, with another registry."""
    first, _ = start()
    env["WEFT_CXI_REGISTRY"] = str(tmp_path / "another")
    second, process = start()
    assert second["WEFT_LISTEN"] != first["WEFT_LISTEN"]
    process.kill()
    process.wait()
    assert start()[0]["WEFT_LISTEN"] == second["WEFT_LISTEN"]


def test_program_without_a_place_is_refused(start: Start, env: Env) -> None:
    slots = Path(start()[0]["WEFT_CXI_REGISTRY"]).parent
    with contextlib.ExitStack() as held:
        for n in range(64):
            file = held.enter_context(open(slots / f"{n}.lock", "w"))
            with contextlib.suppress(BlockingIOError):  # the program's own
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert "no slot of this host is free" in refused(env, HERE)
    assert patience.run(command(HERE, "--", "true"), support.PROGRAM_S, env=env).returncode == 0


def test_place_has_the_hosts_services_and_leaves_its_devices(start: Start, env: Env) -> None:
    number = support.service(env, 7)
    before = Path(env["WEFT_CXI_REGISTRY"], "registry.json").read_text()
    one, _ = start(hosts=f"10.255.255.1,{HERE}")
    assert own_nic(one) != own_nic(env)
    listed = [sys.executable, "-m", "weft", "service", "list", "--json"]
    lines = patience.run(listed, support.PROGRAM_S, env=one).stdout.splitlines()
    assert int(number) in [json.loads(line)["id"] for line in lines]
    assert Path(env["WEFT_CXI_REGISTRY"], "registry.json").read_text() == before


def test_host_without_a_device_that_is_up_is_refused(env: Env) -> None:
    patience.run([sys.executable, "-m", "weft", "device", "down", "cxi0"], support.PROGRAM_S, check=True, env=env)
    assert "no device is up" in refused(env, HERE)


def test_without_a_secret_hosts_are_refused(env: Env, provider: str) -> None:
    del env["WEFT_SECRET"]
    assert "two hosts need a common secret" in refused(env, HERE, provider)


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ("10.255.255.1,10.255.255.2", "this host is none of them"),
        ("127.0.0.1,127.0.0.2", "127.0.0.1 and 127.0.0.2 are one host"),
        ("10.255.255.1,127.0.0.1,10.255.255.1", "10.255.255.1 and 10.255.255.1 are one host"),
        ("no-such-host.invalid,127.0.0.1", "no-such-host.invalid"),
        ("127.0.0.1,,", "a name is empty"),
        ("", "a name is empty"),
    ],
)
def test_list_without_this_host_once_is_refused(env: Env, provider: str, hosts: str, why: str) -> None:
    assert why in refused(env, hosts, provider)


def test_more_hosts_than_the_list_of_nics_holds_are_refused(env: Env) -> None:
    hosts = ",".join([HERE, *(f"10.0.0.{n}" for n in range(1, 65))])
    assert "--hosts has 65 hosts" in refused(env, hosts)


def test_programs_of_weft_listen_at_any_port(start: Start) -> None:
    one, _ = start(hosts=f"{HERE},10.255.255.1", provider="weft")
    assert one["WEFT_LISTEN"] == "tcp://0.0.0.0:0"
    assert "WEFT_CXI_HOSTS" not in one
