"""`weft doctor`: the launcher that started the process, and the inconsistencies in its environment."""

from __future__ import annotations

import json

import pytest

from weft.launch import environment
from weft.tools import doctor
from weft.tools._launched import rows

from .conftest import Command

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "nid[001-009]",
    "SLURM_NNODES": "9",
    "SLURM_NODEID": "0",
    "SLINGSHOT_VNIS": "1024",
    "SLINGSHOT_DEVICES": "cxi0",
    "SLINGSHOT_SVC_IDS": "5",
    "SLINGSHOT_TCS": "0x8",
}


@pytest.fixture
def no_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the paths' processes, which other tests start."""
    monkeypatch.setattr(doctor, "data_paths", lambda: iter([]))


def found(environ: dict[str, str], listen: str = "") -> list[tuple[str, str, str]]:
    settings = {"WEFT_LISTEN": (listen, bool(listen), "")}
    return [(row.name, row.state, row.found) for row in rows(environment(environ), settings)]


def test_doctor_tells_the_launcher() -> None:
    assert found(SLURM, "tcp://0.0.0.0:0") == [
        ("launcher", "ok", "Slurm: rank 1 of 4; on this host 1 of ?; host number 0; job 4711.0"),
        ("allocation", "ok", "Slurm job 4711"),
        ("hosts", "ok", "9, from SLURM_STEP_NODELIST: nid001, nid002, nid003, nid004, nid005, nid006 and 3 more"),
        ("Slingshot", "ok", "VNIs 1024; devices cxi0; services 5; classes BEST_EFFORT"),
    ]


def test_doctor_tells_that_no_launcher_is_recognised() -> None:
    ((name, state, text),) = found({})
    assert (name, state) == ("launcher", "ok")
    assert text.startswith("none is recognised")


def test_doctor_tells_that_processes_of_other_hosts_cannot_attach() -> None:
    assert found(SLURM)[-1][:2] == ("other hosts", "note")
    assert "WEFT_LISTEN is not set" in found(SLURM)[-1][2]


def test_doctor_prints_the_table(command: Command, monkeypatch: pytest.MonkeyPatch, no_paths: None) -> None:
    torch = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "nid001", "MASTER_PORT": "29500"}
    for name, value in {**SLURM, **torch, "SLINGSHOT_VNIS": "1024-1027"}.items():
        monkeypatch.setenv(name, value)
    ended = command("doctor")
    assert ended.code == 0
    words = " ".join(ended.out.split())
    for text in (
        "how this process was started",
        "torch: rank 0 of 2; rank 0 is met at nid001:29500",
        "around it ok Slurm: rank 1 of 4",
        "inconsistent note SLINGSHOT_VNIS=1024-1027: '1024-1027' is not a VNI",
        "torch (rank 0 of 2) runs inside Slurm (rank 1 of 4): the inner one counts",
    ):
        assert text in words, words


def test_doctor_json_has_the_launch(command: Command, monkeypatch: pytest.MonkeyPatch, no_paths: None) -> None:
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    said = json.loads(command("doctor", "--json").out)["launch"]
    assert (said["name"], said["rank"], said["size"], said["local_rank"]) == ("Slurm", 1, 4, 1)
    assert said["hosts"][0] == "nid001"
    assert said["slingshot"] == {"vnis": [1024], "devices": ["cxi0"], "services": [5], "tcs": ["BEST_EFFORT"]}
    assert said["variables"]["SLURM_PROCID"] == "1"
