"""weft:// comms: messages of every size arrive, the ends close as tcp://'s do, and offered frames are let go."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
import weakref
from typing import Any

import dask
import numpy as np
import pytest
from distributed.comm import CommClosedError, connect, listen, parse_address, resolve_address
from distributed.comm.registry import get_backend
from distributed.protocol import Serialized, to_serialize
from tests.interop.comms import ADDRESS, array, pair, run, server, until

from weft.interop.dask import WeftBackend, link

KIB, MIB = 1 << 10, 1 << 20
OFFER = 64 * KIB  # the default of distributed.comm.weft.offer-size

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


def test_backend_is_found_by_its_entry_point() -> None:
    assert isinstance(get_backend("weft"), WeftBackend)


def test_addresses_are_hosts_and_ports() -> None:
    backend = get_backend("weft")
    assert resolve_address("weft://localhost:80") in ("weft://127.0.0.1:80", "weft://[::1]:80")
    assert backend.get_address_host("10.0.0.1:80") == "10.0.0.1"
    assert backend.get_address_host_port("10.0.0.1:80") == ("10.0.0.1", 80)
    assert backend.get_local_address_for("127.0.0.1:80") == "127.0.0.1"


# ---- messages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nbytes", [0, 1, 100, OFFER - 1, OFFER, OFFER + 1, MIB - 1, MIB + 1, 9 * MIB + 3], ids=lambda n: f"{n}B"
)
def test_array_arrives_whole_and_writable(nbytes: int) -> None:
    sent = array(nbytes)

    async def test() -> None:
        async with pair() as (a, b):
            await a.write({"data": to_serialize(sent)})
            found = (await b.read())["data"]
            np.testing.assert_array_equal(found, sent)
            assert found.flags.writeable
            assert not np.shares_memory(found, sent)

    run(test)


@pytest.mark.parametrize(
    "value",
    [
        b"\x07" * MIB,
        bytearray(b"\x07" * MIB),
        memoryview(b"\x07" * MIB),
        np.arange(MIB, dtype="i2").reshape(1024, 1024).T,
        np.arange(MIB, dtype=">f8")[::2],
        np.array([], "f8"),
        "text" * MIB,
        {"a": [np.ones(MIB), np.zeros(3)], "b": np.ones((300, 300), "f4")},
    ],
    ids=["bytes", "bytearray", "memoryview", "transposed", "strided", "empty", "str", "nested"],
)
def test_value_arrives_as_sent(value: Any) -> None:
    async def test() -> Any:
        async with pair() as (a, b):
            await a.write({"data": to_serialize(value)})
            return (await b.read())["data"]

    np.testing.assert_equal(run(test), value)


def test_read_only_array_arrives_writable() -> None:
    sent = array(MIB)
    sent.flags.writeable = False

    async def test() -> None:
        async with pair() as (a, b):
            await a.write(to_serialize(sent))
            found = await b.read()
            np.testing.assert_array_equal(found, sent)

    run(test)


def test_message_of_many_frames_arrives() -> None:
    sent = [array(n, n) for n in (10, OFFER, 3 * MIB, 0, 200 * KIB) for _ in range(40)]

    async def test() -> None:
        async with pair() as (a, b):
            await a.write([to_serialize(x) for x in sent])
            for found, expected in zip(await b.read(), sent, strict=True):
                np.testing.assert_array_equal(found, expected)

    run(test)


def test_many_small_messages_arrive_in_order() -> None:
    async def test() -> None:
        async with pair() as (a, b):
            for i in range(2000):
                await a.write({"i": i})
            assert [(await b.read())["i"] for _ in range(2000)] == list(range(2000))

    run(test)


def test_large_and_small_messages_keep_their_order() -> None:
    async def test() -> None:
        async with pair() as (a, b):
            for i in range(60):
                await a.write({"i": i, "data": to_serialize(np.full((i % 3) * 50_000, i))})
            for i in range(60):
                found = await b.read()
                assert found["i"] == i
                assert (found["data"] == i).all()
                assert found["data"].size == (i % 3) * 50_000

    run(test)


def test_concurrent_writes_all_arrive() -> None:
    async def test() -> None:
        async with pair() as (a, b):
            writes = [a.write({"i": i, "data": to_serialize(np.full(20_000 * (i % 4), i))}) for i in range(40)]
            reads = asyncio.gather(*[_read_all(b, 40)])
            await asyncio.gather(*writes)
            (found,) = await reads
            assert sorted(m["i"] for m in found) == list(range(40))
            assert all((m["data"] == m["i"]).all() for m in found)

    run(test)


async def _read_all(comm: Any, count: int) -> list[Any]:
    return [await comm.read() for _ in range(count)]


def test_both_sides_write_large_before_they_read() -> None:
    """As with tcp://, write() does not wait for the reader."""
    sent = array(20 * MIB)

    async def test() -> None:
        async with pair() as (a, b):
            await a.write(to_serialize(sent))
            await b.write(to_serialize(sent))
            np.testing.assert_array_equal(await a.read(), sent)
            np.testing.assert_array_equal(await b.read(), sent)

    run(test)


def test_comm_without_deserialization_passes_frames_on() -> None:
    sent = array(MIB)

    async def test() -> None:
        async with pair(deserialize=False) as (a, b):
            await a.write({"data": to_serialize(sent)})
            found = (await b.read())["data"]
            assert isinstance(found, Serialized)
            await b.write({"data": found})
            again = (await a.read())["data"]
            assert b"".join(bytes(f) for f in again.frames) == sent.tobytes()

    run(test)


def test_compressed_frames_arrive() -> None:
    sent = np.zeros(4 * MIB, np.uint8)

    async def test() -> None:
        with dask.config.set({"distributed.comm.compression": "zlib"}):
            async with pair() as (a, b):
                for comm in (a, b):
                    comm.handshake_options["compression"] = "zlib"
                assert await a.write(to_serialize(sent)) < MIB
                np.testing.assert_array_equal(await b.read(), sent)

    run(test)


# ---- what the sender holds -----------------------------------------------------------------------------------------


class Watched(np.ndarray):
    """An array whose end can be seen."""


def watched(nbytes: int) -> tuple[Any, Any]:
    made = array(nbytes)
    return made, weakref.ref(made)


def test_array_is_held_until_it_is_read() -> None:
    async def test() -> None:
        async with pair() as (a, b):
            sent, alive = watched(4 * MIB)
            copy = sent.copy()
            await a.write(to_serialize(sent))
            del sent
            gc.collect()
            assert alive() is not None
            np.testing.assert_array_equal(await b.read(), copy)
            await until(lambda: alive() is None)

    run(test)


@pytest.mark.parametrize("end", ["abort", "abort-peer", "close-peer"])
def test_array_is_let_go_when_the_comm_ends(end: str) -> None:
    async def test() -> None:
        async with pair() as (a, b):
            sent, alive = watched(4 * MIB)
            await a.write(to_serialize(sent))
            del sent
            if end == "abort":
                a.abort()
            elif end == "abort-peer":
                b.abort()
            else:
                await b.close()
            while alive() is not None:
                gc.collect()
                await asyncio.sleep(0.001)

    run(test)


def test_write_waits_while_too_much_is_unread() -> None:
    async def test() -> None:
        async with pair() as (a, b):
            await a.write(to_serialize(array(6 * MIB, 1)))
            second = asyncio.ensure_future(a.write(to_serialize(array(6 * MIB, 2))))
            third = asyncio.ensure_future(a.write({"small": 1}))
            await third  # a small message needs no room
            assert not second.done()
            np.testing.assert_array_equal(await b.read(), array(6 * MIB, 1))
            await second
            assert await b.read() == {"small": 1}
            np.testing.assert_array_equal(await b.read(), array(6 * MIB, 2))

    with _fabric({"unacknowledged": "8MiB"}):
        run(test)


@pytest.mark.parametrize("met", [True, False])
def test_side_that_does_not_read_hears_what_its_writes_wait_for(monkeypatch: pytest.MonkeyPatch, met: bool) -> None:
    """Too many unread messages stop the reading of the socket, but not while acknowledgements are due, or the peer's
    answer to the greeting: a write that waits for them would wait for ever."""
    monkeypatch.setattr(link, "UNREAD_MAX", 3)

    async def test() -> None:
        async with pair() as (a, b):
            if met:
                await a.write(to_serialize(array(MIB)))
                np.testing.assert_array_equal(await b.read(), array(MIB))
                await until(lambda: not a._link._offers)
            for i in range(10):
                await b.write({"i": i})
            if met:
                await until(lambda: a._link._paused)
            reads = asyncio.ensure_future(_read_all(b, 4))
            for i in range(4):
                await a.write(to_serialize(array(6 * MIB, i)))
            for i, found in enumerate(await reads):
                np.testing.assert_array_equal(found, array(6 * MIB, i))
            assert [message["i"] for message in await _read_all(a, 10)] == list(range(10))

    with _fabric({"unacknowledged": "8MiB"}):
        run(test)


def test_write_that_waits_ends_with_the_comm() -> None:
    async def test() -> None:
        async with pair() as (a, b):
            await a.write(to_serialize(array(6 * MIB)))
            second = asyncio.ensure_future(a.write(to_serialize(array(6 * MIB))))
            await asyncio.sleep(0)
            b.abort()
            with pytest.raises(CommClosedError):
                await second

    with _fabric({"unacknowledged": "8MiB"}):
        run(test)


class _fabric:
    """The process's Fabric, with other settings, within a block."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = {f"distributed.comm.weft.{key}": value for key, value in settings.items()}

    def __enter__(self) -> None:
        from weft.interop.dask import fabric

        self._module, self._before = fabric, fabric._current
        fabric._current = None
        with dask.config.set(self._settings):
            fabric.fabric_of_process()

    def __exit__(self, *_: object) -> None:
        made = self._module._current
        assert made is not None
        made.close()
        self._module._current = self._before


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pool": "many"}, "pool is 'many'"),
        ({"offer-size": 0}, "at least 1"),
        ({"read-threads": -1}, "at least 1"),
        ({"fabric": 7}, "fabric is 7"),
    ],
)
def test_wrong_setting_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said), _fabric(settings):
        pass


# ---- without one-sided reads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fabric", ["off", "no-such-provider"])
def test_without_a_fabric_large_frames_go_by_the_connection(fabric: str) -> None:
    sent = array(5 * MIB)

    async def test() -> None:
        async with pair() as (a, b):
            await a.write([to_serialize(sent), to_serialize(sent[:10])])
            await b.write(to_serialize(sent))
            np.testing.assert_array_equal((await b.read())[0], sent)
            found = await a.read()
            np.testing.assert_array_equal(found, sent)
            assert found.flags.writeable
            assert a.paths["read_by_peer"] is False
            assert fabric in a.paths["because"]

    with _fabric({"fabric": fabric}):
        run(test)


def test_paths_say_that_memory_is_read() -> None:
    async def test() -> None:
        async with pair() as (a, b):
            await a.write(to_serialize(array(MIB)))
            await b.read()
            await until(lambda: None not in a.paths.values())
            assert a.paths == {"fabric": "weft", "reads_peer": True, "read_by_peer": True, "because": ""}

    run(test)


# ---- the end of a comm ---------------------------------------------------------------------------------------------


def test_closed_comm_refuses_reads_and_writes() -> None:
    async def test() -> None:
        async with pair() as (a, b):
            reading = [asyncio.ensure_future(comm.read()) for comm in (a, b)]
            await asyncio.sleep(0)
            await a.close()
            assert a.closed()
            for read in reading:
                with pytest.raises(CommClosedError):
                    await read
            for comm in (a, b):
                with pytest.raises(CommClosedError):
                    await comm.read()
                with pytest.raises(CommClosedError):
                    await comm.write({})
            assert b.closed()
            await a.close()  # once more
            a.abort()
            await b.close()
            assert "closed" in repr(a)

    run(test)


def test_what_was_written_before_close_is_read() -> None:
    sent = array(6 * MIB)

    async def test() -> None:
        async with pair() as (a, b):
            await a.write({"small": 1})
            await a.write(to_serialize(sent))
            await a.write({"small": 2})
            closing = asyncio.ensure_future(a.close())
            assert await b.read() == {"small": 1}
            np.testing.assert_array_equal(await b.read(), sent)
            assert await b.read() == {"small": 2}
            await closing
            with pytest.raises(CommClosedError):
                await b.read()

    run(test)


def test_both_sides_close_with_unread_arrays() -> None:
    """Neither waits for an absent reader."""

    async def test() -> None:
        async with pair() as (a, b):
            await a.write(to_serialize(array(6 * MIB)))
            await b.write(to_serialize(array(6 * MIB)))
            await asyncio.gather(a.close(), b.close())

    run(test)


def test_close_does_not_wait_for_ever_for_a_peer_that_does_not_read() -> None:
    async def test() -> None:
        with dask.config.set({"distributed.comm.timeouts.tcp": "0.3s"}):
            async with pair() as (a, _):
                await a.write(to_serialize(array(6 * MIB)))
                await a.close()

    run(test)


def test_aborted_sender_ends_the_reader_with_an_error() -> None:
    async def test() -> None:
        async with pair() as (a, b):
            await a.write({"small": 1})
            await a.write(to_serialize(array(6 * MIB)))
            a.abort()
            try:
                assert await b.read() == {"small": 1}
            except CommClosedError:
                return
            with pytest.raises(CommClosedError):
                await b.read()

    run(test)


@pytest.mark.parametrize("nbytes", [10, 30 * MIB])
def test_cancelled_read_aborts_the_comm(nbytes: int) -> None:
    async def test() -> None:
        async with pair() as (a, b):
            reading = asyncio.ensure_future(b.read())
            await asyncio.sleep(0)
            if nbytes > MIB:
                await a.write(to_serialize(array(nbytes)))
                await until(lambda: not b._link._unread)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert b.closed()

    run(test)


def test_comm_closed_while_its_frames_are_read_ends_with_an_error() -> None:
    async def test() -> None:
        async with pair() as (a, b):
            await a.write(to_serialize(array(60 * MIB)))
            reading = asyncio.ensure_future(b.read())
            await asyncio.sleep(0)
            b.abort()
            with pytest.raises(CommClosedError):
                await reading

    run(test)


def test_message_that_cannot_be_read_back_closes_the_comm() -> None:
    """As tcp://: an EOFError of the deserializer means truncated data."""

    async def test() -> None:
        async with pair() as (a, b):
            await a.write({"data": to_serialize(_Broken())})
            with pytest.raises(CommClosedError):
                await b.read()
            assert b.closed()

    run(test)


class _Broken:
    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise EOFError


def test_nobody_listens() -> None:
    async def test() -> None:
        with pytest.raises(OSError, match="Timed out trying to connect"):
            await connect("weft://127.0.0.1:1", timeout=0.2)

    run(test)


def test_listener_stops_and_its_comms_go_on() -> None:
    async def test() -> None:
        accepted: asyncio.Queue[Any] = asyncio.Queue()

        async def handle(comm: Any) -> None:
            accepted.put_nowait(comm)

        listener = await listen(ADDRESS, handle)
        assert parse_address(listener.listen_address)[0] == "weft"
        a = await connect(listener.contact_address)
        b = await accepted.get()
        listener.stop()
        with pytest.raises(OSError, match="Timed out"):
            await connect(listener.contact_address, timeout=0.2)
        await a.write("still")
        assert await b.read() == "still"
        await a.close()
        await b.close()

    run(test)


def test_wildcard_listener_is_contacted_at_an_address() -> None:
    async def test() -> None:
        async def handle(comm: Any) -> None:
            await comm.write("hello")

        async with listen("weft://", handle) as listener:
            assert listener.listen_address.startswith("weft://0.0.0.0:")
            assert "0.0.0.0" not in listener.contact_address
            comm = await connect(listener.contact_address)
            assert await comm.read() == "hello"
            await comm.close()

    run(test)


@pytest.mark.parametrize("arguments", [{"require_encryption": True}, {"ssl_context": ssl.create_default_context()}])
def test_tls_is_refused_in_words(arguments: dict[str, Any]) -> None:
    async def test() -> None:
        with pytest.raises(RuntimeError, match="weft:// has no TLS"):
            await connect("weft://127.0.0.1:1", **arguments)
        with pytest.raises(RuntimeError, match="weft:// has no TLS"):
            listen(ADDRESS, None, **arguments)

    run(test)


def test_hundreds_of_comms_cost_a_socket_each() -> None:
    async def test() -> None:
        accepted: list[Any] = []

        async def handle(comm: Any) -> None:
            accepted.append(comm)

        async with pair(), listen(ADDRESS, handle) as listener:
            before = len(os.listdir("/proc/self/fd"))
            comms = [await connect(listener.contact_address) for _ in range(300)]
            await until(lambda: len(accepted) == 300)
            assert len(os.listdir("/proc/self/fd")) - before <= 600  # fewer where older sockets were collected
            for comm in (*comms, *accepted):
                comm.abort()
        await asyncio.sleep(0)

    run(test)


def test_what_a_collected_comm_wrote_is_delivered() -> None:
    sent = array(6 * MIB)

    async def test() -> None:
        async def handle(comm: Any) -> None:
            await comm.write(to_serialize(sent))

        async with listen(ADDRESS, handle) as listener:
            comm = await connect(listener.contact_address)
            gc.collect()
            np.testing.assert_array_equal(await comm.read(), sent)
            with pytest.raises(CommClosedError):
                await comm.read()

    run(test)


def test_comm_that_outlives_its_loop_is_collected_without_an_error() -> None:
    async def test() -> list[Any]:
        comms = pair()
        both = await comms.__aenter__()
        await both[0].write(to_serialize(array(MIB)))
        return [comms, *both]

    left = run(test)
    left.clear()
    gc.collect()


@pytest.mark.procs
def test_arrays_of_another_process_arrive() -> None:
    async def test() -> None:
        comm = await connect(address)
        for nbytes in (10, OFFER, MIB, 33 * MIB):
            await comm.write({"op": "give", "nbytes": nbytes})
            np.testing.assert_array_equal((await comm.read())["data"], array(nbytes))
            await comm.write({"op": "echo", "data": to_serialize(array(nbytes, 2))})
            np.testing.assert_array_equal((await comm.read())["data"], array(nbytes, 2))
        assert comm.paths["reads_peer"] is True
        await comm.close()

    with server() as (address, _):
        run(test)
