"""Registration from Python: the cost for several sizes; a million live regions; access to one of a million."""

from __future__ import annotations

import gc
import random

import numpy as np

from common import Row, clock, in_turn, least, loop_ns, peers_of, publish, two_processes
from weft import fi

LIVE = 1_000_000
BATCH = 2000


class Plain:
    """As large as a region."""

    __slots__ = tuple("abcdefghijklmnopqrstu")
    a: object
    b: int


def objects_ns(words: np.ndarray) -> float:
    """What a million objects, slices and numbers cost without Weft: half of it is the first touch of their pages."""

    def make(a: object, b: int) -> Plain:
        one = Plain()
        one.a, one.b = a, b
        return one

    start = clock()
    kept = [make(words[i : i + 1], 1000 + i) for i in range(LIVE)]
    return (clock() - start) / len(kept)


def main() -> None:
    rows = []
    access = fi.REMOTE_READ | fi.REMOTE_WRITE
    loop = loop_ns()
    nothing = [].clear

    def bare_call(n):
        for _ in range(n):
            nothing()

    with two_processes(1 << 16) as (side, _target, _peer):
        domain = side.domain
        held: list[fi.MemoryRegion] = []
        call = least(bare_call, 2000) - loop

        def close_all() -> None:
            for mr in held:
                mr.close()
            held.clear()

        for size in (4096, 1 << 20, 1 << 28):
            memory = np.empty(size, "u1")  # its pages are never touched, and registration must not touch them

            def register(n, memory=memory):
                keep = held.append
                reg = domain.mr_reg
                for key in range(100, 100 + n):
                    keep(reg(memory, access, requested_key=key))

            (ns,) = in_turn(5, lambda register=register: least(register, BATCH, 3, close_all) - loop)
            rows.append(
                Row(f"mr_reg of {size >> 10:,} KiB", "<= 500 ns", ns, "ns", ns <= 500, call, "an empty C method",
                    "" if ns <= 500 else "a region is a Python object of its own, with the line that made it",
                    peers=peers_of(f"register_{size}"))
            )  # fmt: skip

        memory = np.empty(4096, "u1")
        best = float("inf")
        for _ in range(10):
            for key in range(100, 100 + BATCH):
                held.append(domain.mr_reg(memory, access, requested_key=key))
            start = clock()
            for mr in held:
                mr.close()
            best = min(best, (clock() - start) / BATCH)
            held.clear()
        rows.append(Row("mr.close()", "", best - loop, "ns", None, call, "an empty C method"))

        # A million live regions. This process writes to its own regions like a peer: through the table, by client key.
        self_addr = side.av.insert(side.ep.getname())
        words = side.domain.alloc(LIVE, "u8")
        words.fill(0)
        local = side.mr["direct"][:8]
        write, read = side.ep.write, side.cq.read

        def drain() -> None:
            while read(1024):
                pass

        def access_cost(keys: list[int]) -> float:
            def run(n):
                for key in keys[:n]:
                    write(local, None, self_addr, 0, key)

            return least(run, 500, 8, drain) - loop

        gc.disable()
        few = [domain.mr_reg(words[i : i + 1], access, requested_key=1000 + i) for i in range(10)]
        among_few = [1000 + i % 10 for i in range(500)]
        access_cost(among_few)
        before = access_cost(among_few)
        start = clock()
        reg = domain.mr_reg
        many = [reg(words[i : i + 1], access, requested_key=1000 + i) for i in range(10, LIVE)]
        each = (clock() - start) / (LIVE - 10)
        alone = objects_ns(words)
        rng = random.Random(1)
        rounds = [[1000 + rng.randrange(LIVE) for _ in range(500)] for _ in range(20)]
        few_again, scattered = in_turn(
            1, lambda: access_cost(among_few), lambda: min(access_cost(keys) for keys in rounds)
        )
        cold = float("inf")
        for _ in range(10):
            keys = [1000 + rng.randrange(LIVE) for _ in range(500)]
            start = clock()
            for key in keys:
                write(local, None, self_addr, 0, key)
            cold = min(cold, (clock() - start) / 500 - loop)
            drain()
        del before
        rows += [
            Row(f"mr_reg of one among {LIVE:,}, mean of all, with a slice", "<= 2 x of the limit", each, "ns",
                each <= 2 * alone, alone, "a Python object as large, with a slice and a number",
                "" if each <= 2 * alone else "new pages: the table, the heap"),
            Row("8 B put to one of 10 regions in turn", "", few_again, "ns", None),
            Row(f"8 B put to 500 of {LIVE:,} regions, seen before", "within 2 x of 10", scattered, "ns",
                scattered <= 2 * few_again, few_again, "among 10",
                "" if scattered <= 2 * few_again else "cache misses: the entry, the index and the word itself"),
            Row(f"8 B put to one of {LIVE:,} regions, first touch", "", cold, "ns", None, few_again, "among 10",
                "cache and TLB misses: index, entry, target"),
        ]  # fmt: skip
        for mr in few + many:
            mr.close()
        gc.enable()
    publish("registration", rows)


if __name__ == "__main__":
    main()
