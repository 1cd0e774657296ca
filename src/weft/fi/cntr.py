"""Counters (fi_cntr). Source: fi_cntr(3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _nic
from ..flags import CntrEvents
from . import _handle
from .cq import waitable
from .rules import Rule

if TYPE_CHECKING:
    from .domain import Domain

__all__ = ["Counter"]


class Counter(_handle.LifeInDomain, _nic.CounterCore):
    """Counts completed operations and failed operations (struct fid_cntr). Made by `Domain.cntr_open`.

    read(), readerr()            the success value and the error value.
    add(n), set(n)               change the success value; adderr(n), seterr(n) the error value.
    wait(threshold, timeout)     until the success value is at least threshold; timeout in seconds, None: no limit.
    fd                           readable after a change (wait_obj=fi.WAIT_FD), else -1.

    `wait` raises TimedOut when the time is over, and Available when the error value grew instead.
    Thread safety: any thread. Source: fi_cntr(3).
    """

    def __init__(self, domain: Domain, *, events: int, wait_obj: int, flags: int, context: Any) -> None:
        rules, refuse = domain.policy.queues, domain.policy.refusals.refuse
        if flags:
            raise refuse(Rule.CNTR_OPEN_FLAGS, f"cntr_open: flags {flags:#x}; they are reserved and must be 0")
        if events not in CntrEvents.__members__.values():
            raise refuse(Rule.CNTR_EVENTS, f"cntr_open: events {events!r} is not one of FI_CNTR_EVENTS_*")
        if CntrEvents(events) not in rules.counter_events:
            known = ", ".join(str(kind) for kind in CntrEvents if kind in rules.counter_events)
            raise refuse(Rule.CNTR_EVENTS_UNSUPPORTED, f"cntr_open: no {CntrEvents(events)} here; there are {known}")
        self.domain = domain
        self.context = context
        self.events = CntrEvents(events)
        self.wait_obj = waitable("cntr_open", wait_obj, rules, domain.policy.refusals)
        self._children: _handle.Children = {}
        super().__init__(domain, events=int(events), wait_obj=int(self.wait_obj))
        self._site = _handle.here(3)
        _handle.adopt(self, domain)

    def close(self) -> None:
        """Close the counter (fi_close); regions that it counts stay. Raises Busy while an endpoint uses it."""
        _handle.close(self, super().close, self._children, (self.domain,))

    def __del__(self) -> None:
        _handle.finalize(self, super().close, (self.domain,) if self._site else ())

    def __repr__(self) -> str:
        kind = self.events.name.removeprefix("CNTR_EVENTS_")
        if self._closed:
            return f"<Counter {kind} closed>"
        if _handle.elsewhere(self):
            return f"<Counter {kind} of the parent process>"
        return f"<Counter {kind} {self.read()}, errors {self.readerr()}>"


class PollingCounter(Counter):
    """A counter opened with FI_WAIT_NONE: it may not be waited on, fi_cntr(3)."""

    def wait(self, threshold: int, timeout: float | None = None) -> None:
        """Raises InvalidArgument."""
        raise self.domain.policy.refusals.refuse(
            Rule.WAIT_NONE,
            "cntr.wait: the counter was opened with WAIT_NONE\n  try: read(), or open it with WAIT_UNSPEC or WAIT_FD",
            op="wait",
        )
