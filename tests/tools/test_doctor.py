"""`weft doctor`: facts that hold on the test machine, and the output if one does not hold."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import patience

from weft.tools import _machine, doctor

from .conftest import Command

pytestmark = pytest.mark.procs


def report(**env: str) -> tuple[int, dict[str, Any]]:
    """Run in another process, because the paths depend on the environment of this process's NIC."""
    result = patience.run(
        [sys.executable, "-m", "weft.tools.cli", "doctor", "--json"], timeout=100, env={**os.environ, **env}
    )
    assert result.stdout, result.stderr
    return result.returncode, json.loads(result.stdout)


def test_doctor_json_has_facts_and_paths() -> None:
    code, said = report()
    assert (code, said["ok"]) == (0, True)  # these tests run, so Weft works
    names = {check["name"] for check in said["checks"]}
    assert {
        "cores",
        "memfd",
        "abstract sockets",
        "pidfd",
        "huge pages",
        "process_vm_readv (CMA)",
        "ptrace scope",
    } <= names
    assert {"seccomp", "userfaultfd", "memlock", "descriptors", "network", "process", "user"} <= names
    assert {"a secret for the tcp link", "listening for other hosts"} <= names
    for check in said["checks"]:
        assert check["state"] in ("ok", "note")
        assert check["found"]
        assert check["state"] == "ok" or check["effect"], check
    assert [path["path"] for path in said["paths"]] == ["direct", "foreign", "ring", "tcp"]
    ways = {path["path"]: path["took"] for path in said["paths"]}
    assert (ways["direct"], ways["ring"], ways["tcp"]) == ("direct", "ring", "tcp")
    allowed = next(check for check in said["checks"] if check["name"] == "process_vm_readv (CMA)")["state"] == "ok"
    assert (ways["foreign"] == "foreign") >= allowed


def test_doctor_says_which_setting_closes_a_path() -> None:
    code, said = report(WEFT_CMA="0")
    assert code == 0
    foreign = said["paths"][1]
    assert (foreign["took"], foreign["state"]) == ("ring", "note")
    assert "unset it" in foreign["why"]
    assert said["settings"]["WEFT_CMA"] == "0"


def test_doctor_mode_that_it_cannot_serve_is_named() -> None:
    code, said = report(WEFT_MR_MODE="raw")
    assert (code, said["ok"]) == (1, False)
    for path in said["paths"]:
        assert (path["took"], path["state"]) == ("", "bad")
        assert "WEFT_MR_MODE" in path["why"]
        assert "unset it" in path["why"]


def test_namespaces_of_a_container_without_proc_are_said_to_be_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(path: str) -> os.stat_result:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "stat", nothing)
    found = list(_machine.checks(("namespaces",)))
    monkeypatch.undo()
    assert [one.name for one in found] == ["network", "process", "user"]
    assert all("cannot be seen: ENOENT" in one.found for one in found)


def test_doctor_table_ends_with_the_verdict(command: Command) -> None:
    ended = command("doctor")
    assert ended.code == 0
    for word in ("memfd", "seccomp", "userfaultfd", "memlock", "load and store", "WEFT_ISOLATION=strict"):
        assert word in ended.out
    assert ended.out.endswith("Weft works here.\n")


def test_doctor_failures_are_shown_with_remedies(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(_machine.os, "memfd_create", refused)
    monkeypatch.setattr(_machine.os, "pidfd_open", refused)
    monkeypatch.setattr(_machine, "_quota", lambda: 0.5)
    monkeypatch.setattr(doctor, "data_paths", lambda: iter([doctor.DataPath("direct", "", "no memory to share")]))
    ended = command("doctor")
    assert ended.code == 1
    assert "Weft does not work here: 2 checks are BAD" in ended.err
    for text in ("BAD", "memfd_create: EPERM", "try: allow memfd_create in the seccomp profile", "nothing arrived"):
        assert text in ended.out
    for text in ("pidfd: Weft notices the death of a peer", "cores: two polling peers take turns", "0.5 cores"):
        assert text in ended.out


@pytest.mark.parametrize(
    ("downwards", "said"),
    [
        ("EPERM, Operation not permitted", "refused, even on a child: EPERM"),
        ("", "works on a child; refused on any other process: EPERM"),
    ],
)
def test_doctor_cma_refused_both_ways_or_one(monkeypatch: pytest.MonkeyPatch, downwards: str, said: str) -> None:
    """Yama's scope 1 allows a process to read its children, and nothing else."""
    upwards = "EPERM, Operation not permitted"
    program = f"import sys; print(4096, {upwards!r}, flush=True); sys.stdin.read()"
    real = subprocess.Popen
    monkeypatch.setattr(
        _machine.subprocess, "Popen", lambda _, **options: real([sys.executable, "-c", program], **options)
    )
    monkeypatch.setattr(_machine, "_try_vm_read", lambda *_: downwards)
    monkeypatch.setattr(_machine, "_read", lambda _: "1")
    _, state, found, effect, todo = _machine._cma()
    assert (state, found.startswith(said)) == ("note", True)
    assert "through the ring" in effect
    assert "sysctl kernel.yama.ptrace_scope=0" in todo
    assert "weft.empty()" in todo


def test_vm_read_reads_and_refuses() -> None:
    mine = ctypes.create_string_buffer(b"sixteen bytes ..")
    try:
        assert _machine.vm_read(os.getpid(), ctypes.addressof(mine), 7) == b"sixteen"
    except PermissionError:
        pytest.skip("process_vm_readv is forbidden here")
    with pytest.raises(OSError, match="Bad address"):
        _machine.vm_read(os.getpid(), 8, 1)


def test_doctor_shows_the_registration_cache() -> None:
    """The cache's monitor, and why it does not work; an invalid word is bad."""
    found = {c["name"]: c for c in report()[1]["checks"]}
    assert found["registration cache"]["found"].startswith(("on: ", "off: "))
    assert "this version has none" not in found["userfaultfd"]["effect"]
    off = {c["name"]: c for c in report(FI_MR_CACHE_MAX_COUNT="0")[1]["checks"]}["registration cache"]
    assert (off["state"], off["found"]) == ("note", "off: FI_MR_CACHE_MAX_COUNT is 0")


def test_doctor_names_another_project_s_weft(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PyPI's weft owns the same folder: where its metadata is installed, files may have been replaced."""
    assert _machine._distribution()[1] == "ok"
    other = tmp_path / "weft-1.2.3.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: weft\nVersion: 1.2.3\nSummary: Something else\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    name, state, found, effect, todo = _machine._distribution()
    assert (name, state) == ("package", "note")
    assert "weft 1.2.3" in found
    assert "folder weft" in effect
    assert "pip install weft-fabric" in todo
