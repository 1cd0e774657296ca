"""Whether new arrays get huge pages by Weft.

Most systems give shared memory small pages only (`shmem_enabled` is "never"): one fault for each 4 KiB, and the
processor looks up eight times as many addresses. There Weft asks for huge pages itself: for an array that it fills when
it makes the array, for any other as the array is touched (cpp/mem/huge_pages.hpp).
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

PAGE = 2 << 20
"""Bytes of a huge page; smaller arrays get none."""

_RULE = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_GROUP_MAX = Path("/sys/fs/cgroup/memory.max")
_GROUP_USED = Path("/sys/fs/cgroup/memory.current")


def wanted(nbytes: int) -> bool:
    """True if Weft asks for huge pages: for not more than a quarter of the memory that is free now."""
    return asks() and 4 * nbytes <= min(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _group_bytes())


@functools.cache
def asks() -> bool:
    """True if the kernel gives shared memory huge pages only when asked, and WEFT_HUGE_PAGES allows to ask."""
    from . import settings

    return settings.load().WEFT_HUGE_PAGES and "[never]" in _text(_RULE)


def _group_bytes() -> int:
    """Bytes that the container may still use."""
    most = _group_max()
    if most is None:
        return 1 << 62
    used = _text(_GROUP_USED).strip()
    return most - int(used) if used.isdigit() else most


@functools.cache
def _group_max() -> int | None:
    text = _text(_GROUP_MAX).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
