"""weft:// with peers that die, lie, or speak something else; with forks, exits without a close, and narrow machines."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import struct
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize
from tests import patience
from tests.interop.comms import ADDRESS, array, run, server, until

from weft.interop.dask import wire
from weft.interop.dask.fabric import fabric_of_process

MIB = 1 << 20


# ---- peers that die ------------------------------------------------------------------------------------------------


@pytest.mark.procs
@pytest.mark.parametrize("after", [0.0, 0.002, 0.01, 0.03])
def test_sender_killed_while_it_is_read(after: float) -> None:
    """Either the whole message was read, or the reader gets an error; never a part of a message, and no crash."""

    async def test() -> None:
        comm = await connect(address)
        await comm.write({"op": "give", "nbytes": 1000})
        await comm.read()
        await comm.write({"op": "give", "nbytes": 200 * MIB})
        reading = asyncio.ensure_future(comm.read())
        await until(lambda: bool(comm._link._unread) or reading.done() or comm._link._reader is None)
        await asyncio.sleep(after)
        os.kill(process.pid, signal.SIGKILL)
        try:
            found = await reading
        except CommClosedError:
            assert comm.closed()
        else:
            np.testing.assert_array_equal(found["data"], array(200 * MIB))
        with pytest.raises(CommClosedError):
            await comm.read()

    with server() as (address, process):
        run(test)


@pytest.mark.procs
def test_reader_killed_frees_what_was_offered_to_it() -> None:
    async def test() -> None:
        comm = await connect(address)
        await comm.write({"op": "paths"})
        await comm.read()
        sent = array(50 * MIB)
        alive = weakref.ref(sent)
        os.kill(process.pid, signal.SIGSTOP)
        await comm.write(to_serialize(sent))
        del sent
        gc.collect()
        assert alive() is not None
        os.kill(process.pid, signal.SIGKILL)
        while alive() is not None:
            gc.collect()
            await asyncio.sleep(0.001)
        with pytest.raises(CommClosedError):
            await comm.read()

    with server() as (address, process):
        run(test)


@pytest.mark.procs
def test_other_comms_survive_the_death_of_a_peer() -> None:
    async def test() -> None:
        first, second = await connect(one), await connect(two)
        process.kill()
        with pytest.raises(CommClosedError):
            await first.read()
        await second.write({"op": "give", "nbytes": 9 * MIB})
        np.testing.assert_array_equal((await second.read())["data"], array(9 * MIB))
        await second.close()

    with server() as (one, process), server() as (two, _):
        run(test)


# ---- peers that lie ------------------------------------------------------------------------------------------------


def offered(nbytes: int, key: int, addr: int = 0) -> bytes:
    return wire.pack_message([wire.Row(wire.OFFERED, nbytes, key, addr)], [])


def hello(**more: Any) -> bytes:
    return wire.pack_json(wire.HELLO, {**fabric_of_process().hello, **more})


READABLE = wire.pack_json(wire.VERDICT, {"reason": ""})


def region_too_small() -> bytes:
    return hello() + READABLE + offered(10 * MIB, fabric_of_process().hello["key"])


def region_far_too_small() -> bytes:
    return hello() + READABLE + offered(1 << 36, fabric_of_process().hello["key"])


LIES: dict[str, Callable[[], bytes]] = {
    "another protocol": lambda: struct.pack("<Q", 100) + b"\0" * 100,
    "http": lambda: b"GET / HTTP/1.1\r\n\r\n" + b" " * 100,
    "a region that is too small": region_too_small,
    "a region that is smaller by far": region_far_too_small,
    "a region beyond its end": lambda: hello() + READABLE + offered(16, fabric_of_process().hello["key"], 1 << 40),
    "a key that nobody made": lambda: hello() + READABLE + offered(100, 0x1234_5678_9ABC),
    "an offer before any greeting": lambda: offered(100, 1),
    "an acknowledgement of nothing": lambda: hello() + wire.pack_ack(3),
    "an acknowledgement without a number": lambda: hello() + wire.pack(wire.ACK, b"x"),
    "two greetings": lambda: hello() + hello(),
    "two verdicts": lambda: hello() + READABLE + READABLE,
    "a verdict that is none": lambda: hello() + wire.pack_json(wire.VERDICT, {}),
    "a frame longer than memory": lambda: hello() + wire.pack_message([wire.Row(wire.APART, 1 << 61)], []),
}


@pytest.mark.parametrize("lie", LIES)
def test_liar_is_dropped_and_harms_nobody_else(lie: str) -> None:
    async def test() -> None:
        handled = []

        async def handle(comm: Any) -> None:
            handled.append(comm)
            await comm.write(await comm.read())

        async with listen(ADDRESS, handle) as listener:
            honest = await connect(listener.contact_address)
            host, _, port = listener.contact_address.removeprefix("weft://").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(LIES[lie]())
            try:
                while await reader.read(1 << 16):  # its own greeting; then it closes
                    pass
            except ConnectionResetError:
                pass
            writer.close()
            await honest.write(to_serialize(array(MIB)))
            np.testing.assert_array_equal(await honest.read(), array(MIB))
            assert len(handled) == 1
            await honest.close()

    run(test)


WRONG_GREETINGS: dict[str, dict[str, Any]] = {
    "no address": {"name": None},
    "no text": {"name": 7},
    "a long name": {"name": "x" * 5000},
    "an address of nobody": {"name": "weft://0/1/12345"},
    "no hexadecimal": {"greeting": "zz"},
    "another greeting": {"greeting": "00" * 16},
    "no key": {"key": -1},
    "text for a key": {"key": "1"},
    "another fabric": {"fabric": "ofi:other"},
}


@pytest.mark.parametrize("wrong", WRONG_GREETINGS)
def test_greeting_that_proves_nothing_leaves_the_connection(wrong: str) -> None:
    """A process that peers cannot read sends large frames by the connection; the reason is told."""

    async def test() -> None:
        async with listen(ADDRESS, None) as listener:
            host, _, port = listener.contact_address.removeprefix("weft://").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(hello(**WRONG_GREETINGS[wrong]))
            data = b""
            while b'"reason"' not in data:
                more = await reader.read(1 << 16)
                assert more
                data += more
            assert b'{"reason": ""}' not in data
            writer.close()

    run(test)


def test_tcp_client_gets_an_error_from_a_weft_listener() -> None:
    async def test() -> None:
        async def handle(comm: Any) -> None:
            raise AssertionError("handled")

        async with listen(ADDRESS, handle) as listener:
            with pytest.raises((OSError, MemoryError)):  # tcp:// takes the greeting for a length
                await connect(listener.contact_address.replace("weft", "tcp"), timeout=1)

    run(test)


def test_weft_client_gets_an_error_from_a_tcp_listener() -> None:
    async def test() -> None:
        async def handle(comm: Any) -> None:
            raise AssertionError("handled")

        async with listen("tcp://127.0.0.1:0", handle) as listener:
            with pytest.raises(CommClosedError, match="does not speak weft://"):
                await connect(listener.contact_address.replace("tcp", "weft"), timeout=1)

    run(test)


# ---- forks and exits -----------------------------------------------------------------------------------------------


def program(text: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has this folder's helpers; it must end by itself."""
    text = "from tests.interop.comms import *\nimport os, sys, gc\n" + textwrap.dedent(text)
    return patience.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning:weft", "-c", text],
        timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **env},
    )


@pytest.mark.procs
@pytest.mark.parametrize("how", ["pass", "sys.exit(0)", "gc.collect()", "await b.read(); gc.collect()"])
def test_exit_without_a_close(how: str) -> None:
    found = program(f"""
        async def main():
            kept = pair()
            a, b = await kept.__aenter__()
            globals()["kept"] = kept, a, b
            await a.write(to_serialize(array(3 << 20)))
            {how}
        asyncio.run(main())
    """)
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in found.stderr
    assert "Fatal" not in found.stderr


@pytest.mark.procs
def test_exit_while_a_frame_is_read() -> None:
    found = program("""
        async def main():
            async with pair() as (a, b):
                await a.write(to_serialize(array(300 << 20)))
                reading = asyncio.ensure_future(b.read())
                while b._link._unread or not b._link._parser:
                    await asyncio.sleep(0)
                await asyncio.sleep(0.001)
                sys.exit(0)
        asyncio.run(main())
    """)
    assert found.returncode == 0, found.stderr
    assert "Fatal" not in found.stderr


@pytest.mark.procs
@pytest.mark.skipif(bool(os.environ.get("WEFT_SANITIZED")), reason="a sanitizer's allocator does not survive a fork")
def test_forked_child_has_comms_of_its_own() -> None:
    found = program("""
        async def use():
            async with pair() as (a, b):
                await a.write(to_serialize(array(3 << 20)))
                assert (await b.read() == array(3 << 20)).all()
        async def main():
            async with pair() as (a, b):
                await a.write(to_serialize(array(3 << 20)))
                pid = os.fork()
                if pid == 0:
                    gc.collect()
                    asyncio.events._set_running_loop(None)
                    asyncio.run(use())
                    os._exit(7)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
                assert (await b.read() == array(3 << 20)).all()
        asyncio.run(main())
        print("both")
    """)
    assert found.stdout.strip() == "both", found.stderr


# ---- narrow machines, other hosts ----------------------------------------------------------------------------------

SECRET = "the same long text on both hosts"


@pytest.mark.procs
@pytest.mark.parametrize(
    ("env", "reads"),
    [
        ({"WEFT_CMA": "0"}, True),
        ({"WEFT_ISOLATION": "strict"}, True),
        ({"WEFT_SHM": "0", "WEFT_SECRET": SECRET}, True),
        ({"WEFT_SHM": "0"}, False),
        ({"WEFT_SHM": "0", "WEFT_SECRET": SECRET[::-1]}, False),
        ({"WEFT_ENGINE": "manual"}, False),
    ],
    ids=["no process_vm", "strict", "tcp", "tcp without a secret", "tcp with another secret", "no engine"],
)
def test_arrays_arrive_by_every_path(env: dict[str, str], reads: bool) -> None:
    """WEFT_SHM=0 stands for two hosts: then only the tcp link, which needs the secret, reaches the peer."""
    mine = {**env, "WEFT_SECRET": SECRET} if "WEFT_SECRET" in env else env
    assert exchanged(env, mine) == [str(reads)] * 2


@pytest.mark.procs
@pytest.mark.parametrize("fabric", ["ofi:tcp", "ofi:shm"])
def test_arrays_arrive_over_a_real_libfabric(fabric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = os.environ.get("WEFT_TEST_LIBFABRIC")  # the run's setting, before tests/conftest.py switched it off
    monkeypatch.setenv("WEFT_LIBFABRIC", library) if library else monkeypatch.delenv("WEFT_LIBFABRIC")
    offers = program(
        f"""
        from weft import fi
        hints = fi.Info(caps=fi.RMA, ep_attr=fi.EpAttr(type=fi.EP_RDM))
        hints.fabric_attr = fi.FabricAttr(prov_name={fabric!r})
        fi.getinfo(hints=hints)
        """
    )
    if offers.returncode:
        pytest.skip(f"no {fabric} here: {offers.stderr.strip().splitlines()[-1]}")
    env = {"DASK_DISTRIBUTED__COMM__WEFT__FABRIC": fabric}
    assert exchanged(env, env) == ["True", "True"]


def exchanged(env: dict[str, str], mine: dict[str, str]) -> list[str]:
    """Whether two processes that exchanged arrays read each other's memory, as text."""
    with server(**env) as (address, _):
        found = program(
            """
            async def main(address):
                comm = await connect(address)
                for nbytes in (10, 1 << 16, 20 << 20):
                    await comm.write({"op": "echo", "data": to_serialize(array(nbytes))})
                    assert ((await comm.read())["data"] == array(nbytes)).all()
                await comm.write({"op": "paths"})
                print(comm.paths["reads_peer"], (await comm.read())["reads_peer"])
                await comm.close()
            asyncio.run(main(os.environ["SERVER_ADDRESS"]))
            """,
            **mine,
            SERVER_ADDRESS=address,
        )
    assert found.returncode == 0, found.stderr
    return found.stdout.split()
