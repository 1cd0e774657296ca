"""Where the two processes of a benchmark run: on two cores, or on two processors of one core.

A virtual machine may change this within seconds and tells nobody. So the place is known by the floor, a bare ping-pong
over one cache line: between two processors of one core it takes 30 to 50 ns, between two cores more than 80.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import weft._nic as nic

APART, SHARED = "cores apart", "one core"
SHARED_NS_MAX = 65.0
"""A line that is faster is between two processors of one core."""
_ROUNDS, _BATCHES, _DEADLINE_S = 2000, 9, 5.0


def floor_ns(pair: tuple[int, int] | None = None) -> float:
    """Half a round trip over one cache line between two processors: the least of some batches."""
    chosen = pair or tuple(sorted(os.sched_getaffinity(0))[:2])
    before = os.sched_getaffinity(0)
    found = []
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        child = os.fork()
        first = child != 0
        try:
            os.sched_setaffinity(0, {chosen[0 if first else -1]})
            for batch in range(_BATCHES):
                word = memoryview(page)[64 * batch : 64 * batch + 8]
                found.append(nic.probe_pingpong(word, _ROUNDS, first, _DEADLINE_S))
                word.release()
        finally:
            if not first:
                os._exit(0)
            os.sched_setaffinity(0, before)
            os.waitpid(child, 0)
    return min(found)


def place_of(floor: float) -> str:
    return SHARED if floor < SHARED_NS_MAX else APART


def pairs() -> list[tuple[int, int]]:
    """Two processors to run on, for each place that this machine tells of: of one core, and of two cores."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        return [(allowed[0], allowed[0])]
    cores: dict[str, list[int]] = {}
    for processor in allowed:
        file = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
        cores.setdefault(file.read_text().strip() if file.exists() else str(processor), []).append(processor)
    one = next(((core[0], core[1]) for core in cores.values() if len(core) > 1), None)
    firsts = [core[0] for core in cores.values()]
    two = (firsts[0], firsts[1]) if len(firsts) > 1 else None
    return [pair for pair in (two, one) if pair is not None]
