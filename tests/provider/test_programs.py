"""C programs, unmodified, on Weft's NIC; programs that can run over a provider of libfabric print the same there."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.provider import support

SAME = {"msg": "tcp", "tagged": "tcp", "rma": "tcp", "atomic": "tcp", "alias": "sockets"}  # and libfabric's provider
# Differences on cxi: writes with data are off unless fi_cxi_ext.h's option turns them on, so the call is refused.
WITH_DATA = ("fi_writedata", "its data", "fi_inject_writedata")


def lines(out: str) -> list[str]:
    return [one for one in out.splitlines() if not one.startswith(WITH_DATA)]


@pytest.mark.parametrize("name", SAME)
def test_calls_of_a_table_print_what_they_print_over_libfabrics_own_provider(
    programs: Path, library: str, provider: str, name: str
) -> None:
    program = support.compiled(name, programs)
    ours = support.run(program, provider, env=support.environment(provider, library)).stdout
    theirs = support.run(program, SAME[name], env=support.environment(SAME[name], support.SYSTEM)).stdout
    assert ours.splitlines()[-1] == "closed"
    assert "other bytes" not in ours
    if provider == "weft":
        assert ours == theirs
    else:
        assert lines(ours) == lines(theirs)


MORE_ALIASES = """alias with flags that no call has: {flags}
fi_ep_bind of an alias: no error
fi_ep_bind of its endpoint, again: Invalid argument
fi_write of an alias that is not enabled: {disabled}
the last alias: context 12, flags 0x204
a send without data has data: 0
closed
"""


def test_aliases_have_the_binding_and_the_state_of_their_endpoint(programs: Path, library: str, provider: str) -> None:
    program = support.compiled("alias", programs)
    done = support.run(program, provider, "more", env=support.environment(provider, library, FI_LOG_LEVEL="warn"))
    cxi = provider == "cxi"
    flags = "no error" if cxi else "Flags not supported"
    disabled = "Function not implemented" if cxi else "Operation not permitted in current state"
    assert done.stdout.endswith(MORE_ALIASES.format(flags=flags, disabled=disabled))
    assert "exactly one of TRANSMIT and RECV is needed" in done.stderr
    assert "fi_close: the endpoint has aliases" in done.stderr


EXPECTED = """counter 7, errors 2
fi_cntr_wait, in vain: Connection timed out
fi_cntr_wait beside failures: Error available
{waiting}{waiting}one buffer took 3 messages, least room 64
fi_av_insert: 1
fi_av_straddr: a text
fi_av_lookup of nobody: Invalid argument
fi_send to nobody: Invalid argument
fi_inject, too long: Message too long
fi_tsend without FI_TAGGED: {no_capability}
fi_cancel of nothing: No such file or directory
fi_mr_reg of unknown access: Invalid argument
fi_mr_reg with an offset: {offset}
fi_eq_read of nothing: Resource temporarily unavailable
event FI_NOTIFY, data 7
closed
"""
WAITING = """fi_enable without a vector: Missing or unavailable address vector
fi_ep_bind, twice: Invalid argument
fi_getname before fi_enable: Operation not permitted in current state
fi_getname, too small: Provided buffer is too small
fi_cq_sread, in vain: Resource temporarily unavailable
selective: context 1, 16 bytes; sends 1; more: Resource temporarily unavailable
fi_cq_readerr of nothing: Resource temporarily unavailable
fi_close of a bound queue: Device or resource busy
fi_close of a bound vector: Device or resource busy
fi_close of a domain in use: Device or resource busy
"""


def test_queues_counters_vectors_and_refusals_have_their_numbers(programs: Path, library: str, provider: str) -> None:
    program = support.compiled("objects", programs)
    out = support.run(program, provider, env=support.environment(provider, library)).stdout
    no_capability = "Function not implemented" if provider == "cxi" else "Operation not supported"
    offset = "no error" if provider == "cxi" else "Invalid argument"
    assert out == EXPECTED.format(waiting=WAITING, no_capability=no_capability, offset=offset)


ADDRESSES = """weft://3/4/5: weft://3/4/5
weft://3/65535/5: weft://3/65535/5
weft://3/65536/5: none
weft://3/4: none
weft://3/4/5/6: none
tcp://3/4/5: none
weft://127.0.0.1:7000/1/2/3: weft://127.0.0.1:7000/1/2/3
weft://127.0.0.1:65535/2147483647/65535/4294967295: weft://127.0.0.1:65535/2147483647/65535/4294967295
weft://127.0.0.1:65536/1/2/3: none
weft://127.0.0.1:0/1/2/3: none
weft://127.0.0.1:/1/2/3: none
weft://127.0.0.1:7000x/1/2/3: none
weft://127.0.0.1:7000/2147483648/2/3: none
weft://127.0.0.1:7000/1/65536/3: none
weft://127.0.0.1:7000/1/2/4294967296: none
weft://127.0.0.1:7000/1/2/3/4: none
weft://127.0.0.1:7000/1/2/: none
weft://127.0.0.1:7000/1/2: none
weft://127.0.0.1:7000/1: none
weft://127.0.0.1:7000: weft://127.0.0.1:7000/0/1/7000
weft://[::1]:7000/1/2/3: weft://[::1]:7000/1/2/3
weft://[]:7000/1/2/3: none
an endpoint of this process: here
fi_av_insertsvc(weft0, 77): weft://0/1/77
fi_av_insertsvc(0, 78): weft://0/1/78
fi_av_insertsvc(127.0.0.1:7000, 79): weft://127.0.0.1:7000/0/1/79
fi_av_insertsvc(NULL, NULL): Invalid argument
fi_av_insertsvc(weft0, many): Cannot assign requested address
fi_av_insertsym: Function not implemented
closed
"""


def test_addresses_are_taken_within_their_limits(programs: Path, library: str) -> None:
    program = support.compiled("addresses", programs)
    assert support.run(program, "weft", env=support.environment("weft", library)).stdout == ADDRESSES


def test_two_processes_exchange_messages_until_they_end(programs: Path, library: str, provider: str) -> None:
    out = support.run(
        support.compiled("peer", programs), provider, "ends", env=support.environment(provider, library)
    ).stdout
    assert out == "200 messages each way\nthe peer ended with 0\nclosed\n"


def test_send_to_a_killed_peer_fails_and_the_process_goes_on(programs: Path, library: str, provider: str) -> None:
    out = support.run(
        support.compiled("peer", programs), provider, "killed", env=support.environment(provider, library)
    ).stdout
    assert out == "200 messages each way\na send to the dead: an error\nclosed\n"


def test_objects_of_a_forked_program_stay_the_parents(programs: Path, library: str, provider: str) -> None:
    out = support.run(support.compiled("forks", programs), provider, env=support.environment(provider, library)).stdout
    assert out == (
        "before: a message\n"
        "the parent's endpoint in the child: Operation not permitted in current state\n"
        "closing it: no effect\n"
        "child: a message\nclosed\n"
        "the child ended with 0\n"
        "after: a message\nclosed\n"
    )


VERSIONS = {
    "weft": {"": "written written written written"},
    "cxi": {"1.0": "- - - -", "1.4": "- - - -", "": "written - - written"},  # FI_MR_ENDPOINT is of 1.5
}
"""Provider -> version -> outcome without a mode, with FI_MR_BASIC, FI_MR_SCALABLE and the bits that cxi needs."""


def test_programs_of_every_version_open_objects_and_write(programs: Path, library: str, provider: str) -> None:
    done = support.run(support.compiled("versions", programs), env=support.environment(provider, library))
    outcomes = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    newest = "1.17" if library == support.SYSTEM else "2.5"
    assert newest in outcomes
    known = VERSIONS[provider]
    assert outcomes == {version: known.get(version, known[""]) for version in outcomes}


OTHERS = """fi_ep_bind of the other's queue: Invalid argument
fi_ep_bind of the other's vector: Invalid argument
fi_endpoint of the other's info: Invalid argument
fi_domain of the other's info: Invalid argument
closed
"""


def test_two_providers_in_one_process_keep_apart(programs: Path, library: str) -> None:
    env = support.environment("cxi", library) | {"FI_PROVIDER": "cxi,weft", "FI_LOG_LEVEL": "warn"}
    done = support.run(support.compiled("two", programs), env=env)
    assert done.stdout == OTHERS
    assert "the info is of provider weft, and the fabric of cxi" in done.stderr


def test_refused_call_is_explained_in_the_log(programs: Path, provider: str) -> None:
    program = support.compiled("objects", programs)
    done = support.run(program, provider, env=support.environment(provider, FI_LOG_LEVEL="warn"))
    assert "no address vector is bound" in done.stderr
    assert "fi_addr 1000" in done.stderr
    assert "an operation that the counter counts has failed" in done.stderr


def test_file_of_explanations_is_not_made_anew(programs: Path, tmp_path: Path, provider: str) -> None:
    """`weft run --explain` makes it; after a kill nobody would remove it again."""
    program, file = support.compiled("objects", programs), tmp_path / "explained"
    env = support.environment(provider, WEFT_EXPLAIN=str(file))
    support.run(program, provider, env=env)
    assert not file.exists()
    file.touch()
    support.run(program, provider, env=env)
    assert "no address vector is bound" in file.read_text()


@pytest.mark.parametrize(("provider", "kind"), [("cxi", "rdm"), ("weft", "rdm"), ("weft", "msg")])
def test_fi_pingpong_moves_and_checks_messages_of_all_sizes(provider: str, kind: str) -> None:
    env = support.environment(provider)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    support.pingpong(provider, kind, 10, server=([], ["-B", port], env), client=([], ["-P", port, "127.0.0.1"], env))


def test_thread_that_makes_progress_for_a_poster_does_not_yield(programs: Path, library: str, provider: str) -> None:
    """It polls under a lock of the program, mostly, for which the poster would wait."""
    program = support.compiled("progress", programs)
    done = support.run(program, provider, env=support.environment(provider, library))
    assert done.stdout == (
        "nobody posts: yields\nanother thread posts: does not yield\nit posts, too: yields\nclosed\n"
    )


def test_poll_that_serves_a_peer_does_not_yield(programs: Path, library: str, provider: str) -> None:
    program = support.compiled("served", programs)
    done = support.run(program, provider, env=support.environment(provider, library, WEFT_ENGINE="manual"))
    assert done.stdout == (
        "an empty queue: yields\nan empty queue, serving: does not yield\n"
        "a counter: yields\na counter, serving: does not yield\nclosed\n"
    )


SOURCES = """a directed receive: Resource temporarily unavailable
its message: context 0, 16 bytes, source A
the stranger's message: context 1, error Cannot assign requested address, 8 bytes, inserted 1, the stranger
a directed receive that finds another's message: Resource temporarily unavailable
its message: context 2, 32 bytes, source A
the stranger's message, now known: context 3, 24 bytes, source another
FI_MORE: context 0, 8 bytes, source A
FI_MORE: context 1, 16 bytes, source A
FI_MORE: context 2, 24 bytes, source A
FI_MORE: context 3, 32 bytes, source A
fenced
closed
"""


def test_sources_fences_and_batches_of_messages(programs: Path, library: str, provider: str) -> None:
    env = support.environment(provider, library)
    assert support.run(support.compiled("sources", programs), provider, env=env).stdout == SOURCES


def test_threads_call_while_other_objects_are_closed(programs: Path, library: str, provider: str) -> None:
    env = support.environment(provider, library)
    assert support.run(support.compiled("closing", programs), provider, "5", env=env).stdout == "closed\n"
