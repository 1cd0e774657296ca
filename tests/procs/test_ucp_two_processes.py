"""weft.ucp between two processes, on every path, with and without an engine thread; the facts are in ucp_facts.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.procs import facts, ucp_facts
from tests.procs.peer import World
from tests.procs.test_two_processes import ENGINES, PATHS, Runner


def make_pair(world: World, path: str) -> None:
    world.more["pair"] = ucp_facts.Pair(path)


def check(world: World, name: str) -> None:
    pair = world.more["pair"]
    ucp_facts.FACTS[name](pair)
    assert pair.silent(), "an operation too many"


@pytest.fixture(
    scope="module", params=[(p, e) for p in PATHS for e in ENGINES], ids=[f"{p}-{e}" for p in PATHS for e in ENGINES]
)
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    runner = Runner(*request.param, make_pair, check)
    yield runner
    runner.close()


@pytest.mark.procs
@pytest.mark.parametrize(
    "name",
    facts.cases(ucp_facts.FACTS, ucp_facts.CLAUSES),
)
def test_two_processes(runner: Runner, name: str) -> None:
    runner.check(name)
