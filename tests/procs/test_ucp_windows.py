"""Pointers into a peer's memory and imported handles, after the peer has unmapped it: they reach nobody else's memory,
Weft refuses them where it is asked, and the memory comes back when they are gone, however their holder ends."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.patience import Patience
from tests.procs import ucp_pairs
from tests.procs.children import CALL_S, Child
from tests.procs.peer import World

from weft import _process, ucp
from weft.ucp import Status

PAGE = 4096
PRIVATE = int(ucp.MEM_MAP_PROT_LOCAL_READ | ucp.MEM_MAP_PROT_LOCAL_WRITE)
KINDS = ("import", "ptr", "view")


# ---- at the owner ----------------------------------------------------------------------------------------------------


def map_memory(world: World, name: str, length: int = PAGE, prot: int = 0x303) -> tuple[int, bytes, bytes]:
    """(address, packed key, exported handle)."""
    memh = world.more["context"].mem_map(length=length, allocate=True, prot=prot)
    world.more[name] = memh
    if prot == PRIVATE:
        return memh.address, b"", b""
    return memh.address, bytes(memh.pack()), bytes(memh.pack(flags=ucp.MEMH_PACK_FLAG_EXPORT))


def unmap(world: World, name: str) -> None:
    world.more.pop(name).unmap()


def contents(world: World, name: str) -> bytes:
    return bytes(world.more[name].memory)


def fill(world: World, name: str, data: bytes) -> None:
    world.more[name].memory[: len(data)] = data


def resting(world: World) -> int:
    return _process.nic().statistics()["resting_bytes"]


def close_context(world: World) -> None:
    world.more["context"].close()


# ---- at the holder ---------------------------------------------------------------------------------------------------


def connect(world: World, address: bytes) -> None:
    world.more["context"] = ucp.Context()
    world.more["worker"] = world.more["context"].worker_create()
    world.more["ep"] = world.more["worker"].ep_create(address)


def hold(world: World, kind: str, name: str, key: bytes, exported: bytes) -> None:
    if kind == "import":
        world.more[name] = world.more["context"].mem_map(exported_memh_buffer=exported)
        world.more[name + " bytes"] = world.more[name].memory
        return
    rkey = world.more["ep"].rkey_unpack(key)
    world.more[name] = rkey
    if kind == "ptr":
        import ctypes

        pointer = rkey.ptr(rkey.address)
        world.more[name + " bytes"] = memoryview((ctypes.c_char * PAGE).from_address(pointer)).cast("B")
    else:
        world.more[name + " bytes"] = rkey.view(rkey.address, PAGE)


def drop(world: World, name: str) -> None:
    world.more.pop(name + " bytes")
    held = world.more.pop(name)
    held.unmap() if isinstance(held, ucp.MemHandle) else held.destroy()
    del held
    gc.collect()


def scribble(world: World, name: str, data: bytes) -> bytes:
    """The bytes that were there."""
    view = world.more[name + " bytes"]
    before = bytes(view[: len(data)])
    view[: len(data)] = data
    return before


def _status(call: Callable[[], Any]) -> str:
    try:
        call()
    except ucp.UcsError as error:
        return error.status.name
    return "OK"


def use(world: World, name: str, other: bytes) -> list[str]:
    """How calls with the held objects end; `other` is a key of memory that is mapped."""
    held = world.more[name]
    if isinstance(held, ucp.MemHandle):
        ep = world.more["ep"]
        rkey = ep.rkey_unpack(other)
        calls: list[Callable[[], Any]] = [
            lambda: ep.put_nbx((held.address, 8), rkey.address, rkey, memh=held).wait(CALL_S),
            lambda: ep.get_nbx((held.address, 8), rkey.address, rkey, memh=held).wait(CALL_S),
            lambda: held.memory,
            lambda: held[0:8],
        ]
    else:
        calls = [lambda: held.ptr(held.address), lambda: held.view(held.address, 8)]
    return [_status(call) for call in calls]


def fork_and_end(world: World) -> int:
    """A forked child that collects everything it inherited, and ends as a program does; its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            world.more.clear()
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def usage(world: World) -> tuple[int, int, int]:
    """Address space and memory in pages, descriptors."""
    with open("/proc/self/statm", encoding="ascii") as file:
        size, there = (int(word) for word in file.read().split()[:2])
    return size, there, len(os.listdir("/proc/self/fd"))


# ---- facts -----------------------------------------------------------------------------------------------------------


class Pair:
    def __init__(self, **settings: str) -> None:
        self.owner, self.holder = Child(**settings), Child(**settings)
        self.address: bytes = self.owner.call(ucp_pairs.open_worker)
        self.holder.call(connect, self.address)
        self.names = 0

    def map(self, prot: int = 0x303, length: int = PAGE) -> tuple[str, int, bytes, bytes]:
        self.names += 1
        name = f"region {self.names}"
        return name, *self.owner.call(map_memory, name, length, prot)

    def until_nothing_rests(self) -> None:
        deadline = Patience(CALL_S)
        while self.owner.call(resting) != 0:
            assert not deadline.over, "the place does not come back"

    def close(self) -> None:
        self.holder.close()
        self.owner.close()


@pytest.fixture(params=[{}, {"WEFT_CMA": "0"}], ids=["default", "without cma"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    found = Pair(**request.param)
    yield found
    found.close()


@pytest.mark.procs
@pytest.mark.parametrize("kind", KINDS)
def test_place_that_is_held_is_no_other_regions(pair: Pair, kind: str) -> None:
    name, address, key, exported = pair.map()
    pair.owner.call(fill, name, b"was mine")
    pair.holder.call(hold, kind, "it", key, exported)
    pair.owner.call(unmap, name)
    newer = [pair.map(PRIVATE) for _ in range(8)]
    assert address not in {region[1] for region in newer}
    assert pair.holder.call(scribble, "it", b"SMASHED!") == b"was mine"
    assert [pair.owner.call(contents, region[0]) for region in newer] == [bytes(PAGE)] * 8
    assert pair.owner.call(resting) == PAGE
    pair.holder.call(drop, "it")
    pair.until_nothing_rests()
    again = [pair.map(PRIVATE) for _ in range(8)]
    assert address in {region[1] for region in again}
    assert [pair.owner.call(contents, region[0]) for region in again] == [bytes(PAGE)] * 8


@pytest.mark.procs
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_refuses_unmapped_memory(pair: Pair, kind: str) -> None:
    other = pair.map()
    for _ in range(2):  # a new handle of new memory is as good as the first
        name, _, key, exported = pair.map()
        pair.holder.call(hold, kind, "it", key, exported)
        assert set(pair.holder.call(use, "it", other[2])) == {"OK"}
        pair.owner.call(unmap, name)
        assert set(pair.holder.call(use, "it", other[2])) == {Status.ERR_IO_ERROR.name}
        pair.holder.call(drop, "it")


@pytest.mark.procs
def test_place_is_held_until_the_last_of_two_imports_goes(pair: Pair) -> None:
    name, _, key, exported = pair.map()
    pair.holder.call(hold, "import", "one", key, exported)
    pair.holder.call(hold, "import", "two", key, exported)
    pair.owner.call(unmap, name)
    pair.holder.call(drop, "one")
    assert pair.map(PRIVATE)[1]  # the owner looks again
    assert pair.owner.call(resting) == PAGE
    pair.holder.call(drop, "two")
    pair.until_nothing_rests()


@pytest.mark.procs
@pytest.mark.parametrize("kind", KINDS)
def test_place_comes_back_when_its_holder_is_killed(pair: Pair, kind: str) -> None:
    name, _, key, exported = pair.map()
    pair.holder.call(hold, kind, "it", key, exported)
    pair.owner.call(unmap, name)
    assert pair.owner.call(resting) == PAGE
    pair.holder.process.kill()
    pair.until_nothing_rests()


@pytest.mark.procs
def test_forked_child_of_a_holder_ends_no_hold(pair: Pair) -> None:
    name, _, key, exported = pair.map()
    for kind in KINDS:
        pair.holder.call(hold, kind, kind, key, exported)
    assert pair.holder.call(fork_and_end) == 0
    pair.owner.call(unmap, name)
    assert pair.map(PRIVATE)[1]
    assert pair.owner.call(resting) == PAGE
    for kind in KINDS:
        pair.holder.call(drop, kind)
    pair.until_nothing_rests()


@pytest.mark.procs
@pytest.mark.parametrize("end", ["closes its context", "is killed"])
def test_import_of_an_owner_that_is_gone_is_refused(pair: Pair, end: str) -> None:
    other = Pair()
    try:
        good = other.map()
        pair.holder.call(connect, other.address)
        pair.holder.call(hold, "import", "good", good[2], good[3])
        found = pair.map()
        pair.holder.call(hold, "import", "it", found[2], found[3])
        if end == "is killed":
            pair.owner.process.kill()
            pair.owner.process.wait()
        else:
            pair.owner.call(close_context)
        deadline = Patience(CALL_S)
        while set(pair.holder.call(use, "it", good[2])) != {Status.ERR_IO_ERROR.name}:
            assert end == "is killed", "a context that was closed has unmapped its memory"
            assert not deadline.over, "the holder does not hear of its peer's death"
        assert set(pair.holder.call(use, "good", good[2])) == {"OK"}
        pair.holder.call(scribble, "it", b"nobody's")  # the rest of it is still mapped
        pair.holder.call(drop, "it")
    finally:
        other.close()


@pytest.mark.sweep
@pytest.mark.procs
def test_holding_and_unmapping_over_and_over_leaves_nothing(pair: Pair) -> None:
    def cycle() -> None:
        for kind in KINDS:
            name, _, key, exported = pair.map()
            pair.holder.call(hold, kind, "it", key, exported)
            pair.owner.call(unmap, name)
            pair.holder.call(drop, "it")

    for _ in range(30):
        cycle()
    before = pair.owner.call(usage), pair.holder.call(usage)
    for _ in range(150):
        cycle()
    after = pair.owner.call(usage), pair.holder.call(usage)
    pair.until_nothing_rests()
    for (size, there, fds), (size_after, there_after, fds_after) in zip(before, after, strict=True):
        assert fds_after <= fds
        assert size_after - size < 256  # 450 places would be 450 pages
        assert there_after - there < 256
