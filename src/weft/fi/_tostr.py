"""fi_tostr: attributes, flags and numbers in words. Source: fi_fabric(3) fi_tostr."""

from __future__ import annotations

from typing import Any

from .. import errors
from ..flags import (
    AddrFormat,
    AvType,
    CollectiveOp,
    CqFormat,
    CqWaitCond,
    Datatype,
    EpType,
    EqEvent,
    Flag,
    HmemIface,
    Mode,
    MrMode,
    Op,
    OpType,
    Order,
    Progress,
    Protocol,
    Threading,
    Type,
    WaitObj,
)

_KINDS: dict[int, type[Any]] = {
    Type.TYPE_EP_TYPE: EpType,
    Type.TYPE_CAPS: Flag,
    Type.TYPE_OP_FLAGS: Flag,
    Type.TYPE_ADDR_FORMAT: AddrFormat,
    Type.TYPE_THREADING: Threading,
    Type.TYPE_PROGRESS: Progress,
    Type.TYPE_PROTOCOL: Protocol,
    Type.TYPE_MSG_ORDER: Order,
    Type.TYPE_MODE: Mode,
    Type.TYPE_AV_TYPE: AvType,
    Type.TYPE_ATOMIC_TYPE: Datatype,
    Type.TYPE_ATOMIC_OP: Op,
    Type.TYPE_EQ_EVENT: EqEvent,
    Type.TYPE_CQ_EVENT_FLAGS: Flag,
    Type.TYPE_MR_MODE: MrMode,
    Type.TYPE_OP_TYPE: OpType,
    Type.TYPE_COLLECTIVE_OP: CollectiveOp,
    Type.TYPE_HMEM_IFACE: HmemIface,
    Type.TYPE_CQ_FORMAT: CqFormat,
    Type.TYPE_CQ_WAIT_COND: CqWaitCond,
    Type.TYPE_WAIT_OBJ: WaitObj,
}


def tostr(data: Any, datatype: int) -> str:
    """A value as text, with C's names (fi_tostr).

    Args:
        datatype: The type of data: `fi.TYPE_CAPS`, `fi.TYPE_MR_MODE`, `fi.TYPE_INFO` ...

    Raises:
        InvalidArgument: `datatype` is unknown.

    Source: fi_fabric(3) fi_tostr.
    """
    if datatype == Type.TYPE_VERSION:
        from .attrs import LIBRARY_VERSION

        return f"{LIBRARY_VERSION >> 16}.{LIBRARY_VERSION & 0xFFFF}"
    kind = _KINDS.get(datatype)
    if kind is None:
        if datatype in Type.__members__.values():
            return str(data) if isinstance(data, str) else repr(data)
        raise errors.InvalidArgument(f"tostr: {datatype!r} is not one of FI_TYPE_*")
    try:
        text = str(kind(data))
    except ValueError:
        return f"Unknown ({data})"
    if text == "0":
        return "0"
    return ", ".join(f"FI_{name}" if not name.startswith("0x") else name for name in text.split("|"))
