"""The environments of launchers, as each launcher makes them, and their inconsistencies."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
from tests import patience

from weft import launch
from weft.launch.variables import VARIABLES

Env = dict[str, str]

# Of a task of srun, with two processes on each of two hosts.
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "nid[000003-000004]",
    "SLURM_JOB_NODELIST": "nid[000003-000006]",
}
PALS = {"PALS_RANKID": "5", "PALS_LOCAL_RANKID": "1", "PALS_NODEID": "1", "PALS_APID": "b7c0", "PMI_RANK": "5"}
PALS |= {"PMI_SIZE": "8", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4", "PMI_CONTROL_PORT": "29000"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "11"}
INTEL = MPICH | {"I_MPI_HYDRA_UUID": "be1d", "HYDRA_BSTRAP_LOCALHOST": "vm"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-vm-7599@1",
    "PMIX_RANK": "1",
    "PRTE_LAUNCHED": "1",
}
PRRTE = {"PRTE_LAUNCHED": "1", "PMIX_NAMESPACE": "prterun-vm-7343@1", "PMIX_RANK": "1"}
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "35073",
    "TORCHELASTIC_RUN_ID": "none",
}
WEFT = {"WEFT_RANK": "0", "WEFT_SIZE": "4"}
SLINGSHOT = {"SLINGSHOT_VNIS": "1024,1025", "SLINGSHOT_DEVICES": "cxi0,cxi1", "SLINGSHOT_SVC_IDS": "5,6"}
SLINGSHOT |= {"SLINGSHOT_TCS": "0xa"}


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (SLURM, ("Slurm", 3, 4, 1, 2)),
        (SLURM | {"PMI_RANK": "3", "PMI_SIZE": "4"}, ("Slurm", 3, 4, 1, 2)),  # srun --mpi=pmi2
        (SLURM | PALS | {"PALS_RANKID": "3", "PMI_RANK": "3"}, ("Slurm", 3, 4, 1, 2)),  # srun --mpi=cray_shasta
        (PALS, ("PALS", 5, 8, 1, 4)),
        (PALS | {"PMI_RANK": "2"}, ("PALS", 5, None, 1, None)),  # PMI's variables are another launcher's
        (MPICH, ("MPICH", 1, 2, 1, 2)),
        (INTEL, ("Intel MPI", 1, 2, 1, 2)),
        (OPEN_MPI, ("Open MPI", 1, 2, 1, 2)),
        (PRRTE, ("PRRTE", 1, None, None, None)),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, ("PMI", 2, 3, None, None)),
        (TORCHRUN, ("torchrun", 1, 2, 1, 2)),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ("torch", 0, 2, None, None)),
        (WEFT, ("weft launch", 0, 4, None, None)),
        ({}, ("", None, None, None, None)),
        ({"RANK": "3"}, ("", None, None, None, None)),  # a common name
        ({"SLURM_JOB_ID": "4711", "SLURM_NNODES": "2"}, ("", None, None, None, None)),  # salloc's shell
        (SLURM | {"SLURM_STEP_ID": "4294967290"}, ("", None, None, None, None)),  # salloc's interactive step
    ],
)
def test_launcher_is_recognised(environ: Env, told: tuple[object, ...]) -> None:
    found = launch.environment(environ)
    assert (found.name, found.rank, found.size, found.local_rank, found.local_size) == told
    assert found.problems == ()


def test_variables_that_are_read_are_documented() -> None:
    """VARIABLES, of which the documentation has a table, has every variable that an environment here shows."""
    documented = {name for names in VARIABLES.values() for name in names}
    pbs = {"PBS_JOBID": "1", "PBS_NODEFILE": os.devnull}
    for environ in (SLURM | SLINGSHOT, SLURM | PALS, PALS | pbs, MPICH, INTEL, OPEN_MPI, PRRTE, TORCHRUN, WEFT):
        assert set(launch.environment(environ).variables) <= documented


def test_slurm_hosts_are_those_of_the_step() -> None:
    found = launch.environment(SLURM)
    assert (found.hosts, found.hosts_from) == (("nid000003", "nid000004"), "SLURM_STEP_NODELIST")
    assert (found.allocation, found.launchers[0].job, found.launchers[0].node) == ("Slurm job 4711", "4711.0", 1)
    assert set(found.variables) <= set(SLURM)


def test_slurm_hosts_are_those_of_the_step_where_it_has_the_whole_job() -> None:
    found = launch.environment(SLURM | {"SLURM_JOB_NODELIST": SLURM["SLURM_STEP_NODELIST"]})
    assert found.hosts_from == "SLURM_STEP_NODELIST"


def test_hosts_of_the_allocation_where_the_launcher_tells_none() -> None:
    """mpirun and torchrun in an allocation of Slurm's."""
    around = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "nid[3-6]", "SLURM_PROCID": "0"}
    for inner in (OPEN_MPI, TORCHRUN):
        found = launch.environment(around | inner)
        assert (found.hosts, found.hosts_from) == (("nid3", "nid4", "nid5", "nid6"), "SLURM_JOB_NODELIST")
        assert len(found.launchers) == 1


def test_pals_hosts_are_in_the_file_of_pbs(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("x1000c0\nx1000c0\nx1000c1\n")
    found = launch.environment(PALS | {"PBS_JOBID": "12.polaris", "PBS_NODEFILE": str(tmp_path / "nodes")})
    assert found.hosts == ("x1000c0", "x1000c1")
    assert (found.hosts_from, found.allocation) == ("PBS_NODEFILE", "PBS job 12.polaris")
    gone = launch.environment(PALS | {"PBS_NODEFILE": str(tmp_path / "gone")})
    assert gone.hosts == ()
    assert "gone: No such file" in gone.problems[0]


def test_allocation_without_a_launcher_is_a_note() -> None:
    (note,) = launch.environment({"SLURM_JOB_ID": "4711"}).notes
    assert "not started by a launcher" in note


def test_slingshot_values() -> None:
    net = launch.environment(SLURM | SLINGSHOT).slingshot
    assert net == launch.Slingshot((1024, 1025), ("cxi0", "cxi1"), (5, 6), ("LOW_LATENCY", "BEST_EFFORT"))
    assert launch.environment(SLURM).slingshot is None
    later = launch.environment(SLURM | SLINGSHOT | {"SLINGSHOT_TCS": "0x12"}).slingshot
    assert later is not None
    assert later.tcs == ("LOW_LATENCY", "0x10")


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"SLINGSHOT_VNIS": "1024-1027"}, "'1024-1027' is not a VNI: numbers from 1 to 65535 joined by ','"),
        ({"SLINGSHOT_VNIS": "1024:1025"}, "'1024:1025' is not a VNI"),
        ({"SLINGSHOT_VNIS": "0"}, "'0' is not a VNI"),
        ({"SLINGSHOT_VNIS": "65536"}, "'65536' is not a VNI"),
        ({"SLINGSHOT_VNIS": "10,10"}, "an entry is there twice"),
        ({"SLINGSHOT_VNIS": "x" * 10000}, "is not a VNI"),
        ({"SLINGSHOT_DEVICES": "cxi0,cxi1,cxi2"}, "has 3 entries, SLINGSHOT_SVC_IDS=5,6 has 2: one for each device"),
        ({"SLINGSHOT_DEVICES": "cxi0"}, "has 1 entries, SLINGSHOT_SVC_IDS=5,6 has 2: one for each device"),
        ({"SLINGSHOT_SVC_IDS": "5,0"}, "'0' is not a service's id"),
        ({"SLINGSHOT_SVC_IDS": ""}, "SLINGSHOT_SVC_IDS: not set, but SLINGSHOT_VNIS"),
        ({"SLINGSHOT_SVC_IDS": "5,-1"}, "'-1' is not a service's id"),
        ({"SLINGSHOT_TCS": "bulk"}, "SLINGSHOT_TCS=bulk: not a number such as 0xf"),
        ({"SLURM_PROCID": "4"}, "Slurm: rank 4 of 4 processes: ranks are below the number of processes"),
        ({"SLURM_PROCID": "-1"}, "SLURM_PROCID='-1': not a whole number"),
        ({"SLURM_LOCALID": "2"}, "Slurm: local rank 2 of 2 processes"),
        ({"SLURM_NODEID": "2"}, "SLURM_NODEID is 2, and the step has 2 hosts"),
        ({"SLURM_STEP_NUM_NODES": "3"}, "SLURM_STEP_NODELIST has 2 hosts, and the step 3"),
        ({"SLURM_STEP_NODELIST": "nid[3-"}, "SLURM_STEP_NODELIST: 'nid[3-' is not a list of hosts"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x"}, "SLURM_STEP_TASKS_PER_NODE: '2(x' is not a list such as 2(x3),1"),
        ({"SLURM_STEP_TASKS_PER_NODE": "5(x2)"}, "Slurm: 5 processes on this host, and 4 in all"),
        ({"SLURM_STEP_TASKS_PER_NODE": "9(x2)"}, "Slurm: 9 processes on this host, and 4 in all"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": ""}, "Open MPI: it tells a rank and no number of processes"),
        (TORCHRUN | {"RANK": ""}, "torchrun: it tells no rank"),
        (TORCHRUN | {"MASTER_PORT": ""}, "MASTER_ADDR is set and MASTER_PORT is not"),
        (TORCHRUN | {"MASTER_PORT": "0"}, "MASTER_PORT='0': not a port from 1 to 65535"),
        (TORCHRUN | {"MASTER_PORT": "65536"}, "MASTER_PORT='65536': not a port from 1 to 65535"),
        (TORCHRUN | {"MASTER_PORT": "70000"}, "MASTER_PORT='70000': not a port from 1 to 65535"),
        (MPICH | {"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, "they are 4 jobs"),
    ],
)
def test_what_is_inconsistent_is_told(environ: Env, problem: str) -> None:
    found = launch.environment(SLURM | SLINGSHOT | environ)
    assert any(problem in one for one in found.problems), found.problems
    assert all(len(one) < 400 for one in found.problems)


def test_nested_launchers_of_one_environment_have_the_usual_order() -> None:
    """The ancestors are not asked, because the environment is not this process's own."""
    found = launch.environment(SLURM | {"SLURM_PROCID": "0"} | WEFT | OPEN_MPI | TORCHRUN)
    assert [one.name for one in found.launchers] == ["torchrun", "Open MPI", "weft launch", "Slurm"]
    assert (found.rank, found.size) == (1, 2)
    assert any("Open MPI (rank 1 of 2) runs inside" not in note and "tells the same as" in note for note in found.notes)
    assert any("torchrun (rank 1 of 2) runs inside Slurm (rank 0 of 4)" in note for note in found.notes)


@pytest.mark.procs
@pytest.mark.parametrize("inner", [SLURM, WEFT, MPICH], ids=["srun", "weft launch", "mpiexec"])
def test_nested_launcher_that_started_this_process_is_first(inner: Env) -> None:
    """A process of torchrun starts another launcher, whose process asks: the order is not the usual one."""
    program = "from weft import launch; print(*(one.name for one in launch.environment().launchers), sep=',')"
    between = f"import os, subprocess, sys; subprocess.run(sys.argv[1:], env=os.environ | {inner!r}, check=True)"
    found = patience.run(
        [sys.executable, "-c", between, sys.executable, "-c", program], 60, env=_without_launchers() | TORCHRUN
    )
    assert found.stdout.strip().split(",") == [launch.environment(inner).name, "torchrun"], found.stderr


def _without_launchers() -> Env:
    """This process's environment without variables of launchers: the tests themselves may run under one."""
    ours = ("SLURM_", "PALS_", "PMI", "OMPI_", "PRTE_", "MPI_", "I_MPI_", "HYDRA_", "HYDI_", "TORCHELASTIC_")
    ours += ("SLINGSHOT_", "PBS_", "WEFT_RANK", "WEFT_SIZE")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours) and name not in TORCHRUN}


def _launchers() -> dict[str, tuple[list[str], Env]]:
    """Launchers that may be installed beside this Python: name -> command and environment."""
    prefix = sysconfig.get_path("data")
    root = {f"{one}_ALLOW_RUN_AS_ROOT{end}": "1" for one in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    open_mpi = {"OPAL_PREFIX": prefix, "LD_LIBRARY_PATH": f"{prefix}/lib", **(root if os.geteuid() == 0 else {})}
    many = ["-n", "2"]
    return {
        "MPICH": (["mpiexec.hydra", *many], {}),
        "Open MPI": (["prterun", "--personality", "ompi", *many], open_mpi),
        "PRRTE": (["prterun", *many], open_mpi),
        "torchrun": (["torchrun", "--nproc-per-node", "2", "--no-python"], {}),
    }


@pytest.mark.procs
@pytest.mark.parametrize("name", ["MPICH", "Open MPI", "PRRTE", "torchrun"])
def test_real_launcher_starts_two_ranks(name: str) -> None:
    command, env = _launchers()[name]
    where = shutil.which(command[0], path=sysconfig.get_path("scripts"))
    if where is None or os.environ.get("WEFT_SANITIZED"):
        pytest.skip(f"{command[0]} is not installed beside this Python, or would be sanitized as well")
    if not _runs_by_itself(name, where):
        pytest.skip(f"{command[0]} belongs to another library")
    program = (
        "import json; from weft import launch; f = launch.environment(); print(json.dumps([f.name, f.rank, f.size]))"
    )
    found = patience.run([where, *command[1:], sys.executable, "-c", program], 90, env=_without_launchers() | env)
    # A launcher may put the ranks' outputs into one line.
    said = sorted(json.loads(part) for part in re.findall(r"\[[^][]*\]", found.stdout))
    size = None if name == "PRRTE" else 2
    assert said == [[name, 0, size], [name, 1, size]], found.stderr


def _runs_by_itself(name: str, where: str) -> bool:
    """Whether a command of that name is the launcher's own."""
    if name != "MPICH":
        return True
    version = patience.run([where, "--version"], timeout=60)
    return "HYDRA" in version.stdout
