"""tests/near.py: which tests belong to a changed file. tests/long.py: which files `make test` leaves out."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.long import CASES, LONG, case_is_long
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


def test_cases_are_named_by_test_and_case() -> None:
    assert case_is_long("fi/test_mr.py", "test_mr_hundred_thousand_live_regions[ofi:tcp]")
    assert not case_is_long("fi/test_mr.py", "test_mr_hundred_thousand_live_regions")
    assert not case_is_long("fi/test_cq.py", "test_mr_hundred_thousand_live_regions[ofi:tcp]")


@pytest.mark.long
def test_each_long_case_exists_and_its_file_keeps_others() -> None:
    """Each row of CASES names tests, and leaves some of the file to `make test`."""
    found = run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--collect-only",
            "-p",
            "no:cacheprovider",
            *(f"tests/{x}" for x in CASES),
        ],
        100.0,
        cwd=ROOT,
    )
    named = [line.partition("::") for line in found.stdout.splitlines() if "::" in line]
    for file, rows in CASES.items():
        names = [name for path, _, name in named if path == f"tests/{file}"]
        left = [name for name in names if not case_is_long(file, name)]
        assert left, f"{file}: all tests are long: it belongs into LONG"
        for begin, case, _ in rows:
            assert any(name.startswith(begin) and re.search(case, name.partition("[")[2]) for name in names), (
                f"{file}: no test begins with {begin} and has a case like {case!r}"
            )
