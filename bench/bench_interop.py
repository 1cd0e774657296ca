"""Weights that a reader takes from a trainer; a parameter server's pull and push. attach_all, beside mpi4py and gloo.

Two processes, each on its own core. All rows are seen by the process that needs the data: the least of many rounds, and
their median. memcpy of the same size is measured in turn with Weft's rounds.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np

import weft
from common import HERE, Row, _peer, mpi_of, publish, spread
from weft.interop.store import FileStore, attach_all

WEIGHTS, PARAMETERS = 64 << 20, 1 << 20
ROUNDS = 20
GLOO = "gloo"


def own_core(rank: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def trainer(folder: str, done: Event) -> None:
    """Rank 0: has the weights and the parameters, in memory of Weft and in NumPy's."""
    own_core(0)
    arrays = {
        "weights": weft.full(WEIGHTS, 1, "u1"),
        "foreign": np.full(WEIGHTS, 1, "u1"),
        "parameters": weft.ones(PARAMETERS // 8),
    }
    with attach_all(FileStore(folder), arrays, rank=0, size=2):
        done.wait(300)


def timed_us(call: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


def measure(folder: str) -> list[tuple[str, float | None, tuple[float, float], tuple[float, float], dict[str, str]]]:
    """(row, budget as a multiple of the limit, (least, median), the limit's, the peers' figures) of each row."""
    own_core(1)
    with attach_all(FileStore(folder), None, rank=1, size=2) as peers:
        weights, foreign, parameters = (peers[0, name] for name in ("weights", "foreign", "parameters"))
        view = weights.view("r")
        mine, source = np.zeros(WEIGHTS, "u1"), np.ones(WEIGHTS, "u1")
        small, small_source, gradient = (np.ones(PARAMETERS // 8) for _ in range(3))
        large = functools.partial(timed_us, lambda: np.copyto(mine, source))
        little = functools.partial(timed_us, lambda: np.copyto(small, small_source))
        local = np.zeros(PARAMETERS // 8)
        add = functools.partial(timed_us, lambda: np.add(local, gradient, out=local))
        wins = {f"{mpi} {call}": f"{mpi}/{call}" for mpi in ("MPICH", "Open MPI") for call in ("get", "bcast")}
        pulls = {f"{mpi} Get": f"{mpi}/pull" for mpi in ("MPICH", "Open MPI")}
        pushes = {f"{mpi} Accumulate": f"{mpi}/push" for mpi in ("MPICH", "Open MPI")}
        target, lock = parameters.view("rw"), weft.Lock(f"bench-interop-{os.getpid()}")

        def locked() -> None:
            with lock:
                np.add(target, gradient, out=target)

        found = []
        for name, budget, call, limit, rounds, others in (
            ("64 MiB of weights, copied from a view", 1.1, lambda: np.copyto(mine, view), large,
             ROUNDS, wins | {"gloo broadcast": "gloo/broadcast"}),
            ("64 MiB of weights, read(out=)", 1.1, lambda: weights.read(out=mine), large, ROUNDS,
             wins | {"gloo broadcast": "gloo/broadcast"}),
            ("64 MiB of weights in NumPy's memory, read(out=)", None, lambda: foreign.read(out=mine), large, ROUNDS,
             {}),
            ("pull 1 MiB of parameters", 1.1, lambda: parameters.read(out=small), little, 200, pulls),
            ("push 1 MiB: into a view, under a weft.Lock", 1.1, locked, add, 200,
             pushes | {"gloo allreduce": "gloo/allreduce"}),
            ("push 1 MiB: add(..., gradient), each element atomic", None, lambda: parameters.add(..., gradient), add,
             100, pushes | {"gloo allreduce": "gloo/allreduce"}),
        ):  # fmt: skip
            call()
            ours, theirs = spread(rounds, functools.partial(timed_us, call), limit)
            found.append((name, budget, ours, theirs, others))
    return found


def others() -> dict[str, float | None]:
    """Figures of MPI and gloo, "<library>/<call>"; None: not installed."""
    found: dict[str, float | None] = {}
    programs: dict[str, Any] = {mpi: mpi_of(mpi, "mpi_interop.py", 2) for mpi in ("MPICH", "Open MPI")}
    programs[GLOO] = _peer(GLOO, [sys.executable, str(HERE / "peers" / "gloo.py")], {})
    calls = {GLOO: ("broadcast", "allreduce")}
    for name, told in programs.items():
        for call in calls.get(name, ("get", "bcast", "pull", "push")):
            found[f"{name}/{call}"] = None if told is None else told[call][0]
    return found


def main() -> None:
    beside = others()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        done = context.Event()
        process = context.Process(target=trainer, args=(f"{folder}/store", done))
        process.start()
        try:
            found = measure(f"{folder}/store")
        finally:
            done.set()
            process.join(30)
    rows = []
    for name, budget, (best, usual), (limit, _), wanted in found:
        peers = {shown: beside[key] for shown, key in wanted.items()}
        words = "" if budget is None else f"<= {budget} x the limit"
        met = None if budget is None else best <= budget * limit
        limit_is = "numpy.add of local arrays" if "push" in name else "memcpy (numpy.copyto)"
        rows.append(Row(name, words, best, "us", met, limit, limit_is, peers=peers, median=usual))
    publish("interop", rows)
    print(json.dumps({row.path: round(row.value / (row.limit or 1), 2) for row in rows}), "x the limit")


if __name__ == "__main__":
    main()
