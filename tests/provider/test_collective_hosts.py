"""Collective groups of C programs on two hosts (network namespaces): over tcp links, with a secret."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.procs.hosts import Wire
from tests.provider import support
from tests.provider.far import Far
from tests.provider.test_collective import ROOT, members_see
from tests.provider.two_hosts import environment

pytest.importorskip("nacl")

Start = Callable[..., list[Far]]


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire() as made:
        yield made


@pytest.fixture
def start(wire: Wire, programs: Path, tmp_path: Path, provider: str) -> Iterator[Start]:
    """Starts members that know each other: one for each letter, "c" or "p", its language; half of them on each host.

    The start's further arguments: END of the program, and variables.
    """
    program = str(support.compiled("collective_mixed", programs))
    command = {"c": [program], "p": [sys.executable, "-m", "tests.provider.member"]}
    made: list[Far] = []

    def run(languages: str, *end: str, **more: str) -> list[Far]:
        count = len(languages)
        for me, language in enumerate(languages):
            host, process = "ab"[2 * me // count], me % (count // 2)
            env = environment(wire, host, tmp_path, provider, process, **more)
            words = [*wire.inside(host), *command[language], provider, str(count), str(me), *end]
            made.append(Far(words, env, tmp_path / f"{me}", cwd=ROOT))
        names = []
        for one in made:
            line = one.line()
            assert line.startswith("me "), line + one.said()
            names.append(line[3:])
        for one in made:
            one.tell("".join(names))
        return made

    yield run
    for one in made:
        one.close()


@pytest.mark.parametrize("languages", ["cc", "cccc", "cp", "pccp"])
def test_members_on_two_hosts_have_the_serial_results(start: Start, languages: str) -> None:
    for one in start(languages):
        assert one.ended().splitlines() == members_see(len(languages)), one.said()


def parted(found: list[Far], until: str) -> list[Far]:
    """All members have printed the line; the last is killed. The others."""
    for one in found:
        while (line := one.line()) != until:
            assert line, one.said()
    found[-1].process.kill()
    found[-1].process.wait()
    return found[:-1]


@pytest.mark.parametrize("members", [2, 4])
def test_join_fails_at_every_member_if_one_of_the_other_host_is_killed(
    start: Start, provider: str, members: int
) -> None:
    others = parted(start("c" * members, "join"), "joining\n")
    err = "err -111, prov_errno 2056" if provider == "cxi" else "err 111, prov_errno 104"
    for one in others:
        assert one.line() == f"join: {err}, data 6\n", one.said()
    for one in others:  # not before: a member that has not found the endpoint yet would hear of its close
        one.tell("go\n")
    for one in others:
        assert one.ended() == "closed\n", one.said()
        assert f"join_collective: member {members - 1} of {members}" in one.said()


@pytest.mark.parametrize("members", [2, 4])
def test_reduction_fails_at_every_member_if_one_of_the_other_host_is_killed(
    start: Start, provider: str, members: int
) -> None:
    others = parted(start("c" * members, "reduce"), "in a group\n")
    for one in others:
        one.tell("go\n")
    err = -256 if provider == "cxi" else 104
    lost = f"an allreduce without a member: err {err}, prov_errno 1032; the result 77\nclosed\n"
    for one in others:
        assert one.ended() == lost, one.said()


def test_reduction_fails_when_the_other_host_is_unreachable(start: Start, wire: Wire, provider: str) -> None:
    found = start("cc", "reduce", WEFT_TCP_TIMEOUT="3")
    for one in found:
        while (line := one.line()) != "in a group\n":
            assert line, one.said()
    wire.behave(loss=1)
    found[0].tell("go\n")
    out = found[0].ended()
    assert re.fullmatch(r"an allreduce without a member: err -?\d+, prov_errno 1032; the result 77\nclosed\n", out), out
