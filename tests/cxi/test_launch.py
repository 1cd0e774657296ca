"""fi_cxi(7) "Authorization Keys", the launch workflow: `weft launch`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import patience
from tests.patience import Patience, communicate

from weft import errors
from weft.providers.cxi import device, launch, service, vni
from weft.providers.cxi.service import Member

WEFT = [sys.executable, "-m", "weft.tools.cli"]
TELL = """
import json, os
names = ("SLINGSHOT_VNIS", "SLINGSHOT_DEVICES", "SLINGSHOT_SVC_IDS", "SLINGSHOT_TCS", "WEFT_RANK", "WEFT_SIZE")
# One write, also with PYTHONUNBUFFERED: the processes of a job share the pipe.
print(json.dumps({name: os.environ[name] for name in names}) + "\\n", end="", flush=True)
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    return tmp_path / "cxi"


def run(*arguments: str, program: str = TELL) -> subprocess.CompletedProcess[str]:
    with start(*arguments, program=program) as process:
        out, err = communicate(process, 60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextlib.contextmanager
def start(*arguments: str, program: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*WEFT, "launch", *arguments, "--", sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def until(true: Callable[[], bool], what: str) -> None:
    patience = Patience(30)
    while not true():
        assert not patience.over, what
        time.sleep(0.01)


def is_clean() -> bool:
    return [one.id for one in service.services("cxi0")] == [1]


# ---- what the processes are given ------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.auth.launch-vnis", "cxi.auth.launch-services", "cxi.auth.launch-handover")
def test_processes_are_told_vnis_devices_and_services() -> None:
    device.add("cxi1")
    found = run("-n", "2", "--vnis", "2")
    assert found.returncode == 0, found.stderr
    told = sorted((json.loads(line) for line in found.stdout.splitlines()), key=lambda one: one["WEFT_RANK"])
    assert [one["WEFT_RANK"] for one in told] == ["0", "1"]
    for one in told:
        assert one["SLINGSHOT_VNIS"] == "1024,1025"
        assert one["SLINGSHOT_DEVICES"] == "cxi0,cxi1"
        assert one["SLINGSHOT_SVC_IDS"] == "2,2"
        assert one["SLINGSHOT_TCS"] == "0xf"
        assert one["WEFT_SIZE"] == "2"
    assert is_clean()


@pytest.mark.clause("cxi.auth.service-vnis")
def test_launch_service_admits_this_user_and_its_own_vnis() -> None:
    with launch.begin(vnis=2, tclasses=["LOW_LATENCY"], limits={"les": 50}) as job:
        made = service.service("cxi0", job.services["cxi0"])
        assert made is not None
        assert made.members == (Member("uid", os.geteuid()),)
        assert [vni for vni in range(1, 65536) if made.admits(vni)] == list(job.vnis)
        assert made.limits["les"] == (50, 0)
        assert made.launch == job.id
        assert job.environment(0, 1)["SLINGSHOT_TCS"] == "0x2"
    assert is_clean()


@pytest.mark.clause("cxi.auth.service-privilege")
def test_limits_and_classes_are_the_launcher_s_to_say() -> None:
    found = run("--limit", "les=7", "--tclass", "bulk_data,best_effort", program=TELL + "import sys; sys.stdin.read()")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["SLINGSHOT_TCS"] == "0xc"


def test_jobs_have_vnis_of_their_own() -> None:
    with launch.begin(vnis=3) as first, launch.begin(vnis=3) as second:
        assert len({*first.vnis, *second.vnis}) == 6
        with pytest.raises(errors.Busy, match="is a service's or a launch's"):
            launch.begin(vnis=[first.vnis[1]])
    with launch.begin(vnis=[first.vnis[1]]) as again:
        assert again.vnis == (first.vnis[1],)


def test_vni_just_freed_is_given_last() -> None:
    with launch.begin() as first:
        pass
    with launch.begin() as second:
        assert second.vnis[0] == first.vnis[0] + 1


def test_vnis_of_services_are_not_given() -> None:
    service.create(vnis=[range(1024, 1030)])
    with launch.begin() as job:
        assert job.vnis == (1030,)


def test_vnis_run_out() -> None:
    service.create(vnis=[range(1024, vni.VNI_MAX)])
    with launch.begin() as job:
        assert job.vnis == (vni.VNI_MAX,)
        with pytest.raises(errors.NoSpace, match="0 of 1024 to 65535 are free"):
            launch.begin()


@pytest.mark.parametrize("vnis", [0, -1, 65, True, [], [0], [5, 5], [65536], ["5"]])
def test_bad_vnis_are_refused(vnis: object) -> None:
    with pytest.raises(errors.InvalidArgument):
        launch.begin(vnis=vnis)  # type: ignore[arg-type]
    assert is_clean()


def test_devices_that_are_down_are_left_out() -> None:
    device.add("cxi1")
    device.set_up("cxi0", False)
    with launch.begin() as job:
        assert list(job.services) == ["cxi1"]
    device.set_up("cxi1", False)
    with pytest.raises(errors.NoDevice, match="no device is up"):
        launch.begin()


def test_failed_launch_leaves_nothing(folder: Path) -> None:
    with pytest.raises(errors.NoDevice):
        launch.begin(on=["cxi0", "cxi7"])
    with pytest.raises(errors.InvalidArgument):
        launch.begin(on=["cxi0", "cxi0"])
    assert is_clean()
    device.set_up("cxi0", True)
    assert not (folder / "launch").exists() or not list((folder / "launch").iterdir())


# ---- how it ends -----------------------------------------------------------------------------------------------------


def test_status_is_that_of_the_first_that_failed() -> None:
    program = "import os, sys, time; sys.exit(7) if os.environ['WEFT_RANK'] == '1' else time.sleep(100)"
    found = run("-n", "3", program=program)
    assert found.returncode == 7
    assert "process 1 ended with 7" in found.stderr
    assert is_clean()


def test_status_of_a_killed_process_is_128_and_the_signal() -> None:
    assert run(program="import os; os.kill(os.getpid(), 9)").returncode == 137


def test_status_is_known_where_a_parent_ignores_its_children() -> None:
    line = f"trap '' CHLD; exec {sys.executable} -m weft.tools.cli launch -- sh -c 'exit 9'"
    assert patience.run(["bash", "-c", line], timeout=100).returncode == 9


def test_others_go_on_when_told_so() -> None:
    program = """
import os, sys, time
rank = int(os.environ["WEFT_RANK"])
with open(f"/proc/{os.getppid()}/task/{os.getppid()}/children") as children:
    while rank and children.read().split() != [str(os.getpid())]:  # until the launcher has seen the other one's end
        time.sleep(0.01)
        children.seek(0)
os.write(1, b"%d " % rank)
sys.exit(3 * (not rank))
"""
    found = run("-n", "2", "--keep-going", program=program)
    assert (found.returncode, sorted(found.stdout.split())) == (3, ["0", "1"])


def test_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    program = f"""
import os, signal, sys, time
ready = {str(tmp_path / "ready")!r}
if os.environ["WEFT_RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(ready, "w").close()
    time.sleep(100)
while not os.path.exists(ready):
    time.sleep(0.01)
sys.exit(5)
"""
    found = run("-n", "2", "--grace", "0.1", program=program)
    assert found.returncode == 5
    assert "process 0 ended with 137" in found.stderr
    assert is_clean()


def test_program_that_is_not_there_is_127() -> None:
    found = patience.run([*WEFT, "launch", "/no/such/program"], timeout=100)
    assert (found.returncode, "'/no/such/program' is not there" in found.stderr) == (127, True)
    assert is_clean()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_signal_is_passed_on(number: signal.Signals) -> None:
    program = f"""
import os, signal, sys
signal.signal({int(number)}, lambda *_: sys.exit(40 + int(os.environ["WEFT_RANK"])))
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""
    with start("-n", "2", "--keep-going", program=program) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        communicate(process, 60)
    assert process.returncode in (40, 41)
    assert is_clean()


def test_killed_launcher_ends_processes_and_frees_resources(folder: Path) -> None:
    with start("-n", "2", program="import os, time; os.write(1, b'%d\\n' % os.getpid()); time.sleep(100)") as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        assert not is_clean()
        process.kill()
        process.wait()
        until(is_clean, "services of a killed launch are still there")
        patience.wait_for_end(*pids)
    with launch.begin():
        assert len(list((folder / "launch").iterdir())) == 1  # the file of the dead launch is swept


def test_launch_services_stay_while_a_process_lives() -> None:
    program = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"%d\\n" % os.getpid())
time.sleep(100)
"""
    with start(program=program) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        process.wait()
        device.set_up("cxi0", True)  # a change would sweep ended launches
        assert not is_clean()
        with launch.begin() as other:
            assert 1024 not in other.vnis
        os.kill(pid, signal.SIGKILL)
        until(is_clean, "services of a job that has ended are still there")
