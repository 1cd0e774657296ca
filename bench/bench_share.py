"""RemoteArray, the bare calls of weft.fi that it makes, and memcpy: two processes, load and store. Views, local arrays
and multiprocessing.shared_memory.

Each row is the minimum of many short rounds, because a busy machine only adds time.
"""

from __future__ import annotations

import functools
import mmap
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np

import weft
from common import Row, in_turn, peers, peers_of, publish
from weft import fi

ROUNDS = 300
BIG_BYTES = 64 << 20
WIDE = 10_000_000  # float64: 80 MB
WIDE_ROUNDS = 60
WIDE_BUDGET = 1.05


def owner(prefix: str, block: str, done: Event) -> None:
    with weft.open() as node:
        node.share(weft.zeros(100_000, "i8"), f"{prefix}-v")
        node.share(np.zeros(100_000, "i8"), f"{prefix}-foreign")
        node.share(weft.zeros((10_000, 16), "f4"), f"{prefix}-table")
        big = weft.empty(BIG_BYTES, "u1")
        big.fill(1)
        node.share(big, f"{prefix}-big")
        memory = SharedMemory(block)
        np.ndarray(WIDE, "f8", memory.buf)[:] = 1
        memory.close()
        wide = weft.empty(WIDE, "f8")
        wide.fill(1)
        node.share(wide, f"{prefix}-wide")
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
    memory = SharedMemory(create=True, size=WIDE * 8)
    process = context.Process(target=owner, args=(prefix, memory.name, done))
    process.start()
    try:
        with weft.open() as node:
            rows = measure(node, prefix)
            rows += measure_views(node.attach(f"{prefix}-wide", wait=60), memory)
            publish("share", rows)
    finally:
        done.set()
        process.join(30)
        memory.close()
        memory.unlink()


def measure_views(t: weft.RemoteArray, memory: SharedMemory) -> list[Row]:
    """Passes over 80 MB through a view, beside the same passes over a local array and over shared_memory."""
    out = []
    passes: dict[str, Callable[[Any], object]] = {
        "sum": lambda a: a.sum(),
        "a *= x": lambda a: np.multiply(a, 1.0000001, out=a),
        "a[::8] += 1": lambda a: np.add(a[::8], 1, out=a[::8]),
    }
    arrays: dict[str, Any] = {
        "view": t.view("rw"),
        "local": np.ones(WIDE),
        "shared_memory": np.ndarray(WIDE, "f8", memory.buf),
        "local array of 4 KiB pages": np.frombuffer(mmap.mmap(-1, WIDE * 8, mmap.MAP_PRIVATE)),
    }
    arrays["local array of 4 KiB pages"][:] = 1
    with open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", encoding="ascii") as file:
        small = "[never]" in (modes := file.read()) or "[deny]" in modes
    for name, run in passes.items():
        for a in arrays.values():
            run(a)  # touches all pages
        found = in_turn(WIDE_ROUNDS, *(functools.partial(timed_ns, run, a) for a in arrays.values()))
        ns = dict(zip(arrays, found, strict=True))
        view, local = ns.pop("view"), ns.pop("local")
        met = view <= WIDE_BUDGET * min(local, ns["shared_memory"])
        why = "" if met or not small else "this kernel gives huge pages to local arrays, and not to shared memory"
        out.append(
            Row(f"view of 80 MB, {name}", f"<= {WIDE_BUDGET} x a local array and shared_memory", view, "ns", met, local,
                "local array", why, dict(ns))
        )  # fmt: skip
    arrays.clear()
    out.append(Row("view of 80 MB, made and dropped", "", least(lambda: t.view("rw"), 20), "ns", None))
    return out


def measure(node: weft.Node, prefix: str) -> list[Row]:
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
    return out


def least(call: Callable[[], object], per_round: int) -> float:
    """Nanoseconds of one call; per_round 0: measure a few long calls."""
    call()
    return least_ns(call, per_round) if per_round else min(timed_ns(call) for _ in range(15))


def timed_ns(call: Callable[..., object], *arguments: Any) -> int:
    start = time.perf_counter_ns()
    call(*arguments)
    return time.perf_counter_ns() - start


if __name__ == "__main__":
    main()
