"""The measurements of `weft perf` through a provider of a real libfabric.

The library's providers ask more of a program than Weft's: they make progress only in calls, so both processes read
their queues; a call raises Again while a connection is being made; remote addresses may be virtual.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .. import fi
from ._measure import WINDOW, Bench, Op, Row
from ._pair import Side, Target, half_round_trip
from ._real import OPS, over_sockets

_POLLS = 256  # of an empty queue, before the other process and the clock are looked at
_DEADLINE_S = 20.0

clock = time.perf_counter_ns


class RealBench(Bench):
    """As Bench; each call is repeated while the provider has no room, and the target is kept polling."""

    def __init__(self, side: Side, target: Target, provider: str) -> None:
        target.progress = side.progress
        super().__init__(side, target, True, over_sockets(provider))
        self._provider = provider

    def sizes(self, op: str, sizes: list[int]) -> list[int]:
        """As Bench's; no sizes for an operation that libfabric or the provider does not have."""
        return super().sizes(op, sizes) if op in OPS else []

    def row(self, op: str, path: str, size: int, seconds: float, rounds: int) -> Row:
        self.target.ask("poll", on=True)
        row = super().row(op, path, size, seconds, rounds)
        self.target.ask("poll", on=False)  # other rows need the core
        return row

    def _one(self, post: Callable[..., None], buf: Any, peer: int, base: int, key: int) -> Op:
        return self._loops(post, (buf, self.side.desc, peer, base, key))

    def _fetch_add(self, kind: str) -> Op:
        there, local = self.target.regions[kind], self.side.mr[kind]
        end = local.length
        operand, result = local[end - 64 : end - 56], local[end - 128 : end - 120]
        self.side.memory[kind][end - 64 : end - 56].view("u8")[0] = 1
        remote = (self.peer, there.base, there.key, int(fi.UINT64), int(fi.SUM))
        return self._loops(self.side.ep.fetch_atomic, (operand, self.side.desc, result, self.side.desc, *remote))

    def _inject(self, kind: str, buf: Any, size: int) -> Op:
        there, peer = self.target.regions[kind], self.peer
        inject, arguments = self.side.ep.inject_write, (buf, peer, there.base, there.key)
        write = self._one(self.side.ep.write, buf, peer, there.base, there.key).latency

        def latency(n: int) -> float:
            return half_round_trip(self.side, self.target, peer, kind, size, n, True)

        def rate(n: int) -> float:
            start = clock()
            for at in range(n):
                try:
                    inject(*arguments)
                except fi.Again:
                    self._settle(inject, arguments)
                if at % WINDOW == WINDOW - 1:
                    write(1)  # which reports its completion
            write(1)
            return clock() - start

        return Op(latency, rate)

    def _loops(self, post: Callable[..., None], arguments: tuple[Any, ...]) -> Op:
        read, wait, alive, window = self.side.cq.read, self.side.wait, self.target.alive, WINDOW

        def latency(n: int) -> float:
            start = clock()
            for _ in range(n):
                try:
                    post(*arguments)
                except fi.Again:
                    self._settle(post, arguments)
                if not read(1):
                    wait(1, alive)
            return clock() - start

        def rate(n: int) -> float:
            start = clock()
            posted = done = 0
            while done < n:
                try:
                    for _ in range(min(n, done + window) - posted):
                        post(*arguments)
                        posted += 1
                except fi.Again:
                    if posted == done:  # no operation is under way: a connection is being made
                        self._settle(post, arguments)
                        posted += 1
                done += wait(window, alive)
            return clock() - start

        return Op(latency, rate)

    def _settle(self, post: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Make a call while no operation is under way: repeat it until there is room for it."""
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            for _ in range(_POLLS):
                self.side.progress()
                try:
                    post(*arguments)
                    return
                except fi.Again:
                    pass
            self.target.alive()
            if time.monotonic() > deadline:
                raise fi.TimedOut(f"{self._provider} took no operation within {_DEADLINE_S:.0f} s")
