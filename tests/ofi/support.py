"""Opens fabrics of a real libfabric for tests: nodes by a provider's name, pairs of them, and waits that end.

    with pair("ofi:tcp") as (a, b):
        a.ep.tsend(b"hello", dest_addr=a.to(b), tag=7)

`finish` reads the queues of all nodes that it is given: the providers that the tests use make progress in calls alone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests import patience
from tests.patience import Patience

from weft import fi
from weft.providers.ofi import library as ofi_library

WATCHDOG_S = 30.0
PROVIDERS = ("ofi:tcp", "ofi:shm")
ACCEPTED = fi.MR_LOCAL | fi.MR_VIRT_ADDR | fi.MR_ALLOCATED | fi.MR_PROV_KEY | fi.MR_RAW | fi.MR_ENDPOINT
CAPS = fi.MSG | fi.TAGGED | fi.RMA
RW = fi.REMOTE_READ | fi.REMOTE_WRITE


def hints(provider: str, caps: int = CAPS, kind: int = fi.EP_RDM) -> fi.Info:
    """Hints of a program that takes every step of registration."""
    return fi.Info(
        caps=caps,
        ep_attr=fi.EpAttr(type=kind),
        domain_attr=fi.DomainAttr(mr_mode=ACCEPTED),
        fabric_attr=fi.FabricAttr(prov_name=provider),
    )


def offer(provider: str, caps: int = CAPS, kind: int = fi.EP_RDM) -> fi.Info:
    """The first offer of a provider on this host: over loopback, where the provider has networks."""
    found = fi.getinfo(hints=hints(provider, caps, kind))
    near = [one for one in found if one.domain_attr.name == "lo" and len(one.src_addr or b"") == 16]
    return (near or found)[0]


@dataclass(repr=False)
class Node:
    """A fabric, domain, endpoint, queue and vector."""

    info: fi.Info
    fabric: Any
    domain: Any
    cq: Any
    av: Any
    ep: Any
    seen: list[Any] = field(default_factory=list)
    extra: list[Any] = field(default_factory=list)
    keys: int = 0

    def register(self, buf: Any, access: int = RW) -> Any:
        """A region with a key that is its own, bound and enabled where the provider wants that."""
        self.keys += 1
        mr = self.domain.mr_reg(buf, access, requested_key=self.keys)
        if self.info.domain_attr.mr_mode & fi.MR_ENDPOINT:
            mr.bind(self.ep)
            mr.enable()
        self.extra.append(mr)
        return mr

    def place(self, mr: Any, offset: int = 0) -> int:
        """The remote address of a byte of a region."""
        return (mr.address if self.domain.virt_addr else 0) + offset

    def to(self, other: Node) -> int:
        """The fi_addr of another node."""
        found: int = self.av.insert(other.ep.getname())
        return found

    def close(self) -> None:
        self.ep.close()
        for one in [*reversed(self.extra), self.cq, self.av, self.domain, self.fabric]:
            one.close()


def open_node(info: fi.Info, *, cq: dict[str, Any] | None = None, flags: int = 0, before: Any = None) -> Node:
    """A node of an Info. cq: arguments of cq_open; flags: of the binding of the queue; before: called before enable."""
    with contextlib.ExitStack() as undo:
        fabric = undo.enter_context(fi.Fabric(info.fabric_attr))
        domain = undo.enter_context(fabric.domain(info))
        queue = undo.enter_context(domain.cq_open(**(cq or {})))
        av = undo.enter_context(domain.av_open())
        ep = undo.enter_context(domain.endpoint(info))
        ep.bind(queue, fi.TRANSMIT | fi.RECV | flags)
        ep.bind(av)
        node = Node(info, fabric, domain, queue, av, ep)
        if before is not None:
            before(node)
        ep.enable()
        undo.pop_all()
        return node


@contextlib.contextmanager
def pair(provider: str, caps: int = CAPS, **more: Any) -> Iterator[tuple[Node, Node]]:
    """Two nodes of a provider in this process."""
    info = offer(provider, caps)
    a = open_node(info, **more)
    try:
        b = open_node(info, **more)
        try:
            yield a, b
        finally:
            b.close()
    finally:
        a.close()


def drain(*nodes: Node) -> None:
    """Take the queues' entries; an error entry counts as one."""
    for node in nodes:
        try:
            node.seen += node.cq.read()
        except fi.Available:
            node.seen.append(node.cq.readerr())


def until(done: Callable[[], bool], *nodes: Node) -> None:
    """Drain the queues until `done()`."""
    end = Patience(WATCHDOG_S)
    while not done():
        drain(*nodes)
        assert not end.over, [node.seen for node in nodes]


def finish(node: Node, count: int, *others: Node) -> list[Any]:
    """`count` entries of a node's queue, while the other nodes make progress."""
    until(lambda: len(node.seen) >= count, node, *others)
    found, node.seen = node.seen[:count], node.seen[count:]
    return found


def post(call: Callable[[], Any], *nodes: Node) -> None:
    """Make a call, and again while the provider has no room, or is connecting."""
    end = Patience(WATCHDOG_S)
    while True:
        try:
            call()
            return
        except fi.Again:
            drain(*nodes)
            assert not end.over


def counter(node: Node) -> Any:
    """A counter that is closed with the node."""
    found = node.domain.cntr_open()
    node.extra.append(found)
    return found


def connected(a: Node, b: Node) -> int:
    """b's fi_addr at a, once a message has passed: the caller does not repeat operations that start by themselves."""
    to, room = a.to(b), bytearray(1)
    b.ep.recv(room)
    post(lambda: a.ep.send(b"x", dest_addr=to), a, b)
    finish(a, 1, b)
    finish(b, 1, a)
    return to


def library() -> str:
    """WEFT_LIBFABRIC of the tests: the value of the run's environment."""
    asked = os.environ.get("WEFT_TEST_LIBFABRIC", "")
    return "" if asked == "off" else asked


def library_version() -> tuple[int, int]:
    """The version of the library that is loaded."""
    known = ofi_library.known()
    assert known is not None, "no library is loaded"
    return known[1] >> 16, known[1] & 0xFFFF


def run_program(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, which finds the tests' modules."""
    return patience.run(
        [sys.executable, "-c", program, *args], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=100
    )
