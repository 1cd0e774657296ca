"""distributed's own comm tests, pointed at weft://.

The wheels of distributed have no tests. They are found in a checkout (WEFT_DISTRIBUTED_TESTS=path of its
`distributed/comm/tests/test_comms.py`) or in Debian's package python3-distributed; without either this test is skipped.
Their file is read, never copied: a copy in the test's own folder has weft:// for tcp://, and this process's distributed
runs it. Left out are tests about other transports, about tornado's stream inside tcp://, or failing for tcp:// as well.
"""

from __future__ import annotations

import os
import re
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest
from tests import patience

pytest.importorskip("distributed", reason="Dask's distributed is not installed: pip install 'weft-fabric[dask]'")

DEBIAN = "/usr/lib/python3/dist-packages/distributed/comm/tests/test_comms.py"

NAMES = """

class _names:
    from weft.interop.dask import (
        WeftBackend as TCPBackend, WeftComm as TCP, WeftConnector as TCPConnector, WeftListener as TCPListener
    )


@pytest.fixture
def tcp():
    return _names
"""
CONFTEST = """
import os
import distributed.utils_test
folder = os.environ["WEFT_CERTIFICATES"]
distributed.utils_test.get_cert = lambda name: os.path.join(folder, name)

# The process's threads that read: started before the first test, which counts threads.
import threading
from weft.interop.dask.fabric import fabric_of_process
threads = fabric_of_process().threads
together = threading.Barrier(threads._max_workers)
list(threads.map(lambda _: together.wait(), range(threads._max_workers)))
"""
NOT_OURS = {
    "inproc": "another transport",
    "tls": "another transport",
    "ucx": "another transport",
    "default_client_server": "addresses without a scheme are tcp://'s",
    "resolve_address": "addresses without a scheme are tcp://'s",
    "comm_closed_on_write_error": "replaces a method of tornado's stream",
    "register_backend_entrypoint": "installs a package; fails for tcp:// here as well",
    "handshake_slow_comm": "expects a timeout of the handshake, which distributed has no more",
}
AT_LEAST = 16  # tests that run


def test_distributed_own_comm_tests_pass(tmp_path: Path) -> None:
    source = Path(os.environ.get("WEFT_DISTRIBUTED_TESTS") or DEBIAN)
    if not source.is_file():
        pytest.skip(
            f"no tests of distributed at {source}: set WEFT_DISTRIBUTED_TESTS, or apt-get install python3-distributed"
        )
    text = source.read_text()
    # Names that newer or older versions of distributed lack.
    text = re.sub(r"^    asyncio_tcp,\n", "", text, flags=re.MULTILINE)
    text = text.replace("from distributed.compatibility import to_thread\n", "from asyncio import to_thread\n")
    text = text.replace(
        "from __future__ import annotations\n", "from __future__ import annotations\nasyncio_tcp = None\n", 1
    )
    text = text.replace("tcp://", "weft://").replace('"tcp"', '"weft"')
    (tmp_path / "test_comms_of_distributed.py").write_text(text + NAMES)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    report = tmp_path / "report.xml"
    chosen = " and ".join(f"not {name}" for name in NOT_OURS)
    run = patience.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, f"--junitxml={report}", "."],
        cwd=tmp_path,
        timeout=110,
        env={
            **os.environ,
            "WEFT_CERTIFICATES": str(source.parents[2] / "tests"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    suite = next(xml.etree.ElementTree.parse(report).iter("testsuite"))
    ran = int(suite.get("tests", 0)) - int(suite.get("skipped", 0))
    assert ran >= AT_LEAST, run.stdout[-3000:]
