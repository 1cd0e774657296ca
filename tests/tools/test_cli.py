"""The command `weft`: version, help, what it says to a slip of the pen, and that programs never load it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import weft


def run(*arguments: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weft.tools.cli", *arguments], capture_output=True, text=True, timeout=timeout
    )


def test_version() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"weft {weft.__version__}\n")


def test_without_command_prints_help() -> None:
    result = run()
    assert "perf" in result.stdout + result.stderr


def test_perf_help_explains_every_column() -> None:
    text = run("perf", "--help").stdout
    for word in ("latency", "p99", "rate", "bandwidth", "limit", "--ops", "--path", "--sizes", "--quick", "--json"):
        assert word in text, word
    for key in ("latency_ns_median", "limit_share"):
        assert key in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ops", "push"), ("--ops", "'push'", "write, read, inject_write, fetch_add, batch")),
        (("--ops", ""), ("--ops", "empty")),
        (("--path", "warp"), ("--path", "'warp'", "direct, foreign, ring")),
        (("--sizes", "8,4Q"), ("--sizes", "'4Q'", "4K")),
        (("--sizes", "0"), ("--sizes", "'0'", "from 1")),
        (("--sizes", "2G"), ("--sizes", "'2G'", "1G")),
        (("--sizes", ""), ("--sizes", "no size")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) and value[0].startswith("--") else "",
)
def test_perf_unknown_value_is_named_with_the_known_ones(arguments: tuple[str, ...], said: tuple[str, ...]) -> None:
    result = run("perf", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    for text in said:
        assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_import_weft_fi_loads_no_tool() -> None:
    """What a program imports brings neither the command line nor what it is made of."""
    program = (
        "import sys, weft.fi\n"
        "print(*(m for m in sys.modules if m.partition('.')[0] in ('typer', 'rich', 'click')))\n"
        "print(*(m for m in sys.modules if m.startswith('weft.tools')))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    assert result.stdout.split() == []


def test_version_loads_neither_numpy_nor_the_extension() -> None:
    program = (
        "import sys\nfrom weft.tools.cli import main\nsys.argv = ['weft', '--version']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(*(m for m in ('numpy', 'weft._nic', 'weft.tools._measure') if m in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    assert result.stdout.splitlines()[1:] == [""]
