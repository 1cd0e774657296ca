"""multiprocessing.shared_memory with NumPy, as JSON: the cost of a plain store, without key, bounds and completion.

fetch_add   takes a multiprocessing.Lock: there is no atomic. Figures are the least over short batches, in nanoseconds.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from timing import SIZES, count_of, least, own_core, ping_pong

NBYTES = 1 << 20
ROUNDS, BATCHES = 200, 20


def answer(name: str) -> None:
    """The other process: writes back each value that it reads."""
    own_core(1)
    memory = SharedMemory(name)
    words = memory.buf[:16].cast("Q")
    for at in range(1, ROUNDS * BATCHES + 1):
        while words[0] != at:
            pass
        words[1] = at
    words.release()
    memory.close()


def measure(memory: SharedMemory) -> dict[str, float | str]:
    words = memory.buf[:16].cast("Q")
    there, here = np.frombuffer(memory.buf, "u1"), np.ones(NBYTES, "u1")
    there[:] = 0
    numbers = there.view("u8")
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=answer, args=(memory.name,), daemon=True)
    process.start()
    own_core(0)
    lock = spawn.Lock()

    def send(at):
        words[0] = at

    def receive(at):
        while words[1] != at:
            pass

    def store(count):
        for _ in range(count):
            numbers[512] = 7

    def load(count):
        for _ in range(count):
            numbers[512]

    def copy(to, source):
        def run(count):
            for _ in range(count):
                to[:] = source

        return run

    def add(count):
        for _ in range(count):
            with lock:
                numbers[512] += 1

    found: dict[str, float | str] = {"library": f"multiprocessing.shared_memory, Python {platform.python_version()}"}
    found["half_round_trip"] = ping_pong(send, receive, ROUNDS, BATCHES)
    process.join(10)
    found["put_8_call"] = found["put_8"] = least(store, 500)
    found["get_8"] = least(load, 500)
    for size in SIZES:
        found[f"put_{size}"] = least(copy(there[:size], here[:size]), count_of(size))
        found[f"get_{size}"] = least(copy(here[:size], there[:size]), count_of(size))
    found["fetch_add"] = least(add, 200)
    return found


def main() -> None:
    memory = SharedMemory(create=True, size=NBYTES)
    try:
        print(json.dumps(measure(memory)))
    finally:
        memory.close()
        memory.unlink()


if __name__ == "__main__":
    main()
