"""Shared by the tests of weft.fi: an opened stack in one object, and waits that end."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft import _nic, fi

WATCHDOG_S = 30.0
RW = fi.REMOTE_READ | fi.REMOTE_WRITE
ALL_CAPS = fi.RMA | fi.ATOMIC | fi.RMA_EVENT | fi.SOURCE
KEY = 4


WEFT_SERVICE = ("weft0", "77", "weft://0/1/77")


@dataclass
class Provider:
    """The provider that the tests run on.

    required      mr_mode bits that it needs.
    application   called with a domain and an endpoint: takes the steps that these bits require of a program.
    choose        called with a function that makes hints for capabilities, and these: its offer (default: the first).
    adapt         called with a domain before anything is opened in it.
    events        called with an event queue before it is bound to anything.
    settle        called with a condition: makes progress until it is true, or the watchdog's time is over.
    addresses     called with a number: as many addresses that no endpoint has (default: Weft's).
    peers         called with a number: as many addresses that a vector takes (default: the same).
    service       (node, service, address): what names an address; None where the provider has no such names.
    """

    name: str = "weft"
    required: int = 0
    application: Any = None
    choose: Any = None
    adapt: Any = None
    events: Any = None
    settle: Any = None
    addresses: Any = None
    peers: Any = None
    service: Any = WEFT_SERVICE

    @property
    def weft(self) -> bool:
        """True for a provider of Weft's own: tests then check words and addresses too, which are Weft's."""
        return self.choose is None

    def words(self, text: str) -> str | None:
        """The pattern for pytest.raises(match=): it checks nothing over a provider that is not Weft's."""
        return text if self.weft else None

    def offer(self, caps: int, asked: Callable[[int], fi.Info]) -> fi.Info:
        """The offer that the tests use."""
        return fi.getinfo(hints=asked(caps))[0] if self.choose is None else self.choose(asked, caps)


PROVIDER = Provider()


def addresses(count: int) -> list[Any]:
    """Addresses of the provider that no endpoint has."""
    if PROVIDER.addresses is not None:
        return list(PROVIDER.addresses(count))
    return [f"weft://0/1/{pid}" for pid in range(100, 100 + count)]


def peers(count: int) -> list[Any]:
    """Addresses that a vector takes; some providers take addresses of open endpoints alone."""
    return addresses(count) if PROVIDER.peers is None else list(PROVIDER.peers(count))


libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Addresses:
    """A range of addresses without pages, until a test makes pages."""

    def __init__(self, pages: int) -> None:
        self.nbytes = pages * mmap.PAGESIZE
        self.at: int = libc.mmap(None, self.nbytes, 0, 0x22, -1, 0)
        assert self.at not in (None, -1)

    def back(self, first: int = 0, count: int | None = None) -> None:
        count = self.nbytes // mmap.PAGESIZE if count is None else count
        assert libc.mprotect(self.at + first * mmap.PAGESIZE, count * mmap.PAGESIZE, 3) == 0

    def unback(self, first: int, count: int) -> None:
        assert libc.mprotect(self.at + first * mmap.PAGESIZE, count * mmap.PAGESIZE, 0) == 0

    def array(self) -> Any:
        return np.frombuffer((ctypes.c_uint8 * self.nbytes).from_address(self.at), np.uint8)

    def close(self) -> None:
        libc.munmap(self.at, self.nbytes)


@dataclass(repr=False)
class Node:
    """A fabric, domain, endpoint, completion queue and address vector, as an application opens them.

    peer   fi_addr of this node's own endpoint, where it was inserted.
    """

    info: fi.Info
    fabric: fi.Fabric
    domain: fi.Domain
    cq: fi.CompletionQueue
    av: fi.AddressVector
    ep: fi.Endpoint
    extra: list[Any] = field(default_factory=list)

    @property
    def name(self) -> Any:
        return self.ep.getname()

    @property
    def me(self) -> int:
        """fi_addr of this node in its own address vector."""
        if not hasattr(self, "_me"):
            self._me = self.av.insert(self.name)
        return self._me

    def keep(self, obj: Any) -> Any:
        """Close this with the node, before everything else."""
        self.extra.append(obj)
        return obj

    def reg(self, buf: Any, access: int = RW, **more: Any) -> fi.MemoryRegion:
        return self.keep(self.domain.mr_reg(buf, access, **more))

    def wait(self, count: int = 1) -> list[Any]:
        """`count` completions; the test fails if they do not arrive, or if one is an error."""
        found: list[Any] = []
        while len(found) < count:
            found += self.cq.sread(count - len(found), timeout=WATCHDOG_S)
        return found

    def wait_error(self) -> fi.CqErrEntry:
        """The next completion, which has to be an error."""
        try:
            found = self.cq.sread(1, timeout=WATCHDOG_S)
        except fi.Available:
            return self.error(self.cq.readerr())
        raise AssertionError(f"expected an error completion, found {found}")

    def error(self, entry: fi.CqErrEntry) -> fi.CqErrEntry:
        """Check that an error entry has the provider's number; return it with the man pages' number."""
        if PROVIDER.choose is not None:  # a real library's: as they are
            return entry
        assert (entry.err, entry.prov_errno) == self.domain.policy.statuses[entry.status]
        return entry._replace(err=_nic.status_errno(entry.status))

    def close(self) -> None:
        # Endpoints first: they hold their queues and vectors; where bound regions keep them busy, after the regions.
        if PROVIDER.choose is None and self.domain.policy.regions.busy == "ep":
            for mr in self.domain.regions():
                mr.close()
        endpoints = [obj for obj in self.extra if isinstance(obj, fi.Endpoint)]
        others = [obj for obj in reversed(self.extra) if not isinstance(obj, fi.Endpoint)]
        for obj in (self.ep, *endpoints, *others, self.cq, self.av, self.domain, self.fabric):
            obj.close()


def hints(
    caps: int = ALL_CAPS, mr_mode: int = 0, *, op_flags: int = 0, version: int | None = None, **domain: Any
) -> fi.Info:
    return fi.Info(
        caps=caps,
        tx_attr=fi.TxAttr(op_flags=op_flags),
        domain_attr=fi.DomainAttr(mr_mode=mr_mode | int(PROVIDER.required), **domain),
        fabric_attr=fi.FabricAttr(prov_name=PROVIDER.name),
    )


@contextlib.contextmanager
def opened(
    caps: int = ALL_CAPS,
    *,
    mr_mode: int = 0,
    format: int = fi.CQ_FORMAT_TAGGED,
    size: int = 0,
    cq_flags: int = fi.TRANSMIT | fi.RECV,
    op_flags: int = 0,
    wait_obj: int = fi.WAIT_UNSPEC,
    resource_mgmt: int = 0,
    edit: Any = None,
    counters: dict[int, Any] | None = None,
    enable: bool = True,
) -> Iterator[Node]:
    """A Node.

    mr_mode    modes in force, whether or not the provider would require them: the bits are set after getinfo.
    edit       called with the Info before anything is opened.
    counters   bind flags -> a Counter opened for them is put in their place.
    """
    asked = functools.partial(hints, mr_mode=mr_mode, op_flags=op_flags, resource_mgmt=resource_mgmt)
    info = PROVIDER.offer(caps, asked)
    info.domain_attr.mr_mode |= mr_mode
    if edit is not None:
        edit(info)
    fabric = fi.Fabric(info.fabric_attr)
    domain = fabric.domain(info)
    if PROVIDER.adapt is not None:
        PROVIDER.adapt(domain)
    cq = domain.cq_open(format=format, size=size or 1024, wait_obj=wait_obj)
    av = domain.av_open()
    ep = domain.endpoint(info)
    node = Node(info, fabric, domain, cq, av, ep)
    if PROVIDER.application is not None and not mr_mode & PROVIDER.required:
        PROVIDER.application(domain, ep)
    try:
        ep.bind(cq, cq_flags)
        ep.bind(av)
        for flags in list(counters or {}):
            assert counters is not None
            counters[flags] = domain.cntr_open()
            ep.bind(counters[flags], flags)
            node.extra.append(counters[flags])
        if enable:
            ep.enable()
        yield node
    finally:
        node.close()


@contextlib.contextmanager
def pair(caps: int = ALL_CAPS, **more: Any) -> Iterator[tuple[Node, Node, int]]:
    """(initiator, target, fi_addr of the target): two endpoints of one process, each with its own domain."""
    with opened(caps, **more) as target, opened(caps, **more) as initiator:
        yield initiator, target, initiator.av.insert(target.name)


def outcome(initiator: Node, peer: int, key: int = KEY, addr: int = 0) -> int:
    """How a write of 8 bytes ends: 0 or an FI_ code."""
    initiator.ep.write(b"\x11" * 8, dest_addr=peer, addr=addr, key=key)
    try:
        initiator.wait()
    except fi.Available:
        return int(initiator.error(initiator.cq.readerr()).err)
    return 0
