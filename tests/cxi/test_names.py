"""weft.cxi has the names of fi_cxi_ext.h, with their numbers."""

from __future__ import annotations

import sys

import pytest
from tests import patience

from weft import cxi, fi

FLAGS = {
    "CNTR_EVENTS_BYTES": 1,
    "CNTR_CACHED": 1 << 32,
    "TRUNC": 1 << 56,
    "PCIE_AMO": 1 << 57,
    "PRE_REDUCED": 1 << 57,
    "HRP": 1 << 60,
    "UNRELIABLE": 1 << 61,
    "CNTR_WB": 1 << 62,
    "WEAK_FENCE": 1 << 63,
    "CNTR_SUCCESS_MAX": 0xFFFFFFFFFFFF,
    "CNTR_FAILURE_MAX": 127,
    "NIC_ATTR_VER": 1,
}
OPTIONS = [
    "OPT_CXI_SET_TCLASS",
    "OPT_CXI_SET_MSG_ORDER",
    "OPT_CXI_NIC_REFRESH_ATTR",
    "OPT_CXI_SET_MR_MATCH_EVENTS",
    "OPT_CXI_GET_MR_MATCH_EVENTS",
    "OPT_CXI_SET_OPTIMIZED_MRS",
    "OPT_CXI_GET_OPTIMIZED_MRS",
    "OPT_CXI_SET_PROV_KEY_CACHE",
    "OPT_CXI_GET_PROV_KEY_CACHE",
    "OPT_CXI_SET_RNR_MAX_RETRY_TIME",
    "OPT_CXI_SET_RX_MATCH_MODE_OVERRIDE",
    "OPT_CXI_GET_RX_MATCH_MODE_OVERRIDE",
    "OPT_CXI_SET_REQ_BUF_SIZE_OVERRIDE",
    "OPT_CXI_GET_REQ_BUF_SIZE_OVERRIDE",
    "OPT_CXI_GET_RNR_APPEND_RETRY_ATTEMPTS",
]
NUMBERS = {
    "MINMAXLOC": 32,
    "REPSUM": 33,
    "OP_LAST": 34,
    "ERRNO_RED_FIRST": 1024,
    "ERRNO_RED_FLT_OVERFLOW": 1024,
    "ERRNO_RED_OP_MISMATCH": 1028,
    "COLL_RC_RDMA_FAILURE": 1030,
    "ERRNO_RED_OTHER": 1032,
    "ERRNO_JOIN_FIRST": 2048,
    "ERRNO_JOIN_MCAST_INUSE": 2048,
    "ERRNO_JOIN_FAIL_RDMA": 2057,
    "ERRNO_JOIN_LAST": 2091,
    "COMM_KEY_NONE": 0,
    "COMM_KEY_RANK": 3,
    "C_RC_OK": 1,
    "C_RC_UNDELIVERABLE": 2,
    "C_RC_ENTRY_NOT_FOUND": 18,
    "C_RC_VNI_NOT_FOUND": 25,
    "C_RC_PTLTE_NOT_FOUND": 26,
    "C_RC_TRS_PEND_RSP": 62,
}


@pytest.mark.parametrize(("name", "value"), [*FLAGS.items(), *NUMBERS.items()])
def test_name_has_the_number_of_the_header(name: str, value: int) -> None:
    assert getattr(cxi, name) == value


def test_options_follow_each_other_from_their_base() -> None:
    """FI_PROV_SPECIFIC_CXI: -(0xccc << 16), and one more each."""
    assert [getattr(cxi, name) for name in OPTIONS] == list(range(-214695936, -214695936 + len(OPTIONS)))


def test_options_have_the_spelling_of_the_document_too() -> None:
    assert cxi.OPT_CXI_SET_OPTIMIZED == cxi.OPT_CXI_SET_OPTIMIZED_MRS == -214695931
    assert cxi.OPT_CXI_GET_OPTIMIZED == cxi.OPT_CXI_GET_OPTIMIZED_MRS == -214695930


def test_operations_have_the_names_that_open_ops_takes() -> None:
    assert [getattr(cxi, f"DOM_OPS_{n}") for n in range(1, 7)] == [f"dom_ops_v{n}" for n in range(1, 7)]
    assert (cxi.COUNTER_OPS, cxi.SET_OPS_HMEM_OVERRIDE) == ("cxi_counter_ops", "hmem_override_ops")


def test_flags_combine_with_those_of_libfabric_and_print_by_name() -> None:
    assert repr(fi.DELIVERY_COMPLETE | cxi.HRP) == "fi.DELIVERY_COMPLETE | cxi.HRP"
    assert str(cxi.UNRELIABLE | fi.MORE) == "MORE|UNRELIABLE"
    assert repr(cxi.OPT_CXI_SET_TCLASS) == "cxi.OPT_CXI_SET_TCLASS"
    assert repr(cxi.OpFlag(0)) == "cxi.OpFlag(0)"


def test_every_public_name_exists_once() -> None:
    assert len(cxi.__all__) == len(set(cxi.__all__))
    for name in cxi.__all__:
        assert getattr(cxi, name) is not None


def test_module_is_reached_from_the_package() -> None:
    program = "import weft; print(weft.cxi.HRP)"
    done = patience.run([sys.executable, "-c", program], check=True, timeout=100)
    assert done.stdout.strip() == "HRP"
