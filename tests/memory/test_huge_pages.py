"""Arrays get huge pages at once where the system gives shared memory none by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft import _huge

MIB = 1 << 20

# Prints the MiB of the array's pages, and of these the MiB in huge pages, before anything is written.
SHOW = """
import sys, weft
make = {"empty": weft.empty, "zeros": weft.zeros, "reserve": lambda n, t: weft.zeros(1, t, reserve=n)}[sys.argv[1]]
table = make(8 << 20, "u1")
at, found, inside = table.ctypes.data, {}, False
for line in open("/proc/self/smaps"):
    word = line.split()
    if "-" in word[0] and not word[0].endswith(":"):
        low, high = (int(one, 16) for one in word[0].split("-"))
        inside = low <= at < high
    elif inside and word[0] in ("Rss:", "ShmemPmdMapped:"):
        found[word[0]] = int(word[1]) >> 10
assert not table.any()
print(found["Rss:"], found["ShmemPmdMapped:"])
"""


def shown(what: str, **environment: str) -> tuple[int, int]:
    """(MiB allocated, MiB in huge pages) of an array of 8 MiB that was just made."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW, what],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    allocated, huge = map(int, done.stdout.split())
    return allocated, huge


@pytest.fixture
def asked() -> None:
    """Skip where the kernel has its own rule for shared memory, or cannot be asked (before Linux 6.1)."""
    release = tuple(int(word) for word in os.uname().release.split("-")[0].split(".")[:2])
    if release < (6, 1) or "[never]" not in _huge._text(_huge._RULE):
        pytest.skip("shmem_enabled is not never, or the kernel is older than 6.1")


@pytest.mark.parametrize("what", ["empty", "zeros"])
def test_array_has_huge_pages_from_the_start(asked: None, what: str) -> None:
    allocated, huge = shown(what)
    assert allocated >= 8
    if not huge:  # the kernel has no free block of 2 MiB: then the pages are there all the same
        pytest.skip("this system has no free huge page now")
    assert huge == 8


def test_huge_pages_are_switched_off(asked: None) -> None:
    assert shown("empty", WEFT_HUGE_PAGES="0") == (0, 0)


def test_reserved_rows_take_no_memory(asked: None) -> None:
    allocated, huge = shown("reserve")
    assert (allocated, huge) == (0, 0)


def test_array_above_a_quarter_of_free_memory_is_allocated_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_huge, "_asks", lambda: True)
    monkeypatch.setattr(_huge, "_group_bytes", lambda: 64 * MIB)
    assert _huge.wanted(16 * MIB)
    assert not _huge.wanted(16 * MIB + 1)


@pytest.mark.parametrize(
    ("rule", "asks"),
    [("always within_size advise [never] deny force", True), ("[always] advise never", False), (None, False)],
)
def test_weft_asks_only_where_the_kernel_has_no_rule_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rule: str | None, asks: bool
) -> None:
    file = tmp_path / "shmem_enabled"
    if rule is not None:
        file.write_text(rule)
    monkeypatch.setattr(_huge, "_RULE", file)
    _huge._asks.cache_clear()
    try:
        assert _huge._asks() is asks
    finally:
        _huge._asks.cache_clear()


@pytest.mark.parametrize(
    ("most", "used", "left"),
    [
        ("1048576\n", "1000000\n", 48576),
        ("1048576\n", "2000000\n", -951424),
        ("1048576\n", "", 1048576),
        ("max\n", "5\n", 1 << 62),
        ("", "", 1 << 62),
    ],
)
def test_memory_that_a_container_has_left_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: str, used: str, left: int
) -> None:
    limit, current = tmp_path / "memory.max", tmp_path / "memory.current"
    limit.write_text(most)
    current.write_text(used)
    monkeypatch.setattr(_huge, "_GROUP_MAX", limit)
    monkeypatch.setattr(_huge, "_GROUP_USED", current)
    _huge._group_max.cache_clear()
    try:
        assert _huge._group_bytes() == left
    finally:
        _huge._group_max.cache_clear()
