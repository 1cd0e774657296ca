"""The stubs are what the extension says today: golden files, so that reviews see changes."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import pytest
from tests import patience

ROOT = Path(__file__).parents[2]
STUBS = ["_nic.pyi", "fi/_async_calls.pyi"]


def test_stubs_are_current(tmp_path: Path) -> None:
    pytest.importorskip(
        "nanobind", reason="nanobind is a build requirement: absent outside the development environment"
    )
    script = [str(ROOT / "cpp" / "bind" / name) for name in ("text_signatures.py", "stub_patterns.txt")]
    patience.run([sys.executable, *script, str(tmp_path)], check=True, timeout=100)
    for name in STUBS:
        before, after = ((folder / name).read_text().splitlines() for folder in (ROOT / "src" / "weft", tmp_path))
        difference = list(difflib.unified_diff(before, after, f"src/weft/{name}", "the extension", lineterm=""))
        assert not difference, "\n".join(["run `make stub` and commit its files", *difference[:60]])
