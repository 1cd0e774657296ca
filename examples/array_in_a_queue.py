"""A multiprocessing queue carries arrays of any size: each message is a ticket of a few hundred bytes.

The worker reads and writes the parent's array in place; the parent's memory is the only copy.

    python examples/array_in_a_queue.py
"""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

import numpy as np

import weft


def worker(queue: Any) -> None:
    while (part := queue.get()) is not None:
        part[...] = np.sqrt(part.read())  # the array attaches at its first use


def main() -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=worker, args=(queue,))
    process.start()
    with weft.open() as node:
        image = weft.empty((400, 1000))
        image[:] = np.arange(400)[:, None] ** 2
        remote = node.attach(node.share(image))
        for top in range(0, 400, 100):
            queue.put(remote.at[top : top + 100])  # a part that stays remote
        queue.put(None)
        process.join()
        assert process.exitcode == 0
        assert (image == np.arange(400)[:, None]).all()
        print(f"{image.nbytes} B were worked on; a message had {len(pickle.dumps(remote.at[:100]))} B")


if __name__ == "__main__":
    main()
