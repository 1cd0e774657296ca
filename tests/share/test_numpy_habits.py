"""Code in NumPy's style works as in NumPy, or raises an error; no update is lost silently."""

from __future__ import annotations

import asyncio
import operator
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import errors

ROOT = Path(__file__).parents[2]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@pytest.fixture
def thing(node: weft.Node) -> Any:
    local = weft.empty((2, 3), "i4")
    local[:] = [[0, 1, 2], [3, 4, 5]]
    return node.attach(node.share(local))


@pytest.mark.parametrize("compare", COMPARISONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("other", [2, [1, 1, 4], np.full((2, 3), 3), None], ids=["scalar", "row", "array", "None"])
def test_comparison_is_numpys(thing: Any, compare: Callable[[Any, Any], Any], other: Any) -> None:
    local = thing.read()
    try:
        wanted = compare(local, other)
    except TypeError:
        with pytest.raises(TypeError):
            compare(thing, other)
        return
    found = compare(thing, other)
    assert isinstance(found, np.ndarray)
    assert found.tolist() == wanted.tolist()


def test_comparison_of_two_remote_arrays_is_elementwise(thing: Any) -> None:
    assert (thing == thing.at[...]).all()
    assert (thing.at[0] == thing.at[1]).tolist() == [False, False, False]
    assert (np.arange(6).reshape(2, 3) == thing).all()
    assert (2 == thing).tolist() == [[False, False, True], [False, False, False]]  # noqa: SIM300


def test_truth_is_numpys(thing: Any) -> None:
    with pytest.raises(ValueError, match="is ambiguous"):
        bool(thing)
    assert bool(thing.at[1, 1]) is True
    assert bool(thing.at[0, 0]) is False
    assert bool(thing.at[0:1, 2:3]) is True
    with pytest.raises(ValueError, match="ambiguous"):
        bool(thing.at[0:0])


def test_membership_is_numpys(thing: Any) -> None:
    assert 4 in thing
    assert 9 not in thing


def test_remote_arrays_are_keys_by_identity(thing: Any) -> None:
    row = thing.at[0]
    assert {thing: 1, row: 2}[row] == 2


def test_array_of_one_text_keeps_its_dtype(node: weft.Node) -> None:
    local = weft.zeros((), "U3")
    local[()] = "a"
    remote = node.attach(node.share(local))
    assert np.asarray(remote).dtype == np.dtype("U3")
    longer = node.attach(node.share(weft.zeros(2, "U3")))
    longer[:] = remote
    assert longer[:].tolist() == ["a", "a"]


@pytest.mark.parametrize("dtype", ["i8", "f8", "u2"])
def test_compare_swap_without_expected_value_is_refused(node: weft.Node, dtype: str) -> None:
    """An earlier call's expected value is never taken for it."""
    remote = node.attach(node.share(weft.zeros(4, dtype)))
    assert remote.compare_swap(0, 0, 5) == 0
    for index in (0, (1,), slice(2, 4)):
        with pytest.raises(TypeError, match="compare_swap: the value None"):
            remote.compare_swap(index, None, 9)
        with pytest.raises(TypeError, match="compare_swap: the value None"):
            asyncio.run(remote.acompare_swap(index, None, 9))
    assert remote[:].tolist() == [5, 0, 0, 0]
    with pytest.raises(TypeError, match="compare_swap: the value None"):
        remote.compare_swap(0, 5, None)
    assert remote[0] == 5


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [("U3", ""), ("S3", b""), ("i4,S3", (0, b"")), ("V5", None), ("M8[s]", np.datetime64(0, "s")), ("?", False)],
)
def test_zeros_are_numpys(dtype: str, wanted: Any) -> None:
    used = weft.empty(1000, dtype)
    used.view(np.uint8)[:] = 0xFF
    del used  # the next array gets its place
    found = weft.zeros(1000, dtype)
    assert found.tobytes() == np.zeros(1000, dtype).tobytes()
    if wanted is not None:
        assert found[7] == np.array(wanted, dtype)


@pytest.mark.parametrize("make", [weft.zeros, weft.empty])
@pytest.mark.parametrize(
    ("shape", "error", "text"),
    [
        (10**20, ValueError, "more than an address space"),
        ((1 << 40, 1 << 40), ValueError, "more than an address space"),
        (1 << 48, errors.NoMemory, "and this machine has"),
        (-1, ValueError, "negative length"),
        (2.5, TypeError, "a tuple of integers, not 2.5"),
        ("x", TypeError, "a tuple of integers, not 'x'"),
        ((2, None), TypeError, "a tuple of integers"),
        (None, TypeError, "a tuple of integers"),
    ],
)
def test_shape_that_cannot_be_is_explained(make: Any, shape: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        make(shape)
    assert "incompatible function arguments" not in str(caught.value)


def test_shape_accepts_numpys_forms() -> None:
    assert weft.zeros(np.int64(3)).shape == (3,)
    assert weft.zeros([2, np.int8(3)]).shape == (2, 3)
    assert weft.zeros(()).shape == ()


@pytest.mark.parametrize("shape", [(), 3, (2, 3), (0, 4)])
@pytest.mark.parametrize("dtype", ["f8", ">i2", "?", "U3", "S2", "M8[s]", "i4,U3"])
def test_arrays_are_made_as_numpys(shape: Any, dtype: str) -> None:
    """full, ones, array and their like: NumPy's values, in memory that peers map."""
    with weft.open() as node:
        for mine, numpys in [
            (weft.zeros(shape, dtype), np.zeros(shape, dtype)),
            (weft.zeros_like(np.empty(shape, dtype)), np.zeros(shape, dtype)),
            (weft.array(np.zeros(shape, dtype)), np.zeros(shape, dtype)),
            (weft.full_like(np.empty(shape, dtype), np.zeros((), dtype)), np.zeros(shape, dtype)),
            (weft.full(shape, np.zeros((), dtype)), np.full(shape, np.zeros((), dtype))),
            *([(weft.ones(shape, dtype), np.ones(shape, dtype))] if dtype in ("f8", ">i2", "?") else []),
            *([(weft.ones_like(np.empty(shape, dtype)), np.ones(shape, dtype))] if dtype in ("f8", ">i2") else []),
        ]:
            assert mine.dtype == numpys.dtype
            assert mine.shape == numpys.shape
            assert mine.tobytes() == numpys.tobytes()
            assert mine.flags.c_contiguous
            with node.share(mine) as shared:
                assert shared.path == "load/store" or not mine.size
        assert weft.empty_like(np.empty(shape, dtype)).dtype == np.dtype(dtype)


def test_values_of_new_arrays_are_numpys(node: weft.Node) -> None:
    assert weft.full((2, 2), [1, 2]).tolist() == np.full((2, 2), [1, 2]).tolist()
    assert weft.full(2, 7).dtype == np.full(2, 7).dtype
    assert weft.full(2, "abc").tolist() == ["abc", "abc"]
    assert weft.full(2, 1.5, "i4").tolist() == np.full(2, 1.5, "i4").tolist()
    assert weft.array([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    assert weft.array((1, 2), "f4").dtype == np.float32
    assert weft.array(np.asfortranarray([[1, 2], [3, 4]])).tolist() == [[1, 2], [3, 4]]
    remote = node.attach(node.share(weft.array([1.5, 2.5])))
    assert weft.array(remote).tolist() == [1.5, 2.5]
    assert weft.zeros_like(remote, "i8", 3).tolist() == [0, 0, 0]
    assert weft.ones_like([1.0, 2.0]).tolist() == [1, 1]
    with pytest.raises(ValueError, match="broadcast"):
        weft.full(2, [1, 2, 3])
    with pytest.raises(TypeError, match="Python objects"):
        weft.array([object()])


def test_module_shows_what_it_has() -> None:
    assert {"open", "Node", "RemoteArray", "zeros", "full", "array", "NotFound", "FabricError", "fi"} <= set(dir(weft))
    assert all(hasattr(weft, name) for name in dir(weft))
    assert weft.NotFound is errors.NotFound
    assert weft.FabricError is errors.FabricError
    assert issubclass(weft.NotFound, FileNotFoundError)
    with weft.open() as node, pytest.raises(weft.NotFound):
        node.attach("no-such-name")


def test_module_lists_nothing_that_the_reference_does_not_describe() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "reference").rglob("*.md"))
    assert [name for name in dir(weft) if f"weft.{name}" not in pages and name != "__version__"] == []


@pytest.mark.parametrize(
    ("name", "meant"), [("Quue", "Queue"), ("atach", "attach"), ("zeroes", "zeros"), ("opne", "open")]
)
def test_name_with_an_error_is_answered_with_the_name_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute {name!r}; did you mean weft.{meant}\\?$") as reason:
        getattr(weft, name)
    assert "Did you mean" not in "".join(traceback.format_exception(reason.value))  # Python's own, a second time


def test_name_that_resembles_no_other_has_no_suggestion() -> None:
    for name in ("xyzzy", "__wrapped__", "_open"):
        with pytest.raises(AttributeError, match=f"no attribute {name!r}$"):
            getattr(weft, name)


@pytest.mark.parametrize("timeout", ["x", "5", b"1", [1], object()])
def test_wait_timeout_that_is_no_number_is_refused(thing: Any, timeout: Any) -> None:
    with pytest.raises(TypeError, match="timeout is a number of seconds"):
        thing.wait_until((0, 0), 9, timeout=timeout)
    with pytest.raises(TypeError, match="timeout is a number of seconds"):
        asyncio.run(thing.await_until((0, 0), 9, timeout=timeout))


def test_wait_timeout_that_is_nan_is_refused(thing: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="nan"):
        thing.wait_until((0, 0), 9, timeout=float("nan"))


@pytest.mark.parametrize("value", [None, "text", b"text", np.datetime64(0, "s"), {}, 2**70, float("nan")])
def test_wait_for_an_impossible_value_is_refused(thing: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="no element of dtype int32 can equal"):
        thing.wait_until((0, 0), value)
    with pytest.raises(TypeError, match="no element of dtype int32 can equal"):
        asyncio.run(thing.await_until((0, 0), value))


def test_wait_for_text_and_records_ends(node: weft.Node) -> None:
    text = node.attach(node.share(weft.zeros(2, "U3")))
    text[0] = "abc"
    assert text.wait_until(0, "abc", timeout=50) == "abc"
    records = node.attach(node.share(weft.zeros(2, "i4,i4")))
    records[0] = (1, 2)
    assert records.wait_until(0, np.array((1, 2), "i4,i4"), timeout=50).tolist() == (1, 2)
    assert records.wait_until(0, (1, 2), timeout=50).tolist() == (1, 2)
    floats = node.attach(node.share(weft.zeros(2)))
    floats[0] = 1e30
    assert floats.wait_until(0, 10**30, timeout=50) == 1e30


@pytest.mark.parametrize("value", [[], [0, 0], np.zeros((2, 3)), np.zeros((3, 1))])
def test_wait_for_values_of_another_shape_is_refused(thing: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="broadcast"):
        thing.wait_until(0, value, timeout=50)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"timeout": "x"}, "timeout is a number of seconds"),
        ({"listen": 5}, "listen is a str"),
        ({"secret": 5}, "secret is a str or bytes"),
    ],
)
def test_open_with_wrong_types_is_explained(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        weft.open(**arguments)
