"""Connected endpoints (FI_EP_MSG) of C programs: over `weft` they print what they print over libfabric's tcp."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.provider import support

SAME = ["client", "server", "closes", "rejected", "nobody", "killed"]


REFUSED = """fi_passive_ep of FI_EP_RDM: Invalid argument
fi_connect of FI_EP_RDM: Operation not supported
fi_accept of FI_EP_RDM: Operation not supported
fi_shutdown of FI_EP_RDM: Operation not supported
fi_listen without a queue: Missing or unavailable event queue
fi_pep_bind of a domain: Invalid argument
fi_pep_bind of NULL: Invalid argument
fi_setname of NULL: Invalid argument
fi_getopt into NULL: Invalid argument
fi_pep_bind, twice: Invalid argument
fi_getname before fi_listen: Operation not permitted in current state
fi_listen, twice: no error
fi_setname after fi_listen: Operation not permitted in current state
fi_connect without a queue: Missing or unavailable event queue
fi_ep_bind of a queue, twice: Invalid argument
fi_connect to no address: Invalid argument
fi_connect with much data: Invalid argument
fi_accept without a request: Invalid argument
fi_shutdown before fi_connect: Transport endpoint is not connected
fi_getpeer before fi_connect: Transport endpoint is not connected
fi_connect: no error
fi_connect, twice: Operation already in progress
fi_send before FI_CONNECTED: Transport endpoint is not connected
fi_reject of no request: Invalid argument
fi_endpoint of a request, twice: Invalid argument
fi_reject of a request with an endpoint: Invalid argument
fi_eq_read beside an error: Error available
an endpoint closed without fi_accept: Connection refused
fi_connect again: no error
fi_reject: no error
fi_reject, twice: Invalid argument
fi_eq_read beside an error: Error available
a rejected request: Connection refused
fi_close of a queue in use: Device or resource busy
fi_connect a third time: no error
another endpoint's fi_connect: no error
fi_eq_read beside an error: Error available
a passive endpoint closed with a request: Connection refused
fi_eq_read beside an error: Error available
a passive endpoint closed with two: Connection refused
fi_eq_read after it: Resource temporarily unavailable
fi_reject of a closed endpoint's request: Invalid argument
fi_eq_read beside an error: Error available
an endpoint closed after the passive endpoint: Connection refused
fi_connect to nobody: no error
fi_eq_read beside an error: Error available
nobody: Connection refused
fi_eq_readerr of nothing: Resource temporarily unavailable
closed
"""


def test_wrong_use_of_connections_has_its_numbers_and_requests_are_never_lost(programs: Path, library: str) -> None:
    program = support.compiled("connect_wrong", programs)
    done = support.run(program, "weft", env=support.environment("weft", library, FI_LOG_LEVEL="warn"))
    assert done.stdout == REFUSED
    assert "no unanswered connection request" in done.stderr
    assert "carries 256 at most" in done.stderr


@pytest.mark.parametrize("what", SAME)
def test_connection_prints_what_it_prints_over_tcp(programs: Path, library: str, what: str) -> None:
    program = support.compiled("connect", programs)
    ours = support.run(program, "weft", what, env=support.environment("weft", library)).stdout
    theirs = support.run(program, "tcp", what, env=support.environment("tcp", support.SYSTEM)).stdout
    assert ours.splitlines()[-1] == "closed"
    assert "other bytes" not in ours
    assert ours == theirs
