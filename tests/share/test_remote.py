"""RemoteArray against NumPy: reading, writing, index arrays, atomics; this process's own arrays and another's."""

from __future__ import annotations

import array
import os
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.share.owner import Owner

import weft
from weft import errors

KINDS = ["weft", "numpy"]


def make(kind: str, values: Any) -> np.ndarray[Any, Any]:
    """An array in memory that peers can map, or cannot map."""
    given_values = np.asarray(values)
    made = weft.empty(given_values.shape, given_values.dtype) if kind == "weft" else np.empty_like(given_values)
    made[...] = given_values
    return made


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, node: weft.Node) -> tuple[np.ndarray[Any, Any], Any]:
    """A local array and the remote array that reaches it."""
    local = make(request.param, np.arange(6 * 7 * 8, dtype=np.float32).reshape(6, 7, 8))
    return local, node.attach(node.share(local))


KEYS = [
    3,
    -1,
    slice(2, 5),
    slice(None, None, -1),
    slice(5, 1, -2),
    slice(4, 4),
    (2, 3),
    (2, 3, 4),
    (-1, -1, -1),
    (slice(None), 3),
    (slice(1, 5, 2), slice(None), 0),
    (slice(None), slice(None), slice(7, None, -3)),
    (..., 2),
    (1, ..., 2),
    (None, 2),
    (..., None),
    (slice(0, 3), None, 2, None, slice(1, 4)),
    (),
    ...,
    (..., 0, 1, 2),
    np.int64(2),
    (np.int16(1), 2),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_getitem_basic_index_is_numpys(pair: tuple[np.ndarray[Any, Any], Any], key: Any) -> None:
    local, remote = pair
    found = remote[key]
    assert np.array_equal(found, local[key])
    assert isinstance(found, np.ndarray) == isinstance(local[key], np.ndarray)
    assert found.dtype == local.dtype
    assert found.shape == local[key].shape


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_setitem_basic_index_is_numpys(pair: tuple[np.ndarray[Any, Any], Any], key: Any) -> None:
    local, remote = pair
    expected = local.copy()
    new = -np.arange(expected[key].size, dtype=np.float32).reshape(expected[key].shape)
    expected[key] = new
    remote[key] = new
    assert np.array_equal(local, expected)
    expected[key] = 17
    remote[key] = 17
    assert np.array_equal(local, expected)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_at_view_reads_and_indexes_as_numpys(pair: tuple[np.ndarray[Any, Any], Any], key: Any) -> None:
    local, remote = pair
    view, expected = remote.at[key], local[key]
    assert (view.shape, view.ndim, view.size, view.nbytes) == (
        expected.shape,
        expected.ndim,
        expected.size,
        expected.nbytes,
    )
    assert np.array_equal(view.read(), expected)
    if expected.ndim and expected.shape[0]:
        assert np.array_equal(view[-1], expected[-1])
        assert np.array_equal(view[::-2], expected[::-2])
        assert np.array_equal(view.take([0, -1]), expected.take([0, -1], axis=0))


def test_attributes_are_numpys(pair: tuple[np.ndarray[Any, Any], Any]) -> None:
    local, remote = pair
    for name in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize"):
        assert getattr(remote, name) == getattr(local, name)
    assert len(remote) == len(local)
    assert np.array_equal(np.asarray(remote), local)
    assert np.asarray(remote, dtype="f8").dtype == np.float64
    assert [row.sum() for row in remote] == [row.sum() for row in local]


@st.composite
def shape_and_index(draw: st.DrawFn) -> tuple[tuple[int, ...], Any]:
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=6))
    return shape, draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))


@pytest.fixture(scope="module")
def shared_node() -> Any:
    with weft.open() as opened:
        yield opened


@settings(max_examples=200)
@given(
    case=shape_and_index(),
    then=st.data(),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(["u1", "i2", "f4", "f8", "c16", "S3", "U2", "m8[s]", "i4,f8", ">i4"]),
)
def test_any_index_is_numpys(
    shared_node: weft.Node, case: tuple[tuple[int, ...], Any], then: st.DataObject, kind: str, dtype: str
) -> None:
    """Property: reads and writes by any basic index of any view work as in NumPy."""
    shape, key = case
    size = int(np.prod(shape))
    if dtype[0] in "SU":
        given_values = np.arange(size).astype(dtype)
    else:
        given_values = (np.arange(size * np.dtype(dtype).itemsize) % 127).astype("u1").view(dtype)
    local = make(kind, given_values.reshape(shape))
    with shared_node.share(local) as share:
        remote = shared_node.attach(share)
        expected = local.copy()
        assert remote[key].tobytes() == expected[key].tobytes()
        view = remote.at[key]
        inner = expected[key]
        if isinstance(inner, np.ndarray) and inner.ndim:
            again = then.draw(hnp.basic_indices(inner.shape, allow_newaxis=True, allow_ellipsis=True))
            assert view[again].tobytes() == inner[again].tobytes()
            if view.shape[0]:
                rows = then.draw(st.lists(st.integers(-inner.shape[0], inner.shape[0] - 1), max_size=5))
                assert view.take(rows).tobytes() == np.take(inner, np.array(rows, int), axis=0).tobytes()
            fresh = np.zeros(inner.shape, inner.dtype)
            view.write(fresh)
            inner[...] = fresh
            assert local.tobytes() == expected.tobytes()


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("indices", [[0, 2, 2, -1], [[1, 0], [-1, 3]], 3, [], np.array([2], "u1")], ids=str)
def test_take_and_put_are_numpys(pair: tuple[np.ndarray[Any, Any], Any], indices: Any, axis: int) -> None:
    local, remote = pair
    wanted = np.asarray(indices, dtype=int)
    expected = np.take(local, wanted, axis=axis)
    found = remote.take(indices, axis=axis)
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)
    out = np.empty(expected.shape, local.dtype)
    assert remote.take(indices, axis=axis, out=out) is out
    assert np.array_equal(out, expected)
    key = (slice(None),) * (axis % 3) + (wanted,)
    model = local.copy()
    model[key] = 5
    remote.put(indices, 5, axis=axis)
    assert np.array_equal(local, model)


def test_index_array_alone_takes_and_puts(pair: tuple[np.ndarray[Any, Any], Any]) -> None:
    local, remote = pair
    mask = np.array([True, False, True, False, False, True])
    assert np.array_equal(remote[[4, 0]], local[[4, 0]])
    assert np.array_equal(remote[mask], local[mask])
    remote[mask] = -1
    assert (local[mask] == -1).all()


def test_read_out_takes_any_kind_of_array(node: weft.Node) -> None:
    local = weft.zeros(4, "i4")
    local[:] = [1, 2, 3, 4]
    remote = node.attach(node.share(local))
    for out in (np.empty(4, "i4"), array.array("i", [0] * 4), bytearray(16), memoryview(bytearray(16)).cast("i")):
        assert remote.read(out=out) is out
        assert bytes(out) == local.tobytes()


def test_write_converts_the_same_kind_only(node: weft.Node) -> None:
    local = weft.zeros(3, "f4")
    remote = node.attach(node.share(local))
    remote.write([1, 2, 3])
    remote.write(np.array([1.5, 2, 3], "f8"))
    assert local.tolist() == [1.5, 2, 3]
    remote[...] = np.array([7, 8, 9], "i8")
    assert local.tolist() == [7, 8, 9]
    remote.write(array.array("f", [1, 2, 3]))
    assert local.tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_fill_of_parts_and_of_more_than_a_chunk(node: weft.Node, kind: str) -> None:
    local = make(kind, np.zeros((3, 700_000), "u2"))
    remote = node.attach(node.share(local))
    remote.fill(3)
    assert (local == 3).all()
    remote.at[:, ::2].fill(4)
    assert (local[:, ::2] == 4).all()
    assert (local[:, 1::2] == 3).all()
    remote.at[1:].fill(5)
    assert (local[1:] == 5).all()
    assert (local[0, ::2] == 4).all()


def test_more_pieces_than_one_batch(node: weft.Node) -> None:
    local = weft.zeros((70_000, 2), "i8")
    local[:, 1] = np.arange(70_000)
    remote = node.attach(node.share(local))
    assert np.array_equal(remote[:, 1], local[:, 1])
    remote[:, 0] = remote[::-1, 1]
    assert np.array_equal(local[:, 0], local[::-1, 1])


@pytest.mark.parametrize("dtype", ["i4", "u8", "f4", "f8", "i1"])
def test_atomics_are_numpys(node: weft.Node, dtype: str) -> None:
    local = weft.zeros((4, 5), dtype)
    local[:] = np.arange(20).reshape(4, 5)
    remote = node.attach(node.share(local))
    before = local.copy()
    assert remote.fetch_add((1, 2), 3) == before[1, 2]
    assert local[1, 2] == before[1, 2] + 3
    assert np.array_equal(remote.fetch_add((slice(None), 0)), before[:, 0])
    assert np.array_equal(local[:, 0], before[:, 0] + 1)
    row = remote.at[3]
    assert row.fetch_add(0, 2) == 16
    assert row.swap(1, 9) == 16
    assert row.compare_swap(1, 8, 1) == 9
    assert row[1] == 9
    assert row.compare_swap(1, 9, 1) == 9
    assert row[1] == 1
    assert row.fetch_op(1, "max", 7) == 1
    assert row[1] == 7
    remote.add(..., np.ones((4, 5), dtype))
    assert remote.fetch_op((0, 4), "min", 2) == 5
    assert local[0, 4] == 2
    with pytest.raises(errors.InvalidArgument, match="'sum', 'prod'"):
        remote.fetch_op(0, "plus", 1)


def test_atomics_of_unsigned_wrap(node: weft.Node) -> None:
    local = weft.zeros(2, "u4")
    local[:] = 5
    remote = node.attach(node.share(local))
    assert remote.fetch_add(0, -1) == 5
    assert remote.fetch_add(slice(None), -2).tolist() == [4, 5]
    assert local.tolist() == [2, 3]


def test_pickle_reaches_the_same_array(node: weft.Node) -> None:
    local = weft.zeros((4, 4), "i8")
    share = node.share(local)
    for sent in (share, node.attach(share), node.attach(share).at[1::2, ::-1]):
        got = pickle.loads(pickle.dumps(sent))
        assert isinstance(got, weft.RemoteArray)
        assert got.path == "memory"
        got[0, 0] += 1
    assert local[0, 0] == 2
    assert local[1, 3] == 1
    assert len(pickle.dumps(share)) < 1000


def test_ticket_as_text(node: weft.Node) -> None:
    local = weft.zeros(3, [("a", "i4"), ("b", "f8", (2,))])
    local["b"] = 2.5
    share = node.share(local, access="r")
    text = str(share.ticket)
    assert " " not in text
    got = node.attach(text)
    assert got.dtype == local.dtype
    assert got[1]["b"].tolist() == [2.5, 2.5]
    with pytest.raises(errors.InvalidArgument, match="is no ticket"):
        node.attach(text[:40])


def test_bfloat16(node: weft.Node) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    local = weft.zeros(4, ml_dtypes.bfloat16)
    local[:] = [1, 2, 3, 4]
    remote = node.attach(str(node.share(local).ticket))
    assert remote.dtype == local.dtype
    assert float(remote[2]) == 3
    assert remote.fetch_add(0, 2) == 1
    assert float(local[0]) == 3


def test_empty_and_zero_dimensional(node: weft.Node) -> None:
    none = node.attach(node.share(np.empty((0, 3))))
    assert none.read().shape == (0, 3)
    assert none[:, 1].shape == (0,)
    none[...] = 4
    with pytest.raises(IndexError, match="out of bounds"):
        none[0]
    point = np.array(7.0)
    remote = node.attach(node.share(point))
    assert remote.shape == ()
    assert remote[()] == 7
    remote[...] = 8
    assert point == 8
    assert remote.fetch_add((), 1) == 8
    assert remote.read() == 9
    with pytest.raises(TypeError, match="without dimensions"):
        len(remote)


# ---- another process ------------------------------------------------------------------------------------------------


@pytest.mark.procs
@pytest.mark.parametrize("made", ["weft.zeros((50, 4), 'f8')", "np.zeros((50, 4))"])
def test_other_process_sees_and_is_seen(node: weft.Node, owner: Owner, name: Any, made: str) -> None:
    n = name("a")
    owner.tell(f"a = {made}; a[:] = np.arange(200).reshape(50, 4); s = node.share(a, {n!r})")
    remote = node.attach(n)
    model = np.arange(200.0).reshape(50, 4)
    assert np.array_equal(remote.read(), model)
    assert remote.path == ("load/store" if "weft" in made else "process_vm")
    remote[3, ::2] = -1
    remote.put([1, 2], 9)
    assert remote.fetch_add((10, 1), 0.5) == 41
    model[3, ::2], model[[1, 2]] = -1, 9
    model[10, 1] += 0.5
    assert owner.tell("a.tobytes().hex()") == model.tobytes().hex()
    assert np.array_equal(remote[::-7, 1:3], model[::-7, 1:3])
    owner.tell("s.close()")


@pytest.mark.procs
def test_strict_owner_is_served_by_its_engine(node: weft.Node, name: Any) -> None:
    n = name("a")
    with Owner("strict-", WEFT_ISOLATION="strict") as owner:
        owner.tell(f"a = np.arange(1000.0); s = node.share(a, {n!r})")
        remote = node.attach(n)
        assert np.array_equal(remote[::3], np.arange(1000.0)[::3])
        remote[5:10] = 0
        assert owner.tell("a[4:11].tolist()") == [4, 0, 0, 0, 0, 0, 10]
        assert remote.fetch_add(0, 1) == 0
        assert remote.path == "engine"
        assert "strict" in remote.why


@pytest.mark.procs
def test_multiprocessing_queue_carries_arrays(node: weft.Node) -> None:
    import multiprocessing

    local = weft.zeros(8, "i8")
    share = node.share(local)
    # A sanitizer's allocator does not survive a fork beside other threads.
    methods = ("spawn",) if os.environ.get("WEFT_SANITIZED") else ("spawn", "fork")
    for method in methods:
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        worker = context.Process(target=_add_from_queue, args=(queue, share))
        worker.start()
        queue.put(share)
        queue.put(node.attach(share).at[4:])
        worker.join(60)
        assert worker.exitcode == 0
    assert local.tolist() == [2 * len(methods), 0, 0, 0, len(methods), 0, 0, 0]


def _add_from_queue(queue: Any, sent: Any) -> None:
    for remote in (queue.get(timeout=30), queue.get(timeout=30), pickle.loads(pickle.dumps(sent))):
        remote.fetch_add(0, 1)


@pytest.mark.procs
def test_fork_child_uses_inherited_arrays(node: weft.Node, owner: Owner, name: Any) -> None:
    """A RemoteArray of the parent attaches again in the child; the parent's node refuses in the child."""
    import os

    n = name("a")
    owner.tell(f"a = weft.zeros(4, 'i8'); s = node.share(a, {n!r})")
    remote = node.attach(n)
    remote[0] = 1
    child = os.fork()
    if child == 0:
        code = 1
        try:
            remote.fetch_add(0, 41)
            try:
                node.attach(n)
            except errors.BadState as refusal:
                code = 0 if "weft.open() in the child" in str(refusal) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert remote[0] == 42
