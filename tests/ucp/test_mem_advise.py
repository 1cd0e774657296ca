"""ucp_mem_advise."""

from __future__ import annotations

import ctypes
import resource
from typing import Any

import pytest
from tests.ucp.support import ALLOCATE, INVALID_PARAM, NONBLOCK, PAGE, Addresses, Rig, array, refused, resident

from weft import ucp

NORMAL, WILLNEED = int(ucp.MADV_NORMAL), int(ucp.MADV_WILLNEED)


def lazy(rig: Rig, pages: int) -> ucp.MemHandle:
    return rig.map(length=pages * PAGE, flags=ALLOCATE | NONBLOCK)


def faults_of_writing(memh: ucp.MemHandle) -> int:
    """Page faults of this thread while it writes to all of the memory."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    ctypes.memset(memh.address, 1, memh.length)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


@pytest.mark.clause(
    "ucp.advise.function", "ucp.advise.address", "ucp.advise.length", "ucp.advise.advice", "ucp.enum.advice-willneed",
    "ucp.advise.performance",
)  # fmt: skip
def test_willneed_has_the_pages_of_the_range_there_and_no_others(rig: Rig) -> None:
    with lazy(rig, 6) as memh:
        rig.context.mem_advise(memh, ucp.MemAdviseParams(7, memh.address + PAGE, 2 * PAGE, WILLNEED))
        assert resident(memh.address, 6) == [False, True, True, False, False, False]
        rig.context.mem_advise(memh, address=memh.address + 4 * PAGE + 5, length=1, advice=WILLNEED)
        assert resident(memh.address, 6) == [False, True, True, False, True, False]
        rig.context.mem_advise(memh, advice=WILLNEED)  # the whole of it
        assert all(resident(memh.address, 6))


@pytest.mark.clause("ucp.enum.advice-willneed-fault", "ucp.enum.advice-willneed-speed", "ucp.enum.advice-willneed")
def test_mem_advise_willneed_prevents_page_faults(rig: Rig) -> None:
    """Without advice each first access is a page fault; one call maps all pages."""
    with lazy(rig, 64) as memh:
        unadvised = faults_of_writing(memh)
    with lazy(rig, 64) as memh:
        rig.context.mem_advise(memh, advice=WILLNEED)
        assert faults_of_writing(memh) < 8 <= unadvised


@pytest.mark.clause("ucp.enum.advice-normal", "ucp.advise.ignore")
def test_normal_changes_nothing(rig: Rig) -> None:
    with lazy(rig, 4) as memh:
        memh.memory[0] = 3
        before = resident(memh.address, 4)
        rig.context.mem_advise(memh, advice=NORMAL)
        assert resident(memh.address, 4) == before == [True, False, False, False]


@pytest.mark.clause("ucp.advise.semantics")
@pytest.mark.parametrize("advice", [NORMAL, WILLNEED])
def test_advice_leaves_the_bytes_and_the_rights_as_they_are(rig: Rig, advice: int) -> None:
    with rig.alloc(4 * PAGE) as memh, rig.key(memh) as rkey:
        memh.memory[:] = bytes(range(256)) * (4 * PAGE // 256)
        before = bytes(memh.memory)
        rig.context.mem_advise(memh, advice=advice)
        assert bytes(memh.memory) == before
        assert rig.get(100, memh.address + PAGE - 50, rkey) == before[PAGE - 50 : PAGE + 50]
        assert memh.query().length == 4 * PAGE


def test_mem_advise_willneed_on_registered_memory_succeeds(rig: Rig) -> None:
    with rig.alloc(2 * PAGE) as memh:
        rig.context.mem_advise(memh, advice=WILLNEED)
    with rig.map(array()) as memh:
        rig.context.mem_advise(memh, advice=WILLNEED)
    constant = b"constant"
    with rig.map(constant, prot=int(ucp.MEM_MAP_PROT_REMOTE_READ)) as memh:
        rig.context.mem_advise(memh, advice=WILLNEED)
    assert constant == b"constant"


def test_willneed_where_no_memory_is_changes_nothing(rig: Rig) -> None:
    """The advice is a hint: pages that cannot exist are skipped."""
    place = Addresses(2)
    with rig.map(address=place.at, length=2 * PAGE) as memh:
        rig.context.mem_advise(memh, advice=WILLNEED)
        assert resident(place.at, 2) == [False, False]
    place.close()


@pytest.mark.clause("ucp.advise.range")
@pytest.mark.parametrize("advice", [NORMAL, WILLNEED])
def test_advised_range_has_to_lie_in_the_memory(rig: Rig, advice: int) -> None:
    data = array(1000)
    with rig.map(data[100:900]) as memh:
        at = memh.address
        for address, length in ((at, 800), (at, 0), (at + 800, 0), (at + 799, 1), (at + 400, 400)):
            rig.context.mem_advise(memh, address=address, length=length, advice=advice)
        for address, length in (
            (at - 1, 1),
            (at - 1, 0),
            (at, 801),
            (at + 801, 0),
            (at + 800, 1),
            (0, 1),
            (at, -1),
            (at + 8, -4),
            (at, 1 << 64),
        ):
            with refused(INVALID_PARAM, "do not lie within"):
                rig.context.mem_advise(memh, ucp.MemAdviseParams(7, address, length, advice))


@pytest.mark.parametrize("advice", [2, -1, 100])
def test_unknown_advice_is_invalid(rig: Rig, advice: int) -> None:
    with rig.alloc() as memh, refused(INVALID_PARAM, "MADV_WILLNEED"):
        rig.context.mem_advise(memh, advice=advice)


def test_checks_come_in_order_fields_range_advice(rig: Rig) -> None:
    with rig.alloc() as memh:
        with refused(INVALID_PARAM, "mandatory"):
            rig.context.mem_advise(memh, ucp.MemAdviseParams(3, 1, 1, 9))
        with refused(INVALID_PARAM, "do not lie within"):
            rig.context.mem_advise(memh, ucp.MemAdviseParams(7, 1, 1, 9))


@pytest.mark.clause("ucp.advise.all-mandatory")
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"address": 0},
        {"length": 8},
        {"address": 0, "length": 8},
        {"length": 8, "advice": 0},
        {"address": 1, "advice": 0},
    ],
)
def test_fields_by_keyword_are_mandatory_too(rig: Rig, given: dict[str, Any]) -> None:
    with rig.alloc() as memh, refused(INVALID_PARAM, "mandatory"):
        rig.context.mem_advise(memh, **given)


def test_struct_and_keywords_together_are_a_type_error(rig: Rig) -> None:
    with rig.alloc() as memh, pytest.raises(TypeError, match="not both"):
        rig.context.mem_advise(memh, ucp.MemAdviseParams(7), advice=0)


def test_zero_length_handle_takes_only_null_and_no_bytes(rig: Rig) -> None:
    memh = rig.map(length=0)
    rig.context.mem_advise(memh, advice=WILLNEED)
    rig.context.mem_advise(memh, address=0, length=0, advice=NORMAL)
    for address, length in ((1, 0), (0, 1), (PAGE, PAGE)):
        with refused(INVALID_PARAM):
            rig.context.mem_advise(memh, address=address, length=length, advice=NORMAL)


@pytest.mark.clause("ucp.advise.status")
def test_outcome_of_advice_is_a_status(rig: Rig) -> None:
    memh = rig.alloc()
    rig.context.mem_advise(memh, advice=WILLNEED)
    memh.unmap()
    with refused(INVALID_PARAM, "unmapped"):
        rig.context.mem_advise(memh, advice=WILLNEED)
    with refused(INVALID_PARAM, "not a memory handle"):
        rig.context.mem_advise(None, advice=WILLNEED)  # type: ignore[arg-type]
