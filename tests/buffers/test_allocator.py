"""weft.allocator(): arrays that NumPy makes under it are in memory that peers can map."""

from __future__ import annotations

import os
import sys
import threading

import numpy as np
import pytest
from tests import patience
from tests.fi.support import opened

import weft
from weft import _process, fi


def allocated() -> int:
    return _process.nic().statistics()["allocated_bytes"]


def is_shared(array: object) -> bool:
    """Whether peers reach the array by load and store."""
    with opened() as node:
        mr = node.domain.mr_reg(array, fi.REMOTE_READ, requested_key=1)
        shared = mr.direct
        mr.close()
    return bool(shared)


def test_allocator_arrays_are_reached_by_load_and_store() -> None:
    with weft.allocator():
        made = [np.arange(1000), np.zeros((30, 40), np.float32), np.ones(5) + 1, np.full(7, 3, np.int8)]
    assert all(is_shared(array) for array in made)
    assert not is_shared(np.arange(1000))
    assert made[0].sum() == 499_500
    assert not made[1].any()
    assert made[2].tolist() == [2.0] * 5


def test_allocator_arrays_outlive_the_block_and_free_memory() -> None:
    before = allocated()
    with weft.allocator():
        array = np.arange(100_000)
    assert allocated() >= before + array.nbytes
    view = array[10:20]
    del array
    assert view.tolist() == list(range(10, 20))
    assert allocated() > before
    del view
    assert allocated() == before


def test_resized_array_keeps_its_values_and_its_place() -> None:
    with weft.allocator():
        array = np.arange(1000)
    array.resize(300_000, refcheck=False)
    assert array[:1000].tolist() == list(range(1000))
    assert not array[1000:].any()
    assert is_shared(array)
    array.resize(10, refcheck=False)
    assert array.tolist() == list(range(10))


def test_allocator_restores_numpys_handler_also_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), weft.allocator(), weft.allocator():
        raise ZeroDivisionError
    assert not is_shared(np.arange(10))


def test_allocator_is_the_threads_own() -> None:
    found: list[bool] = []
    with weft.allocator():
        thread = threading.Thread(target=lambda: found.append(is_shared(np.arange(10))))
        thread.start()
        thread.join()
    assert found == [False]


def test_more_than_there_is_room_for_is_a_memory_error() -> None:
    with weft.allocator(), pytest.raises(MemoryError):
        np.empty(1 << 47, np.uint8)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:fork:RuntimeWarning")
def test_forked_child_under_the_allocator_makes_arrays_of_its_own() -> None:
    with weft.allocator():
        inherited = np.full(1 << 21, 7, np.uint8)
        child = os.fork()
        if child == 0:
            try:
                own = np.arange(1000)  # not in the parent's segments
                good = own.sum() == 499_500 and inherited[0] == 7
                del inherited  # must not free, or clear, the parent's pages
                os._exit(0 if good else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (inherited == 7).all()


FORKS = """
import os, sys, warnings
import numpy as np, weft
warnings.simplefilter("always")
def fork():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    print(sum("weft.allocator()" in str(w.message) for w in found))
    return found
fork()                            # nothing was made under the allocator
shared = weft.zeros(10)
fork()                            # memory that is meant to be shared
with weft.allocator():
    gone = np.arange(10)
del gone
fork()                            # nothing is left of it
with weft.allocator():
    kept = [np.arange(10), np.arange(20)]
found = fork()
fork()                            # once
print([str(w.message).splitlines()[0] for w in found if w.category is RuntimeWarning], file=sys.stderr)
"""


@pytest.mark.procs
@pytest.mark.skipif(
    "WEFT_SANITIZED" in os.environ, reason="a sanitizer's allocator does not survive a fork: conftest.py"
)
def test_fork_with_arrays_of_the_allocator_warns_once() -> None:
    """The child shares the arrays with its parent, but NumPy's users expect copies."""
    done = patience.run([sys.executable, "-c", FORKS], check=True, timeout=100)
    assert done.stdout.split() == ["0", "0", "0", "1", "0"], done.stderr
    assert "2 NumPy arrays made under weft.allocator() are alive; the child shares them" in done.stderr
