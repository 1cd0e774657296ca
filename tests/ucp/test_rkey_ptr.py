"""ucp_rkey_ptr: a local pointer to a peer's memory, here of the process itself."""

from __future__ import annotations

import ctypes
import gc

import pytest
from tests.fakes import gpu as fake
from tests.ucp.support import INVALID_ADDR, IO_ERROR, OK, PAGE, UNREACHABLE, Addresses, Rig, array, refused

from weft import ucp


@pytest.mark.clause("ucp.ptr.function", "ucp.ptr.access", "ucp.ptr.shared-memory")
def test_pointer_is_direct_access_to_the_remote_memory(rig: Rig) -> None:
    """Loads see what the peer stored, stores are seen by the peer, at once and without progress."""
    with rig.alloc(2 * PAGE) as memh, rig.key(memh) as rkey:
        memh.memory[PAGE : PAGE + 4] = b"peer"
        pointer = rkey.ptr(memh.address + PAGE)
        assert isinstance(pointer, int)
        assert ctypes.string_at(pointer, 4) == b"peer"
        ctypes.memmove(pointer + 4, b"mine", 4)
        assert bytes(memh.memory[PAGE + 4 : PAGE + 8]) == b"mine"
        assert rkey.ptr(memh.address) == pointer - PAGE
        assert rkey.ptr(memh.address + 2 * PAGE - 1) == pointer + PAGE - 1
        assert rig.get(8, memh.address + PAGE, rkey) == b"peermine"


def test_view_is_the_same_as_bytes_and_outlives_key_and_region(rig: Rig) -> None:
    with rig.alloc() as memh:
        with rig.key(memh) as rkey:
            view = rkey.view(memh.address + 100, 16)
            assert (len(view), view.readonly) == (16, False)
            view[:4] = b"view"
            assert bytes(memh.memory[100:104]) == b"view"
            assert len(rkey.view(memh.address, PAGE)) == PAGE
            assert len(rkey.view(memh.address + PAGE - 1, 0)) == 0
        assert bytes(view[:4]) == b"view"
    gc.collect()
    assert bytes(view[:4]) == b"view"


@pytest.mark.clause("ucp.ptr.raddr", "ucp.ptr.bad-address")
def test_address_outside_of_the_region_is_not_valid(rig: Rig) -> None:
    """UCX computes a pointer for any address."""
    with rig.alloc() as memh, rig.key(memh) as rkey:
        base = memh.address
        for raddr in (base - 1, base + PAGE, 0, base + (1 << 30), -1, (1 << 64) - 1):
            with refused(INVALID_ADDR, "do not lie within"):
                rkey.ptr(raddr)
        for raddr, length in ((base, PAGE + 1), (base + PAGE - 1, 2), (base - 1, 2), (base + PAGE, 0), (base, -1)):
            with refused(INVALID_ADDR, "do not lie within"):
                rkey.view(raddr, length)
        assert rkey.ptr(base)


@pytest.mark.clause("ucp.ptr.no-direct")
def test_pointer_would_grant_writing_that_the_region_does_not(rig: Rig) -> None:
    with rig.alloc(prot=0x103) as memh, rig.key(memh) as rkey:
        with refused(UNREACHABLE, "rkey.view"):
            rkey.ptr(memh.address)
        view = rkey.view(memh.address, 8)
        assert view.readonly
        memh.memory[0] = 5
        assert view[0] == 5
    for prot in (0x203, 0x003):
        with rig.alloc(prot=prot) as memh, rig.key(memh) as rkey:
            for call in (rkey.ptr, lambda raddr: rkey.view(raddr, 1)):
                with refused(UNREACHABLE, "REMOTE"):
                    call(memh.address)


@pytest.mark.clause("ucp.ptr.no-direct")
def test_memory_that_may_be_missing_is_not_pointed_to(rig: Rig) -> None:
    place = Addresses(2)
    place.back(0, 1)
    with rig.map(address=place.at, length=2 * PAGE) as memh, rig.key(memh) as rkey, refused(UNREACHABLE):
        rkey.ptr(memh.address)
    place.close()


def test_zero_length_key_has_no_pointer(rig: Rig) -> None:
    with rig.ep.rkey_unpack(rig.map(length=0).pack()) as rkey:
        for raddr in (0, 1):
            with refused(INVALID_ADDR):
                rkey.ptr(raddr)


def test_key_that_the_owner_refuses_has_no_pointer(rig: Rig, other: Rig) -> None:
    with rig.alloc() as memh:
        stale, good = rig.key(memh), rig.key(memh)
        assert good.ptr(memh.address)
    with refused(IO_ERROR):
        stale.ptr(stale.address)
    with other.alloc() as memh, rig.key(memh) as foreign, refused(IO_ERROR):
        foreign.ptr(memh.address)


def test_rkey_ptr_works_for_any_memory_of_this_process(rig: Rig) -> None:
    data = array()
    with rig.map(data) as memh, rig.key(memh) as rkey:
        ctypes.memset(rkey.ptr(memh.address + 10), 7, 4)
    assert data[8:16].tolist() == [0, 0, 7, 7, 7, 7, 0, 0]


def test_pointer_is_had_on_a_key_s_first_use_and_again(rig: Rig) -> None:
    """The call connects the endpoint if nothing was posted before."""
    with (
        rig.alloc() as memh,
        rig.context.worker_create() as worker,
        rig.worker.ep_create(worker.address) as ep,
        ep.rkey_unpack(memh.pack()) as rkey,
    ):
        first = rkey.ptr(memh.address)
        assert rkey.ptr(memh.address) == first
        assert "0 operations under way" in repr(ep)


@pytest.fixture(scope="module")
def gpu() -> fake.Gpu:
    return fake.start()


@pytest.mark.clause("ucp.ptr.no-direct")
def test_memory_of_a_device_is_not_pointed_to(gpu: fake.Gpu, rig: Rig) -> None:
    data = gpu.array(PAGE)
    with rig.map(data) as memh, rig.key(memh) as rkey:
        assert rig.put(b"x", memh.address, rkey) is OK
        with refused(UNREACHABLE, "load and store"):
            rkey.ptr(memh.address)
    data.free()


def test_pointer_key_is_an_ordinary_key(rig: Rig) -> None:
    """Operations and the pointer see one another's bytes."""
    with rig.alloc() as memh, rig.key(memh) as rkey:
        pointer = rkey.ptr(memh.address)
        ctypes.c_uint64.from_address(pointer).value = 41
        rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, memh.address, rkey)
        rig.flush()
        assert ctypes.c_uint64.from_address(pointer).value == 42
