"""tests/near.py: which tests belong to a changed file. tests/long.py: which files `make test` leaves out."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.long import LONG
from tests.near import ALWAYS, BIND, ROOMS, ROOT, SMOKE, TESTS, near
from tests.patience import run


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("tests/fi/test_cq.py", {"fi/test_cq.py"}),
        ("src/weft/fi/cntr.py", {"fi/test_cntr.py"}),
        ("src/weft/providers/cxi/ledger.py", {"cxi"}),
        ("src/weft/tools/_pair.py", {"tools"}),
        ("cpp/sync/queue.cpp", set(ROOMS["sync"])),
        ("cpp/bind/ofi_mr.cpp", {"ofi"}),
        ("README.md", {"meta/test_readme.py", "meta/test_packaging.py"}),
        ("docs/index.md", {"meta/test_docs.py"}),
        ("src/weft/errors.py", set(SMOKE)),
        ("tests/cpp/test_wire.cpp", set()),
    ],
)
def test_changed_file_names_its_tests(path: str, tests: set[str]) -> None:
    assert near(path) == tests


def test_object_with_several_test_files_names_each() -> None:
    assert {"fi/test_mr.py", "fi/test_mr_sub.py"} <= near("src/weft/fi/mr.py")


def test_every_file_of_the_tree_has_tests_that_exist() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for file in files:
        for one in near(file):
            assert (TESTS / one).exists(), f"{file} names {one}"


def test_named_test_files_exist_and_each_room_has_some() -> None:
    named = [*ALWAYS, *SMOKE, *(one for table in (ROOMS, BIND) for tests in table.values() for one in tests)]
    assert [one for one in named if not (TESTS / one).exists()] == []
    assert {room.name for room in (ROOT / "cpp").iterdir() if any(room.glob("*.[ch]pp"))} <= set(ROOMS)


def test_long_files_exist() -> None:
    assert [name for name in LONG if not (TESTS / name).is_file()] == []


def test_tests_of_a_long_file_are_left_out(request: pytest.FixtureRequest) -> None:
    """The mark comes from the table, for each test of the file; this file is not in the table."""
    assert request.node.get_closest_marker("long") is None
    found = run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "not long", "tests/props/test_matching.py"],
        100.0,
        cwd=ROOT,
    )
    assert "no tests collected" in found.stdout
    assert found.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
