"""ucp_mem_unmap, and the life of views in Python."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import pytest
from tests.fi.support import libc
from tests.ucp.map_support import addresses, works
from tests.ucp.support import (
    ALLOCATE,
    FIXED,
    INVALID_PARAM,
    IO_ERROR,
    OK,
    PAGE,
    Rig,
    array,
    ended,
    refused,
)

from weft import ucp

# ---- ucp_mem_unmap ---------------------------------------------------------------------------------------------------


@pytest.mark.clause("ucp.unmap.function", "ucp.unmap.rkey-invalid", "ucp.unmap.access-fails")
@pytest.mark.parametrize("way", ["Context.mem_unmap", "MemHandle.unmap", "with"])
def test_unmapped_memory_is_out_of_every_key_s_reach(rig: Rig, way: str) -> None:
    data = array()
    memh = rig.map(data)
    rkey = rig.key(memh)
    assert rig.put(b"before", memh.address, rkey) is OK
    packed = memh.pack()
    if way == "with":
        with memh:
            pass
    elif way == "MemHandle.unmap":
        memh.unmap()
    else:
        rig.context.mem_unmap(memh)
    assert memh.unmapped
    late = rig.ep.rkey_unpack(packed)
    for key in (rkey, late):
        assert rig.put(b"after", data.ctypes.data, key) is IO_ERROR
        assert rig.status_of_get(1, data.ctypes.data, key) is IO_ERROR
        reply = bytearray(8)
        at = data.ctypes.data
        assert ended(rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, at, key, reply_buffer=reply)) is IO_ERROR
    assert bytes(data[:6]) == b"before"


@pytest.mark.clause("ucp.unmap.memh-invalid", "ucp.unmap.status")
@pytest.mark.parametrize("allocated", [False, True])
def test_unmapped_handle_is_refused_everywhere(rig: Rig, allocated: bool) -> None:
    memh = rig.alloc() if allocated else rig.map(array())
    at = memh.address
    with rig.alloc() as target, rig.key(target) as rkey:
        part = memh[:8]
        memh.unmap()
        context, ep = rig.context, rig.ep
        calls: list[Callable[[], Any]] = [
            memh.unmap,
            memh.query,
            memh.pack,
            lambda: memh.pack(flags=int(ucp.MEMH_PACK_FLAG_EXPORT)),
            lambda: memh.memory,
            memh.array,
            lambda: memh.fi_key,
            lambda: context.mem_unmap(memh),
            lambda: context.mem_advise(memh, address=at, length=8, advice=0),
            lambda: ep.put_nbx((at, 8), target.address, rkey, memh=memh),
            lambda: ep.get_nbx((at, 8), target.address, rkey, memh=memh),
            lambda: ep.put_nbx(part, target.address, rkey),
            lambda: ep.get_nbx(memh[:8], target.address, rkey),
            lambda: ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, part, target.address, rkey),
        ]
        for call in calls:
            with refused(INVALID_PARAM, "unmap|closed"):
                call()
        with pytest.warns(DeprecationWarning, match="deprecated"), refused(INVALID_PARAM, "unmap"):
            context.rkey_pack(memh)
        assert not any(target.memory)
    with memh:  # a with block that ends twice is fine
        pass


@pytest.mark.clause("ucp.unmap.context", "ucp.unmap.status", "ucp.advise.context", "ucp.rkey-pack.context")
def test_handle_belongs_to_the_context_that_mapped_it(rig: Rig, other: Rig) -> None:
    with rig.alloc() as memh:
        with refused(INVALID_PARAM, "another context"):
            other.context.mem_unmap(memh)
        with refused(INVALID_PARAM, "another context"):
            other.context.mem_advise(memh, advice=int(ucp.MADV_WILLNEED))
        with pytest.warns(DeprecationWarning, match="deprecated"), refused(INVALID_PARAM, "another context"):
            other.context.rkey_pack(memh)
        works(rig, memh)
        rig.context.mem_advise(memh, advice=int(ucp.MADV_WILLNEED))
        with pytest.warns(DeprecationWarning, match="deprecated"):
            assert rig.context.rkey_pack(memh)
        for wrong in (None, 5, "memh"):
            with refused(INVALID_PARAM, "not a memory handle"):
                rig.context.mem_unmap(wrong)  # type: ignore[arg-type]


def test_local_buffer_is_of_the_context_of_its_worker(rig: Rig, other: Rig) -> None:
    with rig.alloc() as target, rig.alloc() as own, other.alloc() as foreign:
        rkey = rig.key(target)
        for memh, refuses in ((own, False), (foreign, True)):
            local = (memh.address, 8)
            calls = [
                lambda local=local, memh=memh: rig.ep.put_nbx(local, target.address, rkey, memh=memh),
                lambda local=local, memh=memh: rig.ep.get_nbx(local, target.address, rkey, memh=memh),
            ]
            for call in calls:
                if refuses:
                    with refused(INVALID_PARAM, "another context than the worker's"):
                        call()
                else:
                    assert ended(call()) is OK
        rkey.destroy()


@pytest.mark.clause("ucp.unmap.deregistration", "ucp.unmap.resources")
def test_unmapped_memory_goes_back_to_the_system(rig: Rig) -> None:
    """The address is free again when the memory has no views any more."""
    with addresses(2) as place:
        pass
    memh = rig.map(address=place.at, length=2 * PAGE, flags=ALLOCATE | FIXED)
    view = memh.array()
    view.fill(3)
    there = (ctypes.c_ubyte * 2)()
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    assert libc.mincore(place.at, 2 * PAGE, there) == 0
    memh.unmap()
    assert (view == 3).all()  # an array over it keeps it
    del view
    gc.collect()
    assert libc.mincore(place.at, 2 * PAGE, there) == -1  # ENOMEM: nothing is mapped there


@pytest.mark.clause("ucp.unmap.resources")
def test_mapping_and_unmapping_leaves_nothing_behind(rig: Rig) -> None:
    """100,000 pages pass through memory for far fewer, and the context lists no region of them."""
    for _ in range(1000):
        rig.alloc(100 * PAGE, nonblock=True).unmap()
    for _ in range(1000):
        rig.map(array()).unmap()
    assert "0 mapped" in repr(rig.context)


def test_zero_length_handle_may_be_unmapped_repeatedly(rig: Rig) -> None:
    memh = rig.map(length=0)
    for _ in range(3):
        memh.unmap()
        rig.context.mem_unmap(memh)
        with memh:
            pass
        assert not memh.unmapped
        assert memh.query().length == 0
        assert memh.pack()


@pytest.mark.clause("ucp.map.status")
def test_outcome_of_mapping_is_a_status(rig: Rig) -> None:
    """Success returns the handle; a failure is an exception that carries the status."""
    found = {}
    for name, call in {
        "fine": {"length": 10, "flags": ALLOCATE},
        "wrong": {"length": 10},
        "too much": {"length": 1 << 50, "flags": ALLOCATE},
    }.items():
        try:
            rig.map(**call).unmap()
            found[name] = OK
        except OSError as error:
            found[name] = error.status  # type: ignore[attr-defined]
    assert found == {"fine": 0, "wrong": -5, "too much": -4}


# ---- what Python has of a handle -------------------------------------------------------------------------------------


@pytest.mark.clause("ucp.type.memh-local", "ucp.map.local-info", "ucp.type.memh-remote", "ucp.map.remote-info")
def test_local_buffer_needs_no_key_and_remote_target_needs_one(rig: Rig) -> None:
    with rig.alloc() as source, rig.alloc() as target, rig.key(target) as rkey:
        source.memory[:5] = b"local"
        assert rig.put(source[:5], target.address, rkey) is OK  # no key of `source` was ever made
        assert ended(rig.ep.get_nbx(source[8:13], target.address, rkey)) is OK
        assert bytes(source.memory[8:13]) == b"local"
        with refused(INVALID_PARAM, "rkey is Region"):
            rig.ep.put_nbx(b"x", target.address, target)  # type: ignore[arg-type]


def test_memory_and_array_are_the_mapped_bytes_and_keep_them(rig: Rig) -> None:
    data = array(24)
    with rig.map(data) as memh:
        assert len(memh) == 24
        memh.memory[3] = 9
        assert data[3] == 9
        numbers = memh.array("u8")
        assert numbers.shape == (3,)
        assert memh.array("u4", (2, 2)).shape == (2, 2)
        with pytest.raises(TypeError):
            memh.array("u8", (4,))  # more than there is
    numbers[1] = 1
    assert data[8:16].view("u8")[0] == 1
    with rig.alloc() as memh:
        view = memh.memory
        view[0] = 77
    assert view[0] == 77  # unmapped, and there as long as it is looked at
