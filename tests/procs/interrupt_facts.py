"""Calls that signals interrupt at random instants: the two processes of test_interrupted_waits.py.

The second process interrupts itself: a timer's signal, whose handler raises Cut, ends a call. The test knows whether
the call was made, and what it returned: no Python instruction, between which handlers run, lies between the start of
the timer, the call, and the list that takes the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import operator
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.patience import Patience
from tests.procs.coordination_facts import things

from weft import errors
from weft.share.arrays import calls
from weft.share.names.ticket import process_is_stopped

_PATIENCE_S = 50.0
_TIMER = signal.setitimer, signal.ITIMER_REAL


class Cut(Exception):
    """Raised by the handler of SIGALRM."""


_armed = False


def _cut(*_: Any) -> None:
    if _armed:
        raise Cut


def interrupted(
    call: Callable[[Any], Any], on: Any, rng: random.Random, within_s: float, every_s: float = 1e-3
) -> list[Any]:
    """[what call(on) returned], or [] if a signal has ended it. Signals come until then, `every_s` apart: CPython loses
    an exception of a handler in a finalizer, or in a callback of a weak reference."""
    global _armed
    got: list[Any] = []
    calls = (functools.partial(*_TIMER, rng.uniform(1e-6, within_s), every_s), functools.partial(call, on))
    # The handling of an exception is interrupted, too.
    try:
        try:
            try:
                _armed = True
                got.extend(map(operator.call, calls))
            except Cut:
                pass
            _armed = False
        except Cut:
            pass
        _armed = False
    except Cut:
        pass
    _armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    return got[1:]


def _start(seed: int) -> random.Random:
    signal.signal(signal.SIGALRM, _cut)
    return random.Random(seed)


# ---- the first process: who comes in between -------------------------------------------------------------------------

_stop = threading.Event()
_worker: list[threading.Thread] = []
_found: list[Any] = []


def begin(_: Any, work: str, name: str, *args: Any) -> None:
    """Let a thread work until `finish`."""
    _stop.clear()
    _found.clear()
    _worker[:] = [threading.Thread(target=globals()[work], args=(things[name], *args))]
    _worker[0].start()


def finish(_: Any) -> list[Any]:
    """The thread's findings, when it has ended."""
    _stop.set()
    _worker[0].join(_PATIENCE_S)
    assert not _worker[0].is_alive(), "the thread waits for ever"
    return list(_found)


def take_items(queue: Any) -> None:
    while not _stop.is_set():
        with contextlib.suppress(errors.TimedOut):
            _found.append(queue.get(timeout=0.05))


def take_and_give(thing: Any, seed: int) -> None:
    rng = random.Random(seed)
    while not _stop.is_set():
        thing.acquire(timeout=_PATIENCE_S)
        _stop.wait(rng.uniform(0, 1e-3))
        thing.release()
        _stop.wait(rng.uniform(0, 5e-4))


def put_numbers(queue: Any, nbytes: int, count: int) -> None:
    for number in range(count):
        queue.put(number.to_bytes(4, "little") * (nbytes // 4), timeout=_PATIENCE_S)


def get_numbers(queue: Any) -> None:
    while True:
        item = queue.get(timeout=_PATIENCE_S)
        assert item == item[:4] * (len(item) // 4)
        if item[:4] == b"\xff\xff\xff\xff":
            return
        _found.append(int.from_bytes(item[:4], "little"))


# ---- the second: whose calls are interrupted -------------------------------------------------------------------------


def cut_lock(_: Any, name: str, rounds: int, seed: int) -> dict[str, int]:
    """acquire(), try_acquire(), recover() and `with`: the lock is had, or it is not; release() releases."""
    rng, lock = _start(seed), things[name]
    calls = [
        operator.methodcaller("acquire", timeout=_PATIENCE_S),
        operator.methodcaller("try_acquire"),
        operator.methodcaller("recover", _PATIENCE_S),
    ]
    release = operator.methodcaller("release")
    told = {"had": 0, "cut": 0}

    def block(lock: Any) -> None:
        with lock:
            assert lock.holder == os.getpid()

    for number in range(rounds):
        if number % 4 == 3:
            done = interrupted(block, lock, rng, 2e-3)
        else:
            call = calls[number % 4]
            found = interrupted(call, lock, rng, 2e-3)
            done = [one for one in found if number % 4 == 2 or one]
            if done:
                assert lock.holder == os.getpid(), number
                interrupted(release, lock, rng, 2e-4)
        assert lock.holder != os.getpid(), (number, done)
        told["had" if done else "cut"] += 1
    return told


def cut_semaphore(_: Any, name: str, rounds: int, seed: int) -> dict[str, int]:
    rng, semaphore = _start(seed), things[name]
    calls = [operator.methodcaller("acquire", timeout=_PATIENCE_S), operator.methodcaller("try_acquire")]
    release = operator.methodcaller("release")
    told = {"had": 0, "cut": 0}

    def block(semaphore: Any) -> None:
        with semaphore:
            pass

    for number in range(rounds):
        if number % 3 == 2:
            done = interrupted(block, semaphore, rng, 2e-3)
        else:
            found = interrupted(calls[number % 3], semaphore, rng, 2e-3)
            done = [one for one in found if one]
            if done:
                interrupted(release, semaphore, rng, 2e-4)
        told["had" if done else "cut"] += 1
    return told


def cut_get(_: Any, name: str, rounds: int, seed: int, count: int) -> list[int]:
    """The numbers that came, in this order."""
    rng, queue = _start(seed), things[name]
    items: list[bytes] = []
    get = operator.methodcaller("get", timeout=_PATIENCE_S)
    for _round in range(rounds):
        if len(items) < count:
            items += interrupted(get, queue, rng, 1e-3)
    while len(items) < count:
        items.append(queue.get(timeout=_PATIENCE_S))
    assert all(item == item[:4] * (len(item) // 4) for item in items)
    return [int.from_bytes(item[:4], "little") for item in items]


def cut_gets_beside_others(_: Any, name: str, rounds: int, seed: int, count: int) -> list[int]:
    """The numbers that came to two threads; the gets of one are interrupted, so often that their undoing is too."""
    rng, queue = _start(seed), things[name]
    taken: list[bytes] = []
    stop = threading.Event()

    def take() -> None:
        while not stop.is_set():
            with contextlib.suppress(errors.TimedOut):
                taken.append(queue.get(timeout=0.01))

    other = threading.Thread(target=take)
    other.start()
    items: list[bytes] = []
    for _round in range(rounds):
        items += interrupted(operator.methodcaller("get", timeout=0.01), queue, rng, 1e-3, 5e-5)
        if len(items) + len(taken) >= count:
            break
    until = Patience(_PATIENCE_S)
    while len(items) + len(taken) < count and not until.over:
        with contextlib.suppress(errors.TimedOut):
            items.append(queue.get(timeout=0.01))
    stop.set()
    other.join()
    return sorted(int.from_bytes(item[:4], "little") for item in items + taken)


def cut_put(_: Any, name: str, rounds: int, seed: int, nbytes: int) -> list[int]:
    """The numbers that were put for certain."""
    rng, queue = _start(seed), things[name]
    certain: list[int] = []
    for number in range(rounds):
        item = number.to_bytes(4, "little") * (nbytes // 4)
        if interrupted(operator.methodcaller("put", item, timeout=_PATIENCE_S), queue, rng, 1e-3):
            certain.append(number)
    queue.put(b"\xff\xff\xff\xff" * (nbytes // 4), timeout=_PATIENCE_S)
    return certain


def end_loops(_: Any, name: str, call: str, rounds: int, seed: int) -> list[int]:
    """Event loops that end while their tasks wait. What the tasks that had their turn took is released, or returned."""
    rng, thing = _start(seed), things[name]
    items: list[bytes] = []

    async def wait() -> list[asyncio.Task[Any]]:
        tasks = [asyncio.create_task(getattr(thing, call)()) for _ in range(3)]
        await asyncio.sleep(rng.uniform(0, 2e-3))
        if rng.random() < 0.3:
            time.sleep(1e-3)  # answers come meanwhile, and nobody reads them
        return tasks

    for _round in range(rounds):
        for task in asyncio.run(wait()):
            if task.cancelled():
                continue
            if call == "aget":
                items.append(task.result())
            else:
                thing.release()
    return [int.from_bytes(item[:4], "little") for item in items]


def get_rest(_: Any, name: str, count: int) -> list[int]:
    return [int.from_bytes(things[name].get(timeout=_PATIENCE_S)[:4], "little") for _ in range(count)]


def cut_barrier(_: Any, name: str, rounds: int, seed: int) -> None:
    """Nobody else comes: an interrupted party has left."""
    rng, barrier = _start(seed), things[name]
    for number in range(rounds):
        assert interrupted(operator.methodcaller("wait", _PATIENCE_S), barrier, rng, 2e-3) == []
        assert barrier.n_waiting == 0, number


def cut_waits(_: Any, name: str, rounds: int, seed: int, call: str, *args: Any) -> None:
    """Waits that only a signal ends."""
    rng, thing = _start(seed), things[name]
    with contextlib.suppress(errors.TimedOut):
        getattr(thing, call)(*args, timeout=0.01)  # imports what it needs
    for _round in range(rounds):
        assert interrupted(operator.methodcaller(call, *args, timeout=_PATIENCE_S), thing, rng, 1e-3) == []


def wait(_: Any, name: str, call: str, *args: Any) -> int:
    return int(getattr(things[name], call)(*args, timeout=_PATIENCE_S))


def set_event(_: Any, name: str) -> None:
    things[name].set()


def notify(_: Any, name: str, value: int) -> None:
    things[name].notify(0, value)


def value_of(_: Any, name: str) -> int:
    return int(things[name].value)


def take_lock(_: Any, name: str) -> bool:
    """Whether the lock can be had, and given back."""
    lock = things[name]
    if not lock.acquire(timeout=_PATIENCE_S):
        return False
    lock.release()
    return True


# ---- calls whose object's owner is stopped ---------------------------------------------------------------------------

CALLS: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "lock": ("acquire", "aacquire", ()),
    "semaphore": ("acquire", "aacquire", ()),
    "short items": ("get", "aget", ()),
    "long items": ("get", "aget", ()),
    "late items": ("put", "aput", (b"late",)),
    "room": ("put", "aput", (bytes(40_000),)),
    "barrier": ("wait", "await_", ()),
}
"""An object, its call, and the arguments."""


def cut_once(_: Any, name: str, what: str) -> str:
    """A call that a signal ends while the owner is stopped."""
    call, _, args = CALLS[what]
    rng = _start(0)
    found = interrupted(operator.methodcaller(call, *args, timeout=_PATIENCE_S), things[name], rng, 0.05)
    return "cut" if not found else repr(found)


def late_or_canceled(_: Any, names: dict[str, str]) -> set[str]:
    """Calls that come to their deadlines, and tasks that are canceled, while the owner is stopped; all at once."""
    found: set[str] = set()

    def late(name: str, what: str) -> None:
        call, _, args = CALLS[what]
        # TimedOut of a lock names the holder, a question to the owner, who is stopped.
        form = {"blocking": True} if what == "lock" else {}
        try:
            got = getattr(things[name], call)(*args, timeout=0.05, **form)
            found.add("late" if got is False else repr(got))
        except errors.TimedOut:
            found.add("late")

    async def cancel(name: str, what: str) -> None:
        _, call, args = CALLS[what]
        try:
            await asyncio.wait_for(getattr(things[name], call)(*args), 0.05)  # which cancels the call
        except asyncio.TimeoutError:
            await asyncio.gather(*calls._background_tasks)
            found.add("canceled")

    def canceled() -> None:
        async def everything() -> None:
            await asyncio.gather(*(cancel(name, what) for what, name in names.items()))

        asyncio.run(everything())

    # Not of a barrier, either: TimedOut tells how many have come.
    threads = [threading.Thread(target=late, args=(name, what)) for what, name in names.items() if what != "barrier"]
    threads.append(threading.Thread(target=canceled))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_S)
    return found


def take_one(_: Any, name: str) -> bytes:
    return bytes(things[name].get(timeout=_PATIENCE_S))


def numbers_in(_: Any, name: str, count: int) -> list[int]:
    return [int.from_bytes(things[name].get(timeout=_PATIENCE_S)[:4], "little") for _one in range(count)]


def put_while_the_owner_stops(_: Any, name: str, owner: int, call: str) -> None:
    """A put of a long item; the owner is stopped when the item is in its slot, and before the slot is full."""
    queue = things[name]
    queue._node.timeout = 1.0
    reach = queue._ensure

    def stop(call: str) -> None:
        reach(call)
        if queue._array.at[:].read().tobytes().count(b"long") == 10_000 and not process_is_stopped(owner):
            os.kill(owner, signal.SIGSTOP)
            patience = Patience(_PATIENCE_S)
            while not process_is_stopped(owner):
                assert not patience.over

    queue._ensure = stop
    if call == "put":
        queue.put(b"long" * 10_000, timeout=_PATIENCE_S)
    else:
        asyncio.run(queue.aput(b"long" * 10_000, timeout=_PATIENCE_S))


def ask(_: Any, names: list[str]) -> None:
    """A call on each object, after those before: the owner has done them."""
    for name in names:
        repr(things[name])


def waiting(_: Any, name: str) -> int:
    return int(things[name].n_waiting)
