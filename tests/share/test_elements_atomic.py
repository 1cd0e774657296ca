"""Rows by index, and atomics on elements, blocks and rows, beside NumPy."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.share.elements import NUMBERS, mapped, values_of

import weft

# ---- rows -----------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6),
    kind=st.sampled_from(["i8", "i4", "u1", "u8", "list", "strided"]),
    data=st.data(),
)
def test_take_and_put_of_any_rows_are_numpys(home: weft.Node, shape: tuple[int, ...], kind: str, data: Any) -> None:
    local, remote, share = mapped(home, values_of("f4", shape))
    low = 0 if kind[0] == "u" else -shape[0] - 1
    given_indices = data.draw(st.lists(st.integers(low, shape[0]), max_size=8))
    indices: Any = np.array(given_indices, "i8" if kind in ("list", "strided") else kind)
    if kind == "list":
        indices = given_indices
    elif kind == "strided":
        indices = np.repeat(indices, 2)[::2]
    with share:
        if any(not -shape[0] <= i < shape[0] for i in given_indices):
            for call in (lambda: remote.take(indices), lambda: remote.put(indices, 1), lambda: remote.add.at(indices)):
                with pytest.raises(IndexError, match="out of bounds"):
                    call()
            assert local.tobytes() == values_of("f4", shape).tobytes()
            return
        whole = np.asarray(indices, "i8")
        assert remote.take(indices).tobytes() == local.take(whole, axis=0).tobytes()
        expected = local.copy()
        new = -np.arange(whole.size * int(np.prod(shape[1:])), dtype="f4").reshape(whole.shape + shape[1:])
        expected[whole] = new
        remote.put(indices, new)
        assert np.array_equal(local, expected)
        expected[whole] = 5
        remote[indices] = 5
        assert np.array_equal(local, expected)


def test_indices_that_change_during_the_call_never_leave_the_array(home: weft.Node) -> None:
    """A thread that writes the index array while rows move: every row that arrives is a row of the array."""
    guard = weft.zeros((30_000, 4), "i8")
    guard[:10_000] = 1
    remote = home.attach(home.share(guard)).at[:10_000]
    indices = np.zeros(8192, "i8")
    done = threading.Event()

    def scramble() -> None:
        while not done.is_set():
            indices[4000:] = 20_000
            indices[4000:] = 0

    thread = threading.Thread(target=scramble)
    thread.start()
    try:
        for _ in range(200):
            try:
                assert remote.take(indices).min() == 1
            except IndexError:
                pass
    finally:
        done.set()
        thread.join()


SCRAMBLE = """
import sys, numpy as np
indices = np.memmap(sys.argv[1], "i8", "r+")
print(flush=True)
while True:
    indices[4000:] = 20_000
    indices[4000:] = 0
"""


@pytest.mark.parametrize("axis", [0, 1])
def test_indices_that_another_process_changes_never_leave_the_array(home: weft.Node, tmp_path: Path, axis: int) -> None:
    guard = weft.zeros((30_000, 2) if axis == 0 else (2, 30_000), "i8")
    part = np.s_[:10_000] if axis == 0 else np.s_[:, :10_000]
    guard[part] = 1
    remote = home.attach(home.share(guard)).at[part]
    file = tmp_path / "indices"
    file.write_bytes(bytes(8192 * 8))
    indices = np.memmap(file, "i8", "r")
    writer = subprocess.Popen([sys.executable, "-c", SCRAMBLE, str(file)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        for _ in range(20_000):
            try:
                assert remote.take(indices, axis=axis).min() == 1
            except IndexError:
                pass
    finally:
        writer.kill()
        writer.wait()
        assert writer.stdout is not None
        writer.stdout.close()


# ---- atomics --------------------------------------------------------------------------------------------------------

ATOMIC = [dtype for dtype in NUMBERS if dtype != "?"]
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "replace": lambda a, b: b,
}


@pytest.mark.parametrize("dtype", ATOMIC)
@pytest.mark.parametrize("op", OPS)
def test_atomics_of_every_dtype_are_numpys(home: weft.Node, dtype: str, op: str) -> None:
    local, remote, share = mapped(home, np.arange(1, 7).astype(dtype).reshape(2, 3))
    possible = (dtype[0] != "c" or op not in ("min", "max")) and (dtype[0] in "iu" or op not in ("and", "or", "xor"))
    with share:
        if not possible:
            for call in (
                lambda: remote.fetch_op((0, 0), op, 1),
                lambda: remote.add((0, 0), 1, op=op),
                lambda: remote.add(np.ones((2, 3), dtype), op=op),
                lambda: remote.add.at([0], 1, op),
            ):
                with pytest.raises(TypeError, match="no atomic"):
                    call()
            return
        expected = local.copy()
        for value in (3, expected.dtype.type(2)):
            expected[1, 1] = OPS[op](expected[1, 1], expected.dtype.type(value))
            before = local[1, 1]
            found = remote.fetch_op((1, 1), op, value)
            assert (found, type(found)) == (before, type(before))
            assert local.tobytes() == expected.tobytes()
        expected[0, 1] = OPS[op](expected[0, 1], expected.dtype.type(5))
        remote.add((0, 1), 5, op)
        block = np.arange(6)[::-1].astype(dtype).reshape(2, 3)
        expected[...] = OPS[op](expected, block)
        remote.add(block, op=op)
        assert local.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [">i4", ">f8", "S3", "m8[s]", "i4,f8", "?", "g"])
def test_atomics_that_do_not_exist_are_refused(home: weft.Node, dtype: str) -> None:
    _, remote, share = mapped(home, values_of(dtype, (4,)))
    if dtype == "g":
        remote.fetch_add(0, 1)  # a long double has atomics, executed by NumPy's side of the conversion
        return
    with share:
        for call in (
            lambda: remote.fetch_add(0, 1),
            lambda: remote.add(np.zeros(4, dtype)),
            lambda: remote.add.at([0], 1),
        ):
            with pytest.raises(TypeError, match="no atomic"):
                call()


@settings(max_examples=150)
@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5),
    dtype=st.sampled_from(["i8", "u2", "f8", "f4", "c16"]),
    form=st.sampled_from(["rows", "list", "matrix", "int", "slice", "tuple", "mask", "broadcast"]),
    data=st.data(),
)
def test_add_at_is_numpys(home: weft.Node, shape: tuple[int, ...], dtype: str, form: str, data: Any) -> None:
    """numpy.add.at: an index that occurs several times counts each time."""
    local, remote, share = mapped(home, np.arange(int(np.prod(shape))).astype(dtype).reshape(shape))
    n = shape[0]
    rows = data.draw(st.lists(st.integers(-n, n - 1), min_size=1, max_size=9))
    keys_of: dict[str, Any] = {
        "rows": np.array(rows),
        "broadcast": np.array(rows),
        "list": rows,
        "matrix": np.array([rows, rows]),
        "int": rows[0],
        "slice": slice(0, n, 2),
        "tuple": (np.array(rows), *(np.array([k % m for k in range(len(rows))]) for m in shape[1:])),
        "mask": np.arange(n) % 2 == 0,
    }
    key = keys_of[form]
    expected = local.copy()
    selected = expected[key]
    values: Any = 3
    if form == "broadcast":
        values = np.arange(shape[-1]).astype(dtype) if len(shape) > 1 else np.ones(1, dtype)
    elif form in ("rows", "tuple", "matrix"):
        values = (np.arange(selected.size) % 5).astype(dtype).reshape(selected.shape)
    with share:
        np.add.at(expected, key, np.asarray(values).astype(dtype))
        remote.add.at(key, values)
        assert np.array_equal(local, expected)
        np.maximum.at(expected, np.array(rows), np.asarray(4).astype(dtype)) if dtype[0] != "c" else None
        if dtype[0] != "c":
            remote.add.at(rows, 4, op="max")
            assert np.array_equal(local, expected)


def test_add_of_a_block_to_the_array_and_to_a_part(home: weft.Node) -> None:
    local, remote, _ = mapped(home, np.zeros((300, 70)))
    block = np.random.default_rng(3).random((300, 70))
    remote.add(block)
    remote.at[10:20].add(block[:10])
    remote.at[:, 3].add(block[:, 0])
    remote.add(block.astype("f4").astype("f8"), op="max")
    expected = block.copy()
    expected[10:20] += block[:10]
    expected[:, 3] += block[:, 0]
    assert np.array_equal(local, np.maximum(expected, block.astype("f4")))
    remote.add(remote)
    assert np.array_equal(local, 2 * np.maximum(expected, block.astype("f4")))
    with pytest.raises(ValueError, match=r"shape \(70,\).*\n  try: t.add\(..., values\)"):
        remote.add(block[0])
    with pytest.raises(TypeError, match="complex128"):
        remote.add(block * 1j)
    with pytest.raises(IndexError, match="index arrays"):
        remote.add([0, 1])  # a list is an index that atomics do not take, as ever


def test_add_of_an_index_alone_adds_one(home: weft.Node) -> None:
    local, remote, _ = mapped(home, np.zeros(4, "i8"))
    remote.add(1)
    remote.add(np.int64(1))
    remote.add(np.array(2))
    remote.add(slice(0, 2))
    remote.add(...)
    assert local.tolist() == [2, 4, 2, 1]


def test_adds_of_threads_are_not_lost(home: weft.Node) -> None:
    """Single elements, blocks and scatters at once, with and without the GIL."""
    local, remote, _ = mapped(home, np.zeros(20_000, "i8"))
    block, everywhere = np.ones(20_000, "i8"), np.arange(20_000)

    def work(number: int) -> None:
        for _ in range(10):
            remote.add(block)
            remote.add.at(everywhere, block)
            for i in range(100):
                remote.fetch_add(i, 1)
                remote.add(i)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (local[:100] == 4 * 10 * 4).all()
    assert (local[100:] == 4 * 10 * 2).all()
