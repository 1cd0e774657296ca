"""Indexing, masks, fields and shapes of remote arrays are NumPy's, for arrays of every order and dtype."""

from __future__ import annotations

import copy
import dataclasses
import operator
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import weft
from weft import errors
from weft.share.arrays.copies import ReadOnlyCopy

RECORD = np.dtype([("a", ">i2"), ("b", "f8", (2,)), ("c", "U3"), ("d", [("x", "?"), ("y", "c8")])])
DTYPES = [np.dtype(code) for code in ("i4", ">i4", "f8", ">f2", "c8", "?", "S3", "U2", ">U2", "M8[s]", "V5")] + [RECORD]


@pytest.fixture(scope="module")
def node() -> Iterator[weft.Node]:
    with weft.open() as opened:
        yield opened


@st.composite
def local_arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Arrays of zero to four dimensions, some without elements, in C and in Fortran order."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    count = int(np.prod(shape)) * dtype.itemsize
    if dtype.kind in "US" or dtype == RECORD:
        found = np.zeros(shape, dtype)
        for i in range(found.size):
            value: Any = "ab"[i % 2] if dtype != RECORD else (i, (i, -i), "xyz"[i % 3], (i % 2, i))
            found[np.unravel_index(i, shape)] = value
    else:
        noise = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 120, count, np.uint8)
        found = (noise % 2 if dtype.kind == "b" else noise).view(np.uint8).tobytes()
        found = np.frombuffer(found, dtype, int(np.prod(shape))).reshape(shape).copy()
    return np.asfortranarray(found) if draw(st.booleans()) else np.asarray(found, order="C")


def same(found: Any, wanted: Any) -> bool:
    """Whether two results are scalars of the same type, or arrays of the same shape and dtype, of the same bytes."""
    if isinstance(wanted, np.ndarray):
        return isinstance(found, np.ndarray) and (found.dtype, found.shape, found.tobytes()) == (
            wanted.dtype,
            wanted.shape,
            wanted.tobytes(),
        )
    return type(found) is type(wanted) and bytes(found.data) == bytes(wanted.data)


def whole(remote: Any) -> np.ndarray[Any, Any]:
    """All elements; not read(), which returns a scalar for one."""
    return np.asarray(remote)


@settings(max_examples=150)
@given(local=local_arrays(), data=st.data())
def test_selection_reads_and_writes_as_numpys(node: weft.Node, local: Any, data: st.DataObject) -> None:
    with node.share(local) as shared:
        remote = node.attach(str(shared.ticket))
        assert same(remote[...], local[...])
        assert same(np.asarray(remote), local)
        key = data.draw(hnp.basic_indices(local.shape, max_dims=6, allow_newaxis=True, allow_ellipsis=True))
        assert same(remote[key], local[key])
        wanted = np.asarray(local[key], local.dtype)
        assert same(whole(remote.at[key]), wanted)
        into = np.empty(local.shape, local.dtype)
        remote.read(out=into)
        assert same(into, local)
        new = np.zeros_like(wanted)
        if wanted.ndim:
            new[..., :1] = wanted[..., :1]
        remote[key] = new
        assert same(np.asarray(local[key], local.dtype), new)
        part = pickle.loads(pickle.dumps(remote.at[key]))
        assert same(whole(part), whole(remote.at[key]))


@settings(max_examples=100)
@given(local=local_arrays(), data=st.data())
def test_mask_selects_and_writes_as_numpys(node: weft.Node, local: Any, data: st.DataObject) -> None:
    dims = data.draw(st.integers(0, local.ndim))
    mask = data.draw(hnp.arrays(bool, local.shape[:dims]))
    with node.share(local) as shared:
        for remote in (shared, node.attach(shared)):
            assert same(remote[mask], local[mask])
            turned = remote.T
            other = data.draw(hnp.arrays(bool, local.T.shape))
            assert same(turned[other], local.T[other])
        wanted = local.copy()
        values = local[mask][::-1].copy()
        wanted[mask] = values
        shared[mask] = values
        assert same(local, wanted)


@settings(max_examples=60)
@given(local=local_arrays(), data=st.data())
def test_transposed_reshaped_and_squeezed_are_numpys(node: weft.Node, local: Any, data: st.DataObject) -> None:
    with node.share(local) as shared:
        remote = node.attach(shared)
        assert remote.strides == local.strides or local.size == 0 or 1 in local.shape
        axes = data.draw(st.permutations(range(local.ndim)))
        assert same(whole(remote.T), local.T)
        assert same(whole(remote.transpose(axes)), local.transpose(axes))
        assert same(whole(remote.transpose(*axes)), local.transpose(*axes))
        assert same(whole(remote.squeeze()), local.squeeze())
        assert same(remote.flatten(), local.flatten())
        assert same(remote.copy(), local.copy())
        if local.ndim:
            assert same(whole(remote.swapaxes(0, -1)), local.swapaxes(0, -1))
        order = "F" if local.flags.fnc else "C"
        assert same(whole(remote.ravel(order)), local.ravel(order))
        assert same(
            whole(remote.reshape(local.shape + (1,), order=order)), local.reshape(local.shape + (1,), order=order)
        )
        if local.dtype.names is None:
            assert remote.tolist() == local.tolist()


# ---- what a read returns --------------------------------------------------------------------------------------------


@pytest.fixture
def table(node: weft.Node) -> Any:
    local = weft.empty((3, 4), "i4")
    local[:] = np.arange(12).reshape(3, 4)
    return node.attach(node.share(local))


@pytest.mark.parametrize(
    "key", [0, slice(0, 2), (slice(None), 1), (1, slice(0, 2)), ..., None, np.int64(0), slice(9, 9)]
)
def test_assignment_to_a_read_copy_says_how_to_write(table: Any, key: Any) -> None:
    before = table.read()
    with pytest.raises(ValueError, match=r"(?s)copy.*t\[0, 1\] = 7 or t\.at\[0\]\[1\] = 7"):
        table[key][...] = 7
    with pytest.raises(ValueError, match="read-only"):
        table[key].fill(7)
    with pytest.raises(ValueError, match="read-only"):
        np.copyto(table[key], 7)
    assert same(table.read(), before)


def test_assignment_to_a_row_says_how_to_write(table: Any) -> None:
    with pytest.raises(ValueError, match="read-only"):
        table[0][1] = 7
    with pytest.raises(ValueError, match="read-only"):
        table[0][1] += 7
    for row in table:
        with pytest.raises(ValueError, match="read-only"):
            row[0] = 1
    table[0, 1] = 7
    table.at[1][1] = 7
    assert table[:, 1].tolist() == [7, 7, 9]


def test_in_place_operator_on_a_selection_writes(table: Any) -> None:
    table[0] += 1
    table[1:, 2:] *= 2
    table[table.read() == 0] |= 64
    table[1, 1] -= 5
    assert table.read().tolist() == [[1, 2, 3, 4], [4, 0, 12, 14], [8, 9, 20, 22]]
    with pytest.raises(TypeError, match="same_kind"):
        table[0] += 0.5


def test_read_copy_gives_ordinary_arrays(table: Any) -> None:
    row = table[0]
    assert type(row) is ReadOnlyCopy
    assert repr(row) == repr(np.arange(4, dtype="i4"))
    ordinary = [
        row + 1,
        1 - row,
        row > 1,
        np.sort(row),
        np.where(row > 1, row, 0),
        row.copy(),
        row.astype("f8"),
        copy.copy(row),
        copy.deepcopy(row),
        pickle.loads(pickle.dumps(row)),
        pickle.loads(pickle.dumps(row, 5)),
        table.read(),
        table.at[0].read(),
        np.asarray(table),
        table.take([0]),
    ]
    for found in ordinary:
        assert type(found) is np.ndarray
        assert found.flags.writeable
    assert isinstance(row.sum(), np.int64)
    assert isinstance(row[0], np.int32)


def test_index_arrays_and_masks_give_arrays_that_can_be_changed(table: Any) -> None:
    """As in NumPy, where they give copies and not views."""
    for found in (table[[2, 0]], table[np.array([True, False, True])], table[table > 5]):
        assert type(found) is np.ndarray
        found[0] = 9


def test_field_is_a_remote_array(node: weft.Node) -> None:
    local = np.zeros(4, RECORD)
    remote = node.attach(node.share(local))
    remote["a"] = [1, -2, 3, 4]
    remote["b"][1:3] = 7.5
    remote["c"][0] = "xyz"
    remote["d"]["y"] = 1j
    remote["a"][3] = 5
    assert same(remote["a"][:], local["a"])
    assert same(remote["b"][:], local["b"])
    assert local["c"].tolist() == ["xyz", "", "", ""]
    assert local["a"].tolist() == [1, -2, 3, 5]
    assert local["b"].tolist() == [[0, 0], [7.5, 7.5], [7.5, 7.5], [0, 0]]
    assert local["d"]["y"].tolist() == [1j] * 4
    field = pickle.loads(pickle.dumps(remote["b"]))
    assert same(field[2], local["b"][2])
    assert "a field of" in repr(field)
    assert same(remote.at["a"].read(), local["a"])


def test_field_can_be_updated_atomically(node: weft.Node) -> None:
    local = np.zeros(4, [("n", "i8"), ("x", "f8")])
    remote = node.attach(node.share(local))
    assert remote["n"].fetch_add(2, 5) == 0
    remote["x"].add(slice(None), 0.5)
    assert local.tolist() == [(0, 0.5), (0, 0.5), (5, 0.5), (0, 0.5)]


def test_several_fields_are_read_and_written(node: weft.Node) -> None:
    local = np.zeros(3, "i4,f8,U3")
    remote = node.attach(node.share(local))
    remote[["f2", "f0"]] = [("a", 1), ("b", 2), ("c", 3)]
    assert local.tolist() == [(1, 0, "a"), (2, 0, "b"), (3, 0, "c")]
    found = remote[["f0", "f2"]]
    assert found.tolist() == [(1, "a"), (2, "b"), (3, "c")]
    found["f0"] = 9


def test_record_cannot_be_changed_without_the_owner(node: weft.Node) -> None:
    remote = node.attach(node.share(np.zeros(3, "i4,f8")))
    with pytest.raises(ValueError, match="read-only"):
        remote[1]["f0"] = 5
    remote[1] = (5, 6)
    assert remote[1].tolist() == (5, 6)


@pytest.mark.parametrize(
    ("use", "error", "text"),
    [
        (lambda t: t["a"], IndexError, "no fields"),
        (lambda t: t.field("a"), IndexError, "no fields"),
        (lambda t: t[np.zeros((3, 5), bool)], IndexError, "differ along axis 1"),
        (lambda t: t[np.zeros((3, 4, 1), bool)], IndexError, "differ along axis 2"),
        (lambda t: operator.setitem(t, np.ones((3, 4), bool), [1, 2]), ValueError, "broadcast"),
        (lambda t: t.reshape(5), ValueError, "reshape array of size 12"),
        (lambda t: t.T.reshape(12), ValueError, r"t\.read\(\)\.reshape"),
        (lambda t: t.T.ravel(), ValueError, r"t\.read\(\)\.reshape"),
        (lambda t: t.reshape("x"), TypeError, "integer"),
        (lambda t: t.transpose(0, 5), ValueError, "axis"),
        (lambda t: t.item(), ValueError, "size 1"),
        (lambda t: t.item(12), IndexError, "out of bounds"),
        (lambda t: t.astype("M8[s]", casting="safe"), TypeError, "cast"),
    ],
)
def test_wrong_selection_is_explained(table: Any, use: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        use(table)


def test_field_that_does_not_exist_is_explained(node: weft.Node) -> None:
    with pytest.raises(ValueError, match="no field of name 'z'; there are 'f0', 'f1'"):
        node.attach(node.share(np.zeros(2, "i4,i4")))["z"]


def test_element_is_had_as_pythons_own_value(table: Any) -> None:
    assert table.item(5) == table.item(1, 1) == table.item((1, 1)) == table.item(-7) == 5
    assert type(table.item(0)) is int
    assert table.at[0, 3].item() == 3


@pytest.mark.parametrize("wanted", ["f4", ">i8", "?", "U", "S5", "c16"])
@pytest.mark.parametrize("order", ["K", "C", "F", "A"])
def test_astype_is_numpys(table: Any, wanted: str, order: Any) -> None:
    for remote in (table, table.T, table.at[::2, ::-1]):
        assert same(remote.astype(wanted, order), remote.read().astype(wanted, order))


def test_fortran_array_is_shared_as_it_is(node: weft.Node) -> None:
    local = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    shared = node.share(local)
    assert shared.ticket.order == "F"
    assert shared.array is local
    remote = node.attach(shared)
    assert remote.strides == local.strides
    assert remote[...].flags.f_contiguous  # one copy, in the owner's order
    remote[0, 2] = 7
    assert local[0, 2] == 7
    assert weft.share.Ticket.parse(str(shared.ticket)) == shared.ticket
    assert node.attach(str(shared.ticket)).strides == local.strides
    assert node.share(local.T).ticket.order == "C"


def test_ticket_of_another_order_is_refused(node: weft.Node) -> None:
    ticket = node.share(np.zeros((2, 3), order="F")).ticket
    with pytest.raises(errors.InvalidArgument, match="invalid fields"):
        weft.share.Ticket.parse(str(dataclasses.replace(ticket, order="X")))


def test_array_larger_than_a_tile_is_read_in_tiles(node: weft.Node) -> None:
    local = weft.empty((1500, 700))  # 8 MB
    local[:] = np.random.default_rng(1).random(local.shape)
    remote = node.attach(node.share(local))
    assert same(remote.astype("f4"), local.astype("f4"))
    assert same(remote.T.astype("f4"), local.T.astype("f4"))
    assert sum(1 for _ in remote) == 1500
    assert all(same(row, wanted) for row, wanted in zip(remote, local, strict=True))
    remote *= 2
    assert remote.sum() == pytest.approx(local.sum())
