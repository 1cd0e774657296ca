"""tests/near.py: which tests belong to a changed file."""

from __future__ import annotations

import subprocess

import pytest
from tests.near import ALWAYS, BIND, ROOMS, ROOT, SMOKE, TESTS, near


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("tests/fi/test_cq.py", {"fi/test_cq.py"}),
        ("src/weft/fi/cntr.py", {"fi/test_cntr.py"}),
        ("src/weft/providers/cxi/ledger.py", {"cxi"}),
        ("src/weft/tools/_pair.py", {"tools"}),
        ("cpp/sync/queue.cpp", set(ROOMS["sync"])),
        ("cpp/bind/ofi_mr.cpp", {"ofi"}),
        ("README.md", {"meta/test_docs.py"}),
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
