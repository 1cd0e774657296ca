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
FI_QUEUE_WORK: Function not implemented
a traffic class that is none: Invalid argument
a traffic class, NULL: Invalid argument
a value that is none: Invalid argument
an option that is none: Protocol not available
a level that is none: Protocol not available
a match mode that is none: Invalid argument
a match mode, NULL: Invalid argument
match mode: software
received: matched
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
]


@pytest.mark.parametrize("release", ["doc", "current"])
def test_extensions_answer_and_refuse_as_for_python(programs: Path, library: str, release: str) -> None:
    program = support.compiled("cxi_ext", programs)
    env = support.environment("cxi", library, WEFT_CXI_RELEASE=release, FI_LOG_LEVEL="warn", FI_LOG_PROV="cxi")
    done = support.run(program, "cxi", env=env)
    assert done.stdout == SEEN
    for text in EXPLAINED:
        assert text in done.stderr


def test_general_provider_has_no_extensions(programs: Path, library: str) -> None:
    program = support.compiled("cxi_ext", programs)
    done = support.run(program, "weft", env=support.environment("weft", library), status=None)
    assert done.stdout.startswith("dom_ops_v1: Function not implemented, none\n")
