"""Forks and registered memory: CXI_FORK_SAFE, CXI_FORK_SAFE_HP, what a NIC that pinned pages does, on-demand paging.

fi_cxi(7) "RDMA and Fork Overview" and the sections after it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import mmap
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import patience
from tests.cxi.support import RW, opened, register
from tests.fi.support import Node

from weft import cxi, fi
from weft.providers.cxi import pages
from weft.providers.cxi.ranges import CountedRanges

PAGE = mmap.PAGESIZE
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_warned", False)


@contextlib.contextmanager
def private(count: int = 1) -> Iterator[Any]:
    """Whole pages of memory that a fork copies on write, filled with 1."""
    area = mmap.mmap(-1, count * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(area, "u1")
    array[:] = 1
    yield array


def address(array: Any) -> int:
    return int(array.ctypes.data)


def kept(array: Any, count: int | None = None) -> list[bool]:
    """Which of the pages the kernel keeps from children."""
    flags: dict[int, bool] = {}
    start = end = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(" ", 1)[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(word, 16) for word in first.split("-"))
        elif line.startswith("VmFlags:"):
            for page in range(max(start, address(array)), min(end, address(array) + len(array)), PAGE):
                flags[page] = " dc" in line
    return [flags[address(array) + n * PAGE] for n in range(count or len(array) // PAGE)]


class Child:
    """A fork that does nothing until it is asked."""

    def __init__(self) -> None:
        ask, self._ask = os.pipe()
        self._answer, answer = os.pipe()
        self.array: Any = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # there are threads
            self.pid = os.fork()
        if self.pid == 0:
            faulthandler.disable()
            signal.alarm(20)
            while True:
                where = int.from_bytes(os.read(ask, 8), "little")
                if not where:
                    os._exit(0)
                os.write(answer, _byte_at(where))
        os.close(ask)
        os.close(answer)

    def byte(self, where: int) -> int | None:
        """What the child has at an address; None where touching it kills the child."""
        os.write(self._ask, where.to_bytes(8, "little"))
        found = os.read(self._answer, 1)
        return found[0] if found else None

    def end(self) -> int:
        """Its wait status."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._ask, bytes(8))
        os.close(self._ask)
        os.close(self._answer)
        return os.waitpid(self.pid, 0)[1]


def _byte_at(where: int) -> bytes:
    return ctypes.string_at(where, 1)


@contextlib.contextmanager
def forked() -> Iterator[Child]:
    child = Child()
    try:
        yield child
    finally:
        child.end()


def put(node: Node, key: int, value: int, addr: int = 0) -> None:
    """A peer's write of one byte."""
    node.ep.write(bytes([value]), None, node.me, addr, key)
    node.wait()


def get(node: Node, key: int, addr: int = 0) -> int:
    """A peer's read of one byte."""
    there = bytearray(1)
    node.ep.read(there, None, node.me, addr, key)
    node.wait()
    return there[0]


# ---- CXI_FORK_SAFE ---------------------------------------------------------------------------------------------------


@pytest.mark.clause(
    "cxi.fork.safe-any-value", "cxi.fork.safe-dontfork", "cxi.fork.dontfork", "cxi.fork.dofork", "cxi.fork.safe-dofork"
)
@pytest.mark.parametrize("value", ["1", "0", ""])
@pytest.mark.parametrize("access", [int(RW), int(fi.READ)], ids=["remote", "local"])
def test_registered_pages_are_kept_from_children(monkeypatch: pytest.MonkeyPatch, value: str, access: int) -> None:
    monkeypatch.setenv("CXI_FORK_SAFE", value)
    with opened() as node, private(3) as memory:
        mr = node.domain.mr_reg(memory[PAGE : 2 * PAGE], access, requested_key=300)
        assert kept(memory) == [False, True, False]
        mr.close()
        assert kept(memory) == [False, False, False]


def test_nothing_is_kept_from_children_without_the_variable() -> None:
    with opened() as node, private() as memory:
        register(node, memory, 300)
        assert kept(memory) == [False]


@pytest.mark.clause("cxi.fork.safe-align", "cxi.fork.safe-align-x86")
def test_ranges_are_aligned_to_the_default_page_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXI_FORK_SAFE", "1")
    with opened() as node, private(4) as memory:
        register(node, memory[PAGE + 100 : 2 * PAGE + 1], 300)
        assert kept(memory) == [False, True, True, False]
        assert [(at - address(memory), end - address(memory)) for at, end, _ in pages.kept_from_children()] == [
            (4096, 3 * 4096)
        ]


@pytest.mark.clause("cxi.fork.safe-refcount", "cxi.fork.safe-split", "cxi.fork.safe-merge", "cxi.fork.safe-untrack")
def test_overlapping_registrations_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXI_FORK_SAFE", "1")
    with opened() as node, private(4) as memory:

        def ranges() -> list[tuple[int, int, int]]:
            at = address(memory)
            return [((s - at) // PAGE, (e - at) // PAGE, users) for s, e, users in pages.kept_from_children()]

        first = register(node, memory[: 2 * PAGE], 300)
        second = register(node, memory[PAGE : 3 * PAGE], 301)
        assert ranges() == [(0, 1, 1), (1, 2, 2), (2, 3, 1)]
        third = register(node, memory[: 3 * PAGE], 302)
        assert ranges() == [(0, 1, 2), (1, 2, 3), (2, 3, 2)]
        second.close()
        assert ranges() == [(0, 2, 2), (2, 3, 1)], "neighbours with as many users are merged"
        first.close()
        assert ranges() == [(0, 3, 1)]
        assert kept(memory) == [True, True, True, False]
        third.close()
        assert ranges() == []
        assert kept(memory) == [False] * 4


@pytest.mark.clause("cxi.fork.safe-refcount", "cxi.fork.safe-dofork")
def test_system_is_told_once_of_each_page() -> None:
    told: list[tuple[str, int, int]] = []
    ranges = CountedRanges(lambda a, b: told.append(("begin", a, b)), lambda a, b: told.append(("end", a, b)))
    ranges.add(0, 10)
    ranges.add(2, 5)
    ranges.add(8, 20)
    assert told == [("begin", 0, 10), ("begin", 10, 20)]
    ranges.remove(0, 10)
    assert told[2:] == [("end", 0, 2), ("end", 5, 8)]
    ranges.remove(2, 5)
    ranges.remove(8, 20)
    assert told[4:] == [("end", 2, 5), ("end", 8, 20)]
    assert ranges.tracked() == []


def test_range_that_the_system_refuses_is_not_tracked() -> None:
    def begin(start: int, end: int) -> None:
        if start >= 20:
            raise OSError(12, "no")

    ended: list[tuple[int, int]] = []
    ranges = CountedRanges(begin, lambda a, b: ended.append((a, b)))
    ranges.add(10, 20)
    with pytest.raises(OSError):
        ranges.add(0, 30)
    assert ended == [(0, 10)]
    assert ranges.tracked() == [(10, 20, 1)]


@pytest.mark.clause("cxi.fork.dontfork-hole")
def test_child_has_no_registered_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXI_FORK_SAFE", "1")
    with opened() as node, private(2) as memory:
        mr = register(node, memory[:PAGE], 300)
        child = Child()
        assert child.byte(address(memory) + PAGE) == 1
        assert child.byte(address(memory)) is None
        assert os.WTERMSIG(child.end()) == signal.SIGSEGV
        mr.close()
        with forked() as second:
            assert second.byte(address(memory)) == 1, "children have it again"


@pytest.mark.parametrize("cached", [False, True])
def test_pages_are_kept_as_long_as_peers_reach_them(monkeypatch: pytest.MonkeyPatch, cached: bool) -> None:
    monkeypatch.setenv("CXI_FORK_SAFE", "1")
    with private() as memory:
        with opened(prov_key=True) as node:
            node.domain.control(cxi.OPT_CXI_SET_PROV_KEY_CACHE, cached)
            mr = register(node, memory)
            mr.close()
            assert kept(memory) == [cached], "cached memory is still mapped"
        assert kept(memory) == [False]


def test_memory_that_the_system_does_not_mark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As 4 KiB of a huge page: MADV_DONTFORK takes whole huge pages."""
    monkeypatch.setenv("CXI_FORK_SAFE", "1")

    def refuses(*args: object) -> None:
        raise OSError(fi.EINVAL, "Invalid argument")

    monkeypatch.setattr(pages, "_system", refuses)
    with opened() as node, private() as memory:
        with pytest.raises(fi.InvalidArgument, match=r"(?s)MADV_DONTFORK.*CXI_FORK_SAFE_HP=1"):
            node.domain.mr_reg(memory, RW, requested_key=300)
        assert pages.kept_from_children() == []
        monkeypatch.undo()
        register(node, memory, 300)


@pytest.mark.clause("cxi.fork.hp-with-safe", "cxi.fork.hp-smaps", "cxi.fork.hp-align")
def test_huge_pages_are_aligned_to_what_smaps_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smaps = tmp_path / "smaps"
    smaps.write_text(
        "200000-800000 rw-p 00000000 00:00 0 \nSize: 6144 kB\nKernelPageSize:     2048 kB\n"
        "800000-900000 rw-p 00000000 00:00 0 \nSize: 1024 kB\nKernelPageSize:        4 kB\n"
    )
    real = pages._areas
    monkeypatch.setattr(pages, "_areas", lambda file, ranges: real(str(smaps), ranges))
    assert pages.aligned(0x200010, 16, huge=True) == (0x200000, 0x400000)
    assert pages.aligned(0x5FFFFF, 2, huge=True) == (0x400000, 0x800000)
    assert pages.aligned(0x7FFFFF, 2, huge=True) == (0x600000, 0x801000), "each end by its own pages"
    assert pages.aligned(0x200010, 16) == (0x200000, 0x201000)


@pytest.mark.clause("cxi.fork.hp-with-safe", "cxi.fork.hp-smaps")
def test_huge_page_variable_works_with_the_other_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = pages._areas
    monkeypatch.setattr(pages, "_areas", lambda file, ranges: asked.append(file) or real(file, ranges))
    monkeypatch.setenv("CXI_FORK_SAFE_HP", "1")
    with private() as memory:
        with opened() as node:
            register(node, memory, 300)
            assert kept(memory) == [False]
        monkeypatch.setenv("CXI_FORK_SAFE", "1")
        with opened() as node:
            register(node, memory, 300)
            assert kept(memory) == [True]
    assert asked == ["/proc/self/smaps"]


def test_later_releases_leave_pages_to_a_kernel_that_copies_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXI_FORK_SAFE", "1")
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    for kernel, expected in (((5, 12), False), ((5, 11), True)):
        monkeypatch.setattr(pages, "_kernel", lambda kernel=kernel: kernel)
        with opened() as node, private() as memory:
            register(node, memory, 300)
            assert kept(memory) == [expected]


# ---- the hazard ------------------------------------------------------------------------------------------------------


def test_fork_with_registered_memory_warns_once() -> None:
    with opened() as node, private() as memory:
        register(node, memory, 300)
        with pytest.warns(RuntimeWarning, match="CXI_FORK_SAFE=1"), forked():
            pass
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            with forked():
                pass


@pytest.mark.parametrize("why", ["safe", "odp", "ignore", "shared", "closed"])
def test_fork_without_danger_does_not_warn(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    for name, value in {
        "safe": ("CXI_FORK_SAFE", "1"), "odp": ("FI_CXI_FORCE_ODP", "1"), "ignore": ("WEFT_CXI_FORK_HAZARD", "ignore")
    }.items():  # fmt: skip
        if name == why:
            monkeypatch.setenv(*value)
    with opened() as node, private() as memory:
        mr = register(node, node.domain.alloc(PAGE, np.uint8) if why == "shared" else memory, 300)
        if why == "closed":
            mr.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            pages._before_fork()


@pytest.mark.clause("cxi.fork.mapping-fixed", "cxi.fork.corruption")
@pytest.mark.parametrize("cached", [False, True])
def test_nic_that_holds_pages_goes_on_with_those_of_before(monkeypatch: pytest.MonkeyPatch, cached: bool) -> None:
    """WEFT_CXI_FORK_HAZARD=show: the parent that writes after a fork gets a new page, the NIC has the child's."""
    monkeypatch.setenv("WEFT_CXI_FORK_HAZARD", "show")
    monkeypatch.setattr(pages, "_warned", True)
    with opened(prov_key=cached) as node, private(2) as memory:
        mr = register(node, memory, 300)
        assert mr.address == address(memory)
        put(node, mr.key, 7)
        assert memory[0] == 7
        memory[1] = 8
        assert get(node, mr.key, 1) == 8, "before the fork both have one page"
        with forked() as child:
            memory[0] = 9  # copy on write: the parent has a new page
            put(node, mr.key, 42)
            assert memory[0] == 9, "the parent does not see what its peer wrote"
            assert child.byte(address(memory)) == 42
            assert get(node, mr.key) == 42
            put(node, mr.key, 43, PAGE)
            assert memory[PAGE] == 43, "nobody has written to the second page"
        again = register(node, memory, 301)
        put(node, again.key, 44, 1)
        if not cached:
            assert memory[1] == 44, "a new registration is of the pages that the process has"
            with forked():
                memory[1] = 45
                put(node, again.key, 46, 1)
                assert memory[1] == 45, "until the next fork"


WRITES = """
import sys
from tests.cxi.support import opened
with opened() as node:
    node.ep.write(b"*", None, node.av.insert(bytes.fromhex(sys.argv[1])), 0, 300)
    node.wait()
"""


@pytest.mark.clause("cxi.fork.corruption")
@pytest.mark.parametrize("hazard", ["show", "ignore"])
def test_other_process_reaches_the_pages_that_the_nic_holds(monkeypatch: pytest.MonkeyPatch, hazard: str) -> None:
    monkeypatch.setenv("WEFT_CXI_FORK_HAZARD", hazard)
    monkeypatch.setattr(pages, "_warned", True)
    with opened() as node, private() as memory:
        register(node, memory, 300)
        with forked() as child:
            memory[0] = 9
            env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
            name = bytes(node.ep.getname()).hex()
            patience.run([sys.executable, "-c", WRITES, name], env=env, check=True, timeout=60)
            held, own = (child.byte(address(memory)), memory[0])
            assert (held, own) == ((ord("*"), 9) if hazard == "show" else (1, ord("*")))


@pytest.mark.clause("cxi.fork.dontfork-parent", "cxi.fork.safe-parent")
def test_held_pages_that_are_kept_from_children_stay_the_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_FORK_HAZARD", "show")
    monkeypatch.setenv("CXI_FORK_SAFE", "1")
    with opened() as node, private(2) as memory:
        mr = register(node, memory[:PAGE], 300)
        assert kept(memory) == [True, False]
        with forked():
            memory[0] = 9
            put(node, 300, 42)
            assert memory[0] == 42
            assert get(node, 300) == 42
        mr.close()
        assert kept(memory) == [False, False]
        assert memory[0] == 42
        with forked() as child:
            memory[0] = 50
            assert child.byte(address(memory)) == 42, "and is copied on write as before"


@pytest.mark.clause("cxi.fork.odp-correct", "cxi.fork.odp-no-env", "cxi.xlate.odp-cow", "cxi.fork.odp-invalidate",
                    "cxi.fork.odp-refault")  # fmt: skip
def test_odp_transfers_use_the_pages_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a NIC that pins would go on with the old page."""
    monkeypatch.setenv("WEFT_CXI_FORK_HAZARD", "show")
    monkeypatch.setenv("FI_CXI_FORCE_ODP", "1")
    with opened() as node, private() as memory:
        register(node, memory, 300)
        assert kept(memory) == [False]
        with forked() as child:
            memory[0] = 9
            put(node, 300, 42)
            assert memory[0] == 42
            assert child.byte(address(memory)) == 1


def test_held_pages_are_the_processes_own_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the region is closed a fork copies its pages like any others; their contents stay."""
    monkeypatch.setenv("WEFT_CXI_FORK_HAZARD", "show")
    monkeypatch.setattr(pages, "_warned", True)
    with opened() as node, private(3) as memory:
        first = register(node, memory[: 2 * PAGE], 300)
        second = register(node, memory[PAGE:], 301)
        put(node, 301, 5)
        assert memory[PAGE] == 5
        assert get(node, 300, PAGE) == 5, "both regions have the page"
        first.close()
        put(node, 301, 6)
        assert memory[PAGE] == 6
        second.close()
        assert [memory[0], memory[PAGE], memory[2 * PAGE]] == [1, 6, 1]
        with forked() as child:
            memory[PAGE] = 9
            assert child.byte(address(memory) + PAGE) == 6
