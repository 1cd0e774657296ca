"""Pairs of comms, and other processes to talk to, for the tests of weft://."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed", reason="Dask's distributed is not installed: pip install 'weft-fabric[dask]'")

import dask
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize
from tests.patience import Patience

SECONDS_MAX = 60.0  # a watchdog
ADDRESS = "weft://127.0.0.1:0"


def run(test: Callable[[], Awaitable[Any]]) -> Any:
    """A test's coroutine in a new loop, ended by the watchdog."""

    async def limited() -> Any:
        patience = Patience(SECONDS_MAX)
        task = asyncio.ensure_future(test())
        while not task.done():
            if patience.over:
                task.cancel()
            await asyncio.wait({task}, timeout=min(max(patience.left(), 0.01), 5.0))
        return await task

    return asyncio.run(limited())


@contextlib.asynccontextmanager
async def pair(address: str = ADDRESS, **more: Any) -> AsyncIterator[tuple[Any, Any]]:
    """The two comms of one connection within this process: of the connector, of the listener."""
    accepted: asyncio.Queue[Any] = asyncio.Queue()

    async def handle(comm: Any) -> None:
        accepted.put_nowait(comm)

    async with listen(address, handle, **more) as listener:
        a = await connect(listener.contact_address, **more)
        b = await accepted.get()
        try:
            yield a, b
        finally:
            a.abort()
            b.abort()


async def until(true: Callable[[], bool]) -> None:
    """Let the loop run until something is true; the test's watchdog ends it."""
    while not true():
        await asyncio.sleep(0.001)


def array(nbytes: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


# ---- other processes -----------------------------------------------------------------------------------------------


async def _serve(pipe: Any, address: str) -> None:
    """Answers {"op": ...}: "echo" data, "give" nbytes, "take" (reads nothing further), "held" bytes of offers."""
    over = asyncio.Event()
    keep = []

    async def handle(comm: Any) -> None:
        keep.append(comm)
        with contextlib.suppress(CommClosedError):
            while True:
                message = await comm.read()
                if message["op"] == "echo":
                    await comm.write({"data": to_serialize(message["data"])})
                elif message["op"] == "give":
                    await comm.write({"data": to_serialize(array(message["nbytes"]))})
                elif message["op"] == "paths":
                    await comm.write(comm.paths)
                elif message["op"] == "descriptors":
                    await comm.write(len(os.listdir("/proc/self/fd")))
                elif message["op"] == "stop":
                    over.set()

    async with listen(address, handle) as listener:
        pipe.send(listener.contact_address)
        await over.wait()


def serve(pipe: Any, address: str, env: dict[str, str]) -> None:
    """The main function of another process."""
    os.environ.update(env)
    dask.config.refresh()
    asyncio.run(_serve(pipe, address))


@contextlib.contextmanager
def server(address: str = ADDRESS, **env: str) -> Iterator[tuple[str, Any]]:
    """Another process that serves; its address, and the process."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(there, address, env), daemon=True)
    process.start()
    there.close()
    try:
        patience = Patience(SECONDS_MAX)
        while not here.poll(1.0):
            assert not patience.over, "the server does not start"
        yield here.recv(), process
    finally:
        process.kill()
        process.join()
