"""What a process says of its NIC: domains, endpoints, queues, counters, peers. Values, checked as they arrive.

Source: Nic::snapshot() (cpp/nic/snapshot.cpp).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

VERSION = 1


@dataclass(frozen=True)
class PeerView:
    """A process that this one is connected to.

    Attributes:
        pid: Process id in the pid namespace of the process that reports it; 0: on another host.
        path: How data reaches the peer: direct (load and store), direct+cma (the kernel copies, too), frames.
    """

    pid: int
    peer: str
    path: str
    dead: bool


@dataclass(frozen=True)
class DomainView:
    """A domain: operations since it was opened, by path, and bytes that they moved."""

    domain: int
    nic: int
    direct: int
    cma: int
    framed: int
    failed: int
    bytes: int

    @property
    def operations(self) -> int:
        """Operations and messages of all paths."""
        return self.direct + self.cma + self.framed


@dataclass(frozen=True)
class ReceiveView:
    """The receive side of an endpoint.

    Attributes:
        posted: Receives that wait for messages.
        unexpected: Messages that wait for receives.
        matched: Messages so far that found a receive.
        kept: Messages so far that had to wait for a receive.
        refused: Messages that their senders have to send again.
        mode: The match mode that was asked for.
        state: Where messages are matched now: hardware, software, or changing (flow control: messages and receives are
            refused).
        entries: List entries in use.
        changes: Times that matching moved to software.
        flow_controls: Times that flow control began.
        pauses: Times that a lossless sender paused.
        no_entries: Receives refused for want of an entry.
    """

    posted: int
    unexpected: int
    matched: int
    kept: int
    refused: int
    mode: str
    state: str
    entries: int
    changes: int
    flow_controls: int
    pauses: int
    no_entries: int

    @property
    def messages(self) -> int:
        """Messages that have arrived."""
        return self.matched + self.kept


@dataclass(frozen=True)
class CounterView:
    """A counter of an endpoint."""

    value: int
    errors: int


@dataclass(frozen=True)
class EndpointView:
    """An enabled endpoint.

    Attributes:
        outstanding: Operations that are not done.
        waiting: Operations that no link has taken yet; part of `outstanding`.
        unanswered: Messages that their receivers have not answered.
        again: Calls from Python refused with FI_EAGAIN.
        retries: Messages that a receiver refused, and that are sent again.
        tagged_ids: Tagged messages that wait to be pulled.
        untagged_ids: Untagged messages that wait to be pulled.
        no_id: Sends refused because too many messages wait.
        stops: Refusals by receivers.
        stopped: Peers that take no messages now.
        stopped_ns: Time for which the first of them has taken none.
    """

    domain: int
    index: int
    nic: int
    pid: int
    vni: int
    address: str
    connected: bool
    tx_cq: int
    rx_cq: int
    tx_size: int
    outstanding: int
    waiting: int
    unanswered: int
    flows: int
    again: int
    retries: int
    tagged_ids: int
    untagged_ids: int
    no_id: int
    stops: int
    stopped: int
    stopped_ns: int
    receive: ReceiveView | None = None
    counters: dict[str, CounterView] = field(default_factory=dict)


@dataclass(frozen=True)
class QueueView:
    """A completion queue that an enabled endpoint uses. reserved: entries kept for operations under way."""

    queue: int
    domain: int
    capacity: int
    unread: int
    reserved: int
    overrun: bool


@dataclass(frozen=True)
class View:
    """A process's NIC.

    Attributes:
        time_ns: Of the monotonic clock of the host, when the process answered.
        registered_bytes: Bytes of all regions.
        allocated_bytes: Bytes of memory that the NIC made (weft.empty, Domain.alloc).
    """

    time_ns: int
    engine: bool
    frames_served: int
    engine_wakes: int
    waiting_ops: int
    deferred: int
    regions: int
    registered_bytes: int
    allocated_bytes: int
    peers: tuple[PeerView, ...]
    domains: tuple[DomainView, ...]
    endpoints: tuple[EndpointView, ...]
    queues: tuple[QueueView, ...]


T = TypeVar("T")


def parse(data: bytes) -> View:
    """A process's answer. Raises ValueError if it is none that this version knows."""
    try:
        said = json.loads(data)
        if said["version"] != VERSION:
            raise ValueError(f"version {said['version']!r}")
        return _of(
            View,
            said,
            peers=tuple(_of(PeerView, one) for one in said["peers"]),
            domains=tuple(_of(DomainView, one) for one in said["domains"]),
            endpoints=tuple(_endpoint(one) for one in said["endpoints"]),
            queues=tuple(_of(QueueView, one) for one in said["queues"]),
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as reason:
        raise ValueError(f"not a NIC's state: {reason!r}") from None


def _endpoint(said: dict[str, Any]) -> EndpointView:
    receive = said.get("receive")
    return _of(
        EndpointView,
        said,
        receive=None if receive is None else _of(ReceiveView, receive),
        counters={str(name): _of(CounterView, one) for name, one in said["counters"].items()},
    )


_SIMPLE = (int, bool, str)


def _of(kind: type[T], said: dict[str, Any], **made: Any) -> T:
    """An object of `kind`: `made`, and every other field from `said`, each of the type that it is declared with."""
    types = _types.get(kind)
    if types is None:
        types = _types[kind] = get_type_hints(kind)
    values = dict(made)
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name in made:
            continue
        value = said[each.name]
        if type(value) is not types[each.name] or types[each.name] not in _SIMPLE:
            raise TypeError(f"{each.name} is {value!r}")
        values[each.name] = value
    return kind(**values)


_types: dict[type[Any], dict[str, Any]] = {}
