"""One-sided MPI from Python between two ranks, as JSON: run by the benchmarks under mpiexec, once for each MPI.

Every figure is the least over short batches, in nanoseconds, as in the benchmarks that stand beside it.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from mpi4py import MPI

NBYTES = 1 << 20
clock = time.perf_counter_ns


def least(run, count, rounds=30):
    best = float("inf")
    for _ in range(rounds):
        start = clock()
        run(count)
        best = min(best, (clock() - start) / count)
    return best


def main() -> None:
    comm = MPI.COMM_WORLD
    if comm.size != 2:
        sys.exit("run me with two ranks")
    me, other = comm.rank, 1 - comm.rank
    win = MPI.Win.Allocate(NBYTES + 4096, 1, comm=comm)
    memory = np.frombuffer(win.tomemory(), "u1")
    memory[:] = 0
    local = np.zeros(NBYTES, "u1")
    one, old = np.ones(1, "u8"), np.zeros(1, "u8")
    win.Lock_all()
    comm.Barrier()
    found: dict[str, float | str] = {
        "library": " ".join(MPI.Get_library_version().split("\n")[0].split(",")[0].split())
    }

    def put(size):
        buffer = [local[:size], MPI.BYTE]

        def run(count):
            for _ in range(count):
                win.Put(buffer, other)
                win.Flush(other)

        return run

    def get(size):
        buffer = [local[:size], MPI.BYTE]

        def run(count):
            for _ in range(count):
                win.Get(buffer, other)
                win.Flush(other)

        return run

    def puts(count):
        buffer = [local[:8], MPI.BYTE]
        for _ in range(count):
            win.Put(buffer, other)
        win.Flush(other)

    def add(count):
        for _ in range(count):
            win.Fetch_and_op(one, old, other, NBYTES)
            win.Flush(other)

    if me == 0:
        found["put_8_call"] = least(puts, 200)
        found["put_8"] = least(put(8), 200)
        found["put_4096"] = least(put(4096), 200)
        found["put_65536"] = least(put(65536), 50)
        found["put_1048576"] = least(put(1 << 20), 5)
        found["get_65536"] = least(get(65536), 50)
        found["get_1048576"] = least(get(1 << 20), 5)
        found["fetch_add"] = least(add, 200)
    comm.Barrier()

    # Half a round trip: the word is put into the peer's window, which polls it and puts it back.
    word = np.zeros(1, "u8")
    inbox = memoryview(memory[8:16]).cast("Q")
    start, best, at = 0, float("inf"), 0
    for _ in range(20):
        comm.Barrier()
        start = clock()
        for _ in range(200):
            at += 1
            word[0] = at
            if me == 0:
                win.Put([word, MPI.BYTE], other, 8)
                win.Flush(other)
            spins = 0
            while inbox[0] != at:
                spins += 1
                if spins % 1000 == 0:
                    win.Sync()
            if me == 1:
                win.Put([word, MPI.BYTE], other, 8)
                win.Flush(other)
        best = min(best, (clock() - start) / 400)
    found["half_round_trip"] = best
    comm.Barrier()
    win.Unlock_all()
    win.Free()
    if me == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
