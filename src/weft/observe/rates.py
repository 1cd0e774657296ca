"""Rates, from two answers of a process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from .views import DomainView, EndpointView, View


@dataclass(frozen=True)
class Rates:
    """What happened between two answers, a second.

    Attributes:
        seconds: Time between the answers; 0: there is one answer, and no rate.
        operations: All RMA operations, atomics and sent messages, by domain number.
        bytes: By domain number.
        received: Messages, by endpoint number.
        counters: By endpoint number and name of the counter.
    """

    seconds: float = 0.0
    operations: dict[int, float] = field(default_factory=dict)
    bytes: dict[int, float] = field(default_factory=dict)
    received: dict[int, float] = field(default_factory=dict)
    counters: dict[tuple[int, str], float] = field(default_factory=dict)


One = TypeVar("One")
Key = TypeVar("Key", bound=Hashable)


def rates(before: View | None, now: View) -> Rates:
    """The rates between two answers of one process, the older first."""
    seconds = 0.0 if before is None else (now.time_ns - before.time_ns) / 1e9
    if before is None or seconds <= 0:
        return Rates()

    def grew(
        old: Iterable[One], new: Iterable[One], key: Callable[[One], Hashable], value: Callable[[One], int]
    ) -> list[float]:
        """The growth of each count of `new`. A count that is missing in `old`, or has become less, restarted at 0 in
        between.
        """
        values = {key(one): value(one) for one in old}
        growths = []
        for one in new:
            growth = value(one) - values.get(key(one), 0)
            growths.append((growth if growth >= 0 else value(one)) / seconds)
        return growths

    def by_domain(value: Callable[[DomainView], int]) -> dict[int, float]:
        growths = grew(before.domains, now.domains, lambda one: (one.domain, one.nic), value)
        return {one.domain: growth for one, growth in zip(now.domains, growths, strict=True)}

    def messages(one: EndpointView) -> int:
        return 0 if one.receive is None else one.receive.messages

    def place(one: EndpointView) -> Hashable:
        return one.index, one.nic, one.pid

    counters: dict[tuple[int, str], float] = {}
    for name in {name for one in now.endpoints for name in one.counters}:

        def value(one: EndpointView, name: str = name) -> int:
            return one.counters[name].value if name in one.counters else 0

        growths = grew(before.endpoints, now.endpoints, place, value)
        counters |= {(one.index, name): growth for one, growth in zip(now.endpoints, growths, strict=True)}
    received = grew(before.endpoints, now.endpoints, place, messages)
    return Rates(
        seconds,
        by_domain(lambda one: one.operations),
        by_domain(lambda one: one.bytes),
        {one.index: growth for one, growth in zip(now.endpoints, received, strict=True)},
        counters,
    )
