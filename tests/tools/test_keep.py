"""`weft ls`, `weft rm` and `weft keep`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.patience import run, wait_for_end
from tests.share import keepers
from tests.share.owner import Owner
from tests.tools.conftest import Command

import weft
from weft import errors

pytestmark = pytest.mark.procs

WEFT = [sys.executable, "-m", "weft.tools.cli"]
WAIT_S = 60.0


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Path]:
    """A registry of its own, whose keeper ends with the test."""
    folder = tmp_path / "cxi"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CXI_REGISTRY", str(folder))
        yield folder
        keepers.end()


@pytest.fixture
def node() -> Iterator[weft.Node]:
    with weft.open() as opened:
        yield opened


def prefix() -> str:
    return f"tool-{os.getpid()}-"


def test_ls_shows_arrays_and_their_owners(registry: Path, node: weft.Node, command: Command) -> None:
    plain, kept = prefix() + "plain", prefix() + "kept"
    with Owner(prefix()) as owner:
        owner.tell(f"shared = node.share(np.zeros((2, 3), 'i2'), {kept!r}, 'r', keep=True)")
        pid = owner.pid
    node.share(weft.zeros((1000, 64), "f4"), plain)
    ended = command("ls")
    assert ended.code == 0
    (line,) = [line for line in ended.out.splitlines() if plain in line]
    for text in (str(os.getpid()), "1000x64", "float32", "250 KiB", "rw", " s ", "no"):
        assert text in line, text
    (line,) = [line for line in ended.out.splitlines() if kept in line]
    for text in (str(pid), "2x3", "int16", "12 B", f"by {keepers.keeper_pid()}"):
        assert text in line, text


def test_ls_as_json(registry: Path, node: weft.Node, command: Command) -> None:
    n = prefix() + "json"
    node.share(weft.zeros((4, 2), "u1"), n)
    ended = command("ls", "--json")
    (one,) = [one for one in json.loads(ended.out)["names"] if one["name"] == n]
    assert one["shape"] == [4, 2]
    assert (one["pid"], one["dtype"], one["nbytes"], one["access"]) == (os.getpid(), "uint8", 8, "rw")
    assert (one["kept"], one["keeper"], one["answers"]) == (False, None, True)
    assert 0 <= one["age_s"] < 100


def test_rm_ends_a_kept_array(registry: Path, node: weft.Node, command: Command) -> None:
    first, second = prefix() + "first", prefix() + "second"
    for n in (first, second):
        node.share(np.zeros(3), n, keep=True)
    t = node.attach(first)
    pid = keepers.keeper_pid()
    assert pid is not None
    ended = command("rm", first)
    assert (ended.code, ended.out) == (0, f"{first} is forgotten\n")
    with pytest.raises(errors.KeyRejected):
        t[0]
    ended = command("rm", "--json", second)
    assert json.loads(ended.out) == {"names": [{"name": second, "removed": True, "error": None}]}
    wait_for_end(pid)


def test_rm_of_what_is_not_kept_fails_and_goes_on(registry: Path, node: weft.Node, command: Command) -> None:
    plain, kept = prefix() + "plain", prefix() + "kept"
    node.share(np.zeros(3), plain)
    node.share(np.zeros(3), kept, keep=True)
    ended = command("rm", plain, prefix() + "absent", kept, "a b")
    assert ended.code == 1
    assert f"'{plain}' is not kept: process {os.getpid()}" in ended.out + ended.err
    assert f"no array is shared as '{prefix()}absent'" in ended.out + ended.err
    assert f"{kept} is forgotten" in ended.out
    assert "'a b' is not a valid name" in ended.out + ended.err
    assert plain in node.names()
    ended = command("rm", "--json", plain)
    assert ended.code == 1
    (one,) = json.loads(ended.out)["names"]
    assert (one["name"], one["removed"]) == (plain, False)
    assert "is not kept" in one["error"]


@pytest.fixture
def keep_command(registry: Path) -> Iterator[Any]:
    """`weft keep` in a process of its own, with these options."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([*WEFT, "keep", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("keeping arrays") or process.wait(60), line
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_keep_in_a_terminal_keeps_until_it_is_ended(
    registry: Path, node: weft.Node, keep_command: Any, command: Command
) -> None:
    process = keep_command("--stay")
    n = prefix() + "kept"
    node.share(np.arange(3), n, keep=True)
    assert keepers.keeper_pid() == process.pid
    command("rm", n)
    node.share(np.arange(4), n, keep=True)  # it stays when nothing is kept
    assert keepers.keeper_pid() == process.pid
    t = node.attach(n)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert process.stderr.read() == ""
    assert n not in node.names()
    assert not list((registry / "keep").glob("*.socket"))
    with pytest.raises(errors.ConnectionReset):
        t[0]


def test_keep_twice_is_refused(registry: Path, keep_command: Any) -> None:
    process = keep_command("--stay")
    ended = run([*WEFT, "keep"], WAIT_S)
    assert ended.returncode == 1
    assert f"process {process.pid} is the keeper of" in ended.stderr
    assert "try: weft ls" in ended.stderr


def test_keep_without_stay_ends_with_its_last_array(
    registry: Path, node: weft.Node, keep_command: Any, command: Command
) -> None:
    process = keep_command()
    n = prefix() + "kept"
    node.share(np.arange(3), n, keep=True)
    assert keepers.keeper_pid() == process.pid
    weft.forget(n)
    assert process.wait(60) == 0
