"""Triggered operations (FI_TRIGGER): the ...msg calls whose context names a counter and a threshold.

Source: fi_trigger(3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..flags import Flag, OpType, TriggerEvent
from . import _args, _handle
from ._calls import CALLS
from .rules import Rule

_TRIGGER = int(Flag.TRIGGER)

_CALLS = {call.name: call for call in CALLS if call.form == "message"}
NAMES = list(_CALLS)


def triggered(ep: Any, call: str, args: tuple[Any, ...], more: Mapping[str, Any]) -> Any:
    """Queue a call that has FI_TRIGGER. NotImplemented: it has not, or its arguments are not the call's."""
    if call not in _CALLS:
        return NotImplemented
    params = _CALLS[call].params
    names = [name.rstrip("!") for name in params]
    required = [name for name, param in zip(names, params, strict=True) if param != name]
    given = {**dict(zip(names, args, strict=False)), **more}
    flags = given.get("flags", 0)
    _args.whole(call, flags=flags)
    fits = len(given) == len(args) + len(more) and given.keys() <= set(names) and given.keys() >= set(required)
    if not flags & _TRIGGER or not fits:
        return NotImplemented
    from . import trigger  # at the first use: few endpoints have triggered operations

    kind = OpType[f"OP_{call.removesuffix('msg').upper()}"]
    lists: list[Any] = []
    if "resultv" in names:
        lists.append(trigger.MsgFetch(given.get("resultv", ()), given.get("result_desc")))
    if "comparev" in names:
        lists.append(trigger.MsgCompare(given["comparev"], given.get("compare_desc")))
    _queue(ep, call, kind, trigger.STRUCTS[kind](ep, given["msg"], *lists, flags))
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
        )
    if context.event_type != TriggerEvent.TRIGGER_THRESHOLD:
        raise refuse(Rule.TRIGGER_EVENT, f"{call}: event_type {context.event_type!r}; there is TRIGGER_THRESHOLD")
    when: Any = context.trigger
    _handle.expect(when, trigger.TriggerThreshold, call, "context.trigger")
    op.flags = int(op.flags) & ~_TRIGGER
    side = int(Flag.RECV if kind in (OpType.OP_RECV, OpType.OP_TRECV) else Flag.TRANSMIT)
    if not getattr(ep, "original", ep)._selective & side:
        op.flags |= int(Flag.COMPLETION)
    work = trigger.DeferredWork(when.threshold, when.cntr, None, kind, op)
    trigger.queue(ep.domain, work)
