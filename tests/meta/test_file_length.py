"""One subject a file: no file of source has more than 700 lines."""

from __future__ import annotations

import pytest
from tests.meta.pages import ROOT

LINES_MAX = 700
GENERATED = ("src/weft/_nic.pyi", "src/weft/fi/_async_calls.pyi")
FOLDERS = ("bench", "cpp", "docs", "examples", "src", "tests")


@pytest.mark.parametrize("folder", FOLDERS)
def test_file_of_source_has_one_subject_and_at_most_700_lines(folder: str) -> None:
    long = []
    found = 0
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix not in {".py", ".pyi", ".cpp", ".hpp", ".inl"} or str(path.relative_to(ROOT)) in GENERATED:
            continue
        found += 1
        lines = len(path.read_text().splitlines())
        if lines > LINES_MAX:
            long.append(f"{path.relative_to(ROOT)}: {lines} lines")
    assert found, f"no source in {folder}/"
    assert not long, "cut these along their subjects:\n" + "\n".join(long)
