"""Page sizes of this system, and of the memory mapped at a range of addresses."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence


def page_sizes() -> set[int]:
    """Page sizes of this system, in bytes."""
    sizes = {os.sysconf("SC_PAGE_SIZE")}
    sizes.update(_huge_page_sizes())
    return sizes


def _huge_page_sizes() -> Iterator[int]:
    try:
        for name in os.listdir("/sys/kernel/mm/hugepages"):
            yield int(name.removeprefix("hugepages-").removesuffix("kB")) * 1024
    except (OSError, ValueError):
        return


def other_page_size(expected: int, pieces: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """(address, size) of the first page in the (address, bytes) ranges whose size is not `expected`, or None."""
    with open("/proc/self/smaps") as file:
        low = high = 0
        for line in file:
            first, _, rest = line.partition(" ")
            if "-" in first and not first.endswith(":"):
                low, high = (int(word, 16) for word in first.split("-"))
            elif first == "KernelPageSize:":
                size = int(rest.split()[0]) * 1024
                for start, length in pieces:
                    if size != expected and low < start + length and start < high:
                        return max(low, start), size
    return None
