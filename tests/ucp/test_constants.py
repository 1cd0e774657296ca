"""UCX's numbers, literal: from its headers, not from the module under test."""

from __future__ import annotations

import enum

import pytest

from weft import ucp

NUMBERS = {
    "MEM_MAP_PARAM_FIELD_ADDRESS": 1,
    "MEM_MAP_PARAM_FIELD_LENGTH": 2,
    "MEM_MAP_PARAM_FIELD_FLAGS": 4,
    "MEM_MAP_PARAM_FIELD_PROT": 8,
    "MEM_MAP_PARAM_FIELD_MEMORY_TYPE": 0x10,
    "MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER": 0x20,
    "MEM_MAP_NONBLOCK": 1,
    "MEM_MAP_ALLOCATE": 2,
    "MEM_MAP_FIXED": 4,
    "MEM_MAP_SYMMETRIC_RKEY": 8,
    "MEM_MAP_PROT_LOCAL_READ": 1,
    "MEM_MAP_PROT_LOCAL_WRITE": 2,
    "MEM_MAP_PROT_REMOTE_READ": 0x100,
    "MEM_MAP_PROT_REMOTE_WRITE": 0x200,
    "MEM_ADVISE_PARAM_FIELD_ADDRESS": 1,
    "MEM_ADVISE_PARAM_FIELD_LENGTH": 2,
    "MEM_ADVISE_PARAM_FIELD_ADVICE": 4,
    "MADV_NORMAL": 0,
    "MADV_WILLNEED": 1,
    "MEMH_PACK_PARAM_FIELD_FLAGS": 1,
    "MEMH_PACK_FLAG_EXPORT": 1,
    "MEM_ATTR_FIELD_ADDRESS": 1,
    "MEM_ATTR_FIELD_LENGTH": 2,
    "MEM_ATTR_FIELD_MEM_TYPE": 4,
    "FEATURE_TAG": 1,
    "FEATURE_RMA": 2,
    "FEATURE_AMO32": 4,
    "FEATURE_AMO64": 8,
    "FEATURE_WAKEUP": 0x10,
    "FEATURE_STREAM": 0x20,
    "FEATURE_AM": 0x40,
    "FEATURE_EXPORTED_MEMH": 0x80,
    "PARAM_FIELD_FEATURES": 1,
    "PARAM_FIELD_REQUEST_SIZE": 2,
    "PARAM_FIELD_REQUEST_INIT": 4,
    "PARAM_FIELD_REQUEST_CLEANUP": 8,
    "PARAM_FIELD_TAG_SENDER_MASK": 0x10,
    "PARAM_FIELD_MT_WORKERS_SHARED": 0x20,
    "PARAM_FIELD_ESTIMATED_NUM_EPS": 0x40,
    "PARAM_FIELD_ESTIMATED_NUM_PPN": 0x80,
    "PARAM_FIELD_NAME": 0x100,
    "PARAM_FIELD_NODE_LOCAL_ID": 0x200,
    "WORKER_PARAM_FIELD_THREAD_MODE": 1,
    "WORKER_PARAM_FIELD_CPU_MASK": 2,
    "WORKER_PARAM_FIELD_EVENTS": 4,
    "WORKER_PARAM_FIELD_USER_DATA": 8,
    "WORKER_PARAM_FIELD_EVENT_FD": 0x10,
    "WORKER_PARAM_FIELD_FLAGS": 0x20,
    "WORKER_PARAM_FIELD_NAME": 0x40,
    "WORKER_PARAM_FIELD_AM_ALIGNMENT": 0x80,
    "WORKER_PARAM_FIELD_CLIENT_ID": 0x100,
    "EP_PARAM_FIELD_REMOTE_ADDRESS": 1,
    "EP_PARAM_FIELD_ERR_HANDLING_MODE": 2,
    "EP_PARAM_FIELD_ERR_HANDLER": 4,
    "EP_PARAM_FIELD_USER_DATA": 8,
    "EP_PARAM_FIELD_SOCK_ADDR": 0x10,
    "EP_PARAM_FIELD_FLAGS": 0x20,
    "EP_PARAM_FIELD_CONN_REQUEST": 0x40,
    "EP_PARAM_FIELD_NAME": 0x80,
    "EP_PARAM_FIELD_LOCAL_SOCK_ADDR": 0x100,
    "ERR_HANDLING_MODE_NONE": 0,
    "ERR_HANDLING_MODE_PEER": 1,
    "EP_CLOSE_FLAG_FORCE": 1,
    "THREAD_MODE_SINGLE": 0,
    "THREAD_MODE_SERIALIZED": 1,
    "THREAD_MODE_MULTI": 2,
    "ATOMIC_OP_ADD": 0,
    "ATOMIC_OP_SWAP": 1,
    "ATOMIC_OP_CSWAP": 2,
    "ATOMIC_OP_AND": 3,
    "ATOMIC_OP_OR": 4,
    "ATOMIC_OP_XOR": 5,
    "OP_ATTR_FIELD_REQUEST": 1,
    "OP_ATTR_FIELD_CALLBACK": 2,
    "OP_ATTR_FIELD_USER_DATA": 4,
    "OP_ATTR_FIELD_DATATYPE": 8,
    "OP_ATTR_FIELD_FLAGS": 0x10,
    "OP_ATTR_FIELD_REPLY_BUFFER": 0x20,
    "OP_ATTR_FIELD_MEMORY_TYPE": 0x40,
    "OP_ATTR_FIELD_RECV_INFO": 0x80,
    "OP_ATTR_FIELD_MEMH": 0x100,
    "OP_ATTR_FLAG_NO_IMM_CMPL": 0x10000,
    "OP_ATTR_FLAG_FAST_CMPL": 0x20000,
    "OP_ATTR_FLAG_FORCE_IMM_CMPL": 0x40000,
    "OP_ATTR_FLAG_MULTI_SEND": 0x80000,
    "DATATYPE_IOV": 2,
    "MEMORY_TYPE_HOST": 0,
    "MEMORY_TYPE_CUDA": 1,
    "MEMORY_TYPE_CUDA_MANAGED": 2,
    "MEMORY_TYPE_ROCM": 3,
    "MEMORY_TYPE_ROCM_MANAGED": 4,
    "MEMORY_TYPE_RDMA": 5,
    "MEMORY_TYPE_ZE_HOST": 6,
    "MEMORY_TYPE_ZE_DEVICE": 7,
    "MEMORY_TYPE_ZE_MANAGED": 8,
    "MEMORY_TYPE_GAUDI": 9,
    "MEMORY_TYPE_UNKNOWN": 10,
}

CLAUSES = {
    "MEM_MAP_PARAM_FIELD_ADDRESS": "ucp.enum.map-field-address",
    "MEM_MAP_PARAM_FIELD_LENGTH": "ucp.enum.map-field-length",
    "MEM_MAP_PARAM_FIELD_FLAGS": "ucp.enum.map-field-flags",
    "MEM_MAP_PARAM_FIELD_PROT": "ucp.enum.map-field-prot",
    "MEM_MAP_PARAM_FIELD_MEMORY_TYPE": "ucp.enum.map-field-memory-type",
    "MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER": "ucp.enum.map-field-exported",
    "MEM_ADVISE_PARAM_FIELD_ADDRESS": "ucp.enum.advise-field-address",
    "MEM_ADVISE_PARAM_FIELD_LENGTH": "ucp.enum.advise-field-length",
    "MEM_ADVISE_PARAM_FIELD_ADVICE": "ucp.enum.advise-field-advice",
    "MEM_MAP_NONBLOCK": "ucp.enum.nonblock",
    "MEM_MAP_ALLOCATE": "ucp.enum.allocate",
    "MEM_MAP_FIXED": "ucp.enum.fixed",
    "MEM_MAP_SYMMETRIC_RKEY": "ucp.enum.symmetric",
    "MEM_MAP_PROT_LOCAL_READ": "ucp.enum.prot-local-read",
    "MEM_MAP_PROT_LOCAL_WRITE": "ucp.enum.prot-local-write",
    "MEM_MAP_PROT_REMOTE_READ": "ucp.enum.prot-remote-read",
    "MEM_MAP_PROT_REMOTE_WRITE": "ucp.enum.prot-remote-write",
    "MADV_NORMAL": "ucp.enum.advice-normal",
    "MADV_WILLNEED": "ucp.enum.advice-willneed",
    "MEMH_PACK_PARAM_FIELD_FLAGS": "ucp.enum.pack-field-flags",
    "MEM_ATTR_FIELD_ADDRESS": "ucp.enum.attr-field-address",
    "MEM_ATTR_FIELD_LENGTH": "ucp.enum.attr-field-length",
    "MEM_ATTR_FIELD_MEM_TYPE": "ucp.enum.attr-field-mem-type",
}

STATUSES = {
    "OK": (0, "Success"),
    "INPROGRESS": (1, "Operation in progress"),
    "ERR_NO_MESSAGE": (-1, "No pending message"),
    "ERR_NO_RESOURCE": (-2, "No resources are available to initiate the operation"),
    "ERR_IO_ERROR": (-3, "Input/output error"),
    "ERR_NO_MEMORY": (-4, "Out of memory"),
    "ERR_INVALID_PARAM": (-5, "Invalid parameter"),
    "ERR_UNREACHABLE": (-6, "Destination is unreachable"),
    "ERR_INVALID_ADDR": (-7, "Address not valid"),
    "ERR_NOT_IMPLEMENTED": (-8, "Function not implemented"),
    "ERR_MESSAGE_TRUNCATED": (-9, "Message truncated"),
    "ERR_NO_PROGRESS": (-10, "No progress"),
    "ERR_BUFFER_TOO_SMALL": (-11, "Provided buffer is too small"),
    "ERR_NO_ELEM": (-12, "No such element"),
    "ERR_SOME_CONNECTS_FAILED": (-13, "Failed to connect some of the requested endpoints"),
    "ERR_NO_DEVICE": (-14, "No such device"),
    "ERR_BUSY": (-15, "Device is busy"),
    "ERR_CANCELED": (-16, "Request canceled"),
    "ERR_SHMEM_SEGMENT": (-17, "Shared memory error"),
    "ERR_ALREADY_EXISTS": (-18, "Element already exists"),
    "ERR_OUT_OF_RANGE": (-19, "Index out of range"),
    "ERR_TIMED_OUT": (-20, "Operation timed out"),
    "ERR_EXCEEDS_LIMIT": (-21, "User-defined limit was reached"),
    "ERR_UNSUPPORTED": (-22, "Unsupported operation"),
    "ERR_REJECTED": (-23, "Operation rejected by remote peer"),
    "ERR_NOT_CONNECTED": (-24, "Endpoint is not connected"),
    "ERR_CONNECTION_RESET": (-25, "Connection reset by remote peer"),
    "ERR_ENDPOINT_TIMEOUT": (-80, "Endpoint timeout"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.clause(CLAUSES[name]) if name in CLAUSES else ()) for name in NUMBERS]
)
def test_number_is_ucx_s(name: str) -> None:
    assert getattr(ucp, name) == NUMBERS[name]


def test_table_of_numbers_is_complete() -> None:
    """Every public number is in the table above."""
    public = {name for name in ucp.__all__ if name.isupper() and isinstance(getattr(ucp, name), int)}
    assert public == set(NUMBERS)


def test_every_member_is_public_under_its_c_name() -> None:
    """An enumeration's members are the module's numbers, and there are no others."""
    classes = [value for value in vars(ucp).values() if isinstance(value, enum.EnumMeta) and value is not ucp.Status]
    members = [member for of in classes for member in of]
    public = [getattr(ucp, name) for name in ucp.__all__ if name.isupper() and name != "DATATYPE_IOV"]
    numbers = [value for value in public if isinstance(value, enum.Enum)]
    assert sorted(map(repr, members)) == sorted(map(repr, numbers))


@pytest.mark.parametrize("name", STATUSES)
def test_status_has_ucx_s_number_and_text(name: str) -> None:
    number, text = STATUSES[name]
    assert ucp.Status[name] == number
    assert ucp.status_string(number) == text


def test_statuses_are_all_of_the_table_and_fit_one_signed_byte() -> None:
    assert {status.name for status in ucp.Status} == set(STATUSES)
    assert all(-100 < status <= 1 for status in ucp.Status)


def test_status_string_of_an_unknown_number_says_so() -> None:
    assert ucp.status_string(-99) == "Unknown error -99"


@pytest.mark.parametrize(
    ("memory_type", "text"),
    [
        (ucp.MEMORY_TYPE_HOST, "host"),
        (ucp.MEMORY_TYPE_CUDA, "cuda"),
        (ucp.MEMORY_TYPE_CUDA_MANAGED, "cuda-managed"),
        (ucp.MEMORY_TYPE_ROCM, "rocm"),
        (ucp.MEMORY_TYPE_ROCM_MANAGED, "rocm-managed"),
        (ucp.MEMORY_TYPE_RDMA, "rdma"),
        (ucp.MEMORY_TYPE_ZE_HOST, "ze-host"),
        (ucp.MEMORY_TYPE_ZE_DEVICE, "ze-device"),
        (ucp.MEMORY_TYPE_ZE_MANAGED, "ze-managed"),
        (ucp.MEMORY_TYPE_GAUDI, "gaudi"),
        (ucp.MEMORY_TYPE_UNKNOWN, "unknown"),
    ],
)
def test_memory_type_has_ucx_s_name(memory_type: ucp.MemoryType, text: str) -> None:
    assert memory_type.text == text


@pytest.mark.parametrize("nbytes", [0, 1, 4, 8, 4096])
def test_dt_make_contig_stores_the_size_above_three_bits(nbytes: int) -> None:
    assert ucp.dt_make_contig(nbytes) == nbytes << 3


def test_exports_all_names_exist_once() -> None:
    assert len(set(ucp.__all__)) == len(ucp.__all__)
    for name in ucp.__all__:
        getattr(ucp, name)
