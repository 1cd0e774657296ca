"""What must be true between two endpoints on every path: the facts that test_two_processes.py checks.

A fact is a function of a `Pair`: this side, the peer's fi_addr, and `there()`, which runs a function at the other side.
It runs in the initiator's process; an AssertionError travels back to pytest. Every fact is written so that it fails
where the behaviour it names is missing: memory holds a pattern before and is compared as a whole after.
"""

from __future__ import annotations

from tests.procs import facts_order, facts_regions, facts_transfers
from tests.procs.pairs import CLAUSES, FACTS, U64_SUM, Pair, cases, events, no_events

__all__ = [
    "CLAUSES",
    "FACTS",
    "U64_SUM",
    "Pair",
    "cases",
    "events",
    "facts_order",
    "facts_regions",
    "facts_transfers",
    "no_events",
]
