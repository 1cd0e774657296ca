"""Limits of programs that tests start stretch with the load: tests/patience.py, and no bare number of seconds."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests import patience

TESTS = Path(__file__).parents[1]
OURS = TESTS / "patience.py"
CALLS = {"run", "call", "check_call", "check_output"}


def bare(tree: ast.AST) -> list[str]:
    """Calls of subprocess, and of its processes, that have a timeout of their own."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if not any(keyword.arg == "timeout" for keyword in node.keywords):
            continue
        of = ast.unparse(node.func.value)
        if (of == "subprocess" and node.func.attr in CALLS) or (node.func.attr == "communicate" and of != "patience"):
            found.append(f"{node.lineno}: {ast.unparse(node.func)}")
        if node.func.attr == "wait" and "process" in of.rpartition(".")[2]:
            found.append(f"{node.lineno}: {ast.unparse(node.func)}")
    return found


def timed(tree: ast.AST) -> list[str]:
    """Assertions that the clock has not come to an instant."""
    return [
        f"{node.lineno}: {ast.unparse(part)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        for part in ast.walk(node.test)
        if isinstance(part, ast.Compare) and re.match(r"time\.\w+\(\) <", ast.unparse(part))
    ]


def test_tests_wait_with_patience() -> None:
    found = {
        str(path.relative_to(TESTS)): bare(tree := ast.parse(path.read_text())) + timed(tree)
        for path in sorted(TESTS.rglob("*.py"))
        if path != OURS
    }
    assert {path: calls for path, calls in found.items() if calls} == {}


def test_bare_limits_are_found() -> None:
    text = "subprocess.run(['a'], timeout=5)\nself.process.wait(timeout=5)\nchild.communicate(timeout=WATCHDOG_S)"
    assert len(bare(ast.parse(text))) == 3
    text = "while not done():\n    assert time.monotonic() < deadline, 'hangs'\nassert time.monotonic() - begun >= 0.12"
    assert len(timed(ast.parse(text))) == 1


def test_run_ends_a_program_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "slowness", lambda: 1.0)
    with pytest.raises(subprocess.TimeoutExpired):
        patience.run([sys.executable, "-c", "import signal; signal.pause()"], timeout=0.2)


def test_run_returns_what_a_program_says_and_checks_its_end() -> None:
    program = "import sys; print(sys.stdin.read()); sys.exit(3)"
    done = patience.run([sys.executable, "-c", program], timeout=60, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr) == (3, "\n", "")
    with pytest.raises(AssertionError, match="status 3"):
        patience.run([sys.executable, "-c", program], timeout=60, check=True, stdin=subprocess.DEVNULL)
    with subprocess.Popen(
        [sys.executable, "-c", "print(input())"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert patience.communicate(process, 60, "heard\n")[0] == "heard\n"
        assert patience.wait(process, 60) == 0
