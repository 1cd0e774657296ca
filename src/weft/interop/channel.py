"""How the ranks of a job tell each other their records, before they can reach each other's memory.

A `Channel` gathers a text of each rank at every rank, once for each call of attach_all. mpi.py has one over a
communicator, store.py one over a key-value store.
"""

from __future__ import annotations

from typing import Protocol

RECORD_BYTES_MAX = 1 << 24
"""Bytes of a record: a ticket has about 300."""


class Channel(Protocol):
    """The ranks of a job, and a way to gather their records."""

    rank: int
    size: int
    advice: str
    """What to do if a rank's record leads to nobody, as a further line of the error; or ""."""

    def gather(self, mine: bytes, deadline: float, call: str) -> list[bytes]:
        """The records of all ranks, by rank. deadline: by time.monotonic().

        Raises TimedOut, which names the ranks that did not come if the channel knows them; ConnectionReset if the
        channel itself is broken.
        """

    def settle(self) -> None:
        """Called by every rank if a record tells of an error: return when all ranks have the records, or after a short
        time. A channel may end with a rank's process, and the other ranks still have to read the error."""
