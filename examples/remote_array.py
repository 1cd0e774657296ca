"""Two processes, one array: the owner shares it by name and sleeps; the other process uses it like a NumPy array.

python examples/remote_array.py
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection

import numpy as np

import weft


def owner(name: str, pipe: Connection) -> None:
    with weft.open() as node:
        table = weft.zeros((4, 6), "int64")
        with node.share(table, name=name) as shared:
            print(f"owner:  {shared}")
            pipe.send("shared")
            pipe.recv()  # sleeps here: this process runs no code during the transfers
            print(f"owner:\n{table}")


def main() -> None:
    name = f"table-{os.getpid()}"
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=owner, args=(name, there), daemon=True)
    process.start()
    there.close()
    assert here.recv() == "shared"
    with weft.open() as node:
        table = node.attach(name)
        table[1] = np.arange(6)  # a row
        table[2:, ::2] = 7  # every other column of two rows
        before = table.fetch_add((1, 5), 100)  # atomic, also with other processes
        print(f"reader: {table}")
        print(f"reader: row 1 is {table[1]}, its last element was {before}; the sum is {table[:].sum()}")
        done = node.statistics()
        print(f"reader: {done.direct} operations by load and store, {done.engine} by the owner's engine")
    here.send("done")
    process.join(timeout=30)


if __name__ == "__main__":
    main()
