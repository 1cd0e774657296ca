"""Locks, semaphores, events, barriers and queues within one process: names, arguments, threads, tasks, forks."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests import patience

import weft
from weft import errors

KINDS = ["Lock", "Semaphore", "Event", "Barrier", "Queue"]
ARGUMENTS: dict[str, tuple[Any, ...]] = {"Barrier": (2,)}

Name = Callable[[str], str]


def make(kind: str, name: str | None = None, **options: Any) -> Any:
    return getattr(weft, kind)(name, *ARGUMENTS.get(kind, ()), **options)


def attach(kind: str, name: Any, **options: Any) -> Any:
    return getattr(weft, kind)(name, create=False, **options)


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_makes_it_and_the_others_attach(node: weft.Node, name: Name, kind: str) -> None:
    first = make(kind, name("it"), node=node)
    second = make(kind, name("it"), node=node)
    third = attach(kind, name("it"), node=node)
    assert first.ticket == second.ticket == third.ticket
    assert (first.name, first.path, first.closed) == (name("it"), "load/store", False)
    assert name("it") in repr(first)


@pytest.mark.parametrize("kind", KINDS)
def test_name_can_be_required_to_be_new_or_to_exist(node: weft.Node, name: Name, kind: str) -> None:
    with pytest.raises(weft.NotFound, match=f"{kind}: nothing has the name"):
        attach(kind, name("none"), node=node)
    made = make(kind, name("it"), node=node, create=True)
    with pytest.raises(errors.AddressInUse):
        make(kind, name("it"), node=node, create=True)
    made.close()
    make(kind, name("it"), node=node, create=True)


def test_wait_waits_for_the_name(node: weft.Node, name: Name) -> None:
    with ThreadPoolExecutor() as threads:
        late = threads.submit(lambda: attach("Event", name("late"), node=node, wait=60))
        made = weft.Event(name("late"), node=node)
        made.set()
        assert late.result().is_set()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_name_of_another_kind_is_refused(node: weft.Node, name: Name, kind: str, other: str) -> None:
    if kind == other:
        return
    make(other, name("it"), node=node)
    with pytest.raises(errors.InvalidArgument, match=rf"is an? {other}, and not an? {kind}\n  try: another name"):
        make(kind, name("it"), node=node)


@pytest.mark.parametrize("kind", KINDS)
def test_name_of_an_array_is_refused(node: weft.Node, name: Name, kind: str) -> None:
    node.share(weft.zeros(1000), name("array"))
    node.share(weft.zeros(100_000, "u1"), name("bytes"))
    node.share(np.zeros(100_000, "u1"), name("foreign"), access="r")
    for which in ("array", "bytes", "foreign"):
        with pytest.raises(errors.InvalidArgument, match=rf"is an array, .* and not an? {kind}"):
            make(kind, name(which), node=node)


def test_numbers_must_agree(node: weft.Node, name: Name) -> None:
    weft.Semaphore(name("s"), 3, node=node)
    weft.Barrier(name("b"), 3, node=node)
    weft.Queue(name("q"), 3, nbytes=10, node=node)
    assert weft.Semaphore(name("s"), node=node).value == 3
    assert weft.Barrier(name("b"), node=node).parties == 3
    queue = weft.Queue(name("q"), node=node)
    assert (queue.slots, queue.nbytes) == (3, 10)
    with pytest.raises(errors.InvalidArgument, match="was made with value=3, and this one asks for value=4"):
        weft.Semaphore(name("s"), 4, node=node)
    with pytest.raises(errors.InvalidArgument, match="has 3 parties, and this one asks for 2"):
        weft.Barrier(name("b"), 2, node=node)
    for options, has in (
        ({"slots": 4}, "has 3 slots"),
        ({"nbytes": 11}, "has slots of 10 bytes"),
        ({"dtype": "f8"}, "has items of pickled objects"),
    ):
        with pytest.raises(errors.InvalidArgument, match=f"{has}, and this one asks for"):
            weft.Queue(name("q"), node=node, **options)


def test_without_a_name_it_goes_by_its_ticket(node: weft.Node) -> None:
    event = weft.Event(node=node)
    for ticket in (event.ticket, str(event.ticket)):
        other = weft.Event(ticket, node=node)
        event.clear()
        other.set()
        assert (event.is_set(), event.name) == (True, "")
    with pytest.raises(errors.InvalidArgument, match="create is True"):
        weft.Event(event.ticket, create=True, node=node)
    with pytest.raises(errors.InvalidArgument, match="no name to look for"):
        weft.Event(create=False, node=node)


@pytest.mark.parametrize(
    ("kind", "arguments", "options", "error"),
    [
        ("Lock", (3,), {}, TypeError),
        ("Lock", ("a b",), {}, errors.InvalidArgument),
        ("Lock", (), {"create": 1.5}, TypeError),
        ("Lock", (), {"wait": "long"}, TypeError),
        ("Semaphore", (None, -1), {}, errors.InvalidArgument),
        ("Semaphore", (None, 1.5), {}, TypeError),
        ("Semaphore", (None, True), {}, TypeError),
        ("Barrier", (), {}, errors.InvalidArgument),
        ("Barrier", (None, 0), {}, errors.InvalidArgument),
        ("Barrier", (None, 1 << 17), {}, errors.InvalidArgument),
        ("Queue", (None, 0), {}, errors.InvalidArgument),
        ("Queue", (None, "3"), {}, TypeError),
        ("Queue", (), {"nbytes": 0}, errors.InvalidArgument),
        ("Queue", (), {"nbytes": 8, "dtype": "f8"}, TypeError),
        ("Queue", (), {"dtype": object}, TypeError),
        ("Queue", (), {"shape": (3,)}, TypeError),
        ("Queue", (None, 1 << 30), {"nbytes": 1 << 40}, errors.InvalidArgument),
    ],
)
def test_wrong_arguments_are_refused(
    node: weft.Node, kind: str, arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        getattr(weft, kind)(*arguments, node=node, **options)


@pytest.mark.parametrize("timeout", ["1", float("nan"), True, object()])
def test_wrong_timeouts_are_refused(node: weft.Node, timeout: Any) -> None:
    lock, event, queue = weft.Lock(node=node), weft.Event(node=node), weft.Queue(node=node)
    for call in (lock.acquire, lock.recover, event.wait, queue.get):
        with pytest.raises((TypeError, errors.InvalidArgument)):
            call(timeout=timeout)
    assert lock.holder is None
    with pytest.raises((TypeError, errors.InvalidArgument)):
        queue.put(1, timeout=timeout)
    assert queue.empty()


# ---- locks -----------------------------------------------------------------------------------------------------------


def test_lock_is_held_by_the_process(node: weft.Node) -> None:
    lock = weft.Lock(node=node)
    assert (lock.locked(), lock.holder) == (False, None)
    with lock as taken:
        assert taken is lock
        assert (lock.locked(), lock.holder) == (True, os.getpid())
        assert lock.try_acquire() is False
    assert lock.acquire() is True
    assert lock.acquire is not None
    threading.Thread(target=lock.release).start()  # another thread of the process
    assert lock.acquire(timeout=60) is True
    lock.release()
    with pytest.raises(errors.NotPermitted, match="nobody does"):
        lock.release()


def test_error_in_the_block_releases_the_lock(node: weft.Node) -> None:
    lock = weft.Lock(node=node)
    with pytest.raises(ZeroDivisionError), lock:
        _ = 1 / 0
    assert lock.try_acquire()


def test_two_handles_of_a_process_are_one_holder(node: weft.Node, name: Name) -> None:
    a, b = weft.Lock(name("l"), node=node), weft.Lock(name("l"), node=node)
    a.acquire()
    assert b.try_acquire() is False
    with pytest.raises(errors.TimedOut, match=rf"process {os.getpid()} holds it for at least .* s\n"):
        b.acquire(timeout=0.05)
    b.release()
    assert a.locked() is False


def test_threads_count_under_a_lock(node: weft.Node) -> None:
    lock, total = weft.Lock(node=node), [0]

    def count() -> None:
        for _ in range(2000):
            with lock:
                total[0] = total[0] + 1

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(count) for _ in range(4)]:
            done.result()
    assert total == [8000]


def test_recover_of_a_sound_lock_is_acquire(node: weft.Node) -> None:
    lock = weft.Lock(node=node)
    assert lock.recover() is False
    with pytest.raises(errors.TimedOut):
        lock.recover(timeout=0)
    lock.release()


# ---- semaphores, events, barriers ------------------------------------------------------------------------------------


def test_semaphore_counts(node: weft.Node) -> None:
    semaphore = weft.Semaphore(value=2, node=node)
    with semaphore, semaphore:
        assert semaphore.value == 0
        assert semaphore.try_acquire() is False
        with pytest.raises(errors.TimedOut, match="no permit of the Semaphore is free"):
            semaphore.acquire(timeout=0.01)
    assert semaphore.value == 2
    semaphore.release(3)  # more than the taken permits: there are more permits now
    assert semaphore.value == 5
    with pytest.raises(errors.InvalidArgument):
        semaphore.release(0)


def test_release_of_a_semaphore_wakes_threads(node: weft.Node) -> None:
    semaphore = weft.Semaphore(value=0, node=node)
    with ThreadPoolExecutor(3) as threads:
        waits = [threads.submit(semaphore.acquire) for _ in range(3)]
        semaphore.release(3)
        assert [wait.result(60) for wait in waits] == [True] * 3
    assert semaphore.value == 0


def test_event_that_was_set_and_cleared_ends_a_wait(node: weft.Node) -> None:
    event = weft.Event(node=node)
    for _ in range(50):
        with ThreadPoolExecutor(1) as threads:
            asleep = threading.Event()

            def wait(asleep: threading.Event = asleep) -> bool:
                asleep.set()
                return event.wait(timeout=60)

            waiting = threads.submit(wait)
            asleep.wait()
            while not waiting.done():
                event.set()
                event.clear()
            assert waiting.result() is True
    assert event.is_set() is False


def test_barrier_numbers_its_parties(node: weft.Node) -> None:
    barrier = weft.Barrier(parties=3, node=node)
    with ThreadPoolExecutor(3) as threads:
        for _ in range(20):
            assert sorted(threads.map(lambda _: barrier.wait(60), range(3))) == [0, 1, 2]
    assert (barrier.n_waiting, barrier.broken, barrier.parties) == (0, False, 3)
    with pytest.raises(errors.TimedOut, match="0 other parties of 3 wait at the Barrier"):
        barrier.wait(timeout=0.01)
    assert barrier.n_waiting == 0


def test_abort_breaks_a_barrier_until_reset(node: weft.Node) -> None:
    barrier = weft.Barrier(parties=2, node=node)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(barrier.wait)
        barrier.abort()
        with pytest.raises(errors.Canceled, match=r"abort\(\) was called\n  try: barrier.reset"):
            waiting.result(60)
        with pytest.raises(errors.Canceled):
            barrier.wait()
        assert barrier.broken is True
        barrier.reset()
        assert barrier.broken is False
        waiting = threads.submit(barrier.wait)
        assert sorted([barrier.wait(60), waiting.result(60)]) == [0, 1]


@pytest.mark.parametrize("awaits", [False, True])
def test_reset_cancels_those_who_wait(node: weft.Node, awaits: bool) -> None:
    barrier = weft.Barrier(parties=2, node=node)
    with ThreadPoolExecutor(1) as threads:
        for _ in range(200):  # a party that left for an instant would be missed by reset(), once in 25 times
            waiting = threads.submit(lambda: asyncio.run(barrier.await_(9)) if awaits else barrier.wait(9))
            while barrier.n_waiting == 0:
                assert not waiting.done()
            barrier.reset()
            with pytest.raises(errors.Canceled, match=r"reset\(\) of the Barrier was called while this party waited"):
                waiting.result(60)
        waiting = threads.submit(barrier.wait)
        assert sorted([barrier.wait(60), waiting.result(60)]) == [0, 1]


def test_barrier_of_one_party_lets_pass_at_once(node: weft.Node) -> None:
    barrier = weft.Barrier(parties=1, node=node)
    assert [barrier.wait(), barrier.wait()] == [0, 0]


# ---- queues ----------------------------------------------------------------------------------------------------------


def test_queue_gives_what_was_put(node: weft.Node) -> None:
    queue = weft.Queue(node=node)
    items = [b"", b"bytes", "text", (1, [2.5, {"a": None}]), np.arange(3), bytearray(b"array"), 2**100]
    for item in items:
        queue.put(item)
    assert (len(queue), queue.qsize(), queue.empty(), queue.full()) == (7, 7, False, False)
    found = [queue.get() for _ in items]
    assert [type(item) for item in found] == [type(item) for item in items]
    assert pickle.dumps(found) == pickle.dumps(items)
    assert (len(queue), bool(queue), queue.empty()) == (0, True, True)


def test_queue_of_arrays_copies_them(node: weft.Node) -> None:
    queue = weft.Queue(slots=2, dtype="f4", shape=(2, 3), node=node)
    queue.put([[1, 2, 3], [4, 5, 6]])
    queue.put(7)
    out = np.empty((2, 3), "f4")
    assert queue.get().tolist() == [[1, 2, 3], [4, 5, 6]]
    assert queue.get(out=out) is out
    assert (out == 7).all()
    with pytest.raises(ValueError, match="the item has shape"):
        queue.put([1, 2])
    with pytest.raises(ValueError, match="out is float64"):
        queue.get(out=np.empty((2, 3)))
    numbers = weft.Queue(dtype=[("a", "i4"), ("b", "f8")], node=node)
    numbers.put((3, 2.5))
    assert numbers.get().tolist() == (3, 2.5)
    with pytest.raises(TypeError, match="out is for queues of arrays"):
        weft.Queue(node=node).get(out=out)


def test_items_that_do_not_fit_are_refused(node: weft.Node, name: Name) -> None:
    queue = weft.Queue(name("q"), 4, nbytes=100, node=node)
    queue.put(b"x" * 100)
    for item in (b"x" * 101, "x" * 101):
        with pytest.raises(errors.MessageTooLong, match=r"a slot of Queue .* has 100\n  try: weft.Queue"):
            queue.put(item)
    assert queue.get() == b"x" * 100


@pytest.mark.parametrize("nbytes", [32768, 32769, 3 << 20])
def test_long_items_go_through_a_queue(node: weft.Node, nbytes: int) -> None:
    queue = weft.Queue(slots=3, nbytes=nbytes, node=node)
    item = os.urandom(nbytes)
    with ThreadPoolExecutor(1) as threads:
        for _ in range(3):
            got = threads.submit(lambda: [queue.get() for _ in range(4)])
            for k in range(4):
                queue.put(item[k:])
            assert got.result(60) == [item[k:] for k in range(4)]
    rows = weft.Queue(slots=3, dtype="u1", shape=nbytes, node=node)
    rows.put(np.frombuffer(item, "u1"))
    assert rows.get().tobytes() == item


def test_threads_lose_and_double_nothing(node: weft.Node) -> None:
    queue = weft.Queue(slots=5, node=node)

    def produce(k: int) -> None:
        for i in range(1000):
            queue.put((k, i) if i % 2 else b"%d %d" % (k, i))

    def consume(_: int) -> list[tuple[int, int]]:
        found = [queue.get(timeout=60) for _ in range(1000)]
        return [item if isinstance(item, tuple) else tuple(map(int, item.split())) for item in found]

    with ThreadPoolExecutor(6) as threads:
        put = [threads.submit(produce, k) for k in range(3)]
        got = [threads.submit(consume, k) for k in range(3)]
        found = [item for taken in got for item in taken.result(60)]
        for done in put:
            done.result(60)
    assert sorted(found) == [(k, i) for k in range(3) for i in range(1000)]


def test_empty_and_full_queues_time_out(node: weft.Node) -> None:
    queue = weft.Queue(slots=1, node=node)
    with pytest.raises(errors.TimedOut, match=r"the Queue is empty after 0\.01 s"):
        queue.get(timeout=0.01)
    queue.put(1)
    with pytest.raises(errors.TimedOut, match="the Queue is full, with 1 items, after 0 s"):
        queue.put(2, timeout=0)


# ---- pickles, forks, ends --------------------------------------------------------------------------------------------


def _work(lock: Any, event: Any, semaphore: Any, queue: Any, total: Any) -> None:
    for _ in range(100):
        with lock, semaphore:
            total[0] = int(total[0]) + 1
    queue.put((os.getpid(), event.wait(timeout=60)))


@pytest.mark.parametrize("start", ["spawn", "fork", "forkserver"])
def test_handles_go_to_processes(node: weft.Node, start: str) -> None:
    lock, event, semaphore = weft.Lock(node=node), weft.Event(node=node), weft.Semaphore(value=1, node=node)
    queue, total = weft.Queue(node=node), node.share(weft.zeros(1, "i8"))
    for used in (lock.acquire, lock.release, event.is_set, queue.qsize):
        used()
    context = multiprocessing.get_context(start)
    workers = [context.Process(target=_work, args=(lock, event, semaphore, queue, total)) for _ in range(2)]
    for worker in workers:
        worker.start()
    event.set()
    assert sorted(queue.get(timeout=60) for _ in workers) == sorted((worker.pid, True) for worker in workers)
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert int(total[0]) == 200


def test_forked_child_does_not_hold_its_parents_lock(node: weft.Node) -> None:
    lock = weft.Lock(node=node)
    lock.acquire()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            try:
                lock.release()
            except errors.NotPermitted:
                code = 0 if lock.try_acquire() is False else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    lock.release()


def test_lock_of_the_dead_has_no_holder(node: weft.Node) -> None:
    lock = weft.Lock(node=node)
    pid = os.fork()
    if pid == 0:
        try:
            lock.acquire()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(weft.OwnerDied, match=f"process {pid}, which held"):
        lock.acquire(timeout=60)
    assert (lock.holder, lock.locked()) == (None, False)
    assert lock.recover() is True
    assert lock.holder == os.getpid()


@pytest.mark.parametrize("kind", KINDS)
def test_pickled_handle_is_the_same_object(node: weft.Node, kind: str) -> None:
    made = make(kind, node=node)
    other = pickle.loads(pickle.dumps(made))
    assert "not attached yet" in repr(other)
    assert (other.ticket, other.name) == (made.ticket, made.name)
    if kind == "Queue":
        other.put(5)
        assert made.get() == 5
    if kind == "Lock":
        made.acquire()
        assert other.try_acquire() is False


def test_pickled_queue_of_arrays_knows_its_form(node: weft.Node) -> None:
    queue = weft.Queue(dtype="i2", shape=(2,), node=node)
    other = pickle.loads(pickle.dumps(queue))
    other.put([1, 2])
    assert queue.get().tolist() == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_object_is_no_array_for_those_who_attach_its_name(node: weft.Node, name: Name, kind: str) -> None:
    made = make(kind, name("x"), node=node)
    for source in (name("x"), made.ticket, str(made.ticket)):
        with pytest.raises(errors.InvalidArgument, match=rf"is an? {kind}, and no array\n  try: weft.{kind}\("):
            node.attach(source)


@pytest.mark.parametrize("kind", KINDS)
def test_closed_handle_refuses_calls(node: weft.Node, kind: str) -> None:
    made = make(kind, node=node)
    other = getattr(weft, kind)(made.ticket, node=node)
    calls = {"Lock": "acquire", "Semaphore": "acquire", "Event": "wait", "Barrier": "wait", "Queue": "get"}
    other.close()
    other.close()
    assert other.closed is True
    with pytest.raises(errors.BadState, match=f"this {kind} is closed"):
        getattr(other, calls[kind])()
    made.close()
    assert "closed" in repr(made)


@pytest.mark.parametrize("ends", ["object", "node"])
def test_close_wakes_those_who_wait(name: Name, ends: str) -> None:
    with weft.open() as mine, weft.open() as node:
        lock, event, queue = weft.Lock(name("l"), node=mine), weft.Event(name("e"), node=mine), weft.Queue(node=mine)
        lock.acquire()
        waits = [
            weft.Lock(name("l"), node=node).acquire,
            weft.Event(name("e"), node=node).wait,
            weft.Queue(queue.ticket, node=node).get,
        ]
        with ThreadPoolExecutor(3) as threads:
            calls = [threads.submit(wait) for wait in waits]
            if ends == "node":
                mine.close()
            else:
                for made in (lock, event, queue):
                    made.close()
            for call in calls:
                with pytest.raises((errors.KeyRejected, errors.ConnectionReset)):
                    call.result(60)


def test_handle_closed_by_another_thread_ends_its_own_wait(node: weft.Node) -> None:
    made = weft.Event(node=node)
    other = weft.Event(made.ticket, node=node)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.wait)
        while not waiting.running():
            pass
        other.close()
        with pytest.raises(errors.BadState, match="closed"):
            waiting.result(60)


def test_handle_without_init_is_not_used() -> None:
    for kind in KINDS:
        half = getattr(weft, kind).__new__(getattr(weft, kind))
        for call in ("acquire", "release", "try_acquire", "set", "clear", "is_set", "get"):
            if hasattr(half, call):
                with pytest.raises((AttributeError, TypeError)):
                    getattr(half, call)()


@pytest.mark.long
def test_memory_that_others_have_written_into_does_no_harm(node: weft.Node) -> None:
    """Random bytes in an object's memory: calls end with an error or a result, and the process lives."""
    code = """
import random, sys
import numpy as np, weft, weft.share.sync.sync_object
from weft import errors
rng = random.Random(int(sys.argv[1]))
node = weft.open()
for _ in range(60):
    kind = rng.choice(["Lock", "Semaphore", "Event", "Barrier", "Queue"])
    weft.share.sync.sync_object._TURN_S = 0.01
    thing = getattr(weft, kind)(*([None, 2] if kind == "Barrier" else [None]), node=node)
    memory = thing._memory
    for _ in range(rng.randrange(1, 6)):
        at = rng.choice([rng.randrange(len(memory)), rng.randrange(64, 256)]) % len(memory)
        n = min(rng.choice([1, 4, 8, 64]), len(memory) - at)
        memory[at:at + n] = np.frombuffer(rng.randbytes(n), "u1")
    for call in ("try_acquire", "release", "set", "clear", "is_set", "abort", "qsize", "reset"):
        if hasattr(thing, call):
            try:
                getattr(thing, call)()
            except errors.FabricError:
                pass
    for call in (("acquire", 0.002), ("wait", 0.002), ("recover", 0.002), ("get", 0.002)):
        if hasattr(thing, call[0]):
            try:
                getattr(thing, call[0])(timeout=call[1])
            except Exception as error:
                assert isinstance(error, errors.FabricError) or kind == "Queue", error
    if kind == "Queue":
        try:
            thing.put(b"x", timeout=0.002)
        except errors.FabricError:
            pass
print("alive")
"""
    with ThreadPoolExecutor(3) as pool:  # beside each other: most of their time is the limits of their waits
        runs = [pool.submit(patience.run, [sys.executable, "-c", code, str(seed)], timeout=300) for seed in range(3)]
    for run in runs:
        done = run.result()
        assert (done.stdout, done.returncode) == ("alive\n", 0), done.stderr[-3000:]
