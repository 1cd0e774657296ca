"""Every lock of the C++ code has a rank in cpp/base/lock_rank.hpp, and the table is in the order of ranks."""

from __future__ import annotations

import itertools
import re

from tests.meta.pages import ROOT

TABLE = ROOT / "cpp" / "base" / "lock_rank.hpp"
ROW = re.compile(r'^inline constexpr LockRank (k\w+)\{(\d+), "([^"]+)"\};$')
PLAIN = re.compile(r"\b(?:SpinLock|std::(?:recursive_|shared_|timed_)?mutex)\s+\w+\s*[;{=]")
# Where a lock has no rank because it is what ranked locks are made of.
MADE_OF = {"cpp/base/spinlock.hpp", "cpp/base/lock.hpp"}


def _rows() -> list[tuple[str, int, str]]:
    rows = []
    lines = TABLE.read_text().splitlines()
    for before, line in itertools.pairwise(lines):
        if found := ROW.match(line):
            assert before.startswith("// "), f"{found[1]}: the line above says what the lock guards"
            rows.append((found[1], int(found[2]), found[3]))
    return rows


def test_ranks_rise_from_line_to_line_and_have_different_names() -> None:
    rows = _rows()
    ranks = [rank for _, rank, _ in rows]
    assert len(rows) >= 44
    assert ranks == sorted(set(ranks))
    assert len({name for _, _, name in rows}) == len(rows)


def test_every_rank_is_that_of_one_lock() -> None:
    code = {
        path: path.read_text()
        for path in (ROOT / "cpp").rglob("*")
        if path.suffix in {".hpp", ".cpp"} and path != TABLE
    }
    for row, _, name in _rows():
        locks = [str(path) for path, text in code.items() if re.search(rf"Ranked\w+<lock_rank::{row}>\s", text)]
        if row == "kDomain":  # an activity word of the memory table
            locks = [str(path) for path, text in code.items() if "held_locks::check(lock_rank::kDomain)" in text]
        assert len(locks) == 1, f"{name}: {locks}"


def test_no_lock_is_without_a_rank() -> None:
    plain = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in sorted((ROOT / "cpp").rglob("*.?pp"))
        if str(path.relative_to(ROOT)) not in MADE_OF
        for found in PLAIN.finditer(path.read_text())
    ]
    assert not plain, "give these a row in cpp/base/lock_rank.hpp:\n" + "\n".join(plain)
