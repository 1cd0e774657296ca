"""Counters (fi_cntr). Source: fi_cntr(3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _nic, errors
from ..flags import CntrEvents
from . import _handle
from ._control import WAITING, Controlled
from .cq import waitable
from .policy import CounterPolicy
from .rules import Rule

if TYPE_CHECKING:
    from .domain import Domain


class Counter(Controlled, _handle.LifeInDomain, _nic.CounterCore):
    """Counts completed operations and failed operations (struct fid_cntr). Made by `Domain.cntr_open`.

    `read()` returns the success value, which `add(n)` and `set(n)` change; `readerr()` returns the error value, which
    `adderr(n)` and `seterr(n)` change. `wait(threshold, timeout)` waits until the success value is at least threshold,
    for timeout seconds (None: no limit). `wait` raises TimedOut when the time is over, and Available when the error
    value changed instead. The descriptor `fd` is readable after a change (wait_obj=fi.WAIT_FD); otherwise it is -1.

    The provider limits the values; a counter saturates at its largest value, and larger arguments are refused.
    Thread safety: any thread. Source: fi_cntr(3).
    """

    _called = "cntr"
    _commands = WAITING

    def __init__(self, domain: Domain, *, events: int, wait_obj: int, flags: int, context: Any) -> None:
        rules, refuse = domain.policy.counters, domain.policy.refusals.refuse
        if flags & ~rules.flags:
            known = hex(rules.flags) if rules.flags else "none"
            raise refuse(Rule.CNTR_OPEN_FLAGS, f"cntr_open: flags {flags:#x}; flags of counters here: {known}")
        if events not in CntrEvents.__members__.values():
            raise refuse(Rule.CNTR_EVENTS, f"cntr_open: events {events!r} is not one of FI_CNTR_EVENTS_*")
        if CntrEvents(events) not in rules.events:
            known = ", ".join(str(kind) for kind in CntrEvents if kind in rules.events)
            raise refuse(Rule.CNTR_EVENTS_UNSUPPORTED, f"cntr_open: no {CntrEvents(events)} here; there are {known}")
        self.domain = domain
        self.context = context
        self.events = CntrEvents(events)
        self.wait_obj = waitable("cntr_open", wait_obj, rules, domain.policy.refusals)
        self.policy = domain.policy.counter()
        errno = domain.policy.refusals.errno
        try:
            super().__init__(
                domain,
                _nic.CounterConfig(
                    events=int(events),
                    wait_obj=int(self.wait_obj),
                    value_max=rules.value_max,
                    errors_max=rules.errors_max,
                    value_errno=int(errno(Rule.CNTR_VALUE)),
                    errors_errno=int(errno(Rule.CNTR_ERRORS)),
                    threshold_errno=int(errno(Rule.CNTR_THRESHOLD)),
                    client_memory=rules.client_memory,
                    cached=bool(flags & rules.cached),
                ),
                flags,
            )
        except BaseException:
            self.policy.close()
            raise
        self._opened(3, domain)

    @property
    def _extensions(self) -> CounterPolicy:
        return self.policy

    def _release(self) -> None:
        _nic.CounterCore.close(self)
        self.policy.close()

    def __repr__(self) -> str:
        kind = self.events.name.removeprefix("CNTR_EVENTS_")
        if self._closed:
            return f"<Counter {kind} closed>"
        if _handle.elsewhere(self):
            return f"<Counter {kind} of the parent process>"
        try:
            return f"<Counter {kind} {self.read()}, errors {self.readerr()}>"
        except errors.FabricError:  # of a real libfabric: an endpoint is not enabled
            return f"<Counter {kind} not to be read>"


class PollingCounter(Counter):
    """A counter opened with FI_WAIT_NONE: it may not be waited on, fi_cntr(3)."""

    def wait(self, threshold: int, timeout: float | None = None) -> None:
        """Raises InvalidArgument."""
        raise self.domain.policy.refusals.refuse(
            Rule.WAIT_NONE,
            "cntr.wait: the counter was opened with WAIT_NONE\n  try: read(), or open it with WAIT_UNSPEC or WAIT_FD",
            op="wait",
        )
