"""Shared by the programs in this folder: the minimum of many batches, and a core for each process."""

from __future__ import annotations

import os
import time

clock = time.perf_counter_ns
SIZES = (4096, 65536, 1 << 20)  # besides 8


def least(run, count, rounds=30):
    """Nanoseconds of one of `count` in run(count): the least over the rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = clock()
        run(count)
        best = min(best, (clock() - start) / count)
    return best


def count_of(size):
    """Operations in a batch: fewer if they are large."""
    return 200 if size <= 4096 else 50 if size <= 65536 else 5


def own_core(rank):
    """Bind the process to its own core if there are enough cores, like Weft's two processes."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def ping_pong(send, receive, rounds=200, batches=20):
    """Nanoseconds of half a round trip; send(i) and receive(i) of the process that begins."""
    best, at = float("inf"), 0
    for _ in range(batches):
        start = clock()
        for _ in range(rounds):
            at += 1
            send(at)
            receive(at)
        best = min(best, (clock() - start) / (2 * rounds))
    return best
