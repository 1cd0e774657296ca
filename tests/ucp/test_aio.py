"""Requests under asyncio: events that wake a task, errors that must not stop it, and the close of the worker."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Awaitable
from types import FrameType
from typing import Any

import pytest
from tests.ucp.support import CANCELED, NO_IMM, OK, WATCHDOG_S, Rig, SilentPeer, opened, refused

from weft import ucp

FEATURES = [None, int(ucp.FEATURE_RMA | ucp.FEATURE_AMO64)]  # with WAKEUP, and without


def asynchronously(awaitable: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await asyncio.wait_for(awaitable, WATCHDOG_S)

    return asyncio.run(main())


async def result_of(request: ucp.Request) -> None:
    await request


@pytest.mark.procs
@pytest.mark.parametrize("features", FEATURES)
def test_callback_that_raises_stops_no_await(silent: SilentPeer, features: int | None) -> None:
    """Its exception goes to the event loop's handler, once."""
    reported: list[Any] = []

    def fail(request: ucp.Request, status: int, user_data: Any) -> None:
        raise ValueError("of a callback")

    with opened(features) as rig, rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
            requests = [ep.put_nbx(b"x", rkey.address, rkey, cb=fail if n == 1 else None) for n in range(4)]
            tasks = [asyncio.create_task(result_of(request)) for request in requests]
            await asyncio.sleep(0)
            silent.go_on()
            await asyncio.gather(*tasks)
            assert {request.status for request in requests} == {OK}
            await ep.put_nbx(b"x", rkey.address, rkey, flags=NO_IMM)  # the loop still watches

        asynchronously(main())
    assert {str(context["exception"]) for context in reported} == {"of a callback"}


@pytest.mark.procs
@pytest.mark.parametrize("features", FEATURES)
def test_awaited_request_that_another_thread_progressed_ends_too(silent: SilentPeer, features: int | None) -> None:
    with opened(features) as rig, rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:
        requests = [ep.put_nbx(b"x", rkey.address, rkey) for _ in range(8)]
        stop = threading.Event()

        def progress() -> None:
            while not stop.is_set():
                rig.worker.progress()

        async def main() -> None:
            tasks = [asyncio.create_task(result_of(request)) for request in requests]
            await asyncio.sleep(0)
            thread.start()
            silent.go_on()
            await asyncio.gather(*tasks)

        thread = threading.Thread(target=progress, daemon=True)
        try:
            asynchronously(main())
        finally:
            stop.set()
            thread.join(WATCHDOG_S)
        assert {request.status for request in requests} == {OK}


@pytest.mark.procs
def test_two_event_loops_await_requests_of_one_worker(rig: Rig, silent: SilentPeer) -> None:
    """Two tasks await different requests, and one common request."""
    with rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:
        shared = ep.put_nbx(b"x", rkey.address, rkey)
        started = threading.Barrier(3)
        ended: list[str] = []

        async def main(name: str) -> None:
            own = [ep.put_nbx(b"x", rkey.address, rkey) for _ in range(8)]
            tasks = [asyncio.create_task(result_of(request)) for request in [*own, shared]]
            await asyncio.sleep(0)
            await asyncio.get_running_loop().run_in_executor(None, started.wait, WATCHDOG_S)
            await asyncio.gather(*tasks)
            ended.append(name)

        threads = [threading.Thread(target=lambda n=n: asynchronously(main(n)), daemon=True) for n in ("one", "two")]
        for thread in threads:
            thread.start()
        started.wait(WATCHDOG_S)
        silent.go_on()
        for thread in threads:
            thread.join(WATCHDOG_S)
        assert sorted(ended) == ["one", "two"]


def instructions_of_awaiting(rig: Rig, count: int) -> int:
    """Bytecode instructions that weft.ucp runs while so many requests to a peer, which is silent at first, are awaited.

    Any question to the requests under way takes instructions: a loop over them."""
    home = os.path.dirname(ucp.__file__)
    found = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal found
        if not frame.f_code.co_filename.startswith(home):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        found += event == "opcode"
        return trace

    peer = SilentPeer()
    try:
        with rig.worker.ep_create(peer.address) as ep, ep.rkey_unpack(peer.key) as rkey:
            requests = [ep.put_nbx(b"x", rkey.address, rkey) for _ in range(count)]
            assert all(requests)

            async def main() -> None:
                tasks = [asyncio.create_task(result_of(request)) for request in requests]
                await asyncio.sleep(0)
                peer.go_on()
                await asyncio.gather(*tasks)

            before = sys.gettrace()
            sys.settrace(trace)
            try:
                asynchronously(main())
            finally:
                sys.settrace(before)
    finally:
        peer.kill()
    return found


@pytest.mark.procs
def test_await_of_many_requests_takes_work_in_proportion(rig: Rig) -> None:
    """Eight times the requests: eight times the work, and 64 times if each await looked at all of them."""
    few, many = instructions_of_awaiting(rig, 50), instructions_of_awaiting(rig, 400)
    assert few >= 50
    assert many < 24 * few, f"{few} instructions for 50 requests, {many} for 400"


@pytest.mark.procs
@pytest.mark.parametrize("features", FEATURES)
def test_cancelled_task_leaves_nothing_with_its_request(silent: SilentPeer, features: int | None) -> None:
    with opened(features) as rig, rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:
        request = ep.put_nbx(b"x", rkey.address, rkey)

        async def main() -> int:
            before = len([o for o in gc.get_objects() if isinstance(o, asyncio.Future)])
            for _ in range(50):
                task = asyncio.create_task(result_of(request))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            del task
            gc.collect()
            left = len([o for o in gc.get_objects() if isinstance(o, asyncio.Future)]) - before
            silent.go_on()
            await request
            return left

        assert asynchronously(main()) < 50


@pytest.mark.procs
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("where", ["task", "callback", "thread"])
def test_worker_that_closes_ends_every_await_and_the_watch(
    silent: SilentPeer, features: int | None, where: str
) -> None:
    """Awaited requests end as CANCELED, and the loop stops watching the descriptor."""
    with ucp.Context(features=features) as context:
        worker = context.worker_create()
        ep = worker.ep_create(silent.address)
        rkey = ep.rkey_unpack(silent.key)

        async def main() -> None:
            loop = asyncio.get_running_loop()
            requests = [ep.put_nbx(b"x", rkey.address, rkey) for _ in range(4)]
            requests.append(ep.flush_nbx())
            tasks = [asyncio.create_task(result_of(request)) for request in requests]
            await asyncio.sleep(0)
            watched = worker._watches[loop]._watched
            fd = -1 if watched is None else watched._fd
            assert (fd >= 0) == (features is None and os.environ.get("WEFT_ENGINE") != "manual")
            if where == "task":
                worker.close()
            elif where == "callback":
                loop.call_soon(worker.close)
            else:
                await loop.run_in_executor(None, worker.close)
            for task in tasks:
                with refused(CANCELED):
                    await task
            await loop.shutdown_default_executor()
            assert not worker._watches
            if fd >= 0:
                assert not loop.remove_reader(fd)  # the loop no longer watches the descriptor
            for request in requests:  # again, of a worker that is closed
                with refused(CANCELED):
                    await request

        asynchronously(main())
