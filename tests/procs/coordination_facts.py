"""Calls of processes on locks, events, semaphores, barriers, queues and signals: functions of a Child.

Each takes the child's world first, and finds its objects in `things`, by name.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import threading
import time
from typing import Any

import numpy as np
from tests.patience import Patience

import weft
from weft import _process, errors

TCP = {
    "WEFT_SHM": "0",
    "WEFT_SECRET": "of the tests of coordination, of processes",
    "WEFT_LISTEN": "tcp://127.0.0.1:0",
}
PATHS: dict[str, dict[str, str]] = {
    "load/store": {},
    "engine": {"WEFT_ISOLATION": "strict"},
    "tcp": TCP,
}
"""Environments of processes that do not map each other's memory, or do: by the path that they then have."""

things: dict[str, Any] = {}
_calls: dict[str, threading.Thread] = {}
_results: dict[str, Any] = {}


def make(_: Any, kind: str, name: str, *args: Any, **options: Any) -> str:
    """Make an object; its ticket."""
    things[name] = getattr(weft, kind)(name, *args, create=True, **options)
    return str(things[name].ticket)


def attach(_: Any, kind: str, name: str, *args: Any, **options: Any) -> str:
    """Attach an object; the path to it."""
    things[name] = getattr(weft, kind)(name, *args, create=False, wait=60.0, **options)
    return str(things[name].path)


def share(_: Any, name: str, shape: Any, dtype: str, foreign: bool = False) -> None:
    array = np.zeros(shape, dtype) if foreign else weft.zeros(shape, dtype)
    things[name] = weft.share.default_node().share(array, name)


def frames(_: Any) -> int:
    """Frames that this process's NIC has served."""
    return int(_process.nic().statistics()["frames_served"])


def frames_in_looks(_: Any, looks: int) -> int:
    """Frames that this process's NIC serves while its engine wakes so many times."""
    nic, patience = _process.nic(), Patience(60)
    before = nic.statistics()
    while nic.statistics()["engine_wakes"] - before["engine_wakes"] < looks:
        assert not patience.over, "the engine does not look"
        time.sleep(0.01)
    return int(nic.statistics()["frames_served"] - before["frames_served"])


def attach_array(_: Any, name: str) -> str:
    things[name] = weft.share.default_node().attach(name, wait=60.0)
    things[name].read()
    return str(things[name].path)


def close(_: Any, name: str) -> None:
    things.pop(name).close()


def call(_: Any, name: str, method: str, *args: Any, **options: Any) -> Any:
    """A call; its result, or the name of its error and its text."""
    try:
        found = getattr(things[name], method)(*args, **options)
    except errors.FabricError as error:
        return type(error).__name__, str(error)
    if asyncio.iscoroutine(found):
        return asyncio.run(_result(found))
    return found


async def _result(coroutine: Any) -> Any:
    try:
        return await coroutine
    except errors.FabricError as error:
        return type(error).__name__, str(error)


def attribute(_: Any, name: str, attr: str) -> Any:
    return getattr(things[name], attr)


def notify_with_data(world: Any, name: str, method: str) -> None:
    target = things[name]
    options = {"at": slice(1, None), "data": np.arange(9)}
    if method == "notify":
        target.notify(0, **options)
    else:
        asyncio.run(target.anotify(0, **options))


def write(_: Any, name: str, index: Any, value: Any) -> None:
    things[name][index] = value


def write_locally(_: Any, name: str, index: Any, value: Any) -> None:
    """As a program does that knows nothing of Weft."""
    things[name].array[index] = value


def begin(world: Any, name: str, method: str, *args: Any, **options: Any) -> None:
    """A call in a thread of its own; `finish` brings its result."""

    def run() -> None:
        _results[name] = call(world, name, method, *args, **options)

    _calls[name] = threading.Thread(target=run, daemon=True)
    _calls[name].start()


def begin_until_told(world: Any, name: str, method: str) -> None:
    """Wait with a function that looks at more than the elements: `tell` ends the wait."""
    told = things[f"{name} told"] = threading.Event()
    begin(world, name, method, 0, lambda _: told.is_set())


def tell(_: Any, name: str) -> None:
    things[f"{name} told"].set()


def begin_turn(world: Any, name: str, method: str) -> None:
    """Take a lock and release it, in a thread of its own; `finish` brings the result of the first."""

    def run() -> None:
        _results[name] = call(world, name, method)
        things[name].release()

    _calls[name] = threading.Thread(target=run, daemon=True)
    _calls[name].start()


def finish(_: Any, name: str, seconds: float = 60.0) -> Any:
    _calls[name].join(seconds)
    assert not _calls[name].is_alive(), f"{name}: the call has not ended"
    return _results.pop(name)


# ---- work ------------------------------------------------------------------------------------------------------------


def count(_: Any, lock: str, counter: str, rounds: int) -> None:
    """Add to a number that is not atomic, under the lock."""
    guard, cell = things[lock], things[counter]
    for _i in range(rounds):
        with guard:
            cell[0] = int(cell[0]) + 1


def count_until_killed(_: Any, lock: str, counter: str) -> None:
    """As `count`, without end: two numbers that are equal, except while the lock is held or after a death."""
    guard, cell = things[lock], things[counter]
    while True:
        try:
            guard.acquire()
        except weft.OwnerDied:
            if guard.recover():
                cell[1] = int(cell[0])
        assert int(cell[0]) == int(cell[1])
        cell[0] = int(cell[0]) + 1
        cell[1] = int(cell[1]) + 1
        guard.release()


def check_counts(_: Any, lock: str, counter: str) -> bool:
    """Take the lock, recovering it if need be; whether the two numbers are equal then."""
    guard, cell = things[lock], things[counter]
    try:
        guard.acquire(timeout=60)
    except weft.OwnerDied:
        if guard.recover(timeout=60):
            cell[1] = int(cell[0])
    same = int(cell[0]) == int(cell[1])
    guard.release()
    return same


def produce(_: Any, queue: str, producer: int, first: int, n: int) -> None:
    """Put records that say who made them, and whether they are whole."""
    target = things[queue]
    for k in range(first, first + n):
        target.put(record(producer, k, target.nbytes), timeout=60)


def record(producer: int, k: int, nbytes: int) -> bytes:
    """A record of 1/50 to 40/50 of the queue's bytes for one."""
    head = struct.pack("<II", producer, k)
    return head * (1 + k % 40) * (nbytes // 400)


def what(item: bytes, nbytes: int) -> tuple[int, int]:
    """A record's maker and number. Fails for a record that is not whole."""
    producer, k = struct.unpack_from("<II", item)
    assert item == record(producer, k, nbytes), "a record that is not whole"
    return producer, k


def consume(_: Any, queue: str, n: int) -> list[tuple[int, int]]:
    source = things[queue]
    return [what(source.get(timeout=60), source.nbytes) for _i in range(n)]


def consume_until_empty(_: Any, queue: str, seconds: float) -> list[tuple[int, int]]:
    source = things[queue]
    found = []
    while True:
        try:
            found.append(what(source.get(timeout=seconds), source.nbytes))
        except errors.TimedOut:
            return found


def produce_until_killed(_: Any, queue: str, producer: int, progress: str) -> None:
    """Put records without end; progress[producer] is the number of returned put() calls."""
    target, done = things[queue], things[progress]
    k = int(done[producer])
    while True:
        target.put(record(producer, k, target.nbytes))
        k += 1
        done[producer] = k


def consume_until_killed(_: Any, queue: str) -> None:
    source = things[queue]
    while True:
        what(source.get(), source.nbytes)


def hold(_: Any, name: str, method: str = "acquire") -> int:
    """Take a lock or a permit; the pid."""
    getattr(things[name], method)()
    return os.getpid()


def end(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def pass_barrier(_: Any, name: str, rounds: int) -> list[int]:
    barrier = things[name]
    return [barrier.wait(timeout=60) for _i in range(rounds)]


def limited(_: Any, semaphore: str, inside: str, most: str, rounds: int) -> None:
    """Note the most processes that have a permit at a time."""
    permits, now, seen = things[semaphore], things[inside], things[most]
    for _i in range(rounds):
        with permits:
            seen.fetch_op(0, "max", int(now.fetch_add(0, 1)) + 1)
            now.fetch_add(0, -1)
