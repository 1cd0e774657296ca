"""Groups of processes: every member gets the right values; the death of a member ends the others' calls."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from tests.procs import group_facts
from tests.procs.children import Child

pytestmark = pytest.mark.procs

_names = itertools.count()


class Members:
    """Processes that have joined a group."""

    def __init__(self, children: list[Child], name: str) -> None:
        self.children = children
        self.name = name
        calls = [
            child.start(group_facts.join, name, len(children), rank if len(children) > 2 else None)
            for rank, child in enumerate(children)
        ]
        self.ranks = [call.result() for call in calls]

    def all(self, function: object, *args: object) -> list[object]:
        """Call in every member at the same time; the results in the order of ranks."""
        calls = [child.start(function, self.name, *args) for child in self.children]  # type: ignore[arg-type]
        results = [call.result() for call in calls]
        return [result for _, result in sorted(zip(self.ranks, results, strict=True), key=lambda pair: pair[0])]


def new_name() -> str:
    return f"group-{os.getpid()}-{next(_names)}"


@pytest.fixture(scope="module", params=[2, 5])
def members(request: pytest.FixtureRequest) -> Iterator[Members]:
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child()) for _ in range(request.param)]
        yield Members(children, new_name())


def test_every_member_has_a_rank_of_its_own(members: Members) -> None:
    assert sorted(members.ranks) == list(range(len(members.children)))


def result_of(rows: list[np.ndarray], dtype: str, op: str) -> bytes:
    function = {"sum": np.add, "xor": np.bitwise_xor, "max": np.maximum, "prod": np.multiply}[op]
    expected = function.reduce(np.array(rows), axis=0, dtype=dtype) if op in ("sum", "prod") else function.reduce(rows)
    return bytes(expected.tobytes())


@pytest.mark.parametrize("n", [0, 1, 4, 5, 1000, 40_000, 700_001])
@pytest.mark.parametrize(("dtype", "op"), [("i8", "sum"), ("f8", "sum"), ("u1", "xor"), ("f4", "max"), ("i4", "prod")])
def test_allreduce_gives_every_member_the_same_result(members: Members, n: int, dtype: str, op: str) -> None:
    rows = [group_facts.values(rank, n, dtype) for rank in range(len(members.children))]
    assert members.all(group_facts.add_up, n, dtype, op) == [result_of(rows, dtype, op)] * len(members.children)


def test_members_that_map_no_memory_of_each_other_read_it_through_the_nics() -> None:
    """One of three members is in strict isolation: the others map each other's windows alone."""
    with Child() as a, Child() as b, Child(WEFT_ISOLATION="strict") as alone:
        members = Members([a, b, alone], new_name())
        for n in (100, 300_001):
            rows = [group_facts.values(rank, n, "f8") for rank in range(3)]
            assert members.all(group_facts.add_up, n, "f8", "sum") == [result_of(rows, "f8", "sum")] * 3


@pytest.mark.parametrize("n", [1, 3, 100_000, 1_500_000])
def test_broadcast_gives_the_roots_values(members: Members, n: int) -> None:
    root = len(members.children) - 1
    expected = group_facts.values(root, n, "f4").tobytes()
    assert members.all(group_facts.hand_out, root, n) == [expected] * len(members.children)


def test_small_reductions_and_barriers_follow_each_other(members: Members) -> None:
    size = len(members.children)
    assert members.all(group_facts.count_in_turn, 200) == [sum(range(size)) + 199 * size] * size


def test_reproducible_sum_has_the_same_bits_whichever_member_has_which_row(members: Members) -> None:
    rng = np.random.default_rng(1)
    size = len(members.children)
    rows = rng.standard_normal((size, 5000)) * 10.0 ** rng.integers(-20, 20, (size, 5000))
    first = [child.start(group_facts.exact_sum, members.name, rows[k]) for k, child in enumerate(members.children)]
    found = {call.result() for call in first}
    again = [child.start(group_facts.exact_sum, members.name, rows[-1 - k]) for k, child in enumerate(members.children)]
    assert found == {call.result() for call in again}
    assert len(found) == 1


def test_a_killed_member_ends_the_calls_of_the_others() -> None:
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child()) for _ in range(4)]
        members = Members(children, new_name())
        waiting = [child.start(group_facts.barrier, members.name) for child in children[:3]]
        children[3].kill()
        children[3].wait()
        assert all(call.result() for call in waiting)
        assert "broken" in children[0].call(group_facts.state, members.name)
        assert children[0].call(group_facts.barrier, members.name) == "BadState"


@pytest.mark.parametrize("settings", [{}, {"WEFT_ISOLATION": "strict"}], ids=["mapped", "strict"])
def test_first_reduction_beside_a_stopped_member_times_out(settings: dict[str, str]) -> None:
    """Members map each other's windows at the first reduction of a large array: that waits no longer than the call."""
    with Child(**settings) as one, Child(**settings) as stopped:
        members = Members([one, stopped], new_name())
        stopped.kill(signal.SIGSTOP)
        try:
            assert one.call(group_facts.late, members.name, 300_001) == "TimedOut"
            assert "broken" in one.call(group_facts.state, members.name)
        finally:
            stopped.kill(signal.SIGCONT)


def test_a_name_is_free_again_when_all_have_joined() -> None:
    with Child() as one, Child() as two:
        members = Members([one, two], new_name())
        again = Members([one, two], members.name)
        assert again.all(group_facts.barrier) == ["", ""]
