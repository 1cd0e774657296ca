"""`weft top`: this user's processes that use Weft."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
from typing import Any

import pytest
from tests.observe import program
from tests.patience import Patience, run
from tests.procs.children import Child
from tests.tools.conftest import Command

WEFT = [sys.executable, "-m", "weft.tools.cli"]
WAIT_S = 60.0


def look(*arguments: str) -> dict[str, Any]:
    found = run([*WEFT, "top", "--once", "--json", *arguments], WAIT_S)
    assert found.returncode == 0, found.stderr
    said: dict[str, Any] = json.loads(found.stdout)
    return said


@pytest.mark.parametrize("provider", ["weft", "cxi"])
def test_once_as_json_has_state_and_rates(provider: str) -> None:
    with Child() as child:
        child.call(program.talk, provider)
        child.call(program.send, 3)
        (process,) = look("--pid", str(child.pid))["processes"]
        assert process["pid"] == child.pid
        assert process["state"] == "live"
        assert "tests.procs.peer" in process["command"]
        (ep,) = process["view"]["endpoints"]
        assert ep["counters"] == {"send": {"value": 3, "errors": 0}}
        assert ep["receive"]["unexpected"] == 3
        assert process["rates"]["seconds"] > 0
        assert process["rates"]["counters"] == [{"endpoint": ep["index"], "counter": "send", "rate": 0.0}]


def test_once_is_plain_text_in_a_pipe() -> None:
    with Child() as child:
        child.call(program.talk)
        found = run([*WEFT, "top", "--once", "--pid", str(child.pid)], WAIT_S)
    assert found.returncode == 0
    assert "\x1b" not in found.stdout
    for title in ("processes", "endpoints, sending", "endpoints, receiving", "completion queues", "counters"):
        assert title in found.stdout
    assert f" {child.pid} " in found.stdout


def test_nobody_there_is_said(command: Command) -> None:
    ended = command("top", "--once", "--pid", str(2**22 + 1))
    assert ended.code == 0
    assert "No process of this user on this host uses Weft." in ended.out


def test_devices_have_their_packets() -> None:
    with Child() as child:
        child.call(program.talk, "cxi")
        child.call(program.send, 10)
        (nic,) = [one for one in look()["nics"] if one["name"] == "cxi0"]
        assert nic["up"]
        assert nic["sent"] >= 10


def test_looking_makes_no_registry(tmp_path: Any) -> None:
    folder = tmp_path / "cxi"
    found = run([*WEFT, "top", "--once"], WAIT_S, env={**os.environ, "WEFT_CXI_REGISTRY": str(folder)})
    assert found.returncode == 0
    assert not folder.exists()


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "0.01"])
def test_interval_is_checked(command: Command, interval: str) -> None:
    ended = command("top", "--once", "--interval", interval)
    assert ended.code == 2
    assert "rule: at least 0.1 s" in ended.err


def test_stopped_process_is_said_to_be_stale() -> None:
    with (
        Child() as child,
        subprocess.Popen(
            [*WEFT, "top", "--json", "--interval", "0.1", "--pid", str(child.pid)], stdout=subprocess.PIPE, text=True
        ) as top,
    ):
        assert top.stdout is not None
        child.call(program.talk)
        patience, states = Patience(WAIT_S), ["live", "stale", "live"]
        for line in top.stdout:
            assert not patience.over
            processes = json.loads(line)["processes"]
            if [one["state"] for one in processes] != states[:1]:
                continue
            states.pop(0)
            if not states:
                break
            os.kill(child.pid, signal.SIGSTOP if states[0] == "stale" else signal.SIGCONT)
        top.send_signal(signal.SIGINT)
        assert top.wait() == 130


def test_terminal_shows_changes_until_interrupted() -> None:
    terminal, theirs = pty.openpty()
    with Child() as child:
        child.call(program.talk)
        top = subprocess.Popen(
            [*WEFT, "top", "--interval", "0.1", "--pid", str(child.pid)],
            stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "160"},
        )  # fmt: skip
        os.close(theirs)
        seen, patience = b"", Patience(WAIT_S)
        sent = 0
        while b"live" not in seen or f" {sent} ".encode() not in seen or not sent:
            assert not patience.over, seen.decode(errors="replace")
            if b"live" in seen and not sent:
                child.call(program.send, 4321)
                sent = 4321
            if select.select([terminal], [], [], 1)[0]:
                seen += os.read(terminal, 1 << 16)
        top.send_signal(signal.SIGINT)
        while top.poll() is None:  # it restores the screen
            assert not patience.over
            with contextlib.suppress(OSError):  # it has closed the terminal
                if select.select([terminal], [], [], 0.1)[0]:
                    seen += os.read(terminal, 1 << 16)
        os.close(terminal)
    assert top.returncode == 0
    assert b"\x1b[?1049l" in seen


@pytest.mark.parametrize("width", ["60", "80", "112"])
def test_process_has_one_line_in_a_narrow_table(width: str) -> None:
    with Child() as child, Child() as other:
        child.call(program.talk)
        other.call(program.talk, "cxi")
        found = run(
            [*WEFT, "top", "--once", "--pid", str(child.pid), "--pid", str(other.pid)],
            WAIT_S,
            env={**os.environ, "COLUMNS": width},
        )
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert max(map(len, lines)) <= int(width)
    at = next(i for i, line in enumerate(lines) if line.strip() == "processes")
    head, *body = (line.split() for line in lines[at + 1 : at + 6] if line.strip() and "\u2500" not in line)
    assert head[:2] == ["pid", "command"]
    assert "ops/s" in head
    assert {int(row[0]) for row in body[:2]} == {child.pid, other.pid}
