"""NumPy's habits on arrays of other processes, by each path: load and store, process_vm, the owner's engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.share.owner import Owner, until_its_end_is_known

import weft
from weft import errors

PATHS = {
    "load/store": ("weft.empty((300, 7), {!r})", {}),
    "process_vm": ("np.empty((300, 7), {!r})", {}),
    "engine": ("weft.empty((300, 7), {!r})", {"WEFT_ISOLATION": "strict"}),
    "Fortran": ("np.empty((300, 7), {!r}, order='F')", {}),
}
RECORD = [("n", "<i8"), ("x", "<f4", (2,)), ("word", "<U4")]  # 32 bytes: atomic calls need aligned elements


@pytest.fixture(scope="module", params=PATHS)
def owner(request: pytest.FixtureRequest) -> Iterator[tuple[str, Owner]]:
    made, environment = PATHS[request.param]
    with Owner(f"paths-{request.param[:2]}-", **environment) as started:
        yield made, started


@pytest.fixture
def node() -> Iterator[weft.Node]:
    with weft.open() as opened:
        yield opened


@pytest.fixture
def pair(node: weft.Node, owner: tuple[str, Owner], name: Any) -> Iterator[tuple[np.ndarray[Any, Any], Any, Owner]]:
    """A model of an array of doubles, the array as this process sees it, and its owner."""
    made, process = owner
    n = name("habits")
    process.tell(f"a = {made.format('f8')}; a[:] = np.arange(2100).reshape(300, 7); s = node.share(a, {n!r})")
    yield np.arange(2100.0).reshape(300, 7), node.attach(n), process
    process.tell("s.close()")


def owners(process: Owner) -> Any:
    """The owner's array, as the owner sees it."""
    return np.frombuffer(bytes.fromhex(process.tell("np.ascontiguousarray(a).tobytes().hex()"))).reshape(300, 7)


def test_masks_read_and_write(pair: Any) -> None:
    model, remote, process = pair
    mask = np.random.default_rng(3).random(model.shape) < 0.3
    assert np.array_equal(remote[mask], model[mask])
    remote[mask] = -1
    model[mask] = -1
    remote[model.sum(axis=1) > 9000] *= 2
    model[model.sum(axis=1) > 9000] *= 2
    assert np.array_equal(owners(process), model)
    assert np.array_equal(remote, model)


def test_transposed_and_reshaped_parts_read_and_write(pair: Any) -> None:
    model, remote, process = pair
    assert np.array_equal(remote.T.read(), model.T)
    assert np.array_equal(remote.T[2:4, ::-3], model.T[2:4, ::-3])
    remote.T[1] = 5
    model.T[1] = 5
    order = "F" if remote.strides[0] < remote.strides[1] else "C"
    remote.ravel(order)[10:20] = 7
    model.reshape(-1, order=order)[10:20] = 7
    if order == "F":
        columns = model.T.copy().reshape(-1)
        columns[10:20] = 7
        model[...] = columns.reshape(7, 300).T
    assert np.array_equal(owners(process), model)


def test_reductions_and_in_place_operators(pair: Any) -> None:
    model, remote, process = pair
    remote += 1
    remote -= np.arange(7)
    remote[5] /= 4
    model += 1
    model -= np.arange(7)
    model[5] /= 4
    assert np.array_equal(owners(process), model)
    assert np.allclose(remote.sum(axis=0), model.sum(axis=0))
    assert remote.max() == model.max()
    assert np.allclose(np.mean(remote.T, axis=0), model.T.mean(axis=0))
    np.multiply(model, 2, out=remote)
    assert np.array_equal(owners(process), model * 2)


def test_fields_read_and_write(node: weft.Node, owner: tuple[str, Owner], name: Any) -> None:
    made, process = owner
    n = name("records")
    process.tell(f"r = {made.format(RECORD)}; r[:] = 0; q = node.share(r, {n!r})")
    remote = node.attach(n)
    remote["n"] = np.arange(2100).reshape(300, 7)
    remote["x"][3] = 0.5
    remote["word"][0, 0] = "abc"
    assert remote["n"].fetch_add((2, 1), 1000) == 15
    found = process.tell("int(r['n'].sum()), float(r['x'].sum()), str(r['word'][0, 0])")
    assert found == (2100 * 2099 // 2 + 1000, 7, "abc")
    assert remote["n"].T[1, 2] == 1015
    process.tell("q.close()")


def test_atomic_on_a_field_that_is_not_aligned_is_refused(node: weft.Node) -> None:
    """The elements are not torn, and the error says why."""
    remote = node.attach(node.share(np.zeros(4, "i1,i8")))
    remote["f1"][1] = 3
    with pytest.raises(errors.InvalidArgument, match="not a multiple of the datatype's alignment"):
        remote["f1"].add(1, 1)
    assert remote["f1"].sum() == 3


def test_reduction_and_update_of_an_array_whose_owner_dies_fail(node: weft.Node, name: Any) -> None:
    n = name("gone")
    with Owner("gone-") as process:
        process.tell(f"a = weft.zeros(10, 'f8'); s = node.share(a, {n!r})")
        remote = node.attach(n)
        process.kill()
        until_its_end_is_known(remote)
        for call in (lambda: remote.sum(), lambda: remote + 1, lambda: remote.__iadd__(1), lambda: np.sort(remote)):
            with pytest.raises(errors.ConnectionReset, match="is gone"):
                call()
        with pytest.raises(errors.ConnectionReset):
            remote[np.ones(10, bool)] = 3
        assert remote.T.shape == (10,)
