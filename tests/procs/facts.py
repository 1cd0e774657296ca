"""Facts about two endpoints that hold on every path; test_two_processes.py checks them.

A fact is a function of a `Pair`: this side, the peer's fi_addr, and `there()`, which runs a function at the other side.
It runs in the initiator's process; an AssertionError travels back to pytest. Every fact can fail:
memory has a pattern before the operation, and is compared completely after it.
"""

from __future__ import annotations

from tests.procs import facts_messages, facts_order, facts_regions, facts_transfers
from tests.procs.pairs import CLAUSES, FACTS, U64_SUM, Pair, cases, events, no_events

__all__ = [
    "CLAUSES",
    "FACTS",
    "U64_SUM",
    "Pair",
    "cases",
    "events",
    "facts_messages",
    "facts_order",
    "facts_regions",
    "facts_transfers",
    "no_events",
]
