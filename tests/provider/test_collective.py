"""Collective groups of C programs, as tests/fi/test_collective.py and tests/cxi/test_collective.py have them."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from tests.provider import support
from tests.provider.far import Far

ROOT = Path(__file__).parents[2]

INTEGERS = [f"FI_{sign}INT{bits}" for bits in (8, 16, 32, 64) for sign in ("", "U")]
FLOATS = ["FI_FLOAT", "FI_DOUBLE"]
LARGE = ["FI_FLOAT_COMPLEX", "FI_DOUBLE_COMPLEX", "FI_LONG_DOUBLE", "FI_LONG_DOUBLE_COMPLEX"]
ARITHMETIC = ("FI_MIN", "FI_MAX", "FI_SUM")
BITS = ("FI_BOR", "FI_BAND", "FI_BXOR")
LOGIC = ("FI_LOR", "FI_LAND", "FI_LXOR")


def pairs(provider: str) -> set[str]:
    """The lines of the reductions that a provider has on whole numbers, floats and doubles."""
    every = {(op, type) for op in (*ARITHMETIC, "FI_PROD", *LOGIC) for type in INTEGERS + FLOATS}
    every |= {(op, type) for op in BITS for type in INTEGERS}
    if provider == "cxi":
        every = {(op, type) for op in BITS for type in INTEGERS if type.startswith("FI_U")}
        every |= {(op, type) for op in ARITHMETIC for type in ("FI_INT64", "FI_DOUBLE")}
    return {f"reductions: {op} of {type}" for op, type in every}


@pytest.mark.clause("cxi.coll.barrier", "cxi.coll.broadcast", "cxi.coll.reduce", "cxi.coll.allreduce")
@pytest.mark.parametrize("members", [2, 3, 4])
def test_every_collective_has_the_serial_result(programs: Path, library: str, provider: str, members: int) -> None:
    program = support.compiled("collective", programs)
    out = support.run(program, provider, str(members), "rooted", env=support.environment(provider, library)).stdout
    lines = out.splitlines()
    assert lines[0] == "barriers"
    assert lines[-2:] == ["wrong results: 0", "closed"]
    assert {one for one in lines if one.startswith("reductions")} == pairs(provider)
    copied = INTEGERS + FLOATS + (LARGE if provider == "weft" else [])
    assert {one for one in lines if one.startswith("broadcast")} == {f"broadcast: {one}" for one in copied}


@pytest.mark.parametrize("members", [2, 3])
def test_program_prints_what_it_prints_over_libfabrics_own_collectives(
    programs: Path, library: str, members: int
) -> None:
    """Those of the provider tcp;ofi_rxm, which the core makes of messages."""
    program = support.compiled("collective", programs)
    ours = support.run(program, "weft", str(members), "plain", env=support.environment("weft", library)).stdout
    env = support.environment("tcp", support.SYSTEM)
    theirs = support.run(program, "tcp;ofi_rxm", str(members), "plain", env=env).stdout
    assert ours.endswith("\nclosed\n")
    assert ours == theirs


WRONG = """fi_av_set with half a range: Invalid argument
fi_av_set with a stride alone: Invalid argument
fi_av_set backwards: Invalid argument
fi_av_set of a range without a count: {no_count}
fi_av_set with unknown flags: Flags not supported
fi_av_set with a key of 24 bytes: Invalid argument
fi_av_set with the size of no key: Invalid argument
fi_av_set without attributes: Invalid argument
fi_av_set_insert of a member: Invalid argument
fi_av_set_insert of nobody: Invalid argument
fi_av_set_remove of a stranger: Invalid argument
fi_av_set_union of another vector: Invalid argument
fi_av_set_intersect of another vector: Invalid argument
fi_av_set_diff of another vector: Invalid argument
fi_av_set_remove: no error
fi_av_set_remove, again: Invalid argument
fi_av_set_insert of a member of the union: Invalid argument
fi_av_set_remove of what the intersection has not: Invalid argument
fi_av_set_remove of what the difference has not: Invalid argument
fi_av_set_addr: FI_ADDR_NOTAVAIL
fi_close of a vector with a set: Device or resource busy
fi_join_collective of an empty set: Invalid argument
fi_join_collective of a set without the endpoint: Invalid argument
fi_join_collective of a number that is nobody's: Invalid argument
fi_join_collective of a set of another vector: Invalid argument
fi_join_collective to an address: Invalid argument
fi_join_collective without a set: Invalid argument
fi_join: Function not implemented
fi_join_collective before fi_enable: Operation not permitted in current state
fi_join_collective without an event queue: Missing or unavailable event queue
fi_join_collective without FI_COLLECTIVE: Operation not supported
fi_barrier of a group that is not joined: Operation not permitted in current state
fi_close of a set with a group: Device or resource busy
fi_close of an endpoint with a group: Device or resource busy
fi_av_set_insert while a group uses the set: {while_joined}
fi_barrier of a closed group: Invalid argument
fi_eq_read of a join into 16 bytes: Provided buffer is too small
fi_eq_read of a closed group's join: Resource temporarily unavailable
fi_barrier of no group: Invalid argument
fi_barrier2 with unknown flags: Flags not supported
fi_allreduce of nothing: Invalid argument
fi_allreduce of 40 bytes: Invalid argument
fi_allreduce from NULL: Invalid argument
fi_allreduce into NULL: Invalid argument
fi_allreduce of an unknown datatype: Operation not supported
fi_allreduce with an unknown operation: Invalid argument
fi_allreduce with FI_CSWAP: Invalid argument
fi_allreduce, bits of doubles: Invalid argument
fi_allreduce with unknown flags: Flags not supported
fi_reduce to a root that is no member: Invalid argument
fi_reduce without the root's result: Invalid argument
fi_broadcast from a root that is no member: Invalid argument
fi_alltoall: Function not implemented
fi_allgather: Function not implemented
fi_gather: Function not implemented
fi_scatter: Function not implemented
fi_reduce_scatter: Function not implemented
fi_allreduce: no error
of one member: 1 4
in a child, fi_barrier: Operation not permitted in current state
in a child, fi_av_set_insert: Operation not permitted in current state
in a child, fi_join_collective: Operation not permitted in current state
in a child, fi_close of the group: no error
in a child, fi_close of the set: no error
after a fork, fi_barrier: no error
fi_query_collective of a barrier: no error
fi_query_collective without attributes: Invalid argument
fi_query_collective with flags: Operation not supported
fi_query_collective of FI_ALLTOALL: Operation not supported
sums: 4 of 8 bytes, 65536 members or more
closed
"""
EXPLAINED = [
    "start_addr and end_addr are given together",
    "fi_addr 0 is in the set already",
    "a set of another vector than the destination",
    "sets of its addresses are open",
    "the set has no members",
    "is no member of the set",
    "fi_addr 77 of the set is not in use",
    "the set is of another vector than the endpoint",
    "it has to be ADDR_NOTAVAIL",
    "no event queue is bound",
    "was opened without COLLECTIVE",
    "the group is not joined yet",
    "a collective group uses the set",
    "the endpoint has aliases, groups, or regions",
    "names no group of this endpoint",
    "at least 1, at most 32 bytes",
    "buf is needed",
    "the root needs a result buffer",
    "is no member of the group",
    "only a barrier does without",
]


def test_wrong_use_is_refused_by_number_and_explained(programs: Path, library: str, provider: str) -> None:
    env = support.environment(provider, library, FI_LOG_LEVEL="warn", FI_LOG_PROV=provider)
    done = support.run(support.compiled("collective_wrong", programs), provider, env=env)
    cxi = provider == "cxi"
    assert done.stdout == WRONG.format(
        no_count="Invalid argument" if cxi else "no error",
        while_joined="Operation not permitted" if cxi else "no error",
    )
    assert [one for one in EXPLAINED if one not in done.stderr] == []


@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("when", ["join", "joining"])
def test_join_fails_at_every_member_if_one_is_killed(
    programs: Path, library: str, provider: str, when: str, members: int
) -> None:
    """Before it has joined, and while another has not."""
    program = support.compiled("collective_death", programs)
    env = support.environment(provider, library, FI_LOG_LEVEL="warn", FI_LOG_PROV=provider)
    done = support.run(program, provider, str(members), when, env=env)
    err, prov_errno = (-111, 2056) if provider == "cxi" else (111, 104)
    assert done.stdout == (
        f"join: err {err}, prov_errno {prov_errno}, data 6\nfi_barrier of a failed join: Invalid argument\nclosed\n"
    )
    assert f"join_collective: member {members - 1} of {members}" in done.stderr


@pytest.mark.parametrize("members", [2, 4])
def test_reductions_fail_at_every_member_if_one_is_killed(
    programs: Path, library: str, provider: str, members: int
) -> None:
    program = support.compiled("collective_death", programs)
    out = support.run(program, provider, str(members), "reduce", env=support.environment(provider, library)).stdout
    number = f"err {-256 if provider == 'cxi' else 104}, prov_errno 1032"
    assert out == (
        f"an allreduce without a member: {number}\nthe barrier behind it: {number}\na later barrier: {number}\n"
        "the result: as it was\nclosed\n"
    )


@pytest.mark.parametrize("languages", ["cp", "pc", "cpcp", "pcpc"])
def test_programs_of_both_languages_are_members_of_one_group(
    programs: Path, library: str, provider: str, languages: str, tmp_path: Path
) -> None:
    program = str(support.compiled("collective_mixed", programs))
    env = support.environment(provider, library) | support.registry(tmp_path)
    command = {"c": [program], "p": [sys.executable, "-m", "tests.provider.member"]}
    count = len(languages)
    with contextlib.ExitStack() as stack:
        found = [
            Far([*command[one], provider, str(count), str(me)], env, tmp_path / f"{me}", cwd=ROOT)
            for me, one in enumerate(languages)
        ]
        for one in found:
            stack.callback(one.close)
        names = []
        for one in found:
            line = one.line()
            assert line.startswith("me "), one.said()
            names.append(line[3:])
        for one in found:
            one.tell("".join(names))
        for one in found:
            said = one.ended().splitlines()
            assert said == members_see(count), one.said()


def members_see(count: int) -> list[str]:
    """What each member prints."""
    total = count * (count - 1) // 2
    lines = []
    for again in range(2):
        lines.append(f"sum {total} {10 * total} {-total} {again * count}")
        lines += [f"root {root}: {100 * again + root} {count - 0.5:g}" for root in range(count)]
    return [*lines, "closed"]
