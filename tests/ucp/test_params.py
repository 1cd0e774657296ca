"""Field masks: a field is used if its bit is set, and is ignored otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ucp.support import (
    ALL_RIGHTS,
    ALLOCATE,
    FIXED,
    INVALID_PARAM,
    IO_ERROR,
    NO_IMM,
    OK,
    PAGE,
    UNSUPPORTED,
    Rig,
    array,
    ended,
    opened,
    refused,
    slot,
)

from weft import ucp

GARBAGE = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(), st.binary(), st.builds(object), st.just(1 << 70), st.just(-1)
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Rig]:
    """One rig for all examples of a property."""
    with opened() as found:
        yield found


def filled(params: Any, mask: int, garbage: list[Any], fields: dict[int, str]) -> Any:
    """The struct with garbage in every field whose bit is not in the mask."""
    for (bit, name), value in zip(fields.items(), garbage, strict=True):
        if not mask & bit:
            setattr(params, name, value)
    return params


# ---- ucp_mem_map_params ----------------------------------------------------------------------------------------------

MAP_FIELDS = {
    1: "address",
    2: "length",
    4: "flags",
    8: "prot",
    0x10: "memory_type",
    0x20: "exported_memh_buffer",
}


@pytest.mark.clause(
    "ucp.map.field-mask", "ucp.map.field-mask-ignore", "ucp.map.prot-unset", "ucp.map.flags-unset",
    "ucp.map.exported-unset",
)  # fmt: skip
@given(optional=st.integers(0, 7), garbage=st.lists(GARBAGE, min_size=6, max_size=6))
def test_mem_map_field_without_its_bit_is_ignored(shared: Rig, optional: int, garbage: list[Any]) -> None:
    """address and length are given; flags, prot and memory_type at times."""
    data = array(100)
    mask = 0b11 | optional << 2
    params = ucp.MemMapParams(mask, data.ctypes.data, 100, 0, 0x101, ucp.MEMORY_TYPE_HOST)
    with shared.context.mem_map(filled(params, mask, garbage, MAP_FIELDS)) as memh:
        assert (memh.address, memh.length) == (data.ctypes.data, 100)
        assert memh.prot == (0x101 if mask & ucp.MEM_MAP_PARAM_FIELD_PROT else ALL_RIGHTS)
        assert memh.memory_type == ucp.MEMORY_TYPE_HOST


@pytest.mark.clause("ucp.map.address-unset", "ucp.enum.map-field-address")
@given(garbage=GARBAGE)
def test_mem_map_address_without_its_bit_is_ignored(shared: Rig, garbage: Any) -> None:
    params = ucp.MemMapParams(2 | 4, garbage, 10, ALLOCATE)
    with shared.context.mem_map(params) as memh:
        assert memh.address != 0
        assert memh.length == PAGE
        memh.memory[9] = 1


@pytest.mark.clause("ucp.map.length-mandatory", "ucp.enum.map-field-length", "ucp.map.length")
@given(garbage=GARBAGE, mask=st.integers(0, 0x1F).filter(lambda mask: not mask & 2))
def test_length_without_its_bit_is_an_error(shared: Rig, garbage: Any, mask: int) -> None:
    params = ucp.MemMapParams(mask, PAGE, garbage, ALLOCATE)
    with refused(INVALID_PARAM, "length"):
        shared.context.mem_map(params)


@pytest.mark.clause("ucp.map.flags-unset", "ucp.enum.map-field-flags", "ucp.map.flags")
@given(garbage=GARBAGE)
def test_flags_without_their_bit_count_as_zero(shared: Rig, garbage: Any) -> None:
    """Without ALLOCATE there is no memory to map at NULL, and with an address FIXED has no effect."""
    with refused(INVALID_PARAM, "allocate"):
        shared.context.mem_map(ucp.MemMapParams(2, 0, 10, garbage))
    data = array()
    with shared.context.mem_map(ucp.MemMapParams(3, data.ctypes.data + 1, 10, ALLOCATE | FIXED)) as memh:
        assert (memh.address, memh.length) == (data.ctypes.data + 1, 10)


@pytest.mark.clause("ucp.enum.map-field-prot", "ucp.map.prot", "ucp.map.prot-unset")
def test_prot_counts_with_its_bit_and_is_all_four_rights_without(rig: Rig) -> None:
    data = array()
    params = ucp.MemMapParams(1 | 2, data.ctypes.data, 64, prot=int(ucp.MEM_MAP_PROT_REMOTE_READ))
    with rig.map(params) as memh, rig.key(memh) as rkey:
        assert memh.prot == ALL_RIGHTS
        assert rig.put(b"x", memh.address, rkey) is OK
    params.field_mask |= ucp.MEM_MAP_PARAM_FIELD_PROT
    with rig.map(params) as memh, rig.key(memh) as rkey:
        assert memh.prot == ucp.MEM_MAP_PROT_REMOTE_READ
        assert rig.put(b"y", memh.address, rkey) is IO_ERROR
        assert rig.get(1, memh.address, rkey) == b"x"


@pytest.mark.clause("ucp.enum.map-field-memory-type", "ucp.map.memory-type")
def test_memory_type_counts_with_its_bit(rig: Rig) -> None:
    """No library of UCX allocates memory of this type."""
    params = ucp.MemMapParams(2 | 4, 0, 64, ALLOCATE, memory_type=int(ucp.MEMORY_TYPE_GAUDI))
    with rig.map(params) as memh:
        assert memh.query().mem_type == ucp.MEMORY_TYPE_HOST
    params.field_mask |= ucp.MEM_MAP_PARAM_FIELD_MEMORY_TYPE
    with refused(ucp.Status.ERR_NO_MEMORY, "gaudi"):
        rig.map(params)


@pytest.mark.clause("ucp.enum.map-field-exported", "ucp.map.exported-unset")
def test_exported_buffer_counts_with_its_bit_and_is_null_without(rig: Rig) -> None:
    data = array()
    params = ucp.MemMapParams(1 | 2, data.ctypes.data, 64, exported_memh_buffer=b"no handle")
    with rig.map(params) as memh:
        assert memh.address == data.ctypes.data
    params.field_mask |= ucp.MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER
    with refused(INVALID_PARAM, "exported handle"):
        rig.map(params)


def test_unknown_bits_of_a_field_mask_are_ignored(rig: Rig) -> None:
    data = array()
    with rig.map(ucp.MemMapParams(3 | 1 << 40, data.ctypes.data, 64)) as memh:
        assert memh.length == 64
        attr = memh.query(ucp.MemAttr(2 | 1 << 40))
        assert (attr.address, attr.length) == (0, 64)
        rig.context.mem_advise(memh, ucp.MemAdviseParams(7 | 1 << 40, memh.address, 1, ucp.MADV_NORMAL))
        assert memh.pack(ucp.MemhPackParams(1 << 40)) == memh.pack()


def test_field_mask_has_64_bits(rig: Rig) -> None:
    data = array()
    with rig.map(ucp.MemMapParams(3 | 1 << 63, data.ctypes.data, 64)) as memh:
        assert memh.length == 64
    for mask in (1 << 64, 3 | 1 << 64, -1):
        with refused(INVALID_PARAM, f"field_mask is {mask};"):
            rig.map(ucp.MemMapParams(mask, data.ctypes.data, 64))


@pytest.mark.clause("ucp.map.params", "ucp.map.field-mask")
def test_struct_and_keywords_map_the_same(rig: Rig) -> None:
    data = array()
    at = data.ctypes.data
    struct = ucp.MemMapParams(0b1011, at, 64, prot=0x101)
    with rig.map(struct) as one, rig.map(address=at, length=64, prot=0x101) as two:
        assert (one.address, one.length, one.prot) == (two.address, two.length, two.prot) == (at, 64, 0x101)


@pytest.mark.parametrize("more", [{"length": 5}, {"prot": 1}, {"address": 0}, {"allocate": True}, {"nonblock": True}])
def test_struct_and_keywords_together_are_a_type_error(rig: Rig, more: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="not both"):
        rig.map(ucp.MemMapParams(2, length=10), **more)


# ---- the other structs ----------------------------------------------------------------------------------------------


@pytest.mark.clause("ucp.pack.params", "ucp.pack.field-mask", "ucp.pack.field-mask-ignore", "ucp.enum.pack-field-flags")
@given(garbage=GARBAGE)
def test_pack_flags_without_their_bit_are_ignored(shared: Rig, garbage: Any) -> None:
    data = array()
    with shared.map(data) as memh:
        assert memh.pack(ucp.MemhPackParams(0, garbage)) == memh.pack()
        exported = memh.pack(ucp.MemhPackParams(ucp.MEMH_PACK_PARAM_FIELD_FLAGS, ucp.MEMH_PACK_FLAG_EXPORT))
        assert exported != memh.pack()
        with refused(INVALID_PARAM, "exported handle"):
            shared.ep.rkey_unpack(exported)


@pytest.mark.clause("ucp.attr.params", "ucp.attr.field-mask", "ucp.attr.field-mask-ignore")
@given(mask=st.integers(0, 7), garbage=st.lists(GARBAGE, min_size=3, max_size=3))
def test_query_fills_the_fields_asked_for_and_no_others(shared: Rig, mask: int, garbage: list[Any]) -> None:
    data = array()
    with shared.map(data) as memh:
        attr = ucp.MemAttr(mask, *garbage)
        assert memh.query(attr) is attr
        expected = [data.ctypes.data, 64, ucp.MEMORY_TYPE_HOST]
        found = [attr.address, attr.length, attr.mem_type]
        for i in range(3):
            if mask & 1 << i:
                assert found[i] == expected[i]
            else:
                assert found[i] is garbage[i]
        assert attr.field_mask == mask


@pytest.mark.clause("ucp.advise.params", "ucp.advise.field-mask", "ucp.advise.all-mandatory")
@pytest.mark.clause("ucp.enum.advise-field-address", "ucp.enum.advise-field-length", "ucp.enum.advise-field-advice")
@pytest.mark.parametrize("mask", range(8))
def test_advise_needs_all_three_fields(rig: Rig, mask: int) -> None:
    with rig.alloc() as memh:
        params = ucp.MemAdviseParams(mask, memh.address, PAGE, ucp.MADV_WILLNEED)
        if mask == 7:
            rig.context.mem_advise(memh, params)
        else:
            with refused(INVALID_PARAM, "mandatory"):
                rig.context.mem_advise(memh, params)


@pytest.mark.clause("ucp.release.params", "ucp.release.field-mask", "ucp.release.all-mandatory")
@pytest.mark.parametrize("params", [None, ucp.MemhBufferReleaseParams(), ucp.MemhBufferReleaseParams(0)])
def test_release_takes_its_struct_which_has_no_fields_yet(rig: Rig, params: ucp.MemhBufferReleaseParams | None) -> None:
    """The struct has no mandatory fields, so an empty mask is complete."""
    with rig.alloc() as memh:
        packed = memh.pack()
        ucp.memh_buffer_release(packed, params)
        with refused(INVALID_PARAM, "released"):
            rig.ep.rkey_unpack(packed)


@pytest.mark.clause("ucp.compare.params", "ucp.compare.field-mask-zero")
def test_compare_takes_its_struct_whose_mask_has_to_be_zero(rig: Rig) -> None:
    with rig.alloc() as memh, rig.key(memh) as one, rig.key(memh) as two:
        assert rig.worker.rkey_compare(one, two, ucp.RkeyCompareParams()) == 0
        assert rig.worker.rkey_compare(one, two, None) == 0
        for mask in (1, 1 << 63):
            with refused(INVALID_PARAM, "field_mask"):
                rig.worker.rkey_compare(one, two, ucp.RkeyCompareParams(mask))


def test_context_needs_features_in_its_struct() -> None:
    with refused(INVALID_PARAM, "features"):
        ucp.Context(ucp.Params(0, features=int(ucp.FEATURE_RMA)))
    with ucp.Context(ucp.Params(ucp.PARAM_FIELD_FEATURES, features=2, name="ignored")) as context:
        assert context.features == ucp.FEATURE_RMA
        assert context.name == ""
    with ucp.Context(ucp.Params(0x101, features=2, name="named")) as context:
        assert context.name == "named"


@pytest.mark.parametrize("features", [1, 0x20, 0x40, 0x100, 1 << 20, -1])
def test_unsupported_features_are_refused(features: int) -> None:
    with refused(UNSUPPORTED, "features"):
        ucp.Context(features=features)
    with refused(UNSUPPORTED, "FEATURE_RMA"):
        ucp.Context(ucp.Params(ucp.PARAM_FIELD_FEATURES, features))


@given(garbage=st.lists(GARBAGE, min_size=9, max_size=9))
def test_worker_fields_without_their_bits_are_ignored(shared: Rig, garbage: list[Any]) -> None:
    with shared.context.worker_create(ucp.WorkerParams(0, *garbage)) as worker:
        assert worker.thread_mode == ucp.THREAD_MODE_SINGLE
        assert worker.name == ""
        assert worker.user_data is None


def test_worker_takes_thread_mode_name_and_user_data(rig: Rig) -> None:
    mask = ucp.WORKER_PARAM_FIELD_THREAD_MODE | ucp.WORKER_PARAM_FIELD_NAME | ucp.WORKER_PARAM_FIELD_USER_DATA
    params = ucp.WorkerParams(mask, thread_mode=2, name="w", user_data="mine")
    with rig.context.worker_create(params) as worker:
        assert (worker.thread_mode, worker.name, worker.user_data) == (ucp.THREAD_MODE_MULTI, "w", "mine")
    with refused(INVALID_PARAM, "thread mode 3"):
        rig.context.worker_create(thread_mode=3)
    with refused(UNSUPPORTED, "get_efd"):
        rig.context.worker_create(ucp.WorkerParams(ucp.WORKER_PARAM_FIELD_EVENT_FD, event_fd=3))


@pytest.mark.parametrize("handler", ["a name", 5, b""])
def test_error_handler_is_a_function(rig: Rig, handler: Any) -> None:
    with pytest.raises(TypeError, match="err_handler must be a function or None, not "):
        rig.worker.ep_create(address=rig.worker.address, err_handler=handler)


@given(garbage=st.lists(GARBAGE, min_size=8, max_size=8))
def test_endpoint_fields_without_their_bits_are_ignored(shared: Rig, garbage: list[Any]) -> None:
    params = ucp.EpParams(1, shared.worker.address, *garbage)
    with shared.worker.ep_create(params) as ep:
        assert ep.name == ""
        assert ep.user_data is None
    with refused(INVALID_PARAM, "no address"):
        shared.worker.ep_create(ucp.EpParams(0, shared.worker.address))


@pytest.mark.parametrize("bit", [0x10, 0x40, 0x100])
def test_ep_create_from_socket_or_conn_request_is_unsupported(rig: Rig, bit: int) -> None:
    with refused(UNSUPPORTED, "REMOTE_ADDRESS"):
        rig.worker.ep_create(ucp.EpParams(1 | bit, rig.worker.address))


@given(garbage=st.lists(GARBAGE, min_size=9, max_size=9))
def test_operation_fields_without_their_bits_are_ignored(shared: Rig, garbage: list[Any]) -> None:
    """ucp_request_param_t; `flags` of an operation are bits of op_attr_mask."""
    with shared.alloc() as memh, shared.key(memh) as rkey:
        param = ucp.RequestParam(0, *garbage)
        request = shared.ep.put_nbx(b"data", memh.address, rkey, param)
        assert ended(request) is OK
        param.op_attr_mask = int(ucp.OP_ATTR_FLAG_NO_IMM_CMPL)
        back = bytearray(4)
        assert ended(shared.ep.get_nbx(back, memh.address, rkey, param)) is OK
        assert back == b"data"


def test_operation_fields_with_their_bits_count(rig: Rig) -> None:
    calls: list[Any] = []
    with rig.alloc() as memh, rig.key(memh) as rkey:
        memh.array("u8")[0] = 7
        reply = slot(0)
        param = ucp.RequestParam(
            int(0x2 | 0x4 | 0x8 | 0x20 | 0x100 | NO_IMM),
            cb=lambda request, status, user_data: calls.append((status, user_data)),
            user_data="mine",
            datatype=ucp.dt_make_contig(8),
            reply_buffer=reply,
            memh=memh,
        )
        operand = memh.memory[64:72]
        operand[:] = slot(5)
        assert ended(rig.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, operand, memh.address, rkey, param)) is OK
        assert reply == slot(7)
        assert memh.array("u8")[0] == 12
        assert calls == [(OK, "mine")]
        param.op_attr_mask = 0x100
        with refused(INVALID_PARAM, "does not lie in"):
            rig.ep.put_nbx(b"not there", memh.address, rkey, param)


def test_numbers_of_numpy_are_numbers(rig: Rig) -> None:
    data = array()
    with rig.map(address=np.uint64(data.ctypes.data), length=np.int32(64), prot=np.uint32(0x101)) as memh:
        assert (memh.address, memh.length, memh.prot) == (data.ctypes.data, 64, 0x101)
    for wrong in ({"length": 1.5}, {"length": "8"}, {"length": 8, "address": 2.5}):
        with pytest.raises(TypeError):
            rig.map(allocate=True, **wrong)
