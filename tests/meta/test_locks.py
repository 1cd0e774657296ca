"""Every lock of the C++ code has a rank in cpp/base/lock_rank.hpp and says what it guards, in words and for Clang.

The table of ranks is in their order. `make locks` has Clang check that code holds the lock of the members that it uses.
"""

from __future__ import annotations

import itertools
import re
import shutil
import sys
from pathlib import Path

import pytest
from tests import patience
from tests.meta.pages import ROOT

TABLE = ROOT / "cpp" / "base" / "lock_rank.hpp"
ROW = re.compile(r'^inline constexpr LockRank (k\w+)\{(\d+), "([^"]+)"\};$')
PLAIN = re.compile(r"\b(?:SpinLock|std::(?:recursive_|shared_|timed_)?mutex)\s+\w+\s*[;{=]")
MEMBER = re.compile(r"^ *(?:alignas\(kCacheLine\) |mutable )*Ranked\w+<lock_rank::(k\w+)>\s+(\w+);", re.M)
# The state that these guard is no member of a class, so Clang cannot check it.
GUARDS_NO_MEMBER = {
    "kServe": "the memory of regions, while a frame accesses it",
    "kRelaxed": "the order of messages; Reorder is what a port has under it",
    "kSegmentLook": "one look at a time",
    "kShmInbox": "the consumer's side of a ring in shared memory",
    "kShmPrivate": "a list that the polling thread reads without the lock",
    "kLevelZero": "a list of the driver's",
    "kProviderHelper": "one question at a time on a connection",
    "kProviderVector": "that a vector and the helper's vector see one order of calls",
    "kProviderNic": "the making of the process's NIC",
}
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


def test_every_lock_says_for_clang_which_members_it_guards() -> None:
    silent = []
    for path in sorted((ROOT / "cpp").rglob("*.?pp")):
        text = path.read_text()
        for rank, name in MEMBER.findall(text):
            if rank not in GUARDS_NO_MEMBER and f"GUARDED_BY({name})" not in text:
                silent.append(f"{path.relative_to(ROOT)}: {name}")
    assert not silent, "write GUARDED_BY (cpp/base/guarded.hpp) behind the members, or say here why there are none"


def test_guards_are_those_that_clang_follows() -> None:
    plain = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "cpp").rglob("*.?pp"))
        if re.search(r"std::(?:lock_guard|scoped_lock|shared_lock)\b", path.read_text())
    ]
    assert not plain, "Guard and SharedGuard (cpp/base/lock.hpp) instead"


def test_clang_notices_a_member_that_is_used_without_its_lock(tmp_path: Path) -> None:
    tidy = shutil.which("clang-tidy", path=str(Path(sys.executable).parent))
    if tidy is None:
        pytest.skip("clang-tidy is not installed: make locks")
    code = """#include "base/lock.hpp"
class Count {
 public:
  int locked() {
    const weft::Guard lock(lock_);
    return n_;
  }
  int unlocked() { return n_; }

 private:
  weft::RankedSpin<weft::lock_rank::kSlab> lock_;
  int n_ GUARDED_BY(lock_) = 0;
};
int both(Count& count) { return count.locked() + count.unlocked(); }
"""
    (tmp_path / "count.cpp").write_text(code)
    checks = ["--quiet", "--checks=-*,bugprone-unused-raii,clang-diagnostic-*"]
    flags = ["--", "-std=c++20", f"-I{ROOT / 'cpp'}", "-Wthread-safety"]
    said = patience.run([tidy, *checks, str(tmp_path / "count.cpp"), *flags], 60).stdout
    assert re.findall(r"count\.cpp:(\d+):.*requires holding lock", said) == ["8"]
