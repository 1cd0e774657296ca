"""What fi_query_collective answers under the CXI provider.

Source: fi_cxi(7) "Collectives (accelerated)".
"""

from __future__ import annotations

from ... import _nic
from ...fi.policy import CollectiveLimit
from ...flags import CollectiveOp as Collective
from ...flags import Datatype, Op
from ..base import GROUP_MEMBERS_MAX, PAYLOAD_BYTES
from .names import CollectiveOp

_BROADCAST_BYTES: dict[int, int] = {
    int(one): size
    for size, kinds in (
        (1, (Datatype.INT8, Datatype.UINT8)),
        (2, (Datatype.INT16, Datatype.UINT16)),
        (4, (Datatype.INT32, Datatype.UINT32, Datatype.FLOAT)),
        (8, (Datatype.INT64, Datatype.UINT64, Datatype.DOUBLE)),
    )
    for one in kinds
}


def limit(coll: int, op: int, datatype: int) -> CollectiveLimit | None:
    """The answer of fi_query_collective.

    MINMAXLOC and REPSUM are confirmed for every datatype, as by the provider: programs leave it unset. Bit operations
    are confirmed for unsigned integers only, as fi_cxi(7) has it; the provider's own query confirms signed ones too,
    and its calls then refuse some of them.
    """
    if coll == Collective.BARRIER:
        return CollectiveLimit(0, 0, GROUP_MEMBERS_MAX)
    if coll == Collective.BROADCAST:
        size = _BROADCAST_BYTES.get(datatype, 0)
    elif coll not in (Collective.REDUCE, Collective.ALLREDUCE):
        return None
    elif op == CollectiveOp.MINMAXLOC:
        return CollectiveLimit(1, PAYLOAD_BYTES, GROUP_MEMBERS_MAX)
    elif op == CollectiveOp.REPSUM:
        return CollectiveLimit(1, 8, GROUP_MEMBERS_MAX)
    else:
        size = _nic.reduction_bytes(op, datatype, 1) or 0
    return CollectiveLimit(PAYLOAD_BYTES // size, size, GROUP_MEMBERS_MAX) if size else None


def operator_name(op: int) -> str:
    """The name of a reduction's operator, of libfabric or of fi_cxi_ext.h; or the number."""
    if op in set(CollectiveOp) and op != CollectiveOp.OP_LAST:
        return str(CollectiveOp(op))
    return str(Op(op)) if op in set(Op) else str(op)
