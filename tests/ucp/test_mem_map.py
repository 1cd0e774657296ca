"""ucp_mem_map and ucp_mem_unmap: the matrix, the order of the checks, where memory lies and what is in it."""

from __future__ import annotations

import array as arrays
import contextlib
import ctypes
import gc
import itertools
import mmap
import resource
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.fakes import gpu as fake
from tests.fi.support import libc
from tests.fi.support import opened as fi_opened
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
    SYMMETRIC,
    UNSUPPORTED,
    Addresses,
    Rig,
    array,
    ended,
    mapped_text,
    refused,
    resident,
)

from weft import _process, errors, fi, ucp
from weft.ucp import mem, placement


@contextlib.contextmanager
def addresses(pages: int, *, backed: bool = False) -> Iterator[Addresses]:
    """Reserved addresses; with pages behind them where `backed`."""
    found = Addresses(pages)
    if backed:
        found.back()
    try:
        yield found
    finally:
        found.close()


def works(rig: Rig, memh: ucp.MemHandle) -> None:
    """Both ends of the memory are reached by a remote key, and one byte further is not; atomics update it."""
    with rig.key(memh) as rkey:
        word = -memh.address % 8  # the first aligned one
        if word + 8 <= memh.length:
            before = ctypes.c_uint64.from_address(memh.address + word)
            expected = (before.value + 5) % (1 << 64)
            assert rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 5, memh.address + word, rkey) is ucp.DONE
            rig.flush()
            assert before.value == expected
            rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, -5, memh.address + word, rkey)
            rig.flush()
        last = memh.address + memh.length - 1
        assert rig.put(b"F", memh.address, rkey) is OK
        assert rig.put(b"L", last, rkey) is OK
        assert ctypes.string_at(memh.address, memh.length)[:1] == (b"L" if memh.length == 1 else b"F")
        assert ctypes.string_at(last, 1) == b"L"
        assert rig.get(1, last, rkey) == b"L"
        assert rig.put(b"x", last + 1, rkey) is IO_ERROR


# ---- the matrix ------------------------------------------------------------------------------------------------------

ROWS = {  # (ALLOCATE, FIXED, address given) of a length above 0: what comes of it, and the clauses
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
            place.close()  # a free address is a good one
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


def test_missing_length_is_told_before_anything_else(rig: Rig) -> None:
    params = ucp.MemMapParams(1 | 4, PAGE + 1, 0, FIXED)
    with refused(INVALID_PARAM, "length"):
        rig.map(params)


@pytest.mark.clause("ucp.enum.fixed-page")
@pytest.mark.parametrize("length", [0, 1, PAGE])
@pytest.mark.parametrize("flags", [FIXED, FIXED | ALLOCATE, FIXED | ALLOCATE | NONBLOCK])
def test_fixed_address_that_is_no_multiple_of_the_page_size_is_invalid(rig: Rig, flags: int, length: int) -> None:
    """Even with a length of 0."""
    for address in (1, PAGE - 1, 7 * PAGE + 8):
        with refused(INVALID_PARAM, f"multiple of the page size, {PAGE}"):
            rig.map(params_of(flags, "set", address, length))


def test_exported_handle_excludes_allocation_before_it_is_looked_at(rig: Rig) -> None:
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


# ---- what is registered ----------------------------------------------------------------------------------------------


@pytest.mark.clause("ucp.map.function", "ucp.map.memh", "ucp.map.registration", "ucp.type.memh-opaque")
def test_mapping_opens_memory_to_remote_keys_and_returns_its_handle(rig: Rig) -> None:
    """Before it is mapped no key reaches the memory; a key of its neighbour does not either."""
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
def test_buffer_excludes_what_is_said_of_addresses(rig: Rig, more: dict[str, Any]) -> None:
    with refused(INVALID_PARAM, "registered where it is"):
        rig.map(array(), **more)


def test_what_is_no_buffer_is_a_type_error(rig: Rig) -> None:
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
    """Two contexts and a libfabric domain, at the same time; each by a key of its own."""
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


def test_overlapping_regions_live_side_by_side_and_end_in_any_order(rig: Rig) -> None:
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
    """The target never progresses, never waits, and is told of nothing."""
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
    """Nothing is touched by mapping."""
    with rig.map(address=address, length=PAGE) as memh, rig.key(memh) as rkey:
        assert (memh.address, memh.length) == (address, PAGE)
        assert rig.put(b"x", address, rkey) is IO_ERROR
        assert rig.status_of_get(PAGE, address, rkey) is IO_ERROR
        assert ended(rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, address, rkey, reply_buffer=bytearray(8))) is IO_ERROR


def test_pages_may_go_missing_under_a_bare_address(rig: Rig) -> None:
    """What is there is reached; what is not is an error, never a crash; what comes back is reached again."""
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


# ---- what is allocated -----------------------------------------------------------------------------------------------


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
    """PROT_NONE, and private memory that nobody has touched."""
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
    """Unlike UCX, which replaces them silently. One touched page among reserved ones is enough."""
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
    """Touched or not: its peers were promised these pages."""
    with addresses(4, backed=True) as place:
        with rig.map(address=place.at + PAGE, length=PAGE, prot=prot, flags=NONBLOCK) as live:
            for first, count in ((0, 4), (1, 1), (0, 2), (1, 2)):
                with refused(NO_MEMORY, "a region that is mapped"):
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
def test_type_of_registered_memory_is_found_whatever_is_said(rig: Rig, memory_type: ucp.MemoryType) -> None:
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
def test_cuda_memory_is_registered_as_what_it_is(gpu: fake.Gpu, rig: Rig, kind: str, memory_type: int) -> None:
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
            with refused(INVALID_PARAM, "no memory handle"):
                rig.context.mem_unmap(wrong)  # type: ignore[arg-type]


@pytest.mark.clause("ucp.unmap.deregistration", "ucp.unmap.resources")
def test_unmapped_memory_goes_back_to_the_system(rig: Rig) -> None:
    """The address is free again, once nobody looks at the memory any more."""
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


def test_zero_length_handle_may_be_unmapped_as_often_as_one_likes(rig: Rig) -> None:
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
def test_handle_is_enough_locally_and_a_remote_key_is_needed_remotely(rig: Rig) -> None:
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
