"""One suite for every path between two endpoints, with and without an engine thread.

path     direct    the target's memory is Weft's own: load and store
         foreign   it is NumPy's: process_vm_readv/writev
         ring      the same with WEFT_CMA=0: frames, served by the target
         strict    WEFT_ISOLATION=strict: nothing is shared
         self      two endpoints of one process
         tcp       WEFT_SHM=0: the two know of no shared host, and call each other at 127.0.0.1

The facts are in facts.py; they run in a child, because the environment decides what the NIC of a process is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.procs import facts, peer
from tests.procs.children import Child
from tests.procs.peer import World

PATHS = {
    "direct": {},
    "foreign": {},
    "ring": {"WEFT_CMA": "0"},
    "strict": {"WEFT_ISOLATION": "strict"},
    "self": {},
    "tcp": {"WEFT_SHM": "0", "WEFT_LISTEN": "tcp://127.0.0.1:0", "WEFT_SECRET": "of the tests, for two processes"},
}
ENGINES = ("thread", "manual")


def make_pair(world: World, path: str) -> None:
    world.more["pair"] = facts.Pair(path)


def check(world: World, name: str) -> None:
    pair = world.more["pair"]
    facts.FACTS[name](pair)
    assert pair.me.silent(), "a completion too many"


def end_pair(world: World) -> None:
    world.more.pop("pair").close()


def path_taken(world: World) -> tuple[dict[str, int], list[dict[str, object]]]:
    nic = peer._process.nic()
    return nic.statistics(), nic.peers()


class Runner:
    """The child of one (path, engine); a new one after a failure, because nobody knows its state.

    make, check   what makes the pair in the child, and checks a fact of it there.
    """

    def __init__(
        self,
        path: str,
        engine: str,
        make: Callable[[World, str], None] = make_pair,
        check: Callable[[World, str], None] = check,
    ) -> None:
        self.path, self.engine = path, engine
        self._make, self._check = make, check
        self.child: Child | None = None

    def check(self, name: str) -> None:
        if self.child is None:
            self.child = Child(WEFT_ENGINE=self.engine, **PATHS[self.path])
            self.child.call(self._make, self.path)
        try:
            self.child.call(self._check, name)
        except BaseException as error:
            text = f"{error}\n{self.child.log()}"
            self.child.destroy()
            self.child = None
            if isinstance(error, Exception):
                raise AssertionError(f"{type(error).__name__}: {text}") from None
            raise

    def close(self) -> None:
        if self.child is not None:
            self.child.call(end_pair)
            assert self.child.close() == 0, self.child.log()


@pytest.fixture(
    scope="module", params=[(p, e) for p in PATHS for e in ENGINES], ids=[f"{p}-{e}" for p in PATHS for e in ENGINES]
)
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    runner = Runner(*request.param)
    yield runner
    runner.close()


@pytest.mark.procs
@pytest.mark.parametrize(
    "name",
    facts.cases(facts.FACTS, facts.CLAUSES),
)
def test_two_endpoints(runner: Runner, name: str) -> None:
    runner.check(name)


@pytest.mark.procs
def test_two_endpoints_took_the_path_that_is_tested(runner: Runner) -> None:
    """The suite is about six paths: each fact above was checked on the path that its name says."""
    runner.check("write_moves_bytes_and_nothing_else")
    assert runner.child is not None
    statistics, peers = runner.child.call(path_taken)
    others = [p for p in peers if not p["same_process"]]
    if runner.path == "self":
        assert not others
        return
    assert others
    kinds = {
        "direct": "direct_ops",
        "foreign": "cma_ops",
        "ring": "framed_ops",
        "strict": "framed_ops",
        "tcp": "framed_ops",
    }
    used = statistics[kinds[runner.path]]
    if runner.path == "foreign" and not used:
        pytest.skip(f"this kernel refuses process_vm_writev: {others[0]['cma_reason']}")
    assert used > 0, (statistics, others)
    assert (runner.path == "tcp") == any(p["path"] == "tcp" for p in others)
