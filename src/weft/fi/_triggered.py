"""Triggered operations (FI_TRIGGER): the ...msg calls whose context names a counter and a threshold.

Source: fi_trigger(3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..flags import Flag, OpType, TriggerEvent
from . import _args, _handle
from .rules import Rule

__all__ = ["CALLS", "triggered"]

_TRIGGER = int(Flag.TRIGGER)
_MSG = ("msg", "flags")

# call -> its parameters, of which the first are required; their number; the operation, and the name of its struct
CALLS: dict[str, tuple[tuple[str, ...], int, OpType, str]] = {
    "sendmsg": (_MSG, 1, OpType.OP_SEND, "OpMsg"),
    "recvmsg": (_MSG, 1, OpType.OP_RECV, "OpMsg"),
    "tsendmsg": (_MSG, 1, OpType.OP_TSEND, "OpTagged"),
    "trecvmsg": (_MSG, 1, OpType.OP_TRECV, "OpTagged"),
    "readmsg": (_MSG, 1, OpType.OP_READ, "OpRma"),
    "writemsg": (_MSG, 1, OpType.OP_WRITE, "OpRma"),
    "atomicmsg": (_MSG, 1, OpType.OP_ATOMIC, "OpAtomic"),
    "fetch_atomicmsg": (("msg", "resultv", "result_desc", "flags"), 2, OpType.OP_FETCH_ATOMIC, "OpFetchAtomic"),
    "compare_atomicmsg": (
        ("msg", "comparev", "compare_desc", "resultv", "result_desc", "flags"), 2, OpType.OP_COMPARE_ATOMIC,
        "OpCompareAtomic",
    ),
}  # fmt: skip


def triggered(ep: Any, call: str, args: tuple[Any, ...], more: Mapping[str, Any]) -> Any:
    """Queue a call that has FI_TRIGGER. NotImplemented: it has not, or its arguments are not the call's."""
    if call not in CALLS:
        return NotImplemented
    names, required, kind, struct = CALLS[call]
    given = {**dict(zip(names, args, strict=False)), **more}
    flags = given.get("flags", 0)
    _args.whole(call, flags=flags)
    fits = len(given) == len(args) + len(more) and given.keys() <= set(names) and given.keys() >= set(names[:required])
    if not flags & _TRIGGER or not fits:
        return NotImplemented
    from . import trigger  # at the first use: few endpoints have triggered operations

    lists: list[Any] = []
    if "resultv" in names:
        lists.append(trigger.MsgFetch(given.get("resultv", ()), given.get("result_desc")))
    if "comparev" in names:
        lists.append(trigger.MsgCompare(given["comparev"], given.get("compare_desc")))
    _queue(ep, call, kind, getattr(trigger, struct)(ep, given["msg"], *lists, flags))
    return None


def _queue(ep: Any, call: str, kind: int, op: Any) -> None:
    """Queue the operation as deferred work, whose entries in the completion queue are those of an ordinary call."""
    from . import trigger

    refuse = ep.domain.policy.refusals.refuse
    _handle.expect(op.msg, trigger.MESSAGES[type(op)], call, "msg")
    context = op.msg.context
    if not isinstance(context, trigger.TriggeredContext):
        raise refuse(
            Rule.TRIGGER_CONTEXT,
            f"{call}: the context is {context!r}\n  rule: with TRIGGER it is an fi.TriggeredContext, fi_trigger(3)",
            op=call,
        )
    if context.event_type != TriggerEvent.TRIGGER_THRESHOLD:
        raise refuse(
            Rule.TRIGGER_EVENT, f"{call}: event_type {context.event_type!r}; there is TRIGGER_THRESHOLD", op=call
        )
    when: Any = context.trigger
    _handle.expect(when, trigger.TriggerThreshold, call, "context.trigger")
    op.flags = int(op.flags) & ~_TRIGGER
    side = int(Flag.RECV if kind in (OpType.OP_RECV, OpType.OP_TRECV) else Flag.TRANSMIT)
    if not getattr(ep, "original", ep)._selective & side:
        op.flags |= int(Flag.COMPLETION)
    work = trigger.DeferredWork(when.threshold, when.cntr, None, kind, op)
    trigger.queue(ep.domain, work)
