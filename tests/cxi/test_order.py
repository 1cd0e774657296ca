"""Order of one endpoint's operations at their target, as msg_order asks for it: fi_cxi(7) "Message Ordering"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import RW, opened
from tests.fi.support import Node

from weft import fi

ROUNDS = 200


@pytest.fixture
def ordered() -> Iterator[Any]:
    """Opens an endpoint with an order, and 64 KiB that its region of key 200 gives to everyone."""
    undo = []

    def opening(order: int) -> tuple[Node, np.ndarray, int]:
        def edit(info: fi.Info) -> None:
            info.tx_attr.msg_order = fi.Order(order)

        stack = opened(edit=edit)
        at = stack.__enter__()
        memory = np.zeros(1 << 16, np.uint8)
        mr = at.domain.mr_reg(memory, RW, requested_key=200)
        mr.bind(at.ep)
        mr.enable()
        undo.append((mr, stack))
        return at, memory, at.av.insert(at.ep.getname())

    yield opening
    for mr, stack in undo:
        mr.close()
        stack.__exit__(None, None, None)


def drain(at: Node, count: int) -> None:
    while count:
        count -= len(at.cq.sread(timeout=10.0))


@pytest.mark.clause("cxi.order.rma-waw")
@pytest.mark.parametrize("size", [8, 256, 1 << 16])
def test_writes_take_effect_in_the_order_posted(ordered: Any, size: int) -> None:
    at, memory, to = ordered(fi.ORDER_RMA_WAW)
    bufs = [np.full(size, n % 251 + 1, np.uint8) for n in range(ROUNDS)]
    for n, buf in enumerate(bufs):
        at.ep.write(buf, dest_addr=to, addr=0, key=200)
        if n % 50 == 49:
            drain(at, 50)
            assert set(memory[:size].tolist()) == {n % 251 + 1}


@pytest.mark.clause("cxi.order.waw", "cxi.order.waw-any-size")
@pytest.mark.parametrize("size", [8, 1 << 16])
def test_writes_and_atomics_are_ordered_with_each_other(ordered: Any, size: int) -> None:
    at, memory, to = ordered(fi.ORDER_WAW)
    zeros, one = np.zeros(size, np.uint8), np.array([1], np.uint64)
    for _ in range(ROUNDS // 10):
        for _ in range(3):
            at.ep.write(zeros, dest_addr=to, addr=0, key=200)
            at.ep.atomic(one, dest_addr=to, addr=0, key=200, datatype=fi.UINT64, op=fi.SUM)
        drain(at, 6)
        assert int(memory.view(np.uint64)[0]) == 1


@pytest.mark.clause("cxi.order.amo-waw", "cxi.order.amo-raw", "cxi.order.amo-war")
def test_atomics_are_ordered_with_each_other(ordered: Any) -> None:
    at, memory, to = ordered(fi.ORDER_ATOMIC_WAW | fi.ORDER_ATOMIC_RAW | fi.ORDER_ATOMIC_WAR)
    how: dict[str, Any] = {"dest_addr": to, "addr": 0, "key": 200, "datatype": fi.UINT64}
    values = [np.array([n + 1], np.uint64) for n in range(ROUNDS)]
    seen = [np.zeros(1, np.uint64) for _ in range(ROUNDS)]
    for n in range(0, ROUNDS, 2):
        at.ep.atomic(values[n], op=fi.ATOMIC_WRITE, **how)
        at.ep.fetch_atomic(values[n], result=seen[n], op=fi.ATOMIC_READ, **how)  # after the write before
        at.ep.atomic(values[n + 1], op=fi.ATOMIC_WRITE, **how)  # after the read before
        drain(at, 3)
        assert (int(seen[n][0]), int(memory.view(np.uint64)[0])) == (n + 1, n + 2)


@pytest.mark.clause("cxi.order.fetch-as-read")
@pytest.mark.parametrize("size", [8, 1 << 16])
def test_fetching_atomic_reads_what_the_write_before_it_wrote(ordered: Any, size: int) -> None:
    at, memory, to = ordered(fi.ORDER_WAW | fi.ORDER_ATOMIC_RAW | fi.ORDER_ATOMIC_WAR)
    last = size // 8 - 1
    for n in range(ROUNDS // 4):
        first, second = (np.full(size // 8, value, np.uint64) for value in (2 * n + 1, 2 * n + 2))
        got = np.zeros(1, np.uint64)
        at.ep.write(first, dest_addr=to, addr=0, key=200)
        at.ep.fetch_atomic(got, result=got, dest_addr=to, addr=8 * last, key=200, datatype=fi.UINT64, op=fi.ATOMIC_READ)
        at.ep.write(second, dest_addr=to, addr=0, key=200)
        drain(at, 3)
        assert int(got[0]) == 2 * n + 1
        assert int(memory.view(np.uint64)[last]) == 2 * n + 2
