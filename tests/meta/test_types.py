"""mypy and pyright know the types of the friendly layer: tests/typed says which."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from tests import patience
from tests.meta.pages import ROOT

FILES = sorted((ROOT / "tests" / "typed").glob("*.py"))
CHECKERS = {
    "mypy": ["-m", "mypy", "--strict", "--no-error-summary"],
    "pyright": ["-m", "pyright", "--pythonpath", sys.executable],
}


def check(checker: str, *files: str) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    return patience.run([sys.executable, *CHECKERS[checker], *files], cwd=ROOT, timeout=90)


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checker_agrees(checker: str) -> None:
    found = check(checker, *map(str, FILES))
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checker_finds_a_wrong_type(checker: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The check above would fail if a name were Any, or missing."""
    wrong = tmp_path_factory.mktemp("typed") / "wrong.py"
    wrong.write_text(
        "from typing import Any\n\nfrom typing_extensions import assert_type\n\nimport weft\n\n"
        "assert_type(weft.open(), Any)\nweft.open().no_such_name()\nweft.no_such_name\n"
        "weft.open().attach('x').no_such_name\nweft.open().share([]).no_such_name\n"
    )
    found = check(checker, str(wrong))
    assert found.returncode != 0
    for line in (7, 8, 9, 10, 11):
        assert f"wrong.py:{line}:" in found.stdout, found.stdout
