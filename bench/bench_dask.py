"""Dask on two workers over weft://, beside tcp:// (and ucxx:// where distributed-ucxx is installed) in the same run.

Transpose: a matrix of 4 x 4 blocks of 64 MiB, whose block rows lie on the two workers in turn; afterwards each worker
has its block rows of the transposed matrix, so that half of all blocks move. Shuffle: each worker has arrays that it
cuts in two pieces of 64 MiB, one for each worker. Both measure what moves: np.transpose and the cuts are views.
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
from collections.abc import Iterator
from typing import Any

import numpy as np

from common import Row, publish

MIB = 1 << 20
BLOCK = 64 * MIB
SIDE = 4
ROUNDS = 5
SUM_ROUNDS = 1


def fill(size: int, seed: int) -> Any:
    return np.full(size // 8, float(seed))


def cut(array: Any, piece: int, of: int) -> Any:
    step = len(array) // of
    return array[piece * step : (piece + 1) * step]


def square(n: int, seed: int) -> Any:
    return np.full((n, n), float(seed))


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

    def timed(self, futures: Any) -> float:
        """Seconds until all are done; `futures` is called within them."""
        from distributed import wait

        start = time.perf_counter()
        found = futures()
        wait(found)
        seconds = time.perf_counter() - start
        return seconds

    # ---- what is measured ----------------------------------------------------------------------------------

    def one(self, size: int) -> float:
        """GB/s of one array from a worker to the other."""
        from distributed import wait

        block = self.submit(fill, size, 1, on=0)
        wait([block])
        return size / self.timed(lambda: [self.submit(use, block, on=1)]) / 1e9

    def transpose(self) -> float:
        """GB/s of what moves."""
        from distributed import wait

        blocks = [[self.submit(fill, BLOCK, i * SIDE + j, on=i % 2) for j in range(SIDE)] for i in range(SIDE)]
        wait([block for row in blocks for block in row])
        seconds = self.timed(
            lambda: [self.submit(np.transpose, blocks[j][i], on=i % 2) for i in range(SIDE) for j in range(SIDE)]
        )
        return SIDE * SIDE // 2 * BLOCK / seconds / 1e9

    def shuffle(self) -> float:
        """GB/s of what moves."""
        from distributed import wait

        arrays = [self.submit(fill, 2 * BLOCK, i, on=i % 2) for i in range(8)]
        wait(arrays)
        pieces = [self.submit(cut, array, k, 2, on=i % 2) for i, array in enumerate(arrays) for k in range(2)]
        wait(pieces)
        seconds = self.timed(lambda: [self.submit(use, piece, on=k % 2) for k, piece in enumerate(pieces)])
        return 8 * BLOCK / seconds / 1e9

    def sum(self) -> float:
        """Seconds of x + x.T, with what NumPy does."""
        from distributed import wait

        n = int((BLOCK // 8) ** 0.5)
        blocks = [[self.submit(square, n, i * SIDE + j, on=i % 2) for j in range(SIDE)] for i in range(SIDE)]
        wait([block for row in blocks for block in row])
        return self.timed(
            lambda: [
                self.submit(add_transposed, blocks[i][j], blocks[j][i], on=i % 2)
                for i in range(SIDE)
                for j in range(SIDE)
            ]
        )


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
                await comm.write(to_serialize(arrays.setdefault(size, fill(size, 1))))

    async def main() -> None:
        async with listen(f"{protocol}://127.0.0.1:0", answer) as listener:
            pipe.send(listener.contact_address)
            await asyncio.get_running_loop().run_in_executor(None, pipe.recv)

    asyncio.run(main())


def comms(protocols: list[str], sizes: list[int]) -> dict[tuple[str, int], float]:
    """Median GB/s of one array from another process to this one, by protocol and size."""
    import asyncio

    from distributed.comm import connect

    spawn = multiprocessing.get_context("spawn")
    found: dict[tuple[str, int], list[float]] = {}

    async def measure(addresses: dict[str, str]) -> None:
        open_ = {protocol: await connect(address) for protocol, address in addresses.items()}
        for size in sizes:
            for turn in range(2 * ROUNDS + 1):
                for protocol, comm in open_.items():
                    start = time.perf_counter()
                    await comm.write(size)
                    await comm.read()
                    if turn:
                        found.setdefault((protocol, size), []).append(size / (time.perf_counter() - start) / 1e9)
        for comm in open_.values():
            await comm.close()

    pipes, processes, addresses = [], [], {}
    for protocol in protocols:
        here, there = spawn.Pipe()
        process = spawn.Process(target=serve, args=(there, protocol), daemon=True)
        process.start()
        addresses[protocol] = here.recv()
        pipes.append(here)
        processes.append(process)
    asyncio.run(measure(addresses))
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send("stop")
        process.join()
    return {key: statistics.median(values) for key, values in found.items()}


def copies(size: int) -> tuple[float, float]:
    """GB/s of memcpy into memory that was used before, and into fresh memory."""
    source = np.ones(size, np.uint8)
    target = np.zeros(size, np.uint8)
    found: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
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

    bare = comms(protocols, [MIB, BLOCK, 4 * BLOCK])
    for size in sorted({size for _, size in bare}):
        name = f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB"
        medians = {protocol: bare[protocol, size] for protocol in protocols}
        add(f"comm, array of {name}", "GB/s", medians, 2 if size >= BLOCK else None)
    with clusters(protocols) as found:

        def compare(what: str, unit: str, call: Any, rounds: int, budget: float | None) -> None:
            values: dict[str, list[float]] = {protocol: [] for protocol in protocols}
            for turn in range(rounds + 1):
                for protocol in protocols:
                    value = call(found[protocol])
                    if turn:  # the first connects
                        values[protocol].append(value)
            add(f"two workers, {what}", unit, {p: statistics.median(those) for p, those in values.items()}, budget)

        compare("one array of 64 MiB", "GB/s", lambda c: c.one(BLOCK), ROUNDS, 2)
        compare("transpose, blocks of 64 MiB", "GB/s", Cluster.transpose, ROUNDS, 2)
        compare("shuffle, pieces of 64 MiB", "GB/s", Cluster.shuffle, ROUNDS, 2)
        compare("x + x.T with NumPy's work, blocks of 64 MiB", "s", Cluster.sum, SUM_ROUNDS, None)
    publish("dask", rows)


if __name__ == "__main__":
    main()
