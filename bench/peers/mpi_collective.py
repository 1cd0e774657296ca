"""Collectives of MPI from Python, as JSON of the first rank: run by bench_collective.py under mpiexec, for each MPI.

barrier, allreduce   Barrier; Allreduce of 8 bytes: the batches of 100 calls, in microseconds of a call
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
    found = {}
    for name, call in (("barrier", comm.Barrier), ("allreduce", lambda: comm.Allreduce(value, out))):
        found[name] = []
        for batch in range(BATCHES + 1):
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            if batch:
                found[name].append((time.perf_counter() - start) / CALLS * 1e6)
    if comm.rank == 0:
        print(json.dumps(found))
    sys.stdout.flush()


main()
