"""Fabric to endpoint in one object, for tests: opened and closed in the right order, with waits that end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .. import fi

WAIT_SECONDS = 30.0
"""Default timeout of `Stack.wait`: long, because a machine that runs tests may be busy."""

_MODES = (
    fi.MR_LOCAL
    | fi.MR_RAW
    | fi.MR_VIRT_ADDR
    | fi.MR_ALLOCATED
    | fi.MR_PROV_KEY
    | fi.MR_MMU_NOTIFY
    | fi.MR_RMA_EVENT
    | fi.MR_ENDPOINT
)


class Remote(NamedTuple):
    """Remote address and key of the first byte of a region, for an initiator."""

    addr: int
    key: int


@dataclass(repr=False)
class Stack:
    """A fabric, domain, completion queue, address vector and enabled endpoint, as an application opens them."""

    info: fi.Info
    fabric: fi.Fabric
    domain: fi.Domain
    cq: fi.CompletionQueue
    av: fi.AddressVector
    ep: fi.Endpoint
    _regions: list[fi.MemoryRegion] = field(default_factory=list)
    _mapped: list[int] = field(default_factory=list)

    def reg(self, buffer: Any, access: int = fi.REMOTE_READ | fi.REMOTE_WRITE, **more: Any) -> fi.MemoryRegion:
        """Register a buffer for this endpoint, with the steps that the domain's mr_mode requires.

        The stack closes the region.

        Args:
            buffer: Held until the region is closed.
            **more: Parameters of `Domain.mr_reg`. Without `requested_key` the stack numbers its regions from 1.

        Raises like `Domain.mr_reg`.
        """
        more.setdefault("requested_key", len(self._regions) + 1)
        mr = self.domain.mr_reg(buffer, access, **more)
        self._regions.append(mr)
        mode = int(self.info.domain_attr.mr_mode)
        if mode & fi.MR_MMU_NOTIFY:
            mr.refresh()
        if mode & fi.MR_ENDPOINT:
            mr.bind(self.ep)
        if mode & (fi.MR_ENDPOINT | fi.MR_RMA_EVENT):
            mr.enable()
        return mr

    def wait(self, count: int = 1, timeout: float = WAIT_SECONDS) -> list[Any]:
        """`count` completions. Raises the error of the first operation that failed, or `fi.Again` after `timeout` s."""
        found: list[Any] = []
        while len(found) < count:
            try:
                found += self.cq.sread(count - len(found), timeout=timeout)
            except fi.Available:
                raise self.cq.readerr().exception() from None
        return found

    def wait_error(self, timeout: float = WAIT_SECONDS) -> fi.CqErrEntry:
        """The next completion, which must be an error.

        Raises AssertionError for a success, `fi.Again` after `timeout` seconds.
        """
        try:
            found = self.cq.sread(1, timeout=timeout)
        except fi.Available:
            entry: fi.CqErrEntry = self.cq.readerr()
            return entry
        raise AssertionError(f"the operation was expected to fail, and completed: {found[0]}")

    def close(self) -> None:
        """Close all objects, in an order that every provider allows."""
        for key in self._mapped:
            self.domain.unmap_key(key)
        self._mapped.clear()
        # Either the endpoint or the region is busy while one is bound to the other; the provider decides which.
        busy = self.domain.policy.regions.busy if not self.domain.closed else ""
        handles: list[Any] = [*self._regions, self.ep] if busy == "ep" else [self.ep, *self._regions]
        for handle in (*handles, self.cq, self.av, self.domain, self.fabric):
            handle.close()

    def __repr__(self) -> str:
        return f"<Stack of {self.ep!r}>"


class Pair(NamedTuple):
    """Two stacks.

    Attributes:
        initiator: Posts operations.
        target: Has the regions.
        peer: fi_addr of the target in the initiator's address vector: `dest_addr` of its operations.
    """

    initiator: Stack
    target: Stack
    peer: int

    def remote(self, mr: fi.MemoryRegion) -> Remote:
        """Address and key with which the initiator reaches a region of the target, under the mr_mode in force."""
        if int(self.target.info.domain_attr.mr_mode) & fi.MR_RAW:
            addr, raw = mr.raw_attr()
            key = self.initiator.domain.map_raw(addr, raw)
            self.initiator._mapped.append(key)
            return Remote(addr, key)
        virtual = int(self.target.info.domain_attr.mr_mode) & fi.MR_VIRT_ADDR
        return Remote(mr.address if virtual else 0, mr.key)


def hints(caps: int = fi.RMA | fi.ATOMIC | fi.RMA_EVENT, provider: str = "weft") -> fi.Info:
    """Hints for these capabilities of one provider, by a program that takes the steps of every registration mode."""
    return fi.Info(caps=caps, domain_attr=fi.DomainAttr(mr_mode=_MODES), fabric_attr=fi.FabricAttr(prov_name=provider))


@contextlib.contextmanager
def opened_domain(asked: fi.Info | None = None) -> Iterator[fi.Domain]:
    """A domain of the first offer for these hints (default: `hints()`); closed at the end. Raises as getinfo."""
    info = fi.getinfo(hints=asked or hints())[0]
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain:
        yield domain


@contextlib.contextmanager
def opened(asked: fi.Info | None = None) -> Iterator[Stack]:
    """A Stack of the first offer for these hints (default: `hints()`); closed at the end. Raises as getinfo."""
    info = fi.getinfo(hints=asked or hints())[0]
    with contextlib.ExitStack() as stack:
        fabric = stack.enter_context(fi.Fabric(info.fabric_attr))
        domain = stack.enter_context(fabric.domain(info))
        cq = stack.enter_context(domain.cq_open(format=fi.CQ_FORMAT_DATA))
        av = stack.enter_context(domain.av_open())
        found = Stack(info, fabric, domain, cq, av, domain.endpoint(info))
        stack.callback(found.close)
        found.ep.bind(cq, fi.TRANSMIT | fi.RECV)
        found.ep.bind(av)
        found.ep.enable()
        yield found


@contextlib.contextmanager
def pair(asked: fi.Info | None = None) -> Iterator[Pair]:
    """A Pair of the first offer for these hints (default: `hints()`); closed at the end. Raises as getinfo."""
    with opened(asked) as target, opened(asked) as initiator:
        yield Pair(initiator, target, initiator.av.insert(target.ep.getname()))
