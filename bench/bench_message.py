"""Messages from Python: half a round trip of 8 B and 1 MiB, messages one way, and matches behind many entries."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Iterator

import weft._nic as nic
from common import Row, peers, peers_of, publish, spread, two_processes
from weft.tools._messages import How, Matching, together
from weft.tools._pair import Side, Target

LARGE = 1 << 20
NBYTES = 2 * LARGE
ROUNDS = 40
DEPTH, FEW = 100_000, 64
LIBRARIES = ("MPICH", "Open MPI", "pyzmq", "libfabric shm (C)")
RATED = LIBRARIES[:3]  # libraries whose programs measure a message rate; the first two have matches, too
FLOOR_NS = 200  # of the budget, beside the floor


def beside(key: str, libraries: tuple[str, ...] = LIBRARIES) -> dict[str, float | None] | None:
    """The figures of other libraries; a library that is absent here is named as such."""
    return peers_of(key, named=libraries) if key.startswith(("message", "match")) else None


def best_and_usual(path: str, budget: str, found: tuple[float, float], floor: tuple[float, float], key: str,
                   limit_is: str, most: Callable[[float], float] | None, why: str) -> list[Row]:  # fmt: skip
    """Two rows: the least of the batches, and their median, each beside the other libraries' of the same kind."""
    rows = []
    for at, (value, limit, end, said) in enumerate(zip(found, floor, ("", "_median"), ("", ", median"), strict=True)):
        met = None if most is None else value <= most(limit)
        rows.append(
            Row(path + said, budget, value, "ns", met, limit, limit_is + said, "" if met is not False else why,
                beside(key + end), found[1] if at == 0 else None)
        )  # fmt: skip
    return rows


def small(side: Side, target: Target, peer: int) -> list[Row]:
    def trip(how: How) -> Callable[[], float]:
        return lambda: together(side, target, peer, "round_trips", how, 500)

    tagged, plain = How(True, "direct", 8, inject=True), How(False, "direct", 8, inject=True)
    floor, least, sent, untagged = spread(
        ROUNDS, lambda: target.line_ns(1000), trip(tagged), trip(How(True, "direct", 8)), trip(plain)
    )
    why = "Python at both sides: a call that sends, polls of an empty queue, a completion, the loop"
    floor_is, budget = "a bare cache line", f"<= floor + {FLOOR_NS} ns"
    rows = best_and_usual(
        "8 B tagged message, half a round trip", budget, least, floor, "message_8", floor_is,
        lambda limit: limit + FLOOR_NS, why,
    )  # fmt: skip
    rows += best_and_usual(
        "8 B tagged message by tsend, with the send's completion: half a round trip", "", sent, floor, "", floor_is,
        None, "",
    )[:1]  # fmt: skip
    rows += best_and_usual("8 B message without a tag, half a round trip", "", untagged, floor, "", floor_is, None, "")[
        :1
    ]
    count = 5000
    way, injected = spread(
        15,
        lambda: together(side, target, peer, "stream", How(True, "direct", 8), count) / count,
        lambda: together(side, target, peer, "stream", tagged, count) / count,
    )
    rows.append(
        Row("8 B tagged messages one way, 64 posted: a message", "", way[0], "ns", None, None, "",
            peers=beside("message_rate", RATED), median=way[1])
    )  # fmt: skip
    rows.append(
        Row("8 B tagged messages one way by tinject: a message", "", injected[0], "ns", None, median=injected[1])
    )
    return rows


def large(side: Side, target: Target, peer: int) -> list[Row]:
    memory = side.mr["direct"]
    here, there = (memory.address, LARGE), (memory.address + LARGE, LARGE)

    def bare() -> float:
        return nic.probe_memcpy(there, here, 20) + target.line_ns(500)

    how = How(True, "direct", LARGE)
    floor, found = spread(ROUNDS, bare, lambda: together(side, target, peer, "round_trips", how, 20))
    return best_and_usual(
        "1 MiB tagged message, half a round trip", "<= 1.2 x (memcpy + line)", found, floor, f"message_{LARGE}",
        "memcpy and a bare cache line", lambda limit: 1.2 * limit,
        "the message and the end of its transfer are a frame each, beside the copy",
    )  # fmt: skip


def matches() -> list[Row]:
    rows = []
    for unexpected in (False, True):
        with Matching(FEW, unexpected) as few, Matching(DEPTH, unexpected) as many:
            base, deep = spread(400, few.burst_ns, many.burst_ns)
        kind = "an unexpected message" if unexpected else "a posted receive"
        name = f"match_{'unexpected' if unexpected else 'posted'}_{DEPTH}"
        met = deep[0] <= 2 * base[0]
        rows.append(
            Row(f"match of {kind} behind {DEPTH:,} in random order", f"within 2 x of {FEW}", deep[0], "ns", met,
                base[0], f"the same behind {FEW}", "" if met else "cache misses of entries and buckets",
                beside(name, RATED[:2]), deep[1])
        )  # fmt: skip
    return rows


@contextlib.contextmanager
def cxi() -> Iterator[tuple[Side, Target, int]]:
    """As common.two_processes, with the CXI provider."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    try:
        with Target(NBYTES, {}, cores[1:], "cxi") as target, Side(NBYTES, "cxi") as side:
            target.greet()
            peer = side.av.insert(target.name)
            target.ask("peer", card=side.card())
            yield side, target, peer
    finally:
        os.sched_setaffinity(0, cores)


def cxi_rows() -> list[Row]:
    rows = []
    with cxi() as (side, target, peer):
        for size, rounds in ((8, 500), (LARGE, 20)):
            how = How(True, "direct", size, inject=size == 8)
            found = [together(side, target, peer, "round_trips", how, rounds) for _ in range(ROUNDS)]
            name = "8 B" if size == 8 else "1 MiB"
            rows.append(
                Row(
                    f"CXI provider: {name} by tag, half a trip",
                    "",
                    min(found),
                    "ns",
                    None,
                    median=statistics.median(found),
                )
            )
    return rows


def main() -> None:
    peers()  # before this process is bound to one core, which its children would inherit
    with two_processes(NBYTES) as (side, target, peer):
        rows = small(side, target, peer) + large(side, target, peer)
    publish("message", rows + matches() + cxi_rows())


if __name__ == "__main__":
    main()
