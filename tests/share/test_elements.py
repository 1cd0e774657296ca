"""Elements of mapped arrays in one C++ call: every index and value gives NumPy's result."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.frames import frames_of_weft
from tests.share.elements import DTYPES, mapped, same, values_of
from tests.share.owner import Owner

import weft
from weft import errors


class Index:
    """An object with `__index__`."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"Index({self.value})"


# ---- which calls run no Python --------------------------------------------------------------------------------------

ROWS = np.arange(8, dtype=np.float64)
OUT = np.empty((16, 8))
DIRECT: dict[str, Callable[[Any, Any], object]] = {
    "t[i]": lambda v, t: v[3],
    "t[-1]": lambda v, t: v[-1],
    "t[i] of a NumPy integer": lambda v, t: v[np.int32(3)],
    "t[i, j]": lambda v, t: t[3, -4],
    "t[i] = x": lambda v, t: v.__setitem__(3, 1.5),
    "t[i] = NumPy scalar": lambda v, t: v.__setitem__(3, np.float64(2)),
    "t[i, j] = x": lambda v, t: t.__setitem__((3, 4), 7),
    "a row": lambda v, t: t[3],
    "a row = x": lambda v, t: t.__setitem__(3, ROWS),
    "a row = number": lambda v, t: t.__setitem__(3, 0),
    "t[a:b]": lambda v, t: v[5:15],
    "t[a:b] = x": lambda v, t: v.__setitem__(slice(5, 13), ROWS),
    "t[a:b] = number": lambda v, t: v.__setitem__(slice(5, 13), 1),
    "t[::2]": lambda v, t: t[::2],
    "t[:, j]": lambda v, t: t[:, 3],
    "t[:, a:b]": lambda v, t: t[:, 2:5],
    "t[..., j]": lambda v, t: t[..., 3],
    "t[newaxis, a:b]": lambda v, t: v[None, 5:15],
    "t[...]": lambda v, t: t[...],
    "t[...] = x": lambda v, t: t.__setitem__(..., OUT),
    "t[indices]": lambda v, t: t[np.array([4, -2, 2])],
    "t[list] = number": lambda v, t: t.__setitem__([4, 2, 2], 1),
    "read": lambda v, t: t.read(),
    "read(out)": lambda v, t: t.read(out=OUT),
    "write": lambda v, t: t.write(OUT),
    "fill": lambda v, t: t.fill(2),
    "take": lambda v, t: t.take([4, 2, 2]),
    "take(out)": lambda v, t: t.take(np.arange(16), out=OUT),
    "put": lambda v, t: t.put([0, 1], OUT[:2]),
    "fetch_add": lambda v, t: v.fetch_add(3),
    "fetch_add of [i, j]": lambda v, t: t.fetch_add((3, 3), 1.5),
    "compare_swap": lambda v, t: v.compare_swap(3, 0, 1),
    "swap": lambda v, t: v.swap(3, 0),
    "fetch_op": lambda v, t: v.fetch_op(3, "max", 9),
    "add": lambda v, t: v.add(3, 2),
    "add of a block": lambda v, t: t.add(OUT),
    "add.at": lambda v, t: v.add.at([3, 3, 3], 1),
    "add.at of rows": lambda v, t: t.add.at(np.array([0, 0]), OUT[:2]),
}


@pytest.mark.parametrize("case", DIRECT)
def test_call_on_a_mapped_array_runs_no_python(home: weft.Node, case: str) -> None:
    """One C++ call for each, on the array of another node and on a part of it."""
    _, v, _ = mapped(home, np.zeros(1000))
    _, t, _ = mapped(home, np.zeros((16, 8)))
    DIRECT[case](v, t)
    assert frames_of_weft(lambda: DIRECT[case](v, t)) == []
    part_of_v, part_of_t = v.at[10:900], t.at[:]
    assert frames_of_weft(lambda: DIRECT[case](part_of_v, part_of_t)) == []


ONE_PIECE = ("t[i]", "t[i, j]", "t[i] = x", "a row", "a row = x", "t[a:b]", "t[a:b] = x", "read(out)", "write")


@pytest.fixture(scope="module")
def owner() -> Iterator[Owner]:
    """Another process, whose NumPy arrays are not of Weft's memory."""
    with Owner(f"test-{os.getpid()}-elements-") as started:
        started.tell("v = np.zeros(1000); t = np.zeros((16, 8)); shares = node.share(v), node.share(t)")
        yield started


@pytest.mark.procs
@pytest.mark.parametrize("case", ONE_PIECE)
def test_call_on_one_piece_of_foreign_memory_runs_no_python(home: weft.Node, owner: Owner, case: str) -> None:
    """The copy through the kernel ends within the one C++ call, too."""
    v, t = (home.attach(owner.tell(f"str(shares[{i}].ticket)")) for i in range(2))
    if v.path != "process_vm":
        pytest.skip(f"the kernel allows no process_vm here: the path is {v.path}")
    before = home.statistics().process_vm
    assert frames_of_weft(lambda: DIRECT[case](v, t)) == []
    assert home.statistics().process_vm == before + 1
    for array, name in ((v, "v"), (t, "t")):
        assert array.read().tobytes().hex() == owner.tell(f"{name}.tobytes().hex()")


def test_calls_on_more_arrays_than_the_nic_remembers_run_no_python(home: weft.Node) -> None:
    arrays = [mapped(home, np.full(4, n, "i8")) for n in range(12)]
    for _, remote, _ in arrays:
        remote.read()

    def round_of_all() -> None:
        for n, (_, remote, _) in enumerate(arrays):
            assert remote[1] == n
            remote[1] = n

    round_of_all()
    assert frames_of_weft(round_of_all) == []


@pytest.mark.parametrize("path", ["foreign", "unpickled"])
def test_call_on_another_path_gives_the_same(home: weft.Node, path: str) -> None:
    """Memory that is not mapped, and an array that is not attached yet."""
    if path == "foreign":
        local = np.zeros((16, 8))
        t = home.attach(home.share(local))
    else:
        local, _, share = mapped(home, np.zeros((16, 8)))
        t = pickle.loads(pickle.dumps(share))
    t[3, 4] = 1.5
    t[0] = 1
    assert t.fetch_add((3, 4), 1) == 1.5
    t.add(np.ones((16, 8)))
    t.add.at([0, 0], np.ones(8))
    expected = np.zeros((16, 8))
    expected[3, 4] = 2.5
    expected[0] = 1
    expected += 1
    np.add.at(expected, [0, 0], np.ones(8))
    assert np.array_equal(local, expected)
    assert np.array_equal(t.read(), expected)


# ---- indices --------------------------------------------------------------------------------------------------------

integers = st.integers(-7, 7)
one_key = st.one_of(
    integers,
    integers.map(np.int8),
    integers.map(np.int64),
    st.integers(0, 7).map(np.uint16),
    integers.map(Index),
    st.slices(6),
    st.builds(
        slice, st.none() | integers, st.none() | integers.map(np.int64), st.none() | st.sampled_from([1, -1, 2, -3])
    ),
    st.just(...),
    st.none(),
    st.sampled_from([True, False, np.True_, 1.0, "a", 10**30, -(10**30)]),
)
keys = one_key | st.lists(one_key, max_size=5).map(tuple) | st.lists(integers, max_size=4)


def outcome(call: Callable[[], Any]) -> Any:
    """A call's result, or the kind of its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except (IndexError, ValueError, TypeError, OverflowError, RuntimeError) as reason:
        return type(reason)


def bool_in(key: Any) -> bool:
    return any(isinstance(k, (bool, np.bool_)) for k in (key if isinstance(key, tuple) else (key,)))


@settings(max_examples=400)
@given(
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6),
    key=keys,
    dtype=st.sampled_from(DTYPES),
    mapping=st.booleans(),
)
def test_any_key_is_numpys(home: weft.Node, shape: tuple[int, ...], key: Any, dtype: str, mapping: bool) -> None:
    """Property: every form of index reads the same value of the same type, or is an IndexError."""
    local = values_of(dtype, shape)
    if mapping:
        local, remote, share = mapped(home, local)
    else:
        share = home.share(local := np.ascontiguousarray(local) if shape else local.copy())
        remote = home.attach(share)
    with share:
        wanted, found = outcome(lambda: local[key]), outcome(lambda: remote[key])
        if bool_in(key):
            assert found is IndexError  # a bool is a mask of no dimensions to NumPy: refused
        elif isinstance(wanted, type) and isinstance(found, type):
            assert issubclass(found, (IndexError, ValueError, TypeError))
        elif isinstance(key, list) and found is TypeError:
            assert key == []
        else:
            if isinstance(wanted, np.ndarray):
                assert isinstance(found, np.ndarray)
                assert isinstance(found, weft.share.ReadOnlyCopy) == (wanted.base is not None) != found.flags.writeable
            else:
                assert type(found) is type(wanted)
            assert np.asarray(found).dtype == np.asarray(wanted).dtype
            assert np.asarray(found).shape == np.asarray(wanted).shape
            assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()


SCALARS: list[Any] = [
    *(0, 1, -1, 127, 128, -129, 255, 256, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**70)),
    *(True, False, 0.0, -0.5, 1e300, float("inf"), float("nan"), 65504.0, 65520.0, 1e-8, 3.4e38, 3.5e38),
    *(1j, 1e300 + 1j, complex("inf"), "7", b"7", None, [1], {}, np.array(5)),
    *(np.int8(-3), np.uint8(200), np.int64(-5), np.uint64(2**63), np.float16(1.5), np.float32(2.5), np.float64(3.5)),
    *(np.bool_(True), np.complex64(1 + 2j), np.complex128(3j), np.longdouble(4), np.datetime64("2020-01-01")),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["element", "row", "rows"])
def test_any_value_is_numpys(home: weft.Node, dtype: str, where: str) -> None:
    """Every kind of value gives the same bytes as NumPy's assignment, or an error where NumPy has one."""
    key: Any = {"element": (1, 2), "row": 1, "rows": slice(0, 3, 2)}[where]
    before = values_of(dtype, (3, 4))
    local, remote, share = mapped(home, before)
    with share:
        for value in SCALARS:
            local[...] = before
            expected = local.copy()
            wanted = outcome(lambda expected=expected, value=value: expected.__setitem__(key, value))
            found = outcome(lambda value=value: remote.__setitem__(key, value))
            if isinstance(value, list) and isinstance(wanted, type):
                continue  # NumPy refuses a list for one record; here it broadcasts
            if isinstance(wanted, type):
                assert isinstance(found, type), (value, wanted)
                same(local, before)
            elif found is None:
                same(local, expected)
            else:  # refused: values that NumPy warns of, or converts by chance
                assert isinstance(value, (complex, str, bytes, list, dict, type(None), np.generic, np.ndarray, int)), (
                    value,
                    found,
                )


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_other_dtypes_are_converted_as_numpy_does(home: weft.Node, dtype: str) -> None:
    for other in DTYPES:
        source = values_of(other, (2, 4))
        local, remote, share = mapped(home, values_of(dtype, (3, 4)))
        with share:
            expected = local.copy()
            wanted = outcome(lambda expected=expected, source=source: expected.__setitem__(slice(1, 3), source))
            found = outcome(lambda remote=remote, source=source: remote.__setitem__(slice(1, 3), source))
            assert isinstance(wanted, type) == isinstance(found, type), (dtype, other, wanted, found)
            if found is None:
                same(local, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_read_and_write_of_a_dtype_are_whole(home: weft.Node, dtype: str) -> None:
    local, remote, share = mapped(home, values_of(dtype, (5, 3)))
    with share:
        out = np.empty((5, 3), dtype)
        assert remote.read(out=out) is out
        assert out.tobytes() == local.tobytes()
        assert remote.read().tobytes() == local.tobytes()
        remote.write(out[::-1].copy())
        assert local.tobytes() == out[::-1].tobytes()
        remote.put([0, -1], out[:2])
        assert remote.take([-1, 0]).tobytes() == out[1::-1].tobytes()


def test_arrays_that_are_not_as_asked_are_left_to_numpy(home: weft.Node) -> None:
    """Broadcast, strided, Fortran order, lists, other shapes, subclasses."""
    local, remote, _ = mapped(home, np.zeros((4, 6)))
    base = np.arange(48.0).reshape(8, 6)
    remote[:] = base[::2]
    assert np.array_equal(local, base[::2])
    remote[:] = np.asfortranarray(base[1::2])
    assert np.array_equal(local, base[1::2])
    remote[1:3] = base[0]
    assert np.array_equal(local[1:3], [base[0], base[0]])
    remote[:, 1:3] = [[1], [2], [3], [4]]
    assert local[:, 2].tolist() == [1, 2, 3, 4]
    remote[0:1, 0:1] = 9
    assert local[0, 0] == 9
    remote[0] = base[:1]
    assert np.array_equal(local[0], base[0])
    with pytest.raises(ValueError, match="broadcast"):
        remote[0:2] = base[:3]
    with pytest.raises(errors.InvalidArgument, match="masked array"):
        remote.read(out=np.ma.zeros((4, 6)))
    matrix = np.zeros((4, 6)).view(type("Named", (np.ndarray,), {}))
    assert remote.read(out=matrix) is matrix
    assert np.array_equal(matrix, local)
    read_only = np.zeros((4, 6))
    read_only.flags.writeable = False
    with pytest.raises(errors.AccessDenied, match="read-only"):
        remote.read(out=read_only)


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 7, 8, 64, 1000, 4096, 65_536, 65_537, 200_000, 1_000_003])
def test_slices_of_all_lengths_move(home: weft.Node, nbytes: int) -> None:
    """Under the NIC's lock, outside it, and without the GIL."""
    source = np.random.default_rng(nbytes).integers(0, 256, nbytes + 2, dtype="u1")
    local, remote, share = mapped(home, np.zeros(nbytes + 2, "u1"))
    with share:
        remote[1:-1] = source[1:-1]
        assert np.array_equal(local[1:-1], source[1:-1])
        assert (local[0], local[-1]) == (0, 0)
        assert np.array_equal(remote[1:-1], source[1:-1])
        remote[1:-1] = 7
        assert (local[1:-1] == 7).all()
        assert (local[0], local[-1]) == (0, 0)


@pytest.mark.parametrize("columns", [500, 512, 513, 1000])
def test_one_value_to_rows_by_index_changes_those_rows_alone(home: weft.Node, columns: int) -> None:
    """Rows shorter and longer than the 4 KiB in which a value is repeated."""
    local, remote, share = mapped(home, np.zeros((6, columns)))
    expected = local.copy()
    with share:
        for indices, value in ([2], 5.0), ([0, 4], 6.0), (np.array([-1]), 7.0):
            remote[indices] = value
            expected[indices] = value
            assert np.array_equal(local, expected)
        remote.put([1], 8.0)
        expected[1] = 8.0
        assert np.array_equal(local, expected)


@pytest.mark.parametrize("count", [127, 128, 129, 256, 511, 512, 2048, 2049])
def test_slices_that_live_share_no_memory(home: weft.Node, count: int) -> None:
    """Around the sizes of reused memory: 1 to 16 KiB."""
    _local, remote, share = mapped(home, np.zeros(count, "i8"))
    with share:
        found = []
        for i in range(30):
            remote.fill(i)
            found.append(remote[:])
            if i % 3 == 0:
                del found[i // 2]
        values = [int(one[0]) for one in found]
        assert len(set(values)) == len(values)
        for one, value in zip(found, values, strict=True):
            assert (one == value).all()
            assert one.flags.c_contiguous
            assert one.flags.f_contiguous
            assert one.flags.aligned
            assert not one.flags.writeable


def test_part_of_a_slice_keeps_its_memory(home: weft.Node) -> None:
    """Its memory is used again only when nothing refers to it."""
    _local, remote, share = mapped(home, np.arange(512))
    with share:
        part = remote[:][10:20]
        pointer = memoryview(remote[:])
        remote.fill(0)
        for _ in range(20):
            remote[:]
        assert part.tolist() == list(range(10, 20))
        assert pointer[511] == 511
        assert pickle.loads(pickle.dumps(part)).tolist() == list(range(10, 20))


def test_threads_read_slices(home: weft.Node) -> None:
    _local, remote, share = mapped(home, np.arange(512))

    def read() -> None:
        for i in range(2000):
            found = remote[i % 256 : i % 256 + 200]
            assert found[0] == i % 256
            assert found[-1] == i % 256 + 199

    with share, ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(read) for _ in range(4)]:
            done.result(60)
