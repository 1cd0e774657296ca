"""The runs over a real libfabric, and their table."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest
from tests.fi import real_table

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs/reference/ofi-differences.md"
ROWS = [
    (who, name, what)
    for table in (real_table.DIFFERENCES, real_table.DIFFERENCES_OF_2)
    for who, tests in table.items()
    for name, what in tests.items()
]


@pytest.mark.parametrize(("who", "name", "what"), ROWS)
def test_each_difference_is_a_row_of_the_page(who: str, name: str, what: str) -> None:
    row = f"| {who or 'both'} | {what} | `{name.replace('[[]', '[')}` |"
    assert row in PAGE.read_text().splitlines()


@pytest.mark.parametrize("name", [*real_table.APART, *(name for _, name, _ in ROWS)])
def test_each_entry_is_of_a_test(name: str) -> None:
    texts = [(FOLDER / f"{module}.py").read_text() for module in real_table.MODULES]
    defined = [test for text in texts for test in re.findall(r"^ *def (test_\w+)", text, re.M)]
    assert fnmatch.filter(defined, name.partition("[")[0])
