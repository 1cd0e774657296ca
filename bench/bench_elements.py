"""RemoteArray beside memcpy, NumPy's own arrays, the bare calls of weft.fi, and MPI: two processes, load and store.

Each row is the minimum and the median of many short rounds of the statement as users write it, which alternate with
rounds of its limit, because a busy machine only adds time.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
import timeit
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np

import weft
from common import Row, peers, peers_of, publish
from weft import fi

ROUNDS = 60
MPIS = ("MPICH", "Open MPI")
BIG_BYTES = 64 << 20
BLOCK_BYTES = 4 << 20  # of an array accumulate
PIECE = 4096


def owner(prefix: str, done: Event) -> None:
    with weft.open() as node:
        node.share(weft.zeros(100_000, "i8"), f"{prefix}-v")
        node.share(np.zeros(100_000, "i8"), f"{prefix}-foreign")
        node.share(weft.zeros((10_000, 16), "f4"), f"{prefix}-table")
        big = weft.empty(BIG_BYTES, "u1")
        big.fill(1)
        node.share(big, f"{prefix}-big")
        for name, kind in (("sums", "i8"), ("sums_f8", "f8"), ("sums_f4", "f4")):
            node.share(weft.zeros(BLOCK_BYTES // np.dtype(kind).itemsize, kind), f"{prefix}-{name}")
        done.wait(300)


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


@dataclass
class Case:
    """A statement, its limit and its budget: at most `most` ns, or `times` the limit, or `above` ns above the limit.
    faster: at least this many times faster than each MPI's `elsewhere`. alone: its rounds do not alternate with the
    limit's, whose memory would take the place of its own in the caches: the MPI programs measure without a limit."""

    statement: str
    count: int = 1000
    limit: str = ""
    most: float | None = None
    times: float | None = None
    above: float | None = None
    elsewhere: str = ""
    faster: float = 3.0
    rounds: int = ROUNDS
    alone: bool = False


CASES = {
    "t[i]": Case("v[5]", limit="local[5]", most=200, elsewhere="get_8"),
    "t[i] = x": Case("v[5] = 3", limit="local[5] = 3", most=200, elsewhere="put_8"),
    "t[i, j]": Case("table[5, 3]", limit="local[5]", most=200, elsewhere="get_8"),
    "t[i], a row of 64 B": Case("table[5]", limit="row.copy()", most=300, elsewhere="get_64"),
    "t[i] = row of 64 B": Case("table[5] = row", limit="np.copyto(row, row)", most=300, elsewhere="put_64"),
    "t[5:15]": Case("v[5:15]", limit="local[5:15].copy()", above=400),
    "t[5:15] = x": Case("v[5:15] = ten", limit="np.copyto(local[5:15], ten)", above=400),
    "t[a:b], 4 KiB": Case("big[:PIECE]", 300, "ones[:PIECE].copy()", above=400, elsewhere="get_4096"),
    "t[a:b] = x, 4 KiB": Case("big[:PIECE] = piece", 300, "np.copyto(other, piece)", above=400, elsewhere="put_4096"),
    "read(out=), 4 KiB": Case("part.read(out=other)", 300, "np.copyto(other, piece)", above=400),
    "write(x), 4 KiB": Case("part.write(piece)", 300, "np.copyto(other, piece)", above=400),
    "read(out=), 64 MiB": Case("big.read(out=mine)", 1, "np.copyto(mine, ones)", times=1.05, rounds=7),
    "fetch_add": Case("v.fetch_add(5, 1)", limit="local[5]", most=250, elsewhere="fetch_add"),
    "compare_swap": Case("v.compare_swap(5, 0, 0)", limit="local[5]", most=250, elsewhere="compare_swap"),
    "add": Case("v.add(5, 1)", limit="local[5]", most=250, elsewhere="fetch_add"),
    "take, 1000 rows of 64 B": Case("table.take(rows)", 10, "read_batch(found, descs); take(1)", times=1.3),
    "put, 1000 rows of 64 B": Case("table.put(rows, found)", 10, "write_batch(found, descs); take(1)", times=1.3),
    "t[::2], 5000 rows of 64 B": Case("table[::2]", 2, "found5[...] = local_table[::2]"),
    "add(block), 4 MiB of i8": Case("sums.add(block)", 2, "np.add(block, block, out=sum_here)",
                                    elsewhere="accumulate_i8", faster=1, rounds=15, alone=True),
    "add(block), 4 MiB of f8": Case("sums_f8.add(block_f8)", 2, "np.add(block_f8, block_f8, out=sum_f8)",
                                    elsewhere="accumulate_f8", faster=1, rounds=15, alone=True),
    "add(block), 4 MiB of f4": Case("sums_f4.add(block_f4)", 2, "np.add(block_f4, block_f4, out=sum_f4)",
                                    elsewhere="accumulate_f4", faster=1, rounds=15, alone=True),
    "add.at, 1000 indices": Case("v.add.at(rows, thousand)", 10, "np.add.at(local, rows, thousand)"),
    "t[i], memory that Weft did not make": Case("foreign[5]", 50, "local[5]"),
}  # fmt: skip


def measure(node: weft.Node, prefix: str) -> None:
    scope: dict[str, Any] = {"np": np, "PIECE": PIECE}
    for name in ("v", "foreign", "table", "big", "sums", "sums_f8", "sums_f4"):
        scope[name] = node.attach(f"{prefix}-{name}", wait=60)
    table, big = scope["table"], scope["big"]
    rows = np.random.default_rng(1).integers(0, 10_000, 1000)
    descs = np.zeros(1000, fi.RMA_DESC)
    descs["local_offset"], descs["length"], descs["dest_addr"] = np.arange(1000) * 64, 64, table._peer
    descs["remote_addr"], descs["key"] = rows * 64 + table._base, table._key
    lane = table._lane("bench")
    scope |= {
        "local": np.zeros(100_000, "i8"),
        "local_table": np.zeros((10_000, 16), "f4"),
        "row": np.ones(16, "f4"),
        "ten": np.ones(10, "i8"),
        "thousand": np.ones(1000, "i8"),
        "rows": rows,
        "descs": descs,
        "found": np.ones((1000, 16), "f4"),
        "found5": np.ones((5000, 16), "f4"),
        "read_batch": lane.ep.read_batch,
        "write_batch": lane.ep.write_batch,
        "take": lane.take,
        "part": big.at[:PIECE],
        "piece": np.ones(PIECE, "u1"),
        "other": np.ones(PIECE, "u1"),
        "mine": np.ones(BIG_BYTES, "u1"),
        "ones": np.ones(BIG_BYTES, "u1"),
    }
    for end, kind in (("", "i8"), ("_f8", "f8"), ("_f4", "f4")):
        scope["block" + end] = np.ones(BLOCK_BYTES // np.dtype(kind).itemsize, kind)
        scope["sum_here" if not end else "sum" + end] = np.ones_like(scope["block" + end])
    publish("elements", [row_of(name, case, scope) for name, case in CASES.items()])
    lane.close()


def row_of(name: str, case: Case, scope: dict[str, Any]) -> Row:
    timers = [timeit.Timer(statement, globals=scope) for statement in (case.statement, case.limit)]
    for timer in timers:
        timer.timeit(2)
    taken: tuple[list[float], list[float]] = ([], [])
    turns = [[0] * case.rounds, [1] * case.rounds] if case.alone else [[0, 1]] * case.rounds
    for which in (which for turn in turns for which in turn):
        taken[which].append(timers[which].timeit(case.count) / case.count * 1e9)
    value, limit = min(taken[0]), min(taken[1])
    budget, met = "", None
    if case.most is not None:
        budget, met = f"{case.most:g} ns", value <= case.most
    elif case.times is not None:
        budget, met = f"{case.times:g} x of the limit", value <= case.times * limit
    elif case.above is not None:
        budget, met = f"limit + {case.above:g} ns", value <= limit + case.above
    others = peers_of(case.elsewhere) if case.elsewhere else {}
    if others:
        budget += (", " if budget else "") + f"{case.faster:g} x as fast as MPI"
        met = met is not False and all(value * case.faster <= (others.get(mpi) or value * case.faster) for mpi in MPIS)
    return Row(f"RemoteArray {name}", budget, value, "ns", met, limit, case.limit, peers=others,
               median=statistics.median(taken[0]))  # fmt: skip


if __name__ == "__main__":
    main()
