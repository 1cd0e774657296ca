"""Pages of registered memory: kept from forked children, locked, held as a NIC holds them, where the environment asks.

A domain has `Pages` only if something is to be done: otherwise nothing here costs a registration anything.

    CXI_FORK_SAFE, CXI_FORK_SAFE_HP   MADV_DONTFORK when pages come to be registered, MADV_DOFORK when they are no more
    WEFT_CXI_PIN=1                    mlock, munlock: as long as memory is registered, it stays in RAM
    WEFT_CXI_FORK_HAZARD=show         the NIC goes on with the pages that it had at a fork (`_nic.hold_pages`)

On-demand paging holds no pages, so a domain that has it does nothing of this. Pages of cached memory count as
registered until their mapping ends.

Source: fi_cxi(7) "CXI Specific Fork Environment Variables", "ODP Support and Fork".
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
import resource
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ... import _nic, errors
from ...fi.policy import RegionPolicy
from ...fi.policy_rules import RegionFacts
from ...flags import Errno
from . import env, profile
from .ranges import Counted, CountedRanges

_DONTFORK, _DOFORK = 10, 11  # <linux/mman.h>
_MCL_CURRENT, _MCL_FUTURE = 1, 2
_COPIES_AT_FORK = (5, 12)  # from this kernel on, fork copies pages that a device has pinned
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mlock.argtypes = _libc.munlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _system(call: Callable[..., int], *args: int) -> None:
    if call(*args):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _quietly(call: Callable[..., int], *args: int) -> None:
    call(*args)  # the memory may be gone: then there is nothing to undo


class _Process:
    """What is done to the pages of this process."""

    def __init__(self) -> None:
        self.kept = CountedRanges(
            lambda start, end: _system(_libc.madvise, start, end - start, _DONTFORK),
            lambda start, end: _quietly(_libc.madvise, start, end - start, _DOFORK),
        )
        self.locked = CountedRanges(
            lambda start, end: _system(_libc.mlock, start, end - start),
            lambda start, end: _quietly(_libc.munlock, start, end - start),
        )


_here = _Process()


def kept_from_children() -> list[Counted]:
    """The ranges under MADV_DONTFORK, and how many registrations each serves."""
    return _here.kept.tracked()


def locked() -> list[Counted]:
    """The ranges that are locked in memory, and for how many registrations."""
    return _here.locked.tracked()


class _Hold:
    """What was done for one registration."""

    def __init__(self, process: _Process) -> None:
        self._process = process
        self._undo: list[tuple[CountedRanges, int, int]] = []

    def add(self, ranges: CountedRanges, start: int, end: int) -> None:
        """Raises OSError."""
        ranges.add(start, end)
        self._undo.append((ranges, start, end))

    def release(self) -> None:
        """Undo the steps, once. A forked child has nothing to undo: it has neither the pages nor their locks."""
        undo, self._undo = self._undo, []
        if self._process is _here:
            for ranges, start, end in undo:
                ranges.remove(start, end)


class Pages:
    """What one domain does to the pages of its regions.

    Args:
        fork_safe: Mark the pages MADV_DONTFORK (CXI_FORK_SAFE).
        huge: Mark pages by the size that they have (CXI_FORK_SAFE_HP).
        pin: Call mlock (WEFT_CXI_PIN).
        show: Call `_nic.hold_pages` (WEFT_CXI_FORK_HAZARD=show).
    """

    def __init__(self, *, fork_safe: bool, huge: bool, pin: bool, show: bool) -> None:
        self.fork_safe, self.huge, self.pin, self.show = fork_safe, huge, pin, show
        self._lock = threading.Lock()
        self._cached: list[tuple[_nic.Mapping, _Hold]] = []

    def region(self, facts: RegionFacts, make: Callable[[], RegionPolicy | None]) -> RegionPolicy:
        """The policy of a new region, which holds its pages until it is closed.

        Args:
            make: The policy that it would have otherwise.

        Raises what `make` raises, and the system's error where it refuses: ENOMEM, EINVAL, EPERM.
        """
        self.sweep()
        hold = self._hold(facts)
        try:
            return _PagedRegion(make(), hold, self)
        except BaseException:
            hold.release()
            raise

    def _hold(self, facts: RegionFacts) -> _Hold:
        hold = _Hold(_here)
        if not facts.length or facts.iface:
            return hold
        what = ""
        try:
            if self.fork_safe:
                what = "CXI_FORK_SAFE: madvise(MADV_DONTFORK)"
                hold.add(_here.kept, *aligned(facts.address, facts.length, huge=self.huge))
            if self.pin:
                what = "WEFT_CXI_PIN: mlock"
                hold.add(_here.locked, *aligned(facts.address, facts.length))
        except OSError as reason:
            hold.release()
            raise errors.make(
                reason.errno or int(Errno.EINVAL),
                f"mr_reg: {what} of the {facts.length} B at {facts.address:#x}: {reason.strerror}\n"
                f"  try: {_advice(what, self.huge)}",
            ) from None
        return hold

    def keep(self, mapping: _nic.Mapping, hold: _Hold) -> None:
        """Keep the pages of a closed region, because peers still reach its memory by the mapping."""
        with self._lock:
            self._cached.append((mapping, hold))

    def sweep(self) -> None:
        """Let go of pages whose mapping has ended."""
        if not self._cached:
            return
        with self._lock:
            ended = [hold for mapping, hold in self._cached if mapping.closed]
            self._cached = [(mapping, hold) for mapping, hold in self._cached if not mapping.closed]
        for hold in ended:
            hold.release()

    def close(self) -> None:
        """Let go of all pages: the domain's mappings have ended."""
        with self._lock:
            cached, self._cached = self._cached, []
        for _, hold in cached:
            hold.release()


class _PagedRegion:
    """A region whose pages are marked, locked or held (`RegionPolicy`); `inner` decides everything else."""

    def __init__(self, inner: RegionPolicy | None, hold: _Hold, pages: Pages) -> None:
        self.key = inner.key if inner is not None else 0
        self._inner, self._hold, self._pages = inner, hold, pages
        self._mapping: _nic.Mapping | None = None

    def enable(self, region: RegionFacts) -> int | _nic.Mapping | None:
        found = self._inner.enable(region) if self._inner is not None else None
        if isinstance(found, _nic.Mapping):
            self._mapping = found
        return found

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        if self._mapping is not None and not self._mapping.closed:
            self._pages.keep(self._mapping, self._hold)
        else:
            self._hold.release()


def of_domain(*, odp: bool) -> Pages | None:
    """What a new domain does to pages; None for nothing.

    Args:
        odp: On-demand paging is in force.
    """
    e, p = env.load(), profile.load()
    fork_safe = e.CXI_FORK_SAFE and not (p.fork_copies and _kernel() >= _COPIES_AT_FORK)
    show = e.WEFT_CXI_FORK_HAZARD == "show"
    if odp or not (fork_safe or e.WEFT_CXI_PIN or show):
        return None
    return Pages(fork_safe=fork_safe, huge=fork_safe and e.CXI_FORK_SAFE_HP, pin=e.WEFT_CXI_PIN, show=show)


def _kernel() -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", platform.release())[:2])


def aligned(address: int, length: int, *, huge: bool = False) -> tuple[int, int]:
    """The whole pages around a range: of the system's default size; with `huge` of the size that they have."""
    first = last = mmap.PAGESIZE
    if huge:
        for area in _areas("/proc/self/smaps", [(address, length)]):
            if area.start <= address < area.end:
                first = area.page
            if area.start < address + length <= area.end:
                last = area.page
    return address // first * first, -(-(address + length) // last) * last


def _advice(what: str, huge: bool) -> str:
    if "mlock" in what:
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        most = "no limit" if limit == resource.RLIM_INFINITY else f"{limit} B"
        return f"a higher `ulimit -l` (now {most}), or without WEFT_CXI_PIN"
    if huge:
        return "memory that is mapped, or without CXI_FORK_SAFE"
    return "CXI_FORK_SAFE_HP=1 as well, where the memory is in huge pages; memory that is mapped"


# ---- what is mapped --------------------------------------------------------------------------------------------------


class _Area(NamedTuple):
    """A line of /proc/self/smaps: addresses, rights as "rw-p", bytes of a page (0 where the file does not say)."""

    start: int
    end: int
    rights: str
    page: int


def _areas(file: str, ranges: Iterable[tuple[int, int]]) -> Iterator[_Area]:
    """The areas that (address, bytes) ranges lie in. `file` is maps, or smaps, which knows page sizes and is slow."""
    wanted = [(at, at + length) for at, length in ranges]
    found: _Area | None = None
    with open(file) as lines:
        for line in lines:
            head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ", line)
            if head:
                if found is not None:
                    yield found
                start, end = int(head[1], 16), int(head[2], 16)
                hit = any(start < last and first < end for first, last in wanted)
                found = _Area(start, end, head[3], 0) if hit else None
            elif found is not None and line.startswith("KernelPageSize:"):
                found = found._replace(page=int(line.split()[1]) * 1024)
    if found is not None:
        yield found


# ---- forks -----------------------------------------------------------------------------------------------------------

_watched: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # DomainCore, by the policy's id()
_all_pages: weakref.WeakSet[Pages] = weakref.WeakSet()
_warned = False


def watch(domain: Any, pages: Pages | None, *, odp: bool) -> None:
    """Warn at a fork while the domain is open, where nothing else keeps its regions safe."""
    if pages is not None:
        _all_pages.add(pages)
        if pages.show:
            _nic.hold_pages(domain, pages.fork_safe)
    if not odp and (pages is None or not pages.fork_safe):
        _watched[id(domain)] = domain


def _endangered() -> list[tuple[int, int]]:
    """(address, bytes) of open regions in memory that a fork makes copy-on-write."""
    regions = [(mr.address, mr.length) for domain in list(_watched.values()) for mr in domain.regions() if mr.length]
    if not regions:
        return []
    private = [area for area in _areas("/proc/self/maps", regions) if area.rights[1] == "w" and area.rights[3] == "p"]
    return [(at, length) for at, length in regions if any(one.start < at + length and at < one.end for one in private)]


def _before_fork() -> None:
    global _warned
    for pages in list(_all_pages):
        pages.sweep()
    if _warned or not len(_watched) or env.load().WEFT_CXI_FORK_HAZARD == "ignore":
        return
    found = _endangered()
    if found:
        _warned = True
        warnings.warn(
            f"fork: {len(found)} registered regions of the cxi provider, {sum(n for _, n in found)} B, become "
            "copy-on-write\n"
            "  found: a NIC that pinned these pages goes on with them. After the fork, a page that this process writes "
            "to is a new one for it, and peers reach the old one, which the child has\n"
            '  rule: so it is on Slingshot where the kernel is older than 5.12, fi_cxi(7) "RDMA and Fork Overview". '
            "Weft reaches the pages that this process has, unless WEFT_CXI_FORK_HAZARD=show\n"
            "  try: CXI_FORK_SAFE=1 (and CXI_FORK_SAFE_HP=1 for huge pages), FI_CXI_ODP=1 without MR_ALLOCATED, or "
            "WEFT_CXI_FORK_HAZARD=ignore",
            RuntimeWarning,
            stacklevel=2,  # the caller of os.fork()
        )


def _after_fork_in_child() -> None:
    global _here
    _here = _Process()  # the child has neither the pages that were kept from it, nor locks
    _watched.clear()
    _all_pages.clear()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)

# ---- FI_CXI_ATS_MLOCK_MODE -------------------------------------------------------------------------------------------


def lock_all() -> str:
    """Lock the whole process in memory, now and later (mlockall); returns why that failed, or ""."""
    if not _libc.mlockall(_MCL_CURRENT | _MCL_FUTURE):
        return ""
    reason = ctypes.get_errno()
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    most = "no limit" if limit == resource.RLIM_INFINITY else f"{limit} B"
    return f"{errors.strerror(reason)}: `ulimit -l` is {most}"
