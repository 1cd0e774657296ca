"""Deferred work and triggered operations of C programs (fi_trigger(3)), as tests/fi and tests/cxi have them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.provider import support
from tests.provider.far import Far

TAGGED_BYTES = (8, 1000, 200000)
WORK = """write, one too few: counted 0, failed 0, memory ????????
write: counted 1, failed 0, memory written!
read: context 2, flags 0x104
read: ABCDEFGH
atomic 1: 10, then 15, result 0
atomic 2: 15, then 20, result 15
atomic 3: 20, then 5, result 20
{messages}counter: 40
counter: 42
chain: abcdefghijklmnopqrst
flushed: counted 0, failed 0, memory untouch.
FI_CANCEL_WORK: {canceled}
cancelled: counted 0, failed 0, memory untouch.
without its trigger: counted 0, failed 0, memory untouch.
FI_CANCEL_WORK of it: {gone}
a key that no region has: an error, context 10; failed 1
closed
"""
MESSAGES = "".join(
    f"{kind}receive: context {context}, {size} bytes{tag}, flags {received}\n"
    f"{kind}send: context {context + 1}, flags {sent}\n"
    "the bytes sent, counted 2\n"
    for kind, context, tag, received, sent in (
        ("", 4, "", "0x402", "0x802"),
        ("tagged ", 6, ", tag 119", "0x408", "0x808"),
    )
    for size in TAGGED_BYTES
)


@pytest.mark.clause("cxi.trig.dwq")
def test_work_of_every_kind_starts_at_its_threshold(programs: Path, library: str, provider: str) -> None:
    program = support.compiled("work", programs)
    out = support.run(program, provider, env=support.environment(provider, library)).stdout
    canceled, gone = ("Invalid argument",) * 2 if provider == "cxi" else ("no error", "No such file or directory")
    assert out == WORK.format(messages=MESSAGES, canceled=canceled, gone=gone)


@pytest.mark.parametrize(("name", "more"), [("work", ["counters"]), ("triggered", [])])
def test_program_prints_what_it_prints_over_libfabrics_sockets(programs: Path, name: str, more: list[str]) -> None:
    program = support.compiled(name, programs)
    ours = support.run(program, "weft", *more, env=support.environment("weft")).stdout
    theirs = support.run(program, "sockets", *more, env=support.environment("sockets")).stdout
    assert ours.endswith("\nclosed\n")
    assert ours == theirs


REFUSED_TRIGGERS = """no context: Invalid argument
an event that there is not: Function not implemented
no counter: Invalid argument
flags that the call does not take: Flags not supported
nobody: Invalid argument
without the capability: Flags not supported
a completion of them: Resource temporarily unavailable
closed
"""


def test_wrong_triggered_calls_are_refused_and_start_nothing(programs: Path, library: str) -> None:
    env = support.environment("weft", library, FI_LOG_LEVEL="warn", FI_LOG_PROV="weft")
    done = support.run(support.compiled("triggered", programs), "weft", "wrong", env=env)
    assert done.stdout == REFUSED_TRIGGERS
    assert "fi_writemsg: the context is NULL" in done.stderr
    assert "event_type 77; there is FI_TRIGGER_THRESHOLD" in done.stderr
    assert "deferred work: triggering_cntr is NULL" in done.stderr


def test_cxi_has_no_triggered_calls(programs: Path, library: str) -> None:
    """It offers the capability, and its calls take no FI_TRIGGER: as for Python programs."""
    env = support.environment("cxi", library, FI_LOG_LEVEL="warn", FI_LOG_PROV="cxi")
    done = support.run(support.compiled("triggered", programs), "cxi", "wrong", env=env)
    assert done.stdout.count(": Flags not supported\n") == 5
    assert "(TRIGGER) are not for this call" in done.stderr


BY_PROVIDER = {  # what the two providers answer, in the order of tests/provider/c/work_wrong.c
    "no work": ("Invalid argument", "Invalid argument"),
    "no trigger": ("Invalid argument", "Invalid argument"),
    "the trigger of another domain": ("Invalid argument", "Invalid argument"),
    "the counter of another domain": ("Invalid argument", "Invalid argument"),
    "a queue as the trigger": ("Invalid argument", "Invalid argument"),
    "a type that there is not": ("Invalid argument", "Invalid argument"),
    "no operation": ("Invalid argument", "Invalid argument"),
    "work on a counter, with a counter": ("Invalid argument", "Invalid argument"),
    "no counter to change": ("Invalid argument", "Invalid argument"),
    "a counter of another domain to change": ("Invalid argument", "Invalid argument"),
    "more than a counter holds": ("no error", "Invalid argument"),
    "an endpoint of another domain": ("Invalid argument", "Invalid argument"),
    "an endpoint that is not enabled": ("Operation not permitted in current state", "Function not implemented"),
    "nobody": ("Invalid argument", "Invalid argument"),
    "a flag that a write does not take": ("Flags not supported", "Invalid argument"),
    "FI_FENCE": ("no error", "Invalid argument"),
    "FI_INJECT of a write": ("no error", "Invalid argument"),
    "two buffers": ("no error", "Invalid argument"),
    "no range": ("Invalid argument", "Invalid argument"),
    "FI_INJECT of a send": ("no error", "Invalid argument"),
    "a receive with a threshold": ("no error", "Invalid argument"),
    "a deferred peek": ("Invalid argument", "Invalid argument"),
    "FI_CANCEL_WORK of nothing": ("No such file or directory", "Invalid argument"),
    "FI_FLUSH_WORK": ("no error", "no error"),
}
EXPLAINED = [
    "a struct fi_deferred_work is needed",
    "triggering_cntr is NULL",
    "triggering_cntr is of another domain",
    "completion_cntr is of another domain",
    "triggering_cntr is no counter",
    "op_type 77: FI_OP_RECV (0) to FI_OP_CNTR_ADD (10) are known",
    "op is NULL",
    "work on a counter has no completion_cntr",
    "op.cntr is NULL",
    "op.cntr is of another domain",
    "op.ep is of another domain",
    "fi_addr 1000 is not in the address vector",
    "a deferred receive takes no FI_PEEK, FI_CLAIM or FI_DISCARD",
]
EXPLAINED_BY = {
    "weft": ["flags 0x80000 (PEEK) are not for this call", "no such work waits"],
    "cxi": [
        "a counter holds at most 281474976710655",
        "deferred work: flags 0x200000",
        "2 local buffers; deferred work has at most 1",
        "0 remote ranges; deferred work has 1",
        "FI_INJECT of a deferred send",
        "threshold 1 of a receive; here it has to be 0",
        "no command CANCEL_WORK here",
    ],
}


@pytest.mark.clause("cxi.trig.recv-threshold")
def test_wrong_work_is_refused_by_number_and_explained(programs: Path, library: str, provider: str) -> None:
    env = support.environment(provider, library, FI_LOG_LEVEL="warn", FI_LOG_PROV=provider)
    done = support.run(support.compiled("work_wrong", programs), provider, env=env)
    which = ("weft", "cxi").index(provider)
    assert done.stdout == "".join(f"{what}: {answer[which]}\n" for what, answer in BY_PROVIDER.items()) + (
        "done 0, 0\ngood work: no error\nclosed\n"
    )
    for text in EXPLAINED + EXPLAINED_BY[provider]:
        assert text in done.stderr


def test_work_for_a_peer_that_is_killed_meanwhile_fails(programs: Path, library: str, provider: str) -> None:
    out = support.run(
        support.compiled("peer", programs), provider, "work", env=support.environment(provider, library)
    ).stdout
    assert out == "200 messages each way\ndeferred sends to the dead: 3 failed, 3 counted\nclosed\n"


# ---- entries of a service --------------------------------------------------------------------------------------------


def of_entries(tmp_path: Path, library: str, entries: int, **more: str) -> dict[str, str]:
    """The environment of programs of a service with entries for this much work."""
    env = support.environment("cxi", library, FI_LOG_LEVEL="warn", FI_LOG_PROV="cxi", **support.registry(tmp_path))
    return env | support.of_service(env, tles=entries + 8) | more


@pytest.mark.clause("cxi.trig.limit-enospc")
def test_work_beyond_the_services_entries_is_refused_under_the_limit(
    programs: Path, tmp_path: Path, library: str
) -> None:
    env = of_entries(tmp_path, library, 12, FI_CXI_ENABLE_TRIG_OP_LIMIT="1")
    done = support.run(support.compiled("work_wrong", programs), "cxi", "100", env=env)
    assert done.stdout == "12 queued: No space left on device\n12 started\nclosed\n"
    assert "no entry is free: service" in done.stderr
    assert "has 12" in done.stderr


def test_work_waits_for_entries_without_the_limit_and_says_so(programs: Path, tmp_path: Path, library: str) -> None:
    env = of_entries(tmp_path, library, 12)
    done = support.run(support.compiled("work_wrong", programs), "cxi", "20", env=env)
    assert done.stdout == "20 queued: no error\n20 started\nclosed\n"
    assert "1 deferred operations of this process wait for entries" in done.stderr
    assert done.stderr.count("wait for entries") == 4  # of eight: the first, second, fourth and eighth


@pytest.mark.parametrize("limit", ["0", "1"])
def test_killed_program_gives_its_entries_back(programs: Path, tmp_path: Path, limit: str) -> None:
    """Its policy helper died with it: the next program's asks who lives."""
    env = of_entries(tmp_path, support.SYSTEM, 12, FI_CXI_ENABLE_TRIG_OP_LIMIT=limit, XDG_RUNTIME_DIR=str(tmp_path))
    program = str(support.compiled("work_wrong", programs))
    stays = Far([program, "cxi", "12", "stays"], env, tmp_path / "stderr")
    assert stays.line() == "12 queued: no error\n", stays.said()
    (helper,) = support.helpers(tmp_path)
    os.kill(helper, signal.SIGKILL)
    stays.close()
    done = support.run(program, "cxi", "12", env=env)
    assert done.stdout == "12 queued: no error\n12 started\nclosed\n"
