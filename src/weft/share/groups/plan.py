"""What a member does in a reduction of arrays of one shape and dtype: worked out at the first such call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..arrays.checks import Array
from .group_transport import CHUNK, HEADER, GroupTransport, Reads

_WHOLE_MAX = 1 << 16  # bytes of all members together up to which each member reads everything and combines it itself


class Step(NamedTuple):
    """A part of the array, as long as a half of the windows.

    Attributes:
        part: Elements of the array.
        mine: Elements of the part which this member combines, with the values of all members.
        place: Their bytes in the part.
        given: Bytes of the part that other members read.
        takes: Bytes that this member takes of each other member's values.
        values: Reads the headers of the other members, and then their values of `mine` unless they are mapped.
        results: Reads what the other members have combined, to its place in the part.
    """

    part: slice
    mine: slice
    place: slice
    given: tuple[slice, ...]
    takes: int
    values: Reads
    results: Reads


class Plan:
    """The steps of a reduction.

    Attributes:
        what: The call, as members announce it to each other.
        whole: Each member combines everything for itself, in one phase instead of two.
        heads: Bytes of the headers of the other members.
        room: Bytes that `Step.values` needs.
        mapped: The halves of the other members; None: their values are read into the room.
    """

    def __init__(
        self, transport: GroupTransport, what: str, data: Array, rank: int, size: int, wants: bool, until: float | None
    ) -> None:
        """wants: this member gets the result. until: the deadline of the reads that map the windows of the others."""
        dtype, count = data.dtype, data.size
        self.what = what.encode()
        self.whole = count * dtype.itemsize * size <= _WHOLE_MAX
        others = np.delete(np.arange(size), rank)
        self.mapped = None if self.whole else transport.mapped(others.tolist(), until)
        self.heads = len(others) * HEADER
        self.room = self.heads
        self.steps: list[Step] = []
        each = max(CHUNK // dtype.itemsize, 1)
        for first in range(0, max(count, 1), each):
            n = min(each, count - first)
            cuts = np.linspace(0, n, size + 1).astype(np.int64)
            low, high = (0, n) if self.whole else (int(cuts[rank]), int(cuts[rank + 1]))
            place = slice(low * dtype.itemsize, high * dtype.itemsize)
            cuts *= dtype.itemsize
            takes = place.stop - place.start if wants or not self.whole else 0
            reads = takes if self.mapped is None else 0
            self.room = max(self.room, self.heads + len(others) * reads)
            nobody = np.zeros(0, np.int64)
            values = transport.reads(
                np.concatenate([others, others]),
                np.repeat([-HEADER, place.start], len(others)),
                np.repeat([HEADER, reads], len(others)),
                np.concatenate([np.arange(len(others)) * HEADER, self.heads + np.arange(len(others)) * reads]),
            )
            collects = others if wants and not self.whole else nobody
            starts = cuts[:-1][collects]
            self.steps.append(
                Step(
                    slice(first, first + n),
                    slice(low, high),
                    place,
                    (slice(0, n * dtype.itemsize),)
                    if self.whole
                    else (slice(0, place.start), slice(place.stop, n * dtype.itemsize)),
                    takes,
                    values,
                    transport.reads(collects, starts, np.diff(cuts)[collects], starts),
                )
            )
