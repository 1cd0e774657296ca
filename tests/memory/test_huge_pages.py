"""Arrays take memory as they are written, in huge pages also where the system gives shared memory none by itself."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import patience

import weft
from weft import _huge, _nic, _process, errors
from weft.tools import _machine

MIB = 1 << 20

# Prints the MiB of the array's pages, and of these the MiB in huge pages, before anything is written. With a second
# argument: after all of it was written, when the pages are huge or a minute has passed.
SHOW = """
import sys, time, weft
make = {
    "empty": weft.empty, "zeros": weft.zeros, "ones": weft.ones, "full": lambda n, t: weft.full(n, 7, t),
    "array": lambda n, t: weft.array(bytearray(n), t), "reserve": lambda n, t: weft.zeros(1, t, reserve=n),
}[sys.argv[1]]
table = make(8 << 20, "u1")
at = table.ctypes.data

def look():
    found, inside = {}, False
    for line in open("/proc/self/smaps"):
        word = line.split()
        if "-" in word[0] and not word[0].endswith(":"):
            low, high = (int(one, 16) for one in word[0].split("-"))
            inside = low <= at < high
        elif inside and word[0] in ("Rss:", "ShmemPmdMapped:"):
            found[word[0]] = int(word[1]) >> 10
    return found["Rss:"], found["ShmemPmdMapped:"]

if len(sys.argv) > 2:
    table[:] = 1
    for _ in range(6000):
        if look()[1] == 8:
            break
        time.sleep(0.01)
    assert (table == 1).all()
print(*look())
"""


def shown(*what: str, **environment: str) -> tuple[int, int]:
    """(MiB allocated, MiB in huge pages) of an array of 8 MiB that was just made."""
    done = patience.run([sys.executable, "-c", SHOW, *what], env={**os.environ, **environment}, check=True, timeout=120)
    allocated, huge = map(int, done.stdout.split())
    return allocated, huge


@pytest.fixture
def asked() -> None:
    """Skip where the kernel has its own rule for shared memory, or cannot be asked (before Linux 6.1)."""
    release = tuple(int(word) for word in os.uname().release.split("-")[0].split(".")[:2])
    if release < (6, 1) or "[never]" not in _huge._text(_huge._RULE):
        pytest.skip("shmem_enabled is not never, or the kernel is older than 6.1")
    if not _machine._collapses():
        pytest.skip("this system has no free huge page now")


@pytest.mark.parametrize("what", ["ones", "full", "array"])
def test_array_that_weft_fills_has_huge_pages_from_the_start(asked: None, what: str) -> None:
    assert shown(what) == (8, 8)


@pytest.mark.parametrize("what", ["empty", "zeros"])
def test_array_gets_huge_pages_when_it_is_written(asked: None, what: str) -> None:
    assert shown(what) == (0, 0)
    assert shown(what, "written") == (8, 8)


# Prints the MiB of shared memory that the process has.
MANY = """
import numpy as np, weft
def shared():
    return next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("RssShmem"))
before = shared()
kept = [{make}(1 << 30, "u1") for _ in range(20)]
kept[3][5 << 20] = 1
print(shared() - before)
"""


@pytest.mark.parametrize("make", ["weft.empty", "weft.zeros", "weft.allocator().__enter__() or np.zeros"])
def test_arrays_that_are_never_written_take_no_memory(make: str) -> None:
    if _nic.memory_bytes() < 2 << 30:
        pytest.skip("a machine with less than 2 GiB refuses arrays of 1 GiB")
    done = patience.run([sys.executable, "-c", MANY.format(make=make)], check=True, timeout=120)
    assert int(done.stdout) <= 8


@pytest.mark.parametrize(
    "make",
    [
        weft.empty,
        weft.zeros,
        weft.ones,
        lambda n: weft.full(n, 7),
        lambda n: weft.zeros_like(np.empty(0), shape=n),
        lambda n: weft.empty(n, "u1, f8"),
    ],
    ids=["empty", "zeros", "ones", "full", "zeros_like", "structured"],
)
def test_array_larger_than_the_machine_is_refused_with_numpys_error(make: Callable[[Any], Any]) -> None:
    before = _process.nic().statistics()["allocated_bytes"]
    with pytest.raises(
        MemoryError, match=r"shape \(1000000000000,\) of .* takes \d+ B, and this machine has"
    ) as refused:
        make((10**12,))
    assert isinstance(refused.value, errors.NoMemory)
    assert _process.nic().statistics()["allocated_bytes"] == before


def test_array_of_more_bytes_than_addresses_is_a_value_error_as_of_numpy() -> None:
    for shape in ((1 << 62,), (1 << 40, 1 << 40), 10**20):
        for make in (np.empty, weft.empty):
            with pytest.raises(ValueError, match=r"."):
                make(shape)


def test_numpy_under_the_allocator_refuses_as_before() -> None:
    with weft.allocator(), pytest.raises(MemoryError):
        np.empty(10**12)


def test_memory_that_is_freed_while_it_becomes_huge_is_clean_again() -> None:
    """The thread that makes huge pages has left an array when its memory is freed."""
    rng = random.Random(5)
    print("seed 5")
    for _ in range(60):
        array = weft.zeros(rng.randrange(2 * MIB, 12 * MIB), "u1")
        assert not array.any()
        array[: rng.randrange(len(array))] = 1
        del array
    assert not weft.zeros(16 * MIB, "u1").any()


def test_huge_pages_are_switched_off(asked: None) -> None:
    assert shown("empty", WEFT_HUGE_PAGES="0") == (0, 0)


def test_reserved_rows_take_no_memory(asked: None) -> None:
    allocated, huge = shown("reserve")
    assert (allocated, huge) == (0, 0)


@pytest.mark.parametrize(
    ("asks", "collapses", "state", "effect"),
    [
        (True, True, "ok", "Weft asks for each itself"),
        (True, False, "note", "has small pages"),
        (False, True, "note", "has small pages"),
    ],
)
def test_doctor_recommends_a_rule_only_where_there_are_no_huge_pages(
    monkeypatch: pytest.MonkeyPatch, asks: bool, collapses: bool, state: str, effect: str
) -> None:
    monkeypatch.setattr(_machine, "_read", lambda path: "always [never]")
    monkeypatch.setattr(_huge, "asks", lambda: asks)
    monkeypatch.setattr(_machine, "_collapses", lambda: collapses)
    said = _machine._huge_pages()
    assert said[1] == state
    assert effect in said[3]
    assert (len(said) > 4) is (state == "note")  # the remedy


def test_doctor_tries_it(asked: None) -> None:
    assert _machine._collapses()


def test_array_above_a_quarter_of_free_memory_is_left_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_huge, "asks", lambda: True)
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
    _huge.asks.cache_clear()
    try:
        assert _huge.asks() is asks
    finally:
        _huge.asks.cache_clear()


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
