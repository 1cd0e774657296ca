"""Messages of MPI from Python between two ranks, as JSON: run by the benchmarks under mpiexec, once for each MPI.

message_N        half a round trip of Send and Recv of N bytes, both with a tag; message_N_median: of the same batches
message_rate     Isend of 8 bytes one way, 64 at a time, with as many Irecv posted; a message
match_posted_N   Send to itself that takes one of N posted receives, by tag, and Wait; match_unexpected_N: Recv that
                 takes one of N messages

Figures are the least over short batches, in nanoseconds, as in Weft's benchmarks.
"""

from __future__ import annotations

import json
import random
import statistics
import sys

import numpy as np
from mpi4py import MPI
from timing import clock, own_core

LARGE = 1 << 20
TAG, WINDOW, DEPTH = 7, 64, 100_000
BATCHES = 40


def trips(comm, size, rounds):
    """Half a round trip of each batch, in nanoseconds."""
    first, other = comm.rank == 0, 1 - comm.rank
    there, here = [np.ones(size, "u1"), MPI.BYTE], [np.zeros(size, "u1"), MPI.BYTE]
    send, receive = comm.Send, comm.Recv
    found = []
    for _ in range(BATCHES):
        comm.Barrier()
        start = clock()
        for _ in range(rounds):
            if first:
                send(there, other, TAG)
                receive(here, other, TAG)
            else:
                receive(here, other, TAG)
                send(there, other, TAG)
        found.append((clock() - start) / (2 * rounds))
    return found


def one_way(comm, count):
    """Nanoseconds of a message: `count` of them in windows, until the answer to the last."""
    other = 1 - comm.rank
    buffer, answer = [np.ones(8, "u1"), MPI.BYTE], [np.zeros(1, "u1"), MPI.BYTE]
    best = float("inf")
    for _ in range(BATCHES // 4):
        comm.Barrier()
        start = clock()
        for _ in range(count // WINDOW):
            if comm.rank == 0:
                MPI.Request.Waitall([comm.Isend(buffer, other, TAG) for _ in range(WINDOW)])
            else:
                MPI.Request.Waitall([comm.Irecv(buffer, other, TAG) for _ in range(WINDOW)])
        if comm.rank == 0:
            comm.Recv(answer, other, TAG)
        else:
            comm.Send(answer, other, TAG)
        best = min(best, (clock() - start) / (count // WINDOW * WINDOW))
    return best


def matches(depth):
    """(posted, unexpected): nanoseconds of a match behind so many entries, by messages to itself."""
    comm = MPI.COMM_SELF
    text, room = [np.ones(8, "u1"), MPI.BYTE], [np.zeros(8, "u1"), MPI.BYTE]
    tags = random.Random(1).sample(range(depth), depth)
    requests = {tag: comm.Irecv(room, 0, tag) for tag in tags}
    posted = float("inf")
    for tag in tags[depth // 2 : depth // 2 + 20]:
        start = clock()
        comm.Send(text, 0, tag)
        requests[tag].Wait()
        posted = min(posted, clock() - start)
        del requests[tag]
    for request in requests.values():
        request.Cancel()
    for request in requests.values():
        request.Wait()
    sends = [comm.Isend(text, 0, tag) for tag in tags]
    unexpected = float("inf")
    middle = tags[depth // 2 : depth // 2 + 20]
    for tag in middle:
        start = clock()
        comm.Recv(room, 0, tag)
        unexpected = min(unexpected, clock() - start)
    for tag in [tag for tag in tags if tag not in set(middle)]:
        comm.Recv(room, 0, tag)
    MPI.Request.Waitall(sends)
    return posted, unexpected


def main() -> None:
    comm = MPI.COMM_WORLD
    if comm.size != 2:
        sys.exit("run me with two ranks")
    own_core(comm.rank)
    found: dict[str, float | str] = {
        "library": " ".join(MPI.Get_library_version().split("\n")[0].split(",")[0].split())
    }
    for size, rounds in ((8, 500), (LARGE, 20)):
        batches = trips(comm, size, rounds)
        found[f"message_{size}"] = min(batches)
        found[f"message_{size}_median"] = statistics.median(batches)
    found["message_rate"] = one_way(comm, 6400)
    if comm.rank == 0 and "match" in sys.argv:
        found[f"match_posted_{DEPTH}"], found[f"match_unexpected_{DEPTH}"] = matches(DEPTH)
    comm.Barrier()
    if comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
