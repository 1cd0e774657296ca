"""ucp_put_nbx and ucp_get_nbx: every form of a local buffer, flags, rights, bounds."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ucp.support import (
    FORCE_IMM,
    INVALID_PARAM,
    IO_ERROR,
    NO_IMM,
    NO_RESOURCE,
    OK,
    PAGE,
    UNSUPPORTED,
    Rig,
    SilentPeer,
    array,
    ended,
    opened,
    refused,
)

from weft import ucp

IOV = ucp.DATATYPE_IOV
FAST, MULTI = int(ucp.OP_ATTR_FLAG_FAST_CMPL), int(ucp.OP_ATTR_FLAG_MULTI_SEND)
RIGHTS = {name: int(ucp.Prot[name]) for name in ("LOCAL_READ", "LOCAL_WRITE", "REMOTE_READ", "REMOTE_WRITE")}


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    with opened() as found:
        yield found


def bare(data: Any) -> tuple[int, int]:
    """(address, length) of an array."""
    return data.ctypes.data, data.nbytes


# ---- local buffers ---------------------------------------------------------------------------------------------------

FORMS: dict[str, Callable[[Rig, Any], Any]] = {
    "bytes": lambda rig, data: data.tobytes(),
    "bytearray": lambda rig, data: bytearray(data.tobytes()),
    "memoryview": lambda rig, data: memoryview(data),
    "array": lambda rig, data: data,
    "2-d float array": lambda rig, data: data.view(np.float32).reshape(2, -1),
    "address and length": lambda rig, data: bare(data),
    "slice of a handle": lambda rig, data: rig.map(data)[:],
    "memory of a handle": lambda rig, data: rig.map(data).memory,
}


@pytest.mark.clause("ucp.type.rkey-use", "ucp.type.memh-local", "ucp.map.local-info")
@pytest.mark.parametrize("nbytes", [8, 64, 4096, 1 << 20])
@pytest.mark.parametrize("form", FORMS)
def test_put_takes_every_form_of_buffer(rig: Rig, form: str, nbytes: int) -> None:
    data = (np.arange(nbytes) * 7 % 251).astype(np.uint8)
    with rig.alloc(nbytes + 16) as memh, rig.key(memh) as rkey:
        assert rig.put(FORMS[form](rig, data), memh.address + 8, rkey) is OK
        assert bytes(memh.memory[8 : nbytes + 8]) == data.tobytes()
        assert not any(memh.memory[:8])
        assert not any(memh.memory[nbytes + 8 :])


@pytest.mark.parametrize("nbytes", [8, 64, 4096, 1 << 20])
@pytest.mark.parametrize("form", [name for name in FORMS if name not in ("bytes", "bytearray")])
def test_get_fills_every_form_of_writable_buffer(rig: Rig, form: str, nbytes: int) -> None:
    data = array(nbytes)
    with rig.alloc(nbytes + 16) as memh, rig.key(memh) as rkey:
        memh.array()[:] = np.arange(memh.length) * 5 % 253
        buffer = FORMS[form](rig, data)
        assert ended(rig.ep.get_nbx(buffer, memh.address + 8, rkey)) is OK
        assert data.tobytes() == bytes(memh.memory[8 : nbytes + 8])


def test_put_get_within_the_process_work_for_any_allocation(rig: Rig) -> None:
    """Registered memory and allocated memory, in every combination of source and target."""
    for make1, make2 in itertools.product((rig.alloc, lambda: rig.map(array(PAGE))), repeat=2):
        with make1() as source, make2() as target, rig.key(target) as rkey:
            source.memory[:6] = b"source"
            assert rig.put(source[:6], target.address + 3, rkey) is OK
            assert bytes(target.memory[:12]) == b"\0\0\0source\0\0\0"
            assert ended(rig.ep.get_nbx(source[100:106], target.address + 3, rkey)) is OK
            assert bytes(source.memory[100:106]) == b"source"


def test_get_into_read_only_memory_is_refused(rig: Rig) -> None:
    locked = array(8)
    locked.flags.writeable = False
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for buffer in (b"12345678", memoryview(b"12345678"), locked):
            with refused(INVALID_PARAM, "read-only"):
                rig.ep.get_nbx(buffer, memh.address, rkey)
            with refused(INVALID_PARAM, "read-only"):
                rig.ep.get_nbx([bytearray(1), buffer], memh.address, rkey, datatype=IOV)
            assert rig.put(buffer, memh.address, rkey) is OK


def test_object_without_a_buffer_is_refused_with_a_reason(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for method in (rig.ep.put_nbx, rig.ep.get_nbx):
            for wrong in (5, "text", object()):
                with pytest.raises(TypeError, match="buffer"):
                    method(wrong, memh.address, rkey)
            with refused(INVALID_PARAM, "NULL"):
                method(None, memh.address, rkey)
            with refused(INVALID_PARAM, "contiguous"):
                method(np.zeros((8, 8))[:, 1], memh.address, rkey)
            with pytest.raises(TypeError, match=r"remote_addr|rkey"):
                method(bytearray(1))
            with pytest.raises(TypeError):
                method(bytearray(1), 1.5, rkey)
            for out_of_range in (-1, 1 << 64):
                with refused(INVALID_PARAM, f"remote_addr is {out_of_range}"):
                    method(bytearray(1), out_of_range, rkey)
        assert not any(memh.memory)


# ---- lists of buffers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 2, 8, 9, 20, 100])
def test_list_of_buffers_is_put_one_after_the_other_and_got_back(rig: Rig, pieces: int) -> None:
    """More buffers than the NIC takes in one descriptor, of all sizes and kinds, also empty."""
    data = [array(n % 7 * 5) for n in range(pieces)]
    for n, piece in enumerate(data):
        piece[:] = n + 1
    whole = b"".join(piece.tobytes() for piece in data)
    kinds = [lambda a: a, lambda a: a.tobytes(), bare, lambda a: rig.map(a)[:] if a.size else b""]
    with rig.alloc(len(whole) + 1) as memh, rig.key(memh) as rkey:
        buffers = [kinds[n % 4](piece) for n, piece in enumerate(data)]
        assert rig.put(buffers, memh.address, rkey, datatype=IOV) is OK
        assert bytes(memh.memory[: len(whole)]) == whole
        assert not any(memh.memory[len(whole) :])
        back = [array(piece.size) for piece in data]
        assert ended(rig.ep.get_nbx(back, memh.address, rkey, datatype=IOV)) is OK
        assert [a.tobytes() for a in back] == [a.tobytes() for a in data]


def test_count_of_a_list_is_of_its_buffers(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        assert rig.put([b"one", b"two", b"six"], memh.address, rkey, datatype=IOV, count=2) is OK
        assert bytes(memh.memory[:9]) == b"onetwo\0\0\0"
        with refused(INVALID_PARAM, "count is 4 and the list has 3"):
            rig.ep.put_nbx([b"one", b"two", b"six"], memh.address, rkey, datatype=IOV, count=4)
        for wrong in (5, object()):
            with pytest.raises(TypeError, match="list of buffers"):
                rig.ep.put_nbx(wrong, memh.address, rkey, datatype=IOV)


def test_list_without_bytes_is_done_with_any_key(rig: Rig) -> None:
    assert rig.ep.put_nbx([], 0, None, datatype=IOV) is ucp.DONE
    assert rig.ep.get_nbx([bytearray(0), (0, 0)], 0, None, datatype=IOV) is ucp.DONE


@pytest.mark.parametrize("pieces", [3, 8, 25])
def test_list_past_the_end_fails_and_changes_nothing(rig: Rig, pieces: int) -> None:
    """No buffer of the list is transferred, neither behind the end nor before it, although a long list is split."""
    data = array(256)
    with rig.map(data[:100]) as memh, rig.key(memh) as rkey:
        start = memh.address + 100 - pieces * 4 + 2
        assert rig.put([b"\xff" * 4] * pieces, start, rkey, datatype=IOV) is IO_ERROR
        assert not data.any()
        assert rig.put([b"\xff" * 4] * pieces, memh.address - 1, rkey, datatype=IOV) is IO_ERROR
        assert not data.any()
        data[:] = 7
        back = [array(4) for _ in range(pieces)]
        calls: list[int] = []
        request = rig.ep.get_nbx(back, start, rkey, datatype=IOV, cb=lambda request, status, _: calls.append(status))
        assert ended(request) is IO_ERROR
        with refused(IO_ERROR, "passes the end of the region"):
            request.result()
        rig.worker.progress()
        assert calls == [IO_ERROR]
        assert not any(piece.any() for piece in back)
        if pieces > 8:
            with refused(IO_ERROR, "passes the end of the region"):
                rig.ep.put_nbx([b"\xff" * 4] * pieces, start, rkey, datatype=IOV, flags=FORCE_IMM)
            assert (data == 7).all()
        assert rig.put([b"\xff" * 4] * pieces, start - 2, rkey, datatype=IOV) is OK


# ---- count and datatype ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "moved"),
    [
        ({}, 10),
        ({"count": 3}, 3),
        ({"count": 10}, 10),
        ({"count": 0}, 0),
        ({"datatype": ucp.dt_make_contig(1), "count": 4}, 4),
        ({"datatype": ucp.dt_make_contig(4), "count": 2}, 8),
        ({"datatype": ucp.dt_make_contig(4)}, 8),  # whole elements
        ({"datatype": ucp.dt_make_contig(10), "count": 1}, 10),
    ],
)
def test_count_is_of_elements_of_the_datatype(rig: Rig, more: dict[str, int], moved: int) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        assert rig.put(b"0123456789", memh.address, rkey, **more) is OK
        assert bytes(memh.memory[:11]) == b"0123456789"[:moved].ljust(11, b"\0")
        back = bytearray(b"." * 10)
        assert ended(rig.ep.get_nbx(back, memh.address, rkey, **more)) is OK
        assert back == b"0123456789"[:moved].ljust(10, b".")


@pytest.mark.parametrize(
    "more",
    [
        {"count": 11},
        {"count": 3, "datatype": ucp.dt_make_contig(4)},
        {"count": 1, "datatype": ucp.dt_make_contig(11)},
        {"count": (1 << 64) - 1, "datatype": ucp.dt_make_contig(8)},
        {"count": 1 << 62, "datatype": ucp.dt_make_contig(8)},
    ],
)
def test_count_past_the_end_of_the_buffer_is_invalid(rig: Rig, more: dict[str, int]) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for method in (rig.ep.put_nbx, rig.ep.get_nbx):
            with refused(INVALID_PARAM, "passes the end of a buffer of 10 B"):
                method(bytearray(10), memh.address, rkey, **more)


@pytest.mark.parametrize("datatype", [1, 4, 7])
def test_datatypes_of_other_classes_are_unsupported(rig: Rig, datatype: int) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey, refused(UNSUPPORTED, f"class {datatype}"):
        rig.ep.put_nbx(b"x", memh.address, rkey, datatype=datatype)


# ---- no bytes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [0, NO_IMM, FAST])
@pytest.mark.parametrize("buffer", [b"", bytearray(0), (0, 0), (1, 0)])
def test_transfer_of_no_bytes_is_done_with_any_key(rig: Rig, flags: int, buffer: Any) -> None:
    """Without a callback, and with NO_IMM_CMPL too."""
    calls: list[Any] = []
    for remote, rkey in ((0, None), ((1 << 64) - 1, 5)):
        for method in (rig.ep.put_nbx, rig.ep.get_nbx):
            if method == rig.ep.get_nbx and buffer == b"":
                buffer = bytearray(0)
            assert method(buffer, remote, rkey, flags=flags, cb=calls.append) is ucp.DONE
    rig.worker.progress()
    assert calls == []


def test_transfer_of_no_bytes_still_needs_endpoint_and_feature(rig: Rig) -> None:
    ep = rig.worker.ep_create(rig.worker.address)
    ep.close()
    with refused(INVALID_PARAM, "endpoint is closed"):
        ep.put_nbx(b"", 0, None)
    with opened(int(ucp.FEATURE_AMO64)) as plain, refused(INVALID_PARAM, "feature RMA"):
        plain.ep.get_nbx(bytearray(0), 0, None)


# ---- flags -----------------------------------------------------------------------------------------------------------


def test_load_and_store_complete_in_place_without_a_callback(rig: Rig) -> None:
    """C's NULL is false, and always the same object."""
    calls: list[Any] = []
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for flags in (0, FAST, FORCE_IMM):
            request = rig.ep.put_nbx(b"in place", memh.address, rkey, flags=flags, cb=calls.append)
            assert request is ucp.DONE
            assert not request
            assert bytes(memh.memory[:8]) == b"in place"
            memh.memory[:8] = bytes(8)
        assert rig.ep.get_nbx(bytearray(8), memh.address, rkey, cb=calls.append) is ucp.DONE
        for _ in range(3):
            rig.worker.progress()
    assert calls == []


@pytest.mark.parametrize("nbytes", [1, 8, 4096, 1 << 20])
def test_no_imm_cmpl_is_always_a_request_whose_callback_comes(rig: Rig, nbytes: int) -> None:
    calls: list[Any] = []
    with rig.alloc(nbytes) as memh, rig.key(memh) as rkey:
        for method in (rig.ep.put_nbx, rig.ep.get_nbx):
            request = method(bytearray(nbytes), memh.address, rkey, flags=NO_IMM, cb=lambda *a: calls.append(a))
            assert request
            assert request is not ucp.DONE
            assert ended(request) is OK
            assert calls.pop() == (request, OK, None)
            assert not calls


def test_force_imm_cmpl_of_a_get_is_always_no_resource(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        memh.memory[0] = 9
        back = bytearray(1)
        for datatype, buffer in ((None, back), (IOV, [back])):
            with refused(NO_RESOURCE, "FORCE_IMM_CMPL"):
                rig.ep.get_nbx(buffer, memh.address, rkey, flags=FORCE_IMM, datatype=datatype)
        assert back == b"\0"


@pytest.mark.procs
def test_force_imm_cmpl_to_an_unconnected_peer_is_no_resource(rig: Rig, silent: SilentPeer) -> None:
    with rig.worker.ep_create(silent.address) as ep, ep.rkey_unpack(silent.key) as rkey:
        with refused(NO_RESOURCE, "without FORCE_IMM_CMPL"):
            ep.put_nbx(b"x", rkey.address, rkey, flags=FORCE_IMM)
        assert ep.under_way() == 0


def test_fast_and_multi_exclude_each_other(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for method in (rig.ep.put_nbx, rig.ep.get_nbx):
            with refused(INVALID_PARAM, "FAST_CMPL and MULTI_SEND"):
                method(bytearray(1), memh.address, rkey, flags=FAST | MULTI)
            assert ended(method(bytearray(1), memh.address, rkey, flags=MULTI)) is OK


def test_flags_of_the_struct_and_of_the_call_add_up(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        param = ucp.RequestParam(FAST)
        with refused(INVALID_PARAM, "exclude"):
            rig.ep.put_nbx(b"x", memh.address, rkey, param, flags=MULTI)
        assert rig.ep.put_nbx(b"x", memh.address, rkey, param, flags=NO_IMM)
        rig.flush()


def test_context_without_rma_transfers_nothing() -> None:
    with opened(int(ucp.FEATURE_AMO64)) as rig, rig.alloc() as memh, rig.key(memh) as rkey:
        for method in (rig.ep.put_nbx, rig.ep.get_nbx):
            with refused(INVALID_PARAM, "without the feature RMA"):
                method(bytearray(8), memh.address, rkey)
        assert ended(rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, 1, memh.address, rkey)) is OK


# ---- the local handle ------------------------------------------------------------------------------------------------


def test_memh_names_the_handle_of_the_local_buffer(rig: Rig) -> None:
    data = array(100)
    with rig.map(data) as local, rig.alloc() as memh, rig.key(memh) as rkey:
        data[:] = 65
        for buffer in (data, data[50:], bare(data[99:]), memoryview(data)[3:9], local[10:20], local.memory[:1]):
            assert rig.put(buffer, memh.address, rkey, memh=local) is OK
            assert ended(rig.ep.get_nbx(buffer, memh.address, rkey, memh=local)) is OK
        assert rig.put([data[:3], data[5:7]], memh.address + 200, rkey, memh=local, datatype=IOV) is OK
        assert bytes(memh.memory[200:206]) == b"AAAAA\0"


def test_buffer_outside_of_its_memh_is_invalid(rig: Rig) -> None:
    data = array(100)
    with rig.map(data[10:90]) as local, rig.alloc() as memh, rig.key(memh) as rkey:
        for buffer in (data, data[9:20], data[80:91], bytearray(4), bare(data[90:91]), memh[:4]):
            for method in (rig.ep.put_nbx, rig.ep.get_nbx):
                with refused(INVALID_PARAM, "does not lie in"):
                    method(buffer, memh.address, rkey, memh=local)
                with refused(INVALID_PARAM, "does not lie in"):
                    method([data[20:30], buffer], memh.address, rkey, memh=local, datatype=IOV)
        with refused(INVALID_PARAM, "does not lie in"):
            rig.ep.put_nbx(b"x", memh.address, rkey, memh=rig.map(length=0))


@pytest.mark.clause("ucp.enum.prot-local-read", "ucp.enum.prot-local-write", "ucp.map.prot")
@pytest.mark.parametrize("how", ["slice", "memh", "list of slices", "list with memh"])
@pytest.mark.parametrize("prot", range(4))
def test_local_rights_are_needed_of_the_handle_that_is_used(rig: Rig, prot: int, how: str) -> None:
    """A put reads its buffer, a get writes to it."""
    with rig.alloc() as memh, rig.key(memh) as rkey, rig.alloc(prot=prot) as local:
        buffer: Any = local.memory[:8] if "memh" in how else local[:8]
        more: dict[str, Any] = {"memh": local} if "memh" in how else {}
        if "list" in how:
            buffer, more = [buffer], {**more, "datatype": IOV}
        for method, right in ((rig.ep.put_nbx, "LOCAL_READ"), (rig.ep.get_nbx, "LOCAL_WRITE")):
            if prot & RIGHTS[right]:
                assert ended(method(buffer, memh.address, rkey, **more)) is OK
            else:
                with refused(INVALID_PARAM, right):
                    method(buffer, memh.address, rkey, **more)


# ---- rights and bounds at the target ---------------------------------------------------------------------------------


@pytest.mark.clause("ucp.enum.prot-remote-read", "ucp.enum.prot-remote-write", "ucp.map.prot", "ucp.map.prot-unset")
@pytest.mark.parametrize("prot", [sum(s) for n in range(5) for s in itertools.combinations(RIGHTS.values(), n)])
@pytest.mark.parametrize("allocated", [False, True])
def test_remote_rights_decide_what_a_peer_may_do(rig: Rig, prot: int, allocated: bool) -> None:
    """UCX ignores the rights. Local rights do not grant remote access."""
    memh = rig.alloc(prot=prot) if allocated else rig.map(array(), prot=prot)
    with memh, rig.key(memh) as rkey:
        may_read, may_write = bool(prot & 0x100), bool(prot & 0x200)
        view = (ctypes.c_char * 8).from_address(memh.address)
        view.raw = b"original"
        assert rig.put(b"NEW", memh.address, rkey) is (OK if may_write else IO_ERROR)
        assert view.raw == (b"NEWginal" if may_write else b"original")
        back = bytearray(8)
        assert ended(rig.ep.get_nbx(back, memh.address, rkey)) is (OK if may_read else IO_ERROR)
        assert back == (view.raw if may_read else bytes(8))


@given(data=st.data())
def test_access_inside_the_region_works_and_outside_is_refused(shared: Rig, data: st.DataObject) -> None:
    """Compared with a model: an access within the region works; any other is an error and changes nothing."""
    start, length = 64, data.draw(st.integers(1, 128), label="length of the region")
    around = array(256)
    around[:] = np.arange(256)
    with shared.map(around[start : start + length]) as memh, shared.key(memh) as rkey:
        for _ in range(5):
            at = data.draw(st.integers(0, 255), label="from")
            count = data.draw(st.integers(1, 256 - at), label="bytes")
            inside = start <= at and at + count <= start + length
            before = around.copy()
            back = bytearray(b"\xaa" * count)
            get = ended(shared.ep.get_nbx(back, around.ctypes.data + at, rkey))
            assert get is (OK if inside else IO_ERROR)
            assert back == (before[at : at + count].tobytes() if inside else b"\xaa" * count)
            put = shared.put(b"\x55" * count, around.ctypes.data + at, rkey)
            assert put is (OK if inside else IO_ERROR)
            if inside:
                before[at : at + count] = 0x55
            assert (around == before).all()


@pytest.mark.parametrize("allocated", [False, True])
def test_access_before_behind_and_across_the_ends_is_refused(rig: Rig, allocated: bool) -> None:
    """Also addresses that wrap around the address space."""
    memh = rig.alloc() if allocated else rig.map(array(PAGE))
    with memh, rig.key(memh) as rkey:
        base, end = memh.address, memh.address + PAGE
        last = (1 << 64) - 1
        cases = [
            (base - 1, 1),
            (base - 1, 2),
            (end, 1),
            (end - 1, 2),
            (0, 1),
            (0, 8),
            (last, 1),
            (last, 8),
            (base, PAGE + 1),
        ]
        for remote, count in [*cases, (base - 8, PAGE + 16), (base + (1 << 30), 1), (base ^ 1 << 63, 1)]:
            for flags in (0, NO_IMM):
                request = rig.ep.put_nbx(b"\xff" * count, remote, rkey, flags=flags)
                with refused(IO_ERROR, "the region"):
                    request.wait(30)
                with refused(IO_ERROR):
                    rig.ep.get_nbx(bytearray(count), remote, rkey, flags=flags).wait(30)
        assert not any((ctypes.c_char * PAGE).from_address(base).raw)
        assert rig.put(b"fine", base, rkey) is OK  # the endpoint has not failed
        assert rig.ep.status is OK


def test_error_of_refused_access_has_request_and_finding(rig: Rig) -> None:
    with rig.map(array(100), prot=0x303) as memh, rig.key(memh) as rkey:
        request = rig.ep.put_nbx(b"12345", memh.address + 98, rkey)
        assert request
        assert ended(request) is IO_ERROR
        for part in ("write of 5 B", hex(memh.address + 98), "the region has 100 B", "REMOTE_READ REMOTE_WRITE"):
            with refused(IO_ERROR, part):
                request.result()


def test_buffer_is_held_until_the_operation_is_over(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        data = bytearray(8)
        rig.ep.put_nbx(data, memh.address, rkey)
        data.extend(b"done in place: not held")
