"""The launchers that Weft recognises, and the variables by which each tells a process its rank.

Each launcher is a function that makes a `Launcher` of the environment, or None. `environment` calls all of them and
puts the innermost first. Sources: srun(1) "OUTPUT ENVIRONMENT VARIABLES"; Slurm's mpi/cray_shasta for PALS_*; what
MPICH 5.0, Intel MPI 2021.19, Open MPI 5.0 and torchrun 2.13 set; pbs_resources(7) for PBS_NODEFILE.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .. import errors
from .hosts import expand_hosts, expand_tasks, hosts_in_file
from .slingshot import NAMES as SLINGSHOT_NAMES
from .slingshot import Slingshot, slingshot

# Slurm's step ids from here on are no steps of srun: batch script, interactive shell, external step.
_STEP_MAX = 0xFFFFFFF0
_ANCESTORS_MAX = 32


@dataclass(frozen=True)
class Launcher:
    """One launcher's account of this process. A value that the launcher does not tell is None, (), or "".

    Attributes:
        name: "Slurm", "PALS", "Open MPI", "PRRTE", "MPICH", "Intel MPI", "PMI", "torchrun", "torch", "weft launch".
        rank: Rank of this process in its job.
        size: Number of processes of the job.
        local_rank: Rank of this process among the processes of this host.
        local_size: Number of processes of this host.
        node: Number of this host in the job.
        hosts: Hosts of the job, in the launcher's order.
        job: The launcher's name for the job.
        address: host:port at which rank 0 can be met (torch: MASTER_ADDR, MASTER_PORT).
    """

    name: str
    rank: int | None = None
    size: int | None = None
    local_rank: int | None = None
    local_size: int | None = None
    node: int | None = None
    hosts: tuple[str, ...] = ()
    job: str = ""
    address: str = ""


@dataclass(frozen=True)
class Launch:
    """How this process was started.

    Attributes:
        launchers: The recognised launchers, the innermost first: that launcher started this process.
        allocation: "Slurm job 7", "PBS job 7.server": the allocation around them; "" if there is none.
        hosts: Hosts of the innermost launcher that tells them, else of the allocation; () if nobody tells.
        hosts_from: The variable that the hosts are from.
        pmi: "PMIx", "PMI": the interface by which an MPI would meet; "" if there is none.
        slingshot: The job's part of a Slingshot fabric, or None.
        variables: The variables that were read and are set, with their texts.
        problems: Inconsistencies, a sentence each.
        notes: Consistent facts and surprises, a sentence each.
    """

    launchers: tuple[Launcher, ...]
    allocation: str
    hosts: tuple[str, ...]
    hosts_from: str
    pmi: str
    slingshot: Slingshot | None
    variables: Mapping[str, str]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of the launcher that started this process; "" if no launcher is recognised."""
        return self.launchers[0].name if self.launchers else ""

    @property
    def rank(self) -> int | None:
        """Of this process, None if no launcher is recognised."""
        return self.launchers[0].rank if self.launchers else None

    @property
    def size(self) -> int | None:
        """Processes of the job, None if the launcher does not tell."""
        return self.launchers[0].size if self.launchers else None

    @property
    def local_rank(self) -> int | None:
        """Rank among the processes of this host, None if the launcher does not tell."""
        return self.launchers[0].local_rank if self.launchers else None

    @property
    def local_size(self) -> int | None:
        """Processes of the job on this host, None if the launcher does not tell."""
        return self.launchers[0].local_size if self.launchers else None


class _Reader:
    """Reads variables, and collects what is wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.read: dict[str, str] = {}
        self.problems: list[str] = []
        self.hosts_from: dict[tuple[str, ...], str] = {}

    def text(self, *names: str) -> str:
        """The first of the variables that is set, else ""."""
        for name in names:
            if found := self.environ.get(name, ""):
                self.read[name] = found
                return found
        return ""

    def number(self, *names: str) -> int | None:
        """The first of the variables that is set, as a number."""
        for name in names:
            found = self.text(name)
            if not found:
                continue
            if re.fullmatch("[0-9]{1,10}", found, re.ASCII):
                return int(found)
            self.problem(f"{name}={found[:40]!r}: not a whole number")
            return None
        return None

    def hosts(self, *names: str) -> tuple[str, ...]:
        """The first of the variables that is set, a list of hosts."""
        found = self.text(*names)
        if not found:
            return ()
        name = next(one for one in names if self.environ.get(one))
        try:
            hosts = hosts_in_file(found) if name == "PBS_NODEFILE" else expand_hosts(found)
        except errors.InvalidArgument as reason:
            self.problem(f"{name}: {str(reason.strerror or reason).splitlines()[0]}")
            return ()
        self.hosts_from.setdefault(hosts, name)  # the first that tells them: the step before the job
        return hosts

    def problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)


# ---- the launchers, the usual nesting from the inside to the outside -------------------------------------------------


def _torch(env: _Reader) -> Launcher | None:
    """torchrun, or another launcher that sets the variables of torch.distributed's env://."""
    elastic = bool(env.text("TORCHELASTIC_RUN_ID"))
    if not elastic and not (env.environ.get("RANK") and env.environ.get("WORLD_SIZE")):
        return None
    host, port = env.text("MASTER_ADDR"), env.text("MASTER_PORT")
    if host and not port:
        env.problem("MASTER_ADDR is set and MASTER_PORT is not: rank 0 cannot be met")
    if port and not (re.fullmatch("[0-9]{1,5}", port, re.ASCII) and 0 < int(port) < 1 << 16):
        env.problem(f"MASTER_PORT={port[:40]!r}: not a port from 1 to 65535")
    return Launcher(
        "torchrun" if elastic else "torch",
        env.number("RANK"),
        env.number("WORLD_SIZE"),
        env.number("LOCAL_RANK"),
        env.number("LOCAL_WORLD_SIZE"),
        env.number("GROUP_RANK"),
        job=env.text("TORCHELASTIC_RUN_ID"),
        address=f"{host}:{port}" if host and port else "",
    )


def _open_mpi(env: _Reader) -> Launcher | None:
    if env.environ.get("OMPI_COMM_WORLD_RANK") is None:
        return None
    return Launcher(
        "Open MPI",
        env.number("OMPI_COMM_WORLD_RANK"),
        env.number("OMPI_COMM_WORLD_SIZE"),
        env.number("OMPI_COMM_WORLD_LOCAL_RANK"),
        env.number("OMPI_COMM_WORLD_LOCAL_SIZE"),
        job=env.text("PMIX_NAMESPACE"),
    )


def _prrte(env: _Reader) -> Launcher | None:
    """prterun without Open MPI's personality: PMIx tells the rank, and the size only to a client of PMIx."""
    if env.environ.get("PRTE_LAUNCHED") is None or env.environ.get("OMPI_COMM_WORLD_RANK") is not None:
        return None
    env.text("PRTE_LAUNCHED")
    return Launcher("PRRTE", env.number("PMIX_RANK"), job=env.text("PMIX_NAMESPACE"))


def _hydra(env: _Reader) -> Launcher | None:
    """MPICH, Intel MPI and others that start processes by Hydra."""
    if env.environ.get("PMI_RANK") is None or env.environ.get("MPI_LOCALNRANKS") is None:
        return None
    intel = env.text("I_MPI_HYDRA_UUID", "HYDRA_BSTRAP_LOCALHOST")
    return Launcher(
        "Intel MPI" if intel else "MPICH",
        env.number("PMI_RANK"),
        env.number("PMI_SIZE"),
        env.number("MPI_LOCALRANKID"),
        env.number("MPI_LOCALNRANKS"),
    )


def _weft(env: _Reader) -> Launcher | None:
    if env.environ.get("WEFT_RANK") is None:
        return None
    return Launcher("weft launch", env.number("WEFT_RANK"), env.number("WEFT_SIZE"))


def _pals(env: _Reader) -> Launcher | None:
    """HPE's PALS. Under Slurm its variables come from srun, which Cray's MPI expects: then Slurm is the launcher."""
    if env.environ.get("PALS_RANKID") is None or _in_step(env):
        return None
    rank = env.number("PALS_RANKID")
    # PALS itself does not tell the size; Cray's PMI does, unless another launcher has replaced its variables.
    same = rank is not None and env.number("PMI_RANK") == rank and env.environ.get("MPI_LOCALNRANKS") is None
    return Launcher(
        "PALS",
        rank,
        env.number("PMI_SIZE") if same else None,
        env.number("PALS_LOCAL_RANKID"),
        env.number("PALS_LOCAL_SIZE", *(["PMI_LOCAL_SIZE"] if same else [])),
        env.number("PALS_NODEID"),
        env.hosts("PBS_NODEFILE"),
        env.text("PALS_APID"),
    )


def _slurm(env: _Reader) -> Launcher | None:
    """A task of srun. A batch script and salloc's shell are in an allocation, and no task."""
    if not _in_step(env):
        return None
    node = env.number("SLURM_NODEID")
    hosts = env.hosts("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    count = env.number("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    if hosts and count is not None and len(hosts) != count:
        env.problem(f"{env.hosts_from[hosts]} has {len(hosts)} hosts, and the step {count}")
    if node is not None and count is not None and node >= count:
        env.problem(f"SLURM_NODEID is {node}, and the step has {count} hosts")
    local = None
    if each := env.text("SLURM_STEP_TASKS_PER_NODE"):
        try:
            tasks = expand_tasks(each)
        except errors.InvalidArgument as reason:
            env.problem(f"SLURM_STEP_TASKS_PER_NODE: {reason.strerror}")
        else:
            local = tasks[node] if node is not None and node < len(tasks) else None
    return Launcher(
        "Slurm",
        env.number("SLURM_PROCID"),
        env.number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        env.number("SLURM_LOCALID"),
        local,
        node,
        hosts,
        f"{env.text('SLURM_JOB_ID')}.{env.text('SLURM_STEP_ID')}",
    )


def _in_step(env: _Reader) -> bool:
    step = env.environ.get("SLURM_STEP_ID", "")
    return bool(
        env.environ.get("SLURM_PROCID") and re.fullmatch("[0-9]{1,10}", step, re.ASCII) and int(step) < _STEP_MAX
    )


def _pmi(env: _Reader) -> Launcher | None:
    """A launcher that only tells PMI's variables."""
    if env.environ.get("PMI_RANK") is None or any(
        env.environ.get(name) is not None for name in ("MPI_LOCALNRANKS", "PALS_RANKID")
    ):
        return None
    if _in_step(env) and env.environ["PMI_RANK"] == env.environ["SLURM_PROCID"]:
        return None  # srun --mpi=pmi2
    return Launcher(
        "PMI",
        env.number("PMI_RANK"),
        env.number("PMI_SIZE"),
        env.number("PMI_LOCAL_RANK"),
        env.number("PMI_LOCAL_SIZE"),
        job=env.text("PMI_JOBID"),
    )


# With the variable by which an ancestor shows that the same launcher started it.
_LAUNCHERS: tuple[tuple[Callable[[_Reader], Launcher | None], str], ...] = (
    (_torch, "RANK"),
    (_open_mpi, "OMPI_COMM_WORLD_RANK"),
    (_prrte, "PMIX_RANK"),
    (_hydra, "PMI_RANK"),
    (_weft, "WEFT_RANK"),
    (_pmi, "PMI_RANK"),
    (_pals, "PALS_RANKID"),
    (_slurm, "SLURM_PROCID"),
)

# ---- all of them -----------------------------------------------------------------------------------------------------


def environment(environ: Mapping[str, str] | None = None) -> Launch:
    """How this process was started: by which launcher, as which rank, on which hosts.

    Args:
        environ: The variables to read; None: those of this process.

    If launchers are nested (torchrun in a task of srun), the innermost is the one whose variables the fewest ancestors
    of this process share, as /proc/<pid>/environ shows; where that does not decide, the usual nesting: torchrun, then
    mpiexec, then `weft launch`, then PALS, then Slurm. Never raises for the content of the variables: `Launch.problems`
    lists their faults. Reads the file that PBS_NODEFILE names.
    """
    env = _Reader(os.environ if environ is None else environ)
    shared = _ancestors() if environ is None else []
    found = []
    for order, (recognise, variable) in enumerate(_LAUNCHERS):
        launcher = recognise(env)
        if launcher is not None:
            _check(launcher, env)
            found.append((_generations(variable, env.environ.get(variable), shared), order, launcher))
    launchers = tuple(launcher for _, _, launcher in sorted(found, key=lambda one: one[:2]))
    allocation, hosts = _allocation(env)
    hosts = next((one.hosts for one in launchers if one.hosts), hosts)
    net, wrong = slingshot(env.environ)
    for name in SLINGSHOT_NAMES:
        env.text(name)
    pmi = "PMIx" if env.text("PMIX_RANK") else "PMI" if env.environ.get("PMI_RANK") is not None else ""
    problems, notes = _nested(launchers)
    return Launch(
        launchers,
        allocation,
        hosts,
        env.hosts_from.get(hosts, ""),
        pmi,
        net,
        dict(sorted(env.read.items())),
        (*env.problems, *problems, *wrong),
        (*notes, *_not_a_task(launchers, allocation)),
    )


def _check(one: Launcher, env: _Reader) -> None:
    for what, rank, size in (("rank", one.rank, one.size), ("local rank", one.local_rank, one.local_size)):
        if rank is not None and size is not None and rank >= size:
            env.problem(f"{one.name}: {what} {rank} of {size} processes: ranks are below the number of processes")
    if one.size is not None and one.local_size is not None and one.local_size > one.size:
        env.problem(f"{one.name}: {one.local_size} processes on this host, and {one.size} in all")
    if one.rank is None:
        env.problem(f"{one.name}: it tells no rank")
    if one.size is None and one.name not in ("PRRTE", "PALS"):
        env.problem(f"{one.name}: it tells a rank and no number of processes")


def _allocation(env: _Reader) -> tuple[str, tuple[str, ...]]:
    if job := env.text("SLURM_JOB_ID"):
        return f"Slurm job {job}", env.hosts("SLURM_JOB_NODELIST", "SLURM_NODELIST")
    if job := env.text("PBS_JOBID"):
        return f"PBS job {job}", env.hosts("PBS_NODEFILE")
    return "", ()


def _nested(launchers: tuple[Launcher, ...]) -> tuple[list[str], list[str]]:
    """(problems, notes) of launchers inside of launchers."""
    problems, notes = [], []
    inner = launchers[0] if launchers else None
    for outer in launchers[1:]:
        assert inner is not None
        if inner.size is not None and (inner.rank, inner.size) == (outer.rank, outer.size):
            notes.append(f"{inner.name} tells the same as {outer.name}: {_told(inner)}")
            continue
        notes.append(
            f"{_told(inner)} runs inside {_told(outer)}: the inner one counts, because it started this process"
        )
        if inner.size == 1 and outer.size is not None and outer.size > 1:
            problems.append(
                f"each of {outer.size} processes of {outer.name} runs a {inner.name} of its own with 1 process: they "
                f"are {outer.size} jobs and not one; start the program by one of the two"
            )
    return problems, notes


def _told(one: Launcher) -> str:
    rank = "?" if one.rank is None else one.rank
    return f"{one.name} (rank {rank} of {'?' if one.size is None else one.size})"


def _not_a_task(launchers: tuple[Launcher, ...], allocation: str) -> list[str]:
    if allocation and not launchers:
        return [f"{allocation}: inside the allocation, but not started by a launcher: srun or mpiexec starts processes"]
    return []


def _ancestors() -> list[dict[str, str]]:
    """The environments of the parent, its parent, ..., as they were started, as far as this user may read them."""
    found: list[dict[str, str]] = []
    pid = os.getppid()
    while pid > 1 and len(found) < _ANCESTORS_MAX:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
        pairs = (os.fsdecode(word).partition("=") for word in words if word)
        found.append({name: value for name, _, value in pairs})
    return found


def _generations(variable: str, value: str | None, ancestors: list[dict[str, str]]) -> int:
    """How many ancestors in a row have the same value."""
    for count, environ in enumerate(ancestors):
        if environ.get(variable) != value:
            return count
    return len(ancestors)
