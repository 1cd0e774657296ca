"""Random operations and closings on two endpoints against the model of interpreter.py, on every path."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.procs.children import Child
from tests.procs.test_two_processes import PATHS, end_pair, make_pair
from tests.props import interpreter

pytestmark = pytest.mark.procs

SIZES = (1, 8, 300, 4096, 20_000)
keys = st.integers(1, 4)
addrs = st.one_of(st.integers(0, 40), st.sampled_from((0, 8, 100, 292, 299, 300, 4088, 12_000, 19_992)))
lengths = st.sampled_from((0, 1, 7, 8, 64, 300, 4096, 9000, 20_000))
values = st.integers(1, 255)

PIECES = st.tuples(keys, addrs, st.sampled_from((0, 1, 8, 300, 4096)))
STEPS = st.one_of(
    st.tuples(st.just("register"), keys, st.sampled_from(SIZES), st.sampled_from((0, 0, 0, 1, 2))),
    st.tuples(st.just("register"), keys, st.sampled_from(SIZES), st.just(0)),
    st.tuples(st.just("close"), keys),
    st.tuples(st.just("write"), keys, addrs, lengths, values, st.integers(0, 3)),
    st.tuples(st.just("write"), keys, addrs, lengths, values, st.just(0)),
    st.tuples(st.just("read"), keys, addrs, lengths),
    st.tuples(st.just("add"), keys, addrs, st.integers(0, 2**64 - 1)),
    st.tuples(
        st.just("batch"), st.lists(st.tuples(keys, addrs, st.sampled_from((0, 1, 8, 300, 4096))), max_size=12), values
    ),
    st.tuples(st.just("poll")),
    st.tuples(st.just("wait")),
    st.tuples(st.just("check")),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("reopen_there")),
)

CONFIGS = ["self-thread", "self-manual", "direct-thread", "foreign-manual", "ring-thread", "strict-manual"]


class Runner:
    def __init__(self, config: str) -> None:
        self.path, self.engine = config.split("-")
        self.child: Child | None = None

    def run(self, steps: list[interpreter.Step]) -> None:
        if self.child is None:
            self.child = Child(WEFT_ENGINE=self.engine, **PATHS[self.path])
            self.child.call(make_pair, self.path)
        try:
            self.child.call(interpreter.run, steps)
        except BaseException:
            self.child.destroy()  # nobody knows its state
            self.child = None
            raise


@pytest.fixture(scope="module", params=CONFIGS)
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    runner = Runner(request.param)
    yield runner
    if runner.child is not None:
        runner.child.call(end_pair)
        assert runner.child.close() == 0


@given(steps=st.lists(STEPS, max_size=40))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_interleavings_agree_with_the_model(runner: Runner, steps: list[interpreter.Step]) -> None:
    runner.run(steps)
