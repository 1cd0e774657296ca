"""Counters of one-sided operations advance by the NIC alone: nobody reads a queue or a counter.

The value is watched in the counter's write-back buffer, which the NIC writes when the value reaches the threshold of a
wait. Between a wait that timed out and the end of the test no process calls Weft but to post.
fi_cxi(7) "OPTIMIZATION", "Counters".
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.procs.children import CALL_S, Child
from tests.procs.cxi_side import CxiSide
from tests.procs.peer import World

from weft import cxi, fi

KEY = 300
N = 40


class Watched:
    """A counter whose value is told by its write-back buffer as soon as it is N."""

    def __init__(self, counter: fi.Counter) -> None:
        self.word = bytearray(8)
        counter.open_ops(cxi.COUNTER_OPS).set_wb_buffer(self.word)
        with pytest.raises(fi.TimedOut):
            counter.wait(N, 0)
        assert cxi.cntr_wb_read(self.word) == 0

    def reaches(self) -> int:
        """The value that the NIC wrote. No call of Weft's objects."""
        deadline = time.monotonic() + CALL_S / 2
        while not cxi.cntr_wb_read(self.word) and time.monotonic() < deadline:
            os.sched_yield()
        return cxi.cntr_wb_read(self.word)


def open_target(world: World) -> cxi.Address:
    side = world.more["side"] = CxiSide("cxi0", None, None)
    counter = side.domain.cntr_open()
    side.region(np.zeros(N, np.uint64), KEY, counter)
    world.more["watched"], world.more["counter"] = Watched(counter), counter
    return side.address


def reaches(world: World) -> int:
    return int(world.more["watched"].reaches())


def close(world: World) -> None:
    side: CxiSide = world.more["side"]
    for mr in side.regions:
        mr.close()
    side.regions.clear()
    world.more["counter"].close()
    side.close()


@pytest.fixture(params=["shared", "strict"])
def target(request: pytest.FixtureRequest, registry: Path) -> Iterator[Child]:
    """Another process: its memory is mapped by the initiator, or only its engine reaches it."""
    with Child(WEFT_ISOLATION=request.param) as child:
        yield child
        child.call(close)


def post(side: CxiSide, peer: int, kind: str) -> None:
    one = np.ones(1, np.uint64)
    for i in range(N):
        if kind == "write":
            side.ep.write(one, None, peer, 8 * i, KEY)
        elif kind == "read":
            side.ep.read(one, None, peer, 8 * i, KEY)
        elif kind == "atomic":
            side.ep.atomic(one, None, peer, 8 * i, KEY, fi.UINT64, fi.SUM)
        else:
            side.ep.fetch_atomic(one, None, np.zeros(1, np.uint64), None, peer, 8 * i, KEY, fi.UINT64, fi.SUM)


def counted(target: Child, kind: str) -> tuple[int, int | None]:
    """What the source's counter and the target's reach."""
    side = CxiSide("cxi0", None, None)
    try:
        peer: Any = side.av.insert(target.call(open_target))
        source = Watched(side.written if kind in ("write", "atomic") else side.fetched)
        watching = target.start(reaches) if kind != "read" else None  # no counter counts what peers read
        post(side, peer, kind)
        return source.reaches(), None if watching is None else watching.result()
    finally:
        side.close()


@pytest.mark.clause("cxi.cntr.rma-source", "cxi.cntr.rma-target")
def test_counters_of_writes_advance_without_progress_of_either_side(target: Child) -> None:
    assert counted(target, "write") == (N, N)


@pytest.mark.clause("cxi.cntr.rma-source")
def test_counter_of_reads_advances_without_progress(target: Child) -> None:
    assert counted(target, "read") == (N, None)


@pytest.mark.clause("cxi.cntr.amo-source", "cxi.cntr.amo-target")
@pytest.mark.parametrize("kind", ["atomic", "fetch"])
def test_counters_of_atomics_advance_without_progress_of_either_side(target: Child, kind: str) -> None:
    assert counted(target, kind) == (N, N)
