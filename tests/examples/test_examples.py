"""Every program in examples/ runs, gives no warnings, and prints the expected lines."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests import patience

EXAMPLES = Path(__file__).parents[2] / "examples"

# What a run has to print, as regular expressions; the lines of two processes come in any order.
SAYS = {
    "array_in_a_queue.py": {r"3200000 B were worked on; a message had \d{2,3} B"},
    "asyncio_readers.py": {"50 tasks read 100 sensors; the means add up to 4950"},
    "embedding_table.py": {r"4 workers made 6400 updates of \d+ rows; none was lost"},
    "parameter_server_mpi.py": {"400 steps by 2 workers; the largest error is small|skipped: mpi4py and an MPI .*"},
    "weight_broadcast.py": {"all readers have version 5 of 34176 weights|skipped: torch is not installed .*"},
    "remote_array.py": {
        r"reader: row 1 is \[  0   1   2   3   4 105\], its last element was 5; the sum is 157",
        r" \[  7   0   7   0   7   0\]\]",
    },
    "work_queue.py": {r"200 tasks, each done once; by worker: \[\d+, \d+, \d+\]"},
    "two_processes.py": {
        r"owner:     \[0 1 2 3 4 5 6 8\]",
        r"initiator: \[0 1 2 3 4 5 6 8\] where element 7 was 7",
    },
    "ucp_put.py": {
        r"owner:     \[10  1  2  3  4  5  6  8\]",
        r"initiator: \[10  1  2  3  4  5  6  8\] where element 7 was 7",
    },
}


@pytest.mark.procs
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_example_runs(name: str) -> None:
    result = patience.run([sys.executable, "-W", "error::ResourceWarning", str(EXAMPLES / name)], timeout=100)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    for pattern in SAYS[name]:
        assert any(re.fullmatch(pattern, line) for line in lines), lines
