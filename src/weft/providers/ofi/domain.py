"""Domains of a real libfabric (fi_domain). Source: fi_domain(3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ... import _nic, _process, errors
from ...fi import _args, _handle
from ...fi._of_info import DomainOfInfo
from ...fi.atomic import AtomicAttr
from ...fi.attrs import Info, dupinfo
from ...fi.collective import CollectiveAttr
from ...fi.mr_attr import MrAttr, MrDmabuf
from ...fi.policy_rules import VectorRules
from ...fi.rules import Refusals
from ...flags import AvType, CntrEvents, CollectiveOp, CqFormat, CqWaitCond, MrFlag, MrMode, Progress, WaitObj
from ._common import later, stands_for, unless_used
from .av import RealAddressVector
from .mr import RealMemoryRegion
from .queues import RealCompletionQueue, RealCounter
from .quirks import Quirk, bits, has, longest_collective
from .work import Queued, control

if TYPE_CHECKING:
    import numpy as np

    from .endpoint import RealEndpoint
    from .fabric import RealFabric

__all__ = ["RealDomain"]


def _class() -> type:
    from ...fi.domain import Domain

    return Domain


class _Policy:
    """What objects above libfabric ask a domain's policy."""

    def __init__(self, info: Info) -> None:
        self.progress = Progress.PROGRESS_AUTO  # the descriptors of the library's queues tell of work to do
        self.data_progress = info.domain_attr.data_progress
        self.refusals = Refusals()
        self.vectors = VectorRules()


@later("scalable endpoints and shared contexts are not supported", "scalable_ep", "stx_context", "srx_context")
@later("Weft passes no calls of a provider's own through", "open_ops", "set_ops", "get_val", "set_val")
class RealDomain(DomainOfInfo, _handle.Life, _nic.OfiDomainCore):
    """A domain of the library (struct fid_domain). Made by `Fabric.domain`.

    Thread safety: any thread, under every threading model: the GIL serialises calls where the library does not.
    Source: fi_domain(3).
    """

    __class__ = stands_for(_class)

    _called = "domain"

    def __init__(self, fabric: RealFabric, info: Info, context: Any) -> None:
        self.fabric = fabric
        self.provider = fabric.provider
        self.info = dupinfo(info)
        self.context = context
        self.policy = _Policy(self.info)
        self._made_in = _process.generation
        self._children: _handle.Children = {}
        self._mapped: dict[int, int] = {}
        self._eq: Any = None
        self._work = Queued()
        name = self.provider.name
        self.plain_atomics_crash = has(name, Quirk.PLAIN_ATOMICS_CRASH)
        _nic.OfiDomainCore.__init__(
            self,
            fabric._core,
            fabric.native(self.info),
            bits(name),
            *longest_collective(name),
        )
        self._site = _handle.here(3)
        _handle.adopt(self, fabric)

    @property
    def mr_mode(self) -> MrMode:
        """The registration modes in force; fi_mr(3)."""
        return MrMode(self.info.domain_attr.mr_mode)

    @property
    def virt_addr(self) -> bool:
        """True if peers address remote memory by virtual address, False if by offset."""
        return bool(self.mr_mode & (MrMode.MR_VIRT_ADDR | MrMode.MR_BASIC))

    def endpoint(self, info: Info | None = None, context: Any = None) -> Any:
        """Open an endpoint (fi_endpoint), disabled. info: copied; None: the domain's. Raises the library's refusal."""
        from .endpoint import RealEndpoint

        _handle.check(self, "endpoint")
        if info is not None:
            _handle.expect(info, Info, "endpoint", "info")
        return RealEndpoint(self, dupinfo(self.info if info is None else info), context)

    @staticmethod
    def _alias(ep: RealEndpoint, flags: int, context: Any) -> Any:
        """`Endpoint.alias`; here, because an alias is an endpoint too, and an import there would make a circle."""
        from .ep_alias import alias_of

        return alias_of(ep, flags, context)

    def av_open(
        self,
        type: int = AvType.AV_UNSPEC,
        *,
        rx_ctx_bits: int = 0,
        count: int = 0,
        ep_per_node: int = 0,
        name: str | None = None,
        flags: int = 0,
        context: Any = None,
    ) -> Any:
        """Open an address vector (fi_av_open). Raises the library's refusal. Source: fi_av(3) fi_av_open."""
        _handle.check(self, "av_open")
        _args.whole("av_open", type=type, rx_ctx_bits=rx_ctx_bits, count=count, ep_per_node=ep_per_node, flags=flags)
        _args.text("av_open", name=name)
        return RealAddressVector(
            self, int(type or self.attr.av_type), rx_ctx_bits, count, ep_per_node, name, int(flags), context
        )

    def cq_open(
        self,
        *,
        size: int = 0,
        flags: int = 0,
        format: int = CqFormat.CQ_FORMAT_UNSPEC,
        wait_obj: int = WaitObj.WAIT_UNSPEC,
        signaling_vector: int = 0,
        wait_cond: int = CqWaitCond.CQ_COND_NONE,
        context: Any = None,
    ) -> Any:
        """Open a completion queue (fi_cq_open). format: by default `fi.CQ_FORMAT_DATA`. Raises the library's refusal.

        A provider that has no wait object of its choice (WAIT_UNSPEC) gets WAIT_NONE; sread then looks again and again.
        Source: fi_cq(3) fi_cq_open.
        """
        _handle.check(self, "cq_open")
        _args.least("cq_open", _args.U64_MAX, size=size)
        _args.whole("cq_open", flags=flags, format=format, wait_cond=wait_cond, wait_obj=wait_obj)
        _args.integer("cq_open", signaling_vector=signaling_vector)
        return RealCompletionQueue(
            self, size, int(flags), int(format), int(wait_obj), int(signaling_vector), int(wait_cond), context
        )

    def cntr_open(
        self,
        *,
        events: int = CntrEvents.CNTR_EVENTS_COMP,
        wait_obj: int = WaitObj.WAIT_UNSPEC,
        flags: int = 0,
        context: Any = None,
    ) -> Any:
        """Open a counter (fi_cntr_open). Raises the library's refusal. Source: fi_cntr(3) fi_cntr_open."""
        _handle.check(self, "cntr_open")
        _args.whole("cntr_open", events=events, flags=flags, wait_obj=wait_obj)
        return RealCounter(self, int(events), int(wait_obj), int(flags), context)

    # ---- memory ------------------------------------------------------------------------------------------------------

    def mr_reg(
        self,
        buf: Any,
        access: int,
        offset: int = 0,
        requested_key: int = 0,
        flags: int = 0,
        context: Any = None,
        *,
        len: int | None = None,
    ) -> Any:
        """Register memory (fi_mr_reg); arguments as `fi.Domain.mr_reg`. The region keeps the memory alive.

        Under `fi.MR_ENDPOINT`: bind(ep) and enable() come before peers may access it. Raises the library's refusal
        (NoKey, KeyRejected for a requested_key, Fault ...). Source: fi_mr(3) fi_mr_reg.
        """
        if len is not None:
            _args.whole("mr_reg", len=len)
            address, size, *_ = _nic.describe_buffer(buf)
            if len > size:
                raise errors.InvalidArgument(f"mr_reg: len is {len}, the buffer has {size} bytes", op="mr_reg")
            view = memoryview(buf).cast("B")[:len] if not isinstance(buf, tuple) else (address, len)
            return self._register("mr_reg", [view], access, offset, requested_key, flags, context)
        return self._register("mr_reg", [buf], access, offset, requested_key, flags, context)

    def mr_regv(
        self,
        iov: Sequence[Any],
        access: int,
        *,
        count: int | None = None,
        offset: int = 0,
        requested_key: int = 0,
        flags: int = 0,
        context: Any = None,
    ) -> Any:
        """Register several buffers as one region (fi_mr_regv). Raises the library's refusal."""
        _args.maybe("mr_regv", count=count)
        buffers = _args.each("mr_regv", "iov", iov, "buffers")[:count]
        return self._register("mr_regv", buffers, access, offset, requested_key, flags, context)

    def mr_regattr(self, attr: MrAttr, flags: int = 0) -> Any:
        """Register the memory that an MrAttr describes (fi_mr_regattr): buffers, a DMA-buf (`fi.MR_DMABUF`, libfabric
        1.20 and later), or a part of another region (base_mr). Raises the library's refusal."""
        op = "mr_regattr"
        _handle.check(self, op)
        _handle.expect(attr, MrAttr, op, "attr")
        _args.maybe(op, iov_count=attr.iov_count)
        _args.whole(op, flags=flags)
        base: Any = attr.base_mr
        if base is not None:
            if type(base) is not RealMemoryRegion or base.domain is not self:
                raise errors.InvalidArgument(f"{op}: base_mr {base!r} is no region of {self!r}", op=op)
            _handle.check(base, op)
        if int(flags) & MrFlag.MR_DMABUF:
            buffers: Sequence[Any] = self._mapped_part(op, attr.dmabuf)
        else:
            buffers = _args.each(op, "mr_iov", attr.mr_iov, "buffers")[: attr.iov_count]
        return self._register(op, buffers, attr.access, attr.offset, attr.requested_key, flags, attr.context, attr=attr)

    def _mapped_part(self, op: str, piece: Any) -> list[tuple[int, int]]:
        """The memory of a DMA-buf, checked, where the provider copies with the processor; none where a NIC copies."""
        _handle.expect(piece, MrDmabuf, op, "attr.dmabuf")
        _args.integer(op, fd=piece.fd)
        _args.whole(op, offset=piece.offset, len=piece.len, base_addr=piece.base_addr or 0)
        name = self.provider.name
        if has(name, Quirk.NO_DMABUFS):
            raise errors.NotSupported(
                f"{op}: {name} of libfabric has no DMA-bufs: it would take this one for memory at another address",
                op=op,
            )
        if not has(name, Quirk.COPIES_BY_PROCESSOR):
            return []
        if not piece.base_addr:
            raise errors.InvalidArgument(
                f"{op}: dmabuf.base_addr is None, and {name} copies with the processor\n"
                "  try: map the DMA-buf, and give the address at which it starts",
                op=op,
            )
        return [(int(piece.base_addr) + int(piece.offset), int(piece.len))]

    def _register(
        self,
        op: str,
        buffers: Sequence[Any],
        access: int,
        offset: int,
        key: int,
        flags: int,
        context: Any,
        attr: MrAttr | None = None,
    ) -> RealMemoryRegion:
        _handle.check(self, op)
        _args.whole(op, access=access, offset=offset, requested_key=key, flags=flags)
        limit = self.info.domain_attr.mr_iov_limit
        by_dmabuf = attr is not None and int(flags) & MrFlag.MR_DMABUF
        if not by_dmabuf and not 0 < len(buffers) <= max(limit, 1):  # the library looks only at the first of them
            raise errors.InvalidArgument(
                f"{op}: {len(buffers)} buffers\n  rule: 1 to mr_iov_limit, {limit}, of {self.provider.name}\n"
                "  try: a region for each buffer",
                op=op,
            )
        return RealMemoryRegion(self, list(buffers), int(access), int(offset), int(key), int(flags), context, attr)

    def map_raw(self, base_addr: int, raw_key: bytes, key_size: int | None = None, flags: int = 0) -> int:
        """Turn a peer's raw key into a key for data transfers (fi_mr_map_raw); give it back with `unmap_key`."""
        _handle.check(self, "map_raw")
        _args.whole("map_raw", base_addr=base_addr, flags=flags)
        _args.maybe("map_raw", key_size=key_size)
        key: int = self.map_raw_core(base_addr, _args.octets("map_raw", "raw_key", raw_key)[:key_size], int(flags))
        self._mapped[key] = self._mapped.get(key, 0) + 1
        return key

    def unmap_key(self, key: int) -> None:
        """Give a mapped key back (fi_mr_unmap_key)."""
        _handle.check(self, "unmap_key")
        _args.whole("unmap_key", key=key)
        self.unmap_key_core(key)
        left = self._mapped.pop(key, 1) - 1
        if left:
            self._mapped[key] = left

    def alloc(self, shape: int | tuple[int, ...], dtype: Any = float) -> np.ndarray[Any, Any]:
        """A NumPy array (numpy.empty): a real NIC needs no memory of Weft's. Raises BadState."""
        import numpy

        _handle.check(self, "alloc")
        return numpy.empty(shape, dtype)

    # ---- other calls -------------------------------------------------------------------------------------------------

    def bind(self, eq: Any, flags: int = 0) -> None:
        """Report control events of the domain to an event queue (fi_domain_bind). Raises the library's refusal."""
        from .eq import RealEventQueue

        _handle.check(self, "domain.bind")
        if type(eq) is not RealEventQueue:
            raise errors.InvalidArgument(f"domain.bind: a domain takes an event queue of its fabric, not {eq!r}")
        _handle.check(eq, "domain.bind")
        _args.whole("domain.bind", flags=flags)
        self.bind_eq(eq, int(flags))
        self._eq = eq
        _handle.adopt(self, eq)

    def query_atomic(self, datatype: int, op: int, flags: int = 0) -> AtomicAttr:
        """Whether an atomic operation is supported, and on how many elements a call (fi_query_atomic)."""
        _handle.check(self, "query_atomic")
        _args.whole("query_atomic", datatype=datatype, op=op, flags=flags)
        return AtomicAttr(*self.query_atomic_core(_args.c_int(datatype), _args.c_int(op), int(flags)))

    def query_collective(self, coll: int, attr: CollectiveAttr | None = None, flags: int = 0) -> CollectiveAttr:
        """Whether the library has a collective, and its limits (fi_query_collective); arguments as `fi.Domain`'s.

        Raises InvalidArgument (no attr), NotSupported, and the library's refusal. Source: fi_collective(3)."""
        op = "query_collective"
        _handle.check(self, op)
        _args.whole(op, coll=coll, flags=flags)
        if attr is None:
            if coll != CollectiveOp.BARRIER:
                raise errors.InvalidArgument(
                    f"{op}: attr is needed; only a barrier does without\n"
                    "  try: fi.CollectiveAttr(op=fi.SUM, datatype=fi.DOUBLE)",
                    op=op,
                )
            attr = CollectiveAttr()
        _handle.expect(attr, CollectiveAttr, op, "attr")
        _args.whole(op, op=attr.op, datatype=attr.datatype)
        kind, op_number, datatype = map(_args.c_int, (coll, attr.op, attr.datatype))
        count, size, attr.max_members, attr.mode = self.query_collective_core(kind, op_number, datatype, int(flags))
        attr.datatype_attr = AtomicAttr(count, size)
        return attr

    def control(self, command: int, arg: Any = None) -> None:
        """QUEUE_WORK, CANCEL_WORK and FLUSH_WORK (fi_control), arguments as `fi.Domain.control`.

        The buffers of deferred work are free when its completion is read, the work cancelled or its endpoint closed;
        some providers report it to counters alone. Raises NotSupported for other commands, and the library's refusal.
        Source: fi_trigger(3).
        """
        _handle.check(self, "domain.control")
        control(self, command, arg)

    def regions(self) -> list[Any]:
        """The open regions of the domain."""
        return [one for one in _handle.live(self._children) if type(one) is RealMemoryRegion]

    def close(self) -> None:
        """Close the domain (fi_close). Raises Busy, which names them, while objects of the domain are open."""
        _handle.close(self, self.close_core, self._children, self._parents())

    def _parents(self) -> tuple[Any, ...]:
        return (self.fabric,) if self._eq is None else (self.fabric, self._eq)

    def __del__(self, finalize: Any = _handle.finalize) -> None:
        finalize(
            self, unless_used(self, self.close_core) if self._site else None, self._parents() if self._site else ()
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(_handle.live(self._children))} objects"
        return f"<Domain {self.provider.name} {self.name} {state}>"
