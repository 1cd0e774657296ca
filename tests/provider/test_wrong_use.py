"""Wrong use of `cxi` by a C program: the real provider's number, the reason in the log, and the process goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.provider import support
from tests.provider.far import Far

REFUSED = """fi_domain, a service that is not there: Invalid argument
fi_domain, a VNI that the service does not allow: Invalid argument
fi_cq_open, 2 queues of the service: No space left on device
fi_close of a domain with queues: Device or resource busy
fi_enable, without list entries in the service: No space left on device
fi_close of a queue with an endpoint: Device or resource busy
fi_mr_reg, a key of 64 bits: Key was rejected by service
fi_mr_reg, a key of 33 bits: Key was rejected by service
fi_mr_enable, not bound: Invalid argument
fi_write to a region that is not enabled: Input/output error
a region with a key in use: Required key not available
fi_write past the end: Input/output error
fi_read without the right: Input/output error
fi_cq_readerr: 8 bytes, behind
fi_write, a key of 64 bits: Key was rejected by service
fi_write: no error
fi_close of the domain first: Device or resource busy
fi_close of the fabric first: Device or resource busy
closed
"""
EXPLAINED = [
    "cxi0 has no service 999",
    "does not allow VNI 8",
    "the service's limit is 2, 2 are in use",
    "the endpoint's service has no list entries for its buffers",
    "requested_key 1099511627776 is out of range",
    "under FI_MR_ENDPOINT a region is bound to an endpoint first",
    "the region is not enabled: bind it and call enable()",
    "requested_key 200 is already in use",
    "passes the end of the region",
    "the region does not grant this access",
    "key 0x10000000000 has none of the forms of this provider's keys",
    "the domain has open objects",
]


def test_wrong_calls_are_refused_by_number_and_explained(programs: Path, tmp_path: Path, library: str) -> None:
    program = support.compiled("wrong", programs)
    env = support.environment("cxi", library, FI_LOG_LEVEL="warn", FI_LOG_PROV="cxi", **support.registry(tmp_path))
    done = support.run(program, "cxi", support.service(env, eqs=2, les=1), env=env)
    assert done.stdout == REFUSED
    for text in EXPLAINED:
        assert text in done.stderr


AGAIN = """fi_close of a counter with a region: Device or resource busy
a key in use: Required key not available
a second counter: {no_counter}
regions: {regions}
closed
"""


def test_closed_objects_give_back_what_they_took_of_a_service(programs: Path, tmp_path: Path, library: str) -> None:
    program = support.compiled("again", programs)
    env = support.environment("cxi", library, **support.registry(tmp_path))
    done = support.run(program, "cxi", support.service(env, eqs=1, cts=1, les=16), env=env)
    assert done.stdout == AGAIN.format(no_counter="Invalid resource domain", regions=13)


@pytest.mark.parametrize("les", [7, 13], ids=["an endpoint finds no entry", "a region finds no entry"])
def test_killed_program_gives_back_what_it_had_of_a_service(programs: Path, tmp_path: Path, les: int) -> None:
    """Its policy helper died with it: the next program's asks who lives. Each program takes six entries for its
    endpoints and one for its region: two do not fit at once."""
    env = support.environment("cxi", XDG_RUNTIME_DIR=str(tmp_path), FI_LOG_LEVEL="warn", **support.registry(tmp_path))
    env |= support.of_service(env, les=les)
    command = [str(support.compiled("far", programs)), "cxi", "1", "ends"]
    for turn in range(2):
        one = Far(command, env, tmp_path / f"stderr {turn}")
        assert one.line().startswith("me "), one.said()
        (helper,) = support.helpers(tmp_path)
        os.kill(helper, signal.SIGKILL)
        one.close()


MISSING = {
    "fi_scalable_ep": "fi_ops_domain->scalable_ep",
    "fi_stx_context": "fi_ops_domain->stx_ctx",
    "fi_srx_context": "fi_ops_domain->srx_ctx",
    "fi_poll_open": "fi_ops_domain->poll_open",
    "fi_wait_open": "fi_ops_fabric->wait_open",
    "fi_tx_context": "fi_ops_ep->tx_ctx",
    "fi_alltoall": "fi_ops_collective->(an exchange)",
}


def test_calls_that_no_object_has_are_refused_and_explained(programs: Path, library: str, provider: str) -> None:
    """docs/howto/c-programs.md, "What does not yet": each is refused with a text."""
    env = support.environment(provider, library, FI_LOG_LEVEL="warn", FI_LOG_PROV=provider)
    done = support.run(support.compiled("missing", programs), provider, env=env)
    assert done.stdout == "".join(f"{call}: Function not implemented\n" for call in MISSING) + "closed\n"
    for name in MISSING.values():
        assert f"{name}: the object has no such call" in done.stderr


BAD_STATE = "Operation not permitted in current state"
NUMBERS = {
    "fi_cq_sread under FI_WAIT_NONE": ("Invalid argument", "Invalid argument"),
    "FI_GETWAIT under FI_WAIT_NONE": ("No data available", "No data available"),
    "FI_GETWAIT into nothing": ("Invalid argument", "Invalid argument"),
    "fi_trywait under FI_WAIT_NONE": ("Invalid argument", "Invalid argument"),
    "fi_trywait of a queue": ("no error", "no error"),
    "fi_trywait of an event queue": ("Function not implemented", "no error"),
    "fi_trywait of a counter": ("Function not implemented", "no error"),
    "fi_cntr_wait under FI_WAIT_NONE": ("Invalid argument", "Connection timed out"),
    "fi_cntr_wait without attributes": ("Connection timed out", "Connection timed out"),
    "fi_ep_bind of an event queue with flags": ("Flags not supported", "Flags not supported"),
    "fi_cancel before fi_enable": (
        "Operation not permitted in current state",
        "Operation not permitted in current state",
    ),
    "fi_shutdown of a connectionless endpoint": ("Function not implemented", "Operation not supported"),
    "fi_mr_regv of 64 buffers": ("Function not implemented", "Invalid argument"),
    "fi_mr_regv of none": ("Invalid argument", "Invalid argument"),
    "fi_mr_reg with FI_DIRECTED_RECV": ("Invalid argument", "Flags not supported"),
    "FI_REFRESH of a region": ("Invalid argument", "Function not implemented"),
    "fi_mr_bind of a counter for reads": ("Invalid argument", "Flags not supported"),
    "fi_mr_bind of a second counter": ("Invalid argument", "no error"),
    "fi_mr_bind of a disabled endpoint": ("Invalid argument", BAD_STATE),
    "fi_mr_bind after fi_mr_enable": ("Invalid argument", BAD_STATE),
    "fi_mr_enable of local memory, not bound": ("Invalid argument", "no error"),
    "fi_av_insert with FI_EVENT": ("Invalid argument", "Flags not supported"),
    "fi_av_remove with flags": ("Invalid argument", "Flags not supported"),
    "fi_av_lookup after two insertions and one removal": ("no error", "Invalid argument"),
    "fi_av_lookup after two of each": ("Invalid argument", "Invalid argument"),
}
"""Call -> its error on cxi, as docs/reference/cxi-refusals.md has it, and on weft."""


def test_numbers_are_those_of_the_provider(programs: Path, library: str, provider: str) -> None:
    """Calls that the provider's library checks without the policy helper."""
    done = support.run(support.compiled("numbers", programs), provider, env=support.environment(provider, library))
    column = ("cxi", "weft").index(provider)
    assert done.stdout == "".join(f"{call}: {row[column]}\n" for call, row in NUMBERS.items()) + "closed\n"


def test_null_pointers_are_refused(programs: Path, library: str, provider: str) -> None:
    done = support.run(
        support.compiled("nulls", programs),
        provider,
        env=support.environment(provider, library) | {"FI_LOG_LEVEL": "warn"},
    )
    *calls, sent, received, got, value, last = done.stdout.splitlines()
    assert [line for line in calls if not line.endswith(": Invalid argument")] == []
    assert (len(calls), value, last) == (32, "read 5", "closed")
    assert [line for line in (sent, received, got) if "error" in line] == []
    assert "fi_sendv: a list is NULL whose count is not 0" in done.stderr
    assert "fi_send: a buffer is NULL, and its length is 8\n" in done.stderr


def test_threads_read_errors_of_one_queue(programs: Path, library: str, provider: str) -> None:
    errors = 2_000_000 if provider == "weft" else 20_000  # cxi asks the policy helper for each error's number
    program = support.compiled("threads", programs)
    done = support.run(program, provider, str(errors), env=support.environment(provider, library))
    assert done.stdout == "errors are read\nclosed\n"
