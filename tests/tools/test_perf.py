"""`weft perf`: the measured rows, and the end of the command. No test bounds a figure, because machines stall."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import patience

from weft.tools import perf
from weft.tools._measure import Row
from weft.tools._text import UsageError, format_rate, format_size, format_time, parse_names, parse_sizes

from .conftest import Command

COMMAND = [sys.executable, "-m", "weft.tools.cli", "perf"]
KEYS = ["op", "path", "size", "latency_ns_median", "latency_ns_p99", "rate_per_s", "bandwidth_GBps"]
KEYS += ["limit_name", "limit_value", "limit_share", "depth"]
LIMITS = {"memcpy", "process_vm_writev", "process_vm_readv", "atomic add", "cache line", "cache line x 2"}
LIMITS |= {"bare socket", "bare socket x 2", "64 entries"}

pytestmark = pytest.mark.procs


def measure(*arguments: str, **env: str) -> tuple[list[dict[str, Any]], str]:
    result = patience.run(
        [*COMMAND, "--json", "--quick", "--seconds", "0.3", *arguments], timeout=100, env={**os.environ, **env}
    )
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    for row in rows:
        check(row)
    # The share exceeds 1 only if the machine gave less time to the limit than to the operation, never by an order of
    # magnitude. Any single row may be disturbed, so the test checks the median row.
    assert statistics.median(row["limit_share"] for row in rows) < 10
    return rows, result.stderr


def check(row: dict[str, Any]) -> None:
    assert list(row) == KEYS
    assert row["latency_ns_median"] > 0
    # Percentiles of samples: the 99th may equal the median when there are few.
    assert row["latency_ns_p99"] > 0
    assert row["rate_per_s"] > 0
    if row["depth"] is None:
        assert row["bandwidth_GBps"] == pytest.approx(row["rate_per_s"] * row["size"] / 1e9, rel=0.01, abs=1e-3)
    assert row["limit_name"] in LIMITS
    assert row["limit_value"] > 0
    reached = row["limit_value"] / row["latency_ns_median"]
    if row["size"] > 4096:
        reached = row["bandwidth_GBps"] / row["limit_value"]
    assert row["limit_share"] == pytest.approx(reached, rel=0.02, abs=1e-3)
    assert 0 <= row["limit_share"] < math.inf


def test_perf_quick_has_every_operation_on_every_path() -> None:
    rows, _ = measure()
    found = {(row["op"], row["path"]) for row in rows}
    assert found == {
        (op, path)
        for op in ("write", "read", "inject_write", "fetch_add", "batch", "send", "tsend")
        for path in ("direct", "foreign", "ring", "tcp")
    } | {("match_posted", "self"), ("match_unexpected", "self")}
    for row in rows:
        if row["op"] == "fetch_add":
            assert row["size"] == 8
        if row["op"] == "inject_write":
            assert row["size"] <= 256
    sizes = {row["size"] for row in rows if row["op"] == "write"}
    assert sizes == {8, 4096, 65536, 1 << 20}


def test_perf_path_and_sizes_are_those_asked_for() -> None:
    rows, _ = measure("--path", "ring,foreign", "--ops", "read,write", "--sizes", "1,100,4K,12345")
    assert [(row["path"], row["op"], row["size"]) for row in rows] == [
        (path, op, size) for path in ("foreign", "ring") for op in ("write", "read") for size in (1, 100, 4096, 12345)
    ]


def test_perf_foreign_says_when_the_kernel_is_not_asked() -> None:
    """With WEFT_CMA=0 the rows are still printed, and a note names their path."""
    rows, note = measure("--path", "foreign", "--ops", "write", "--sizes", "8", WEFT_CMA="0")
    assert len(rows) == 1
    assert "foreign" in note
    assert "WEFT_CMA=0" in note


def test_perf_strict_says_that_nothing_is_direct() -> None:
    rows, note = measure("--path", "direct", "--ops", "write", "--sizes", "8", WEFT_ISOLATION="strict")
    assert len(rows) == 1
    assert "WEFT_ISOLATION=strict" in note


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["basic", "prov_key", "virt_addr", "endpoint", "local"])
def test_perf_runs_under_every_registration_mode(mode: str) -> None:
    measure("--path", "direct", "--ops", "write,fetch_add,batch", "--sizes", "8", WEFT_MR_MODE=mode)


def test_perf_table_has_a_caption() -> None:
    result = patience.run(
        [*COMMAND, "--seconds", "0.1", "--path", "direct", "--ops", "write", "--sizes", "8"], timeout=100
    )
    assert result.returncode == 0, result.stderr
    for word in ("latency", "p99", "rate", "bandwidth", "limit", "of it", "memcpy"):
        assert word in result.stdout
    assert "\x1b" not in result.stdout  # no colours into a pipe


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_perf_plot_is_drawn(command: Command, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"chart.{suffix}"
    row = Row("write", "direct", 8, 100.0, 200.0, 1e7, 0.08, "memcpy", 3.0, 0.03)
    rows = [row, replace(row, size=65536, bandwidth_GBps=30.0, limit_value=40.0), replace(row, op="batch", path="ring")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perf, "rows", lambda *_, **__: iter(rows))
        ended = command("perf", "--plot", str(file))
    assert ended.code == 0
    assert f"wrote {file}" in ended.err
    begins = {"png": b"\x89PNG", "svg": b"<?xml"}
    assert file.read_bytes().startswith(begins[suffix])


def test_perf_plot_that_cannot_be_written_is_reported(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "chart.png").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perf, "rows", lambda *_, **__: iter([]))
        ended = command("perf", "--plot", str(tmp_path / "chart.png"))
    assert ended.code == 2
    assert "cannot write" in ended.err


# ---- words -----------------------------------------------------------------------------------------------------------


def test_parse_sizes() -> None:
    assert parse_sizes("8, 64,4K,64KiB,1M,1mb,4096") == [8, 64, 4096, 65536, 1 << 20]
    with pytest.raises(UsageError, match="not a size"):
        parse_sizes("-8")
    with pytest.raises(UsageError, match="not a size"):
        parse_sizes("K")
    assert parse_sizes("1,1G") == [1, 1 << 30]
    for text in ("0", str((1 << 30) + 1)):
        with pytest.raises(UsageError, match="from 1 to 1073741824"):
            parse_sizes(text)


def test_parse_names_keeps_the_known_order() -> None:
    assert parse_names("--ops", "b,a", ["a", "b", "c"]) == ["a", "b"]
    assert parse_names("--ops", "all", ["a", "b", "c"]) == ["a", "b", "c"]


def test_formats() -> None:
    assert [format_size(n) for n in (8, 1000, 4096, 1 << 20, 3 << 30)] == ["8 B", "1000 B", "4 KiB", "1 MiB", "3 GiB"]
    assert [format_size(n) for n in (1024, 1025, 1 << 30)] == ["1 KiB", "1025 B", "1 GiB"]
    assert [format_time(n) for n in (1e3, 999.0, 1e9)] == ["1 us", "999 ns", "1 s"]
    assert [format_time(n) for n in (2.5, 1500.0, 2e6, None)] == ["2.5 ns", "1.5 us", "2 ms", ""]
    assert [format_rate(n) for n in (10.0, 1.5e3, 2e6, 3e9)] == ["10 /s", "1.5 k/s", "2 M/s", "3 G/s"]


@pytest.mark.parametrize(("share", "told"), [(1.2, True), (1.0, False), (None, False)])
def test_perf_row_above_its_limit_says_why(capsys: pytest.CaptureFixture[str], share: float | None, told: bool) -> None:
    row = Row("write", "direct", 8, 10.0, 12.0, 1e8, 0.8, "memcpy", 12.0, share)
    perf._table(lambda begin: iter([row]), [], [])
    assert ("note: above 100 %: the limit is a measurement" in capsys.readouterr().out) is told
