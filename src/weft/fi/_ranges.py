"""Ranges of addresses: joining them, and whether they contain a piece.

A range is (address of the first byte, bytes).
"""

from __future__ import annotations

from collections.abc import Iterable

Range = tuple[int, int]


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The ranges in order of address; adjoining and overlapping ranges are merged."""
    found: list[Range] = []
    for start, size in sorted(ranges):
        if found and start <= found[-1][0] + found[-1][1]:
            first = found[-1][0]
            found[-1] = (first, max(found[-1][1], start + size - first))
        else:
            found.append((start, size))
    return found


def within(piece: Range, ranges: Iterable[Range]) -> bool:
    """Whether the ranges contain all bytes of a piece; the piece may cross from one range into the next."""
    start, size = piece
    return any(a <= start and start + size <= a + n for a, n in joined(ranges))
