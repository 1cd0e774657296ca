"""weft.ucp between hosts: two network namespaces; a host that is lost, and a host that comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.patience import Patience
from tests.procs import ucp_pairs
from tests.procs.children import CALL_S, Child
from tests.procs.hosts import Wire
from tests.procs.peer import World
from tests.procs.test_hosts import QUICK, child

from weft import ucp
from weft.ucp import Status

pytestmark = pytest.mark.procs


@pytest.fixture
def wire(seed: int) -> Iterator[Wire]:
    with Wire(seed) as made:
        yield made


def connect(world: World, address: bytes, packed: bytes) -> None:
    """An endpoint to another host's worker that reports its end, and a key of its memory."""
    world.more["told"] = told = []
    worker: ucp.Worker = world.more["worker"]
    world.more["ep"] = worker.ep_create(address, err_handler=lambda data, ep, status: told.append(status))
    world.more["key"] = world.more["ep"].rkey_unpack(packed)


def put(world: World, data: bytes, at: int) -> int:
    """The status of a put and the flush behind it."""
    ep, key = world.more["ep"], world.more["key"]
    try:
        ucp_pairs.settle(ep.put_nbx(data, key.address + at, key))
        ucp_pairs.settle(ep.flush_nbx())
    except ucp.UcsError as error:
        return int(error.status)
    return 0


def add(world: World, at: int, value: int) -> int:
    ep, key = world.more["ep"], world.more["key"]
    old = bytearray(8)
    ucp_pairs.settle(ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, value, key.address + at, key, reply_buffer=old))
    return int.from_bytes(old, "little")


def pointer(world: World) -> int:
    key = world.more["key"]
    try:
        key.ptr(key.address)
    except ucp.UcsError as error:
        return int(error.status)
    return 0


def told(world: World) -> list[int]:
    """The error handler's arguments, once it was called."""
    limit = Patience(CALL_S / 2)
    while not world.more["told"]:
        assert not limit.over
        world.more["worker"].progress()
        time.sleep(0.001)
    return [int(status) for status in world.more["told"]]


LOST = (Status.ERR_ENDPOINT_TIMEOUT, Status.ERR_UNREACHABLE, Status.ERR_CONNECTION_RESET)


def reach(one: Child, address: bytes, packed: bytes, data: bytes) -> None:
    """Connect and put, again with a new endpoint while the host is taken for lost."""
    limit = Patience(CALL_S)
    while True:
        one.call(connect, address, packed)
        if (end := one.call(put, data, 0)) == 0:
            return
        assert end in LOST
        assert not limit.over


@pytest.mark.clause("ucp.pack.portable", "ucp.rkey-pack.portable")
def test_ucp_reaches_memory_of_another_host(wire: Wire) -> None:
    with child(wire, "a") as a, child(wire, "b") as b:
        address = a.call(ucp_pairs.open_worker)
        packed, _ = a.call(ucp_pairs.map_memory, "r", 1 << 20, False, 0, 0x303, 0, 0)
        b.call(ucp_pairs.open_worker)
        b.call(connect, address, packed)
        for n in (8, 5000, 1 << 20):
            assert b.call(put, bytes([n % 251]) * n, 0) == 0
            assert a.call(ucp_pairs.contents, "r", 0, n) == bytes([n % 251]) * n
        before = int.from_bytes(a.call(ucp_pairs.contents, "r", 64, 72), "little")
        assert b.call(add, 64, 5) == before
        assert int.from_bytes(a.call(ucp_pairs.contents, "r", 64, 72), "little") == before + 5
        assert b.call(put, b"12345678", (1 << 20) - 4) == Status.ERR_IO_ERROR
        assert b.call(pointer) == Status.ERR_UNREACHABLE  # no load gets to another host


def test_ucp_endpoint_to_a_lost_host_fails_for_good(wire: Wire) -> None:
    with child(wire, "a", **QUICK) as a, child(wire, "b", **QUICK) as b:
        address = a.call(ucp_pairs.open_worker)
        packed, _ = a.call(ucp_pairs.map_memory, "r", 4096, False, 0, 0x303, 0, 0)
        b.call(ucp_pairs.open_worker)
        reach(b, address, packed, b"before")
        wire.behave(loss=1)
        lost = b.call(told)
        assert lost in [[one] for one in LOST]
        assert b.call(put, b"during", 0) == lost[0]  # the endpoint stays what it is
        wire.behave()
        reach(b, address, packed, b"after.")
        assert a.call(ucp_pairs.contents, "r", 0, 6) == b"after."
