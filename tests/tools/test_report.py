"""bench/report.py on the reference run: every row of the speed budget is there, met or with a reason."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

from tests import patience

BENCH = Path(__file__).parents[2] / "bench"
BUDGET_ROWS = 13  # of the design


def test_report_has_every_row_of_the_budget_and_reasons(tmp_path: Path) -> None:
    result = patience.run([sys.executable, str(BENCH / "report.py"), "--output", str(tmp_path / "page")], timeout=100)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "page.md").read_text()
    lines = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in page.partition("## The speed budget")[2].splitlines()
        if line.startswith("|")
    ][2:]
    assert len([line for line in lines if line[0]]) == BUDGET_ROWS
    for line in lines:
        met, reason = line[5], line[7]
        assert met in ("met", "NOT MET", "no budget", "")
        assert met in ("met", "no budget") or reason, line
    assert page.count("\n| 8 B put") >= 3  # the race, and the budget
    for name in ("MPICH", "Open MPI", "pyzmq", "shared_memory"):
        assert name in page
    assert (tmp_path / "page.png").exists() == (importlib.util.find_spec("matplotlib") is not None)


def test_reference_run_names_no_machine() -> None:
    machine = json.loads((BENCH / "reference.json").read_text())["machine"]
    assert set(machine) == {"cpu", "cores", "linux", "python", "load_before", "libraries"}
