"""The policy helper is stopped: a program waits for a minute, hears which process to end, and goes on afterwards."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import patience
from tests.provider import support
from tests.provider.far import Far
from tests.provider.test_helper_dies import in_use
from tests.share.owner import stop


@contextlib.contextmanager
def program(programs: Path, tmp_path: Path, provider: str, queues: int = 2) -> Iterator[tuple[Far, dict[str, str]]]:
    """helper_late.c, which can hurry, with a helper of its own, and a service of so many completion queues."""
    (tmp_path / "run").mkdir(mode=0o700, exist_ok=True)
    variables = support.registry(tmp_path) | {"XDG_RUNTIME_DIR": str(tmp_path / "run")}
    env = support.environment(provider, FI_LOG_LEVEL="warn", **variables)
    if provider == "cxi":
        env |= support.of_service(env, eqs=queues)
    preloaded = {"LD_PRELOAD": str(support.compiled("libhurry", programs)), "HURRY": str(tmp_path / "hurry")}
    path = str(support.compiled("helper_late", programs))
    found = Far([path, provider], env | preloaded, tmp_path / "stderr")
    try:
        yield found, env
    finally:
        for one in support.helpers(tmp_path / "run"):
            os.kill(one, signal.SIGCONT)
        found.close()


@contextlib.contextmanager
def stopped(helper: int, tmp_path: Path, after: signal.Signals = signal.SIGCONT) -> Iterator[None]:
    """The helper is stopped, and the program hurries: a helper that runs has a minute for its answer."""
    hurry = tmp_path / "hurry"
    stop(helper)
    hurry.touch()
    yield
    hurry.unlink()
    os.kill(helper, after)


def answer(one: Far, line: str) -> str:
    one.tell(f"{line}\n")
    return one.line().rstrip()


@pytest.mark.parametrize("after", [signal.SIGCONT, signal.SIGKILL], ids=["continued", "killed"])
def test_program_goes_on_after_its_helper_was_stopped(
    programs: Path, tmp_path: Path, provider: str, after: signal.Signals
) -> None:
    """The helper that continues closes the objects of the connection that was given up first: two queues have room."""
    with program(programs, tmp_path, provider) as (one, env):
        assert one.line() == "open\n", one.said()
        (helper,) = support.helpers(tmp_path / "run")
        with stopped(helper, tmp_path, after):
            assert answer(one, "queue") == "fi_cq_open: Input/output error"
            assert "the policy helper has not answered for 60 s: is it stopped?" in one.said()
            assert f"end process {helper} by kill -9" in one.said()
        assert answer(one, "queue") == "fi_cq_open: no error", one.said()
        if provider == "cxi":
            assert answer(one, "queue") == "fi_cq_open: No space left on device"
            assert in_use(env)["eqs"] == 2
        one.tell("end\n")
        assert one.ended() == "closed\n", one.said()


def test_helper_that_takes_no_connection_is_named(
    programs: Path, tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with program(programs, tmp_path, provider) as (one, _), contextlib.ExitStack() as stack:
        assert one.line() == "open\n", one.said()
        (helper,) = support.helpers(tmp_path / "run")
        (path,) = (tmp_path / "run" / "weft").glob("policy-*.sock")
        monkeypatch.chdir(path.parent)  # the whole path is too long for an address
        with stopped(helper, tmp_path):
            full = 0
            while full != errno.EAGAIN:
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                full = client.connect_ex(path.name)
            assert answer(one, "queue") == "fi_cq_open: Input/output error"
            assert answer(one, "queue") == "fi_cq_open: Input/output error"
            assert "the policy helper has taken no connection for 60 s: is it stopped?" in one.said()
            assert f"-m weft.policyhost {path}" in one.said()
        stack.close()
        assert answer(one, "queue") == "fi_cq_open: no error", one.said()


def test_killed_program_holds_nothing_while_its_forked_child_lives(programs: Path, tmp_path: Path) -> None:
    with program(programs, tmp_path, "cxi") as (one, env):
        assert one.line() == "open\n", one.said()
        child = int(answer(one, "fork"))
        try:
            assert in_use(env)["eqs"] == 1
            one.process.kill()
            wait = patience.Patience(support.PROGRAM_S)
            while in_use(env):
                assert not wait.over
                time.sleep(0.01)
            assert patience.is_alive(child)
        finally:
            os.kill(child, signal.SIGKILL)
