"""Triggered operations (FI_TRIGGER): the ...msg calls whose context names a counter and a threshold.

Source: fi_trigger(3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..flags import Flag, OpType, TriggerEvent
from . import _args, _handle
from .rules import Rule

if TYPE_CHECKING:
    from .domain import Domain

__all__ = ["Triggering"]

_TRIGGER = int(Flag.TRIGGER)


class Triggering:
    """The calls of an endpoint with FI_TRIGGER; calls without the flag go to the endpoint's own methods."""

    if TYPE_CHECKING:
        domain: Domain

    def sendmsg(self, msg: Any, flags: int = 0) -> None:
        """As `Endpoint.sendmsg`; under fi.TRIGGER sent when the counter of the context reaches its threshold."""
        if not _triggered("sendmsg", flags):
            super().sendmsg(msg, flags)  # type: ignore[misc]  # the endpoint's
        else:
            _queue(self, "sendmsg", OpType.OP_SEND, _structs().OpMsg(self, msg, flags))

    def recvmsg(self, msg: Any, flags: int = 0) -> None:
        """As `Endpoint.recvmsg`; under fi.TRIGGER posted at the threshold."""
        if not _triggered("recvmsg", flags):
            super().recvmsg(msg, flags)  # type: ignore[misc]
        else:
            _queue(self, "recvmsg", OpType.OP_RECV, _structs().OpMsg(self, msg, flags))

    def tsendmsg(self, msg: Any, flags: int = 0) -> None:
        """As `Endpoint.tsendmsg`; under fi.TRIGGER sent at the threshold."""
        if not _triggered("tsendmsg", flags):
            super().tsendmsg(msg, flags)  # type: ignore[misc]
        else:
            _queue(self, "tsendmsg", OpType.OP_TSEND, _structs().OpTagged(self, msg, flags))

    def trecvmsg(self, msg: Any, flags: int = 0) -> None:
        """As `Endpoint.trecvmsg`; under fi.TRIGGER posted at the threshold."""
        if not _triggered("trecvmsg", flags):
            super().trecvmsg(msg, flags)  # type: ignore[misc]
        else:
            _queue(self, "trecvmsg", OpType.OP_TRECV, _structs().OpTagged(self, msg, flags))

    def readmsg(self, msg: Any, flags: int = 0) -> None:
        """As `Endpoint.readmsg`; under fi.TRIGGER read at the threshold."""
        if not _triggered("readmsg", flags):
            super().readmsg(msg, flags)  # type: ignore[misc]
        else:
            _queue(self, "readmsg", OpType.OP_READ, _structs().OpRma(self, msg, flags))

    def writemsg(self, msg: Any, flags: int = 0) -> None:
        """As `Endpoint.writemsg`; under fi.TRIGGER written at the threshold."""
        if not _triggered("writemsg", flags):
            super().writemsg(msg, flags)  # type: ignore[misc]
        else:
            _queue(self, "writemsg", OpType.OP_WRITE, _structs().OpRma(self, msg, flags))

    def atomicmsg(self, msg: Any, flags: int = 0) -> None:
        """As `Endpoint.atomicmsg`; under fi.TRIGGER executed at the threshold."""
        if not _triggered("atomicmsg", flags):
            super().atomicmsg(msg, flags)  # type: ignore[misc]
        else:
            _queue(self, "atomicmsg", OpType.OP_ATOMIC, _structs().OpAtomic(self, msg, flags))

    def fetch_atomicmsg(self, msg: Any, resultv: Sequence[Any], result_desc: Any = None, flags: int = 0) -> None:
        """As `Endpoint.fetch_atomicmsg`; under fi.TRIGGER executed at the threshold."""
        if not _triggered("fetch_atomicmsg", flags):
            super().fetch_atomicmsg(msg, resultv, result_desc, flags)  # type: ignore[misc]
        else:
            op = _structs().OpFetchAtomic(self, msg, _structs().MsgFetch(resultv, result_desc), flags)
            _queue(self, "fetch_atomicmsg", OpType.OP_FETCH_ATOMIC, op)

    def compare_atomicmsg(
        self, msg: Any, comparev: Sequence[Any], compare_desc: Any = None, resultv: Sequence[Any] = (),
        result_desc: Any = None, flags: int = 0,
    ) -> None:  # fmt: skip
        """As `Endpoint.compare_atomicmsg`; under fi.TRIGGER executed at the threshold."""
        if not _triggered("compare_atomicmsg", flags):
            super().compare_atomicmsg(msg, comparev, compare_desc, resultv, result_desc, flags)  # type: ignore[misc]
        else:
            fetch, compare = _structs().MsgFetch(resultv, result_desc), _structs().MsgCompare(comparev, compare_desc)
            op = _structs().OpCompareAtomic(self, msg, fetch, compare, flags)
            _queue(self, "compare_atomicmsg", OpType.OP_COMPARE_ATOMIC, op)


def _structs() -> Any:
    """The module of the structs, imported at the first use: few endpoints have triggered operations."""
    from . import trigger

    return trigger


def _triggered(call: str, flags: Any) -> bool:
    if flags.__class__ is not int:
        _args.whole(call, flags=flags)
    return bool(flags & _TRIGGER)


def _queue(ep: Any, call: str, kind: int, op: Any) -> None:
    """Queue the operation as deferred work, whose entries in the completion queue are those of an ordinary call."""
    trigger = _structs()
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
