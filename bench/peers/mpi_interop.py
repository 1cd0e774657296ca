"""What a parameter server and a weight broadcast cost by MPI, as JSON of rank 1: run by bench_interop.py, for each MPI.

get        Get of 64 MiB from rank 0's window, with Flush; bcast: Bcast of 64 MiB from rank 0, seen by rank 1
pull, push Get, and Accumulate(SUM), of 1 MiB of doubles, with Flush

The least and the median of rounds, in microseconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
from mpi4py import MPI
from timing import own_core

WEIGHTS, PARAMETERS = 64 << 20, 1 << 20


def main() -> None:
    comm = MPI.COMM_WORLD
    own_core(comm.rank)
    win = MPI.Win.Allocate(WEIGHTS, 1, comm=comm)
    memory = np.frombuffer(win.tomemory(), "u1")
    memory[:] = 0
    mine, gradient = np.ones(WEIGHTS, "u1"), np.ones(PARAMETERS // 8)
    small = np.ones(PARAMETERS // 8)
    win.Lock_all()
    comm.Barrier()
    found: dict[str, list[float]] = {}

    def one_sided(name, rounds, call):
        if comm.rank == 1:
            found[name] = []
            for _ in range(rounds):
                start = time.perf_counter()
                call()
                win.Flush(0)
                found[name].append((time.perf_counter() - start) * 1e6)
        comm.Barrier()

    one_sided("get", 20, lambda: win.Get([mine, MPI.BYTE], 0))
    one_sided("pull", 100, lambda: win.Get([small, MPI.DOUBLE], 0))
    one_sided("push", 100, lambda: win.Accumulate([gradient, MPI.DOUBLE], 0, op=MPI.SUM))
    found["bcast"] = []
    for _ in range(20):
        comm.Barrier()
        start = time.perf_counter()
        comm.Bcast([mine, MPI.BYTE], 0)
        found["bcast"].append((time.perf_counter() - start) * 1e6)
    win.Unlock_all()
    win.Free()
    if comm.rank == 1:
        told = {name: [min(values), statistics.median(values)] for name, values in found.items()}
        print(json.dumps(told))
    sys.stdout.flush()


main()
