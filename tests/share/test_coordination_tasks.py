"""Locks, semaphores, events, barriers and queues on an event loop: tasks wait, are canceled, and come too late."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import weft
from weft import errors


def test_tasks_exclude_each_other(node: weft.Node) -> None:
    lock, total = weft.Lock(node=node), [0]

    async def count() -> None:
        for _ in range(20):
            async with lock:
                before = total[0]
                await asyncio.sleep(0)
                total[0] = before + 1

    async def run() -> None:
        await asyncio.gather(*(count() for _ in range(5)))

    asyncio.run(run())
    assert total == [100]
    assert lock.holder is None


def test_tasks_wait_for_threads_and_threads_for_tasks(node: weft.Node) -> None:
    there, back = weft.Queue(slots=2, node=node), weft.Queue(slots=2, node=node)

    def thread() -> None:
        for _ in range(50):
            back.put(there.get(timeout=60) + 1)

    async def run() -> list[int]:
        found = []
        for k in range(50):
            await there.aput(k)
            found.append(await back.aget(timeout=60))
        return found

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(thread)
        assert asyncio.run(run()) == list(range(1, 51))
        done.result(60)


def test_canceled_task_leaves_nothing_behind(node: weft.Node) -> None:
    lock, semaphore = weft.Lock(node=node), weft.Semaphore(value=0, node=node)
    event, barrier, queue = weft.Event(node=node), weft.Barrier(parties=2, node=node), weft.Queue(node=node)
    lock.acquire()

    async def run() -> None:
        for wait in (lock.aacquire, semaphore.aacquire, event.await_, barrier.await_, queue.aget):
            task = asyncio.create_task(wait())
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        while barrier.n_waiting:  # the withdrawal is a task of its own
            await asyncio.sleep(0.005)

    asyncio.run(run())
    lock.release()
    semaphore.release()
    queue.put("kept")
    assert (lock.try_acquire(), semaphore.value, barrier.n_waiting, queue.qsize()) == (True, 1, 0, 1)


def test_item_whose_writing_fails_blocks_nobody(node: weft.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long item is written into a slot of its own; if that fails, other items pass it."""
    queue = weft.Queue(nbytes=10_000, node=node)

    async def fail(self: Any, value: Any) -> None:
        raise RuntimeError("on the way")

    async def run() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(weft.RemoteArray, "awrite", fail)
            with pytest.raises(RuntimeError, match="on the way"):
                await queue.aput(b"x" * 9_000)
        await queue.aput(b"behind")
        assert await queue.aget(timeout=60) == b"behind"

    asyncio.run(run())
    assert queue.qsize() == 0


@pytest.mark.parametrize("ends", [asyncio.CancelledError, RuntimeError])
def test_item_whose_reading_ends_early_is_the_next_one_again(
    node: weft.Node, monkeypatch: pytest.MonkeyPatch, ends: type[BaseException]
) -> None:
    """A long item is read from a slot of its own; if that fails, or its task is canceled, nobody misses the item."""
    queue = weft.Queue(slots=2, nbytes=10_000, node=node)
    items = [b"1" * 9_000, b"2" * 9_000]
    for item in items:
        queue.put(item)

    async def fail(self: Any) -> None:
        raise ends

    async def run() -> list[Any]:
        with monkeypatch.context() as patch:
            patch.setattr(weft.RemoteArray, "aread", fail)
            with pytest.raises(ends):
                await queue.aget()
        while queue.qsize() != len(items):  # the item goes back in a task of its own
            await asyncio.sleep(0)
        return [await queue.aget(timeout=60) for _ in items]

    assert asyncio.run(run()) == items
    assert queue.qsize() == 0


def test_awaited_calls_time_out(node: weft.Node) -> None:
    lock, queue = weft.Lock(node=node), weft.Queue(slots=1, node=node)
    lock.acquire()
    queue.put(1)

    async def run() -> None:
        for wait in (
            lock.aacquire(0.02),
            lock.arecover(0.02),
            weft.Semaphore(value=0, node=node).aacquire(0.02),
            weft.Event(node=node).await_(0.02),
            weft.Barrier(parties=2, node=node).await_(0.02),
            weft.Queue(node=node).aget(0.02),
            queue.aput(2, timeout=0.02),
        ):
            with pytest.raises(errors.TimedOut):
                await wait

    asyncio.run(run())
