"""Every program in examples/ runs, warns of nothing, and prints what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# What a run has to print; the lines of two processes come in any order.
SAYS = {
    "two_processes.py": {
        "owner:     [0 1 2 3 4 5 6 8]",
        "initiator: [0 1 2 3 4 5 6 8] where element 7 was 7",
    },
}


@pytest.mark.procs
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_example_runs(name: str) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert SAYS[name] <= set(result.stdout.splitlines())
