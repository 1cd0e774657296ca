"""src/weft/_nic.pyi is what nanobind says of the extension today: a golden file, so that reviews see changes."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import pytest
from tests import patience

PATTERNS = Path(__file__).parents[2] / "cpp" / "bind" / "stub_patterns.txt"
STUB = Path(__file__).parents[2] / "src" / "weft" / "_nic.pyi"


def test_stub_is_current(tmp_path: Path) -> None:
    pytest.importorskip(
        "nanobind", reason="nanobind is a build requirement: absent outside the development environment"
    )
    fresh = tmp_path / "_nic.pyi"
    patience.run(
        [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "weft._nic", "-p", str(PATTERNS), "-o", str(fresh)],
        check=True,
        timeout=100,
    )
    before, after = STUB.read_text().splitlines(), fresh.read_text().splitlines()
    difference = list(difflib.unified_diff(before, after, "src/weft/_nic.pyi", "the extension", lineterm=""))
    assert not difference, "\n".join(["run `make stub` and commit src/weft/_nic.pyi", *difference[:60]])
