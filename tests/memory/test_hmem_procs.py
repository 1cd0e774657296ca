"""Device memory between two processes: the peer's memory opened (peer-to-peer), or copied by its owner.

way      ipc     the initiator opens the target's memory and copies itself (FI_MR_ALLOCATED)
         free    without FI_MR_ALLOCATED the target's engine copies: the memory may change behind the region
         owner   FI_HMEM_DISABLE_P2P=1: the target's engine copies
         pool    the memory cannot be shared (of a memory pool): the same
         ring    WEFT_CMA=0: host buffers go by frames as well
         strict  WEFT_ISOLATION=strict
         blind   the initiator has no driver
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from tests.fakes import gpu as fake
from tests.memory import gpu_peer as there
from tests.procs.children import Child
from tests.procs.peer import World

from weft import fi

WAYS: dict[str, dict[str, str]] = {
    "ipc": {},
    "free": {},
    "owner": {"FI_HMEM_DISABLE_P2P": "1"},
    "pool": {"WEFT_FAKE_CUDA_NO_IPC": "1"},
    "ring": {"WEFT_CMA": "0"},
    "strict": {"WEFT_ISOLATION": "strict"},
    "blind": {},
}
DIRECT = ("ipc", "ring")
N = 1 << 20
PATTERN = bytes(range(256)) * (N // 256)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    fake.start()


@contextlib.contextmanager
def pair(way: str) -> Iterator[tuple[Child, Child]]:
    """(initiator, target)."""
    settings = WAYS[way]
    keywords = {} if way == "free" else {"mr_mode": int(fi.MR_ALLOCATED)}
    blind = {"WEFT_CUDA_LIBRARY": "/nonexistent"} if way == "blind" else {}
    with Child(**settings, **blind) as initiator, Child(**settings) as target:
        name = target.call(there.open_side, True, keywords)
        initiator.call(there.open_side, way != "blind", keywords)
        initiator.call(there.insert, name)
        yield initiator, target


@pytest.fixture(params=list(WAYS), scope="module")
def duo(request: pytest.FixtureRequest) -> Iterator[tuple[Child, Child, str]]:
    with pair(request.param) as (initiator, target):
        target.call(there.expose, N)
        yield initiator, target, request.param


@pytest.mark.procs
@pytest.mark.clause("mr.p2p.env", "mr.p2p.fallback")
def test_who_copies_is_as_the_way_says(duo: tuple[Child, Child, str]) -> None:
    """With peer-to-peer forbidden or impossible the target's driver copies, and no process opens the other's memory."""
    initiator, target, way = duo
    before = target.call(there.counts)
    assert initiator.call(there.put, PATTERN, False) == 0
    after = target.call(there.counts)
    if way in DIRECT:
        assert after["copies"] == before["copies"]
        assert initiator.call(there.counts)["opens"] == 1
    else:
        assert after["copies"] > before["copies"]
        assert way == "blind" or initiator.call(there.counts)["opens"] == 0
    assert target.call(there.contents) == PATTERN


@pytest.mark.procs
@pytest.mark.parametrize("of_device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("nbytes", [1, 8, 4096, 100_000, N])
def test_write_and_read_move_every_byte(duo: tuple[Child, Child, str], nbytes: int, of_device: bool) -> None:
    initiator, target, way = duo
    of_device = of_device and way != "blind"  # a process without a driver has none
    assert initiator.call(there.put, bytes(N), False) == 0
    data = PATTERN[1 : 1 + nbytes] if nbytes < N else PATTERN
    addr = 0 if nbytes == N else 333
    assert initiator.call(there.put, data, of_device, addr) == 0
    assert target.call(there.contents) == bytes(addr) + data + bytes(N - addr - len(data))
    assert initiator.call(there.get, len(data), of_device, addr) == data


@pytest.mark.procs
@pytest.mark.parametrize("of_device", [False, True], ids=["host", "device"])
def test_atomics_are_done_once(duo: tuple[Child, Child, str], of_device: bool) -> None:
    initiator, target, way = duo
    of_device = of_device and way != "blind"  # a process without a driver has none
    assert initiator.call(there.put, bytes(16), False) == 0
    assert [initiator.call(there.add, 5, of_device) for _ in range(3)] == [0, 5, 10]
    assert target.call(there.contents)[:8] == (15).to_bytes(8, "little")


@pytest.mark.procs
def test_access_past_the_region_touches_nothing(duo: tuple[Child, Child, str]) -> None:
    initiator, target, _ = duo
    assert initiator.call(there.put, PATTERN, False) == 0
    assert initiator.call(there.put, b"x" * 8, False, N - 4) == fi.EACCES
    assert initiator.call(there.get, 8, False, N - 4) == fi.EACCES
    assert target.call(there.contents) == PATTERN


@pytest.mark.procs
@pytest.mark.parametrize("kind", ["managed", "host"])
@pytest.mark.parametrize("way", ["ipc", "strict"])
def test_pinned_host_memory_is_copied_by_its_owner(way: str, kind: str) -> None:
    with pair(way) as (initiator, target):
        target.call(there.expose, 1 << 16, kind)
        assert initiator.call(there.put, PATTERN[: 1 << 16], False) == 0
        assert target.call(there.contents) == PATTERN[: 1 << 16]
        assert initiator.call(there.get, 1 << 16, True) == PATTERN[: 1 << 16]
        assert initiator.call(there.counts)["opens"] == 0


@pytest.mark.procs
def test_new_allocation_at_a_freed_address_is_opened_again() -> None:
    """The peer still has the old memory open; its writes must reach the new memory."""
    with pair("ipc") as (initiator, target):
        first = target.call(there.expose, N)
        assert initiator.call(there.put, b"a" * N, False) == 0
        target.call(there.withdraw, True)
        for _ in range(3):  # the fake gives the address out again
            again = target.call(there.expose, N)
            assert initiator.call(there.put, PATTERN, False) == 0
            assert target.call(there.contents) == PATTERN
            target.call(there.withdraw, True)
            assert again == first
        found = initiator.call(there.counts)
        assert found["opens"] == 4
        assert found["closes"] == 3  # each new region ended the region before


@pytest.mark.procs
@pytest.mark.clause("mr.allocated.unset-hmem", "mr.allocated.unset-hmem-fallback")
def test_peer_reaches_new_memory_at_a_registered_address() -> None:
    """Without FI_MR_ALLOCATED the region shows the current memory; without memory an operation fails."""
    with pair("free") as (initiator, target):
        target.call(there.expose, N)
        assert initiator.call(there.put, b"a" * N, False) == 0
        target.call(free_under_the_region)
        assert initiator.call(there.put, PATTERN, False) == fi.EIO
        target.call(there.replace, N)
        assert initiator.call(there.put, PATTERN, False) == 0
        assert target.call(there.contents) == PATTERN


@pytest.mark.procs
def test_region_of_freed_device_memory_is_an_error_completion() -> None:
    for way in ("owner", "strict"):
        with pair(way) as (initiator, target):
            target.call(there.expose, N)
            assert initiator.call(there.put, PATTERN, False) == 0
            target.call(free_under_the_region)
            assert initiator.call(there.put, PATTERN, False) == fi.EIO
            target.call(there.expose_again, N)
            assert initiator.call(there.put, PATTERN, False) == 0


def free_under_the_region(world: World) -> None:
    world.arrays["device"].free()


@pytest.mark.procs
def test_peer_that_is_killed_leaves_nothing_open() -> None:
    with pair("ipc") as (initiator, target):
        target.call(there.expose, N)
        assert initiator.call(there.put, PATTERN, False) == 0
        target.kill()
        target.wait()
        assert initiator.call(there.until_closed, 1)["closes"] == 1
