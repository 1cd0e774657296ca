"""A call that an exception of a signal handler ends (Ctrl-C, an alarm) is done or not done when the exception arrives:
nothing is taken later, nothing is lost, nothing comes twice, and nobody waits for ever.

WEFT_CUT_ROUNDS is the number of interrupted calls of each kind on each path (default 60); WEFT_SEED sets the instants.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest
from tests.patience import Patience
from tests.procs import coordination_facts
from tests.procs import interrupt_facts as facts
from tests.procs.children import Child
from tests.procs.test_coordination import Crew

from weft.share.names.ticket import process_is_stopped

pytestmark = pytest.mark.procs

ROUNDS = int(os.environ.get("WEFT_CUT_ROUNDS") or 60)
_STOP_S = 20.0
SEED = int(os.environ.get("WEFT_SEED") or 20260701)


@pytest.fixture(scope="module", params=list(coordination_facts.PATHS))
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    print("seed", SEED)
    with contextlib.ExitStack() as stack:
        settings = coordination_facts.PATHS[request.param]
        yield Crew(request.param, [stack.enter_context(Child(**settings)) for _ in range(2)])


def test_lock_is_had_or_not_when_its_wait_is_interrupted(crew: Crew) -> None:
    owner, other = crew.children
    name = crew.thing("Lock")
    owner.call(facts.begin, "take_and_give", name, SEED)
    told = other.call(facts.cut_lock, name, ROUNDS, SEED, timeout=600)
    owner.call(facts.finish)
    print(crew.path, told)
    assert all(crew.all(facts.take_lock, name))


def test_permits_are_all_there_after_interrupted_waits(crew: Crew) -> None:
    owner, other = crew.children
    name = crew.thing("Semaphore", 1)
    owner.call(facts.begin, "take_and_give", name, SEED)
    told = other.call(facts.cut_semaphore, name, ROUNDS, SEED, timeout=600)
    owner.call(facts.finish)
    print(crew.path, told)
    assert owner.call(facts.value_of, name) == 1


@pytest.mark.parametrize("nbytes", [64, 40_000])
def test_items_come_once_and_in_order_though_gets_are_interrupted(crew: Crew, nbytes: int) -> None:
    owner, other = crew.children
    name = crew.thing("Queue", 2, nbytes=nbytes)
    owner.call(facts.begin, "put_numbers", name, nbytes, ROUNDS)
    assert other.call(facts.cut_get, name, 2 * ROUNDS, SEED, ROUNDS, timeout=600) == list(range(ROUNDS))
    owner.call(facts.finish)


@pytest.mark.parametrize("nbytes", [64, 40_000])
def test_items_come_once_though_one_of_two_takers_is_interrupted(crew: Crew, nbytes: int) -> None:
    """A record cannot become the next one again while others have filled the queue."""
    owner, other = crew.children
    name = crew.thing("Queue", 2, nbytes=nbytes)
    owner.call(facts.begin, "put_numbers", name, nbytes, ROUNDS)
    found = other.call(facts.cut_gets_beside_others, name, 2 * ROUNDS, SEED, ROUNDS, timeout=600)
    assert found == list(range(ROUNDS))
    owner.call(facts.finish)


def test_lock_is_free_after_event_loops_that_ended_while_tasks_waited(crew: Crew) -> None:
    owner, other = crew.children
    name = crew.thing("Lock")
    owner.call(facts.begin, "take_and_give", name, SEED)
    other.call(facts.end_loops, name, "aacquire", ROUNDS, SEED, timeout=600)
    owner.call(facts.finish)
    assert all(crew.all(facts.take_lock, name))


def test_permits_are_all_there_after_event_loops_that_ended_while_tasks_waited(crew: Crew) -> None:
    owner, other = crew.children
    name = crew.thing("Semaphore", 1)
    owner.call(facts.begin, "take_and_give", name, SEED)
    other.call(facts.end_loops, name, "aacquire", ROUNDS, SEED, timeout=600)
    owner.call(facts.finish)
    assert owner.call(facts.value_of, name) == 1


@pytest.mark.parametrize("nbytes", [64, 40_000])
def test_items_come_once_though_event_loops_end_while_tasks_wait(crew: Crew, nbytes: int) -> None:
    owner, other = crew.children
    name = crew.thing("Queue", 2, nbytes=nbytes)
    owner.call(facts.begin, "put_numbers", name, nbytes, 3 * ROUNDS)
    found = other.call(facts.end_loops, name, "aget", ROUNDS, SEED, timeout=600)
    found += other.call(facts.get_rest, name, 3 * ROUNDS - len(found), timeout=600)
    assert sorted(found) == list(range(3 * ROUNDS))
    owner.call(facts.finish)


@pytest.mark.parametrize("nbytes", [64, 40_000])
def test_items_are_put_once_or_not_at_all_if_puts_are_interrupted(crew: Crew, nbytes: int) -> None:
    owner, other = crew.children
    name = crew.thing("Queue", 2, nbytes=nbytes)
    owner.call(facts.begin, "get_numbers", name)
    certain = other.call(facts.cut_put, name, ROUNDS, SEED, nbytes, timeout=600)
    found = owner.call(facts.finish)
    assert found == sorted(set(found))
    assert set(certain) <= set(found)


def test_party_whose_wait_is_interrupted_has_left_the_barrier(crew: Crew) -> None:
    _, other = crew.children
    name = crew.thing("Barrier", 2)
    other.call(facts.cut_barrier, name, ROUNDS, SEED, timeout=600)
    assert sorted(crew.all(facts.wait, name, "wait")) == [0, 1]


def test_interrupted_waits_for_an_event_leave_nothing_behind(crew: Crew) -> None:
    owner, other = crew.children
    name = crew.thing("Event")
    other.call(facts.cut_waits, name, ROUNDS, SEED, "wait", timeout=600)
    last = other.start(facts.wait, name, "wait")
    owner.call(facts.set_event, name)
    assert last.result() == 1


@pytest.mark.parametrize("call", ["wait_until", "wait"])
def test_interrupted_waits_for_an_element_leave_nothing_behind(crew: Crew, call: str) -> None:
    owner, other = crew.children
    name = crew.array(4)
    args = (0, 7) if call == "wait_until" else (0,)
    other.call(facts.cut_waits, name, ROUNDS, SEED, call, *args, timeout=600)
    last = other.start(facts.wait, name, call, *args)
    owner.call(facts.notify, name, 7)
    assert last.result() == 7


@pytest.mark.parametrize("path", ["engine", "tcp"])
def test_calls_given_up_while_the_owner_is_stopped_are_undone_when_it_goes_on(path: str) -> None:
    """A signal, a deadline and a canceled task each end a call that the owner has not even seen."""
    settings = coordination_facts.PATHS[path]
    with contextlib.ExitStack() as stack:
        whole = Crew(path, [stack.enter_context(Child(**settings)) for _ in range(2 + len(facts.CALLS))])
        owner, other, *callers = whole.children
        names = {
            "lock": whole.thing("Lock"),
            "semaphore": whole.thing("Semaphore", 1),
            "short items": whole.thing("Queue", 8, nbytes=64),
            "long items": whole.thing("Queue", 8, nbytes=40_000),
            "late items": whole.thing("Queue", 8, nbytes=64),
            "room": whole.thing("Queue", 8, nbytes=40_000),
            "barrier": whole.thing("Barrier", 2),
        }
        for what, nbytes in (("short items", 64), ("long items", 40_000)):
            owner.call(facts.begin, "put_numbers", names[what], nbytes, 4)
            owner.call(facts.finish)
        for child in (other, *callers):
            child.call(facts.ask, list(names.values()))
        owner.call(facts.begin, "take_items", names["late items"])
        owner.kill(signal.SIGSTOP)
        patience = Patience(_STOP_S)
        while not process_is_stopped(owner.pid):  # until its threads have seen the signal
            assert not patience.over
        try:
            running = [
                child.start(facts.cut_once, names[what], what) for child, what in zip(callers, names, strict=True)
            ]
            assert other.call(facts.late_or_canceled, names) == {"late", "canceled"}
            assert [one.result() for one in running] == ["cut"] * len(names)
        finally:
            owner.kill(signal.SIGCONT)
        for child in (other, *callers):
            child.call(facts.ask, list(names.values()))
        assert all(whole.all(facts.take_lock, names["lock"]))
        assert owner.call(facts.value_of, names["semaphore"]) == 1
        assert sorted(owner.call(facts.numbers_in, names["short items"], 4)) == [0, 1, 2, 3]
        assert sorted(owner.call(facts.numbers_in, names["long items"], 4)) == [0, 1, 2, 3]
        assert owner.call(facts.finish) == []  # of the items that came too late
        assert owner.call(facts.waiting, names["barrier"]) == 0
        last = other.start(facts.numbers_in, names["room"], 8)
        owner.call(facts.begin, "put_numbers", names["room"], 40_000, 8)  # as many as there are slots
        assert last.result() == list(range(8))
        owner.call(facts.finish)


@pytest.mark.parametrize("call", ["put", "aput"])
@pytest.mark.parametrize("path", ["engine", "tcp"])
def test_put_of_a_long_item_is_done_when_its_owner_is_stopped_at_the_end(path: str, call: str) -> None:
    """A call that returned after the owner was stopped has put its item, and a call that raised has not."""
    settings = coordination_facts.PATHS[path]
    with Child(**settings) as owner, Child(**settings) as other:
        crew = Crew(path, [owner, other])
        name = crew.thing("Queue", 8, nbytes=40_000)
        other.call(facts.ask, [name])
        try:
            other.call(facts.put_while_the_owner_stops, name, owner.pid, call)
        finally:
            owner.kill(signal.SIGCONT)
        assert owner.call(facts.take_one, name) == b"long" * 10_000
