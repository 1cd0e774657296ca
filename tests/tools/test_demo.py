"""`weft demo`: a newcomer's first page."""

from __future__ import annotations

import os
import sys

from tests.patience import run
from tests.procs.children import ROOT

LINES_MAX = 25


def demo(**env: str) -> list[str]:
    found = run([sys.executable, "-m", "weft.tools.cli", "demo"], 100.0, cwd=ROOT, env={**os.environ, **env})
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout.splitlines()


def test_demo_shows_a_write_that_the_owner_finds_without_running() -> None:
    lines = demo()
    text = "\n".join(lines)
    assert len(lines) <= LINES_MAX
    assert max(map(len, lines)) <= 120
    assert "found frames[17].mean() == 200.0, frames[18, 99, 0] == 200, counts[17] == 5" in text
    assert "The owner ran no code for it" in text
    assert "of a local NumPy array" in text
    assert "memcpy" in text
    assert "weft doctor" in lines[-1]


def test_demo_of_a_strict_owner_says_that_its_engine_answered() -> None:
    text = "\n".join(demo(WEFT_ISOLATION="strict"))
    assert "counts[17] == 5" in text
    assert "the owner's engine answered" in text
    assert "ran no code" not in text
