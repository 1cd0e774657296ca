"""Groups: arguments, members of one process, and calls that differ. Processes: tests/procs/test_group.py."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import weft
from weft import errors
from weft.share.groups.reducing import sum_reproducibly


def together(name: str, size: int, work: Callable[[weft.Group], Any]) -> list[Any]:
    """Run work(group) in `size` members, threads of this process with a node each; results by rank."""

    def member(rank: int) -> Any:
        with weft.open() as node, weft.Group(name, size, rank, node=node, timeout=60) as group:
            return work(group)

    with ThreadPoolExecutor(size) as pool:
        return [call.result() for call in [pool.submit(member, rank) for rank in range(size)]]


def test_group_of_one_needs_nobody(node: weft.Node, name: Callable[[str], str]) -> None:
    with weft.Group(name("g"), 1, node=node) as group:
        group.barrier()
        assert group.allreduce(5) == 5
        assert group.broadcast([1.0, 2.0]).tolist() == [1.0, 2.0]
        assert group.reduce(np.arange(3), "max").tolist() == [0, 1, 2]


def test_numbers_come_back_as_scalars(name: Callable[[str], str]) -> None:
    found = together(
        name("g"), 2, lambda g: (g.allreduce(g.rank + 1), g.allreduce(0.5), g.broadcast(7 if g.rank else None, 1))
    )
    assert found == [(3, 1.0, 7)] * 2
    assert isinstance(found[0][0], np.int64)
    assert isinstance(found[0][1], np.float64)


def test_only_the_root_of_a_reduce_gets_the_result(name: Callable[[str], str]) -> None:
    some, big = np.ones(100), np.ones(100_000)
    found = together(
        name("g"), 3, lambda g: (g.reduce(1, root=2), *(g.reduce(one, root=1) is None for one in (some, big)))
    )
    assert found == [(None, True, True), (None, False, False), (3, True, True)]


def test_out_takes_the_result(name: Callable[[str], str]) -> None:
    def work(group: weft.Group) -> bool:
        out = np.zeros((2, 3))
        same = group.allreduce(np.full((2, 3), group.rank + 1.0), out=out) is out
        return same and bool((out == 3).all()) and group.broadcast(out * 2, out=out) is out and bool((out == 6).all())

    assert together(name("g"), 2, work) == [True, True]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 5, 1000, 40_000, 300_001])
def test_the_source_may_be_the_result(size: int, n: int, name: Callable[[str], str]) -> None:
    def work(group: weft.Group) -> list[bool]:
        found = []
        for dtype, op, expected in (("f8", "sum", sum(range(1, size + 1))), ("i2", "max", size)):
            values = np.full(n, group.rank + 1, dtype)
            values[-1] = 0
            group.allreduce(values, op, values)
            found.append(bool((values[:-1] == expected).all()) and values[-1] == 0)
        return found

    assert together(name("g"), size, work) == [[True, True]] * size


def test_broadcast_keeps_fields_and_shapes(name: Callable[[str], str]) -> None:
    sent = np.array([[(1, 2.5)], [(3, -1.0)]], [("count", "i4"), ("mean value", "f8")])

    def work(group: weft.Group) -> tuple[np.ndarray[Any, Any], str]:
        found = group.broadcast(sent if group.rank == 0 else None)
        dates = group.broadcast(np.array("2026-11-23", "M8[D]") if group.rank == 1 else None, root=1)
        return found, str(dates)

    for found, dates in together(name("g"), 2, work):
        assert found.dtype == sent.dtype
        assert found.shape == sent.shape
        assert (found == sent).all()
        assert dates == "2026-11-23"


def test_a_call_that_cannot_be_described_is_refused_and_the_group_goes_on(
    node: weft.Node, name: Callable[[str], str]
) -> None:
    with weft.Group(name("g"), 1, node=node) as group:
        wide = np.zeros(2, [(f"a field with a long name {n}", "f8") for n in range(20)])
        with pytest.raises(errors.TooSmall, match="try: the bytes of the array"):
            group.broadcast(wide)
        assert group.allreduce(2) == 2


def test_members_that_differ_are_told(name: Callable[[str], str]) -> None:
    def work(group: weft.Group) -> str:
        try:
            group.allreduce(np.zeros(10 + group.rank, "f4"))
        except errors.FabricError as error:
            return str(error)
        return ""

    for text in together(name("g"), 2, work):
        assert "does something else" in text


def test_awaitable_calls_leave_the_loop_free(name: Callable[[str], str]) -> None:
    async def use(group: weft.Group) -> Any:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        if group.rank == 0:
            while turns < 100:  # the other member waits in its call meanwhile
                await asyncio.sleep(0)
        await group.abarrier()
        total = await group.aallreduce(np.arange(4))
        value = await group.abroadcast(group.rank, root=1)
        part = await group.areduce(2.0)
        ticking.cancel()
        return total.tolist(), value, part, turns >= 1

    found = together(name("g"), 2, lambda g: asyncio.run(use(g)))
    assert found == [([0, 2, 4, 6], 1, 4.0, True), ([0, 2, 4, 6], 1, None, True)]


def test_a_rank_joins_once(name: Callable[[str], str]) -> None:
    shown = name("g")
    inside, done = threading.Event(), threading.Event()

    def first() -> None:
        with weft.open() as node:
            inside.set()
            with weft.Group(shown, 2, 0, node=node, wait=60):
                done.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(60)
    try:
        with weft.open() as node:
            while shown not in weft.Node.names():
                pass
            table = node.attach(shown)
            table.wait_until((1, 0), lambda word: word != 0, timeout=60)
            with pytest.raises(errors.AddressInUse, match=r"rank 0 of .* has come already"):
                weft.Group(shown, 2, 0, node=node, wait=0)
            with pytest.raises(errors.InvalidArgument, match="has 2 members"):
                weft.Group(shown, 3, 1, node=node, wait=0)
            with weft.Group(shown, 2, node=node, wait=60) as group:
                assert group.rank == 1
    finally:
        done.set()
        thread.join()


def test_members_that_do_not_come_are_named(node: weft.Node, name: Callable[[str], str]) -> None:
    with pytest.raises(errors.TimedOut, match=r"2 of 3 members .* have not come: ranks 0, 2"):
        weft.Group(name("g"), 3, 1, node=node, wait=0.05)


def test_members_may_meet_at_a_table_by_its_ticket(node: weft.Node) -> None:
    with node.share(weft.Group.table(2)) as table:
        ticket = str(table.ticket)
        assert together(ticket, 2, lambda g: g.allreduce(1)) == [2, 2]


def test_a_shared_array_that_is_no_table_is_refused(node: weft.Node, name: Callable[[str], str]) -> None:
    node.share(np.zeros(3), name=name("a"))
    with pytest.raises(errors.InvalidArgument, match="not the table of a group"):
        weft.Group(name("a"), 2, node=node, wait=0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("x", 0), errors.InvalidArgument),
        (("x", 5000), errors.InvalidArgument),
        (("x", 2, 2), errors.InvalidArgument),
        (("x", 2.0), TypeError),
        (("x", True), TypeError),
        (("x", 2, "0"), TypeError),
        ((None, 2), TypeError),
    ],
)
def test_useless_arguments_are_refused(node: weft.Node, arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        weft.Group(*arguments, node=node, wait=0)


def test_useless_values_are_refused_and_the_group_goes_on(node: weft.Node, name: Callable[[str], str]) -> None:
    with weft.Group(name("g"), 1, node=node) as group:
        refused: list[tuple[Callable[[], Any], type[Exception]]] = [
            (lambda: group.allreduce(None), TypeError),
            (lambda: group.allreduce("text"), TypeError),
            (lambda: group.allreduce([object()]), TypeError),
            (lambda: group.allreduce(1.0, "and"), TypeError),
            (lambda: group.allreduce(1, "mean"), errors.InvalidArgument),
            (lambda: group.allreduce(np.ones(2), out=np.ones(3)), ValueError),
            (lambda: group.allreduce(np.ones(2), out=np.ones(2, "f4")), TypeError),
            (lambda: group.allreduce(1j, reproducible=True), TypeError),
            (lambda: group.broadcast(1, root=1), errors.InvalidArgument),
        ]
        for call, error in refused:
            with pytest.raises(error):
                call()
        assert group.allreduce(2) == 2


def test_closing_the_node_closes_its_groups(name: Callable[[str], str]) -> None:
    node = weft.open()
    group = weft.Group(name("g"), 1, node=node)
    node.close()
    assert group.closed
    with pytest.raises(errors.BadState, match="the group is closed"):
        group.allreduce(1)


def test_calls_after_close_say_so(node: weft.Node, name: Callable[[str], str]) -> None:
    group = weft.Group(name("g"), 1, node=node)
    assert repr(group).endswith("rank 0 of 1, open>")
    group.close()
    group.close()
    assert group.closed
    with pytest.raises(errors.BadState, match="the group is closed"):
        group.barrier()


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 12), st.just(3)), elements=st.floats(width=64)),
    st.randoms(use_true_random=False),
)
def test_reproducible_sum_does_not_depend_on_the_order(rows: np.ndarray[Any, Any], random: Any) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    assert sum_reproducibly(rows).tobytes() == sum_reproducibly(rows[order]).tobytes()


@given(hnp.arrays(np.float64, st.tuples(st.integers(1, 12), st.just(1)), elements=st.floats(-1e300, 1e300)))
def test_reproducible_sum_is_close_to_the_exact_sum(rows: np.ndarray[Any, Any]) -> None:
    exact = math.fsum(rows[:, 0].tolist())
    largest = float(np.abs(rows).max())
    assert abs(float(sum_reproducibly(rows)[0]) - exact) <= 4e-16 * abs(exact) + largest * 2.0**-110 + 5e-324
