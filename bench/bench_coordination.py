"""Locks, events, semaphores and queues beside multiprocessing's, in the same run: alone, and between two processes.

Each row is the minimum of many short rounds, because a busy machine only adds time.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Callable
from typing import Any

import weft
from common import Row, publish

ROUNDS = 60
CONTENDED_S = 0.5


def least_ns(call: Callable[[int], object], per_round: int) -> float:
    """The best round's time for one repetition; call(n) makes n of them."""
    best = empty = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        call(per_round)
        best = min(best, time.perf_counter_ns() - start)
        start = time.perf_counter_ns()
        for _ in range(per_round):
            pass
        empty = min(empty, time.perf_counter_ns() - start)
    return (best - empty) / per_round


# ---- alone -----------------------------------------------------------------------------------------------------------


def with_lock(lock: Any) -> Callable[[int], None]:
    def run(n: int) -> None:
        for _ in range(n):
            with lock:
                pass

    return run


def acquire_release(lock: Any) -> Callable[[int], None]:
    acquire, release = lock.acquire, lock.release

    def run(n: int) -> None:
        for _ in range(n):
            acquire()
            release()

    return run


def set_clear(event: Any) -> Callable[[int], None]:
    set_it, clear = event.set, event.clear

    def run(n: int) -> None:
        for _ in range(n):
            set_it()
            clear()

    return run


def is_set(event: Any) -> Callable[[int], None]:
    look = event.is_set

    def run(n: int) -> None:
        for _ in range(n):
            look()

    return run


def wait_set(event: Any) -> Callable[[int], None]:
    event.set()
    wait = event.wait

    def run(n: int) -> None:
        for _ in range(n):
            wait()

    return run


def put_get(queue: Any, item: Any) -> Callable[[int], None]:
    put, get = queue.put, queue.get

    def run(n: int) -> None:
        for _ in range(n):
            put(item)
            get()

    return run


# ---- two processes ---------------------------------------------------------------------------------------------------


def contend(lock: Any, start: Any, seconds: float, result: Any) -> None:
    """Take and release a lock, doing a little work inside and outside, for some time; the number of rounds."""
    with lock:
        pass
    start.wait()
    end = time.perf_counter() + seconds
    n = 0
    while time.perf_counter() < end:
        with lock:
            for _ in range(20):
                pass
        for _ in range(20):
            pass
        n += 1
    result.send((n, time.process_time()))


def hammer(lock: Any, cell: Any, me: int, start: Any, seconds: float, result: Any) -> None:
    """Increment a plain counter under the lock, for some time; the number of increments."""
    with lock:
        pass
    start.wait()
    end = time.perf_counter() + seconds
    n = 0
    while time.perf_counter() < end:
        with lock:
            cell[0] += 1
        n += 1
    result.send((n, time.process_time()))


def alternate(lock: Any, cell: Any, me: int, start: Any, seconds: float, result: Any) -> None:
    """Increment the counter under the lock whenever it is this process's turn (its parity), for some time."""
    with lock:
        pass
    start.wait()
    end = time.perf_counter() + seconds
    n = 0
    while time.perf_counter() < end:
        with lock:
            if cell[0] % 2 == me:
                cell[0] += 1
                n += 1
    result.send((n, time.process_time()))


def answer(requests: Any, replies: Any, n: int) -> None:
    for _ in range(n):
        replies.put(requests.get())


def answer_events(ping: Any, pong: Any, n: int) -> None:
    for _ in range(n):
        ping.wait()
        ping.clear()
        pong.set()


def answer_signals(cells: Any, n: int) -> None:
    for _ in range(n):
        cells.wait(0)
        cells.notify(8)


def contended(context: Any, lock: Any) -> float:
    """Rounds of two processes together, in a second."""
    start = context.Barrier(2)
    ends = [context.Pipe(False) for _ in range(2)]
    processes = [context.Process(target=contend, args=(lock, start, CONTENDED_S, send)) for _, send in ends]
    for process in processes:
        process.start()
    total = sum(receive.recv()[0] for receive, _ in ends)
    for process in processes:
        process.join()
    return total / CONTENDED_S


def together(context: Any, lock: Any, work: Callable[..., None]) -> float:
    """Increments of two processes together, in a second, of a counter in shared memory of multiprocessing."""
    best = 0.0
    for _ in range(3):
        cell = context.RawArray("q", 1)
        start = context.Barrier(2)
        ends = [context.Pipe(False) for _ in range(2)]
        processes = [
            context.Process(target=work, args=(lock, cell, me, start, CONTENDED_S, send))
            for me, (_, send) in enumerate(ends)
        ]
        for process in processes:
            process.start()
        total = sum(receive.recv()[0] for receive, _ in ends)
        for process in processes:
            process.join()
        if cell[0] != total:
            raise AssertionError(f"{total - cell[0]} of {total} increments under {lock!r} are lost")
        best = max(best, total / CONTENDED_S)
    return best


def round_trip_ns(context: Any, make: Callable[[], Any], item: Any, n: int = 2000) -> float:
    requests, replies = make(), make()
    process = context.Process(target=answer, args=(requests, replies, n))
    process.start()
    best = float("inf")
    for _ in range(n):
        start = time.perf_counter_ns()
        requests.put(item)
        replies.get()
        best = min(best, time.perf_counter_ns() - start)
    process.join()
    return best


def event_trip_ns(context: Any, make: Callable[[], Any], n: int = 2000) -> float:
    ping, pong = make(), make()
    process = context.Process(target=answer_events, args=(ping, pong, n))
    process.start()
    best = float("inf")
    for _ in range(n):
        start = time.perf_counter_ns()
        ping.set()
        pong.wait()
        pong.clear()
        best = min(best, time.perf_counter_ns() - start)
    process.join()
    return best


def signal_trip_ns(context: Any, cells: Any, n: int = 2000) -> float:
    process = context.Process(target=answer_signals, args=(cells, n))
    process.start()
    best = float("inf")
    for _ in range(n):
        start = time.perf_counter_ns()
        cells.notify(0)
        cells.wait(8)
        best = min(best, time.perf_counter_ns() - start)
    process.join()
    return best


def main() -> None:
    context = multiprocessing.get_context("spawn")
    rows: list[Row] = []

    def beside(
        what: str, ours: float, theirs: float, unit: str = "ns", budget: float | None = 5.0, because: str = ""
    ) -> None:
        times = ours / theirs if unit == "/s" else theirs / ours
        met = None if budget is None else times >= budget
        shown = "" if budget is None else f"{budget:g} x multiprocessing's"
        why = "" if met is not False else f"{times:.1f} x; {because}"
        rows.append(Row(what, shown, ours, unit, met, why=why, peers={"multiprocessing": theirs}))

    with weft.open() as node:

        def pair(ours: Callable[[], Any], theirs: Callable[[], Any], how: Callable[..., Any], *more: Any) -> Any:
            return least_ns(how(ours(), *more), 2000), least_ns(how(theirs(), *more), 500)

        def lock() -> Any:
            return weft.Lock(node=node)

        def event() -> Any:
            return weft.Event(node=node)

        def queue() -> Any:
            return weft.Queue(node=node)

        def semaphore() -> Any:
            return weft.Semaphore(value=3, node=node)

        def semaphore_of_one() -> Any:
            return weft.Semaphore(value=1, node=node)

        atomic = "theirs is C as well, one atomic instruction for each call; the rest is the interpreter's time"
        named = "theirs is one atomic instruction for each call; ours notes who has the permits, so that they come back"
        beside("Lock: with lock", *pair(lock, context.Lock, with_lock), because=atomic)
        beside("Lock: acquire(), release()", *pair(lock, context.Lock, acquire_release), because=atomic)
        twins = pair(semaphore, lambda: context.Semaphore(3), acquire_release)
        beside("Semaphore: acquire(), release()", *twins, because=named)
        beside("Event: set(), clear()", *pair(event, context.Event, set_clear))
        beside("Event: is_set()", *pair(event, context.Event, is_set))
        beside("Event: wait() of a set event", *pair(event, context.Event, wait_set))
        beside("Queue: put, get of 64 bytes", *pair(queue, context.Queue, put_get, b"x" * 64))
        beside("SimpleQueue: put, get of 64 bytes", *pair(queue, context.SimpleQueue, put_get, b"x" * 64))
        beside("Queue: put, get of a tuple", *pair(queue, context.Queue, put_get, (1, "name", 2.5)))

        both = contended(context, lock()), contended(context, context.Lock())
        beside("Lock: rounds of two processes", *both, "/s", None)
        both = together(context, lock(), hammer), together(context, context.Lock(), hammer)
        beside("Lock: a counter that two processes increment", *both, "/s", None)
        both = together(context, lock(), alternate), together(context, context.Lock(), alternate)
        beside("Lock: a counter that two processes increment by turns", *both, "/s", None)
        both = together(context, semaphore_of_one(), hammer), together(context, context.Semaphore(1), hammer)
        beside("Semaphore(1): a counter that two processes increment", *both, "/s", None)
        trips = event_trip_ns(context, event), event_trip_ns(context, context.Event)
        beside("Event: round trip", *trips, "ns", None)
        cells = node.share(weft.zeros(16, "i8")).remote
        beside("t.notify(), t.wait(): round trip (theirs: Event)", signal_trip_ns(context, cells), trips[1], "ns", None)
        item = b"x" * 64
        trips = round_trip_ns(context, queue, item), round_trip_ns(context, context.Queue, item)
        beside("Queue: round trip of 64 bytes", *trips, "ns", None)

    publish("coordination", rows)


if __name__ == "__main__":
    main()
