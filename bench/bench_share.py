"""Views of another process's array, local arrays and multiprocessing.shared_memory. Elements: bench_elements.py.

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
from common import Row, in_turn, publish

ROUNDS = 300
WIDE = 10_000_000  # float64: 80 MB
WIDE_ROUNDS = 60
WIDE_BUDGET = 1.05


def owner(prefix: str, block: str, done: Event) -> None:
    with weft.open() as node:
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
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    prefix = f"bench-{time.time_ns()}"
    memory = SharedMemory(create=True, size=WIDE * 8)
    process = context.Process(target=owner, args=(prefix, memory.name, done))
    process.start()
    try:
        with weft.open() as node:
            publish("share", measure_views(node.attach(f"{prefix}-wide", wait=60), memory))
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
