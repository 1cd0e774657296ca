"""tests/cpp/run.py runs every suite that a program of Boost tests lists, and fails where one fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests import patience
from tests.meta.pages import ROOT

# Lists and ends as a Boost program does: what a suite says and how it ends is in a file of its name.
PROGRAM = """#!/bin/sh
case $1 in
--list_content) printf 'tcp*\\n    test_of_tcp*\\nsync*\\n    test_of_sync*\\noff\\n' >&2 ;;
--run_test=*) cd "$(dirname "$0")" && echo "${1#*=}" >> ran && . "./${1#*=}" ;;
esac
"""
PASSED = 'echo "  {} test cases out of 9 passed"'


@pytest.mark.parametrize(
    ("sync", "status", "words"),
    [
        (PASSED.format(2), 0, "2 of 2 suites passed, with 5 cases"),
        ("echo a check has failed; exit 201", 1, "a check has failed"),
        (PASSED.format(2) + "; kill -SEGV $$", 1, "suite sync ended with status -11"),
        ("true", 1, "suite sync ended with status 0"),
        (PASSED.format(0), 1, "1 of 2 suites passed, with 3 cases"),
    ],
    ids=["passes", "fails", "dies", "says nothing", "runs nothing"],
)
@pytest.mark.parametrize("jobs", ["1", "4"])
def test_every_suite_is_run_and_a_failure_is_told(
    tmp_path: Path, sync: str, status: int, words: str, jobs: str
) -> None:
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (tmp_path / "tcp").write_text(PASSED.format(3))
    (tmp_path / "sync").write_text(sync)
    done = patience.run([sys.executable, str(ROOT / "tests/cpp/run.py"), str(program), "--jobs", jobs], 60)
    assert (done.returncode, words in done.stdout) == (status, True), done.stdout + done.stderr
    assert sorted((tmp_path / "ran").read_text().split()) == ["sync", "tcp"]


def test_a_program_that_lists_no_suite_is_a_failure() -> None:
    done = patience.run([sys.executable, str(ROOT / "tests/cpp/run.py"), "/bin/true"], 60)
    assert (done.returncode, "lists no suite" in done.stderr) == (1, True)
