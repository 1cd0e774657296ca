"""ucp_mem_map: allocated memory, and memory types."""

from __future__ import annotations

import ctypes
import gc
import resource
from typing import Any

import pytest
from tests.fakes import gpu as fake
from tests.ucp.map_support import addresses, works
from tests.ucp.support import (
    ALL_RIGHTS,
    ALLOCATE,
    FIXED,
    INVALID_PARAM,
    NO_MEMORY,
    NONBLOCK,
    OK,
    PAGE,
    SYMMETRIC,
    UNSUPPORTED,
    Rig,
    array,
    ended,
    mapped_text,
    refused,
    resident,
)

from weft import _process, errors, fi, ucp
from weft.ucp import mem, placement

# ---- allocated memory ------------------------------------------------------------------------------------------------


@pytest.mark.clause("ucp.map.length", "ucp.enum.allocate")
@pytest.mark.parametrize(("length", "pages"), [(1, 1), (1024, 1), (PAGE, 1), (PAGE + 1, 2), (5000, 2), (1 << 20, 256)])
def test_allocation_is_whole_pages_that_read_as_zero(rig: Rig, length: int, pages: int) -> None:
    with rig.alloc(length) as memh:
        assert memh.address % PAGE == 0
        assert memh.length == pages * PAGE
        assert memh.query().length == pages * PAGE
        assert not memh.array().any()
        works(rig, memh)


@pytest.mark.parametrize("flags", [ALLOCATE, ALLOCATE | NONBLOCK, ALLOCATE | SYMMETRIC])
def test_allocation_reads_as_zero_where_memory_is_used_again(rig: Rig, flags: int) -> None:
    seen = set()
    again = 0
    for _ in range(20):
        with rig.map(length=4 * PAGE, flags=flags) as memh:
            again += memh.address in seen
            seen.add(memh.address)
            assert not memh.array().any()
            memh.array().fill(0xFF)
    assert again


@pytest.mark.parametrize("length", [1 << 50, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("flags", [ALLOCATE, ALLOCATE | NONBLOCK])
def test_oversized_allocation_is_refused_at_once(rig: Rig, length: int, flags: int) -> None:
    with refused(NO_MEMORY, f"{-(-length // PAGE) * PAGE} B cannot be allocated"):
        rig.map(length=length, flags=flags)
    with rig.alloc() as memh:
        works(rig, memh)


@pytest.mark.clause("ucp.enum.allocate-address", "ucp.matrix.means-hint")
def test_mem_map_hint_replaces_nothing(rig: Rig) -> None:
    with addresses(8, backed=True) as place:
        data = place.array()
        data[:] = 7
        with rig.map(address=place.at, length=PAGE, flags=ALLOCATE) as memh:
            assert memh.address != place.at
            assert not memh.array().any()
            memh.array().fill(9)
            works(rig, memh)
        assert (data == 7).all()
    with rig.map(address=place.at + PAGE + 123, length=10, flags=ALLOCATE) as memh:
        assert memh.address == place.at + PAGE  # the page that it lies in
        works(rig, memh)


@pytest.mark.clause("ucp.enum.fixed", "ucp.matrix.means-fixed", "ucp.matrix.allocate-fixed-address")
@pytest.mark.parametrize("nonblock", [0, NONBLOCK])
def test_fixed_takes_addresses_that_were_reserved(rig: Rig, nonblock: int) -> None:
    """PROT_NONE, and private memory that was never touched."""
    for backed in (False, True):
        with (
            addresses(4, backed=backed) as place,
            rig.map(address=place.at + PAGE, length=2 * PAGE, flags=ALLOCATE | FIXED | nonblock) as memh,
        ):
            assert (memh.address, memh.length) == (place.at + PAGE, 2 * PAGE)
            assert not memh.array().any()
            works(rig, memh)


def test_fixed_takes_addresses_that_nothing_is_mapped_at(rig: Rig) -> None:
    with addresses(2) as place:
        pass
    for _ in range(2):  # and gives them back
        with rig.map(address=place.at, length=PAGE, flags=ALLOCATE | FIXED) as memh:
            assert memh.address == place.at
            works(rig, memh)


def test_fixed_never_replaces_pages_that_hold_data(rig: Rig) -> None:
    """UCX replaces such pages silently. One touched page among reserved pages is enough for the refusal."""
    with addresses(4, backed=True) as place:
        data = place.array()
        data[2 * PAGE + 5] = 42
        for first, count in ((0, 4), (2, 1), (1, 2)):
            with refused(NO_MEMORY, "hold data"):
                rig.map(address=place.at + first * PAGE, length=count * PAGE, flags=ALLOCATE | FIXED)
        assert data[2 * PAGE + 5] == 42
        with rig.map(address=place.at, length=2 * PAGE, flags=ALLOCATE | FIXED) as memh:
            works(rig, memh)
        assert data[2 * PAGE + 5] == 42


def test_fixed_never_replaces_mapped_files_or_weft_s_own_memory(rig: Rig) -> None:
    with rig.alloc(2 * PAGE) as memh:
        memh.array().fill(5)
        with refused(NO_MEMORY):
            rig.map(address=memh.address + PAGE, length=PAGE, flags=ALLOCATE | FIXED)
        assert (memh.array() == 5).all()
    with refused(NO_MEMORY, "hold data"):
        rig.map(address=mapped_text() & -PAGE, length=PAGE, flags=ALLOCATE | FIXED)


@pytest.mark.parametrize("prot", [ALL_RIGHTS, 0x003], ids=["for peers", "local"])
def test_fixed_never_replaces_a_region_that_is_mapped(rig: Rig, prot: int) -> None:
    """A mapped region is never replaced, even if its pages were not touched, because peers may access them."""
    with addresses(4, backed=True) as place:
        with rig.map(address=place.at + PAGE, length=PAGE, prot=prot, flags=NONBLOCK) as live:
            for first, count in ((0, 4), (1, 1), (0, 2), (1, 2)):
                with refused(NO_MEMORY, "a mapped region"):
                    rig.map(address=place.at + first * PAGE, length=count * PAGE, flags=ALLOCATE | FIXED)
            with rig.map(address=place.at + 2 * PAGE, length=PAGE, flags=ALLOCATE | FIXED) as beside:
                works(rig, beside)
            assert not live.unmapped
        with rig.map(address=place.at, length=2 * PAGE, flags=ALLOCATE | FIXED) as memh:
            works(rig, memh)


def test_fixed_where_the_kernel_maps_nothing_is_refused(rig: Rig) -> None:
    with refused(NO_MEMORY, "0xffff800000000000"):
        rig.map(address=0xFFFF800000000000, length=PAGE, flags=ALLOCATE | FIXED)


@pytest.mark.clause("ucp.enum.nonblock", "ucp.enum.nonblock-lazy")
def test_nonblock_leaves_pages_out_until_they_are_accessed(rig: Rig) -> None:
    with rig.map(length=4 * PAGE, flags=ALLOCATE | NONBLOCK) as memh, rig.key(memh) as rkey:
        assert resident(memh.address, 4) == [False] * 4
        assert rig.put(b"x", memh.address + 2 * PAGE, rkey) is OK  # a communication routine maps it
        assert bytes(memh.memory[2 * PAGE : 2 * PAGE + 1]) == b"x"
        assert resident(memh.address, 4)[2]


@pytest.mark.clause("ucp.enum.nonblock")
def test_without_nonblock_pages_are_there_when_the_call_returns(rig: Rig) -> None:
    with rig.alloc(64 * PAGE) as memh:
        assert all(resident(memh.address, 64))
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        ctypes.memset(memh.address, 1, memh.length)
        assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 8  # of 64 pages


def test_nonblock_registration_touches_nothing_and_works(rig: Rig) -> None:
    with addresses(4, backed=True) as place, rig.map(address=place.at, length=4 * PAGE, flags=NONBLOCK) as memh:
        assert resident(place.at, 4) == [False] * 4
        works(rig, memh)


# ---- the memory type -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_type", [-1, 11, 200, 1 << 40])
def test_memory_type_out_of_range_is_invalid(rig: Rig, memory_type: int) -> None:
    data = array()
    for call in (
        {"address": data.ctypes.data, "length": 64},
        {"length": 64, "flags": ALLOCATE},
        {"length": 64, "flags": 0},
    ):
        with refused(INVALID_PARAM, "memory type"):
            rig.map(memory_type=memory_type, **call)
    with refused(INVALID_PARAM, "memory type"):
        rig.map(data, memory_type=memory_type)


@pytest.mark.clause("ucp.map.memory-type", "ucp.attr.mem-type")
@pytest.mark.parametrize("memory_type", list(ucp.MemoryType))
def test_type_of_registered_memory_is_detected(rig: Rig, memory_type: ucp.MemoryType) -> None:
    data = array()
    with rig.map(address=data.ctypes.data, length=64, memory_type=memory_type) as memh:
        assert memh.query().mem_type == memh.memory_type == ucp.MEMORY_TYPE_HOST
        works(rig, memh)


@pytest.mark.clause("ucp.map.memory-type")
@pytest.mark.parametrize(
    "memory_type",
    [
        ucp.MEMORY_TYPE_RDMA,
        ucp.MEMORY_TYPE_ZE_HOST,
        ucp.MEMORY_TYPE_ZE_DEVICE,
        ucp.MEMORY_TYPE_ZE_MANAGED,
        ucp.MEMORY_TYPE_GAUDI,
    ],
)
def test_type_that_cannot_be_allocated_is_no_memory(rig: Rig, memory_type: ucp.MemoryType) -> None:
    with refused(NO_MEMORY, memory_type.text):
        rig.alloc(memory_type=memory_type)


@pytest.mark.parametrize("memory_type", [ucp.MEMORY_TYPE_HOST, ucp.MEMORY_TYPE_UNKNOWN])
def test_mem_map_allocates_host_memory_by_default(rig: Rig, memory_type: ucp.MemoryType) -> None:
    with rig.alloc(memory_type=memory_type) as memh:
        assert memh.memory_type == ucp.MEMORY_TYPE_HOST
        works(rig, memh)


@pytest.fixture(scope="module")
def gpu() -> fake.Gpu:
    return fake.start()


@pytest.mark.clause("ucp.map.memory-type", "ucp.attr.mem-type", "ucp.query.fills")
@pytest.mark.parametrize(
    ("kind", "memory_type"), [("device", ucp.MEMORY_TYPE_CUDA), ("managed", ucp.MEMORY_TYPE_CUDA_MANAGED)]
)
def test_cuda_memory_is_registered_as_cuda(gpu: fake.Gpu, rig: Rig, kind: str, memory_type: int) -> None:
    data = gpu.array(PAGE, kind).put(b"on the device".ljust(PAGE, b"\0"))
    with rig.map(data) as memh, rig.key(memh) as rkey:
        attr = memh.query()
        assert (attr.address, attr.length, attr.mem_type) == (data.address, PAGE, memory_type)
        assert rkey.memory_type == memory_type
        assert rig.get(13, memh.address, rkey) == b"on the device"
        assert rig.put(b"AT", memh.address, rkey) is OK
        assert data.get()[:13] == b"AT the device"
        with refused(UNSUPPORTED, "device"):
            memh.memory  # noqa: B018
    with rig.map(address=data.address, length=PAGE) as memh:
        assert memh.memory_type == memory_type
    data.free()


@pytest.mark.clause("ucp.map.memory-type", "ucp.matrix.allocate-null")
@pytest.mark.parametrize("memory_type", [ucp.MEMORY_TYPE_CUDA, ucp.MEMORY_TYPE_CUDA_MANAGED])
def test_cuda_memory_is_allocated_and_given_back(gpu: fake.Gpu, rig: Rig, memory_type: ucp.MemoryType) -> None:
    with rig.alloc(5000, memory_type=memory_type) as memh, rig.key(memh) as rkey:
        assert (memh.length, memh.memory_type) == (2 * PAGE, memory_type)
        assert rig.put(b"payload", memh.address + 100, rkey) is OK
        assert rig.get(7, memh.address + 100, rkey) == b"payload"
        source = gpu.array(16).put(b"from the device.")
        assert rig.put(source, memh.address, rkey) is OK
        back = gpu.array(16)
        assert ended(rig.ep.get_nbx(back, memh.address, rkey)) is OK
        assert back.get() == b"from the device."
        at = memh.address
    with rig.map(address=at, length=64) as found:
        assert found.memory_type == ucp.MEMORY_TYPE_HOST  # the runtime knows nothing of it any more


@pytest.mark.parametrize("memory_type", [ucp.MEMORY_TYPE_HOST, ucp.MEMORY_TYPE_CUDA])
def test_allocation_is_given_back_when_its_registration_fails(
    gpu: fake.Gpu, rig: Rig, monkeypatch: pytest.MonkeyPatch, memory_type: ucp.MemoryType
) -> None:
    allocate, made = placement.allocate, []

    def noted(*args: Any, **more: Any) -> placement.Allocated:
        found = allocate(*args, **more)
        made.append((found, found.address))
        return found

    def full(*args: Any) -> None:
        raise errors.make(int(fi.ENOSPC), "the table is full")

    before = _process.nic().statistics()["allocated_bytes"]
    monkeypatch.setattr(placement, "allocate", noted)
    monkeypatch.setattr(mem, "Region", full)
    with pytest.raises(ucp.UcsError, match="the table is full"):
        rig.alloc(5000, memory_type=memory_type)
    monkeypatch.undo()
    [(allocation, address)] = made
    assert allocation.buffer is None or allocation.address == 0  # by the call itself, not with the last reference
    gc.collect()
    assert _process.nic().statistics()["allocated_bytes"] == before
    if memory_type == ucp.MEMORY_TYPE_CUDA:
        with rig.map(address=address, length=64) as found:
            assert found.memory_type == ucp.MEMORY_TYPE_HOST  # the runtime knows nothing of it any more
