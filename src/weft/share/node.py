"""Nodes: through a node, a process shares its arrays and attaches arrays of other processes."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from .. import _keys, _process, errors, fi
from .._with import Closable
from ..fi import _handle
from ..fi.info import first
from ..memory.cache import statistics as cache_statistics
from .arrays import _default
from .arrays.attached import Attached
from .arrays.checks import type_name
from .arrays.lane import Lane
from .arrays.reattaching import attach
from .arrays.remote import RemoteArray
from .arrays.show import human_bytes, table_html
from .names.server import NameServer, check_name, names
from .names.ticket import PREFIX, Ticket, fabric_of
from .names.waiting import seconds
from .offer import check
from .shared import Shared

if TYPE_CHECKING:
    import asyncio

    from .arrays.aio import LoopLane
    from .ofi_node import RealFabric

# Long enough that a busy owner answers in time, so that only a stopped owner is reported.
DEFAULT_TIMEOUT_S = 30.0
_ASIDE_MAX = 64  # lanes whose last call got no answer
# Registration modes that this layer handles; a ticket carries the facts that peers need for them.
_MR_MODES = fi.MR_PROV_KEY | fi.MR_VIRT_ADDR | fi.MR_ALLOCATED


@dataclass(frozen=True)
class NodeStatistics:
    """Counts of a node's objects, and of operations of the process's NIC (all nodes of a process share one NIC).

    Attributes:
        shared: Arrays that this node shares.
        shared_bytes: Their bytes.
        names: The shared arrays that have a name.
        attached: Remote arrays (and views of them) that are alive here.
        lanes: Endpoints for threads.
        loops: Endpoints for event loops of asyncio.
        peers: Processes that the NIC is connected to.
        direct: Operations by load and store.
        process_vm: Operations by process_vm_readv or process_vm_writev.
        engine: Operations by the owner's engine.
        failed: Operations that failed.
        bytes: Bytes moved by operations of this process.
        cache_hits: Hits of the process's registration cache (fi_mr(3)).
        cache_misses: Misses of that cache.
        cache_evictions: Entries that a limit or a flush removed.
        cache_invalidations: Entries that changed memory removed.
    """

    shared: int
    shared_bytes: int
    names: int
    attached: int
    lanes: int
    loops: int
    peers: int
    direct: int
    process_vm: int
    engine: int
    failed: int
    bytes: int
    cache_hits: int
    cache_misses: int
    cache_evictions: int
    cache_invalidations: int


class Node(Closable):
    """Shares arrays of this process and attaches arrays of others. Made by `weft.open()`.

    After `node.share(array, name="table")` other processes can reach `array`. `node.attach("table")` returns the array
    of another process with that name, as a `RemoteArray`.

    A node is a context manager; closing it ends its shares. One node per process is typical, several are fine.
    In a forked child a node of the parent refuses use; call `weft.open()` there.
    Thread safety: any thread.

    Args:
        timeout: Seconds after which an operation that needs the owner's NIC (`RemoteArray.path` "engine") raises
            TimedOut; None: no limit.
    """

    def __init__(
        self, timeout: float | None = DEFAULT_TIMEOUT_S, *, fabric: str | None = None, listen: str | None = None
    ) -> None:
        if timeout is not None and not seconds(timeout, "open: timeout") > 0:
            raise errors.InvalidArgument(f"timeout is {timeout!r}; it must be seconds above 0, or None for no limit")
        self.timeout = None if timeout is None else float(timeout)
        self._real: RealFabric | None = None
        if fabric is not None:
            from .ofi_node import RealFabric

            self._real = RealFabric(fabric, listen)
        self._info = info = _own_info() if self._real is None else self._real.info
        self._site = _handle.here(2)
        self._made_in = _process.generation
        self._lock = threading.RLock()
        self._closed = True  # until every attribute is set
        self._shared: dict[int, Shared] = {}
        self._addresses: dict[str, int] = {}
        self._idle: list[Lane] = []
        self._aside: list[Lane] = []  # lanes whose last call got no answer; the answer may still come
        self._lanes: list[Lane] = []
        self._loops: dict[asyncio.AbstractEventLoop, LoopLane] = {}
        self._attached: weakref.WeakSet[Attached] = weakref.WeakSet()
        self._groups: weakref.WeakSet[Any] = weakref.WeakSet()  # of groups/group.py, which imports this module
        self._objects: weakref.WeakSet[Any] = weakref.WeakSet()  # locks, queues ... made here: sync/sync_object.py
        self._names = NameServer()
        self._fabric = fi.Fabric(info.fabric_attr)
        self._domain = self._fabric.domain(info)
        _handle.owned(self._fabric, self._domain)
        self._manual = self._real is None and _process.nic().engine == "manual"
        # The endpoint that peers address. It starts no operations itself, so its queue stays empty.
        self._home = self._new_lane(16)
        if self._real is None:
            self.address: str = str(self._home.ep.getname())
        else:
            self.address = self._real.address(self._home.native)
            self._real.serve(self._home.cq)
        self._closed = False
        _nodes.add(self)
        _at_exit_once()

    # ---- sharing ----------------------------------------------------------------------------------------------------

    def share(self, array: Any, name: str | None = None, access: str = "rw", *, keep: bool = False) -> Shared:
        """Let other processes of this user reach an array: on this host, and on other hosts if this process listens.

        Args:
            array: Anything with the buffer protocol, `__array_interface__` or DLPack: NumPy, torch, array.array,
                bytearray ... C-contiguous, or a NumPy array in Fortran order; Weft uses it in place and holds it until
                the share is closed. Peers reach arrays of `weft.empty` and `weft.zeros` by load and store, other arrays
                by process_vm_readv.
            name: Name for `attach` on this host; None: peers need the ticket.
            access: "r": peers may read; "rw": peers may read, write and update atomically; "w": peers may only write.
            keep: True: the keeper (`weft keep`, started if needed) gets the array, which then outlives this process,
                however the process ends, until `weft.forget(name)`. The elements are copied once. A whole array of
                `weft.empty` or `weft.zeros` then is the kept array: this process goes on with it. Of other memory the
                keeper has a copy: `Shared.array` is an array over it, and the array that was passed is apart. `kept`
                gives another process the share.

        Returns:
            A `Shared`, whose `ticket` can be sent to another process.

        A share holds its node. A share that is collected together with its node ends with a ResourceWarning, which
        names the line that shared the array.

        Raises:
            TypeError: `array` is not an array.
            InvalidArgument: The array is not contiguous, `access` or `name` is wrong, or keep comes without a name.
            AccessDenied: Read-only memory with "rw"; with keep, another user has the registry's folder.
            AddressInUse: The name is taken; the message names the process.
            BadState: The node is closed.
            NotSupported: Under WEFT_ENGINE=manual no thread would answer peers; keep under WEFT_ISOLATION=strict.
            Busy: With keep, the array is of `weft.empty`, and shared already.
            NoMemory: There is no memory for the kept copy.
        """
        return self._share(array, name, access, keep, {}, _handle.here(2))

    def kept(self, name: str) -> Shared:
        """The share of an array that is kept (share(keep=True)), for a process that takes the place of its maker.

        The result is what the maker got from share(): `array` is the kept memory, mapped here, and replace() and
        resize() change the array for all. Any process of this user can have the share, several at a time, also beside
        the maker; the array's `access` does not bind them, only processes that attach the array. Each works on the
        array that it knows: if two replace or resize at once, one gets `weft.Replaced`, and calls kept() again.

        Raises NotFound (no such name), NotSupported (the name is not of a kept array; under WEFT_ISOLATION=strict),
        TimedOut (the keeper is stopped), TypeError, InvalidArgument, BadState.
        """
        self._check("kept")
        self._weft_only("kept")
        from .keeping.client import kept

        return kept(self, name, _handle.here(2))

    def _share(
        self, array: Any, name: str | None, access: str, keep: bool, info: dict[str, Any], site: _handle.Site
    ) -> Shared:
        """`share`. info: for `weft ls`."""
        self._check("share")
        if self._manual and not keep:
            raise errors.NotSupported(
                "share: this process has no engine thread (WEFT_ENGINE=manual), so no thread would answer its peers\n"
                "  rule: with manual progress a NIC serves peers only inside calls of its own process\n"
                "  try: run the owner without WEFT_ENGINE=manual; processes that only attach may keep it. With weft.fi "
                "a process can serve peers by reading its completion queue"
            )
        if isinstance(array, str) and name is not None and not isinstance(name, str):
            raise TypeError(
                f"share: the name {array!r:.60} comes before the array ({type_name(name)})\n"
                f"  rule: the array is the first argument, the name the second\n"
                f"  try: share(array, {array!r:.60})"
            )
        if name is not None:
            check_name(name, "share")
            if name.startswith(PREFIX):
                raise errors.InvalidArgument(f"share: a name must not start with {PREFIX!r}, the prefix of tickets")
        offer = check(array, access, "share")
        if keep:
            self._weft_only("share(keep=True)")
            from .keeping.client import share_kept

            return share_kept(self, offer, name, access, site)
        return Shared._begin(self, offer, name, access, site, info)

    @property
    def ucp_address(self) -> bytes:
        """The node's address, as bytes to send, for programs that use `weft.ucp`: worker.ep_create(address)."""
        self._check("ucp_address")
        self._weft_only("ucp_address")
        return _keys.of_endpoint(self._home.ep).pack()

    # ---- attaching --------------------------------------------------------------------------------------------------

    def attach(self, source: str | Ticket | Shared | RemoteArray, wait: float = 0.0) -> RemoteArray:
        """Attach an array of another process (or of this process).

        Args:
            source: The name of the array; or its ticket, also as text; or a `Shared` or `RemoteArray`.
            wait: Seconds to wait for a name that does not exist yet: its owner may be starting.

        Raises:
            NotFound: There is no such name; the message lists the existing names.
            ConnectionReset: The owner is gone.
            KeyRejected: The owner closed the share.
            NotPermitted: Another user has the name.
            Unreachable: The owner is on another host and does not listen, or there is no route.
            AccessDenied: The owner is on another host, and the secrets differ or are not set.
            TimedOut: The owner's host does not answer.
            BadState: The node is closed.
        """
        self._check("attach")
        return attach(RemoteArray, self, source, wait, "attach")

    async def aattach(self, source: str | Ticket | Shared | RemoteArray, wait: float = 0.0) -> RemoteArray:
        """`attach` without blocking the event loop. Arguments and errors as for `attach`."""
        import asyncio

        return await asyncio.get_running_loop().run_in_executor(None, self.attach, source, wait)

    @staticmethod
    def names() -> list[str]:
        """Names that can be attached on this host at the moment, sorted."""
        return names()

    # ---- state of the node -----------------------------------------------------------------------------------------

    @property
    def shared(self) -> list[Shared]:
        """The node's shares, oldest first."""
        with self._lock:
            return list(self._shared.values())

    def statistics(self) -> NodeStatistics:
        """A snapshot of the node's counts."""
        nic = _process.nic_if_open()
        counts: dict[str, int] = {} if nic is None else nic.statistics()
        cache = cache_statistics()
        with self._lock:
            shared = list(self._shared.values())
            return NodeStatistics(
                shared=len(shared),
                shared_bytes=sum(s.nbytes for s in shared),
                names=sum(1 for s in shared if s.name),
                attached=len(self._attached),
                lanes=len(self._lanes),
                loops=len(self._loops),
                peers=counts.get("peers", 0),
                direct=counts.get("direct_ops", 0),
                process_vm=counts.get("cma_ops", 0),
                engine=counts.get("framed_ops", 0),
                failed=counts.get("failed_ops", 0),
                bytes=counts.get("bytes", 0),
                cache_hits=cache.hits,
                cache_misses=cache.misses,
                cache_evictions=cache.evictions,
                cache_invalidations=cache.invalidations,
            )

    # ---- lanes ------------------------------------------------------------------------------------------------------

    def _peer(self, address: str) -> int:
        """The fi_addr of an owner: the same in every lane, because each has the same addresses in the same order."""
        self._check("attach")  # before the lock: at exit, waiting for the lock may never end
        of, mine = fabric_of(address), "" if self._real is None else self._real.name
        if of != mine:
            raise errors.InvalidArgument(
                f"attach: the array is shared over {of or 'Weft'}, and this node is over {mine or 'Weft'}\n"
                f"  try: weft.open({f'fabric={of!r}' if of else ''}) for a node that reaches it"
            )
        with self._lock:
            found = self._addresses.get(address)
            if found is None:
                # The home lane comes first, because it refuses a malformed address before the address gets a number.
                self._home.insert(address)
                found = self._addresses[address] = len(self._addresses)
                for lane in self._all_lanes():
                    lane.insert(address)
            return found

    def _new_lane(self, size: int) -> Lane:
        if self._real is None:
            return Lane(self, size=size)
        from .ofi_node import RealLane

        return RealLane(self, size=size)

    def _weft_only(self, call: str) -> None:
        """Refuse what only Weft's own NIC does."""
        if self._real is not None:
            raise errors.NotSupported(
                f"{call}: not over {self._real.name}: a real libfabric has no such call\n"
                "  try: a node over Weft's own links, weft.open(); both kinds may be open in one process"
            )

    def _all_lanes(self) -> list[Lane]:
        return [*self._lanes, *self._loops.values()]

    def _lane(self, call: str) -> Lane:
        """A lane for one thread, a new one if none is idle. Return it with `_idle.append`, or `_drop` it."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        while True:
            self._check(call)  # before the lock: at exit, waiting for the lock may never end
            with self._lock:
                if not self._closed:
                    lane = self._new_lane(64)
                    try:
                        self._enter(lane)
                    except BaseException:
                        lane.close()
                        raise
                    self._lanes.append(lane)
                    return lane

    def _loop_lane(self, loop: asyncio.AbstractEventLoop, call: str) -> LoopLane:
        """The lane of an event loop."""
        found = self._loops.get(loop)
        if found is not None:
            return found
        from .arrays.aio import LoopLane

        with self._lock:
            self._check(call)
            for gone in [known for known in self._loops if known.is_closed()]:
                self._loops.pop(gone).close()
            lane = LoopLane(self, loop)
            self._enter(lane)
            self._loops[loop] = lane
            return lane

    def _enter(self, lane: Lane) -> None:
        for address in self._addresses:
            lane.insert(address)

    def _drop(self, lane: Lane) -> None:
        """Close a lane after a call that failed: an operation may still be under way on the lane."""
        with self._lock:
            if lane in self._lanes:
                self._lanes.remove(lane)
        lane.close()

    def _set_aside(self, lane: Lane) -> None:
        """Keep a lane for the answer of a call that was given up. The first of many is closed."""
        self._aside.append(lane)
        if len(self._aside) > _ASIDE_MAX:
            self._drop(self._aside.pop(0))

    def _check(self, call: str) -> None:
        if self._made_in != _process.generation:
            raise errors.BadState(
                f"{call}: this node belongs to the process that forked this one\n  try: weft.open() in the child"
            ) from None
        if self._closed:
            if _exiting and threading.current_thread().daemon:
                # The interpreter is about to end this thread, so the thread can no longer handle an error.
                while True:
                    time.sleep(60)
            raise errors.BadState(
                f"{call}: the node is closed\n  try: weft.open() for a new one, and attach again"
            ) from None

    # ---- life -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all shares of this node, and its use of other processes' arrays. Closing again does nothing.

        Operations under way in other threads end with an error. Waits, for a bounded time, for peers that are copying
        from or to arrays shared here.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._idle.clear()
            lanes, self._lanes = self._lanes, []
            loops = list(self._loops.values())
            self._loops.clear()
            shared = list(self._shared.values())
        if self._made_in != _process.generation:
            return
        self._names.close()
        if self._real is not None:
            self._real.close()
        failed: errors.FabricError | None = None
        for group in list(self._groups):
            group.close(0)  # at once: the other members' calls end with an error
        for made in list(self._objects):
            made.close()  # wakes those who wait
        for share in shared:
            try:
                share.close()
            except errors.FabricError as reason:
                failed = reason
        for lane in [*loops, *lanes, self._home]:
            lane.close()
        try:
            self._domain.close()
            self._fabric.close()
        except errors.FabricError as reason:
            failed = failed or reason
        if failed is not None:
            raise failed

    def __enter__(self) -> Node:
        self._check("with")
        return self

    def __del__(self) -> None:
        # The last reference to an open node is gone, so its shares and remote arrays end. No warning at exit.
        if getattr(self, "_closed", True) or self._made_in != _process.generation:
            return
        try:
            if not sys.is_finalizing() and not _exiting:
                for share in self._shared.values():
                    share._warn_that_it_ends()
        finally:
            try:
                self.close()
            except errors.FabricError:
                pass

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a node belongs to its process and cannot be copied or pickled\n"
            "  try: send the result of share() or attach(); weft.open() makes a node in the other process"
        )

    def _rows(self) -> list[tuple[str, str]]:
        stats = self.statistics()
        return [
            ("address", self.address),
            ("shares", f"{stats.shared}, {human_bytes(stats.shared_bytes)}"),
            ("attached", str(stats.attached)),
            ("peers", str(stats.peers)),
            (
                "operations",
                f"{stats.direct} by load/store, {stats.process_vm} by process_vm, {stats.engine} by engine",
            ),
            ("failed", str(stats.failed)),
            ("moved", human_bytes(stats.bytes)),
        ]

    def __repr__(self) -> str:
        if self._closed:
            return f"<weft.Node {self.address}, closed>"
        if self._made_in != _process.generation:
            return f"<weft.Node {self.address}, of the parent process>"
        stats = self.statistics()
        named = [s.name for s in self.shared if s.name][:4]
        shown = f" ({', '.join(named)}{' ...' if stats.names > 4 else ''})" if named else ""
        return f"<weft.Node {self.address}, shares {stats.shared}{shown}, attached {stats.attached}>"

    def _repr_html_(self) -> str:
        if self._closed or self._made_in != _process.generation:
            import html  # imported here, because few programs show a node

            return html.escape(repr(self))
        return table_html("weft.Node", self._rows())

    def _after_fork_in_child(self) -> None:
        # A remote array of this node then finds no idle lane, and attaches again in the child.
        self._idle.clear()
        self._loops = {}
        self._lock = threading.RLock()


def _own_info() -> fi.Info:
    """The offer of Weft's general provider."""
    hints = fi.Info(
        caps=fi.RMA | fi.ATOMIC,
        domain_attr=fi.DomainAttr(mr_mode=_MR_MODES),
        addr_format=fi.ADDR_STR,  # names and tickets carry addresses as text
    )
    info = first(hints)
    # The provider never reuses a key, so a closed share is not mistaken for a newer one.
    info.domain_attr.mr_mode |= fi.MR_PROV_KEY
    # Each call waits for its own operations, so calls need no order between them.
    info.tx_attr.msg_order = 0
    return info


_default.made_by(Node)


def open(
    *,
    timeout: float | None = DEFAULT_TIMEOUT_S,
    listen: str | None = None,
    secret: str | bytes | None = None,
    fabric: str | None = None,
) -> Node:
    """Open a node: `with weft.open() as node: ...`. See `Node`.

    Args:
        timeout: Seconds that an operation may wait for the owner's NIC, then TimedOut; None: no limit.
        listen: "tcp://host:port": processes of other hosts can then attach arrays of this process by tickets. Host
            0.0.0.0 means every network of this host, port 0 a free port. As WEFT_LISTEN; once per process.
        secret: 16 bytes or more, the same on all hosts: processes of different hosts prove to each other that they know
            it. Required to listen, and to attach across hosts. As WEFT_SECRET; once per process.
        fabric: "ofi:tcp", "ofi:verbs", "ofi:efa", "ofi:cxi" ...: the node's arrays are reached through this provider of
            a real libfabric (docs/howto/ofi.md), by tickets and on this host by name; `listen` then selects the NIC,
            and the provider's own rules replace `secret`. None: Weft's own links.

    Raises:
        InvalidArgument: `timeout`, `listen`, `secret` or `fabric` is wrong.
        NoDevice: No libfabric is found.
        NoData: The provider has no endpoint for nodes, or WEFT_MR_MODE requires a registration mode that this layer
            does not support.
        AccessDenied: `listen` comes without a secret.
        AddressInUse: The port is taken.
        Busy: The process listens elsewhere, or has another secret.
    """
    if fabric is not None:
        if secret is not None:
            raise errors.InvalidArgument(f"open: {fabric} checks no secret of Weft's\n  try: without secret=")
        node = Node(timeout, fabric=fabric, listen=listen)
        node._site = _handle.here(2)
        return node
    if secret is not None:
        _process.use_secret(secret)
    if listen is not None:
        _process.listen(listen)
    node = Node(timeout)
    node._site = _handle.here(2)
    return node


# ---- the process ----------------------------------------------------------------------------------------------------

_nodes: weakref.WeakSet[Node] = weakref.WeakSet()
_registered_for: int | None = None
_exiting = False


def _at_exit_once() -> None:
    # Registered after the NIC's handler, so that it runs before the NIC's handler at exit.
    global _registered_for
    if _registered_for != os.getpid():
        _registered_for = os.getpid()
        atexit.register(_close_all, os.getpid())


def _close_all(pid: int) -> None:
    """At exit: close all nodes, without warnings."""
    global _exiting
    if pid != os.getpid():
        return
    _exiting = True
    for node in list(_nodes):
        try:
            node.close()
        except errors.FabricError:
            pass
    _default.forget()


def _after_fork_in_child() -> None:
    for node in list(_nodes):
        node._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
