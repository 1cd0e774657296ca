"""Four polling processes on two cores: two pairs that write to each other and poll, or send messages, all at once.

For comparison, the same four processes with bare stores to a shared line, which yield in the same way.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

from common import Row, publish
from weft.tools._measure import Bench
from weft.tools._messages import How, together
from weft.tools._pair import Side, Target, half_round_trip

ROUNDS = 200  # of ping-pong in a sample
SECONDS = 2.0
CORES = 2


def pair() -> None:
    """One pair: waits for a line on stdin, measures, prints the result."""
    with Target(4096, {"WEFT_ISOLATION": "shared"}) as target, Side(4096) as side:
        target.greet()
        bench = Bench(side, target, ring=False)

        def trip() -> float:
            return half_round_trip(side, target, bench.peer, "direct", 8, ROUNDS, ring=False)

        def talk(patient: bool) -> float:
            how = How(True, "direct", 8, inject=True, patient=patient)
            return together(side, target, bench.peer, "round_trips", how, ROUNDS)

        trip(), talk(False), talk(True)
        print("ready", flush=True)
        sys.stdin.readline()
        found = {}
        for name, measure in (
            ("puts", trip),
            ("lines", lambda: target.line_ns(ROUNDS)),
            ("polled", lambda: talk(False)),
            ("awaited", lambda: talk(True)),
        ):
            end = time.monotonic() + SECONDS
            found[name] = [measure()]
            while time.monotonic() < end:
                found[name].append(measure())
        print(json.dumps(found), flush=True)


def play(pairs: int) -> dict[str, list[float]]:
    """Half round trips of all samples of `pairs` pairs at once: puts, bare stores, messages by read() and sread()."""
    running = [
        subprocess.Popen([sys.executable, __file__, "pair"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(pairs)
    ]
    try:
        for process in running:
            process.stdout.readline()
        for process in running:
            process.stdin.write("go\n")
            process.stdin.flush()
        found = [json.loads(process.stdout.readline()) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return {name: [ns for f in found for ns in f[name]] for name in found[0]}


def messages(four: dict[str, list[float]], two: dict[str, list[float]], floor: float, cores: int) -> list[Row]:
    """Rows of messages: each way to wait, its median and its 99th percentile, and the same with two pollers."""
    rows = []
    for name, said in (("polled", "read() in a loop"), ("awaited", "sread()")):
        middle, tail = statistics.median(four[name]), sorted(four[name])[int(len(four[name]) * 0.99)]
        rows.append(
            Row(f"four pollers on {cores} cores: 8 B tagged message, {said}: half a round trip", "<= 3,000 ns", middle,
                "ns", middle <= 3000, floor, "bare stores, polled and yielded in the same way",
                "" if middle <= 3000 else "switches of processes in each half")
        )  # fmt: skip
        rows.append(Row(f"messages by {said}, 99th percentile", "< 4,000,000 ns a trip", tail, "ns", tail < 4e6))
        rows.append(Row(f"two that send messages, {said}, not pinned", "", statistics.median(two[name]), "ns", None))
    return rows


def main() -> None:
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)  # child processes inherit the cores
    four, two = play(2), play(1)
    puts, lines, one = four["puts"], four["lines"], two["puts"]
    middle, floor = statistics.median(puts), statistics.median(lines)
    tail = sorted(puts)[int(len(puts) * 0.99)]
    ok = middle <= 1500
    n = len(cores)
    publish(
        "oversubscription",
        [
            Row(f"four pollers on {n} cores: 8 B put, half a round trip", "<= 1,500 ns", middle, "ns", ok, floor,
                "bare stores, polled and yielded in the same way",
                "" if ok else "a yield and a switch of processes in each half"),
            Row("the same, 99th percentile of 200 round trips", "< 4,000,000 ns a trip", tail, "ns", tail < 4e6),
            Row("the same, round trips a second and pair", "thousands", 5e8 / middle, "/s", 5e8 / middle > 2000),
            Row(f"two pollers on {n} cores, not pinned: half a round trip", "", statistics.median(one), "ns", None),
            *messages(four, two, floor, n),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    pair() if sys.argv[1:] == ["pair"] else main()
