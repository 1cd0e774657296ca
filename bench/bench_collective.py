"""Groups of 2 to 16 processes: a barrier, an allreduce of 8 bytes, and weft.Group's of 1 MiB, beside mpi4py.

The members wait in sread(), which polls, and yields the core where other processes want it: with more processes than
cores a reduction costs turns of the scheduler, of every library.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import weft
from common import Row, mpi_of, publish
from weft import fi

COUNTS = (2, 3, 4, 8, 16)
CALLED = {"barrier": "barrier", "allreduce": "allreduce of 8 B", "array": "weft.Group: allreduce of 1 MiB"}
CALLS, BATCHES, ROUNDS = 100, 20, 2
WARM = 3000  # calls: for some milliseconds after a sleeping wait (the join) the engines still compete for the cores


class Member:
    """One process's membership of the group of all."""

    def __init__(self) -> None:
        hints = fi.Info(caps=fi.MSG | fi.COLLECTIVE, fabric_attr=fi.FabricAttr(prov_name="weft"))
        info = fi.getinfo(hints=hints)[0]
        self.fabric = fi.Fabric(info.fabric_attr)
        self.domain = self.fabric.domain(info)
        self.eq, self.cq, self.av = self.fabric.eq_open(), self.domain.cq_open(), self.domain.av_open()
        self.ep = self.domain.endpoint(info)
        self.ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
        self.ep.bind(self.av)
        self.ep.bind(self.eq)
        self.ep.enable()

    def join(self, names: list[str]) -> None:
        self.av.insert(names)
        self.set = self.av.av_set(fi.AvSetAttr(flags=fi.UNIVERSE))
        self.group = self.ep.join_collective(fi.ADDR_NOTAVAIL, self.set)
        self.eq.sread(60)
        self.addr = self.group.addr

    def barriers(self, count: int) -> None:
        barrier, addr, sread = self.ep.barrier, self.addr, self.cq.sread
        for _ in range(count):
            barrier(addr)
            sread()

    def sums(self, count: int) -> None:
        allreduce, addr, sread = self.ep.allreduce, self.addr, self.cq.sread
        value, out = np.ones(1), np.zeros(1)
        for _ in range(count):
            allreduce(value, 1, None, out, None, addr, fi.DOUBLE, fi.SUM)
            sread()

    def close(self) -> None:
        self.barriers(1)
        for one in (self.group, self.set, self.ep, self.av, self.cq, self.eq, self.domain, self.fabric):
            one.close()


def member() -> None:
    """A process of the group: joins, measures, and prints microseconds of one call, by batch."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(sys.argv[2]) % len(cores)]})  # as mpiexec binds ranks
    me = Member()
    print(json.dumps(me.ep.getname()), flush=True)
    me.join(json.loads(sys.stdin.readline()))
    found: dict[str, list[float]] = {}
    for name, run in (("barrier", me.barriers), ("allreduce", me.sums)):
        run(WARM)
        found[name] = []
        for _ in range(BATCHES):
            start = time.perf_counter()
            run(CALLS)
            found[name].append((time.perf_counter() - start) / CALLS * 1e6)
    me.close()
    with weft.Group(f"bench.{sys.argv[3]}", int(sys.argv[4]), int(sys.argv[2])) as group:
        array, total = np.ones(1 << 17), np.zeros(1 << 17)
        found["array"] = []
        for batch in range(BATCHES + 1):
            start = time.perf_counter()
            for _ in range(CALLS // 10):
                group.allreduce(array, out=total)
            if batch:
                found["array"].append((time.perf_counter() - start) / (CALLS // 10) * 1e6)
    print(json.dumps(found), flush=True)


def measure(count: int) -> dict[str, list[float]]:
    """Batches of the first member of a group."""
    command, more = [sys.executable, __file__, "member"], (str(os.getpid()), str(count))
    running = [
        subprocess.Popen([*command, str(i), *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for i in range(count)
    ]
    try:
        names = [json.loads(one.stdout.readline()) for one in running]  # type: ignore[union-attr]
        for one in running:
            print(json.dumps(names), file=one.stdin, flush=True)
        said: list[Any] = [json.loads(one.stdout.readline()) for one in running]  # type: ignore[union-attr]
        for one in running:
            one.wait(60)
        return said[0]
    finally:
        for one in running:
            one.kill()
            one.wait()


def libraries(count: int) -> dict[str, dict[str, list[float]] | None]:
    """The same for each MPI; None: not installed."""
    return {name: mpi_of(name, "mpi_collective.py", count) for name in ("MPICH", "Open MPI")}


def joined(rounds: Sequence[dict[str, list[float]] | None]) -> dict[str, list[float]]:
    """The batches of all rounds, by call; empty: not installed."""
    found: dict[str, list[float]] = {}
    for one in rounds:
        for call, batches in (one or {}).items():
            found.setdefault(call, []).extend(batches)
    return found


def main() -> None:
    """Rounds of all libraries in turn, so that a slow second of the machine does not decide the comparison."""
    rows = []
    for count in COUNTS:
        ours, theirs = zip(*((measure(count), libraries(count)) for _ in range(ROUNDS)), strict=True)
        found = joined(ours)
        others = {name: joined([one[name] for one in theirs]) for name in theirs[0]}
        for call, what in CALLED.items():
            beside = {name: min(one[call]) if one.get(call) else None for name, one in others.items()}
            best, usual = min(found[call]), statistics.median(found[call])
            known = [one for one in beside.values() if one is not None]
            rows.append(
                Row(f"{what}, {count} processes", "faster than MPI", best, "us", best < min(known) if known else None,
                    peers=beside, median=usual)
            )  # fmt: skip
    publish("collective", rows)


if __name__ == "__main__":
    member() if "member" in sys.argv else main()
