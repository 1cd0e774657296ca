"""The policy helper is killed while a program uses it: the next question starts another helper, which has what the last
one had; what it does not get again is refused with the reason."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import patience
from tests.provider import support
from tests.provider.far import Far
from tests.provider.test_collective_cxi import Members, groups_of

STEPS = [
    "fi_getinfo",
    "fi_domain",
    "fi_cq_open",
    "a second key",
    "look the keys up",
    "fi_enable",
    "a peer with a key",
    "a message",
    "close",
    "open again",
    "fi_close of the domain",
]
SAID = """keys of VNI 7 and 9
a third key: No space left on device
peers 0, 1
a key that a peer uses: Device or resource busy
received hello
closed
"""


def kill_helpers(run: Path) -> list[int]:
    """Kill the helpers whose sockets are in a folder, and wait for their end."""
    found = support.helpers(run)
    for one in found:
        os.kill(one, signal.SIGKILL)
    wait = patience.Patience(support.PROGRAM_S)
    while set(found) & set(support.helpers(run)):  # a program that waits for an answer starts another at once
        assert not wait.over
        time.sleep(0.01)
    return found


@contextlib.contextmanager
def program(
    programs: Path, tmp_path: Path, provider: str, *more: str, name: str = "helper_dies"
) -> Iterator[tuple[Far, dict[str, str]]]:
    """A program with a helper of its own; on cxi it gets a service."""
    (tmp_path / "run").mkdir(mode=0o700)
    variables = support.registry(tmp_path) | {"XDG_RUNTIME_DIR": str(tmp_path / "run")}
    env = support.environment(provider, support.MPICH, FI_LOG_LEVEL="warn", **variables)
    service = "0"
    if provider == "cxi":
        command = [env["WEFT_PYTHON"], "-m", "weft", "service", "create", "--vni", "7-11"]
        service = patience.run(command, support.PROGRAM_S, check=True, env=env).stdout.strip()
    path = str(support.compiled(name, programs, support.MPICH))
    found = Far([path, provider, service, *more], env, tmp_path / "stderr")
    try:
        yield found, env
    finally:
        found.close()


def until(one: Far, step: str) -> str:
    """Let the program go on to a step; what it has said besides the steps."""
    said = ""
    while (line := one.line()) != f"{step}\n":
        assert line, said + one.said()
        if line.rstrip() in STEPS:
            one.tell("\n")
        else:
            said += line
    return said


@pytest.mark.parametrize("step", STEPS)
def test_program_goes_on_after_its_helper_was_killed(programs: Path, tmp_path: Path, provider: str, step: str) -> None:
    with program(programs, tmp_path, provider) as (one, _):
        said = until(one, step)
        assert bool(kill_helpers(tmp_path / "run")) == (step != STEPS[0])
        one.tell("\n" * len(STEPS))
        said += "".join(line for line in one.ended().splitlines(True) if line.rstrip() not in STEPS)
        assert said == SAID, one.said()


def test_program_goes_on_when_every_helper_is_killed(programs: Path, tmp_path: Path, provider: str) -> None:
    with program(programs, tmp_path, provider) as (one, _):
        said = ""
        for step in STEPS:
            said += until(one, step)
            kill_helpers(tmp_path / "run")
            one.tell("\n")
        assert said + one.ended() == SAID, one.said()


@pytest.mark.parametrize("kills", [False, True], ids=["one helper", "five helpers"])
def test_peers_with_keys_keep_their_numbers(
    programs: Path, tmp_path: Path, provider: str, seed: int, kills: bool
) -> None:
    with program(programs, tmp_path, provider, str(seed % 2**31), name="keys_many") as (one, _):
        for _ in range(5):
            assert one.line() == "a hundred\n", one.said()
            if kills:
                kill_helpers(tmp_path / "run")
            one.tell("\n")
        assert one.ended() == "closed\n", one.said()


def in_use(env: dict[str, str]) -> dict[str, int]:
    """Resources of cxi0 that are in use."""
    text = "from weft.providers.cxi import resources as r; import json; print(json.dumps(r.usage('cxi0')))"
    out = patience.run([env["WEFT_PYTHON"], "-c", text], support.PROGRAM_S, check=True, env=env).stdout
    found: dict[str, int] = {}
    for kind, number in re.findall(r'"(\w+)": (\d+)', out):
        found[kind] = found.get(kind, 0) + int(number)
    return {kind: number for kind, number in found.items() if number}


def test_next_helper_takes_the_same_resources(programs: Path, tmp_path: Path) -> None:
    with program(programs, tmp_path, "cxi") as (one, env):
        until(one, "close")
        before = in_use(env)
        assert before["eqs"] == 2
        kill_helpers(tmp_path / "run")
        one.tell("\n")
        until(one, "open again")  # nothing was asked: nobody starts a helper to close
        assert support.helpers(tmp_path / "run") == []
        one.tell("\n")
        until(one, "fi_close of the domain")
        assert len(support.helpers(tmp_path / "run")) == 1
        assert "eqs" not in in_use(env)
        one.tell("\n")
        assert one.ended() == "closed\n"
        assert in_use(env) == {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [(["down", "cxi0"], "cxi0"), (["set", "cxi0", "nic=0x900"], "the configuration has changed meanwhile")],
    ids=["down", "changed"],
)
def test_what_a_new_helper_does_not_open_is_lost_with_the_reason(
    programs: Path, tmp_path: Path, change: list[str], reason: str
) -> None:
    with program(programs, tmp_path, "cxi") as (one, env):
        until(one, "a second key")
        kill_helpers(tmp_path / "run")
        done = patience.run([env["WEFT_PYTHON"], "-m", "weft", "device", *change], support.PROGRAM_S, env=env)
        assert done.returncode == 0, done.stderr
        one.tell("\n")
        out = one.ended()
        assert "-5 (Input/output error)" in out, out + one.said()
        assert "a new one does not open what this process had" in one.said()
        assert reason in one.said()


@contextlib.contextmanager
def joining(programs: Path, tmp_path: Path, **more: str) -> Iterator[Members]:
    """Two processes that join a group with a multicast address, and close it when member 0 reads a line."""
    run = tmp_path / "run"
    run.mkdir(mode=0o700, exist_ok=True)
    more |= support.registry(tmp_path) | {"XDG_RUNTIME_DIR": str(run)}
    env = support.environment("cxi", FI_LOG_LEVEL="warn", FI_LOG_PROV="cxi", **more)
    command = [str(support.compiled("collective_cxi", programs)), "cxi", "2", "address", "1"]
    log = tmp_path / f"stderr{len(list(tmp_path.glob('stderr*')))}"
    found = Members(command, env, log, start_new_session=True)
    try:
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(found.process.pid, signal.SIGKILL)
        found.close()


def test_multicast_address_outlives_its_helper(programs: Path, tmp_path: Path) -> None:
    """Another join does not free the address, and fi_close gives it back."""
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(2):
            made.append(stack.enter_context(joining(programs, tmp_path)))
            assert made[-1].lines() == ["joined: 1\n"]
            assert groups_of(tmp_path) == number + 1
            kill_helpers(tmp_path / "run")
        for number, one in enumerate(made):
            one.tell("\n")
            assert one.ended() == "closed\n", one.said()
            assert groups_of(tmp_path) == 1 - number


def test_fabric_manager_is_asked_again_when_the_helper_that_asked_is_killed(programs: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        manager.settimeout(support.PROGRAM_S * patience.slowness())
        variables = {
            "FABRIC_MGR_URL": f"http://127.0.0.1:{manager.getsockname()[1]}/",
            "MCAST_TOKEN": "t",
            "JOB_ID": "j",
        }
        more = {f"FI_CXI_COLL_{name}": value for name, value in variables.items()}
        one = stack.enter_context(joining(programs, tmp_path, **more))
        first, _ = manager.accept()
        kill_helpers(tmp_path / "run")
        second, _ = manager.accept()
        for open_one in (manager, first, second):
            open_one.close()
        assert "prov_errno 2054" in "".join(one.lines()), one.said()
        one.tell("\n")
        assert one.ended() == "closed\n", one.said()
