"""Collectives of MPI from Python, as JSON of the first rank: run by bench_collective.py under mpiexec, for each MPI.

barrier, allreduce   Barrier; Allreduce of 8 bytes: the batches of 100 calls, in microseconds of a call
array                Allreduce of 1 MiB of doubles: batches of 10 calls
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from mpi4py import MPI

CALLS, BATCHES = 100, 20


def main():
    comm = MPI.COMM_WORLD
    value, out = np.ones(1), np.zeros(1)
    array, total = np.ones(1 << 17), np.zeros(1 << 17)
    found = {}
    for name, calls, call in (
        ("barrier", CALLS, comm.Barrier),
        ("allreduce", CALLS, lambda: comm.Allreduce(value, out)),
        ("array", CALLS // 10, lambda: comm.Allreduce(array, total)),
    ):
        found[name] = []
        for batch in range(BATCHES + 1):
            start = time.perf_counter()
            for _ in range(calls):
                call()
            if batch:
                found[name].append((time.perf_counter() - start) / calls * 1e6)
    if comm.rank == 0:
        print(json.dumps(found))
    sys.stdout.flush()


main()
