"""bench/report.py on the reference run: every row of the speed budget is there, met or with a reason."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
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


def of_bench(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of bench/, which is no package."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module(name)


def test_changes_against_the_reference_are_ratios_the_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    report = of_bench("report", monkeypatch)

    def result(*values: tuple[str, str, float, float]) -> dict[str, Any]:
        rows = [
            {"path": p, "budget": "", "value": v, "unit": u, "met": None, "limit": limit} for p, u, v, limit in values
        ]
        return {"rows": {"rma": rows}}

    before = result(("call", "ns", 100, 40), ("copy", "GB/s", 10, 20), ("same", "ns", 100, 40), ("gone", "ns", 1, 1))
    now = result(("call", "ns", 50, 40), ("copy", "GB/s", 8, 10), ("same", "ns", 105, 40), ("new", "ns", 1, 1))
    assert report.changed_table(now, before) == [
        ["rma: call", "ns", "100", "50", "2.00", "1.00"],
        ["rma: copy", "GB/s", "10", "8", "0.80", "0.50"],
    ]


def test_batches_are_run_again_while_the_limit_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    common = of_bench("common", monkeypatch)
    limits = iter([40, 41, 120, 121, 40, 41, 42, 40])
    values = iter(range(8))
    assert common.spread(4, lambda: next(limits), lambda: next(values)) == [(40, 40.5), (4, 5.5)]
    always = iter([40, 40, 90, 90] * 3)
    assert common.spread(4, lambda: next(always)) == [(40, 65)]
    assert next(always, None) is None  # three times, and no more


def test_place_of_a_benchmark_is_told_by_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    places = of_bench("places", monkeypatch)
    assert places.place_of(35) == places.SHARED
    assert places.place_of(130) == places.APART
    assert 1 <= len(places.pairs()) <= 2
    report = of_bench("report", monkeypatch)
    assert report.place([130, 140]) == "cores apart, 130 ns"
    assert report.place([35, 140]) == "one core, then cores apart"


def test_reference_run_names_no_machine() -> None:
    machine = json.loads((BENCH / "reference.json").read_text())["machine"]
    assert set(machine) == {"cpu", "cores", "linux", "python", "load_before", "libraries"}
