"""One-sided MPI from Python between two ranks, as JSON: run by the benchmarks under mpiexec, once for each MPI.

Every figure is the minimum over short batches, in nanoseconds, as in Weft's benchmarks.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from mpi4py import MPI
from timing import SIZES, count_of, least, own_core, ping_pong

NBYTES = 1 << 20
BLOCK = 4 << 20  # of an Accumulate


def main() -> None:
    comm = MPI.COMM_WORLD
    if comm.size != 2:
        sys.exit("run me with two ranks")
    me, other = comm.rank, 1 - comm.rank
    own_core(me)
    win = MPI.Win.Allocate(NBYTES + 4096, 1, comm=comm)
    memory = np.frombuffer(win.tomemory(), "u1")
    memory[:] = 0
    local = np.ones(NBYTES, "u1")  # written, because all unwritten pages are one page of zeros, always in cache
    one, old = np.ones(1, "u8"), np.zeros(1, "u8")
    sums = MPI.Win.Allocate(BLOCK, 8, comm=comm)
    np.frombuffer(sums.tomemory(), "u1")[:] = 0
    win.Lock_all()
    sums.Lock_all()
    comm.Barrier()
    found: dict[str, float | str] = {
        "library": " ".join(MPI.Get_library_version().split("\n")[0].split(",")[0].split())
    }

    def each(call, size):
        buffer = [local[:size], MPI.BYTE]

        def run(count):
            for _ in range(count):
                call(buffer, other)
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

    def swap(count):
        for _ in range(count):
            win.Compare_and_swap(one, one, old, other, NBYTES)
            win.Flush(other)

    def accumulate(kind):
        block = np.ones(BLOCK // np.dtype(kind).itemsize, kind)

        def run(count):
            for _ in range(count):
                sums.Accumulate(block, other, op=MPI.SUM)
                sums.Flush(other)

        return run

    if me == 0:
        found["put_8_call"] = least(puts, 200)
        for size in (8, 64, *SIZES):
            found[f"put_{size}"] = least(each(win.Put, size), count_of(size))
            found[f"get_{size}"] = least(each(win.Get, size), count_of(size))
        found["fetch_add"] = least(add, 200)
        found["compare_swap"] = least(swap, 200)
        for kind in ("i8", "f8", "f4"):
            found[f"accumulate_{kind}"] = least(accumulate(kind), 2, 15)
    memory[:16] = 0
    comm.Barrier()

    # Half a round trip: the word is put into the peer's window, which polls it and puts it back.
    word = np.zeros(1, "u8")
    inbox = memoryview(memory[8:16]).cast("Q")

    def send(at):
        word[0] = at
        win.Put([word, MPI.BYTE], other, 8)
        win.Flush(other)

    def receive(at):
        spins = 0
        while inbox[0] != at:
            spins += 1
            if spins % 1000 == 0:
                win.Sync()

    ns = ping_pong(send, receive) if me == 0 else ping_pong(receive, send)
    found["half_round_trip"] = ns
    comm.Barrier()
    win.Unlock_all()
    sums.Unlock_all()
    win.Free()
    sums.Free()
    if me == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
