"""Groups: processes that share arrays and combine values: barrier, broadcast, reduce, allreduce."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from ... import errors, fi
from ...fi import _handle
from ..arrays._default import default_node
from ..arrays.checks import Array, alias, type_name
from ..names.ticket import decode_dtype, encode_dtype
from ..names.waiting import deadline_in, seconds, whole
from ..node import Node
from .bootstrap import SEATS_MAX, Bootstrap, new_table
from .group_transport import CHUNK, HEADER, GroupTransport
from .plan import Plan
from .reducing import combine, operation

T = TypeVar("T")

_PLANS_MAX = 64
_OFFLOAD_MAX = 32  # bytes of a reduction that the NICs make
_OFFLOADED = {
    "sum": fi.SUM, "prod": fi.PROD, "min": fi.MIN, "max": fi.MAX, "and": fi.BAND, "or": fi.BOR, "xor": fi.BXOR
}  # fmt: skip


class Group:
    """Processes that make collective calls together.

        with weft.Group("training", size=4) as group:        # in each of four processes
            mean = group.allreduce(gradient) / group.size

    Args:
        name: The group's name on this host; or, for members of several hosts, the ticket of a table that any process
            shares: node.share(weft.Group.table(size)).ticket.
        size: Number of members, 1 to 4096.
        rank: This member's number, below size; None: a free number. A launcher's rank is int(os.environ["RANK"]).
        node: The node to use; None: the default node of the process.
        wait: Seconds that the other members may take to come.
        timeout: Seconds that a call may wait for the other members, then TimedOut; None: no limit.

    Every member makes the same calls in the same order. Small values (up to 32 bytes of int64 or float64, or of bits)
    are combined by the NICs; larger ones move by reads of each other's memory, and each member combines a part.
    After the death of a member, or a call that failed in the middle, calls raise an error, and the group is of no
    further use. Arguments that are refused do no harm.

    Raises:
        TimedOut: A member did not come in time; the message names the missing ranks.
        AddressInUse: The rank or the name is taken.
        InvalidArgument: `size` or `rank` is wrong, or another member has another size.
        ConnectionRefused: Joining failed.

    Thread safety: one call at a time. The awaitable calls (abarrier, aallreduce ...) run in a thread of the group.
    """

    def __init__(
        self,
        name: Any,
        size: int,
        rank: int | None = None,
        *,
        node: Node | None = None,
        wait: float = 30.0,
        timeout: float | None = None,
    ) -> None:
        self.size = whole(size, "Group: size", 1, SEATS_MAX)
        if rank is not None:
            rank = whole(rank, "Group: rank", 0, self.size - 1)
        deadline = time.monotonic() + seconds(wait, "Group: wait")
        if timeout is not None:
            seconds(timeout, "Group: timeout")
        self.timeout = timeout
        self.name = name if isinstance(name, str) else ""
        self.rank = -1
        self._broken = ""
        self._thread: ThreadPoolExecutor | None = None
        self._site = _handle.here(2)
        self._offloads: dict[tuple[str, str, int], tuple[int, int] | None] = {}
        self._plans: dict[Any, Plan] = {}
        self._node = default_node() if node is None else node
        self._node._check("Group")
        self._node._weft_only("Group")
        self._transport: GroupTransport | None = GroupTransport(self._node)
        bootstrap = Bootstrap(self._node, name, self.size, deadline)
        try:
            self.rank = bootstrap.take_seat(rank)
            bootstrap.sit(self.rank, self._transport.record())
            self._transport.join(bootstrap.records(), deadline)
        except BaseException:
            transport, self._transport = self._transport, None
            transport.close()
            raise
        finally:
            bootstrap.leave()
        self._node._groups.add(self)
        # The NICs need these 64 bytes to stay where they are while a collective is under way.
        self._source, self._result = np.zeros(64, np.uint8), np.zeros(64, np.uint8)

    @staticmethod
    def table(size: int) -> Array:
        """The table in which `size` members meet: share it, and give its ticket to the members as the group's name."""
        return new_table(whole(size, "Group: size", 1, SEATS_MAX))

    # ---- calls ------------------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        """Return when every member has called barrier()."""
        self._call("barrier", self._barrier)

    def broadcast(self, value: Any = None, root: int = 0, out: Any = None) -> Any:
        """The root's value, in every member.

        Args:
            value: An array or a number; read in the root only.
            root: The member that has the value.
            out: Where to put it: a writable C-contiguous array of the same shape and dtype; None: a new array.

        Returns:
            A NumPy array (a scalar for a number), or `out`.
        """
        root = whole(root, "Group: broadcast: root", 0, self.size - 1)
        return self._call("broadcast", lambda: self._broadcast(value, root, out))

    def allreduce(self, value: Any, op: str = "sum", out: Any = None, *, reproducible: bool = False) -> Any:
        """Combine the values of all members, element by element; every member gets the result.

        Args:
            value: An array or a number; of the same shape and dtype in every member.
            op: "sum", "prod", "min", "max", "and", "or", "xor".
            out: Where to put the result: a writable C-contiguous array of the same shape and dtype; None: a new array.
            reproducible: Sums of floating-point numbers have the same bits whichever member has which value.

        Returns:
            A NumPy array (a scalar for a number), or `out`.

        Without `reproducible`, a sum's last bits may depend on which member has which value.

        Raises:
            TypeError: The dtype has no such `op`.
            InvalidArgument: There is no such `op`, or the members' calls differ.
        """
        return self._call("allreduce", lambda: self._reduce("allreduce", value, op, None, out, reproducible))

    def reduce(self, value: Any, op: str = "sum", root: int = 0, out: Any = None, *, reproducible: bool = False) -> Any:
        """As `allreduce`, but only the root gets the result; the others get None.

        Args:
            root: The member that gets the result; `out` is used there only.
        """
        root = whole(root, "Group: reduce: root", 0, self.size - 1)
        return self._call("reduce", lambda: self._reduce("reduce", value, op, root, out, reproducible))

    # ---- awaitable calls --------------------------------------------------------------------------------------------

    async def abarrier(self) -> None:
        """`barrier`, awaitable."""
        await self._await(self.barrier)

    async def abroadcast(self, value: Any = None, root: int = 0, out: Any = None) -> Any:
        """`broadcast`, awaitable."""
        return await self._await(lambda: self.broadcast(value, root, out))

    async def aallreduce(self, value: Any, op: str = "sum", out: Any = None, *, reproducible: bool = False) -> Any:
        """`allreduce`, awaitable. `value` must not change until the call is done."""
        return await self._await(lambda: self.allreduce(value, op, out, reproducible=reproducible))

    async def areduce(
        self, value: Any, op: str = "sum", root: int = 0, out: Any = None, *, reproducible: bool = False
    ) -> Any:
        """`reduce`, awaitable. `value` must not change until the call is done."""
        return await self._await(lambda: self.reduce(value, op, root, out, reproducible=reproducible))

    async def _await(self, call: Callable[[], T]) -> T:
        import asyncio

        if self._thread is None:
            # One thread: the calls of a group have an order.
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="weft-group")
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    # ---- how --------------------------------------------------------------------------------------------------------

    def _call(self, call: str, run: Callable[[], T]) -> T:
        """Run a call; an error after its beginning breaks the group, because the members are out of step."""
        if self._transport is None:
            raise errors.BadState(f"{call}: the group is closed\n  try: weft.Group(...) for a new one")
        if self._broken:
            raise errors.BadState(
                f"{call}: the group is broken: an earlier call failed: {self._broken}\n"
                "  rule: the members of a group make the same calls in the same order\n  try: a new group"
            )
        transport = self._transport
        transport.begun = False
        try:
            return run()
        except errors.Available:
            entry = transport.cq.readerr()
            reason = transport.cq.strerror(entry.prov_errno, entry.err_data)
            self._broken = reason
            raise errors.make(entry.err, f"{call}: {reason}") from None
        except BaseException as error:
            if transport.begun:
                self._broken = str(error).partition("\n")[0] or type(error).__name__
            raise

    def _deadline(self) -> float | None:
        return deadline_in(self.timeout, "Group: timeout")

    def _barrier(self) -> None:
        transport = self._transport
        assert transport is not None
        transport.barrier(self._deadline())

    def _offload(self, op: str, dtype: np.dtype[Any], n: int) -> tuple[int, int] | None:
        """(op, datatype) if the NICs combine n elements; else None."""
        key = op, dtype.str, n
        if key in self._offloads:
            return self._offloads[key]
        found = None
        # The NICs' minimum of a number and NaN is the number; NumPy's is NaN, for arrays of every length.
        exact = dtype.kind in "iu" or (dtype.kind == "f" and op in ("sum", "prod"))
        if exact and dtype.isnative and 0 < n * dtype.itemsize <= _OFFLOAD_MAX:
            try:
                attr = fi.CollectiveAttr(op=_OFFLOADED[op], datatype=fi.datatype_of(dtype))
                most = self._node._domain.query_collective(fi.ALLREDUCE, attr).datatype_attr.count
                if n <= most:
                    found = int(attr.op), int(attr.datatype)
            except (errors.FabricError, TypeError):
                pass  # the NICs have no such operation: combine in memory
        self._offloads[key] = found
        return found

    def _reduce(self, call: str, value: Any, op: str, root: int | None, out: Any, reproducible: bool) -> Any:
        source, scalar = _value(value, call)
        function = operation(op, source.dtype, call)
        binned = bool(reproducible) and op == "sum" and source.dtype.kind == "f"
        if reproducible and op == "sum" and source.dtype.kind == "c":
            raise TypeError(f"{call}: reproducible sums are of real numbers\n  try: the real and the imaginary part")
        mine = root is None or root == self.rank
        target = _target(out, source, call) if mine else None
        offload = None if binned else self._offload(op, source.dtype, source.size)
        if offload is not None:
            self._reduce_in_nics(source, target, offload)
        else:
            plan = self._plan(call, source, op, root, binned)
            self._reduce_in_windows(plan, source, function, target, binned)
        if not mine:
            return None
        if out is not None:
            return out
        return target[()] if scalar and target is not None else target

    def _reduce_in_nics(self, source: Array, target: Array | None, offload: tuple[int, int]) -> None:
        transport = self._transport
        assert transport is not None
        op, datatype = offload
        n = source.nbytes
        self._source[:n] = source.reshape(-1).view(np.uint8)
        post = transport.ep.allreduce
        transport.run(
            lambda: post(self._source, source.size, None, self._result, None, transport.mc.addr, datatype, op),
            self._deadline(),
        )
        if target is not None:
            target.reshape(-1).view(np.uint8)[:] = self._result[:n]

    def _plan(self, call: str, source: Array, op: str, root: int | None, binned: bool) -> Plan:
        key = call, source.dtype, source.shape, op, root, binned
        found = self._plans.get(key)
        if found is None:
            assert self._transport is not None
            what = f"{call} {op} {source.dtype.str} {source.shape} {root} {int(binned)}"
            wants = root is None or root == self.rank
            found = Plan(self._transport, what, source, self.rank, self.size, wants, self._deadline())
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            self._plans[key] = found
        return found

    def _reduce_in_windows(
        self, plan: Plan, source: Array, function: np.ufunc, target: Array | None, binned: bool
    ) -> None:
        transport = self._transport
        assert transport is not None
        flat, dtype = source.reshape(-1), source.dtype
        for step in plan.steps:
            part, mine = flat[step.part], step.mine
            result = None if target is None else target.reshape(-1)[step.part]
            raw = part.view(np.uint8)
            transport.announce(plan.what)
            half = transport.half()
            for piece in step.given:
                half[piece] = raw[piece]
            transport.barrier(self._deadline())
            room = transport.room(plan.room)
            transport.read(room, step.values, self._deadline())
            self._same(plan.what.decode(), room[: plan.heads].tobytes())
            rows: Sequence[Array] = [one[transport.phase & 1][step.place].view(dtype) for one in plan.mapped or ()]
            if plan.mapped is None:
                values = room[plan.heads : plan.heads + (self.size - 1) * step.takes].view(dtype)
                rows = list(values.reshape(self.size - 1, step.takes // dtype.itemsize))
            transport.phase += 1
            if plan.whole:
                if result is not None and part.size:
                    combine(part, rows, self.rank, function, result, reproducible=binned)
                continue
            half = transport.half()
            if CHUNK % dtype.itemsize == 0:
                combine(part[mine], rows, self.rank, function, half.view(dtype)[mine], reproducible=binned)
            else:
                reduced = np.empty_like(part[mine])
                combine(part[mine], rows, self.rank, function, reduced, reproducible=binned)
                half[step.place] = reduced.view(np.uint8)
            # Collect the parts of all members.
            transport.barrier(self._deadline())
            if result is not None:
                gathered = result.view(np.uint8)
                gathered[step.place] = half[step.place]
                transport.read(gathered, step.results, self._deadline())
            transport.phase += 1

    def _same(self, what: str, heads: bytes) -> None:
        """See that the other members, whose headers these are, do the same."""
        transport = self._transport
        assert transport is not None
        if transport.all_do(heads):
            return
        for i in range(self.size - 1):
            theirs = transport.said(heads[i * HEADER : (i + 1) * HEADER])
            if theirs != what:
                raise self._differs(i + (i >= self.rank), theirs, what)

    @staticmethod
    def _differs(rank: int, theirs: str, what: str) -> errors.InvalidArgument:
        return errors.InvalidArgument(
            f"{what.split(' ')[0]}: rank {rank} does something else: {theirs or 'another call'!r}, this member "
            f"{what!r}\n  rule: all members make the same calls in the same order, with the same op, shape, "
            "dtype and root"
        )

    def _broadcast(self, value: Any, root: int, out: Any) -> Any:
        transport = self._transport
        assert transport is not None
        scalar = False
        source: Array | None = None
        what = f"broadcast {root}"
        if root == self.rank:
            source, scalar = _value(value, "broadcast")
            # The dtype comes last: a structured one has spaces.
            what += f" {int(scalar)} {','.join(map(str, source.shape))} {encode_dtype(source.dtype)}"
        target: Array | None = None
        first = 0
        while True:
            part = None if source is None else source.reshape(-1).view(np.uint8)[first : first + CHUNK]
            told = self._meet(what, part, root)
            if target is None:
                if source is not None:
                    target = source if out is None else _target(out, source, "broadcast")
                    if out is not None:
                        target[...] = source
                else:
                    is_scalar, shape, dtype = told.split(" ", 4)[2:]
                    scalar = is_scalar == "1"
                    like = np.empty(tuple(int(n) for n in shape.split(",") if n), decode_dtype(dtype))
                    target = _target(out, like, "broadcast")
            raw = target.reshape(-1).view(np.uint8)[first : first + CHUNK]
            if source is None and raw.size:
                from_root = np.array([root]), np.array([0]), np.array([raw.size]), np.array([0])
                transport.read(raw, transport.reads(*from_root), self._deadline())
            transport.phase += 1
            first += CHUNK
            if first >= target.nbytes:
                break
        if out is not None:
            return out
        if scalar:
            return target[()]
        return target.copy() if source is not None else target

    def _meet(self, what: str, data: Array | None, root: int) -> str:
        """A broadcast's phase up to its read: write this member's half, wait for all, and see that the root does the
        same. Returns the root's header, which decides what the others do.
        """
        transport = self._transport
        assert transport is not None
        transport.announce(what.encode())
        if data is not None and data.size:
            transport.half()[: data.size] = data
        transport.barrier(self._deadline())
        if root == self.rank:
            return what
        head = np.empty(HEADER, np.uint8)
        one = np.array([root]), np.array([-HEADER]), np.array([HEADER]), np.array([0])
        transport.read(head, transport.reads(*one), self._deadline())
        told = transport.said(head.tobytes())
        if told.split(" ")[:2] != what.split(" ")[:2]:
            raise self._differs(root, told, what)
        return told

    # ---- life -------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._transport is None

    def close(self, wait: float = 10.0) -> None:
        """Leave the group, when all members have come to their close(): others may still read this member's memory.

        Args:
            wait: Seconds to wait for the other members; after that, calls of the others fail.

        Closing again does nothing.
        """
        if self._transport is None:
            return
        if self._thread is not None:
            self._thread.shutdown()
        if wait > 0:
            try:
                self._transport.barrier(deadline_in(wait, "close: wait"))
            except errors.FabricError:
                pass  # the others have died, or do not come
        transport, self._transport = self._transport, None
        transport.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(10.0 if kind is None else 0.0)

    def __repr__(self) -> str:
        state = "closed" if self._transport is None else f"broken: {self._broken}" if self._broken else "open"
        return f"<weft.Group {self.name!r}, rank {self.rank} of {self.size}, {state}>"


def _value(value: Any, call: str) -> tuple[Array, bool]:
    """A member's value as a C-contiguous array, and whether it is a scalar."""
    if value is None:
        raise TypeError(f"{call}: a value is needed, an array or a number")
    if isinstance(value, (bool, int, float, complex, np.generic)):
        found = np.asarray(value)
        scalar = True
    elif isinstance(value, np.ndarray):
        found, scalar = np.ascontiguousarray(value).reshape(value.shape), False
    elif isinstance(value, (list, tuple)):
        found, scalar = np.asarray(value), False
    else:
        try:
            found, scalar = alias(value, call), False
        except errors.InvalidArgument:
            found, scalar = np.ascontiguousarray(value), False
    if found.dtype.hasobject:
        raise TypeError(f"{call}: {type_name(value)} has elements that are Python objects")
    return found, scalar


def _target(out: Any, like: Array, call: str) -> Array:
    if out is None:
        return np.empty(like.shape, like.dtype)
    target = alias(out, f"{call}: out", writable=True)
    if target.dtype != like.dtype:
        raise TypeError(f"{call}: out is {target.dtype}, the values are {like.dtype}")
    if target.shape != like.shape:
        raise ValueError(f"{call}: out has shape {target.shape}, the values have {like.shape}")
    return target
