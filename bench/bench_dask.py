"""Dask on two workers over weft://, beside tcp:// (and ucxx:// where distributed-ucxx is installed) in the same run.

Transpose: a matrix of 4 x 4 blocks of 64 MiB, whose block rows lie on the two workers in turn; afterwards each worker
has its block rows of the transposed matrix, so that half of all blocks move. Shuffle: each worker has arrays that it
cuts in two pieces of 64 MiB, one for each worker. Both measure the exchange alone: np.transpose and the cuts are views.
`x + x.T` is the same exchange with NumPy's work on top. The clusters live side by side, and take turns.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from common import Row, publish

MIB = 1 << 20
BLOCK = 64 * MIB
SIDE = 4
# Turns of each row: as many as fit the time, within these numbers.
TURNS_MIN, TURNS_MAX, ROW_S = 3, 9, 4.0
SETTLE_S = 0.04  # Dask sends its messages at most every 2 ms: after this time the preparation's messages are sent


def source(size: int, seed: int) -> Any:
    """An array of the worker, which it fills once and keeps: a turn measures the exchange alone."""
    from distributed import get_worker

    kept = vars(get_worker()).setdefault("bench_dask_sources", {})
    if (size, seed) not in kept:
        kept[size, seed] = np.full(size // 8, float(seed))
    return kept[size, seed][:]


def cut(array: Any, piece: int, of: int) -> Any:
    step = len(array) // of
    return array[piece * step : (piece + 1) * step]


def square(size: int, seed: int) -> Any:
    found = source(size, seed)
    n = int(len(found) ** 0.5)
    return found[: n * n].reshape(n, n)


def add_transposed(a: Any, b: Any) -> Any:
    return a + b.T


def use(array: Any) -> int:
    return int(array.nbytes)


class Cluster:
    """Two workers of one thread each, and a client, over one protocol."""

    def __init__(self, protocol: str) -> None:
        from distributed import Client, LocalCluster

        self.cluster = LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            protocol=f"{protocol}://",
            dashboard_address=None,
            silence_logs=logging.ERROR,
        )
        self.client = Client(self.cluster)
        self.workers = sorted(self.client.scheduler_info()["workers"])

    def close(self) -> None:
        self.client.close()
        self.cluster.close()

    def submit(self, call: Any, *values: Any, on: int) -> Any:
        return self.client.submit(call, *values, workers=[self.workers[on]], pure=False)

    def done(self, futures: list[Any]) -> None:
        """Wait for all. `distributed.wait` would do so in the loop of the client that was made last."""

        async def all_done() -> None:
            for future in futures:
                reason = await future.exception()
                if reason is not None:
                    raise reason

        self.client.sync(all_done)

    def timed(self, futures: Callable[[], list[Any]]) -> float:
        """Seconds until all are done; `futures` is called within them."""
        time.sleep(SETTLE_S)
        start = time.perf_counter()
        found = futures()
        self.done(found)
        return time.perf_counter() - start

    # ---- what is measured ----------------------------------------------------------------------------------

    def empty(self) -> float:
        """Seconds of one array of 8 bytes from a worker to the other: Dask's own time."""
        block = self.submit(source, 8, 1, on=0)
        self.done([block])
        return self.timed(lambda: [self.submit(use, block, on=1)])

    def one(self) -> float:
        """GB/s of one array from a worker to the other."""
        block = self.submit(source, BLOCK, 1, on=0)
        self.done([block])
        return BLOCK / self.timed(lambda: [self.submit(use, block, on=1)]) / 1e9

    def transpose(self) -> float:
        """GB/s of what moves."""
        blocks = self._blocks(source)
        seconds = self.timed(
            lambda: [self.submit(np.transpose, blocks[j][i], on=i % 2) for i in range(SIDE) for j in range(SIDE)]
        )
        return SIDE * SIDE // 2 * BLOCK / seconds / 1e9

    def shuffle(self) -> float:
        """GB/s of what moves."""
        arrays = [self.submit(source, 2 * BLOCK, i, on=i % 2) for i in range(8)]
        pieces = [self.submit(cut, array, k, 2, on=i % 2) for i, array in enumerate(arrays) for k in range(2)]
        self.done(pieces)
        seconds = self.timed(lambda: [self.submit(use, piece, on=k % 2) for k, piece in enumerate(pieces)])
        return 8 * BLOCK / seconds / 1e9

    def sum(self) -> float:
        """Seconds of x + x.T, with NumPy's work."""
        blocks = self._blocks(square)
        return self.timed(
            lambda: [
                self.submit(add_transposed, blocks[i][j], blocks[j][i], on=i % 2)
                for i in range(SIDE)
                for j in range(SIDE)
            ]
        )

    def _blocks(self, made_by: Any) -> list[list[Any]]:
        """A matrix of blocks; its rows lie on the two workers in turn."""
        rows = [[self.submit(made_by, BLOCK, i * SIDE + j, on=i % 2) for j in range(SIDE)] for i in range(SIDE)]
        self.done([block for row in rows for block in row])
        return rows


def in_turns(protocols: list[str], measure: Callable[[str], float]) -> dict[str, float]:
    """Median for each protocol. The protocols take turns, in the opposite order each time, so that a slow second of the
    machine affects both; the first turn, which connects, does not count."""
    values: dict[str, list[float]] = {protocol: [] for protocol in protocols}
    order = list(protocols)
    end = 0.0
    for turn in range(TURNS_MAX + 1):
        for protocol in order:
            value = measure(protocol)
            if turn:
                values[protocol].append(value)
        order.reverse()
        end = end or time.perf_counter() + ROW_S
        if turn >= TURNS_MIN and time.perf_counter() > end:
            break
    return {protocol: statistics.median(found) for protocol, found in values.items()}


# ---- comms without a scheduler -----------------------------------------------------------------------------


def serve(pipe: Any, protocol: str) -> None:
    """Another process: answers a number with an array of so many bytes."""
    import asyncio

    from distributed.comm import listen
    from distributed.protocol import to_serialize

    arrays: dict[int, Any] = {}

    async def answer(comm: Any) -> None:
        with contextlib.suppress(OSError):
            while True:
                size = await comm.read()
                if size not in arrays:
                    arrays[size] = np.full(size // 8, 1.0)
                await comm.write(to_serialize(arrays[size]))

    async def main() -> None:
        async with listen(f"{protocol}://127.0.0.1:0", answer) as listener:
            pipe.send(listener.contact_address)
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    asyncio.run(main())


def comms(protocols: list[str], sizes: list[int]) -> dict[int, dict[str, float]]:
    """Median GB/s of one array from another process to this one, by size and protocol."""
    import asyncio

    from distributed.comm import connect

    spawn = multiprocessing.get_context("spawn")
    pipes, processes, open_ = [], [], {}
    loop = asyncio.new_event_loop()
    try:
        for protocol in protocols:
            here, there = spawn.Pipe()
            process = spawn.Process(target=serve, args=(there, protocol), daemon=True)
            process.start()
            pipes.append(here)
            processes.append(process)
        for protocol, pipe in zip(protocols, pipes, strict=True):
            open_[protocol] = loop.run_until_complete(connect(pipe.recv()))

        async def ask(comm: Any, size: int) -> float:
            start = time.perf_counter()
            await comm.write(size)
            await comm.read()
            return float(size / (time.perf_counter() - start) / 1e9)

        return {
            size: in_turns(protocols, lambda p, size=size: loop.run_until_complete(ask(open_[p], size)))
            for size in sizes
        }
    finally:

        async def close() -> None:
            for comm in open_.values():
                await comm.close()

        loop.run_until_complete(close())
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send("stop")
            process.join()
        loop.close()


def copies(size: int) -> tuple[float, float]:
    """GB/s of memcpy into memory that was used before, and into fresh memory."""
    source = np.ones(size, np.uint8)
    target = np.zeros(size, np.uint8)
    found: list[list[float]] = [[], []]
    for _ in range(TURNS_MAX):
        for which in range(2):
            start = time.perf_counter()
            np.copyto(target if which == 0 else np.empty(size, np.uint8), source)
            found[which].append(size / (time.perf_counter() - start) / 1e9)
    return statistics.median(found[0]), statistics.median(found[1])


@contextlib.contextmanager
def clusters(protocols: list[str]) -> Iterator[dict[str, Cluster]]:
    found: dict[str, Cluster] = {}
    try:
        for protocol in protocols:
            found[protocol] = Cluster(protocol)
        yield found
    finally:
        for cluster in found.values():
            cluster.close()


def main() -> None:
    if importlib.util.find_spec("distributed") is None:
        print("dask: no distributed here: pip install distributed", file=sys.stderr)
        return
    protocols = ["weft", "tcp"]
    if importlib.util.find_spec("distributed_ucxx") is not None:
        protocols.append("ucxx")
    rows = []
    warm, fresh = copies(BLOCK)

    def add(what: str, unit: str, medians: dict[str, float], budget: float | None) -> None:
        times = medians["weft"] / medians["tcp"] if unit == "GB/s" else medians["tcp"] / medians["weft"]
        rows.append(
            Row(
                f"{what}: {times:.2f} x tcp://",
                "" if budget is None else f">= {budget:g} x tcp://",
                medians["weft"],
                unit,
                None if budget is None else times >= budget,
                warm if unit == "GB/s" else None,
                f"memcpy (into fresh memory: {fresh:.1f})" if unit == "GB/s" else "",
                peers={f"{protocol}://": medians.get(protocol) for protocol in ("tcp", "ucxx")},
            )
        )

    for size, medians in comms(protocols, [MIB, BLOCK, 4 * BLOCK]).items():
        add(f"comm, array of {size // MIB} MiB", "GB/s", medians, 2 if size >= BLOCK else None)
    with clusters(protocols) as found:
        for what, unit, call, budget in (
            ("one array of 8 B: Dask's own time", "s", Cluster.empty, None),
            ("one array of 64 MiB", "GB/s", Cluster.one, 2),
            ("transpose, blocks of 64 MiB", "GB/s", Cluster.transpose, 2),
            ("shuffle, pieces of 64 MiB", "GB/s", Cluster.shuffle, 2),
            ("x + x.T with NumPy's work, blocks of 64 MiB", "s", Cluster.sum, None),
        ):
            add(f"two workers, {what}", unit, in_turns(protocols, lambda p, call=call: call(found[p])), budget)
    publish("dask", rows)


if __name__ == "__main__":
    main()
