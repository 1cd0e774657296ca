"""`weft perf` ends with a report when one of its processes is interrupted or killed, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests import patience

from weft.tools._pair import Side, Target, half_round_trip

from .test_perf import COMMAND

pytestmark = pytest.mark.procs


def children_of(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


class Running:
    """A `weft perf` that has printed its first row, with many rows left."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "--json", "--path", "direct,ring", "--seconds", "10"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline()
        self.children = children_of(self.process.pid)
        assert len(self.children) == 2  # a target for the paths that share memory, one for the ring

    def end(self) -> tuple[int, str]:
        _, errors = patience.communicate(self.process, 60)
        patience.wait_for_end(*self.children)
        return self.process.returncode, errors

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def test_perf_target_killed_is_reported() -> None:
    with Running() as perf:
        for child in perf.children:
            os.kill(child, signal.SIGKILL)
        code, errors = perf.end()
    assert code == 1
    assert "died: signal SIGKILL" in errors
    assert "Traceback" not in errors


def test_perf_interrupt_ends_both_processes() -> None:
    with Running() as perf:
        os.kill(perf.process.pid, signal.SIGINT)
        code, errors = perf.end()
    assert code == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors


def test_perf_killed_leaves_no_target() -> None:
    with Running() as perf:
        os.kill(perf.process.pid, signal.SIGKILL)
        code, _ = perf.end()
    assert code == -signal.SIGKILL


def test_perf_target_that_cannot_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.tools._pair import Target, TargetError

    with Target(4096, {"WEFT_MR_MODE": "sideways"}) as target, pytest.raises(TargetError, match="sideways"):
        target.greet()


def test_echo_does_not_take_the_last_ones_answer_for_its_own() -> None:
    with Target(4096) as target, Side(4096) as side:
        target.greet()
        peer = side.av.insert(target.name)
        target.ask("peer", card=side.card())
        for _ in range(40):  # the last value of 255 rounds equals the first
            half_round_trip(side, target, peer, "direct", 8, 255, ring=False)
