"""RemoteArray, the bare calls of weft.fi that it makes, and memcpy: two processes, load and store.

Each row is the minimum of many short rounds, because a busy machine only adds time.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event

import numpy as np

import weft
from common import Row, peers, peers_of, publish
from weft import fi

ROUNDS = 300
BIG_BYTES = 64 << 20


def owner(prefix: str, done: Event) -> None:
    with weft.open() as node:
        node.share(weft.zeros(100_000, "i8"), f"{prefix}-v")
        node.share(np.zeros(100_000, "i8"), f"{prefix}-foreign")
        node.share(weft.zeros((10_000, 16), "f4"), f"{prefix}-table")
        big = weft.empty(BIG_BYTES, "u1")
        big.fill(1)
        node.share(big, f"{prefix}-big")
        done.wait(300)


def least_ns(call: Callable[[], object], per_round: int) -> float:
    """The best round's time for one call, minus the time of an empty loop."""
    best = empty = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(per_round):
            call()
        best = min(best, time.perf_counter_ns() - start)
        start = time.perf_counter_ns()
        for _ in range(per_round):
            pass
        empty = min(empty, time.perf_counter_ns() - start)
    return (best - empty) / per_round


def main() -> None:
    peers()
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    prefix = f"bench-{time.time_ns()}"
    process = context.Process(target=owner, args=(prefix, done))
    process.start()
    try:
        with weft.open() as node:
            measure(node, prefix)
    finally:
        done.set()
        process.join(30)


def measure(node: weft.Node, prefix: str) -> None:
    v, foreign = node.attach(f"{prefix}-v", wait=60), node.attach(f"{prefix}-foreign", wait=60)
    table, big = node.attach(f"{prefix}-table", wait=60), node.attach(f"{prefix}-big", wait=60)
    lane = v._lane("bench")
    cell = lane.cell(v.dtype, v._code)
    read, take, peer, base, key = lane.read, lane.take, v._peer, v._base, v._key

    def bare() -> None:
        read(cell[0], None, peer, base, key)
        take(1)

    rows = np.random.default_rng(1).integers(0, 10_000, 1000)
    descs = np.zeros(1000, fi.RMA_DESC)
    descs["local_offset"], descs["length"], descs["dest_addr"] = np.arange(1000) * 64, 64, table._peer
    descs["remote_addr"], descs["key"] = rows * 64 + table._base, table._key
    found = np.empty((1000, 16), "f4")

    def bare_batch() -> None:
        lane.ep.read_batch(found, descs)
        take(1)

    mine, other = np.empty(BIG_BYTES, "u1"), np.ones(BIG_BYTES, "u1")
    one, rows_ns, copy = (
        ("bare read + cq.read", bare, 100),
        ("bare read_batch, 1000 rows of 64 B", bare_batch, 1),
        ("memcpy, 64 MiB", lambda: np.copyto(mine, other), 0),
    )
    cases: tuple[tuple[str, Callable[[], object], int, tuple[str, Callable[[], object], int], str], ...] = (
        ("t[i]", lambda: v[5], 100, one, "get_8"),
        ("t[i] = x", lambda: v.__setitem__(5, 3), 100, one, "put_8"),
        ("t[i, j]", lambda: table[5, 3], 100, one, ""),
        ("t[i], a row of 64 B", lambda: table[5], 100, one, ""),
        ("t[5:15]", lambda: v[5:15], 100, one, ""),
        ("fetch_add", lambda: v.fetch_add(5, 1), 100, one, "fetch_add"),
        ("compare_swap", lambda: v.compare_swap(5, 0, 0), 100, one, ""),
        ("t[i], memory that Weft did not make", lambda: foreign[5], 50, one, ""),
        ("take, 1000 rows of 64 B", lambda: table.take(rows), 1, rows_ns, ""),
        ("put, 1000 rows of 64 B", lambda: table.put(rows, found), 1, rows_ns, ""),
        ("t[::2], 5000 rows of 64 B", lambda: table[::2], 1, rows_ns, ""),
        ("read(out=), 64 MiB", lambda: big.read(out=mine), 0, copy, ""),
    )
    limits: dict[str, float] = {}
    out = []
    for name, call, per_round, (limit_is, limit, limit_per_round), elsewhere in cases:
        if limit_is not in limits:
            limits[limit_is] = least(limit, limit_per_round)
        out.append(
            Row(f"RemoteArray {name}", "", least(call, per_round), "ns", None, limits[limit_is], limit_is,
                peers=peers_of(elsewhere) if elsewhere else {})
        )  # fmt: skip
    v._push(lane)
    publish("share", out)


def least(call: Callable[[], object], per_round: int) -> float:
    """Nanoseconds of one call; per_round 0: measure a few long calls."""
    call()
    return least_ns(call, per_round) if per_round else min(timed_ns(call) for _ in range(15))


def timed_ns(call: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start


if __name__ == "__main__":
    main()
