"""weft:// after a fault: regions are closed, receive buffers are back, arrays are let go."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import dask
import numpy as np
import pytest
from distributed.comm import CommClosedError, connect
from distributed.protocol import to_serialize
from tests.interop.comms import array, pair, run, server, until

from weft import _process
from weft.interop.dask import WeftConnector, wire
from weft.interop.dask import fabric as module

MIB = 1 << 20


@contextlib.contextmanager
def fabric(**settings: Any) -> Iterator[module.Fabric]:
    """A Fabric of this process with an empty pool, within a block."""
    before, module._current = module._current, None
    try:
        with dask.config.set({f"distributed.comm.weft.{key}": value for key, value in settings.items()}):
            made = module.fabric_of_process()
        yield made
        made.close()
    finally:
        module._current = before


def regions() -> int:
    return int(_process.nic().statistics()["regions"])


async def collected(true: Callable[[], bool]) -> None:
    def check() -> bool:
        gc.collect()
        return true()

    await until(check)


async def met(comm: Any) -> None:
    """Until both sides know that they can read each other's memory."""
    await until(lambda: comm.paths["reads_peer"] is True and comm.paths["read_by_peer"] is True)


# ---- a peer that is killed -----------------------------------------------------------------------------------------


@pytest.mark.procs
def test_buffer_of_a_killed_sender_is_used_again() -> None:
    async def test() -> None:
        comm = await connect(address)
        await comm.write({"op": "give", "nbytes": 200 * MIB})
        await until(lambda: bool(comm._link._unread))
        reading = asyncio.ensure_future(comm.read())
        await until(lambda: not comm._link._unread)  # the read has its buffer
        os.kill(process.pid, signal.SIGKILL)
        with contextlib.suppress(CommClosedError):
            await reading
        del reading
        with pytest.raises(CommClosedError):
            await comm.read()
        await collected(lambda: own.pool.kept >= 200 * MIB)

    with fabric(pool="1GiB") as own, server() as (address, process):
        run(test)


@pytest.mark.procs
def test_write_that_waits_for_a_peer_that_never_reads_ends_with_its_death() -> None:
    async def test() -> None:
        comm = await connect(address)
        await met(comm)
        os.kill(process.pid, signal.SIGSTOP)
        before = regions()
        sent = [array(40 * MIB, seed) for seed in range(2)]
        alive = [weakref.ref(one) for one in sent]
        await comm.write(to_serialize(sent[0]))
        assert regions() == before + 1
        second = asyncio.ensure_future(comm.write(to_serialize(sent[1])))
        await comm.write({"op": "small"})  # the loop ran: the second write waits for room
        assert not second.done()
        sent.clear()
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(CommClosedError):
            await second
        del second
        await collected(lambda: not any(one() is not None for one in alive))
        assert regions() == before

    with fabric(unacknowledged="64MiB"), server() as (address, process):
        run(test)


@pytest.mark.procs
def test_many_killed_peers_leave_no_region() -> None:
    async def test() -> None:
        before = regions()
        for _ in range(3):
            with server() as (address, process):
                comm = await connect(address)
                await met(comm)
                os.kill(process.pid, signal.SIGSTOP)
                for seed in range(4):
                    await comm.write(to_serialize(array(2 * MIB, seed)))
                assert regions() == before + 4
                os.kill(process.pid, signal.SIGKILL)
                with pytest.raises(CommClosedError):
                    await comm.read()
            await until(lambda: regions() == before)

    with fabric():
        run(test)


# ---- a peer that lies about its frames -----------------------------------------------------------------------------

READABLE = wire.pack_json(wire.VERDICT, {"reason": ""})


def lie(own: module.Fabric, which: str) -> bytes:
    """A peer's message whose frame differs from its row. The honest region of the process is 16 bytes long."""
    key, addr = own.hello["key"], own.hello["addr"]
    if which == "a closed region":
        offer = own.offer([memoryview(array(10 * MIB))])
        key, addr = offer.rows[0]
        offer.close()
    row = {
        "a longer frame": wire.Row(wire.OFFERED, 10 * MIB, key, addr),
        "a longer frame, by little": wire.Row(wire.OFFERED, 17, key, addr),
        "a frame behind the region": wire.Row(wire.OFFERED, 10 * MIB, key, addr + (1 << 40)),
        "an address that wraps around": wire.Row(wire.OFFERED, 10 * MIB, key, (1 << 64) - 1),
        "a key of nobody": wire.Row(wire.OFFERED, 10 * MIB, key ^ 0x5A5A, addr),
        "a closed region": wire.Row(wire.OFFERED, 10 * MIB, key, addr),
    }[which]
    good = wire.Row(wire.OFFERED, 16, own.hello["key"], own.hello["addr"])
    return wire.pack_json(wire.HELLO, own.hello) + READABLE + wire.pack_message([good, row, good], [])


@pytest.mark.parametrize(
    "which",
    [
        "a longer frame",
        "a longer frame, by little",
        "a frame behind the region",
        "an address that wraps around",
        "a key of nobody",
        "a closed region",
    ],
)
def test_reader_of_a_lie_gets_a_closed_comm_and_its_buffer_is_used_again(which: str) -> None:
    async def test() -> None:
        async def lying(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(1 << 16):
                    pass
            writer.close()

        said = lie(own, which)
        async with await asyncio.start_server(lying, "127.0.0.1", 0) as liar:
            # Without distributed's handshake, which would read the lie.
            comm = await WeftConnector().connect(f"127.0.0.1:{liar.sockets[0].getsockname()[1]}")
            before = regions()
            with pytest.raises(CommClosedError, match="could not be read from the peer's memory"):
                await comm.read()
            assert comm.closed()
        if "little" not in which:
            await collected(lambda: own.pool.kept >= 10 * MIB)
        assert regions() == before

    with fabric() as own:
        run(test)


# ---- errors of deserializers ---------------------------------------------------------------------------------------


def fail(kind: type[Exception], _: Any) -> None:
    raise kind("on purpose")


class Fails:
    """Raises when it is read back, beside an array that the reader's thread reads from the sender's memory."""

    def __init__(self, kind: type[Exception]) -> None:
        self.kind = kind

    def __reduce__(self) -> Any:
        return fail, (self.kind, np.ones(2 * MIB))


@pytest.mark.parametrize(("kind", "seen"), [(EOFError, CommClosedError), (ValueError, ValueError)])
def test_error_of_a_deserializer_is_the_readers(kind: type[Exception], seen: type[Exception]) -> None:
    """As with tcp://: an EOFError means truncated data and closes the comm; after any other error the comm goes on."""

    async def test() -> None:
        async with pair() as (a, b):
            await a.write({"data": to_serialize(Fails(kind))})
            with pytest.raises(seen):
                await b.read()
            assert b.closed() is (kind is EOFError)
            if kind is not EOFError:
                await a.write(to_serialize(array(2 * MIB)))
                np.testing.assert_array_equal(await b.read(), array(2 * MIB))

    run(test)
