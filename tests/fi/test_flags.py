"""weft.flags: libfabric's numbers, and flags that print with the right names."""

from __future__ import annotations

import enum

import pytest

from weft import fi, flags

# A sample of every field, from the headers (not from the module under test).
NUMBERS = {
    "MSG": 0x2,
    "RMA": 0x4,
    "ATOMIC": 0x10,
    "ATOMICS": 0x10,
    "READ": 0x100,
    "WRITE": 0x200,
    "RECV": 0x400,
    "SEND": 0x800,
    "TRANSMIT": 0x800,
    "REMOTE_READ": 0x1000,
    "REMOTE_WRITE": 0x2000,
    "REMOTE_CQ_DATA": 0x20000,
    "MORE": 0x40000,
    "FENCE": 0x200000,
    "COMPLETION": 0x1000000,
    "INJECT": 0x2000000,
    "INJECT_COMPLETE": 0x4000000,
    "TRANSMIT_COMPLETE": 0x8000000,
    "DELIVERY_COMPLETE": 0x10000000,
    "COMMIT_COMPLETE": 0x40000000,
    "RESCAN": 0x800000000,
    "HMEM": 0x800000000000,
    "RMA_PMEM": 0x2000000000000,
    "LOCAL_COMM": 0x8000000000000,
    "RMA_EVENT": 0x100000000000000,
    "SOURCE": 0x200000000000000,
    "DIRECTED_RECV": 0x800000000000000,
    "SELECTIVE_COMPLETION": 0x800000000000000,
    "CLAIM": 0x800000000000000,
    "SYMMETRIC": 0x800000000000000,
    "COMPARE_ATOMIC": 0x800000000000000,
    "FETCH_ATOMIC": 0x400000000000000,
    "SYNC_ERR": 0x400000000000000,
    "PROV_ATTR_ONLY": 0x40000000000000,
    "NUMERICHOST": 0x80000000000000,
    "MR_DMABUF": 0x10000000000,
    "MR_SINGLE_USE": 0x20000000000,
    "CONTEXT": 0x800000000000000,
    "LOCAL_MR": 0x80000000000000,
    "CONTEXT2": 0x10000000000000,
    "MR_BASIC": 1,
    "MR_SCALABLE": 2,
    "MR_LOCAL": 4,
    "MR_RAW": 8,
    "MR_VIRT_ADDR": 0x10,
    "MR_ALLOCATED": 0x20,
    "MR_PROV_KEY": 0x40,
    "MR_MMU_NOTIFY": 0x80,
    "MR_RMA_EVENT": 0x100,
    "MR_ENDPOINT": 0x200,
    "MR_HMEM": 0x400,
    "MR_COLLECTIVE": 0x800,
    "ORDER_RAR": 1,
    "ORDER_SAS": 0x100,
    "ORDER_RMA_RAR": 1 << 32,
    "ORDER_ATOMIC_WAW": 0x8000000000,
    "AV_TABLE": 2,
    "EP_RDM": 3,
    "PROGRESS_MANUAL": 2,
    "THREAD_ENDPOINT": 5,
    "RM_ENABLED": 2,
    "CQ_FORMAT_TAGGED": 4,
    "WAIT_FD": 3,
    "CNTR_EVENTS_BYTES": 1,
    "MR_COMPLETE": 4,
    "ADDR_STR": 9,
    "ADDR_CXI": 15,
    "PROTO_CXI": 24,
    "TC_LOW_LATENCY": 0x201,
    "UINT64": 7,
    "DOUBLE": 9,
    "UINT128": 15,
    "FLOAT8_E5M2": 19,
    "VOID": 256,
    "MIN": 0,
    "CSWAP": 12,
    "MSWAP": 18,
    "DIFF": 19,
    "NOOP": 256,
    "EAGAIN": 11,
    "EKEYREJECTED": 129,
    "ETOOSMALL": 257,
    "EOPBADSTATE": 258,
    "EAVAIL": 259,
    "EBADFLAGS": 260,
    "ENOCQ": 263,
    "ENOKEY": 266,
    "ENOAV": 267,
    "EOVERRUN": 268,
    "OPT_INJECT_RMA_SIZE": 18,
    "TYPE_WAIT_OBJ": 35,
    "ADDR_UNSPEC": 0xFFFFFFFFFFFFFFFF,
    "ADDR_NOTAVAIL": 0xFFFFFFFFFFFFFFFF,
    "KEY_NOTAVAIL": 0xFFFFFFFFFFFFFFFF,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_flag_number_is_libfabric_s(name: str) -> None:
    assert int(getattr(fi, name)) == NUMBERS[name]


def test_flag_every_member_is_a_plain_name() -> None:
    classes = [c for c in vars(flags).values() if isinstance(c, type) and issubclass(c, enum.IntFlag | enum.IntEnum)]
    members = [m for c in classes if not c.__name__.startswith("_") for m in c.__members__.items()]
    assert len(members) > 400
    for name, member in members:
        assert getattr(fi, name) is member
        assert name in fi.__all__


def test_flag_or_keeps_type_and_is_an_int() -> None:
    both = fi.READ | fi.WRITE
    assert isinstance(both, fi.Flag)
    assert both == 0x300
    assert both | 0x1000 == fi.READ | fi.WRITE | fi.REMOTE_READ
    assert both == 0x100 | fi.WRITE


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (fi.RMA | fi.ATOMIC, "fi.RMA | fi.ATOMIC"),
        (fi.TRANSMIT | fi.SELECTIVE_COMPLETION, "fi.TRANSMIT | fi.SELECTIVE_COMPLETION"),
        (fi.SELECTIVE_COMPLETION | fi.RECV, "fi.RECV | fi.SELECTIVE_COMPLETION"),
        (fi.RMA_EVENT | fi.MR_SINGLE_USE, "fi.MR_SINGLE_USE | fi.RMA_EVENT"),
        (fi.Flag(0), "fi.Flag(0)"),
        (fi.Flag.MSG | (1 << 7), "fi.MSG | 0x80"),
        (fi.MR_BASIC_MAP, "fi.MR_VIRT_ADDR | fi.MR_ALLOCATED | fi.MR_PROV_KEY"),
        (fi.EP_RDM, "fi.EP_RDM"),
    ],
)
def test_flag_repr_is_the_expression_that_makes_it(value: int, text: str) -> None:
    assert repr(value) == text


def test_flag_mixture_of_two_fields_is_a_number() -> None:
    assert type(fi.RMA | fi.MR_PROV_KEY) is int


def test_flag_str_and_format() -> None:
    assert f"{fi.READ | fi.WRITE}" == "READ|WRITE"
    assert f"{fi.READ | fi.WRITE:#x}" == "0x300"
    assert f"{fi.EAGAIN} {fi.EAGAIN:d}" == "EAGAIN 11"


def test_version_is_major_and_minor() -> None:
    assert fi.VERSION(2, 6) == 0x20006
    assert (fi.MAJOR(0x20006), fi.MINOR(0x20006)) == (2, 6)
    assert fi.VERSION_GE(fi.VERSION(2, 0), fi.VERSION(1, 22))


@pytest.mark.clause(
    "mr.ze-device.signature",
    "mr.ze-device.returns",
    "mr.ze-device.driver-index",
    "mr.ze-device.device-index",
    "mr.device.ze-direct",
)
def test_hmem_ze_device_packs_driver_above_device() -> None:
    """fi_mr(3) fi_hmem_ze_device: one identifier for a driver and a device, both counted from 0."""
    assert fi.hmem_ze_device(0, 3) == 3  # one driver: the device's index alone
    assert fi.hmem_ze_device(2, 3) == 2 << 16 | 3
    assert fi.MrAttr(iface=fi.HMEM_ZE, device=fi.hmem_ze_device(2, 3)).device == 0x20003


def test_tostr_gives_c_names() -> None:
    assert fi.tostr(fi.RMA | fi.REMOTE_WRITE, fi.TYPE_CAPS) == "FI_RMA, FI_REMOTE_WRITE"
    assert fi.tostr(0x50, fi.TYPE_MR_MODE) == "FI_MR_VIRT_ADDR, FI_MR_PROV_KEY"
    assert fi.tostr(9, fi.TYPE_ATOMIC_TYPE) == "FI_DOUBLE"
    assert fi.tostr(None, fi.TYPE_VERSION) == f"{fi.MAJOR(fi.version())}.{fi.MINOR(fi.version())}"
    with pytest.raises(fi.InvalidArgument):
        fi.tostr(0, 99)
