"""Nodes over a real libfabric: `weft.open(fabric="ofi:tcp")`.

The calls are the same. What differs between the library's providers is handled here: virtual addresses or offsets,
keys that the application chooses, regions that are bound to an endpoint, registration of local memory, progress by
calls only, and atomics that a provider does not have. All accesses go through the provider, which maps no memory of a
peer here.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import errors, fi
from ..fi import _handle
from ..fi._progress import ProgressThread
from .arrays.lane import FailedOperation, Lane
from .names.ticket import FABRIC_PREFIX

if TYPE_CHECKING:
    from .node import Node

# Registration modes that this module handles.
_MR_MODES = fi.MR_LOCAL | fi.MR_VIRT_ADDR | fi.MR_ALLOCATED | fi.MR_PROV_KEY | fi.MR_ENDPOINT
_UNDER_WAY_MAX = 64
_SLICE_S = 0.1
_BUSY_S = 0.0001
_LOOKS = 50  # at the queue before the thread sleeps


class RealFabric:
    """The state of a node over a real libfabric beside the objects of `weft.fi`.

    Attributes:
        name: The provider as given to `weft.open`: "ofi:tcp".
        info: The library's offer in use.
    """

    def __init__(self, name: Any, listen: str | None) -> None:
        self.name = name
        self.info = _offer(name, listen)
        mode = int(self.info.domain_attr.mr_mode)
        self.local = bool(mode & fi.MR_LOCAL)
        self.atomics = bool(self.info.caps & fi.ATOMIC)
        self._bound = bool(mode & fi.MR_ENDPOINT)
        self._own_keys = not mode & (fi.MR_PROV_KEY | fi.MR_BASIC)
        size = self.info.domain_attr.mr_key_size or 8
        self._key_mask = (1 << 8 * min(int(size), 8)) - 1
        self._next_key = secrets.randbits(64)  # a stale ticket of an earlier process at the same port finds no region
        self._lock = threading.Lock()
        self._form = "b", 0
        self._counts: dict[tuple[int, int, int], int] = {}
        self._thread: ProgressThread | None = None

    # ---- addresses --------------------------------------------------------------------------------------------------

    def address(self, ep: Any) -> str:
        """The endpoint's address as one word."""
        found = ep.getname()
        raw = found.encode() if isinstance(found, str) else bytes(found)
        kind = "s" if isinstance(found, str) else "b"
        self._form = kind, len(raw)
        return f"{self.name}/{kind}{base64.urlsafe_b64encode(raw).decode().rstrip('=')}"

    def peer(self, address: str) -> Any:
        """The address for `fi.AddressVector.insert`. Raises InvalidArgument."""
        body = address[len(self.name) + 1 :]
        kind, size = self._form
        try:
            raw = base64.b64decode(body[1:] + "=" * (-len(body[1:]) % 4), b"-_", validate=True)
            # The library reads as many bytes as its addresses have.
            if body[:1] == kind and (len(raw) == size if kind == "b" else raw):
                return raw.decode() if kind == "s" else raw
            why = "it has another form than this node's"
        except (binascii.Error, UnicodeError) as reason:
            why = str(reason)
        raise errors.InvalidArgument(f"attach: {address!r:.100} is no address of {self.name}: {why}")

    # ---- memory -----------------------------------------------------------------------------------------------------

    def register(self, domain: Any, ep: Any, memory: Any, access: int) -> Any:
        """A region that peers may reach."""
        for _ in range(64):
            mr = self._try(domain, memory, access)
            if mr is not None:
                break
        else:
            raise errors.NoKey(f"share: {self.name} accepts none of 64 keys of {self._key_mask.bit_length()} bits")
        if self._bound:
            try:
                mr.bind(ep)
                mr.enable()
            except BaseException:
                mr.close()
                raise
        return mr

    def _try(self, domain: Any, memory: Any, access: int) -> Any:
        key = 0
        if self._own_keys:
            with self._lock:
                key = self._next_key = (self._next_key + 1) & self._key_mask
        try:
            return domain.mr_reg(memory, access, 0, key)
        except (errors.NoKey, errors.KeyRejected):
            if not self._own_keys:
                raise
            return None

    def atomic_count(self, domain: Any, datatype: int, op: int, family: int) -> int:
        """Elements of one atomic operation. Raises NotSupported."""
        found = self._counts.get((datatype, op, family))
        if found is None:
            if not self.atomics:
                raise errors.NotSupported(f"{self.name} has no atomics")
            flags = (0, int(fi.FETCH_ATOMIC), int(fi.COMPARE_ATOMIC))[family]
            found = int(domain.query_atomic(datatype, op, flags).count)
            self._counts[datatype, op, family] = found
        return found

    # ---- progress ---------------------------------------------------------------------------------------------------

    def serve(self, cq: Any) -> None:
        """Start the thread that lets the library answer peers: most providers do so only in calls of the program."""
        self._thread = ProgressThread(cq, f"weft {self.name}")

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.close()


def _offer(name: Any, listen: str | None) -> fi.Info:
    """The library's offer for nodes. Raises InvalidArgument, NoDevice, NoData."""
    if not isinstance(name, str) or not name.startswith(FABRIC_PREFIX) or name == FABRIC_PREFIX:
        raise errors.InvalidArgument(
            f"open: fabric={name!r}\n  rule: None for Weft's own links, or a provider of a real libfabric: 'ofi:tcp', "
            "'ofi:verbs', 'ofi:efa', 'ofi:cxi' ...\n  try: `weft info -p ofi`, which lists those of this host"
        )
    place: tuple[str | None, str | None] = (None, None) if listen is None else _place(listen)
    flags = 0 if listen is None else int(fi.SOURCE)
    refused: errors.FabricError | None = None
    for caps in (fi.RMA | fi.ATOMIC, fi.RMA):
        hints = fi.Info(
            caps=caps,
            ep_attr=fi.EpAttr(type=fi.EP_RDM),
            tx_attr=fi.TxAttr(op_flags=fi.DELIVERY_COMPLETE),  # a write that has returned is in the owner's memory
            domain_attr=fi.DomainAttr(mr_mode=_MR_MODES, threading=fi.THREAD_SAFE),
            fabric_attr=fi.FabricAttr(prov_name=name),
        )
        try:
            return fi.getinfo(node=place[0], service=place[1], flags=flags, hints=hints)[0]
        except errors.NoData as reason:
            refused = reason
    assert refused is not None
    raise errors.NoData(
        f"open: {name} offers no endpoint for nodes: {refused.message}\n"
        "  rule: nodes need reliable datagrams (EP_RDM), RMA, DELIVERY_COMPLETE and THREAD_SAFE\n"
        f"  try: `weft info -p {name}`"
    )


def _place(listen: str) -> tuple[str, str]:
    host, _, port = str(listen).removeprefix("tcp://").rpartition(":")
    if not host or not port.isascii() or not port.isdecimal():
        raise errors.InvalidArgument(
            f"open: listen={listen!r}\n  rule: tcp://host:port, the address of this host's NIC"
        )
    return host.strip("[]"), port


class RealCalls:
    """The calls of an endpoint, with the arguments of `fi.Endpoint`'s. Each returns when its operations are complete.

    Raises FailedOperation, TimedOut.
    """

    def __init__(self, node: Node, domain: Any, ep: Any, cq: Any) -> None:
        real = node._real
        assert real is not None
        self._real = real
        self._domain = domain
        self._ep = ep
        self._cq = cq
        self._timeout = node.timeout
        self._piece = max(int(real.info.ep_attr.max_msg_size) & ~63, 64)
        self._under_way = 0
        self._failed: list[fi.CqErrEntry] = []
        self._described: list[Any] = []  # regions of local buffers in use
        self._in_use = threading.Lock()
        self._closing = False

    def read(self, buf: Any, desc: Any, peer: int, addr: int, key: int, context: Any = None) -> None:
        """fi_read."""
        self._move(self._ep.read, fi.READ, buf, peer, addr, key)

    def write(self, buf: Any, desc: Any, peer: int, addr: int, key: int, context: Any = None) -> None:
        """fi_write."""
        self._move(self._ep.write, fi.WRITE, buf, peer, addr, key)

    def read_batch(self, buf: Any, descs: Any, context: Any = None) -> None:
        """A fi_read for each row of fi.RMA_DESC."""
        self._batch(self._ep.read, fi.READ, buf, descs)

    def write_batch(self, buf: Any, descs: Any, context: Any = None) -> None:
        """A fi_write for each row of fi.RMA_DESC."""
        self._batch(self._ep.write, fi.WRITE, buf, descs)

    def atomic(
        self, a: Any, desc: Any, peer: int, addr: int, key: int, datatype: int, op: int, context: Any = None
    ) -> None:
        """fi_atomic; a fetching atomic where the plain atomic cannot be trusted."""
        if self._ep.domain.plain_atomics_crash:
            self.fetch_atomic(a, desc, np.empty_like(a), None, peer, addr, key, datatype, op)
            return
        mine = self._describe(a, fi.WRITE)
        self._run([lambda: self._ep.atomic(a, mine, peer, addr, key, datatype, op)])

    def fetch_atomic(
        self, a: Any, desc: Any, result: Any, result_desc: Any, peer: int, addr: int, key: int, datatype: int, op: int,
        context: Any = None,
    ) -> None:  # fmt: skip
        """fi_fetch_atomic."""
        mine, into = self._describe(a, fi.WRITE), self._describe(result, fi.READ)
        self._run([lambda: self._ep.fetch_atomic(a, mine, result, into, peer, addr, key, datatype, op)])

    def compare_atomic(
        self, a: Any, desc: Any, compare: Any, compare_desc: Any, result: Any, result_desc: Any, peer: int, addr: int,
        key: int, datatype: int, op: int, context: Any = None,
    ) -> None:  # fmt: skip
        """fi_compare_atomic."""
        mine, with_, into = (
            self._describe(a, fi.WRITE),
            self._describe(compare, fi.WRITE),
            self._describe(result, fi.READ),
        )
        self._run(
            [lambda: self._ep.compare_atomic(a, mine, compare, with_, result, into, peer, addr, key, datatype, op)]
        )

    def close(self) -> None:
        """Close the endpoint. Waits for a call of another thread, because libraries do not survive a close under a
        reader.
        """
        self._closing = True
        with self._in_use:
            self._ep.close()
            self._forget()

    # ---- local memory -----------------------------------------------------------------------------------------------

    def _describe(self, buf: Any, access: int) -> Any:
        """The descriptor of a local buffer, under fi.MR_LOCAL."""
        if not self._real.local or _nbytes(buf) == 0:
            return None
        mr = self._real.register(self._domain, self._ep, buf, int(access))
        self._described.append(mr)
        return mr.desc

    def _forget(self) -> None:
        while self._described:
            self._described.pop().close()

    # ---- operations -------------------------------------------------------------------------------------------------

    def _move(self, call: Callable[..., Any], access: int, buf: Any, peer: int, addr: int, key: int) -> None:
        desc = self._describe(buf, access)
        nbytes = _nbytes(buf)
        if nbytes <= self._piece:
            self._run([lambda: call(buf, desc, peer, addr, key)])
            return
        flat = buf.reshape(-1).view(np.uint8)

        def piece(at: int) -> Callable[[], Any]:
            return lambda: call(flat[at : at + self._piece], desc, peer, addr + at, key)

        self._run([piece(at) for at in range(0, nbytes, self._piece)])

    def _batch(self, call: Callable[..., Any], access: int, buf: Any, descs: Any) -> None:
        desc = self._describe(buf, access)
        flat = buf.reshape(-1).view(np.uint8)

        def piece(at: int, length: int, peer: int, addr: int, key: int) -> Callable[[], Any]:
            return lambda: call(flat[at : at + length], desc, peer, addr, key)

        self._run([piece(*row) for row in descs[:, :5].tolist()])

    def _run(self, posts: list[Callable[[], Any]]) -> None:
        """Post the operations, at most _UNDER_WAY_MAX at a time, and wait for all."""
        with self._in_use:
            self._run_alone(posts)

    def _run_alone(self, posts: list[Callable[[], Any]]) -> None:
        self._failed.clear()
        try:
            for post in posts:
                if self._failed:
                    break
                while self._under_way >= _UNDER_WAY_MAX:
                    self._reap()
                self._post(post)
            while self._under_way:
                self._reap()
        finally:
            if not self._under_way:
                self._forget()
        if self._failed:
            raise FailedOperation(self._failed[0])

    def _post(self, post: Callable[[], Any]) -> None:
        deadline = None
        while True:
            try:
                post()
                self._under_way += 1
                return
            except errors.Again:  # the library's queue is full, or it is connecting
                if self._under_way:
                    self._reap()
                    continue
            if deadline is None and self._timeout is not None:
                deadline = time.monotonic() + self._timeout
            self._take(self._cq.read)
            if self._closing:
                raise errors.BadState("the node was closed while the operation was under way")
            if deadline is not None and time.monotonic() > deadline:
                raise errors.TimedOut(f"{self._real.name} accepted no operation in {self._timeout:g} s")
            time.sleep(_BUSY_S)

    def _reap(self) -> None:
        """Wait for one completion or more."""
        for _ in range(_LOOKS):
            if self._take(self._cq.read):
                return
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while deadline is None or time.monotonic() < deadline:
            if self._closing:
                raise errors.BadState("the node was closed while the operation was under way")
            if self._take(self._sread):
                return
        raise errors.TimedOut(f"no completion in {self._timeout:g} s")

    def _sread(self, count: int) -> Any:
        # In slices, so that the thread notices when another thread closes the node.
        return self._cq.sread(count, None, _SLICE_S)

    def _take(self, read: Callable[[int], Any]) -> bool:
        try:
            count = len(read(_UNDER_WAY_MAX))
        except errors.Again:
            return False
        except errors.Available:
            self._failed.append(self._cq.readerr())
            count = 1
        self._under_way -= count
        return count > 0


class RealLane(Lane):
    """A lane over a real libfabric: each call of its `ep` waits for its completion, so there are no completions to
    take.
    """

    __slots__ = ("_real",)

    def _open(self, node: Node, wait_obj: int, size: int) -> None:
        real = node._real
        assert real is not None
        self._real = real
        domain = node._domain
        self.cq = domain.cq_open(size=max(size, 2 * _UNDER_WAY_MAX), format=fi.CQ_FORMAT_CONTEXT, wait_obj=wait_obj)
        self.av = domain.av_open(type=fi.AV_TABLE)
        ep = domain.endpoint(node._info)
        ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
        ep.bind(self.av)
        ep.enable()
        _handle.owned(self.cq, self.av, ep)
        self.native = ep
        self.ep: Any = RealCalls(node, domain, ep, self.cq)
        self.mr: Any = _NO_REGION
        self.read, self.write, self.fetch_atomic = self.ep.read, self.ep.write, self.ep.fetch_atomic
        self.take = _taken

    def insert(self, address: str) -> None:
        """Add a peer."""
        self.av.insert(self._real.peer(address))

    def part(self, at: int, nbytes: int) -> Any:
        """Bytes of the lane's own memory, as a buffer of an operation."""
        return self._scratch[at : at + nbytes]


class _NoRegion:
    """Stands for the lane's region: regions of local memory are made only where the provider needs them."""

    def close(self) -> None: ...


_NO_REGION = _NoRegion()


def _taken(count: int) -> bool:
    """The completion was taken in the call."""
    return True


def _nbytes(buf: Any) -> int:
    return int(buf.nbytes)
