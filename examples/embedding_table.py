"""A shared embedding table: four workers look up rows and add gradients to them; no worker holds a copy.

The owner only makes the table; its process runs no code while the workers read and update. Row lookups are one vectored
operation; gradients are added atomically, element by element, so no gradient is lost when two workers update a row.

    python examples/embedding_table.py
"""

from __future__ import annotations

import multiprocessing

import numpy as np

import weft

WORKERS, STEPS, BATCH = 4, 50, 32
ROWS, WIDTH = 1000, 16


def worker(seed: int, table: weft.RemoteArray, touched: weft.RemoteArray) -> None:
    """Look a batch of rows up, and push an update of each."""
    rng = np.random.default_rng(seed)
    for _ in range(STEPS):
        rows = rng.integers(0, ROWS, BATCH)
        vectors = table.take(rows)  # (BATCH, WIDTH): one vectored read
        assert vectors.shape == (BATCH, WIDTH)
        for row in rows:
            table.add(int(row), np.ones(WIDTH, "f4"))  # atomic for each element
            touched.fetch_add(int(row), 1)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    with weft.open() as node:
        table = weft.zeros((ROWS, WIDTH), "float32")  # memory that the workers map
        touched = weft.zeros(ROWS, "int64")
        # The result of share() can be pickled: a process that gets it as an argument receives a RemoteArray.
        shares = node.share(table), node.share(touched)
        workers = [context.Process(target=worker, args=(seed, *shares)) for seed in range(WORKERS)]
        for process in workers:
            process.start()
        for process in workers:
            process.join()
            assert process.exitcode == 0
        assert touched.sum() == WORKERS * STEPS * BATCH
        assert (table == touched[:, None]).all()  # every update arrived exactly once
        print(f"{WORKERS} workers made {touched.sum()} updates of {np.count_nonzero(touched)} rows; none was lost")


if __name__ == "__main__":
    main()
