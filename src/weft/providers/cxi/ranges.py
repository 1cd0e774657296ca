"""Address ranges with user counts: an action on a range's pages is done for the first user and undone after the last.

    ranges = CountedRanges(begin, end)
    ranges.add(0x1000, 0x3000)       # begin(0x1000, 0x3000)
    ranges.add(0x2000, 0x4000)       # begin(0x3000, 0x4000): the part without a user before
    ranges.remove(0x1000, 0x3000)    # end(0x1000, 0x2000): the part without a user now

Overlapping ranges are split where they overlap; neighbours with equal counts are merged.
Source: fi_cxi(7) "CXI Specific Fork Environment Variables".
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Counted(NamedTuple):
    """Addresses from `start` to before `end`, and their number of users."""

    start: int
    end: int
    users: int


class CountedRanges:
    """The used addresses and their user counts.

    Args:
        begin: Called with the first and the end address of a range that gets its first user. If it raises, `add` has no
            effect.
        end: Called with a range that has lost its last user. Must not raise.

    Thread safety: any thread; begin and end are called under the lock.
    """

    def __init__(self, begin: Callable[[int, int], object], end: Callable[[int, int], object]) -> None:
        self._begin, self._end = begin, end
        self._lock = threading.Lock()
        # Range n is from _starts[n] to _starts[n + 1] and has _users[n] users; the last range has none.
        self._starts: list[int] = []
        self._users: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add a user of start <= address < end. Raises what `begin` raises."""
        with self._lock:
            first, last = self._split(start), self._split(end)
            new = list(self._gaps(first, last))
            done: list[tuple[int, int]] = []
            try:
                for one in new:
                    self._begin(*one)
                    done.append(one)
            except BaseException:
                for one in done:
                    self._end(*one)
                self._merge(first, last)
                raise
            for n in range(first, last):
                self._users[n] += 1
            self._merge(first, last)

    def remove(self, start: int, end: int) -> None:
        """Remove a user of a range that was added."""
        with self._lock:
            first, last = self._split(start), self._split(end)
            for n in range(first, last):
                self._users[n] -= 1
            for one in list(self._gaps(first, last)):
                self._end(*one)
            self._merge(first, last)

    def tracked(self) -> list[Counted]:
        """The ranges that have users, by address."""
        with self._lock:
            return [
                Counted(self._starts[n], self._starts[n + 1], users) for n, users in enumerate(self._users) if users
            ]

    def _split(self, at: int) -> int:
        """Split at an address if necessary; the index of the range that begins there."""
        n = bisect_left(self._starts, at)
        if n == len(self._starts) or self._starts[n] != at:
            self._starts.insert(n, at)
            self._users.insert(n, self._users[n - 1] if n else 0)
        return n

    def _gaps(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The parts without users, in order."""
        n = first
        while n < last:
            if self._users[n]:
                n += 1
                continue
            start = n
            while n < last and not self._users[n]:
                n += 1
            yield self._starts[start], self._starts[n]

    def _merge(self, first: int, last: int) -> None:
        """Join neighbours with equal counts, from the range before `first` to `last`."""
        for n in range(min(last, len(self._users) - 1), max(first, 0) - 1, -1):
            if self._users[n] == (self._users[n - 1] if n else 0):
                del self._starts[n], self._users[n]
