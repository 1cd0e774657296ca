"""Connected endpoints (FI_EP_MSG) between processes: fi_cm(3) over each path, and peers that die."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
from tests.fi.support import WATCHDOG_S
from tests.fi.test_cm import KEY, Side
from tests.procs.children import Child
from tests.procs.peer import World

from weft import fi


def listen(world: World) -> str:
    world.more["side"] = side = Side()
    world.more["memory"] = memory = side.domain.alloc(64, np.uint8)
    memory[:] = 0
    side.region(memory)
    return str(side.listener().getname())


def take(world: World) -> bytes:
    side = world.more["side"]
    request = side.event(fi.CONNREQ)
    side.endpoint(request.info).accept(b"from " + str(os.getpid()).encode())
    side.event(fi.CONNECTED)
    return bytes(request.data)


def contents(world: World) -> bytes:
    return bytes(world.more["memory"])


def await_shutdown(world: World) -> None:
    world.more["side"].event(fi.SHUTDOWN)


def finish(world: World) -> None:
    world.more.pop("side").close()


SETTINGS: dict[str, dict[str, str]] = {
    "shm": {},
    "strict": {"WEFT_ISOLATION": "strict"},
    "manual": {"WEFT_ENGINE": "manual"},
    "tcp": {"WEFT_SHM": "0", "WEFT_LISTEN": "tcp://127.0.0.1:0", "WEFT_SECRET": "a secret of the test, long enough"},
}


def call_and_write(world: World, name: str) -> bytes:
    world.more["side"] = side = Side()
    ep = side.endpoint()
    ep.connect(name, b"hello")
    answer: bytes = side.event(fi.CONNECTED).data
    ep.write(b"\x44" * 64, addr=0, key=KEY)
    assert side.outcome() == 0
    return answer


def write_after_the_end(world: World) -> int:
    side = world.more["side"]
    side.event(fi.SHUTDOWN)
    try:
        side.opened[0].write(b"x", addr=0, key=KEY)
    except fi.FabricError as error:
        return int(error.errno or 0)
    return side.outcome()


@pytest.mark.procs
@pytest.mark.clause("rma.arg.dest-addr-connected")
@pytest.mark.parametrize("path", list(SETTINGS))
def test_two_processes_connect_transfer_and_part(path: str) -> None:
    with Child(**SETTINGS[path]) as server, Child(**SETTINGS[path]) as client:
        name = server.call(listen)
        taking = server.start(take)
        assert client.call(call_and_write, name) == b"from " + str(server.pid).encode()
        assert taking.result() == b"hello"
        assert server.call(contents) == b"\x44" * 64
        client.call(finish)
        server.call(await_shutdown)
        server.call(finish)


@pytest.mark.procs
@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_peer_that_is_killed_is_a_shutdown(path: str) -> None:
    with Child(**SETTINGS[path]) as client:
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(Child(**SETTINGS[path]))
            name = server.call(listen)
            taking = server.start(take)
            client.call(call_and_write, name)
            taking.result()
            server.kill()
            server.wait()
            assert client.call(write_after_the_end) == fi.ENOTCONN
        client.call(finish)


def call_only(world: World, name: str) -> None:
    world.more["side"] = side = Side()
    side.endpoint().connect(name)


def hear(world: World) -> None:
    world.more["side"].event(fi.CONNREQ)


def failure_of_call(world: World) -> tuple[int, str]:
    """The error of the request, and whether the endpoint may connect again."""
    side = world.more["side"]
    failed = side.failure()
    return failed.err, repr(side.opened[0])


def events_of_call(world: World) -> list[int]:
    eq = world.more["side"].eq
    return [int(eq.sread(WATCHDOG_S)[0]) for _ in range(2)]


@pytest.mark.procs
@pytest.mark.parametrize("path", ["shm", "tcp"])
@pytest.mark.parametrize("answers", [False, True])
def test_peer_that_is_killed_before_its_answer_is_read_is_told(path: str, answers: bool) -> None:
    with Child(**SETTINGS[path]) as client:
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(Child(**SETTINGS[path]))
            name = server.call(listen)
            taking = server.start(take if answers else hear)
            client.call(call_only, name)
            taking.result()
            server.kill()
            server.wait()
        if answers:
            assert client.call(events_of_call) == [fi.CONNECTED, fi.SHUTDOWN]
        else:
            err, endpoint = client.call(failure_of_call)
            assert err == fi.ECONNRESET
            assert "idle" in endpoint
        client.call(finish)
