"""Locks, events, semaphores, barriers, queues and signals between processes, on every path to their memory."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.patience import Patience
from tests.procs import coordination_facts as facts
from tests.procs.children import Child

pytestmark = pytest.mark.procs

_names = itertools.count()


class Crew:
    """Processes on one path. The first makes the objects, and the other processes attach them."""

    def __init__(self, path: str, children: list[Child]) -> None:
        self.path = path
        self.children = children
        self.first, *self.others = children

    def thing(self, kind: str, *args: Any, **options: Any) -> str:
        """A new object that all have attached; its name."""
        name = f"coordination-{os.getpid()}-{next(_names)}"
        self.first.call(make, kind, name, args, options)
        for child in self.others:
            assert child.call(facts.attach, kind, name) == self.path
        return name

    def array(self, shape: Any, dtype: str = "i8", foreign: bool = False) -> str:
        name = f"coordination-{os.getpid()}-{next(_names)}"
        self.first.call(facts.share, name, shape, dtype, foreign)
        for child in self.others:
            child.call(facts.attach_array, name)
        return name

    def all(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        calls = [child.start(function, *args) for child in self.children]
        return [call.result() for call in calls]


def make(world: Any, kind: str, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> str:
    return facts.make(world, kind, name, *args, **options)


@pytest.fixture(scope="module", params=list(facts.PATHS))
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    with contextlib.ExitStack() as stack:
        settings = facts.PATHS[request.param]
        yield Crew(request.param, [stack.enter_context(Child(**settings)) for _ in range(3)])


@pytest.fixture(params=list(facts.PATHS))
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---- locks -----------------------------------------------------------------------------------------------------------


def test_lock_excludes_all_others(crew: Crew) -> None:
    rounds = 2000 if crew.path == "load/store" else 200
    lock, counter = crew.thing("Lock"), crew.array(1)
    crew.all(facts.count, lock, counter, rounds)
    assert crew.first.call(facts.call, counter, "read")[0] == 3 * rounds


def test_lock_of_another_process_is_not_released(crew: Crew) -> None:
    lock = crew.thing("Lock")
    holder = crew.others[0].call(facts.hold, lock)
    kind, text = crew.others[1].call(facts.call, lock, "release")
    assert kind == "NotPermitted"
    assert f"process {holder} does" in text or crew.path != "load/store"
    crew.others[0].call(facts.call, lock, "release")
    kind, text = crew.others[1].call(facts.call, lock, "release")
    assert (kind, "nobody does" in text) == ("NotPermitted", True)


def test_timeout_names_the_holder(crew: Crew) -> None:
    lock = crew.thing("Lock")
    holder = crew.others[0].call(facts.hold, lock)
    for call in ("acquire", "aacquire"):
        kind, text = crew.others[1].call(facts.call, lock, call, 0.05)
        assert (kind, f"process {holder}" in text) == ("TimedOut", True), text
    assert crew.others[1].call(facts.call, lock, "try_acquire") is False
    assert crew.first.call(facts.attribute, lock, "holder") == holder
    crew.others[0].call(facts.call, lock, "release")
    assert crew.others[1].call(facts.call, lock, "try_acquire") is True
    crew.others[1].call(facts.call, lock, "release")
    assert crew.first.call(facts.attribute, lock, "holder") is None


@pytest.mark.parametrize("call", ["acquire", "aacquire"])
def test_release_wakes_those_who_wait(crew: Crew, call: str) -> None:
    lock = crew.thing("Lock")
    crew.first.call(facts.hold, lock)
    for child in crew.others:
        child.call(facts.begin_turn, lock, call)
    crew.first.call(facts.call, lock, "release")
    assert [child.call(facts.finish, lock) for child in crew.others] == [True, True]


@pytest.mark.parametrize("waits", [False, True])
def test_killed_holder_releases_its_lock_with_an_error(path: str, waits: bool) -> None:
    """EOWNERDEAD until somebody recovers the lock, as with robust mutexes."""
    with Child(**facts.PATHS[path]) as owner, Child(**facts.PATHS[path]) as other:
        victim = Child(**facts.PATHS[path])
        crew = Crew(path, [owner, other, victim])
        lock = crew.thing("Lock")
        pid = victim.call(facts.hold, lock)
        if waits:
            other.call(facts.begin, lock, "acquire")
            owner.call(facts.begin, lock, "aacquire")
        victim.destroy()
        if not waits:
            other.call(facts.begin, lock, "acquire")
            owner.call(facts.begin, lock, "aacquire")
        for child in (other, owner):
            kind, text = child.call(facts.finish, lock)
            assert kind == "OwnerDied"
            assert f"process {pid}" in text or path != "load/store"
            assert "try: lock.recover()" in text
        assert other.call(facts.call, lock, "acquire")[0] == "OwnerDied"
        assert other.call(facts.call, lock, "recover") is True
        other.call(facts.call, lock, "release")
        assert owner.call(facts.call, lock, "recover") is False
        owner.call(facts.call, lock, "release")


# ---- the others ------------------------------------------------------------------------------------------------------


def test_event_ends_all_waits(crew: Crew) -> None:
    event = crew.thing("Event")
    assert crew.others[0].call(facts.call, event, "wait", 0.01)[0] == "TimedOut"
    for child, call in zip(crew.others, ("wait", "await_"), strict=True):
        child.call(facts.begin, event, call)
    crew.first.call(facts.call, event, "set")
    assert [child.call(facts.finish, event) for child in crew.others] == [True, True]
    assert crew.all(facts.call, event, "is_set") == [True] * 3
    crew.others[0].call(facts.call, event, "clear")
    assert crew.all(facts.call, event, "is_set") == [False] * 3
    crew.first.call(facts.begin, event, "await_")
    crew.others[1].call(facts.call, event, "aset")
    assert crew.first.call(facts.finish, event) is True


def test_semaphore_admits_as_many_as_it_says(crew: Crew) -> None:
    semaphore = crew.thing("Semaphore", 2)
    inside, most = crew.array(1), crew.array(1)
    crew.all(facts.limited, semaphore, inside, most, 500 if crew.path == "load/store" else 60)
    assert crew.first.call(facts.call, most, "read")[0] in (1, 2)
    assert crew.all(facts.attribute, semaphore, "value") == [2] * 3


def test_permit_that_a_process_gave_back_is_anybodys(crew: Crew) -> None:
    """After any last holder: nobody waits, and nobody is woken for nothing."""
    semaphore = crew.thing("Semaphore", 2)
    for _ in range(3):
        for child in (crew.first, *crew.others):
            assert child.call(facts.call, semaphore, "acquire") is True
            assert child.call(facts.call, semaphore, "try_acquire") is True
            assert child.call(facts.call, semaphore, "try_acquire") is False
            child.call(facts.call, semaphore, "release")
            assert child.call(facts.attribute, semaphore, "value") == 1
            child.call(facts.call, semaphore, "release")
            assert child.call(facts.attribute, semaphore, "value") == 2


def test_permits_of_the_killed_come_back(path: str) -> None:
    with Child(**facts.PATHS[path]) as owner, Child(**facts.PATHS[path]) as other:
        victim = Child(**facts.PATHS[path])
        semaphore = Crew(path, [owner, other, victim]).thing("Semaphore", 2)
        victim.call(facts.hold, semaphore)
        victim.call(facts.hold, semaphore)
        other.call(facts.begin, semaphore, "acquire")
        owner.call(facts.begin, semaphore, "aacquire")
        victim.destroy()
        assert other.call(facts.finish, semaphore) is True
        assert owner.call(facts.finish, semaphore) is True


def test_barrier_lets_all_pass_together(crew: Crew) -> None:
    barrier = crew.thing("Barrier", 3)
    found = crew.all(facts.pass_barrier, barrier, 100)
    assert [sorted(numbers) for numbers in zip(*found, strict=True)] == [[0, 1, 2]] * 100


def test_party_that_has_timed_out_can_come_again(crew: Crew) -> None:
    barrier = crew.thing("Barrier", 3)
    crew.first.call(facts.begin, barrier, "wait")
    for call in ("wait", "await_"):
        kind, text = crew.others[0].call(facts.call, barrier, call, 0.05)
        assert (kind, "of 3 wait" in text) == ("TimedOut", True)
    crew.others[0].call(facts.begin, barrier, "await_")
    crew.others[1].call(facts.begin, barrier, "wait")
    assert sorted(child.call(facts.finish, barrier) for child in crew.children) == [0, 1, 2]


@pytest.mark.parametrize("passed", [False, True])
def test_killed_party_breaks_the_barrier(path: str, passed: bool) -> None:
    with Child(**facts.PATHS[path]) as owner, Child(**facts.PATHS[path]) as other:
        victim = Child(**facts.PATHS[path])
        crew = Crew(path, [owner, other, victim])
        barrier = crew.thing("Barrier", 3)
        if passed:
            crew.all(facts.pass_barrier, barrier, 1)
        else:
            victim.call(facts.begin, barrier, "wait")
            while other.call(facts.attribute, barrier, "n_waiting") == 0:
                pass
        other.call(facts.begin, barrier, "wait")
        if passed:
            owner.call(facts.begin, barrier, "await_")
        victim.destroy()
        assert other.call(facts.finish, barrier)[0] == "Canceled"
        if passed:
            assert owner.call(facts.finish, barrier)[0] == "Canceled"
        assert owner.call(facts.attribute, barrier, "broken") is True
        assert owner.call(facts.call, barrier, "wait")[0] == "Canceled"
        owner.call(facts.call, barrier, "reset")
        assert other.call(facts.call, barrier, "wait", 0.01)[0] == "TimedOut"


def test_queue_loses_and_doubles_nothing(crew: Crew) -> None:
    n = 600 if crew.path == "load/store" else 60
    queue = crew.thing("Queue", 16, nbytes=400)
    first, second, third = crew.children
    calls = [child.start(facts.produce, queue, k, 0, n) for k, child in enumerate((first, second))]
    found = third.call(facts.consume, queue, 2 * n)
    for call in calls:
        call.result()
    assert sorted(found) == sorted((k, i) for k in range(2) for i in range(n))
    for k in range(2):  # of each producer in the order in which it put them
        assert [i for who, i in found if who == k] == list(range(n))
    assert crew.first.call(facts.call, queue, "empty") is True


@pytest.mark.parametrize("nbytes", [5000, 200_000])
def test_queue_carries_long_items(crew: Crew, nbytes: int) -> None:
    queue = crew.thing("Queue", 3, nbytes=nbytes)
    a, b, c = crew.children
    items = [bytes([k]) * (nbytes - k) for k in range(6)]
    b.call(facts.begin, queue, "aget")
    a.call(facts.call, queue, "put", items[0])
    assert b.call(facts.finish, queue) == items[0]
    for k, (giver, put, taker, get) in enumerate([(b, "put", c, "get"), (c, "aput", a, "aget"), (b, "aput", a, "get")]):
        giver.call(facts.call, queue, put, items[k])
        assert taker.call(facts.call, queue, get) == items[k]


def test_full_queue_makes_producers_wait(crew: Crew) -> None:
    queue = crew.thing("Queue", 2)
    a, b, c = crew.children
    for k in range(2):
        b.call(facts.call, queue, "put", k)
    assert a.call(facts.call, queue, "full") is True
    assert b.call(facts.call, queue, "put", 2, 0.02)[0] == "Full"
    assert c.call(facts.call, queue, "aput", 2, 0.02)[0] == "Full"
    c.call(facts.begin, queue, "put", 2)
    assert a.call(facts.call, queue, "get") == 0
    c.call(facts.finish, queue)
    b.call(facts.begin, queue, "aput", 3)
    assert c.call(facts.call, queue, "get") == 1
    b.call(facts.finish, queue)
    assert [a.call(facts.call, queue, "get"), c.call(facts.call, queue, "aget")] == [2, 3]
    assert b.call(facts.call, queue, "get", 0.02)[0] == "Empty"


# ---- signals of arrays -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("foreign", [False, True], ids=["mapped", "foreign"])
@pytest.mark.parametrize("wait", ["wait", "await_"])
def test_signal_comes_after_its_data(crew: Crew, wait: str, foreign: bool) -> None:
    signals, data = crew.array(4, "i4", foreign), crew.array(1000, "f8", foreign)
    waiter, sender = crew.others
    for k in range(1, 4):
        waiter.call(facts.begin, signals, wait, 2)
        sender.call(facts.write, data, slice(None), k)
        sender.call(facts.call, signals, "notify", 2)
        assert waiter.call(facts.finish, signals) == 1
        assert (waiter.call(facts.call, data, "read") == k).all()
    sender.call(facts.call, signals, "notify", 1, 5)
    sender.call(facts.call, signals, "anotify", 1, 2)
    assert waiter.call(facts.call, signals, wait, 1) == 7
    assert waiter.call(facts.call, signals, wait, 1, 0.02)[0] == "TimedOut"


def test_notify_writes_its_data_first(crew: Crew) -> None:
    cells = crew.array(10, "f8")
    waiter, sender = crew.others
    for call in ("notify", "anotify"):
        waiter.call(facts.begin, cells, "wait", 0)
        sender.call(facts.notify_with_data, cells, call)
        assert waiter.call(facts.finish, cells) == 1
        assert waiter.call(facts.call, cells, "read").tolist() == [0, *range(9)]


@pytest.mark.parametrize("wait", ["wait_until", "await_until"])
def test_wait_until_sees_every_kind_of_write(crew: Crew, wait: str) -> None:
    cells = crew.array((4, 4), "i4")
    owner, waiter, sender = crew.children
    writes: list[tuple[Child, Callable[..., Any], tuple[Any, ...]]] = [
        (sender, facts.write, (cells, (2, 1), 1)),
        (sender, facts.call, (cells, "add", (2, 1), 1)),
        (owner, facts.write, (cells, (2, 1), 3)),
        (owner, facts.write_locally, (cells, (2, 1), 4)),  # wakes nobody; the waiter looks again
        (sender, facts.call, (cells, "fill", 5)),
    ]
    for k, (who, function, args) in enumerate(writes, 1):
        waiter.call(facts.begin, cells, wait, (2, 1), k)
        who.call(function, *args)
        assert waiter.call(facts.finish, cells) == k
    kind, text = waiter.call(facts.call, cells, wait, (slice(None), 1), 9, 0.05)
    assert (kind, "5, 5, 5" in text) == ("TimedOut", True), text


@pytest.mark.parametrize("wait", ["wait_until", "await_until"])
def test_wait_for_an_element_leaves_its_owner_in_peace(crew: Crew, wait: str) -> None:
    """Also for an element that is not the first: 50 looks at first, then some requests while it sleeps."""
    cells = crew.array((4, 4), "i4")
    owner, waiter, _ = crew.children
    owner.call(facts.write, cells, (0, 0), 7)
    before = owner.call(facts.frames)
    assert waiter.call(facts.call, cells, wait, (2, 1), 9, 0.5)[0] == "TimedOut"
    assert owner.call(facts.frames) - before < 200


@pytest.mark.alone(idle=True)  # counts frames while the engine looks: other work on the cores delays looks
@pytest.mark.parametrize("wait", ["wait_until", "await_until"])
def test_waiter_sends_nothing_while_nothing_changes(crew: Crew, wait: str) -> None:
    """The engine of the owner looks at the element. The waiter only renews its watch, every five seconds."""
    cells = crew.array((4, 4), "i4")
    owner, waiter, _ = crew.children
    waiter.call(facts.begin, cells, wait, (2, 1), 9)
    limit = Patience(30)
    while owner.call(facts.frames_in_looks, 5):  # until the watch is there: the waiter looks by itself at first
        assert not limit.over
    before = waiter.call(facts.frames)
    begun, served = time.monotonic(), []
    for _ in range(3):
        served.append(owner.call(facts.frames_in_looks, 5))
    frames = waiter.call(facts.frames) - before
    renewals = 1 + int((time.monotonic() - begun) / 5)  # a busy machine looks later, and not all looks are within 5 s
    assert frames <= 4 * renewals, served
    assert sum(served) <= 4 * renewals, served
    if renewals < len(served):
        assert min(served) == 0, served
    owner.call(facts.write_locally, cells, (2, 1), 9)
    assert waiter.call(facts.finish, cells) == 9


@pytest.mark.parametrize("wait", ["wait_until", "await_until"])
def test_function_that_looks_at_more_than_the_elements_ends_its_wait(crew: Crew, wait: str) -> None:
    cells = crew.array(4, "i4")
    waiter = crew.others[0]
    waiter.call(facts.begin_until_told, cells, wait)
    waiter.call(facts.tell, cells)
    assert waiter.call(facts.finish, cells) == 0


# ---- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "kill"])
def test_waits_end_with_their_owner(path: str, end: str) -> None:
    owner = Child(**facts.PATHS[path])
    with Child(**facts.PATHS[path]) as a, Child(**facts.PATHS[path]) as b:
        crew = Crew(path, [owner, a, b])
        lock, event, queue = crew.thing("Lock"), crew.thing("Event"), crew.thing("Queue")
        barrier, semaphore, cells = crew.thing("Barrier", 3), crew.thing("Semaphore", 0), crew.array(1)
        owner.call(facts.hold, lock)
        waits = [(lock, "acquire", "aacquire"), (event, "wait", "await_"), (queue, "get", "aget")]
        waits += [(barrier, "wait", "await_"), (semaphore, "acquire", "aacquire")]
        for name, call, acall in waits:
            a.call(facts.begin, name, call)
            b.call(facts.begin, name, acall)
        a.call(facts.begin, cells, "wait", 0)
        b.call(facts.begin, cells, "await_", 0)
        if end == "kill":
            owner.destroy()
        else:
            for name in (lock, event, queue, barrier, semaphore, cells):
                owner.call(facts.close, name)
        expected = {"ConnectionReset"} if end == "kill" else {"KeyRejected"}
        for name in (*(name for name, _, _ in waits), cells):
            for child in (a, b):
                assert child.call(facts.finish, name)[0] in expected, name
    owner.destroy()
