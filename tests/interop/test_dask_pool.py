"""Receive buffers: used again when nobody holds them, and given back to the system."""

from __future__ import annotations

import gc
import pickle
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed", reason="Dask's distributed is not installed: pip install 'weft-fabric[dask]'")

from weft.interop.dask import pool as module
from weft.interop.dask.pool import BufferPool

MIB = 1 << 20


def place(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def test_buffer_comes_back_with_the_last_array_over_it() -> None:
    pool = BufferPool(8 * MIB)
    buffer = pool.take(2 * MIB)
    assert buffer.nbytes == 2 * MIB
    assert not buffer.readonly
    where = place(buffer)
    kept = np.frombuffer(buffer, "f8")[100:200]
    del buffer
    gc.collect()
    assert pool.kept == 0
    assert place(pool.take(2 * MIB)) != where
    del kept
    gc.collect()
    assert pool.kept > 0
    assert where in {place(pool.take(2 * MIB)) for _ in range(1)} | {place(pool.take(2 * MIB)) for _ in range(1)}


OVER = {
    "memoryview": lambda buffer: buffer[5:10],
    "cast": lambda buffer: buffer.cast("d"),
    "frombuffer": lambda buffer: np.frombuffer(buffer, "f8"),
    "a view of frombuffer": lambda buffer: np.frombuffer(buffer, "f8")[10:].reshape(-1, 2).T,
    "ndarray": lambda buffer: np.ndarray((1024, 256), "f8", buffer),
    "a view of ndarray": lambda buffer: np.ndarray((1024, 256), "f8", buffer)[3:, ::2],
    "a view of another class": lambda buffer: np.ndarray((1024, 256), "f8", buffer).view(np.matrix),
    "asarray": lambda buffer: np.asarray(buffer)[1:],
    "a record": lambda buffer: np.ndarray(1, [("a", "f8", (1024, 256))], buffer)[0],
    "pickle": lambda buffer: pickle.loads(
        pickle.dumps(np.empty(MIB // 4), 5, buffer_callback=[].append), buffers=[buffer]
    ),
    "the object of a memoryview": lambda buffer: memoryview(buffer.obj)[7:],
}


@pytest.mark.parametrize("kind", OVER)
def test_buffer_stays_taken_while_anything_is_over_it(kind: str) -> None:
    pool = BufferPool(8 * MIB)
    buffer = pool.take(2 * MIB)
    kept = OVER[kind](buffer)
    del buffer
    gc.collect()
    assert pool.kept == 0
    del kept
    gc.collect()
    assert pool.kept == 2 * MIB


def test_free_buffers_have_a_limit() -> None:
    pool = BufferPool(4 * MIB)
    buffers = [pool.take(2 * MIB) for _ in range(5)]
    del buffers
    gc.collect()
    assert pool.kept == 4 * MIB


def test_new_buffers_take_the_place_of_old_ones() -> None:
    """Frames have the size of the last frames: a pool full of another size helps nobody."""
    pool = BufferPool(8 * MIB)
    old = [pool.take(2 * MIB) for _ in range(4)]
    del old
    gc.collect()
    where = place(pool.take(7 * MIB))
    gc.collect()
    assert pool.kept == 7 * MIB
    assert place(pool.take(7 * MIB)) == where


def test_buffer_longer_than_the_pool_leaves_the_others() -> None:
    pool = BufferPool(8 * MIB)
    pool.take(2 * MIB)
    pool.take(9 * MIB)
    gc.collect()
    assert pool.kept == 2 * MIB


def test_pool_of_no_bytes_keeps_nothing() -> None:
    pool = BufferPool(0)
    pool.take(2 * MIB)
    gc.collect()
    assert pool.kept == 0


@pytest.mark.parametrize("nbytes", [0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB + 7, 9 * MIB - 1])
def test_buffer_has_the_length_that_was_asked_for(nbytes: int) -> None:
    assert BufferPool(64 * MIB).take(nbytes).nbytes == nbytes


def test_unused_buffers_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    pool = BufferPool(8 * MIB)
    pool.take(2 * MIB)
    gc.collect()
    pool.trim()
    assert pool.kept == 2 * MIB
    now[0] += module.IDLE_S_MAX + 1
    pool.trim()
    assert pool.kept == 0


def test_threads_take_and_return() -> None:
    pool = BufferPool(16 * MIB)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for i in range(100):
            buffer = pool.take(MIB + (seed * 100 + i) % 3)
            mine = np.frombuffer(buffer, np.uint8)
            mine[:8] = seed
            if (mine[:8] != seed).any():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    gc.collect()
    assert pool.kept <= 16 * MIB
