"""Requests to the keeper that no Weft makes: each has an answer that fits a packet, and the keeper goes on to serve."""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from weft.share.keeping import protocol
from weft.share.keeping.keeper import Keeper, Session
from weft.share.names.server import check_name

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES") or 300)
fuzzed = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])

NAMES = [f"fuzz-{os.getpid()}-{letter}" for letter in "ab"]
_numbers = itertools.count()

junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 9)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["", "\0", "\udcff", "9" * 5000, "x" * 70_000, 2**63, 2**64, -1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "op": st.sampled_from(["hello", "room", "make", "kept", "keep", "replace", "resize", "forget"]),
    "name": st.sampled_from(NAMES),
    "maker": st.just([os.getpid(), "somebody"]),
    "access": st.sampled_from(["rw", "r", "w"]),
    "nbytes": st.sampled_from([0, 8, 64, 4096]),
    "dtype": st.sampled_from(["'<f8'", "'|u1'", "'<i4'", "[('a', '<i8')]", "'|O'", "'|V8'", "'|S0'", "'<M8[s]'"]),
    "shape": st.sampled_from([[8], [0], [], [2, 4], [1, 0], [1] * 64, [1] * 65, [2**31, 2**31], [-1]]),
    "rows": st.sampled_from([None, 8, 0, 4, -1, 2**40]),
    "order": st.sampled_from(["C", "F"]),
    "length": st.sampled_from([0, 1, 4, 8, 9, -1]),
    "kind": st.sampled_from(["Lock", "Semaphore", "Event", "Barrier", "Queue"]),
    "number": st.integers(0, 6),
    "n": st.sampled_from([0, 1, 4, 2**31, 2**62]),
    "item": st.sampled_from([0, 1, 8, 64, 2**40]),
    "form": st.sampled_from(["", "{}", "é" * 40_000]),
    "ticket": st.just("the last one"),
}


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request with all fields, of which some are absent or anything."""
    made = {key: draw(values) for key, values in GOOD.items()}
    for key in draw(st.lists(st.sampled_from(list(made)), max_size=2, unique=True)):
        if draw(st.booleans()):
            made[key] = draw(junk)
        else:
            del made[key]
    return made


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    """A keeper of this process, in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CXI_REGISTRY", str(tmp_path))
        made = Keeper(stay=True)
    try:
        yield made
    finally:
        made.close()


class Caller:
    """A connection to a session, whose answers come at once."""

    def __init__(self, keeper: Keeper) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._theirs = theirs
        self.session = Session(keeper, theirs)
        keeper._sessions += 1

    def call(self, data: bytes) -> dict[str, Any]:
        """The answer, as a caller gets it."""
        self.session._answer_to(data)
        return dict(json.loads(self._ours.recv(protocol.MESSAGE_BYTES_MAX)))

    def close(self) -> None:
        self._ours.close()
        self.session.run()  # which ends


def serves(keeper: Keeper) -> None:
    """A good process keeps an array, and ends it."""
    caller = Caller(keeper)
    name = f"fuzz-{os.getpid()}-good-{next(_numbers)}"
    request = {"name": name, "maker": [os.getpid(), "us"], "access": "rw", "dtype": "'<f8'", "shape": [8], "order": "C"}
    assert "ticket" in caller.call(json.dumps({"op": "room", "nbytes": 64}).encode())
    assert "ticket" in caller.call(json.dumps({"op": "keep", **request}).encode())
    assert caller.call(json.dumps({"op": "forget", "name": name}).encode()) == {}
    caller.close()


def check_answer(answer: dict[str, Any]) -> None:
    if "error" in answer:
        assert isinstance(answer["errno"], int)
        assert answer["error"]


@fuzzed
@given(made=st.lists(requests(), max_size=6))
@example(made=[{"op": "x" * 70_000}])
@example(made=[{"op": "forget", "name": "\udcff" * 20_000}])
@example(made=[{"op": "keep", "name": NAMES[0], "access": "rw", "dtype": "'|S0'", "shape": [-1], "order": "C"}])
def test_made_up_requests_are_answered_and_others_served(keeper: Keeper, made: list[dict[str, Any]]) -> None:
    caller = Caller(keeper)
    ticket = ""
    for request in made:
        if request.get("ticket") == "the last one":
            request["ticket"] = ticket
        answer = caller.call(json.dumps(request).encode()[: protocol.MESSAGE_BYTES_MAX])
        check_answer(answer)
        ticket = answer.get("ticket", ticket)
        for name in keeper._kept:
            check_name(name, "keep")
    caller.close()
    serves(keeper)
    for name in list(keeper._kept):
        keeper.forget({"name": name})
    assert not keeper._objects


@fuzzed
@given(data=st.binary(max_size=200) | junk.map(lambda one: json.dumps(one).encode()))
@example(data=b"[" * 100_000)
@example(data=b"\xff")
@example(data=b'{"op": ' + b"9" * 5000 + b"}")
def test_bytes_that_are_no_request_are_refused_in_words(keeper: Keeper, data: bytes) -> None:
    caller = Caller(keeper)
    answer = caller.call(data)
    check_answer(answer)
    assert "error" in answer
    caller.close()
