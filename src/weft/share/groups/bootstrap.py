"""How the members of a group find each other: a small shared table, in which each member writes a record.

The first process makes the table under the group's name. Members of several hosts use the ticket of a table that a
process shares.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import errors
from ...memory.arrays import zeros
from ..arrays.remote import RemoteArray
from ..names.ticket import PREFIX
from ..shared import Shared

if TYPE_CHECKING:
    from ..node import Node

SEATS_MAX = 4096
_RECORD = 1024  # bytes of a seat: a word that is 0 (free), TAKEN, or the length of the record, which follows
_WORDS = _RECORD // 8
_TAKEN = 1 << 32
_MAGIC = 0x7465656D74666577
_PAUSE_S = 0.002


def new_table(size: int) -> np.ndarray[Any, Any]:
    """An empty table for `size` members."""
    table: np.ndarray[Any, Any] = zeros((1 + size, _WORDS), np.uint64)
    table[0, :2] = _MAGIC, size
    return table


class Bootstrap:
    """One member's look at the table of a group."""

    def __init__(self, node: Node, source: Any, size: int, deadline: float) -> None:
        self._node = node
        self._source = source
        self._size = size
        self._deadline = deadline
        self._made: Shared | None = None
        self._table: RemoteArray

    def take_seat(self, rank: int | None) -> int:
        """A free seat, or the seat of this rank. Raises AddressInUse (another process has the rank), InvalidArgument
        (the table has another number of seats), TimedOut, and what attach raises."""
        while True:
            self._find()
            found = self._seat(rank)
            if found is not None:
                return found
            # A full table belongs to an earlier group of this name, whose members are just leaving.
            if time.monotonic() > self._deadline:
                raise errors.AddressInUse(
                    f"Group: all {self._size} seats of {self._shown()} are taken\n"
                    "  rule: one group at a time has a name\n  try: another name"
                )
            self.leave()
            time.sleep(_PAUSE_S)

    def sit(self, rank: int, record: dict[str, Any]) -> None:
        """Write this member's record."""
        body = json.dumps(record, separators=(",", ":")).encode()
        if len(body) > _RECORD - 8:
            raise errors.TooSmall(f"Group: a record of {len(body)} bytes does not fit a seat of {_RECORD - 8}")
        words = np.zeros(_WORDS - 1, np.uint64)
        words.view(np.uint8)[: len(body)] = np.frombuffer(body, np.uint8)
        self._table[1 + rank, 1:] = words
        self._table.swap((1 + rank, 0), np.uint64(len(body)))  # last: a reader that sees the length sees the record

    def records(self) -> list[dict[str, Any]]:
        """The records of all members, by rank, when all have come. Raises TimedOut, which names the missing ranks;
        ConnectionReset."""
        try:
            return self._records()
        except (errors.ConnectionReset, errors.KeyRejected):
            raise errors.ConnectionReset(
                f"Group: {self._shown()} has ended: the member that made the table failed, or its process died\n"
                "  try: start all members again"
            ) from None

    def _records(self) -> list[dict[str, Any]]:
        while True:
            lengths = self._table[1:, 0]
            missing = np.flatnonzero((lengths == 0) | (lengths == _TAKEN))
            if not len(missing):
                break
            if time.monotonic() > self._deadline:
                shown = ", ".join(str(rank) for rank in missing[:8]) + (" ..." if len(missing) > 8 else "")
                raise errors.TimedOut(
                    f"Group: {len(missing)} of {self._size} members of {self._shown()} have not come: ranks {shown}\n"
                    "  try: start them, or a longer wait="
                )
            time.sleep(_PAUSE_S)
        rows = self._table[1:].view(np.uint8)
        found = []
        for rank, length in enumerate(lengths):
            try:
                record = json.loads(bytes(rows[rank, 8 : 8 + int(length)]))
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise errors.InvalidArgument(f"Group: the record of rank {rank} in {self._shown()} is damaged")
            found.append(record)
        return found

    def leave(self) -> None:
        """Detach from the table. The process that made the table ends it, which frees its name."""
        if self._made is not None:
            self._made.close()
            self._made = None

    # ---- the table --------------------------------------------------------------------------------------------------

    def _shown(self) -> str:
        by_name = isinstance(self._source, str) and not self._source.startswith(PREFIX)
        return repr(self._source) if by_name else "the table"

    def _find(self) -> None:
        source = self._source
        by_name = isinstance(source, str) and not source.startswith(PREFIX)
        while True:
            try:
                if by_name:
                    self._made = self._node.share(new_table(self._size), name=source)
                    self._table = self._made.remote
                else:
                    self._table = self._node.attach(source)
                break
            except errors.AddressInUse:
                pass
            try:
                self._table = self._node.attach(source)
                break
            except (errors.NotFound, errors.ConnectionReset, errors.KeyRejected):
                if time.monotonic() > self._deadline:  # the table ended between the two calls, again and again
                    raise
        table = self._table
        if table.dtype != np.uint64 or table.ndim != 2 or table.shape[1] != _WORDS or int(table[0, 0]) != _MAGIC:
            raise errors.InvalidArgument(
                f"Group: {self._shown()} is a shared array, and not the table of a group\n"
                "  try: another name; for several hosts, the ticket of node.share(weft.Group.table(size))"
            )
        if int(table[0, 1]) != self._size:
            raise errors.InvalidArgument(
                f"Group: {self._shown()} has {int(table[0, 1])} members, and this one asks for size={self._size}"
            )

    def _seat(self, rank: int | None) -> int | None:
        seats = range(self._size) if rank is None else (rank,)
        try:
            for seat in seats:
                if self._table.compare_swap((1 + seat, 0), np.uint64(0), np.uint64(_TAKEN)) == 0:
                    return seat
            if rank is not None and not self._table[1:, 0].all():
                raise errors.AddressInUse(
                    f"Group: rank {rank} of {self._shown()} has come already\n  rule: each rank joins once\n"
                    "  try: rank=None, which takes a free rank"
                )
        except (errors.ConnectionReset, errors.KeyRejected):
            pass  # the table has just ended
        return None
