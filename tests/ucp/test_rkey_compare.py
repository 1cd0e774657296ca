"""ucp_rkey_compare: an order of remote keys in which equal means interchangeable."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import pytest
from tests.ucp.support import INVALID_PARAM, IO_ERROR, OK, SYMMETRIC, Rig, array, ended, refused

from weft import ucp


@pytest.mark.clause(
    "ucp.compare.function", "ucp.compare.less", "ucp.compare.equal", "ucp.compare.greater", "ucp.compare.ok"
)
def test_comparison_is_minus_one_zero_or_one_and_antisymmetric(rig: Rig) -> None:
    compare = rig.worker.rkey_compare
    with rig.alloc() as one, rig.alloc() as two:
        first, twin, second = rig.key(one), rig.key(one), rig.key(two)
        assert compare(first, first) == compare(first, twin) == compare(twin, first) == 0
        assert {compare(first, second), compare(second, first)} == {-1, 1}
        assert compare(twin, second) == compare(first, second)


@pytest.mark.clause("ucp.compare.sort", "ucp.compare.less", "ucp.compare.greater")
def test_keys_are_sorted_by_comparison(rig: Rig, rng: Any) -> None:
    """A total order: every pair of keys agrees with it, from any order at the start."""
    compare = rig.worker.rkey_compare
    more = rig.worker.ep_create(rig.worker.address)
    regions = [rig.map(array()) for _ in range(6)] + [rig.map(array(), flags=SYMMETRIC) for _ in range(3)]
    keys = [ep.rkey_unpack(memh.pack()) for memh in regions for ep in (rig.ep, more, rig.ep)]
    rng.shuffle(keys)
    ordered = sorted(keys, key=functools.cmp_to_key(compare))
    for (i, low), (j, high) in itertools.combinations(enumerate(ordered), 2):
        assert i < j
        assert compare(low, high) <= 0
        assert compare(high, low) == -compare(low, high)
    rng.shuffle(keys)
    again = sorted(keys, key=functools.cmp_to_key(compare))
    assert all(compare(a, b) == 0 for a, b in zip(ordered, again, strict=True))


@pytest.mark.clause("ucp.compare.equal", "ucp.enum.symmetric-interchange")
def test_equal_keys_work_on_either_endpoint(rig: Rig, other: Rig) -> None:
    """An endpoint refuses a key that differs from its own, unless the region is symmetric."""
    data = array()
    regions = [
        (rig, rig.map(data)),
        (rig, rig.map(data)),
        (rig, rig.map(data, flags=SYMMETRIC)),
        (other, other.map(data, flags=SYMMETRIC)),
        (other, other.map(data)),
    ]
    endpoints = {id(owner): [rig.worker.ep_create(owner.worker.address) for _ in range(2)] for owner in (rig, other)}
    keys = [(ep, ep.rkey_unpack(memh.pack())) for owner, memh in regions for ep in endpoints[id(owner)]]
    equal = 0
    for (ep1, key1), (ep2, key2) in itertools.permutations(keys, 2):
        if rig.worker.rkey_compare(key1, key2) == 0:
            equal += 1
            data.fill(0)
            assert ended(ep1.put_nbx(b"one", key2.address, key2)) is OK
            assert ended(ep2.put_nbx(b"two", key1.address + 3, key1)) is OK
            assert bytes(data[:6]) == b"onetwo"
        elif ep1 is not ep2 and not key2.symmetric:
            with refused(INVALID_PARAM, "another endpoint"):
                ep1.put_nbx(b"x", key2.address, key2)
    assert equal == 12  # the four keys of the two symmetric regions


@pytest.mark.clause("ucp.enum.symmetric", "ucp.enum.symmetric-interchange")
def test_symmetric_regions_of_one_layout_have_keys_that_are_equal(rig: Rig, other: Rig) -> None:
    """Two peers map at the same address; without the flag their keys differ."""
    data = array()
    to_other = rig.worker.ep_create(other.worker.address)
    for flags, expected in ((0, False), (SYMMETRIC, True)):
        with (
            rig.map(data, flags=flags) as mine,
            other.map(data, flags=flags) as theirs,
            rig.key(mine) as key1,
            to_other.rkey_unpack(theirs.pack()) as key2,
        ):
            assert (rig.worker.rkey_compare(key1, key2) == 0) is expected
            if expected:
                assert ended(to_other.put_nbx(b"x", theirs.address, key1)) is OK
                mine.unmap()  # one key for both, and each peer's region by itself
                assert ended(to_other.put_nbx(b"y", theirs.address, key1)) is OK
                assert rig.put(b"z", theirs.address, key1) is IO_ERROR
    assert data[0] == ord("y")


@pytest.mark.parametrize("difference", ["address", "length", "rights"])
def test_symmetric_regions_of_other_layouts_have_other_keys(rig: Rig, other: Rig, difference: str) -> None:
    data = array()
    at, length = (data.ctypes.data + (difference == "address"), 62 + (difference == "length"))
    prot = 0x103 if difference == "rights" else 0x303
    to_other = rig.worker.ep_create(other.worker.address)
    with (
        rig.map(address=data.ctypes.data, length=62, flags=SYMMETRIC) as mine,
        other.map(address=at, length=length, prot=prot, flags=SYMMETRIC) as theirs,
        rig.key(mine) as key1,
        to_other.rkey_unpack(theirs.pack()) as key2,
    ):
        assert rig.worker.rkey_compare(key1, key2) != 0


@pytest.mark.clause("ucp.enum.symmetric-hint")
def test_second_symmetric_region_gets_an_ordinary_key(rig: Rig) -> None:
    data = array()
    one, two = rig.map(data, flags=SYMMETRIC), rig.map(data, flags=SYMMETRIC)
    with rig.key(one) as key1, rig.key(two) as key2:
        assert key1.symmetric
        assert not key2.symmetric
        assert rig.worker.rkey_compare(key1, key2) != 0
        assert rig.put(b"x", two.address, key2) is OK
        one.unmap()
        assert rig.put(b"x", two.address, key1) is IO_ERROR
        assert rig.put(b"y", two.address, key2) is OK


def test_symmetric_flag_works_for_empty_and_allocated_regions(rig: Rig) -> None:
    assert rig.map(length=0, flags=SYMMETRIC).length == 0
    with rig.alloc(symmetric=True) as memh, rig.key(memh) as rkey:
        assert rkey.symmetric
        assert rig.put(b"x", memh.address, rkey) is OK


@pytest.mark.clause("ucp.compare.equal")
def test_key_of_memory_that_took_another_s_place_is_not_equal(rig: Rig) -> None:
    data = array()
    with rig.map(data) as memh:
        old = rig.key(memh)
    with rig.map(data) as memh, rig.key(memh) as new:
        assert rig.worker.rkey_compare(old, new) != 0
        assert rig.put(b"x", memh.address, old) is IO_ERROR


@pytest.mark.clause("ucp.compare.same-worker", "ucp.compare.invalid")
def test_both_keys_have_to_be_the_worker_s(rig: Rig) -> None:
    with rig.context.worker_create() as worker, rig.alloc() as memh, rig.key(memh) as mine:
        theirs = worker.ep_create(rig.worker.address).rkey_unpack(memh.pack())
        assert worker.rkey_compare(theirs, theirs) == 0
        for pair in ((mine, theirs), (theirs, mine), (theirs, theirs)):
            with refused(INVALID_PARAM, "not a key of this worker"):
                rig.worker.rkey_compare(*pair)


@pytest.mark.clause("ucp.compare.invalid")
@pytest.mark.parametrize("wrong", [None, 5, b"key", object()])
def test_compare_refuses_other_objects(rig: Rig, wrong: Any) -> None:
    with rig.alloc() as memh, rig.key(memh) as rkey:
        for pair in ((wrong, rkey), (rkey, wrong)):
            with refused(INVALID_PARAM, "not a key of this worker"):
                rig.worker.rkey_compare(*pair)


@pytest.mark.clause("ucp.compare.other")
def test_comparison_by_a_worker_that_is_gone_fails_with_a_status(rig: Rig) -> None:
    with rig.context.worker_create() as worker, rig.alloc() as memh:
        rkey = worker.ep_create(rig.worker.address).rkey_unpack(memh.pack())
        worker.close()
        with refused(INVALID_PARAM, "worker is destroyed") as found:
            worker.rkey_compare(rkey, rkey)
        assert isinstance(found.value.status, ucp.Status)


@pytest.mark.clause("ucp.compare.field-mask-ignore")
def test_comparison_ignores_fields_without_a_bit_in_field_mask(rig: Rig) -> None:
    """Bits of later versions are refused: this version has no fields."""

    @dataclasses.dataclass
    class Later(ucp.RkeyCompareParams):
        order: Any = None

    compare = rig.worker.rkey_compare
    with rig.alloc() as one, rig.alloc() as two:
        first, second = rig.key(one), rig.key(two)
        for order in (None, -1, 0, 1, "reversed", object()):
            assert compare(first, second, Later(order=order)) == compare(first, second)
            assert compare(second, first, Later(order=order)) == compare(second, first)
