"""The query of fi_collective(3): which collective operations there are, on what.

Source: fi_collective(3) "Query Collective Attributes".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..flags import CollectiveOp, Datatype, Flag, Op
from .atomic import AtomicAttr, _named
from .rules import Rule

if TYPE_CHECKING:
    from .policy import DomainPolicy


@dataclass(slots=True)
class CollectiveAttr:
    """A query about a collective, and its answer (struct fi_collective_attr).

    Attributes:
        op: The operator of a reduction: `fi.SUM` ...; ignored for others.
        datatype: Type of the elements; `fi.VOID` for a barrier.
        datatype_attr: Answer: most elements of a call (count), bytes of one (size).
        max_members: Answer: most members of a group.
        mode: Reserved: 0.

    Source: fi_collective(3) "Query Collective Attributes".
    """

    op: int = Op.NOOP
    datatype: int = Datatype.VOID
    datatype_attr: AtomicAttr = field(default=AtomicAttr(0, 0))
    max_members: int = 0
    mode: int = 0


def query_collective(policy: DomainPolicy, coll: int, attr: CollectiveAttr | None, flags: int) -> CollectiveAttr:
    """`Domain.query_collective` with checked arguments: fills `attr` and returns it."""
    refuse, op = policy.refusals.refuse, "query_collective"
    if attr is None:
        if coll != CollectiveOp.BARRIER:
            raise refuse(
                Rule.COLLECTIVE_ATTR,
                f"{op}: {_named(CollectiveOp, coll)}: attr is needed; only a barrier does without\n"
                "  try: fi.CollectiveAttr(op=fi.SUM, datatype=fi.DOUBLE)",
            )
        attr = CollectiveAttr()
    if flags:
        raise refuse(Rule.COLLECTIVE_FLAGS, f"{op}: flags {Flag(flags)!s}; none are supported")
    limit = policy.collective(coll, int(attr.op), int(attr.datatype))
    if limit is None:
        what = _named(CollectiveOp, coll)
        if coll not in (CollectiveOp.BARRIER, CollectiveOp.BROADCAST):
            what += f" with {policy.operator_name(int(attr.op))}"
        raise refuse(Rule.COLLECTIVE_PAIR, f"{op}: {what} on {_named(Datatype, int(attr.datatype))} is not supported")
    attr.datatype_attr = AtomicAttr(limit.count, limit.size)
    attr.max_members = limit.max_members
    attr.mode = 0
    return attr
