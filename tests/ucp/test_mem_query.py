"""ucp_mem_query."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ucp.support import INVALID_PARAM, PAGE, Rig, array, refused

from weft import ucp


@pytest.mark.clause(
    "ucp.query.function", "ucp.query.fills", "ucp.attr.address", "ucp.attr.length", "ucp.attr.mem-type",
    "ucp.enum.attr-field-address", "ucp.enum.attr-field-length", "ucp.enum.attr-field-mem-type",
)  # fmt: skip
def test_memh_query_returns_address_length_and_type(rig: Rig) -> None:
    data = array(1001)
    with rig.map(data) as memh:
        assert memh.query(ucp.MemAttr(1)) == ucp.MemAttr(1, data.ctypes.data, 0, ucp.MEMORY_TYPE_UNKNOWN)
        assert memh.query(ucp.MemAttr(2)) == ucp.MemAttr(2, 0, 1001, ucp.MEMORY_TYPE_UNKNOWN)
        assert memh.query(ucp.MemAttr(4)) == ucp.MemAttr(4, 0, 0, ucp.MEMORY_TYPE_HOST)
        assert memh.query() == ucp.MemAttr(7, data.ctypes.data, 1001, ucp.MEMORY_TYPE_HOST)


@pytest.mark.clause("ucp.map.address-null", "ucp.query.function")
def test_query_tells_where_allocated_memory_lies(rig: Rig) -> None:
    """The address that the library chose, and the rounded length."""
    with rig.alloc(5000) as memh:
        attr = memh.query(ucp.MemAttr(3))
        assert attr.length == 2 * PAGE
        memh.memory[0] = 8
        assert np.ctypeslib.as_array((np.ctypeslib.ctypes.c_ubyte * 1).from_address(attr.address))[0] == 8


def test_query_without_fields_fills_nothing(rig: Rig) -> None:
    with rig.alloc() as memh:
        assert memh.query(ucp.MemAttr(0, 5, 6, 7)) == ucp.MemAttr(0, 5, 6, 7)


def test_query_of_the_zero_length_handle_is_null_zero_and_host(rig: Rig) -> None:
    assert rig.map(length=0).query() == ucp.MemAttr(7, 0, 0, ucp.MEMORY_TYPE_HOST)


@pytest.mark.clause("ucp.query.status")
def test_outcome_of_a_query_is_a_status(rig: Rig) -> None:
    memh = rig.alloc()
    assert memh.query().length == PAGE
    memh.unmap()
    attr = ucp.MemAttr(7, 1, 2, 3)
    with refused(INVALID_PARAM, "unmapped"):
        memh.query(attr)
    assert attr == ucp.MemAttr(7, 1, 2, 3)
