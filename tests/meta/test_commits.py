"""Subjects of commits: the change, in at most 70 characters, so that it fits a line of `git log`."""

from __future__ import annotations

import shutil

import pytest
from tests import patience
from tests.meta.pages import ROOT

CHARACTERS_MAX = 70
SINCE = "2026-11-22T00:00:00Z"  # older ones are longer


def git(*args: str) -> str:
    done = patience.run(["git", "-C", str(ROOT), *args], timeout=60)
    if done.returncode != 0:
        pytest.skip(f"git {args[0]}: {done.stderr.strip()}")
    return done.stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_commit_subjects_are_short() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no git repository: a source distribution")
    subjects = git("log", "--no-merges", f"--since={SINCE}", "--format=%h %s").splitlines()
    long = [line for line in subjects if len(line.split(" ", 1)[1]) > CHARACTERS_MAX]
    assert not long, f"over {CHARACTERS_MAX} characters (git commit --amend, git rebase -i):\n" + "\n".join(long)
