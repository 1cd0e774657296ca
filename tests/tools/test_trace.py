"""`weft trace`: a timeline of Weft's work for a program's processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.observe.program import BYTES
from tests.patience import Patience, run
from tests.procs.children import ROOT
from tests.tools.conftest import Command

WEFT = [sys.executable, "-m", "weft.tools.cli"]
WAIT_S = 100.0

Event = dict[str, Any]


class Traced:
    """A program's exit status, and its timeline."""

    def __init__(self, out: Path, *command: str, options: tuple[str, ...] = (), **env: str) -> None:
        found = run(
            [*WEFT, "trace", *options, str(out), "--", *command], WAIT_S, cwd=ROOT, env={**os.environ, **env}
        )  # fmt: skip
        self.code, self.out, self.err = found.returncode, found.stdout, found.stderr
        self.said: dict[str, Any] = json.loads(out.read_text())
        self.events: list[Event] = self.said["traceEvents"]

    @property
    def processes(self) -> dict[int, str]:
        return {one["pid"]: one["args"]["name"] for one in self.events if one["name"] == "process_name"}

    def names(self, phase: str) -> Counter[str]:
        """How often each name occurs, without the endpoint in front."""
        return Counter(one["name"].rpartition(": ")[2] for one in self.events if one["ph"] == phase)

    def named(self, name: str, phase: str) -> list[Event]:
        return [one for one in self.events if one["ph"] == phase and one["name"].rpartition(": ")[2] == name]


def program(name: str) -> list[str]:
    return [sys.executable, "-m", "tests.observe.program", name]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The recordings are deleted in the end, whatever happened."""
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield
    assert not list(folder.glob("weft-trace-*"))


def check(events: list[Event]) -> None:
    """Rules of the format: phases, times, pairs; the slices of a thread are nested."""
    begun: dict[tuple[int, str], Event] = {}
    threads: dict[tuple[int, int], list[Event]] = {}
    for one in events:
        assert one["ph"] in "MXbei"
        assert isinstance(one["pid"], int)
        assert isinstance(one["tid"], int)
        if one["ph"] == "M":
            continue
        assert one["ts"] >= 0
        if one["ph"] == "X":
            assert one["dur"] >= 0
            threads.setdefault((one["pid"], one["tid"]), []).append(one)
        if one["ph"] == "b":
            key = one["pid"], one["id2"]["local"]
            assert key not in begun
            begun[key] = one
        if one["ph"] == "e":
            begin = begun[one["pid"], one["id2"]["local"]]
            assert (begin["name"], begin["cat"]) == (one["name"], one["cat"])
            assert begin["ts"] <= one["ts"]
    for slices in threads.values():
        ends: list[float] = []
        for one in sorted(slices, key=lambda each: (each["ts"], -each["dur"])):
            while ends and ends[-1] <= one["ts"] + 1e-9:
                ends.pop()
            assert not ends or one["ts"] + one["dur"] <= ends[-1] + 1e-6
            ends.append(one["ts"] + one["dur"])


# ---- what is in the timeline -----------------------------------------------------------------------------------------


def test_messages_and_receives(out: Path) -> None:
    traced = Traced(out, *program("messages"))
    assert traced.code == 0, traced.err
    check(traced.events)
    (pid,) = traced.processes
    assert "tests.observe.program messages" in traced.processes[pid]
    moments = traced.names("i")
    assert moments["receive posted"] == 5
    assert moments["message received"] == 5
    assert moments["message kept"] == 3
    assert all(one["args"]["bytes"] == BYTES for one in traced.named("message received", "i"))
    calls = traced.names("X")
    assert calls["send"] + calls["post send"] == 5
    spans = traced.names("b")
    assert spans["send"] == traced.names("e")["send"] == calls["post send"]
    threads = {one["args"]["name"] for one in traced.events if one["name"] == "thread_name"}
    assert any(name.startswith("main") for name in threads)
    assert any(name.startswith("endpoint weft://") for name in threads)


def test_one_sided_operations_and_a_failure(out: Path) -> None:
    traced = Traced(out, *program("rma"))
    assert traced.code == 0, traced.err
    check(traced.events)
    calls = traced.names("X")
    assert calls["write"] + calls["post write"] == 5
    assert calls["read"] + calls["post read"] == 1
    assert calls["atomic"] + calls["post atomic"] == 1
    (failed,) = traced.named("failed", "i")
    assert failed["args"]["key"] == "0x63"
    assert failed["args"]["status"] == "no_key"


def test_refused_calls_are_a_stall(out: Path) -> None:
    traced = Traced(out, *program("stall"))
    assert traced.code == 0, traced.err
    check(traced.events)
    begins, ends = traced.named("stalled, cq_full", "b"), traced.named("stalled, cq_full", "e")
    assert len(begins) == len(ends) == 1
    assert ends[0]["args"]["refused calls"] == int(traced.out) >= 20


def test_flow_control_is_a_span(out: Path) -> None:
    traced = Traced(out, *program("flow_control"), FI_CXI_RX_MATCH_MODE="hardware")
    assert traced.code == 0, traced.err
    check(traced.events)
    assert traced.names("b")["flow control"] >= 1
    assert traced.names("i")["match mode"] >= 2


def test_trigger_is_a_moment_and_its_operation_a_span(out: Path) -> None:
    traced = Traced(out, *program("trigger"))
    assert traced.code == 0, traced.err
    check(traced.events)
    (moment,) = traced.named("triggered", "i")
    assert moment["args"]["operation"] == "write"
    assert moment["args"]["threshold"] == 3
    (span,) = traced.named("write", "b")
    assert span["args"]["id"] == moment["args"]["id"]
    assert span["args"]["bytes"] == BYTES


def test_children_are_included(out: Path) -> None:
    traced = Traced(out, *program("children"))
    assert traced.code == 0, traced.err
    check(traced.events)
    assert len(traced.processes) == 3
    by_process = Counter(one["pid"] for one in traced.events if one["ph"] == "X" and "send" in one["name"])
    assert sorted(by_process.values()) == [1, 1, 5]


def test_newest_records_are_kept(out: Path) -> None:
    traced = Traced(out, *program("many"), options=("--records", "64"))
    assert traced.code == 0
    check(traced.events)
    (pid,) = traced.processes
    assert traced.said["otherData"]["records"][str(pid)] == 64
    assert traced.said["otherData"]["records_lost"][str(pid)] > 1000
    assert "try a larger --records" in traced.err


# ---- ends of programs ------------------------------------------------------------------------------------------------


def test_killed_program_leaves_what_happened_until_then(out: Path) -> None:
    traced = Traced(out, *program("killed"))
    assert traced.code == 128 + signal.SIGKILL
    check(traced.events)
    calls = traced.names("X")
    assert calls["write"] + calls["post write"] == 5
    (long_send,) = [one for one in traced.named("send", "b") if one["args"]["bytes"] == 1 << 20]
    assert long_send["args"]["unfinished"]


def test_status_of_the_program_is_passed_on(out: Path) -> None:
    assert Traced(out, *program("exit")).code == 7


def test_program_without_weft_has_an_empty_timeline(out: Path) -> None:
    traced = Traced(out, "true")
    assert (traced.code, traced.events) == (0, [])
    assert "no process used Weft" in traced.err


def test_program_that_is_missing_is_told(out: Path) -> None:
    traced = Traced(out, "/no/such/program")
    assert traced.code == 127
    assert "/no/such/program: No such file or directory" in traced.err


def test_signal_is_passed_on(out: Path) -> None:
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print('ready', flush=True); signal.pause()"
    with subprocess.Popen(
        [*WEFT, "trace", str(out), "--", sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        patience = Patience(WAIT_S)
        while process.poll() is None and not patience.over:
            try:
                process.wait(1)
            except subprocess.TimeoutExpired:
                continue
        assert process.returncode == 5
    assert json.loads(out.read_text())["traceEvents"] == []


# ---- wrong arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("records", ["0", "63", "-5", "100000000"])
def test_number_of_records_is_checked(command: Command, out: Path, records: str) -> None:
    ended = command("trace", "--records", records, str(out), "--", "true")
    assert ended.code == 2
    assert "is not from 64 to 67108864" in ended.err


def test_output_that_cannot_be_written_is_told_before_the_program_runs(command: Command, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    ended = command("trace", str(tmp_path / "no" / "run.json"), "--", "touch", str(ran))
    assert ended.code == 2
    assert "No such file or directory" in ended.err
    assert not ran.exists()


def test_folder_that_is_missing_is_an_error_of_the_program() -> None:
    found = run(program("many"), WAIT_S, cwd=ROOT, env={**os.environ, "WEFT_TRACE": "/no/such/folder"})
    assert found.returncode == 1
    assert "WEFT_TRACE: the trace /no/such/folder/" in found.stderr
    assert "No such file or directory" in found.stderr


def test_without_the_variable_nothing_is_recorded(tmp_path: Path) -> None:
    assert run(program("many"), WAIT_S, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}).returncode == 0
    assert not list(tmp_path.glob("**/*.weft-trace"))
