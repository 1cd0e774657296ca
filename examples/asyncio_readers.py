"""Many asyncio tasks read another process's array; meanwhile the event loop sleeps on one descriptor.

python examples/asyncio_readers.py
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from multiprocessing.synchronize import Event

import numpy as np

import weft

SENSORS, SAMPLES, READERS = 100, 1000, 50
NAME = f"samples-{os.getpid()}"


def owner(name: str, done: Event) -> None:
    """Owns the data, and runs no code while the tasks read it."""
    with weft.open() as node:
        samples = weft.empty((SENSORS, SAMPLES))
        samples[:] = np.arange(SENSORS)[:, None]
        node.share(samples, name=name, access="r")
        done.wait(60)


async def reader(samples: weft.RemoteArray, sensors: range) -> float:
    total = 0.0
    for sensor in sensors:
        window = await samples.at[sensor, -10:].aread()
        total += float(window.mean())
    return total


async def read_all() -> float:
    with weft.open() as node:
        samples = await node.aattach(NAME, wait=60)  # the owner may still be starting
        step = SENSORS // READERS
        totals = await asyncio.gather(*(reader(samples, range(i * step, (i + 1) * step)) for i in range(READERS)))
        return sum(totals)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    done = context.Event()
    process = context.Process(target=owner, args=(NAME, done))
    process.start()
    try:
        total = asyncio.run(read_all())
    finally:
        done.set()
        process.join()
    assert total == sum(range(SENSORS))
    print(f"{READERS} tasks read {SENSORS} sensors; the means add up to {total:g}")


if __name__ == "__main__":
    main()
