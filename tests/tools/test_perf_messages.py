"""`weft perf` of messages: round trips, streams, matches, both providers. No test bounds a figure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weft import fi
from weft.tools import _messages
from weft.tools._pair import Side, Target

from .conftest import Command
from .test_perf import measure

pytestmark = pytest.mark.procs

NBYTES = 1 << 20
PROVIDERS = [None, "cxi"]
kinds = pytest.mark.parametrize("tagged", [False, True], ids=["send", "tsend"])
providers = pytest.mark.parametrize("provider", PROVIDERS, ids=["weft", "cxi"])

Pair = tuple[Side, Target, int]


@pytest.fixture(scope="module", params=PROVIDERS, ids=["weft", "cxi"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with Target(2 * NBYTES, None, None, request.param) as target, Side(2 * NBYTES, request.param) as side:
        target.greet()
        peer = side.av.insert(target.name)
        target.ask("peer", card=side.card())
        yield side, target, peer


@kinds
@pytest.mark.parametrize("kind", ["direct", "foreign"])
@pytest.mark.parametrize("size", [1, 8, 4096, 16385, NBYTES])
def test_round_trip_brings_the_bytes_of_the_peer(pair: Pair, size: int, kind: str, tagged: bool) -> None:
    side, target, peer = pair
    target.ask("fill", kind=kind, value=7)
    for inject in (False, True) if size <= side.inject_size else (False,):
        for patient in (False, True):
            side.memory[kind][:size] = 0
            how = _messages.How(tagged, kind, size, inject, patient)
            assert _messages.together(side, target, peer, "round_trips", how, 3) > 0
            # The peer sends the end of its memory, which no message has changed.
            assert (side.memory[kind][:size] == 7).all()


@kinds
@pytest.mark.parametrize("size", [8, 100_000])
@pytest.mark.parametrize("count", [1, 64, 1000])
def test_stream_ends_when_the_peer_has_every_message(pair: Pair, count: int, size: int, tagged: bool) -> None:
    side, target, peer = pair
    side.memory["direct"][-size:] = 3
    for inject in (False, True) if size <= side.inject_size else (False,):
        target.ask("fill", kind="direct", value=0)
        how = _messages.How(tagged, "direct", size, inject)
        assert _messages.together(side, target, peer, "stream", how, count) > 0
        assert target.ask("sum", kind="direct") == 3 * size
        assert not side.cq.read()  # every completion was taken


@providers
@pytest.mark.parametrize("unexpected", [False, True], ids=["posted", "unexpected"])
def test_matching_keeps_its_depth(unexpected: bool, provider: str | None) -> None:
    with _messages.Matching(500, unexpected, provider) as matching:
        for _ in range(20):
            assert matching.burst_ns() > 0
        # Each entry is there once: all match.
        tags = list(range(500))
        for at in range(0, 500, 50):
            few = tags[at : at + 50]
            matching.receive(few) if unexpected else matching.send(few)
            left = len(few)
            while left:
                left -= len(matching.cq.read(left))
        assert not matching.cq.read()


def test_depths_are_those_that_the_provider_has_receives_for() -> None:
    assert _messages.Matching.possible(100_000, None)
    assert _messages.Matching.possible(10_000, "cxi")
    assert not _messages.Matching.possible(100_000, "cxi")  # rx_attr.size of the provider
    with pytest.raises(fi.NoData):
        _messages.Matching(100_000, False, "cxi")


@providers
def test_perf_has_rows_of_messages(provider: str | None) -> None:
    choice = ["--provider", provider] if provider else []
    rows, errors = measure("--path", "direct,ring", "--ops", "send,tsend", "--sizes", "8,64K", *choice)
    assert errors == ""
    assert [(row["path"], row["op"], row["size"], row["depth"]) for row in rows] == [
        (path, op, size, None) for path in ("direct", "ring") for op in ("send", "tsend") for size in (8, 65536)
    ]
    assert {row["limit_name"] for row in rows} == {"cache line", "memcpy"}


def test_perf_has_matches_by_depth() -> None:
    """A match has a depth and no bandwidth; no second process is started for a path."""
    rows, _ = measure("--ops", "match_posted,match_unexpected")
    depths = (1000, 10_000, 100_000)
    assert [(row["op"], row["path"], row["size"], row["depth"]) for row in rows] == [
        (op, "self", 8, depth) for op in ("match_posted", "match_unexpected") for depth in depths
    ]
    for row in rows:
        assert row["bandwidth_GBps"] is None
        assert row["limit_name"] == "64 entries"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--provider cxj", ("'cxj'", "did you mean cxi?", "known: weft, cxi")),
        ("--provider cxi --path tcp", ("--provider cxi", "by tcp", "try: without --path tcp")),
        ("--provider cxi --connect host-a:7000", ("--provider cxi", "weft pingpong -p cxi")),
        ("--server --provider cxi", ("--server takes only --name",)),
    ],
)
def test_wrong_provider_is_answered_with_what_to_do(command: Command, arguments: str, said: tuple[str, ...]) -> None:
    ended = command("perf", *arguments.split())
    assert ended.code == 2
    for text in said:
        assert text in ended.err
