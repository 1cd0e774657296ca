"""Runs the tests of weft.fi over the providers of a real libfabric, and does the program's part there.

pytest makes two more of each test that `tests.fi.real_table` names, for ofi:tcp and ofi:shm. A test is the same there;
the steps that these providers leave to the program, and Weft's NIC does by itself, are done here, around its calls:

progress     it is manual. Each call that reads or waits also reads the queues of the test's other nodes, and keeps what
             it finds for the calls that read those queues.
connections  are made at the first transfer, which is refused with FI_EAGAIN until then: a refused call is repeated.
keys         are unique in a domain, also of regions that nobody reaches: a region without a key gets one.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.fi.support import PROVIDER, WEFT_SERVICE
from tests.ofi.support import Node, offer, open_node

from weft import fi
from weft.providers.ofi import library
from weft.providers.ofi.info import packed

NAMES = ("ofi:tcp", "ofi:shm")
PATIENCE_S = 20.0  # how long a call is repeated, and how long a test may wait for an event that does not come
FAILING_S = 0.3  # the same for a test that is known to fail
OWN_KEYS = 1 << 20  # the first of the keys given to regions that the test gave none

_NUMBERS = itertools.count(1)  # of addresses that are names

_TRANSFERS = (
    *("write", "writev", "writemsg", "writedata", "inject_write", "inject_writedata", "read", "readv", "readmsg"),
    *("send", "sendv", "sendmsg", "senddata", "inject", "injectdata", "recv", "recvv", "recvmsg"),
    *("tsend", "tsendv", "tsendmsg", "tsenddata", "tinject", "tinjectdata", "trecv", "trecvv", "trecvmsg"),
    *("atomic", "atomicv", "atomicmsg", "inject_atomic", "fetch_atomic", "fetch_atomicv", "fetch_atomicmsg"),
    *("compare_atomic", "compare_atomicv", "compare_atomicmsg"),
)
# What the binding says of calls that are Weft's own, or are not passed through: a test that meets one is skipped.
NOT_PASSED = (
    "passes no",
    "libfabric has no such call",
    "the library does not tell",
    "not passed through",
    "are not supported",
)
# Capabilities of the general provider that tests ask for by habit, and do not all use.
_HABITS = int(fi.ATOMIC | fi.RMA_EVENT | fi.SOURCE)


class Setting:
    """The queues of the running test, and how patient it is."""

    def __init__(self) -> None:
        self.queues: list[Queue] = []
        self.events: list[Events] = []
        self.peers: list[Node] = []
        self.patience = PATIENCE_S
        self.keys = OWN_KEYS
        self.lock = threading.Lock()

    def progress(self, *but: Queue | Events) -> None:
        """Read all queues but some, unless another thread is doing it."""
        if self.lock.acquire(blocking=False):
            try:
                for queue in [*self.queues, *self.events]:
                    if queue not in but:
                        queue.keep()
            finally:
                self.lock.release()


SETTING = Setting()


class Queue:
    """The reading calls of a completion queue: entries kept from progress first, then the real calls."""

    def __init__(self, cq: Any) -> None:
        self.cq = cq
        self.kept: collections.deque[Any] = collections.deque()
        self.real = {name: getattr(cq, name) for name in ("read", "readfrom", "sread", "sreadfrom", "readerr")}
        for name in ("read", "readfrom"):
            setattr(cq, name, functools.partial(self.read, name))
        for name in ("sread", "sreadfrom"):
            setattr(cq, name, functools.partial(self.sread, name))
        cq.readerr = self.readerr

    def keep(self) -> None:
        try:
            self.kept.extend(self.real["readfrom"](16))
        except fi.Available:
            self.kept.append(self.real["readerr"]())
        except fi.BadState:
            SETTING.queues.remove(self)

    def first(self, name: str, count: int) -> list[Any]:
        """Up to `count` of the kept entries."""
        if self.kept and isinstance(self.kept[0], fi.CqErrEntry):
            raise fi.Available("an operation failed: its entry is at the head of the queue; read it with readerr()")
        found: list[Any] = []
        while self.kept and len(found) < count and not isinstance(self.kept[0], fi.CqErrEntry):
            pair = self.kept.popleft()
            found.append(pair if name.endswith("from") else pair[0])
        return found

    def read(self, name: str, count: int = 1024) -> list[Any]:
        SETTING.progress(self)
        return self.first(name, count) or self.real[name](count)

    def sread(self, name: str, count: int = 1024, cond: Any = None, timeout: float | None = None) -> list[Any]:
        end = time.monotonic() + min(SETTING.patience, SETTING.patience if timeout is None else timeout)
        while True:
            SETTING.progress(self)
            found = self.first(name, count)
            if found:
                return found
            try:
                return self.real[name](count, cond, 0)  # shm of libfabric 1.17 does not honour another limit
            except fi.Again:
                if time.monotonic() > end:
                    raise
            time.sleep(0.0001)

    def readerr(self, *args: Any, **more: Any) -> Any:
        if self.kept and isinstance(self.kept[0], fi.CqErrEntry):
            return self.kept.popleft()
        return self.real["readerr"](*args, **more)


class Events:
    """The reading calls of an event queue: each reads the test's other queues too, whose events it keeps for them."""

    def __init__(self, eq: Any) -> None:
        self.eq = eq
        self.kept: collections.deque[Any] = collections.deque()
        self.real = {name: getattr(eq, name) for name in ("read", "readerr")}
        eq.read, eq.sread, eq.readerr = self.read, self.sread, self.readerr

    def keep(self) -> None:
        try:
            found = self.real["read"]()
        except fi.Available:
            found = self.real["readerr"]()
        except fi.BadState:
            SETTING.events.remove(self)
            return
        if found is not None:
            self.kept.append(found)

    def read(self, flags: int = 0) -> Any:
        SETTING.progress()
        if self.kept and isinstance(self.kept[0], fi.EqErrEntry):
            raise fi.Available("a request failed: readerr() has its error")
        return self.kept.popleft() if self.kept else None

    def sread(self, timeout: float | None = None, flags: int = 0) -> Any:
        end = time.monotonic() + min(SETTING.patience, SETTING.patience if timeout is None else timeout)
        while True:
            found = self.read(flags)
            if found is not None:
                return found
            if time.monotonic() > end:
                raise fi.Again("no event")
            time.sleep(0.0001)

    def readerr(self, flags: int = 0) -> Any:
        return self.kept.popleft() if self.kept else self.real["readerr"](flags)


def adapt_events(eq: Any) -> None:
    SETTING.events.append(Events(eq))


def application(domain: Any, ep: Any) -> None:
    """What a program for manual progress does; the domain's queues and counters are adapted as they are opened."""
    for name in ("mr_reg", "mr_regv"):
        setattr(domain, name, _with_key(getattr(domain, name)))
    adapt_endpoint(ep)


def adapt_endpoint(ep: Any) -> None:
    for name in _TRANSFERS:
        setattr(ep, name, _repeated(getattr(ep, name)))


def adapt_domain(domain: Any) -> None:
    """Adapt what the domain opens."""
    cq_open, cntr_open = domain.cq_open, domain.cntr_open

    def queue(**more: Any) -> Any:
        cq = cq_open(**more)
        SETTING.queues.append(Queue(cq))
        return cq

    def counter(**more: Any) -> Any:
        cntr = cntr_open(**more)
        cntr.wait = functools.partial(_wait, cntr, cntr.wait)
        return cntr

    domain.cq_open, domain.cntr_open = queue, counter


def _wait(cntr: Any, wait: Any, threshold: int, timeout: float | None = None) -> None:
    end = time.monotonic() + min(SETTING.patience, SETTING.patience if timeout is None else timeout)
    while True:
        SETTING.progress()
        left = end - time.monotonic()
        try:
            return wait(threshold, min(max(left, 0), 0.001))
        except fi.TimedOut:
            if left <= 0:
                raise


def _with_key(call: Any) -> Any:
    def registering(*args: Any, **more: Any) -> Any:
        if len(args) < 4 and not more.get("requested_key"):
            SETTING.keys += 1
            more["requested_key"] = SETTING.keys
        return call(*args, **more)

    return registering


def _repeated(call: Any) -> Any:
    def posting(*args: Any, **more: Any) -> Any:
        end = time.monotonic() + SETTING.patience
        while True:
            try:
                return call(*args, **more)
            except fi.Again:
                if time.monotonic() > end:
                    raise
                SETTING.progress()

    return posting


def choose(name: str, asked: Callable[[int], fi.Info], caps: int) -> fi.Info:
    """The offer of a provider for the capabilities: over loopback, where it has networks; else the test is skipped."""
    wanted = caps
    for less in (0, int(fi.RMA_EVENT), int(fi.RMA_EVENT | fi.SOURCE), _HABITS):
        if less and caps & _HABITS != _HABITS:
            break
        wanted = caps & ~less
        hints = asked(wanted)
        if caps & (fi.RMA | fi.ATOMIC):  # the tests look at the target's memory when the initiator has its completion
            hints.tx_attr.op_flags |= fi.DELIVERY_COMPLETE
        try:
            found = fi.getinfo(hints=hints)
        except fi.NoData:
            continue
        near = [one for one in found if one.domain_attr.name == "lo" and len(one.src_addr or b"") == 16]
        return (near or found)[0]
    pytest.skip(f"{name} of {library.version_text()} has no offer for {fi.Flag(caps)!r} with these hints")


def settle(done: Callable[[], bool]) -> None:
    end = time.monotonic() + SETTING.patience
    while not done() and time.monotonic() < end:
        SETTING.progress()


def free_addresses(name: str, count: int) -> list[Any]:
    """Addresses of a provider on this host that no endpoint has: of ports that were free now, or of new names."""
    if name == "ofi:shm":
        return [f"fi_shm://{os.getpid()}:free:{next(_NUMBERS)}" for _ in range(count)]
    with contextlib.ExitStack() as held:
        ports = []
        for _ in range(count):
            one = held.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            ports.append(one.getsockname()[1])
    return [packed(("127.0.0.1", port), int(fi.SOCKADDR_IN)) for port in ports]


def open_peers(name: str, count: int) -> list[Any]:
    """The addresses of endpoints that stay open until the test ends."""
    opened = [open_node(offer(name)) for _ in range(count)]
    SETTING.peers += opened
    return [one.ep.getname() for one in opened]


def begin(name: str, failing: bool) -> None:
    PROVIDER.name, PROVIDER.required, PROVIDER.application = name, 0, application
    PROVIDER.choose, PROVIDER.adapt = functools.partial(choose, name), adapt_domain
    PROVIDER.events, PROVIDER.settle = adapt_events, settle
    PROVIDER.addresses = functools.partial(free_addresses, name)
    PROVIDER.peers = functools.partial(open_peers, name) if name == "ofi:shm" else None
    PROVIDER.service = None
    if name == "ofi:tcp":
        PROVIDER.service = ("127.0.0.1", "77", packed(("127.0.0.1", 77), int(fi.SOCKADDR_IN)))
    SETTING.__init__()  # type: ignore[misc]
    SETTING.patience = FAILING_S if failing else PATIENCE_S


def end() -> None:
    PROVIDER.name, PROVIDER.required, PROVIDER.application = "weft", 0, None
    PROVIDER.choose = PROVIDER.adapt = PROVIDER.events = PROVIDER.settle = PROVIDER.addresses = PROVIDER.peers = None
    PROVIDER.service = WEFT_SERVICE
    SETTING.queues.clear()
    SETTING.events.clear()
    while SETTING.peers:
        SETTING.peers.pop().close()
