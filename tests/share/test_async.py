"""Awaitable calls: the same results as the waiting calls, a loop that continues meanwhile, clean ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from tests.share.owner import Owner

import weft
from weft import errors
from weft.share.arrays import aio, attached

WATCHDOG_S = 60


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), WATCHDOG_S))


def test_paired_calls_do_the_same(node: weft.Node) -> None:
    local = weft.zeros((6, 4), "i8")
    local[:] = np.arange(24).reshape(6, 4)
    remote = node.attach(node.share(local))

    async def main() -> None:
        assert np.array_equal(await remote.aread(), local)
        assert await remote.at[2, 3].aread() == 11
        assert np.array_equal(await remote.at[::-2].aread(), local[::-2])
        assert np.array_equal(await remote.atake([3, 1]), local[[3, 1]])
        await remote.at[0].awrite([9, 9, 9, 9])
        await remote.aput([5], 7)
        assert await remote.afetch_add((5, 0), 2) == 7
        assert await remote.acompare_swap((5, 0), 9, 1) == 9
        assert await remote.aswap((5, 1), 3) == 7
        assert await remote.afetch_op((5, 2), "max", 30) == 7
        await remote.aadd((5, 3), -7)
        await remote.aadd(np.ones((6, 4), "i8"))
        await remote.aadd(np.ones((6, 4), "i8"), op="sum")
        await remote.aadd(...)
        await remote.aadd(..., -3)
        await remote.aadd_at([4, 4, -2], 2)
        await remote.aadd_at(np.array([4]), np.arange(4), "sum")
        assert (await remote.at[4].aread()).tolist() == [22, 24, 26, 28]
        with pytest.raises(ValueError, match="shape"):
            await remote.aadd(np.ones(4, "i8"))
        with pytest.raises(IndexError, match="index arrays"):
            await remote.aadd(np.array([0, 1]), 1)
        with pytest.raises(IndexError, match="index 6"):
            await remote.aadd_at([6])
        await remote.at[1:3].afill(5)
        assert await remote.await_until((1, 0), 5) == 5
        with pytest.raises(errors.TimedOut, match=r"is 5 after 0.01 s, not 6"):
            await remote.await_until((1, 0), 6, timeout=0.01)

    run(main)
    assert local[5].tolist() == [1, 3, 30, 0]
    assert (local[1:3] == 5).all()
    assert local[0].tolist() == [9] * 4
    assert node.statistics().loops <= 1


@pytest.mark.procs
@pytest.mark.parametrize("isolation", ["shared", "strict"])
def test_many_readers_of_another_process(node: weft.Node, name: Any, isolation: str) -> None:
    """200 tasks, by load and store and by the owner's engine, through one descriptor."""
    n = name("a")
    with Owner("async-", WEFT_ISOLATION=isolation) as owner:
        owner.tell(f"a = np.arange(20000.0).reshape(200, 100); s = node.share(a, {n!r})")

        async def main() -> None:
            remote = await node.aattach(n)

            async def one(i: int) -> None:
                for _ in range(5):
                    assert (await remote.at[i].aread())[3] == i * 100 + 3
                    assert (await remote.atake([i, 0], axis=1))[1, 1] == 100

            await asyncio.gather(*(one(i % 100) for i in range(200)))

        run(main)


def test_loop_turns_while_operations_complete_at_once(node: weft.Node) -> None:
    """A task that awaits nothing but reads by load and store does not starve other tasks."""
    remote = node.attach(node.share(weft.zeros(4)))
    turns = 0

    async def main() -> None:
        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for _ in range(aio.TURN_EVERY * 5):
            await remote.at[0].aread()
        task.cancel()

    run(main)
    assert turns >= 4


def test_long_copies_leave_the_loop(node: weft.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    local = weft.zeros(4 << 20, "u1")
    local[:] = 3
    remote = node.attach(node.share(local))
    seen: list[int] = []
    run_now = attached.Attached._run

    def spy(self: Any, job: Any) -> Any:
        seen.append(threading.get_ident())
        return run_now(self, job)

    monkeypatch.setattr(attached.Attached, "_run", spy)

    async def main() -> None:
        assert (await remote.aread()).sum() == 3 * (4 << 20)

    run(main)
    assert seen
    assert threading.get_ident() not in seen


def test_several_loops_one_after_another_and_at_once(node: weft.Node) -> None:
    remote = node.attach(node.share(weft.zeros(4, "i8")))

    async def main() -> None:
        for _ in range(50):
            await remote.afetch_add(0)
            await asyncio.sleep(0)

    threads = [threading.Thread(target=run, args=(main,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG_S)
    run(main)
    assert remote[0] == 250


def test_error_reaches_the_awaiter_with_its_words(node: weft.Node) -> None:
    local = weft.zeros(4)
    share = node.share(local, access="r")
    remote = node.attach(share)

    async def main() -> None:
        with pytest.raises(errors.AccessDenied, match="is shared with access 'r'"):
            await remote.awrite(np.ones(4))
        share.close()
        with pytest.raises(errors.KeyRejected, match="has closed the share"):
            await remote.aread()

    run(main)


@pytest.mark.procs
def test_death_of_the_owner_ends_waits(node: weft.Node, name: Any) -> None:

    n = name("a")
    with Owner("async-", WEFT_ISOLATION="strict") as owner:
        owner.tell(f"a = np.zeros(1000); s = node.share(a, {n!r})")

        async def main() -> None:
            remote = await node.aattach(n)
            owner.stop()
            tasks = [asyncio.create_task(remote.aread()) for _ in range(10)]
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in tasks)
            owner.kill()
            for found in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(found, ConnectionResetError)
                assert f"process {owner.pid}, is gone" in str(found)

        run(main)


@pytest.mark.procs
@pytest.mark.parametrize("where", ["loop", "thread"])
def test_closing_the_node_ends_waits(name: Any, where: str) -> None:

    n = name("a")
    with Owner("async-", WEFT_ISOLATION="strict") as owner, weft.open() as node:
        owner.tell(f"a = np.zeros(1000); s = node.share(a, {n!r})")

        async def main() -> None:
            remote = await node.aattach(n)
            owner.stop()
            try:
                task = asyncio.create_task(remote.aread())
                await asyncio.sleep(0.05)
                if where == "loop":
                    node.close()
                else:
                    await asyncio.get_running_loop().run_in_executor(None, node.close)
                with pytest.raises(errors.BadState, match="node was closed"):
                    await task
            finally:
                owner.go_on()

        run(main)


@pytest.mark.procs
def test_cancelled_task_leaves_the_lane_usable(node: weft.Node, name: Any) -> None:

    n = name("a")
    with Owner("async-", WEFT_ISOLATION="strict") as owner:
        owner.tell(f"a = np.arange(1000.0); s = node.share(a, {n!r})")

        async def main() -> None:
            remote = await node.aattach(n)
            owner.stop()
            task = asyncio.create_task(remote.aread())
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            owner.go_on()
            assert (await remote.at[7].aread()) == 7

        run(main)


def test_unpickled_array_attaches_in_the_executor() -> None:
    import pickle

    with weft.open() as node:
        sent = pickle.dumps(node.share(weft.zeros(3)))

        async def main() -> None:
            assert (await pickle.loads(sent).aread()).tolist() == [0, 0, 0]

        run(main)
