"""ucp_mem_map: the matrix of flags, the order of the checks, registered memory."""

from __future__ import annotations

import array as arrays
import ctypes
import gc
import itertools
import mmap
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.fi.support import opened as fi_opened
from tests.ucp.map_support import addresses, works
from tests.ucp.support import (
    ALL_RIGHTS,
    ALLOCATE,
    FIXED,
    INVALID_PARAM,
    IO_ERROR,
    NO_MEMORY,
    NONBLOCK,
    OK,
    PAGE,
    Rig,
    array,
    ended,
    mapped_text,
    refused,
)

from weft import ucp

# ---- the matrix ------------------------------------------------------------------------------------------------------

ROWS = {  # (ALLOCATE, FIXED, address given) of a length above 0: the result, and the clauses
    (0, 0, 0): (INVALID_PARAM, "ucp.matrix.none-null"),
    (1, 0, 0): ("allocated", "ucp.matrix.allocate-null", "ucp.matrix.means-alloc", "ucp.map.address-null"),
    (0, 1, 0): (INVALID_PARAM, "ucp.matrix.fixed-null"),
    (0, 0, 1): ("registered", "ucp.matrix.none-address", "ucp.matrix.means-register", "ucp.map.address"),
    (1, 1, 0): (NO_MEMORY, "ucp.matrix.allocate-fixed-null"),
    (1, 0, 1): ("hint", "ucp.matrix.allocate-address", "ucp.matrix.means-hint", "ucp.enum.allocate-address"),
    (0, 1, 1): (INVALID_PARAM, "ucp.matrix.fixed-address"),
    (1, 1, 1): ("fixed", "ucp.matrix.allocate-fixed-address", "ucp.matrix.means-fixed", "ucp.enum.fixed"),
}


def rows() -> list[Any]:
    out = []
    for (allocate, fixed, given), (result, *clauses) in ROWS.items():
        ids = [*clauses, "ucp.matrix.nonblock"]
        if isinstance(result, ucp.Status):
            ids.append("ucp.matrix.means-error")
        for nonblock, how in itertools.product((0, 1), ("set",) if given else ("null", "unset")):
            flags = nonblock * NONBLOCK | allocate * ALLOCATE | fixed * FIXED
            name = f"{'NONBLOCK ' * nonblock}{'ALLOCATE ' * allocate}{'FIXED ' * fixed}address {how}"
            out.append(pytest.param(flags, how, result, id=name, marks=pytest.mark.clause(*ids)))
    return out


def params_of(flags: int, how: str, address: int, length: int) -> ucp.MemMapParams:
    mask = ucp.MEM_MAP_PARAM_FIELD_LENGTH | ucp.MEM_MAP_PARAM_FIELD_FLAGS
    if how != "unset":
        mask |= ucp.MEM_MAP_PARAM_FIELD_ADDRESS
    return ucp.MemMapParams(mask, address if how == "set" else 0, length, flags)


@pytest.mark.parametrize(("flags", "how", "result"), rows())
def test_matrix_row_with_a_length_above_zero(rig: Rig, flags: int, how: str, result: Any) -> None:
    length = PAGE + 100
    with addresses(4, backed=result == "registered") as place:
        if result == "hint":
            place.close()  # a free address is good
        params = params_of(flags, how, place.at + PAGE, length)
        if isinstance(result, ucp.Status):
            with refused(result, "mem_map"):
                rig.map(params)
            return
        with rig.map(params) as memh:
            if result == "registered":
                assert (memh.address, memh.length) == (place.at + PAGE, length)
            else:
                assert memh.address % PAGE == 0
                assert memh.address != 0
                assert memh.length == 2 * PAGE
                assert not any(memh.memory)
            if result in ("hint", "fixed"):
                assert memh.address == place.at + PAGE
            works(rig, memh)


@pytest.mark.parametrize("how", ["set", "null", "unset"])
@pytest.mark.parametrize("flags", range(16))
def test_matrix_row_of_length_zero_is_the_zero_length_handle(rig: Rig, flags: int, how: str) -> None:
    """Whatever the flags and the address: the length is looked at before them (UCX: "error if length > 0")."""
    memh = rig.map(params_of(flags, how, 3 * PAGE, 0))
    assert (memh.address, memh.length, memh.memory_type) == (0, 0, ucp.MEMORY_TYPE_HOST)


# ---- the order of the checks -----------------------------------------------------------------------------------------


def test_missing_length_is_reported_before_other_errors(rig: Rig) -> None:
    params = ucp.MemMapParams(1 | 4, PAGE + 1, 0, FIXED)
    with refused(INVALID_PARAM, "length"):
        rig.map(params)


@pytest.mark.clause("ucp.enum.fixed-page")
@pytest.mark.parametrize("length", [0, 1, PAGE])
@pytest.mark.parametrize("flags", [FIXED, FIXED | ALLOCATE, FIXED | ALLOCATE | NONBLOCK])
def test_mem_map_fixed_unaligned_address_is_invalid(rig: Rig, flags: int, length: int) -> None:
    """Even with a length of 0."""
    for address in (1, PAGE - 1, 7 * PAGE + 8):
        with refused(INVALID_PARAM, f"multiple of the page size, {PAGE}"):
            rig.map(params_of(flags, "set", address, length))


def test_mem_map_exported_handle_excludes_allocation_unread(rig: Rig) -> None:
    for length in (0, PAGE):
        with refused(INVALID_PARAM, "imported, not allocated"):
            rig.map(ucp.MemMapParams(2 | 4 | 0x20, 0, length, ALLOCATE, exported_memh_buffer=b"garbage"))


def test_exported_handle_of_null_counts_as_not_given(rig: Rig) -> None:
    memh = rig.map(ucp.MemMapParams(0x20))
    assert memh.length == 0
    with refused(INVALID_PARAM, "allocate"):
        rig.map(ucp.MemMapParams(0x22, length=10))
    with rig.map(ucp.MemMapParams(0x26, length=10, flags=ALLOCATE)) as memh:
        assert memh.length == PAGE


@pytest.mark.parametrize(
    ("address", "length"), [((1 << 64) - PAGE, PAGE + 1), (1 << 64, 1), (PAGE, 1 << 64), (PAGE, -1), (-1, 8)]
)
def test_memory_past_the_end_of_the_address_space_is_invalid(rig: Rig, address: int, length: int) -> None:
    with refused(INVALID_PARAM, "address space"):
        rig.map(address=address, length=length)


def test_unknown_flags_and_rights_are_ignored(rig: Rig) -> None:
    with rig.map(array(), flags=1 << 20, prot=ALL_RIGHTS | 1 << 30) as memh:
        assert memh.prot == ALL_RIGHTS
        works(rig, memh)
    with rig.map(array(), prot=1 << 30) as memh:
        assert memh.prot == 0


# ---- registered memory -----------------------------------------------------------------------------------------------


@pytest.mark.clause("ucp.map.function", "ucp.map.memh", "ucp.map.registration", "ucp.type.memh-opaque")
def test_mem_map_returns_a_handle_and_admits_its_key_alone(rig: Rig) -> None:
    """No key reaches memory before it is mapped, also no key of adjacent memory."""
    data = array(256)
    with rig.map(data[:128]) as first, rig.key(first) as rkey:
        assert isinstance(first, ucp.MemHandle)
        assert rig.put(b"x", first.address + 128, rkey) is IO_ERROR
        assert not data.any()
        with rig.map(data[128:]) as second, rig.key(second) as more:
            assert rig.put(b"y", second.address, more) is OK
    assert data.tolist() == [0] * 128 + [ord("y")] + [0] * 127


@pytest.mark.clause("ucp.map.address", "ucp.map.length", "ucp.attr.address", "ucp.attr.length")
@pytest.mark.parametrize(("offset", "length"), [(0, 64), (13, 1001), (1, 1), (4095, 2)])
def test_registration_keeps_exactly_the_address_and_length(rig: Rig, offset: int, length: int) -> None:
    data = array(PAGE * 2)
    at = data.ctypes.data + offset
    with rig.map(address=at, length=length) as memh, rig.key(memh) as rkey:
        attr = memh.query()
        assert (attr.address, attr.length) == (at, length)
        assert rig.put(b"x" * length, at, rkey) is OK
        assert rig.put(b"x", at - 1, rkey) is IO_ERROR
        assert rig.put(b"x", at + length, rkey) is IO_ERROR
        assert np.flatnonzero(data).tolist() == list(range(offset, offset + length))


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(64),
        lambda: memoryview(bytearray(80))[16:],
        lambda: np.zeros((4, 4), np.float32),
        lambda: arrays.array("d", [0.0] * 8),
        lambda: mmap.mmap(-1, 64),
        lambda: (ctypes.c_uint64 * 8)(),
    ],
    ids=["bytearray", "memoryview", "numpy", "array", "mmap", "ctypes"],
)
def test_any_buffer_is_registered_where_it_is(rig: Rig, make: Callable[[], Any]) -> None:
    data = make()
    with rig.map(data) as memh, rig.key(memh) as rkey:
        assert memh.length == 64
        assert rig.put(b"\x01\x02", memh.address + 62, rkey) is OK
        assert bytes(memoryview(data).cast("B"))[62:] == b"\x01\x02"


@pytest.mark.parametrize("length", [64, 10, 1])
def test_buffer_may_be_mapped_in_part(rig: Rig, length: int) -> None:
    data = array()
    for buffer in (data, bytearray(64), (data.ctypes.data, 64)):
        with rig.map(buffer, length=length) as memh:
            assert memh.length == length
            works(rig, memh)


@pytest.mark.parametrize("length", [65, -1, 1 << 64])
def test_length_past_the_end_of_a_buffer_is_invalid(rig: Rig, length: int) -> None:
    for buffer in (array(), (array().ctypes.data, 64)):
        with refused(INVALID_PARAM, "64 B"):
            rig.map(buffer, length=length)


@pytest.mark.parametrize(
    "more", [{"allocate": True}, {"flags": FIXED}, {"address": 4096}, {"exported_memh_buffer": b""}]
)
def test_buffer_excludes_fields_of_addresses(rig: Rig, more: dict[str, Any]) -> None:
    with refused(INVALID_PARAM, "registered in place"):
        rig.map(array(), **more)


def test_object_without_buffer_is_a_type_error(rig: Rig) -> None:
    for wrong in ("text", 5, [1, 2], object()):
        with pytest.raises(TypeError, match="buffer"):
            rig.map(wrong)
    with pytest.raises(TypeError, match="mem_map"):
        rig.map(unknown=1)
    with pytest.raises(TypeError, match="mem_map"):
        rig.map(*range(20))
    with refused(INVALID_PARAM, "contiguous"):
        rig.map(np.zeros((8, 8))[:, 1])


@pytest.mark.parametrize("pair", [(0, 64), ((1 << 64) - 8, 64)])
def test_pair_of_address_and_length_is_checked_as_the_fields_are(rig: Rig, pair: tuple[int, int]) -> None:
    with refused(INVALID_PARAM):
        rig.map(pair)


def test_buffer_of_no_bytes_is_the_zero_length_handle(rig: Rig) -> None:
    for memh in (rig.map(b""), rig.map(array(), length=0), rig.map(np.zeros((0, 8)))):
        assert memh.query() == ucp.MemAttr(7, 0, 0, ucp.MEMORY_TYPE_HOST)


def test_mapped_buffer_is_held_until_it_is_unmapped(rig: Rig) -> None:
    """A bytearray cannot be resized under its region; an array lives as long as the region does."""
    data = bytearray(64)
    memh = rig.map(data)
    with pytest.raises(BufferError):
        data.extend(b"more")
    memh.unmap()
    data.extend(b"more")
    owner = array()
    gone = weakref.ref(owner)
    memh = rig.map(owner)
    del owner
    gc.collect()
    assert gone() is not None
    works(rig, memh)
    memh.unmap()
    gc.collect()
    assert gone() is None


def test_read_only_buffer_needs_rights_that_only_read(rig: Rig) -> None:
    reading = int(ucp.MEM_MAP_PROT_LOCAL_READ | ucp.MEM_MAP_PROT_REMOTE_READ)
    locked = array(8)
    locked[:] = 99
    locked.flags.writeable = False
    for data in (b"constant", memoryview(b"constant"), locked):
        for prot in (None, ALL_RIGHTS, int(ucp.MEM_MAP_PROT_REMOTE_WRITE), int(ucp.MEM_MAP_PROT_LOCAL_WRITE)):
            with refused(INVALID_PARAM, "read-only"):
                rig.map(data, prot=prot)
        with rig.map(data, prot=reading) as memh, rig.key(memh) as rkey:
            before = bytes(memoryview(data))
            assert rig.get(8, memh.address, rkey) == before
            assert rig.put(b"x", memh.address, rkey) is IO_ERROR
            assert bytes(memoryview(data)) == before


@pytest.mark.clause("ucp.map.several-stacks")
def test_one_segment_is_mapped_by_several_stacks(rig: Rig, other: Rig) -> None:
    """Two contexts and a libfabric domain map the memory at the same time, each with its own key."""
    data = array()
    with fi_opened() as node:
        mr = node.reg(data, requested_key=1)
        with rig.map(data) as one, other.map(data) as two, rig.key(one) as rkey1, other.key(two) as rkey2:
            assert mr.address == one.address == two.address
            assert rig.put(b"one", one.address, rkey1) is OK
            assert other.put(b"two", two.address + 3, rkey2) is OK
            node.ep.write(b"three", dest_addr=node.me, addr=6, key=1)
            node.wait()
            assert bytes(data[:11]) == b"onetwothree"


@pytest.mark.clause("ucp.map.sub-region")
def test_handle_serves_every_part_of_its_memory(rig: Rig) -> None:
    data = array(1000)
    with rig.map(data) as memh, rig.key(memh) as rkey, rig.alloc() as target, rig.key(target) as to:
        data[:] = np.arange(1000) % 251
        for start, stop in ((0, 1), (0, 1000), (999, 1000), (137, 613)):
            part = memh[start:stop]
            assert rig.put(part, target.address, to) is OK
            assert rig.get(stop - start, target.address, to) == data[start:stop].tobytes()
            assert rig.get(stop - start, memh.address + start, rkey) == data[start:stop].tobytes()
            assert rig.put(data[start:stop], target.address, to, memh=memh) is OK


def test_overlapping_regions_close_in_any_order(rig: Rig) -> None:
    data = array(300)
    for order in itertools.permutations(range(3)):
        regions = [rig.map(data[:200]), rig.map(data[100:]), rig.map(data[50:250])]
        keys = [rig.key(memh) for memh in regions]
        for turn, gone in enumerate(order):
            regions[gone].unmap()
            for i in range(3):
                expected = IO_ERROR if i in order[: turn + 1] else OK
                assert rig.status_of_get(1, data.ctypes.data + 150, keys[i]) is expected
        for key in keys:
            key.destroy()


def test_same_region_twice_is_two_handles_that_end_apart(rig: Rig) -> None:
    data = array()
    one, two = rig.map(data), rig.map(data)
    assert one is not two
    with rig.key(one) as rkey1, rig.key(two) as rkey2:
        one.unmap()
        assert rig.put(b"x", data.ctypes.data, rkey1) is IO_ERROR
        assert rig.put(b"y", data.ctypes.data, rkey2) is OK
    two.unmap()
    assert data[0] == ord("y")


@pytest.mark.clause("ucp.map.no-cpu")
def test_data_moves_without_the_target_s_worker(rig: Rig) -> None:
    """The target never progresses, never waits, and receives no notice."""
    with ucp.Context(features=0) as context, context.worker_create() as idle:
        memh = context.mem_map(length=PAGE, allocate=True)
        with rig.worker.ep_create(idle.address) as ep, ep.rkey_unpack(memh.pack()) as rkey:
            assert ended(ep.put_nbx(b"there", memh.address, rkey)) is OK
            assert bytes(memh.memory[:5]) == b"there"
            back = bytearray(5)
            assert ended(ep.get_nbx(back, memh.address, rkey)) is OK
            assert back == b"there"
            assert idle.progress() == 0


# ---- addresses without memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", [0x1000, (1 << 47) - PAGE, (1 << 64) - PAGE])
def test_mem_map_of_an_unmapped_address_fails_at_access(rig: Rig, address: int) -> None:
    """Mapping touches no pages."""
    with rig.map(address=address, length=PAGE) as memh, rig.key(memh) as rkey:
        assert (memh.address, memh.length) == (address, PAGE)
        assert rig.put(b"x", address, rkey) is IO_ERROR
        assert rig.status_of_get(PAGE, address, rkey) is IO_ERROR
        assert ended(rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, address, rkey, reply_buffer=bytearray(8))) is IO_ERROR


def test_pages_may_go_missing_under_a_bare_address(rig: Rig) -> None:
    """Existing pages are reached; missing pages give an error, never a crash; pages that return are reached again."""
    with addresses(4) as place, rig.map(address=place.at, length=place.nbytes) as memh, rig.key(memh) as rkey:
        assert rig.put(b"x", place.at, rkey) is IO_ERROR
        place.back()
        for page in range(4):
            assert rig.put(b"there", place.at + page * PAGE, rkey) is OK
            assert rig.get(5, place.at + page * PAGE, rkey) == b"there"
        place.unback(2, 2)
        assert rig.put(b"x", place.at + 3 * PAGE, rkey) is IO_ERROR
        assert rig.status_of_get(16, place.at + 2 * PAGE - 8, rkey) is IO_ERROR
        with refused(IO_ERROR, "no memory behind that address"):
            rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, place.at + 2 * PAGE, rkey)
            rig.flush()
        assert rig.get(5, place.at, rkey) == b"there"


def test_page_that_may_only_be_read_is_an_error_to_write(rig: Rig) -> None:
    at = mapped_text()
    before = ctypes.string_at(at, 8)
    with rig.map(address=at, length=8) as memh, rig.key(memh) as rkey:
        assert rig.get(8, at, rkey) == before
        assert rig.put(b"x" * 8, at, rkey) is IO_ERROR
    assert ctypes.string_at(at, 8) == before
