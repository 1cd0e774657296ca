"""Members of collective groups: an opened stack each, and waits that end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tests.fi.support import PROVIDER
from tests.patience import Patience

from weft import fi

WATCHDOG_S = 60.0
CAPS = fi.MSG | fi.COLLECTIVE


class Member:
    """One endpoint that can join groups, with its queues."""

    def __init__(self, provider: str = "", caps: int = CAPS, mr_mode: int = 0, **cq: Any) -> None:
        mode = fi.MR_ENDPOINT | fi.MR_ALLOCATED if provider == "cxi" else fi.MrMode(mr_mode)

        def asked(caps: int) -> fi.Info:
            return fi.Info(
                caps=caps,
                fabric_attr=fi.FabricAttr(prov_name=provider or ("weft" if PROVIDER.weft else PROVIDER.name)),
                domain_attr=fi.DomainAttr(mr_mode=mode),
            )

        self.info = fi.getinfo(hints=asked(caps))[0] if provider else PROVIDER.offer(caps, asked)
        self.fabric = fi.Fabric(self.info.fabric_attr)
        self.domain = self.fabric.domain(self.info)
        self.eq = self.fabric.eq_open()
        if PROVIDER.adapt is not None:
            PROVIDER.adapt(self.domain)
            PROVIDER.events(self.eq)
        self.cq = self.domain.cq_open(**cq)
        self.av = self.domain.av_open()
        self.ep = self.domain.endpoint(self.info)
        if PROVIDER.application is not None and PROVIDER.adapt is not None:
            PROVIDER.application(self.domain, self.ep)
        self.ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
        self.ep.bind(self.av)
        self.ep.bind(self.eq)
        self.ep.enable()
        self.names: list[int] = []
        self.sets: list[fi.AvSet] = []
        self.groups: list[fi.CollectiveGroup] = []

    @property
    def name(self) -> Any:
        return self.ep.getname()

    def know(self, names: Sequence[Any]) -> None:
        """Insert the members' addresses."""
        self.names = [self.av.insert(name) for name in names]

    def set(self, names: Sequence[int] | None = None, **attr: Any) -> fi.AvSet:
        found = self.av.av_set(fi.AvSetAttr(**attr))
        for name in self.names if names is None else names:
            found.insert(name)
        self.sets.append(found)
        return found

    def join(self, names: Sequence[int] | None = None, context: Any = None, **attr: Any) -> fi.CollectiveGroup:
        """Begin to join the group of all known members, or of some."""
        group = self.ep.join_collective(fi.ADDR_NOTAVAIL, self.set(names, **attr), 0, context)
        self.groups.append(group)
        return group

    def event(self) -> Any:
        return self.eq.read()

    def close(self) -> None:
        for group in self.groups:
            group.close()
        for one in (*self.sets, self.ep, self.av, self.cq, self.eq, self.domain, self.fabric):
            one.close()

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def members(count: int, provider: str = "", **more: Any) -> Iterator[list[Member]]:
    """Members in this process that know each other."""
    found = [Member(provider, **more) for _ in range(count)]
    names = [one.name for one in found]
    for one in found:
        one.know(names)
    try:
        yield found
    finally:
        for one in found:
            one.close()


def until(done: Callable[[], Any], what: str = "") -> Any:
    """The first true result of `done`."""
    end = Patience(WATCHDOG_S)
    while not (result := done()):
        assert not end.over, f"nothing within {WATCHDOG_S:g} s: {what}"
        time.sleep(0)
    return result


def events(found: Sequence[Member]) -> list[Any]:
    """The next event of each member, in their order; an error event as its entry."""
    got: list[Any] = [None] * len(found)

    def all_have() -> bool:
        for i, one in enumerate(found):
            if got[i] is None:
                try:
                    got[i] = one.event()
                except fi.Available:
                    got[i] = one.eq.readerr()
        return all(one is not None for one in got)

    until(all_have, f"events {got}")
    return got


def join_all(found: Sequence[Member], **attr: Any) -> list[fi.CollectiveGroup]:
    """All members join one group; the groups, by member."""
    groups = [one.join(**attr) for one in found]
    for group, got in zip(groups, events(found), strict=True):
        assert not isinstance(got, fi.EqErrEntry), got
        event, entry = got
        assert event == fi.JOIN_COMPLETE
        assert entry.fid is group
    return groups


def completions(found: Sequence[Member], count: int = 1) -> list[list[Any]]:
    """The next `count` completions of each member; an error as its entry."""
    got: list[list[Any]] = [[] for _ in found]

    def all_have() -> bool:
        for i, one in enumerate(found):
            if len(got[i]) < count:
                try:
                    got[i] += one.cq.read(count - len(got[i])) or []
                except fi.Available:
                    got[i].append(one.cq.readerr())
        return all(len(one) == count for one in got)

    until(all_have, f"completions {got}")
    return got


def completed(found: Sequence[Member], count: int = 1) -> list[list[Any]]:
    """The same, all successes."""
    got = completions(found, count)
    assert not [one for each in got for one in each if isinstance(one, fi.CqErrEntry)], got
    return got


def allreduce(found: Sequence[Member], groups: Sequence[Any], values: Sequence[Any], op: int, **more: Any) -> list[Any]:
    """One allreduce of arrays; the results, by member."""
    results = [np.zeros_like(value) for value in values]
    for one, group, value, result in zip(found, groups, values, results, strict=True):
        one.ep.allreduce(value, result=result, coll_addr=group.addr, op=op, **more)
    completed(found)
    return results
