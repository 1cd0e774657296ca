"""Fetch-and-add from Python on a peer's word, beside a bare atomic add to the same word.

For comparison, methods of CPython's own with the same arguments (peers/python_calls.c): an empty one, by position and
by name, and one that reads five numbers and two buffers and does the bare add, without a check, a key or a queue.
"""

from __future__ import annotations

import weft._nic as nic
from common import Row, in_turn, least, loop_ns, peers, peers_of, publish, python_calls, two_processes
from weft import fi
from weft.tools._pair import address_of


def main() -> None:
    peers()  # before this process is bound to one core, which its children would inherit
    rows = []
    with two_processes(4096) as (side, target, peer):
        there = target.regions["direct"]
        word = (address_of(there.place, 8), 8)
        operand, result = side.mr["direct"][64:72], side.mr["direct"][128:136]
        side.memory["direct"][64] = 1
        fetch, add, swap, read = side.ep.fetch_atomic, side.ep.atomic, side.ep.compare_atomic, side.cq.read
        inject = side.ep.inject_atomic
        base, key, u64, total = there.base, there.key, int(fi.UINT64), int(fi.SUM)
        equal = int(fi.CSWAP)

        def drain() -> None:
            while read(1024):
                pass

        def fetch_add(n):
            for _ in range(n):
                fetch(operand, None, result, None, peer, base, key, u64, total)

        def fetch_add_named(n):
            ep = side.ep
            for _ in range(n):
                ep.fetch_atomic(
                    operand, result=result, dest_addr=peer, addr=base, key=key, datatype=fi.UINT64, op=fi.SUM
                )

        def fetch_add_complete(n):
            for _ in range(n):
                fetch(operand, None, result, None, peer, base, key, u64, total)
                read(1)

        def plain_add(n):
            for _ in range(n):
                add(operand, None, peer, base, key, u64, total)

        def inject_add(n):
            for _ in range(n):
                inject(operand, peer, base, key, u64, total)

        def compare_swap(n):
            for _ in range(n):
                swap(operand, None, operand, None, result, None, peer, base, key, u64, equal)

        bare, places = python_calls(), (bytearray(8), bytearray(8))
        if bare is not None:
            bare.use(word[0])

        def bare_add(n):
            add, (given, old) = bare.fetch_add, places
            for _ in range(n):
                add(given, None, old, None, peer, base, key, u64, total)

        def empty(n):
            nothing = bare.nothing
            for _ in range(n):
                nothing(operand, None, result, None, peer, base, key, u64, total)

        def empty_named(n):
            for _ in range(n):
                bare.nothing(operand, result=result, dest_addr=peer, addr=base, key=key, datatype=fi.UINT64, op=fi.SUM)

        loop = loop_ns()
        fetch_add(1)
        side.wait(1)
        runs = (
            ("fetch-add: a call", fetch_add, 110, None),
            ("fetch-add, ep.fetch_atomic(...) with keywords and fi.UINT64", fetch_add_named, 110, None),
            ("fetch-add and its completion, cq.read(1)", fetch_add_complete, None, "fetch_add"),
            ("atomic add: a call", plain_add, None, None),
            ("inject_atomic add: a call", inject_add, None, None),
            ("compare-swap: a call", compare_swap, None, None),
        )
        if bare is not None:
            runs += (
                ("CPython alone: an empty method, the same nine arguments", empty, None, None),
                ("CPython alone: the same with keywords and fi.UINT64", empty_named, None, None),
                ("CPython alone: nine arguments, two buffers, a bare add", bare_add, None, None),
            )
        limit, *found = in_turn(
            15,
            lambda: nic.probe_fetch_add(word, 20000),
            *((lambda run=run: least(run, 500, 4, drain)) for _, run, _, _ in runs),
        )
        # What the names alone cost, without us, is the interpreter's.
        names = found[-2] - found[-3] if bare is not None else 0.0
        for (path, run, budget, other), ns in zip(runs, found, strict=True):
            ns -= loop
            if run is fetch_add_named:
                budget += round(names)
            met = None if budget is None else ns <= budget
            rows.append(
                Row(path, f"<= {budget} ns" if budget else "", ns, "ns", met, limit, "a bare atomic add",
                    "" if met is not False else "nine arguments and two buffers",
                    peers_of(other) if other else {})
            )  # fmt: skip
    publish("atomic", rows)


if __name__ == "__main__":
    main()
