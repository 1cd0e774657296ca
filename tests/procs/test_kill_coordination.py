"""kill -9 at random instants of processes that hold locks, pass barriers, put and get: the others go on, and nothing is
torn. WEFT_KILL_ROUNDS sets the number of kills over all paths and objects, WEFT_SEED when they happen.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.procs import coordination_facts as facts
from tests.procs.children import Child
from tests.procs.test_coordination import Crew

pytestmark = [pytest.mark.kill, pytest.mark.procs, pytest.mark.sweep]

ROUNDS = int(os.environ.get("WEFT_KILL_ROUNDS", "36"))
SEED = int(os.environ.get("WEFT_SEED", "1"))
PATHS = list(facts.PATHS)
_places = itertools.count()


def rounds(path: str) -> int:
    return max(ROUNDS // (2 * len(PATHS)), 2)


@contextlib.contextmanager
def victims(path: str, crew: Crew, names: dict[str, str]) -> Iterator[Child]:
    """A process that has attached the objects: names of objects, and their kinds ("" for an array)."""
    victim = Child(**facts.PATHS[path])
    try:
        for name, kind in names.items():
            if kind:
                victim.call(facts.attach, kind, name)
            else:
                victim.call(facts.attach_array, name)
        yield victim
    finally:
        victim.destroy()


@pytest.mark.parametrize("path", PATHS)
def test_killed_holders_leave_what_can_be_recovered(path: str) -> None:
    """Two victims count under one lock; one of them is killed at a random instant, round after round."""
    rng = random.Random(SEED)
    with Child(**facts.PATHS[path]) as owner, Child(**facts.PATHS[path]) as other:
        crew = Crew(path, [owner, other])
        lock, cells = crew.thing("Lock"), crew.array(2)
        with contextlib.ExitStack() as stack:
            start = lambda: stack.enter_context(victims(path, crew, {lock: "Lock", cells: ""}))  # noqa: E731
            first = start()
            first.start(facts.count_until_killed, lock, cells)
            for k in range(rounds(path)):
                second = start()
                second.start(facts.count_until_killed, lock, cells)
                time.sleep(rng.uniform(0, 0.05))
                first.destroy()
                assert other.call(facts.check_counts, lock, cells), f"round {k} of seed {SEED}"
                first = second
            before = int(owner.call(facts.call, cells, "read")[0])
            while int(owner.call(facts.call, cells, "read")[0]) == before:  # the living go on
                assert first.process.poll() is None
            first.destroy()
        assert owner.call(facts.check_counts, lock, cells)


@pytest.mark.parametrize("nbytes", [400, 60_000])
@pytest.mark.parametrize("path", PATHS)
def test_killed_producers_and_consumers_tear_nothing(path: str, nbytes: int) -> None:
    """Every record that arrives is whole, none arrives twice, and of a killed producer none is lost whose put()
    returned; killed consumers lose the records that they had taken."""
    rng = random.Random(SEED)
    n = rounds(path)
    with Child(**facts.PATHS[path]) as owner, Child(**facts.PATHS[path]) as other:
        crew = Crew(path, [owner, other])
        queue = crew.thing("Queue", 64, nbytes=nbytes)
        done = crew.array(2 * n + 2)
        names = {queue: "Queue", done: ""}
        found: list[tuple[int, int]] = []
        for k in range(n):
            with victims(path, crew, names) as victim:
                victim.start(facts.produce_until_killed, queue, k, done)
                taking = other.start(facts.consume_until_empty, queue, 0.3)
                time.sleep(rng.uniform(0, 0.05))
                victim.destroy()
                found += taking.result()
        found += other.call(facts.consume_until_empty, queue, 0.5)
        assert max(Counter(found).values(), default=1) == 1, f"seed {SEED}"
        numbers = owner.call(facts.call, done, "read")
        for k in range(n):
            got = [i for producer, i in found if producer == k]
            assert got == list(range(len(got))), f"producer {k} of seed {SEED}"
            assert len(got) - int(numbers[k]) in (0, 1), f"producer {k} of seed {SEED}"
        for k in range(n):  # consumers
            with victims(path, crew, names) as victim:
                victim.start(facts.consume_until_killed, queue)
                putting = other.start(facts.produce, queue, n + k, 0, 50)
                time.sleep(rng.uniform(0, 0.02))
                victim.destroy()
                rest = owner.call(facts.consume_until_empty, queue, 0.3)
                putting.result()
                rest += owner.call(facts.consume_until_empty, queue, 0.3)
                assert len(set(rest)) == len(rest)
                last = [i for _, i in rest]
                assert last == sorted(last), f"consumer {k} of seed {SEED}"
                assert {producer for producer, _ in rest} <= {n + k}
        producing = other.start(facts.produce, queue, 2 * n, 0, 200)  # the queue is as good as new
        assert owner.call(facts.consume, queue, 200) == [(2 * n, i) for i in range(200)]
        producing.result()


@pytest.mark.parametrize("path", PATHS)
def test_killed_holders_of_permits_and_parties_stop_nobody(path: str) -> None:
    rng = random.Random(SEED)
    with Child(**facts.PATHS[path]) as owner, Child(**facts.PATHS[path]) as other:
        crew = Crew(path, [owner, other])
        semaphore, barrier = crew.thing("Semaphore", 2), crew.thing("Barrier", 2)
        inside, most = crew.array(1), crew.array(1)
        names = {semaphore: "Semaphore", barrier: "Barrier", inside: "", most: ""}
        for _ in range(max(rounds(path) // 2, 2)):
            with victims(path, crew, names) as victim:
                victim.start(facts.limited, semaphore, inside, most, 1_000_000)
                time.sleep(rng.uniform(0, 0.03))
                victim.destroy()
                for _permit in range(2):  # both are there
                    assert other.call(facts.call, semaphore, "acquire", 60) is True
                other.call(facts.call, semaphore, "release", 2)
            with victims(path, crew, names) as victim:
                victim.start(facts.pass_barrier, barrier, 1_000_000)
                other.call(facts.begin, barrier, "wait")
                assert other.call(facts.finish, barrier) in (0, 1)
                time.sleep(rng.uniform(0, 0.01))
                victim.destroy()
                found = other.call(facts.call, barrier, "wait", 60)
                if isinstance(found, int):  # the victim had come again before it died
                    found = other.call(facts.call, barrier, "wait", 60)
                assert found[0] == "Canceled"
                owner.call(facts.call, barrier, "reset")
        assert owner.call(facts.attribute, semaphore, "value") == 2
