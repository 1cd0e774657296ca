"""The measurements of `weft perf`: a row is an operation on a path with a size, and the machine's limit.

A row is measured in rounds; each round measures the limit, then latencies, then the rate, so that a change of the
machine's speed affects all three. Figures are medians over the rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from .. import _nic, _process, fi
from . import _messages
from ._pair import LINE_BYTES, Side, Target, address_of
from ._socket import Bare

MESSAGES = ("send", "tsend")
_TOGETHER = ("inject_write", *MESSAGES)  # latency is half a round trip: the peer takes part
DEPTHS = (1000, 10_000, 100_000)
DEPTH_LEAST = 64  # entries behind which a match is the limit of the other rows
SMALL_MAX = 4096  # the limit is in nanoseconds up to this size, in GB/s above
WINDOW = 64  # operations posted before their completions are read, when the rate is measured
BATCH_MAX = 256  # maximum descriptors of a vectored call
BATCH_BYTES_MAX = 4 << 20  # maximum bytes of a vectored call, unless one descriptor has more
SAMPLE_NS = 2000  # a sample has enough calls to last this long, because one call is shorter than a tick of the clock
LINE = 64

_STATISTIC = {"direct": "direct_ops", "foreign": "cma_ops", "ring": "framed_ops"}  # and "tcp" as "ring"

clock = time.perf_counter_ns


@dataclass
class Row:
    """One line of --json. None where a field does not apply."""

    op: str
    path: str
    size: int
    latency_ns_median: float | None = None
    latency_ns_p99: float | None = None
    rate_per_s: float | None = None
    bandwidth_GBps: float | None = None
    limit_name: str | None = None
    limit_value: float | None = None
    limit_share: float | None = None
    depth: int | None = None

    def json(self) -> dict[str, Any]:
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}


def stride_of(size: int) -> int:
    """Bytes from one piece of a batch to the next: each piece begins at a cache line."""
    return (size + LINE - 1) // LINE * LINE


def batch_count(size: int) -> int:
    """Descriptors of one vectored call."""
    return max(1, min(BATCH_MAX, BATCH_BYTES_MAX // stride_of(size)))


def bytes_needed(size: int) -> int:
    """Memory that any operation of this size needs: a batch, or a message in each direction."""
    return max(batch_count(size) * stride_of(size), 2 * stride_of(size), LINE_BYTES)


def _clock_cost() -> int:
    best = 1 << 30
    for _ in range(1000):
        start = clock()
        best = min(best, clock() - start)
    return best


@dataclass
class Op:
    """latency(n): nanoseconds of n calls, each until its completion. rate(n): the same for n calls in flight.

    per: units of a call. The latency of an inject_write or a message is half a round trip, of the
         mean of n.
    """

    latency: Callable[[int], float]
    rate: Callable[[int], float]
    per: int = 1


class Bench:
    """Measurements on one target. The paths ring and tcp each have their own target, which shares no memory.

    Args:
        ring: The target's engine, or its polls, receive the operations.
        tcp: The operations come by tcp, from another host or from this one.
    """

    def __init__(self, side: Side, target: Target, ring: bool, tcp: bool = False) -> None:
        self.side = side
        self.target = target
        self.ring = ring or tcp
        self.clock_cost = _clock_cost()
        self.peer = side.av.insert(target.name)
        target.ask("peer", card=side.card())
        self.bare = Bare(target) if tcp else None

    # ---- a row -----------------------------------------------------------------------------------------------------

    def sizes(self, op: str, sizes: list[int]) -> list[int]:
        """The sizes that an operation has rows for."""
        if op == "fetch_add":
            return [8] if self.side.atomics else []
        if op == "inject_write":
            return [n for n in sizes if n <= self.side.inject_size]
        return sizes

    def way(self, path: str) -> str:
        """The path of a write according to the NIC's statistics: direct, foreign or ring."""
        nic = _process.nic()
        for _ in range(3):  # the first write connects
            before = nic.statistics()
            self._op("write", path, 8).latency(1)
            after = nic.statistics()
        found = max(_STATISTIC, key=lambda p: after[_STATISTIC[p]] - before[_STATISTIC[p]])
        return "tcp" if found == "ring" and self.bare is not None else found

    def why_not_foreign(self) -> str:
        """The kernel's error for process_vm_writev."""
        reasons = [str(p["cma_reason"]) for p in _process.nic().peers() if p["pid"] == self.target.pid]
        return (reasons[0] if reasons else "") or "refused by the kernel"

    def row(self, op: str, path: str, size: int, seconds: float, rounds: int) -> Row:
        row = Row(op, path, size)
        what = self._op(op, path, size)
        limit_name, limit = self._limit(op, path, size)
        what.latency(1)
        one = min(what.latency(1) for _ in range(3))
        calls = max(1, int(SAMPLE_NS / one))
        share = seconds / rounds * 1e9
        limits: list[float] = []
        samples: list[float] = []
        rates: list[float] = []
        for _ in range(rounds):
            if limit is not None:
                ns = limit(0.2 * share)
                if ns is not None:
                    limits.append(ns)
            until = clock() + 0.45 * share
            if op in _TOGETHER:  # one long run
                samples.append(what.latency(max(20, min(5000, int(0.45 * share / max(one, 200) / 2)))))
            else:
                while True:
                    samples.append((what.latency(calls) - self.clock_cost) / calls / what.per)
                    if clock() > until:
                        break
            count = max(1, int(0.35 * share / one))
            if what.per == 1:
                count = min(max(count, 8), 1 << 20)
            ns = what.rate(count) - self.clock_cost
            rates.append(count * what.per / ns * 1e9)
        row.latency_ns_median = max(statistics.median(samples), 0.1)
        row.latency_ns_p99 = sorted(samples)[min(len(samples) - 1, int(len(samples) * 0.99))]
        row.rate_per_s = statistics.median(rates)
        row.bandwidth_GBps = row.rate_per_s * size / 1e9
        if limits:
            row.limit_name = limit_name
            bound = statistics.median(limits)
            if size <= SMALL_MAX:
                row.limit_value = bound
                row.limit_share = bound / row.latency_ns_median
            else:
                row.limit_value = size / bound
                row.limit_share = row.bandwidth_GBps / row.limit_value
        return row

    # ---- operations ------------------------------------------------------------------------------------------------

    def _kind(self, path: str) -> str:
        return "foreign" if path == "foreign" else "direct"

    def _op(self, op: str, path: str, size: int) -> Op:
        kind = self._kind(path)
        if op in MESSAGES:
            return self._message(op == "tsend", kind, size)
        there = self.target.regions[kind]
        local = self.side.mr[kind]
        peer, base, key = self.peer, there.base, there.key
        if op == "write":
            return self._one(self.side.ep.write, local[:size], peer, base, key)
        if op == "read":
            return self._one(self.side.ep.read, local[:size], peer, base, key)
        if op == "inject_write":
            return self._inject(kind, local[:size], size)
        if op == "fetch_add":
            return self._fetch_add(kind)
        return self._batch(kind, size)

    def _one(self, post: Callable[..., None], buf: Any, peer: int, base: int, key: int) -> Op:
        read, wait, alive = self.side.cq.read, self.side.wait, self.target.alive

        def latency(n: int) -> float:
            start = clock()
            for _ in range(n):
                post(buf, None, peer, base, key)
                if not read(1):
                    wait(1, alive)
            return clock() - start

        def rate(n: int) -> float:
            start = clock()
            while n > 0:
                burst = min(n, WINDOW)
                for _ in range(burst):
                    post(buf, None, peer, base, key)
                n -= burst
                burst -= len(read(burst))
                while burst:
                    burst -= wait(burst, alive)
            return clock() - start

        return Op(latency, rate)

    def _inject(self, kind: str, buf: Any, size: int) -> Op:
        from ._pair import half_round_trip

        side, target, there, peer = self.side, self.target, self.target.regions[kind], self.peer
        ring = self.ring
        inject, write, wait, base, key = side.ep.inject_write, side.ep.write, side.wait, there.base, there.key

        def latency(n: int) -> float:
            return half_round_trip(side, target, peer, kind, size, n, ring)

        def rate(n: int) -> float:
            start = clock()
            while n > 0:
                burst = min(n, WINDOW)
                for _ in range(burst):
                    inject(buf, peer, base, key)
                n -= burst
                # Injected writes report no completion. A write after them does, on the same path and in order.
                write(buf, None, peer, base, key)
                wait(1, target.alive)
            return clock() - start

        return Op(latency, rate)

    def _fetch_add(self, kind: str) -> Op:
        there, local = self.target.regions[kind], self.side.mr[kind]
        end = local.length
        operand, result = local[end - 64 : end - 56], local[end - 128 : end - 120]
        self.side.memory[kind][end - 64] = 1
        post, read, wait, alive = self.side.ep.fetch_atomic, self.side.cq.read, self.side.wait, self.target.alive
        peer, base, key, datatype, add = self.peer, there.base, there.key, int(fi.UINT64), int(fi.SUM)

        def latency(n: int) -> float:
            start = clock()
            for _ in range(n):
                post(operand, None, result, None, peer, base, key, datatype, add)
                if not read(1):
                    wait(1, alive)
            return clock() - start

        def rate(n: int) -> float:
            start = clock()
            while n > 0:
                burst = min(n, WINDOW)
                for _ in range(burst):
                    post(operand, None, result, None, peer, base, key, datatype, add)
                n -= burst
                burst -= len(read(burst))
                while burst:
                    burst -= wait(burst, alive)
            return clock() - start

        return Op(latency, rate)

    def _batch(self, kind: str, size: int) -> Op:
        import numpy

        there = self.target.regions[kind]
        count, stride = batch_count(size), stride_of(size)
        descs = numpy.zeros(count, fi.RMA_DESC)
        descs["local_offset"] = numpy.arange(count) * stride
        descs["length"] = size
        descs["dest_addr"] = self.peer
        descs["remote_addr"] = there.base + descs["local_offset"]
        descs["key"] = there.key
        local = self.side.mr[kind][:]
        post, read, wait, alive = self.side.ep.write_batch, self.side.cq.read, self.side.wait, self.target.alive

        def run(n: int) -> float:
            start = clock()
            for _ in range(n):
                post(local, descs)
                if not read(1):
                    wait(1, alive)
            return clock() - start

        return Op(run, run, count)

    def _message(self, tagged: bool, kind: str, size: int) -> Op:
        how = _messages.How(tagged, kind, size)

        def run(do: str) -> Callable[[int], float]:
            return lambda n: _messages.together(self.side, self.target, self.peer, do, how, n)

        return Op(run("round_trips"), run("stream"))

    # ---- limits ----------------------------------------------------------------------------------------------------

    def _limit(self, op: str, path: str, size: int) -> tuple[str | None, Callable[[float], float | None] | None]:
        """The minimum work of the machine for an operation: (name, function of a duration -> nanoseconds)."""
        if self.bare is not None:
            if size > SMALL_MAX or op == "batch":
                return "bare socket", self._stream(op, size)
            return (
                ("bare socket", self._pingpong(1, size))
                if op in _TOGETHER
                else (
                    "bare socket x 2",
                    self._pingpong(2, size),
                )
            )
        if self.ring or path == "ring":
            if size <= SMALL_MAX and op in _TOGETHER:
                return "cache line", self._line(1)
            if size <= SMALL_MAX and op != "batch":
                return "cache line x 2", self._line(2)
            return "memcpy", self._memcpy(op, size, None)
        if op in _TOGETHER and size <= SMALL_MAX:
            return "cache line", self._line(1)
        if path == "foreign":
            if op == "fetch_add":
                return "cache line x 2", self._line(2)
            reading = op == "read" or op in MESSAGES  # a message is pulled by its receiver
            return f"process_vm_{'readv' if reading else 'writev'}", self._cma(reading, size)
        mapped = address_of(self.target.regions["direct"].place, self.target.regions["direct"].nbytes)
        if op == "fetch_add":
            return "atomic add", None if mapped is None else self._atomic((mapped, 8))
        return "memcpy", self._memcpy(op, size, mapped)

    def _pingpong(self, times: int, size: int) -> Callable[[float], float | None]:
        guess = 10_000.0

        def run(ns: float) -> float | None:
            nonlocal guess
            assert self.bare is not None
            guess = self.bare.pingpong_ns(size, max(20, min(5000, int(ns / guess / 2))))
            return guess * times if guess > 0 else None

        return run

    def _stream(self, op: str, size: int) -> Callable[[float], float | None]:
        bare = self.bare
        assert bare is not None
        count = batch_count(size) if op == "batch" else 1
        whole = count * size
        return _repeat(lambda n: bare.stream_ns(whole, n, op == "read") / count, count)

    def _line(self, times: int) -> Callable[[float], float | None]:
        guess = 300.0

        def run(ns: float) -> float:
            nonlocal guess
            guess = self.target.line_ns(max(50, min(20000, int(ns / guess / 2))))
            return guess * times

        return run

    def _memcpy(self, op: str, size: int, mapped: int | None) -> Callable[[float], float | None]:
        """memcpy between the buffers of the operation, or, if they are not shared, memory that both processes map."""
        count = batch_count(size) if op == "batch" else 1
        stride = stride_of(size)
        nbytes = (count - 1) * stride + size
        here = (self.side.mr["direct"].address, nbytes)
        there: Any = (
            memoryview(self.target.scratch)[LINE_BYTES : LINE_BYTES + nbytes] if mapped is None else (mapped, nbytes)
        )
        to, source = (here, there) if op == "read" else (there, here)
        if count > 1:
            return _repeat(lambda n: _nic.probe_memcpy(to, source, n, size, stride) / count, count)
        return _repeat(lambda n: _nic.probe_memcpy(to, source, n), 1)

    def _cma(self, reading: bool, size: int) -> Callable[[float], float | None]:
        here, address, pid = (
            (self.side.mr["foreign"].address, size),
            self.target.regions["foreign"].address,
            self.target.pid,
        )
        probe = _nic.probe_cma_read if reading else _nic.probe_cma_write
        return _repeat(lambda n: probe(pid, address, here, n), 1)

    def _atomic(self, word: Any) -> Callable[[float], float | None]:
        return _repeat(lambda n: _nic.probe_fetch_add(word, n), 1)


def _repeat(probe: Callable[[int], float], per: int) -> Callable[[float], float | None]:
    """Make a function of a duration from probe(n): n rounds of `per` units, in nanoseconds a unit."""
    guess = 0.0

    def run(ns: float) -> float | None:
        nonlocal guess
        if guess == 0.0:
            guess = probe(2)
        if guess < 0:
            return None
        guess = max(probe(max(2, int(ns / max(guess, 0.5) / per))), 0.01)
        return guess

    return run


def plan(bench: Bench, path: str, ops: list[str], sizes: list[int]) -> Iterator[tuple[str, str, int]]:
    """The rows of a path, in order."""
    for op in ops:
        for size in bench.sizes(op, sizes):
            yield op, path, size


# ---- matching --------------------------------------------------------------------------------------------------------


def depths(provider: str | None) -> list[int]:
    """Numbers of entries behind which a match is measured, as far as an endpoint of the provider may have so many."""
    return [depth for depth in DEPTHS if _messages.Matching.possible(depth, provider)]


def match_row(op: str, depth: int, seconds: float, rounds: int, provider: str | None) -> Row:
    """A match behind `depth` posted receives or unexpected messages; the limit is the same match behind few entries."""
    row = Row(op, "self", 8, depth=depth)
    unexpected = op == "match_unexpected"
    with (
        _messages.Matching(DEPTH_LEAST, unexpected, provider) as few,
        _messages.Matching(depth, unexpected, provider) as many,
    ):
        samples: list[float] = []
        limits: list[float] = []
        for _ in range(rounds):
            until = clock() + seconds / rounds * 1e9
            while True:
                limits.append(few.burst_ns())
                samples.append(many.burst_ns())
                if clock() > until:
                    break
    row.latency_ns_median = statistics.median(samples)
    row.latency_ns_p99 = sorted(samples)[min(len(samples) - 1, int(len(samples) * 0.99))]
    row.rate_per_s = 1e9 / row.latency_ns_median
    row.limit_name, row.limit_value = f"{DEPTH_LEAST} entries", statistics.median(limits)
    row.limit_share = row.limit_value / row.latency_ns_median
    return row
