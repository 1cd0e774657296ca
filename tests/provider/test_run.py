"""`weft run` makes a job for one program: VNIs, a service with limits, NICs, an order of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests import patience
from tests.provider import support

WEFT = [sys.executable, "-m", "weft"]
LISTS = ["service", "device"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return support.environment("cxi", **support.registry(tmp_path))


def weft(env: Mapping[str, str], *arguments: str, status: int = 0) -> str:
    """The output of a command, or what it says against the arguments."""
    done = patience.run([*WEFT, *arguments], support.PROGRAM_S, env=dict(env))
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def variables(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_nics_are_the_jobs_alone(env: dict[str, str], tmp_path: Path) -> None:
    host = weft(env, "device", "list")
    listed = weft(env, "run", "--nics", "3", "--", support.need_tool("fi_info"), "-p", "cxi")
    assert [line.split()[1] for line in listed.splitlines() if "domain:" in line] == ["cxi0", "cxi1", "cxi2"]
    elsewhere = ["env", f"WEFT_CXI_REGISTRY={env['WEFT_CXI_REGISTRY']}", *WEFT, "device", "list"]
    both = weft(env, "run", "--nics", "2", "--", *elsewhere)
    assert both == host
    weft(env, "service", "create", "--vni", "9")  # a change removes what ended jobs had
    assert list((tmp_path / "registry" / "nics").iterdir()) == []


def test_limit_of_the_job_refuses_a_queue_beyond(env: dict[str, str], programs: Path) -> None:
    program = str(support.compiled("helper_late", programs))
    script = f"printf 'queue\nqueue\nend\n' | {program} cxi"
    command = [*WEFT, "run", "--limit", "eqs=2", "--explain", "--", "sh", "-c", script]
    done = patience.run(command, support.PROGRAM_S, env=env)
    assert done.stdout.splitlines() == [
        "open",
        "fi_cq_open: no error",
        "fi_cq_open: No space left on device",
        "closed",
    ], done.stderr
    assert "eqs" in done.stderr  # --explain


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL], ids=lambda x: x.name)
def test_explained_program_that_is_ended_leaves_no_file(env: dict[str, str], number: signal.Signals) -> None:
    """What a program was refused before it hung is printed when it is ended, as a CI's time limit ends it."""
    script = 'echo it was refused >> "$WEFT_EXPLAIN"; echo "$WEFT_EXPLAIN"; exec cat'
    command = [*WEFT, "run", "--explain", "--", "sh", "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=env, text=True, start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        file = Path(process.stdout.readline().strip())
        assert file.is_file()
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        said = patience.communicate(process, support.PROGRAM_S)[1]
    assert not file.exists()
    if number == signal.SIGKILL:
        assert said == ""
    else:
        assert process.returncode == 128 + number
        assert said == "weft run: what was refused, and why:\nit was refused\n\n"


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_program_that_relies_on_order_is_found(env: dict[str, str], programs: Path, seed: int | None) -> None:
    program = str(support.compiled("overtaken", programs))
    reorder = [] if seed is None else ["--reorder", str(seed)]
    wrong, _ = weft(env, "run", *reorder, "--", program, "cxi").split()
    assert (int(wrong) > 0) == bool(reorder)


@pytest.mark.parametrize("own", [[], ["--nics", "2"]], ids=["host's NICs", "own NICs"])
def test_killed_program_leaves_no_service_and_no_nics(env: dict[str, str], own: list[str], tmp_path: Path) -> None:
    before = [weft(env, kind, "list") for kind in LISTS]
    command = [*WEFT, "run", "--vni", "77", *own, "--", "sh", "-c", "echo $SLINGSHOT_VNIS; read line"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=env, text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "77\n"
        assert ("77" in weft(env, "service", "list")) == (not own)
        process.send_signal(signal.SIGKILL)
    assert [weft(env, kind, "list") for kind in LISTS] == before
    weft(env, "service", "create", "--vni", "77")
    for folder in ("launch", "nics"):
        assert not any((tmp_path / "registry" / folder).glob("*"))


def test_jobs_have_different_vnis_and_no_rank(env: dict[str, str]) -> None:
    inner = [*WEFT, "run", "--vni", "auto", "--", "env"]
    both = weft(env, "run", "--vni", "auto", "--reorder", "7", "--", "sh", "-c", 'env; echo; "$@"', "sh", *inner)
    outer, _, nested = both.partition("\n\n")
    first, second = variables(outer), variables(nested)
    assert first["SLINGSHOT_VNIS"] != second["SLINGSHOT_VNIS"]
    assert first["SLINGSHOT_SVC_IDS"] != second["SLINGSHOT_SVC_IDS"]
    assert first["WEFT_CXI_REORDER"] == "7"
    assert "WEFT_RANK" not in first


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-p", "weft", "--vni", "7"], "weft has no services"),
        (["--vni", "x"], "--vni"),
        (["--vni", "0"], "0 is no VNI"),
        (["--limit", "eqs"], "is not KIND=MOST"),
        (["--limit", "toes=2"], "no kind of resource"),
        (["--nics", "11"], "--nics"),
        (["--vni", "7", "--show"], "weft run ... -- env"),
        (["--hosts", "localhost", "--vni", "auto"], "the same VNI"),
        (["--hosts", "localhost", "--limit", "eqs=2"], "the same VNI"),
        (["--hosts", "localhost", "--nics", "2"], "one NIC each"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_wrong_option_is_refused_before_the_program_runs(
    env: dict[str, str], arguments: list[str], reason: str, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    done = patience.run([*WEFT, "run", *arguments, "--", "touch", str(made)], support.PROGRAM_S, env=env)
    assert done.returncode != 0
    assert reason in done.stderr, done.stderr
    assert not made.exists()


def test_vni_of_a_service_is_busy(env: dict[str, str]) -> None:
    weft(env, "service", "create", "--vni", "77")
    assert "77 is a service's" in weft(env, "run", "--vni", "77", "--", "true", status=1)
