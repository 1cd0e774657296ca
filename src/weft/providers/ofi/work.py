"""Deferred work of a real libfabric (FI_QUEUE_WORK). Source: fi_trigger(3) "Deferred Work Queues"."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ... import _nic, errors
from ...fi import _handle, trigger
from ...flags import Control, Errno

if TYPE_CHECKING:
    from .domain import RealDomain


class Queued:
    """The deferred work of a domain, with the structs that the library reads until the work has ended.

    Attributes:
        transfers: Transfers by the token of their work. An entry goes when the operation has ended, and nothing holds
            it any more.
        counting: Work on counters, whose end the library does not tell: kept until FLUSH_WORK, or the domain's end.
    """

    def __init__(self) -> None:
        self.transfers: weakref.WeakValueDictionary[Any, _nic.OfiWorkCore] = weakref.WeakValueDictionary()
        self.counting: dict[Any, list[_nic.OfiWorkCore]] = {}  # the same work may be queued again


def _queue(domain: Any, work: Any) -> None:
    kind = trigger.checked(domain, work)
    op, threshold = work.op, int(work.threshold)
    if kind in trigger.COUNTING:
        counting = _nic.OfiWorkCore(domain, op.cntr, kind, int(op.value), threshold, work.triggering_cntr)
        counting.queue(None)
        domain._work.counting.setdefault(work._token, []).append(counting)
        return
    transfer = _nic.OfiWorkCore(
        op.ep, kind, op.msg, int(op.flags), *trigger.values(kind, op), threshold, work.triggering_cntr,
        work.completion_cntr,
    )  # fmt: skip
    transfer.queue(op.msg.context)
    domain._work.transfers[work._token] = transfer


def _cancel(domain: RealDomain, work: Any) -> None:
    op = "domain.control(CANCEL_WORK)"
    _handle.expect(work, trigger.DeferredWork, op, "arg")
    token, known = work._token, domain._work
    transfer, counting = known.transfers.get(token), known.counting.get(token)
    if transfer is None and not counting:
        raise errors.make(
            int(Errno.ENOENT), f"{op}: no such work waits: it has started, or was not queued", op="domain.control"
        )
    if transfer is not None:
        transfer.cancel()
        del known.transfers[token]
    elif counting:
        counting[-1].cancel()
        counting.pop()


def _flush(domain: RealDomain, arg: object) -> None:
    _nic.ofi_flush_work(domain)
    for queued in list(domain._work.transfers.values()):
        queued.flushed()
    domain._work.counting.clear()


COMMANDS = {int(Control.QUEUE_WORK): _queue, int(Control.CANCEL_WORK): _cancel, int(Control.FLUSH_WORK): _flush}
"""Commands of a domain. The buffers of deferred work are free when its completion is read, the work cancelled or its
endpoint closed; some providers report it to counters alone."""
