"""The friendly layer's types for mypy and pyright. Never run: tests/meta/test_types.py gives it to the type checkers.

Each `assert_type` fails the check if the type is another one, `Any` included.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from typing_extensions import assert_type

import weft
from weft import errors, fi
from weft.share import NodeStatistics, default_node

Array = np.ndarray[Any, Any]


def nodes() -> None:
    assert_type(weft.open(), weft.Node)
    with weft.open(timeout=5.0, listen="tcp://0.0.0.0:0", secret="0123456789abcdef") as node:
        assert_type(node, weft.Node)
        assert_type(node.share([], name="x", access="r"), weft.Shared)
        assert_type(node.attach("x"), weft.RemoteArray)
        assert_type(node.attach("x", wait=3), weft.RemoteArray)
        assert_type(node.names(), list[str])
        assert_type(node.shared, list[weft.Shared])
        assert_type(node.statistics(), NodeStatistics)
        assert_type(node.statistics().shared_bytes, int)
        assert_type(node.closed, bool)
        assert_type(node.close(), None)
    assert_type(default_node(), weft.Node)
    assert_type(weft.share([], "x", "r"), weft.Shared)
    assert_type(weft.attach("x", wait=1), weft.RemoteArray)


async def awaited(node: weft.Node, t: weft.RemoteArray) -> None:
    assert_type(await node.aattach("x"), weft.RemoteArray)
    assert_type(await t.aread(), Array)
    assert_type(await t.awrite([1]), None)


def arrays(t: weft.RemoteArray) -> None:
    assert_type(weft.empty(3), Array)
    assert_type(weft.zeros((3, np.int64(4)), "f4"), Array)
    assert_type(weft.ones([3]), Array)
    assert_type(weft.full((2, 2), 7), Array)
    assert_type(weft.array([1, 2]), Array)
    assert_type(weft.empty_like(t), Array)
    assert_type(weft.zeros_like(t, "i4"), Array)
    assert_type(weft.ones_like(t, shape=3), Array)
    assert_type(weft.full_like(t, 5), Array)
    manager: AbstractContextManager[None] = weft.allocator()
    with manager:
        pass


def remote(t: weft.RemoteArray) -> None:
    assert_type(t.shape, tuple[int, ...])
    assert_type(t.view(), Array)
    assert_type(t.view("rw"), Array)
    assert_type(t.__dlpack_device__(), tuple[int, int])
    assert_type(t.strides, tuple[int, ...])
    assert_type(t.dtype, np.dtype[Any])
    assert_type(t.ndim, int)
    assert_type(t.size, int)
    assert_type(t.nbytes, int)
    assert_type(len(t), int)
    assert_type(t.path, str)
    assert_type(t.ticket, weft.Ticket)
    assert_type(t.read(), Array)
    mine = np.zeros(3, "f8")
    assert_type(t.read(out=bytearray(8)), bytearray)
    assert t.read(mine) is mine
    assert_type(t.take([1, 2]), Array)
    assert_type(t.take([1, 2], out=bytearray(8)), bytearray)
    assert_type(t.view("rw"), Array)
    assert_type(t.write([1, 2]), None)
    assert_type(t.put([1], [2]), None)
    assert_type(t.fill(0), None)
    assert_type(t.add(3, 1), None)
    local: Array = np.asarray(t)
    del local


def selections(t: weft.RemoteArray) -> None:
    assert_type(t["field"], weft.RemoteArray)
    assert_type(t[1:3], Array)
    assert_type(t[...], Array)
    assert_type(t[[1, 2]], Array)
    assert_type(t[t > 3], Array)
    assert_type(t[t.read() > 3], Array)
    assert_type(t[["a", "b"]], Array)
    assert_type(t.at[1:3], weft.RemoteArray)
    assert_type(t.at[0, 1], weft.RemoteArray)
    assert_type(t.field("a"), weft.RemoteArray)
    assert_type(t.T, weft.RemoteArray)
    assert_type(t.transpose(1, 0), weft.RemoteArray)
    assert_type(t.reshape(2, -1), weft.RemoteArray)
    assert_type(t.reshape((2, -1)), weft.RemoteArray)
    assert_type(t.ravel(), weft.RemoteArray)
    assert_type(t.squeeze(), weft.RemoteArray)
    assert_type(t.astype("f4"), Array)
    assert_type(t.copy(), Array)
    assert_type(t.flatten(), Array)


def operators(t: weft.RemoteArray) -> None:
    assert_type(t + 1, Array)
    assert_type(1 / t, Array)
    assert_type(-t, Array)
    assert_type(t @ t, Array)
    assert_type(t == 1, Array)
    assert_type(t != t, Array)
    assert_type(t < 3, Array)
    assert_type(3 in t, bool)
    assert_type(bool(t), bool)
    assert_type(float(t), float)
    before = t
    t += 1
    t *= before
    assert_type(t, weft.RemoteArray)


def shared(s: weft.Shared) -> None:
    assert_type(s.remote, weft.RemoteArray)
    assert_type(s.name, str)
    assert_type(s.shape, tuple[int, ...])
    assert_type(s.read(), Array)
    assert_type(s[0:3], Array)
    assert_type(s + 1, Array)
    assert_type(s.at[3], weft.RemoteArray)
    assert_type(s.close(), None)
    with s as same:
        assert_type(same, weft.Shared)


def groups(node: weft.Node) -> None:
    with weft.Group("name", 2, node=node) as group:
        assert_type(group, weft.Group)
        assert_type(group.barrier(), None)
        assert_type(group.rank, int)
        assert_type(group.size, int)


def failures() -> None:
    assert_type(weft.NotFound("no such name"), errors.NotFound)
    error: OSError = weft.FabricError("")
    try:
        raise error
    except weft.FabricError as caught:
        assert_type(caught, errors.FabricError)
        assert_type(caught.message, str)


def dialects(ep: fi.Endpoint) -> None:
    assert_type(fi.getinfo(), list[fi.Info])
    assert_type(fi.getinfo()[0].domain_attr, fi.DomainAttr)


def coordination(node: weft.Node, t: weft.RemoteArray) -> None:
    lock = weft.Lock("lock", node=node, create=True)
    with lock as held:
        assert_type(held, weft.Lock)
    assert_type(lock.acquire(timeout=1.0), bool)
    assert_type(lock.try_acquire(), bool)
    assert_type(lock.release(), None)
    assert_type(lock.recover(), bool)
    assert_type(lock.holder, int | None)
    assert_type(weft.Semaphore("permits", 2).acquire(), bool)
    assert_type(weft.Event("event").wait(timeout=1), bool)
    assert_type(weft.Event("event").is_set(), bool)
    assert_type(weft.Barrier("barrier", 3).wait(), int)
    queue = weft.Queue("queue", 16, dtype="f8", shape=(3,))
    assert_type(queue.put([1, 2, 3], timeout=1), None)
    assert_type(queue.qsize(), int)
    assert_type(queue.ticket, weft.Ticket)
    assert_type(t.notify(0, at=slice(1, 3), data=7), None)


async def awaited_coordination(lock: weft.Lock, queue: weft.Queue, barrier: weft.Barrier) -> None:
    async with lock as held:
        assert_type(held, weft.Lock)
    assert_type(await lock.aacquire(), bool)
    assert_type(await barrier.await_(), int)
    assert_type(await queue.aput(1), None)
