"""The extensions of fi_cxi(7) for C programs: the calls of fi_open_ops, options of domains and endpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.provider import support

SEEN = """dom_ops_v1: Success, a table
dom_ops_v6: Success, a table
dom_ops_v7: Invalid argument, none
no name: Invalid argument
no room: Invalid argument
cntr_read: 0, now
cntr_read of no counter: Invalid argument
cntr_read of an endpoint: Invalid argument
cntr_read of nothing: Invalid argument
topology: known
get_dwq_depth: some
unexpected: 2 of 2
  tag 5, 5 bytes
  tag 6, 6 bytes
unexpected, room for one: 1 of 2
unexpected, number alone: 0 of 2
unexpected, without senders: {alone} of 2
unexpected, not enabled: Operation not permitted in current state
unexpected, no number: Invalid argument
unexpected of nothing: Invalid argument
other calls of a counter: Invalid argument
set_wb_buffer, no buffer: Invalid argument
set_wb_buffer, 7 bytes: Invalid argument
set_wb_buffer, read-only: Permission denied
set_wb_buffer, not mapped: Bad address
set_wb_buffer of a domain: Invalid argument
fi_cntr_read: 7
written: 7
get_mmio_addr, no room: Invalid argument
page: there
after a store: 12
errors after a store: 2
after a reset: 0
flags: 0
flags, no room: Invalid argument
copies, a table that is short: Invalid argument
copies, one of two: Invalid argument
copies, none: Invalid argument
other calls to set: Function not implemented
calls without a name: Invalid argument
match events, of a domain with endpoints: no error
match events: 1
optimized regions: 0
optimized regions, no room: Invalid argument
match mode: hardware
a command that is none: Invalid argument
FI_MAP_RAW_MR: Invalid argument
FI_UNMAP_KEY: Invalid argument
FI_CANCEL_WORK: Invalid argument
FI_QUEUE_WORK of nothing: Invalid argument
a traffic class that is none: Invalid argument
a traffic class, NULL: Invalid argument
a value that is none: Invalid argument
an option that is none: Protocol not available
a level that is none: Protocol not available
a match mode that is none: Invalid argument
a match mode, NULL: Invalid argument
match mode: software
received: matched
fi_av_set_user_id without FI_AV_USER_ID: Invalid argument
fi_av_insert of no user id: Invalid argument
fi_av_insert with other flags: Invalid argument
fi_av_set_user_id with flags: Invalid argument
fi_av_set_user_id of nobody: Invalid argument
sender: 4711
sender: 4713
closed
"""
EXPLAINED = [
    "no operations 'dom_ops_v7' here",
    "cntr_read: no counter 1048576",
    "ep_get_unexp_msgs: room for the number of messages is needed",
    "no operations 'cxi_counter_ops_v9' here",
    "a buffer of 7 bytes; the counter writes 8",
    "set_wb_buffer: the buffer is read-only",
    "domain.control: no command -214694937 here",
    "cntr_read: the object is an endpoint\n  try: a domain that is open",
    "cntr_read: the object is NULL\n  try: a domain that is open",
    "ep_get_unexp_msgs: the object is NULL\n  try: an endpoint that is open",
    "set_wb_buffer: the object is a domain\n  try: a counter that is open",
]
# Options and values that each release has.
VALUES = """flags, opened cached: 0x100000000
cached reads: 0, 5
a read that is not cached: 10
flags, set: 0x100000000, a cached read: 10
a flag that is none: Invalid argument
flags, NULL: Invalid argument
a command that is none: Invalid argument
cached keys: 0, beside
cached keys: 1
cached keys, NULL: Invalid argument
the least request buffer: more than one byte
a request buffer: 67108864
a request buffer of nothing: Invalid argument
a request buffer, no room: Invalid argument
enable_mr_match_events: no error, 1
enable_optimized_mrs: 1
enable_mr_match_events: no error, 0
enable_optimized_mrs: 0
keys of regions with match events: another form
keys of regions without them: the same form
a value of a domain: Invalid argument
a value of a domain, read: Invalid argument
endpoint: an order that is none: Invalid argument
endpoint: a time of retries: Invalid argument
endpoint: a value that is read: Invalid argument
alias: an order that is none: Invalid argument
alias: a time of retries: Invalid argument
alias: a value that is read: Invalid argument
received: by both
received: by both
a waiting message: tag 9, sender 4711
operation flags, NULL: Invalid argument
operation flags, no room: Invalid argument
least room of 2^24: Invalid argument
attempts of another protocol: Invalid argument
attempts: 0, 8 bytes
attempts, room for 4 bytes: Provided buffer is too small
attempts, no room: Invalid argument
a time of retries that is too long: Invalid argument
six receives of four list entries
a message that is sent again: received
a message that is not sent again: Input/output error
NIC: version 1, its address, a service
a copy: the same attributes
FI_OPT_CXI_NIC_REFRESH_ATTR: no error
after it: the same attributes
a command that is none of a NIC: Invalid argument
tables of closed objects: they work
child: cntr_read: Operation not permitted in current state
child: ep_get_unexp_msgs: Operation not permitted in current state
child: set_wb_buffer: Operation not permitted in current state
child: get_mmio_addr: Operation not permitted in current state
child: fi_control: Operation not permitted in current state
child: fi_open_ops: Operation not permitted in current state
child: fi_cntr_read: 0
closed
"""


VALUES_EXPLAINED = [
    "cntr.control(SETOPSFLAG): flags 4",
    "the endpoint's protocol is not PROTO_CXI_RNR",
    "a time in microseconds",
    "nic.control: no command",
    *[
        f"{call}: the object belongs to the process that forked this one"
        for call in ("cntr_read", "ep_get_unexp_msgs", "set_wb_buffer", "get_mmio_addr", "fi_control", "fi_cntr_read")
    ],
]


@pytest.fixture(params=["doc", "current"])
def release(request: pytest.FixtureRequest) -> str:
    """Each release of the CXI provider that Weft has."""
    name: str = request.param
    return name


def test_extensions_answer_and_refuse_as_for_python(programs: Path, library: str, release: str) -> None:
    program = support.compiled("cxi_ext", programs)
    env = support.environment("cxi", library, WEFT_CXI_RELEASE=release, FI_LOG_LEVEL="warn", FI_LOG_PROV="cxi")
    done = support.run(program, "cxi", env=env)
    assert done.stdout == SEEN.format(alone=2 if release == "current" else 0)
    for text in EXPLAINED:
        assert text in done.stderr


def test_options_and_values_have_their_effect(programs: Path, tmp_path: Path, library: str, release: str) -> None:
    env = support.environment("cxi", library, WEFT_CXI_RELEASE=release, FI_LOG_LEVEL="warn", FI_LOG_PROV="cxi")
    env |= support.registry(tmp_path) | {"FI_CXI_RNR_MAX_TIMEOUT_US": "0"}
    env |= support.of_service(env)
    done = support.run(support.compiled("cxi_values", programs), "cxi", support.service(env, les=4), env=env)
    assert done.stdout == VALUES, done.stderr
    for text in VALUES_EXPLAINED:
        assert text in done.stderr


def test_general_provider_has_no_extensions(programs: Path, library: str) -> None:
    program = support.compiled("cxi_ext", programs)
    done = support.run(program, "weft", env=support.environment("weft", library), status=None)
    assert done.stdout.startswith("dom_ops_v1: Function not implemented, none\n")
