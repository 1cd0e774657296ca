"""Wrong use of `cxi` by a C program: the real provider's number, the reason in the log, and the process goes on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests import patience
from tests.provider import support

REFUSED = """fi_domain, a service that is not there: Invalid argument
fi_domain, a VNI that the service does not allow: Invalid argument
fi_cq_open, 2 queues of the service: No space left on device
fi_close of a domain with queues: Device or resource busy
fi_enable, without list entries in the service: No space left on device
fi_close of a queue with an endpoint: Device or resource busy
fi_mr_reg, a key of 64 bits: Key was rejected by service
fi_mr_enable, not bound: Invalid argument
fi_write to a region that is not enabled: Input/output error
a region with a key in use: Required key not available
fi_write past the end: Input/output error
fi_read without the right: Input/output error
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


@pytest.fixture
def service() -> str:
    """A service that allows VNI 7 and has room for two queues and one list entry."""
    command = [sys.executable, "-m", "weft", "service", "create", "--vni", "7", "--limit", "eqs=2", "--limit", "les=1"]
    done = patience.run(command, support.PROGRAM_S, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_wrong_calls_are_refused_by_number_and_explained(programs: Path, library: str, service: str) -> None:
    program = support.compiled("wrong", programs)
    env = support.environment("cxi", library, FI_LOG_LEVEL="warn", FI_LOG_PROV="cxi")
    done = support.run(program, "cxi", service, env=env)
    assert done.stdout == REFUSED
    for text in EXPLAINED:
        assert text in done.stderr
