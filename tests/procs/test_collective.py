"""Collective groups of several processes: sums, and kill -9 of a member before, in and after a join and a reduction.

WEFT_KILL_ROUNDS: rounds of kill at a random instant (default 6); WEFT_SEED repeats a run.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi.group_support import Member, until
from tests.procs.children import Child
from tests.procs.hosts import Wire
from tests.procs.peer import World
from tests.procs.test_hosts import child

from weft import fi

pytestmark = pytest.mark.procs


# ---- what children do ------------------------------------------------------------------------------------------------


def open_member(world: World, provider: str) -> Any:
    world.more["m"] = Member(provider)
    return world.more["m"].name


def join(world: World, names: list[Any], wait: bool = True) -> str:
    """Join the group of these addresses: "" or the text of the error event."""
    one = world.more["m"]
    if not one.names:
        one.know(names)
    one.join()
    return finish_join(world) if wait else ""


def finish_join(world: World) -> str:
    one = world.more["m"]

    def event() -> str | None:
        try:
            return "joined" if one.event() is not None else None
        except fi.Available:
            entry = one.eq.readerr()
            return f"{entry.err}: {entry.err_data.decode()}"

    found: str = until(event, "the event of a join")
    return "" if found == "joined" else found


def reduce(world: World, rounds: int, base: int) -> tuple[int, str]:
    """Allreduce `rounds` times; how many were right, and the first error's text."""
    one = world.more["m"]
    group = one.groups[-1]
    for n in range(rounds):
        value, out = np.array([base + n], "int64"), np.zeros(1, "int64")
        one.ep.allreduce(value, result=out, coll_addr=group.addr, op=fi.SUM)
        try:
            until(lambda: one.cq.read(1), "a reduction")
        except fi.Available:
            return n, str(one.cq.readerr().err)
        world.more["last"] = int(out[0])
    return rounds, ""


def last(world: World) -> int:
    return int(world.more["last"])


def close_member(world: World) -> None:
    world.more.pop("m").close()


@contextlib.contextmanager
def processes(count: int, provider: str, **settings: str) -> Iterator[tuple[list[Child], list[Any]]]:
    """Members in processes of their own, and their addresses."""
    with contextlib.ExitStack() as undo:
        kept = {k: v for k, v in os.environ.items() if k.startswith(("WEFT_", "FI_"))}
        found = [undo.enter_context(Child(**{**kept, **settings})) for _ in range(count)]
        yield found, [one.call(open_member, provider) for one in found]


def all_of(calls: list[Any]) -> list[Any]:
    return [one.result(120) for one in calls]


# ---- tests -----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def registry(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))


@pytest.mark.parametrize("provider", ["weft", "cxi"])
@pytest.mark.parametrize("settings", [{}, {"WEFT_ENGINE": "manual"}, {"WEFT_ISOLATION": "strict"}], ids=str)
def test_processes_reduce_together(provider: str, settings: dict[str, str]) -> None:
    with processes(4, provider, **settings) as (found, names):
        assert all_of([one.start(join, names) for one in found]) == [""] * 4
        assert all_of([one.start(reduce, 200, i) for i, one in enumerate(found)]) == [(200, "")] * 4
        assert [one.call(last) for one in found] == [6 + 4 * 199] * 4
        for one in found:
            one.call(close_member)


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_member_killed_before_it_joins_fails_the_others(victim: int) -> None:
    with processes(4, "weft") as (found, names):
        found[victim].kill()
        found[victim].wait()
        others = [one for i, one in enumerate(found) if i != victim]
        for text in all_of([one.start(join, names) for one in others]):
            assert f"{int(fi.ECONNREFUSED)}: " in text
            assert f"member {victim} of 4" in text
        found[victim].destroy()


@pytest.mark.parametrize("victim", [0, 2])
def test_member_killed_in_the_join_fails_the_others(victim: int) -> None:
    """One member never joins, so the join cannot end before the kill."""
    with processes(4, "weft") as (found, names):
        joining = [one for i, one in enumerate(found) if i != 3]
        for one in joining:
            one.call(join, names, False)
        found[victim].kill()
        found[victim].wait()
        others = [one for i, one in enumerate(found) if i not in (victim, 3)]
        calls = [one.start(finish_join) for one in others]
        calls.append(found[3].start(join, names))
        for text in all_of(calls):
            assert f"member {victim} of 4" in text
        found[victim].destroy()


@pytest.mark.parametrize("victim", [0, 1, 4])
def test_member_killed_in_a_reduction_fails_the_others(victim: int) -> None:
    with processes(5, "cxi") as (found, names):
        assert all_of([one.start(join, names) for one in found]) == [""] * 5
        others = [one for i, one in enumerate(found) if i != victim]
        calls = [one.start(reduce, 1, 1) for one in others]  # the victim does not take part
        time.sleep(0.05)
        found[victim].kill()
        assert all_of(calls) == [(0, "-256")] * 4
        assert all_of([one.start(reduce, 1, 1) for one in others]) == [(0, "-256")] * 4  # later ones, too
        found[victim].destroy()


def test_kill_at_a_random_instant_leaves_nobody_waiting() -> None:
    rounds = int(os.environ.get("WEFT_KILL_ROUNDS", "6"))
    seed = int(os.environ.get("WEFT_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"WEFT_SEED={seed}")
    chance = random.Random(seed)
    for _ in range(rounds):
        count = chance.randrange(2, 6)
        with processes(count, "weft") as (found, names):
            victim = chance.randrange(count)
            joins = [one.start(join, names) for one in found]
            if chance.random() < 0.5:
                time.sleep(chance.random() * 0.02)
                found[victim].kill()
                for i, call in enumerate(joins):
                    if i != victim:
                        call.result(120)  # joined, or told that the victim is lost
            else:
                assert all_of(joins) == [""] * count
                calls = [one.start(reduce, 1_000_000, 1) for one in found]
                time.sleep(chance.random() * 0.05)
                found[victim].kill()
                for i, call in enumerate(calls):
                    if i != victim:
                        assert call.result(120)[1] == str(int(fi.ECONNRESET))
            found[victim].destroy()


@pytest.fixture
def wire(seed: int) -> Iterator[Wire]:
    with Wire(seed) as made:
        yield made


def tree(world: World) -> tuple[int, int]:
    statistics = world.more["m"].groups[-1].statistics()
    return statistics.block, statistics.children


def test_members_on_two_hosts_reduce_together_until_one_is_killed(wire: Wire) -> None:
    """Members of a host are a block: one frame each way crosses the wire."""
    with child(wire, "a") as a, child(wire, "a") as b, child(wire, "b") as c, child(wire, "b") as d:
        found = [a, b, c, d]
        names = [one.call(open_member, "weft") for one in found]
        assert all_of([one.start(join, names) for one in found]) == [""] * 4
        assert all_of([one.start(reduce, 50, i) for i, one in enumerate(found)]) == [(50, "")] * 4
        assert [one.call(last) for one in found] == [6 + 4 * 49] * 4
        assert [one.call(tree) for one in found] == [(2, 2), (2, 0), (2, 1), (2, 0)]
        calls = [one.start(reduce, 1, 1) for one in (a, b, c)]
        d.kill()
        assert [right for right, _ in all_of(calls)] == [0, 0, 0]
        d.destroy()
