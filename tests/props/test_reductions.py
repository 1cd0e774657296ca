"""Random reductions and sets against small models: exact sums, any order and grouping; ordered lists."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fi.support import Node, opened

from weft import cxi, fi

DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
NEAR = st.builds(lambda m, e: math.ldexp(m, e), st.integers(-(2**53), 2**53), st.integers(-60, 60))
TINY = st.builds(lambda m: math.ldexp(m, -1074), st.integers(-(2**54), 2**54))
SUMMANDS = st.one_of(st.lists(NEAR, min_size=1), st.lists(DOUBLES, min_size=1), st.lists(TINY, min_size=1))


def bin_of(value: float) -> int:
    """Number of the 40-bit bin of a value's leading bit; subnormals are in the bin of the smallest normal number."""
    return (max(math.frexp(value)[1] - 1, -1022) if value else -1022) // 40


def exact(values: list[float]) -> float:
    """The sum of the parts of the values in the top four bins, rounded once."""
    unit = Fraction(2) ** (40 * (max(map(bin_of, values)) - 3))
    total = sum((math.trunc(Fraction(value) / unit) * unit for value in values), Fraction(0))
    try:
        return float(total)  # Python's division of integers rounds to nearest even
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def folded(values: list[float]) -> cxi.CollAccumulator:
    accumulator = cxi.CollAccumulator()
    for value in values:
        accumulator.fold(struct.pack("<d", value), 1, fi.DOUBLE, cxi.REPSUM)
    return accumulator


def read(accumulator: cxi.CollAccumulator) -> bytes:
    out = bytearray(8)
    accumulator.result(out, 1, fi.DOUBLE)
    return bytes(out)


@settings(max_examples=400)
@given(SUMMANDS, st.randoms(use_true_random=False))
@pytest.mark.clause("cxi.coll.repsum-reproducible")
def test_reproducible_sum_is_the_exact_one_in_any_tree(values: list[float], rng: object) -> None:
    wanted = struct.pack("<d", exact(values) + 0.0)
    assert read(folded(values)) == wanted
    parts = [folded([value]) for value in values]
    while len(parts) > 1:
        part = parts.pop(rng.randrange(len(parts)))  # type: ignore[attr-defined]
        parts[rng.randrange(len(parts))].fold(part, 0, 0, 0, cxi.PRE_REDUCED)  # type: ignore[attr-defined]
    assert read(parts[0]) == wanted


@settings(max_examples=200)
@given(
    st.sampled_from([fi.MIN, fi.MAX, cxi.MINNUM, cxi.MAXNUM]),
    st.lists(st.floats(), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_extremes_depend_on_no_order(op: int, values: list[float], rng: object) -> None:
    def result(data: list[float]) -> bytes:
        accumulator = cxi.CollAccumulator()
        for value in data:
            accumulator.fold(struct.pack("<d", value), 1, fi.DOUBLE, op)
        return read(accumulator)

    other = list(values)
    rng.shuffle(other)  # type: ignore[attr-defined]
    assert result(values) == result(other)
    (found,) = struct.unpack("<d", result(values))
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers or (op in (fi.MIN, fi.MAX) and len(numbers) < len(values)):
        assert math.isnan(found)
    else:
        assert found == (min if op in (fi.MIN, cxi.MINNUM) else max)(numbers)


@settings(max_examples=100)
@given(st.sampled_from([fi.UINT8, fi.UINT16, fi.UINT32, fi.UINT64]), st.binary(min_size=64, max_size=64))
def test_any_64_bytes_are_an_accumulator_or_refused(datatype: int, content: bytes) -> None:
    accumulator = cxi.CollAccumulator.from_buffer_copy(content)
    try:
        accumulator.fold(bytes(8), 1, datatype, fi.BOR)
    except fi.InvalidArgument:
        assert bytes(accumulator) == content


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with opened() as found:
        yield found


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["insert", "remove", "union", "intersect", "diff"]), st.booleans(), st.integers(0, 9)
        ),
        max_size=40,
    )
)
def test_sets_are_ordered_lists(node: Node, steps: list[tuple[str, bool, int]]) -> None:
    models: list[list[int]] = [[], []]
    with node.av.av_set(fi.AvSetAttr()) as first, node.av.av_set(fi.AvSetAttr()) as second:
        sets = [first, second]
        for name, which, at in steps:
            mine, theirs = models[which], models[not which]
            if name in ("insert", "remove"):
                if (at in mine) == (name == "insert"):
                    with pytest.raises(fi.InvalidArgument):
                        getattr(sets[which], name)(at)
                    continue
                getattr(sets[which], name)(at)
                mine.append(at) if name == "insert" else mine.remove(at)
            else:
                getattr(sets[which], name)(sets[not which])
                if name == "union":
                    mine += [one for one in theirs if one not in mine]
                else:
                    mine[:] = [one for one in mine if (one in theirs) == (name == "intersect")]
            assert [list(one) for one in sets] == models


def test_reference_knows_a_sum_that_doubles_lose() -> None:
    """The model itself: 2**53 + 1 - 2**53."""
    assert exact([2.0**53, 1.0, -(2.0**53)]) == 1.0
    assert np.sum([2.0**53, 1.0, -(2.0**53)]) == 0.0
