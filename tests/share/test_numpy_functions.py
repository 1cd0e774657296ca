"""Arithmetic, reductions and NumPy's functions on remote arrays give NumPy's results, or say how to get them."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import weft
from weft import errors
from weft.share.arrays import tiles

BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.lshift,
    operator.rshift,
    operator.and_,
    operator.or_,
    operator.xor,
    operator.matmul,
    divmod,
]
IN_PLACE = [
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.ifloordiv,
    operator.imod,
    operator.ipow,
    operator.ilshift,
    operator.irshift,
    operator.iand,
    operator.ior,
    operator.ixor,
]
OTHERS = [
    2,
    0.5,
    True,
    1j,
    np.float32(3),
    [1, 2, 4],
    np.arange(6).reshape(2, 3),
    np.ones((3, 2)),
    "text",
    None,
    [[1], [2]],
]


@pytest.fixture(scope="module")
def node() -> Iterator[weft.Node]:
    with weft.open() as opened:
        yield opened


@pytest.fixture(params=["i4", ">i2", "u1", "f8", "f4", "c16", "?"])
def pair(node: weft.Node, request: pytest.FixtureRequest) -> Iterator[tuple[np.ndarray[Any, Any], Any]]:
    """An array of two dimensions of each kind of number, and the same array as peers see it."""
    local = weft.empty((2, 3), request.param)
    local[:] = [[0, 1, 2], [3, 4, 5]]
    with node.share(local) as shared:
        yield local, node.attach(shared)


def outcome(call: Callable[[], Any]) -> Any:
    """A call's result as something that compares, or the type of its exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = call()
        except Exception as reason:
            return type(reason)
    if isinstance(found, tuple):
        return tuple(outcome(lambda one=one: one) for one in found)
    assert not isinstance(found, weft.RemoteArray)
    return type(found), np.asarray(found).dtype, np.asarray(found).shape, np.asarray(found).tobytes()


# ---- operators ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", OTHERS, ids=repr)
@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
def test_operator_is_numpys(pair: Any, function: Callable[[Any, Any], Any], other: Any) -> None:
    local, remote = pair
    assert outcome(lambda: function(remote, other)) == outcome(lambda: function(local, other))
    assert outcome(lambda: function(other, remote)) == outcome(lambda: function(other, local))


@pytest.mark.parametrize("function", BINARY, ids=lambda f: f.__name__)
def test_operator_of_two_remote_arrays_is_numpys(pair: Any, function: Callable[[Any, Any], Any]) -> None:
    local, remote = pair
    assert outcome(lambda: function(remote, remote.at[::-1])) == outcome(lambda: function(local, local[::-1]))
    assert outcome(lambda: function(remote.T, remote)) == outcome(lambda: function(local.T, local))


@pytest.mark.parametrize(
    "function", [operator.neg, operator.pos, operator.abs, operator.invert], ids=lambda f: f.__name__
)
def test_unary_operator_is_numpys(pair: Any, function: Callable[[Any], Any]) -> None:
    local, remote = pair
    assert outcome(lambda: function(remote)) == outcome(lambda: function(local))


@pytest.mark.parametrize("function", [int, float, complex, operator.index, bool], ids=lambda f: f.__name__)
def test_conversion_to_one_number_is_numpys(pair: Any, function: Callable[[Any], Any]) -> None:
    local, remote = pair
    for key in [(1, 1, ...), (slice(0, 1), slice(0, 1)), ...]:
        wanted = outcome(lambda key=key: function(local[key]))
        assert outcome(lambda key=key: function(remote.at[key])) == wanted


@pytest.mark.parametrize("other", OTHERS, ids=repr)
@pytest.mark.parametrize("function", IN_PLACE, ids=lambda f: f.__name__)
def test_in_place_operator_changes_the_owners_array(pair: Any, function: Callable[[Any, Any], Any], other: Any) -> None:
    local, remote = pair
    wanted = local.copy()
    expected = outcome(lambda: function(wanted, other))
    found = outcome(lambda: np.asarray(function(remote, other)))
    assert found == expected
    assert local.tobytes() == wanted.tobytes()


def test_in_place_operator_keeps_the_name_remote(node: weft.Node) -> None:
    local = np.arange(4.0)
    shared = node.share(local)
    remote = before = node.attach(shared)
    remote += 1
    remote += remote.at[::-1]
    assert remote is before
    mine = shared
    mine *= 2
    assert mine is shared
    assert local.tolist() == [10, 10, 10, 10]
    with pytest.raises(TypeError, match=r"t\[\.\.\.\] = t @ x"):
        remote @= np.eye(4)


def test_in_place_operator_needs_write_access(node: weft.Node) -> None:
    local = np.zeros(4)
    remote = node.attach(node.share(local, access="r"))
    with pytest.raises(errors.AccessDenied, match="access='rw'"):
        remote += 1
    assert remote.sum() == 0


# ---- reductions -----------------------------------------------------------------------------------------------------

REDUCTIONS = ["sum", "prod", "min", "max", "mean", "any", "all"]
numbers = st.sampled_from(["i4", ">i8", "u1", "f8", "f4", "f2", "?", "c8"])


def close(found: Any, wanted: Any) -> bool:
    """Whether two outcomes agree, up to the order in which floating-point numbers are added."""
    if isinstance(wanted, type) or isinstance(found, type):
        return found is wanted
    kinds = [(type(one), np.asarray(one).dtype, np.shape(one)) for one in (found, wanted)]
    return kinds[0] == kinds[1] and np.allclose(found, wanted, rtol=1e-2, atol=1e-2, equal_nan=True)


def raw(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call()
        except Exception as reason:
            return type(reason)


@settings(max_examples=150)
@given(data=st.data())
def test_reduction_is_numpys(node: weft.Node, data: st.DataObject) -> None:
    """In tiles of one, a few or all elements, along any axes, in any order of memory."""
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    local = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 3, shape).astype(data.draw(numbers))
    local = np.asfortranarray(local) if data.draw(st.booleans()) else local
    name = data.draw(st.sampled_from(REDUCTIONS))
    axis = data.draw(st.none() | st.integers(-4, 3) | st.lists(st.integers(-3, 2), max_size=3).map(tuple))
    keepdims = data.draw(st.booleans())
    before = tiles.TILE_BYTES
    with pytest.MonkeyPatch.context() as patch, node.share(local) as shared:
        patch.setattr(tiles.tile_keys, "__defaults__", (data.draw(st.sampled_from([1, 16, 64, before])),))
        remote = node.attach(shared)
        for found, wanted in [
            (
                lambda: getattr(remote, name)(axis, keepdims=keepdims),
                lambda: getattr(local, name)(axis, keepdims=keepdims),
            ),
            (lambda: getattr(np, name)(remote.T, axis), lambda: getattr(np, name)(local.T, axis)),
            (lambda: getattr(np, name)(shared, axis=axis), lambda: getattr(np, name)(local, axis=axis)),
        ]:
            assert close(raw(found), raw(wanted)), (name, axis)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction_into_an_array_is_numpys(pair: Any, name: str) -> None:
    local, remote = pair
    wanted = outcome(lambda: getattr(local, name)(0))
    if isinstance(wanted, type):
        return
    into = np.empty(3, wanted[1])
    assert getattr(remote, name)(0, out=into) is into
    assert into.tobytes() == wanted[3]
    assert getattr(np, name)(remote, 0, out=into) is into
    with pytest.raises(ValueError, match="out has shape"):
        getattr(remote, name)(0, out=np.empty(2, wanted[1]))


def test_reduction_of_a_large_array_makes_no_copy(node: weft.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """No read of a reduction is longer than a tile."""
    local = weft.empty((3000, 1000), "f4")  # 12 MB
    local[:] = np.random.default_rng(2).random(local.shape, "f4")
    remote = node.attach(node.share(local))
    sizes: list[int] = []
    kind = type(remote)
    original = kind.__array__

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        sizes.append(found.nbytes)
        return found

    monkeypatch.setattr(kind, "__array__", counted)
    assert remote.sum() == pytest.approx(local.sum(dtype="f8"), rel=1e-4)
    assert np.allclose(remote.mean(1), local.mean(1))
    assert np.allclose(remote.T.max(0), local.T.max(0))
    assert np.array_equal(remote, local)
    assert sum(sizes) == 4 * local.nbytes
    assert max(sizes) <= tiles.TILE_BYTES
    sizes.clear()
    assert remote.any()
    assert 2.0 not in remote
    assert not np.array_equal(remote, local + 1)
    assert not np.array_equal(remote, local[1:])
    assert max(sizes) <= tiles.TILE_BYTES


def test_reduction_of_an_array_whose_share_is_closed_fails(node: weft.Node) -> None:
    shared = node.share(np.zeros((3000, 1000), "f4"))
    remote = node.attach(shared)
    shared.close()
    with pytest.raises(errors.KeyRejected, match="closed the share"):
        remote.sum()


# ---- NumPy's functions ----------------------------------------------------------------------------------------------

SAME = [
    lambda a: np.sqrt(a),
    lambda a: np.add(a, a),
    lambda a: np.concatenate([a, a, np.ones((1, 3))]),
    lambda a: np.vstack((a, a)),
    lambda a: np.stack([a, a], axis=-1),
    lambda a: np.where(a, a, 7),
    lambda a: np.array_equal(a, a),
    lambda a: np.array_equal(a, [[0, 1, 2], [3, 4, 5]]),
    lambda a: np.array_equal([[0, 1]], a),
    lambda a: np.allclose(a, a),
    lambda a: np.std(a),
    lambda a: np.var(a, axis=0),
    lambda a: np.median(a),
    lambda a: np.argmax(a),
    lambda a: np.cumsum(a, axis=1),
    lambda a: np.dot(a, np.ones(3)),
    lambda a: np.einsum("ij->j", a),
    lambda a: np.linalg.norm(a),
    lambda a: np.sort(a, axis=0),
    lambda a: np.unique(a),
    lambda a: np.flip(a, 0),
    lambda a: np.clip(a, 1, 3),
    lambda a: np.sum(a, axis=1, where=[[True], [False]]),
    lambda a: np.max(a, initial=9),
    lambda a: np.add.reduce(a),
    lambda a: np.add.reduce(a, axis=(0, 1)),
    lambda a: np.multiply.outer(a, [1, 2]),
    lambda a: np.add.accumulate(a),
    lambda a: np.take(a, [0, 5]),
    lambda a: np.take(a, [0, 1], axis=1),
    lambda a: np.zeros_like(a),
    lambda a: np.full_like(a, 1, shape=(2,)),
    lambda a: np.empty_like(a).shape,
    lambda a: np.shape(a),
    lambda a: np.ndim(a),
    lambda a: np.size(a),
    lambda a: np.result_type(a, "f4").str,
    lambda a: np.isrealobj(a),
    lambda a: np.array2string(a),
    lambda a: np.nan_to_num(a),
    lambda a: np.broadcast_arrays(a, 1)[1],
    lambda a: np.apply_along_axis(sum, 0, a),
    lambda a: np.isin(a, [1, 2]),
    lambda a: np.array(np.reshape(a, (3, 2))),
    lambda a: np.array(np.transpose(a)),
    lambda a: np.array(np.ravel(a)),
    lambda a: np.array(np.squeeze(a)),
    lambda a: np.array(np.swapaxes(a, 0, 1)),
    lambda a: list(map(sum, a)),
    lambda a: sorted(a[0].tolist()),
    lambda a: max(a.flatten()),
]


@pytest.mark.parametrize("function", SAME, ids=range(len(SAME)))
def test_function_is_numpys(pair: Any, function: Callable[[Any], Any]) -> None:
    local, remote = pair
    assert outcome(lambda: function(remote)) == outcome(lambda: function(local))


@pytest.mark.parametrize(
    "call",
    [
        lambda out: np.add([1, 2, 3], 4, out=out),
        lambda out: np.add([1, 2, 3], 4, out),
        lambda out: np.sum(np.arange(6).reshape(2, 3), axis=0, out=out),
        lambda out: np.sum(np.arange(6).reshape(2, 3), 0, None, out),
        lambda out: np.add.reduce(np.arange(6).reshape(2, 3), out=out),
        lambda out: np.clip([1, 2, 3], 2, 2, out=out),
        lambda out: np.clip([1, 2, 3], 2, 2, out),
        lambda out: np.concatenate([[1], [2, 3]], out=out),
        lambda out: np.multiply(out, 3, out=out),
        lambda out: np.mean(np.ones((2, 3)), axis=0, out=out),
        lambda out: np.cumsum([1, 2, 3], out=out),
        lambda out: np.negative([1, 2, 3], out=out, where=[True, False, True]),
        lambda out: np.take([5.0, 6, 7], [2, 2, 2], 0, out),
    ],
)
def test_result_is_written_into_a_remote_array(node: weft.Node, call: Callable[[Any], Any]) -> None:
    local = np.array([10.0, 20.0, 30.0])
    wanted = local.copy()
    call(wanted)
    remote = node.attach(node.share(local))
    assert call(remote) is remote
    assert local.tolist() == wanted.tolist()


def test_several_results_are_written_into_remote_arrays(node: weft.Node) -> None:
    local = np.zeros((2, 3))
    remote = node.attach(node.share(local))
    first, second = remote.at[0], np.zeros(3)
    found = np.divmod([7, 8, 9], 4, out=(first, second))
    assert found[0] is first
    assert found[1] is second
    assert local[0].tolist() == [1, 2, 2]
    assert second.tolist() == [3, 0, 1]


@pytest.mark.parametrize(
    ("src", "options"),
    [
        (np.arange(6.0).reshape(2, 3), {}),
        ([1, 2, 3], {}),
        (7, {}),
        (np.arange(3, dtype="f8"), {"where": [[True], [False]]}),
        (4.5, {"where": np.eye(2, 3, dtype=bool)}),
        ([1.5, 2, 3], {"casting": "unsafe"}),
    ],
)
@pytest.mark.parametrize("dtype", ["f8", "i4"])
def test_copyto_is_numpys(node: weft.Node, dtype: str, src: Any, options: dict[str, Any]) -> None:
    local = np.full((2, 3), -1, dtype)
    wanted = local.copy()
    remote = node.attach(node.share(local))
    expected = outcome(lambda: np.copyto(wanted, src, **options))
    assert outcome(lambda: np.copyto(remote, src, **options)) == expected
    assert local.tolist() == wanted.tolist()


def test_copyto_from_a_remote_array_is_a_read(node: weft.Node) -> None:
    remote = node.attach(node.share(np.arange(6).reshape(2, 3)))
    mine = np.zeros((2, 3))
    np.copyto(mine, remote)
    assert mine.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda t: np.put(t, [1], 5), r"t\.put"),
        (lambda t: np.place(t, [[True] * 3] * 2, 5), r"t\[mask\]"),
        (lambda t: np.putmask(t, [[True] * 3] * 2, 5), r"t\[mask\]"),
        (lambda t: np.put_along_axis(t, np.zeros((1, 3), int), 5, 0), r"t\.put"),
        (lambda t: np.fill_diagonal(t, 5), r"t\.write"),
        (lambda t: np.nan_to_num(t, copy=False), r"t\[\.\.\.\] = "),
        (lambda t: np.add.at(t, 0, 5), r"t\.add"),
    ],
)
def test_function_that_would_write_into_a_copy_says_how(node: weft.Node, call: Callable[[Any], Any], text: str) -> None:
    local = np.zeros((2, 3))
    for array in (node.share(local), node.attach(node.share(local))):
        with pytest.raises(TypeError, match=text):
            call(array)
    assert not local.any()


@pytest.mark.parametrize("name", ["std", "argmax", "cumsum", "sort", "dot", "byteswap", "real", "flat", "clip"])
def test_method_that_only_numpys_arrays_have_says_how(node: weft.Node, name: str) -> None:
    shared = node.share(np.zeros((2, 3)))
    for array in (shared, node.attach(shared)):
        with pytest.raises(AttributeError, match=rf"t\.read\(\)\.{name}"):
            getattr(array, name)
        assert not hasattr(array, name)


def test_function_of_shape_reads_nothing(node: weft.Node) -> None:
    shared = node.share(np.zeros((2, 3)))
    remote = node.attach(shared)
    shared.close()
    assert np.shape(remote) == (2, 3)
    assert np.zeros_like(remote).shape == (2, 3)
    assert weft.zeros_like(remote, dtype="i4").tolist() == [[0] * 3] * 2
    assert np.transpose(remote).shape == remote.T.shape == (3, 2)
    with pytest.raises(errors.KeyRejected):
        np.sum(remote)
