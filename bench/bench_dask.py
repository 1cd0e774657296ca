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
SUM_ROUNDS = 2


def fill(size: int, seed: int) -> Any:
    return np.full(size // 8, float(seed))


def cut(array: Any, piece: int, of: int) -> Any:
    step = len(array) // of
    return array[piece * step : (piece + 1) * step]


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

    # ---- what is measured ------------------------------------------------------------------------------------------

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
        import dask.array as da
        from distributed import wait

        n = int((BLOCK // 8) ** 0.5)
        x = da.random.random((SIDE * n, SIDE * n), chunks=(n, n)).persist()
        wait(x)
        return self.timed(lambda: [(x + x.T).persist()])


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
    with clusters(protocols) as found:

        def compare(what: str, unit: str, call: Any, rounds: int, budget: float | None) -> None:
            values: dict[str, list[float]] = {protocol: [] for protocol in protocols}
            for turn in range(rounds + 1):
                for protocol in protocols:
                    value = call(found[protocol])
                    if turn:  # the first connects
                        values[protocol].append(value)
            medians = {protocol: statistics.median(those) for protocol, those in values.items()}
            times = medians["weft"] / medians["tcp"] if unit == "GB/s" else medians["tcp"] / medians["weft"]
            rows.append(
                Row(
                    f"Dask, two workers: {what}: {times:.2f} x tcp://",
                    "" if budget is None else f">= {budget:g} x tcp://",
                    medians["weft"],
                    unit,
                    None if budget is None else times >= budget,
                    warm if unit == "GB/s" else None,
                    f"memcpy (into fresh memory: {fresh:.1f})" if unit == "GB/s" else "",
                    peers={f"{protocol}://": medians.get(protocol) for protocol in ("tcp", "ucxx")},
                )
            )

        for size in (1, 64, 256):
            compare(
                f"one array of {size} MiB", "GB/s", lambda c, n=size * MIB: c.one(n), ROUNDS, 2 if size >= 64 else None
            )
        compare("transpose, blocks of 64 MiB", "GB/s", Cluster.transpose, ROUNDS, 2)
        compare("shuffle, pieces of 64 MiB", "GB/s", Cluster.shuffle, ROUNDS, 2)
        compare("x + x.T with NumPy's work, blocks of 64 MiB", "s", Cluster.sum, SUM_ROUNDS, None)
    publish("dask", rows)


if __name__ == "__main__":
    main()
