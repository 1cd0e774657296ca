"""The tcp link over loopback, and a bare socket between the same two processes in the same run.

The bare socket does not seal, and the link always does: the budget of its bandwidth is beside a socket that seals, in
the microbenchmarks (cpp/tcp.cpp).
"""

from __future__ import annotations

import os
import secrets
import statistics

from common import Row, publish
from weft.tools._pair import Side, Target, half_round_trip
from weft.tools._socket import Bare

ROUNDS = 9
LARGE = 8 << 20
SECRET = secrets.token_hex(32)
ENV = {"WEFT_SHM": "0", "WEFT_LISTEN": "tcp://127.0.0.1:0", "WEFT_SECRET": SECRET}


def ratio(row_path: str, budget: str, unit: str, mine: list[float], bare: list[float], met: bool | None) -> Row:
    """A line whose value and limit are medians over alternating rounds."""
    return Row(row_path, budget, statistics.median(mine), unit, met, statistics.median(bare), "a bare socket")


def main() -> None:
    os.environ.update(ENV)  # before this process has a NIC
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    rows = []
    with Target(LARGE, ENV, cores[1:]) as target, Side(LARGE) as side:
        target.greet()
        peer = side.av.insert(target.name)
        target.ask("peer", card=side.card())
        there = target.regions["direct"]
        bare = Bare(target)
        read, wait = side.cq.read, side.wait

        def weft_ns(size: int) -> float:
            return half_round_trip(side, target, peer, "direct", size, 2000, ring=True)

        for size in (8, 200):
            weft_ns(size)
            pairs = [(weft_ns(size), bare.pingpong_ns(size, 2000)) for _ in range(ROUNDS)]
            times = statistics.median(a / b for a, b in pairs)
            path = f"{size} B put over tcp, half round trip: {times:.2f} x a polling bare socket (median of ratios)"
            mine, limit = [a for a, _ in pairs], [b for _, b in pairs]
            rows.append(ratio(path, "<= 1.15 x", "ns", mine, limit, times <= 1.15 if size == 8 else None))

        def bandwidth(reading: bool, size: int) -> float:
            from common import clock

            post = side.ep.read if reading else side.ep.write
            local, count = side.mr["direct"][:size], max(4, (64 << 20) // size)
            start = clock()
            done = 0
            for i in range(count):
                post(local, None, peer, there.base, there.key)
                if i - done >= 16:  # at most 16 at a time
                    done += len(read(8)) or wait(1, target.alive)
            while done < count:
                done += wait(count - done, target.alive)
            return size * count / (clock() - start)

        for size in (64 << 10, 1 << 20, LARGE):
            for reading in (False, True):
                bandwidth(reading, size)
                repeats = max(4, (64 << 20) // size)
                pairs = [
                    (bandwidth(reading, size), size / bare.stream_ns(size, repeats, reading)) for _ in range(ROUNDS)
                ]
                share = statistics.median(a / b for a, b in pairs)
                what = f"{'get' if reading else 'put'} of {size >> 10} KiB over tcp: {share:.2f} of a bare socket"
                mine, limit = [a for a, _ in pairs], [b for _, b in pairs]
                rows.append(ratio(what, "", "GB/s", mine, limit, None))

        def small_rate() -> float:
            from common import clock

            local, count = side.mr["direct"][:8], 20_000
            start = clock()
            done = 0
            for i in range(count):
                side.ep.write(local, None, peer, there.base, there.key)
                if i - done >= 256:
                    done += len(read(128)) or wait(128, target.alive)
            while done < count:
                done += wait(count - done, target.alive)
            return count / (clock() - start) * 1e9

        small_rate()
        rates = [small_rate() for _ in range(ROUNDS)]
        rows.append(Row("8 B puts over tcp, 256 in flight", "", statistics.median(rates), "/s", None))
        bare.close()
    os.sched_setaffinity(0, cores)
    publish("tcp", rows)


if __name__ == "__main__":
    main()
