"""`weft launch --collectives`: a job that may have multicast addresses, and the leftovers of a killed launch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import communicate
from tests.tools.conftest import Command

from weft.fm.store import Store
from weft.testing import fabric_manager
from weft.tools import _fm_job

pytestmark = pytest.mark.procs

WEFT = [sys.executable, "-m", "weft.tools.cli"]
# Joins as many groups as it can, as member 0 of each; one write, because the processes of a job share the pipe.
JOIN = """
import json, os
from weft.fm import ManagerError, create_multicast
e, got = os.environ, []
try:
    while True:
        made = create_multicast(e["FI_CXI_COLL_FABRIC_MGR_URL"], e["FI_CXI_COLL_MCAST_TOKEN"], [0x840], 10, 32000,
                                e["FI_CXI_COLL_JOB_ID"], e["FI_CXI_COLL_JOB_STEP_ID"])
        got.append(made.mcast_id)
except ManagerError as reason:
    told = {"got": got, "number": reason.prov_errno, "job": e["FI_CXI_COLL_JOB_ID"]}
    told["most"] = e["FI_CXI_HWCOLL_ADDRS_PER_JOB"]
    print(json.dumps(told) + "\\n", end="", flush=True)
"""
WAIT = "import time; print('here', flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in list(os.environ):
        if name.startswith(("FI_CXI_", "SLINGSHOT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    return tmp_path / "cxi"


def start(*arguments: str, program: str = JOIN) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*WEFT, "launch", *arguments, "--", sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str, program: str = JOIN) -> tuple[int, str, str]:
    with start(*arguments, program=program) as process:
        out, err = communicate(process, 90)
    return process.returncode, out, err


def test_launched_job_joins_groups_without_a_manager_of_its_own(folder: Path) -> None:
    """The launcher serves the joins; the limit is the job's; everything is free afterwards."""
    code, out, err = run("--collectives", "3", "-n", "2")
    assert code == 0, err
    told = [json.loads(line) for line in out.splitlines()]
    assert len(told) == 2
    assert sorted(mcast for one in told for mcast in one["got"]) == [0, 1, 2]
    assert {one["number"] for one in told} == {2048}
    assert {one["most"] for one in told} == {"3"}
    assert len({one["job"] for one in told}) == 1
    with Store(folder / "fm.db") as store:
        assert (store.jobs(), store.groups()) == ([], [])
        assert store.statistics()["created"] == 3


def test_launched_job_is_registered_with_the_manager_of_the_variable() -> None:
    """With a token of the job's own, which is no administrator's."""
    tell = "import os; print(os.environ['FI_CXI_COLL_FABRIC_MGR_URL'], os.environ['FI_CXI_COLL_MCAST_TOKEN'])"
    with fabric_manager(groups_per_root=9) as manager:
        code, out, err = run("--collectives", "2")
        assert code == 0, err
        assert json.loads(out)["got"] == [0, 1]
        assert (manager.store.jobs(), manager.store.groups()) == ([], [])
        code, out, err = run("--collectives", "2", program=tell)
        url, token = out.split()
        assert url == manager.url
        assert token != manager.token
        assert manager.store.job_of_token(token) is None  # released with the job


def test_launch_without_the_option_asks_no_manager() -> None:
    with fabric_manager() as manager:
        code, out, _ = run(program="import os; print(os.environ['FI_CXI_COLL_MCAST_TOKEN'])")
        assert (code, out.strip()) == (0, manager.token)
        assert manager.store.jobs() == []


def test_manager_that_refuses_the_job_is_told_and_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with fabric_manager() as manager:
        monkeypatch.setenv("FI_CXI_COLL_MCAST_TOKEN", "guess")
        code, out, err = run("--collectives", "2", program="print('started')")
        assert (code, out) == (1, "")
        assert "401" in err
        assert manager.store.jobs() == []


def test_signals_reach_the_job_beside_the_launchers_manager() -> None:
    """The manager's threads take none of them."""
    with start("--collectives", "1", program=WAIT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGTERM)
        communicate(process, 60)
    assert process.returncode == 128 + signal.SIGTERM


def test_killed_launcher_leaves_a_job_that_the_next_look_releases(folder: Path) -> None:
    hold = JOIN + WAIT
    with start("--collectives", "1", program=hold) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert process.stdout.readline() == "here\n"
        with Store(folder / "fm.db") as store:
            assert _fm_job.sweep(store) == []  # it runs
        process.kill()
        communicate(process, 60)  # to the end of the job's processes too, which have the pipe
    with Store(folder / "fm.db") as store:
        assert [one.job_id for one in store.groups()] == [told["job"]]
        store.register(_fm_job.prefix().replace("launch-", "launch-elsewhere-") + "1-aa")
        assert _fm_job.sweep(store) == [told["job"]]
        assert store.groups() == []
        assert len(store.jobs()) == 1  # another host's


def test_collectives_with_a_database_of_something_else_is_refused(folder: Path, command: Command) -> None:
    command("device", "list")
    (folder / "fm.db").write_text("a text" * 500)
    code, out, err = run("--collectives", "1", program="print('started')")
    assert (code, out) == (2, "")
    assert "cannot be used as a database" in err
