"""Deferred work (FI_QUEUE_WORK): operations that the NIC starts when a counter reaches a threshold.

    work = fi.DeferredWork(
        threshold=1, triggering_cntr=arrived, completion_cntr=done,
        op_type=fi.OP_WRITE, op=fi.OpRma(ep, fi.MsgRma([buf], [fi.RmaIov(0, 8, key)], peer)),
    )
    domain.control(fi.QUEUE_WORK, work)

Source: fi_trigger(3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import _nic, errors
from ..flags import Errno, OpType, TriggerEvent
from . import _args, _handle
from .atomic import MsgAtomic
from .cntr import Counter
from .msg import Msg
from .rma import MsgRma
from .rules import Rule
from .tagged import MsgTagged

if TYPE_CHECKING:
    from .domain import Domain

_CALL = "deferred work"  # of FI_QUEUE_WORK and FI_TRIGGER: the begin of their errors


@dataclass(slots=True)
class MsgFetch:
    """Where the old values of an atomic go (struct fi_msg_fetch).

    Attributes:
        msg_iov: Buffers, or `Ioc`s.
        desc: A descriptor, or None, for each.
        iov_count: Number of entries to use; None for all.
    """

    msg_iov: Sequence[Any] = ()
    desc: Sequence[Any] | None = None
    iov_count: int | None = None


@dataclass(slots=True)
class MsgCompare:
    """The values that an atomic compares with (struct fi_msg_compare); fields as in `MsgFetch`."""

    msg_iov: Sequence[Any] = ()
    desc: Sequence[Any] | None = None
    iov_count: int | None = None


@dataclass(slots=True)
class OpMsg:
    """A send or a receive (struct fi_op_msg), of OP_SEND and OP_RECV: the arguments of `ep.sendmsg`, `ep.recvmsg`."""

    ep: Any
    msg: Msg
    flags: int = 0


@dataclass(slots=True)
class OpTagged:
    """A tagged send or receive (struct fi_op_tagged), of OP_TSEND and OP_TRECV: the arguments of `ep.tsendmsg`,
    `ep.trecvmsg`."""

    ep: Any
    msg: MsgTagged
    flags: int = 0


@dataclass(slots=True)
class OpRma:
    """A read or a write (struct fi_op_rma), of OP_READ and OP_WRITE: the arguments of `ep.readmsg`, `ep.writemsg`."""

    ep: Any
    msg: MsgRma
    flags: int = 0


@dataclass(slots=True)
class OpAtomic:
    """An atomic (struct fi_op_atomic), of OP_ATOMIC: the arguments of `ep.atomicmsg`."""

    ep: Any
    msg: MsgAtomic
    flags: int = 0


@dataclass(slots=True)
class OpFetchAtomic:
    """A fetching atomic (struct fi_op_fetch_atomic), of OP_FETCH_ATOMIC: the arguments of `ep.fetch_atomicmsg`."""

    ep: Any
    msg: MsgAtomic
    fetch: MsgFetch
    flags: int = 0


@dataclass(slots=True)
class OpCompareAtomic:
    """A comparing atomic (struct fi_op_compare_atomic), of OP_COMPARE_ATOMIC: the arguments of
    `ep.compare_atomicmsg`."""

    ep: Any
    msg: MsgAtomic
    fetch: MsgFetch
    compare: MsgCompare
    flags: int = 0


@dataclass(slots=True)
class OpCntr:
    """A change of a counter (struct fi_op_cntr), of OP_CNTR_SET and OP_CNTR_ADD.

    Attributes:
        cntr: The counter.
        value: The value to set, or to add.
    """

    cntr: Counter
    value: int = 0


Operation = OpMsg | OpTagged | OpRma | OpAtomic | OpFetchAtomic | OpCompareAtomic | OpCntr


@dataclass(eq=False)
class DeferredWork:
    """An operation, and what starts it (struct fi_deferred_work), for `Domain.control(fi.QUEUE_WORK, work)`.

    Attributes:
        threshold: The operation starts when the triggering counter's value is at least this; at once if it is already.
        triggering_cntr: A counter of the same domain.
        completion_cntr: Counts the operation's end, instead of the endpoint's own counter. None: the endpoint's counts.
        op_type: `fi.OP_WRITE` ...
        op: The operation: `OpMsg` for OP_SEND and OP_RECV, `OpTagged` for OP_TSEND and OP_TRECV, `OpRma` for OP_READ
            and OP_WRITE, `OpAtomic`, `OpFetchAtomic`, `OpCompareAtomic`, `OpCntr`.

    The call copies the work and its message; both may be changed or dropped afterwards. Data buffers belong to the NIC
    until the operation is complete, and are kept alive so long. A success has an entry in the completion queue only
    with fi.COMPLETION in the operation's flags; a failure always has one. Its context is the message's.

    FLUSH_WORK drops all work of a domain that has not started, without completions; CANCEL_WORK (argument: the work)
    drops one. Closing the endpoint or the triggering counter drops the work too.
    Source: fi_trigger(3) "Deferred Work Queues".
    """

    threshold: int = 0
    triggering_cntr: Counter | None = None
    completion_cntr: Counter | None = None
    op_type: int = OpType.OP_WRITE
    op: Operation | None = None
    # The name of the work in the NIC. The NIC does not keep the work itself, which would keep its endpoint from being
    # collected.
    _token: object = field(default_factory=object, init=False, repr=False)


@dataclass(slots=True)
class TriggerThreshold:
    """When a triggered operation starts (struct fi_trigger_threshold): the counter's value is at least `threshold`."""

    cntr: Counter
    threshold: int = 0


@dataclass(slots=True, eq=False)
class TriggeredContext:
    """The context of an operation with the flag fi.TRIGGER (struct fi_triggered_context).

    Attributes:
        event_type: `fi.TRIGGER_THRESHOLD`.
        trigger: The counter and its threshold.

    Pass it as the context of a ...msg call of an endpoint with the capability fi.TRIGGER. The call returns at once, and
    the operation starts at the threshold; its completion has this object as its context. Operations with one counter
    start by threshold, then in the order of the calls. Source: fi_trigger(3).
    """

    event_type: int = TriggerEvent.TRIGGER_THRESHOLD
    trigger: TriggerThreshold | None = None


STRUCTS: dict[int, type] = {
    OpType.OP_RECV: OpMsg,
    OpType.OP_SEND: OpMsg,
    OpType.OP_TRECV: OpTagged,
    OpType.OP_TSEND: OpTagged,
    OpType.OP_READ: OpRma,
    OpType.OP_WRITE: OpRma,
    OpType.OP_ATOMIC: OpAtomic,
    OpType.OP_FETCH_ATOMIC: OpFetchAtomic,
    OpType.OP_COMPARE_ATOMIC: OpCompareAtomic,
    OpType.OP_CNTR_SET: OpCntr,
    OpType.OP_CNTR_ADD: OpCntr,
}
MESSAGES: dict[type, type] = {
    OpMsg: Msg,
    OpTagged: MsgTagged,
    OpRma: MsgRma,
    OpAtomic: MsgAtomic,
    OpFetchAtomic: MsgAtomic,
    OpCompareAtomic: MsgAtomic,
}
_FETCHES = (OpType.OP_FETCH_ATOMIC, OpType.OP_COMPARE_ATOMIC)
COUNTING = (OpType.OP_CNTR_SET, OpType.OP_CNTR_ADD)


def checked(domain: Domain, work: Any) -> int:
    """The number of the type of an operation that may be queued, whoever starts it. Raises TypeError, InvalidArgument,
    BadState (closed)."""
    if not isinstance(work, DeferredWork):
        raise _refused(domain, Rule.DOMAIN_VALUE, f"it takes an fi.DeferredWork, not {work!r}")
    trigger = work.triggering_cntr
    if trigger is None:
        raise _refused(domain, Rule.WORK_COUNTER, "triggering_cntr is None: give the counter that starts the operation")
    _counter(domain, "triggering_cntr", trigger)
    _args.whole(_CALL, threshold=work.threshold)
    kind = _kind(domain, work)
    op: Any = work.op
    if kind in COUNTING:
        _counting(domain, work)
        return kind
    if work.completion_cntr is not None:
        _counter(domain, "completion_cntr", work.completion_cntr)
    if getattr(op.ep, "_called", None) != "ep":
        raise TypeError(f"{_CALL}: op.ep must be an fi.Endpoint, not {op.ep!r}")
    _handle.check(op.ep, _CALL)
    _handle.expect(op.msg, MESSAGES[type(op)], _CALL, "op.msg")
    if op.ep.domain is not domain:
        raise _refused(domain, Rule.WORK_ENDPOINT, f"{op.ep!r} is of another domain")
    _args.whole(_CALL, flags=op.flags)
    return kind


def _counting(domain: Domain, work: DeferredWork) -> None:
    op: Any = work.op
    if work.completion_cntr is not None:
        raise _refused(
            domain,
            Rule.WORK_COUNTER,
            "work on a counter has no completion_cntr\n  try: chain further work by the counter that it changes",
        )
    if op.cntr is None:
        raise _refused(domain, Rule.WORK_COUNTER, "op.cntr is None: give the counter to change")
    _counter(domain, "op.cntr", op.cntr)
    _args.whole(_CALL, value=op.value)


def values(kind: int, op: Any) -> tuple[Any, Any, Any, Any]:
    """(comparev, compare_desc, resultv, result_desc) of an atomic; None for other operations."""
    none: tuple[Any, Any] = (None, None)
    comparev, compare_desc = _listed(op.compare, MsgCompare) if kind == OpType.OP_COMPARE_ATOMIC else none
    resultv, result_desc = _listed(op.fetch, MsgFetch) if kind in _FETCHES else none
    return comparev, compare_desc, resultv, result_desc


def queue(domain: Domain, work: Any) -> None:
    """FI_QUEUE_WORK. Raises TypeError, InvalidArgument, BadState (closed), and what the operation's call raises."""
    kind = checked(domain, work)
    trigger, completion, op = work.triggering_cntr, work.completion_cntr, work.op
    if kind in COUNTING:
        domain.policy.queue_work(
            domain,
            lambda may_wait: _nic.queue_counting(
                domain, op.cntr, kind, int(op.value), int(work.threshold), trigger, work._token, may_wait
            ),
        )
        return
    why = domain.policy.refuses_work(op.ep.policy)
    if why:
        raise _refused(domain, Rule.WORK_ENDPOINT, why)
    comparev, compare_desc, resultv, result_desc = values(kind, op)

    def start(may_wait: bool) -> str | None:
        return _nic.queue_work(
            op.ep, kind, op.msg, int(op.flags), comparev, compare_desc, resultv, result_desc, int(work.threshold),
            trigger, completion, work._token, may_wait,
        )  # fmt: skip

    domain.policy.queue_work(domain, start)


def flush(domain: Domain, arg: Any) -> None:
    """FI_FLUSH_WORK; the argument is not used."""
    del arg
    _nic.flush_work(domain)


def cancel(domain: Domain, work: Any) -> None:
    """FI_CANCEL_WORK. Raises FabricError (ENOENT) if the work has started, or was not queued."""
    _handle.expect(work, DeferredWork, "domain.control(CANCEL_WORK)", "arg")
    if not _nic.cancel_work(domain, work._token):
        raise errors.make(
            int(Errno.ENOENT), "domain.control(CANCEL_WORK): no such work waits: it has started, or was not queued",
            op="domain.control",
        )  # fmt: skip


# ---- checks ----------------------------------------------------------------------------------------------------------


def _refused(domain: Domain, rule: Rule, text: str) -> errors.FabricError:
    return domain.policy.refusals.refuse(rule, f"{_CALL}: {text}", op="domain.control")


def _counter(domain: Domain, name: str, counter: Any) -> None:
    _handle.expect(counter, Counter, _CALL, name)
    _handle.check(counter, _CALL)
    if counter.domain is not domain:
        raise _refused(domain, Rule.WORK_COUNTER, f"{name} {counter!r} is of another domain")


def _kind(domain: Domain, work: DeferredWork) -> int:
    """The number of the operation's type; its struct has to fit."""
    _args.integer(_CALL, op_type=work.op_type)
    kind = int(work.op_type)
    struct = STRUCTS.get(kind)
    if struct is None:
        raise _refused(domain, Rule.WORK_TYPE, f"op_type {kind}: fi.OP_RECV (0) to fi.OP_CNTR_ADD (10) are known")
    if type(work.op) is not struct:
        raise TypeError(f"{_CALL}: op of {OpType(kind)!s} must be an fi.{struct.__name__}, not {work.op!r}")
    return kind


def _listed(struct: Any, cls: type[Any]) -> tuple[Any, Any]:
    """(buffers, descriptors) of a MsgFetch or a MsgCompare."""
    _handle.expect(struct, cls, _CALL, cls.__name__.removeprefix("Msg").lower())
    _args.maybe(_CALL, iov_count=struct.iov_count)
    buffers = _args.each(_CALL, "msg_iov", struct.msg_iov, "buffers")
    return buffers[: struct.iov_count], struct.desc
