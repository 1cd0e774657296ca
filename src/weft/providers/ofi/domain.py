"""Domains of a real libfabric (fi_domain). Source: fi_domain(3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ... import _nic, _process, errors
from ...fi import _args, _handle
from ...fi._control import Controlled
from ...fi._of_info import DomainOfInfo
from ...fi._opens import Opens
from ...fi.atomic import AtomicAttr
from ...fi.attrs import Info, dupinfo
from ...fi.collective import CollectiveAttr
from ...fi.mr_attr import MrAttr, MrDmabuf
from ...flags import CollectiveOp, MrFlag, MrMode
from . import work
from ._common import later, stands_for
from .av import RealAddressVector
from .endpoint import RealEndpoint
from .mr import RealMemoryRegion
from .policy import RealDomainPolicy
from .quirks import Quirk, bits, has, longest_collective

if TYPE_CHECKING:
    import numpy as np

    from .fabric import RealFabric


@later("scalable endpoints and shared contexts are not supported", "scalable_ep", "stx_context", "srx_context")
class RealDomain(DomainOfInfo, Opens, Controlled, _handle.Life, _nic.OfiDomainCore):
    """A domain of the library (struct fid_domain). Made by `Fabric.domain`.

    Thread safety: any thread, under every threading model: the GIL serialises calls where the library does not.
    Source: fi_domain(3).
    """

    __class__ = stands_for("domain.Domain")

    _called = "domain"
    _commands = work.COMMANDS
    policy: Any
    _endpoint_class, _vector_class = RealEndpoint, RealAddressVector

    def __init__(self, fabric: RealFabric, info: Info, context: Any) -> None:
        self.fabric = fabric
        self.provider = fabric.provider
        self.info = dupinfo(info)
        self.context = context
        self._mr_mode = MrMode(self.info.domain_attr.mr_mode)
        self.policy = RealDomainPolicy(self.provider.name, self.info)
        self._made_in = _process.generation
        self._mapped: dict[int, int] = {}
        self._eq: Any = None
        self._work = work.Queued()
        name = self.provider.name
        self.plain_atomics_crash = has(name, Quirk.PLAIN_ATOMICS_CRASH)
        _nic.OfiDomainCore.__init__(
            self,
            fabric._core,
            fabric.native(self.info),
            bits(name),
            *longest_collective(name),
        )
        self._opened(3, fabric)

    @staticmethod
    def _alias(ep: RealEndpoint, flags: int, context: Any) -> Any:
        """`Endpoint.alias`; here, because an alias is an endpoint too, and an import there would make a circle."""
        from .ep_alias import alias_of

        return alias_of(ep, flags, context)

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
                raise errors.InvalidArgument(f"mr_reg: len is {len}, the buffer has {size} bytes")
            view = memoryview(buf).cast("B")[:len] if not isinstance(buf, tuple) else (address, len)
            return self._register("mr_reg", [view], access, offset, requested_key, flags, context)
        return self._register("mr_reg", [buf], access, offset, requested_key, flags, context)

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
                raise errors.InvalidArgument(f"{op}: base_mr {base!r} is no region of {self!r}")
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
                f"{op}: {name} of libfabric has no DMA-bufs: it would take this one for memory at another address"
            )
        if not has(name, Quirk.COPIES_BY_PROCESSOR):
            return []
        if not piece.base_addr:
            raise errors.InvalidArgument(
                f"{op}: dmabuf.base_addr is None, and {name} copies with the processor\n"
                "  try: map the DMA-buf, and give the address at which it starts"
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
        _handle.check(self, op, access=access, offset=offset, requested_key=key, flags=flags)
        limit = self.info.domain_attr.mr_iov_limit
        by_dmabuf = attr is not None and int(flags) & MrFlag.MR_DMABUF
        if not by_dmabuf and not 0 < len(buffers) <= max(limit, 1):  # the library looks only at the first of them
            raise errors.InvalidArgument(
                f"{op}: {len(buffers)} buffers\n  rule: 1 to mr_iov_limit, {limit}, of {self.provider.name}\n"
                "  try: a region for each buffer"
            )
        return RealMemoryRegion(self, list(buffers), int(access), int(offset), int(key), int(flags), context, attr)

    def map_raw(self, base_addr: int, raw_key: bytes, key_size: int | None = None, flags: int = 0) -> int:
        """Turn a peer's raw key into a key for data transfers (fi_mr_map_raw); give it back with `unmap_key`."""
        _handle.check(self, "map_raw", base_addr=base_addr, flags=flags)
        _args.maybe("map_raw", key_size=key_size)
        key: int = self.map_raw_core(base_addr, _args.octets("map_raw", "raw_key", raw_key)[:key_size], int(flags))
        self._mapped[key] = self._mapped.get(key, 0) + 1
        return key

    def unmap_key(self, key: int) -> None:
        """Give a mapped key back (fi_mr_unmap_key)."""
        _handle.check(self, "unmap_key", key=key)
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
        _handle.check(eq, "domain.bind", flags=flags)
        self.bind_eq(eq, int(flags))
        self._eq = eq
        _handle.adopt(self, eq)

    def query_atomic(self, datatype: int, op: int, flags: int = 0) -> AtomicAttr:
        """Whether an atomic operation is supported, and on how many elements a call (fi_query_atomic)."""
        _handle.check(self, "query_atomic", datatype=datatype, op=op, flags=flags)
        return AtomicAttr(*self.query_atomic_core(_args.c_int(datatype), _args.c_int(op), int(flags)))

    def query_collective(self, coll: int, attr: CollectiveAttr | None = None, flags: int = 0) -> CollectiveAttr:
        """Whether the library has a collective, and its limits (fi_query_collective); arguments as `fi.Domain`'s.

        Raises InvalidArgument (no attr), NotSupported, and the library's refusal. Source: fi_collective(3)."""
        op = "query_collective"
        _handle.check(self, op, coll=coll, flags=flags)
        if attr is None:
            if coll != CollectiveOp.BARRIER:
                raise errors.InvalidArgument(
                    f"{op}: attr is needed; only a barrier does without\n"
                    "  try: fi.CollectiveAttr(op=fi.SUM, datatype=fi.DOUBLE)"
                )
            attr = CollectiveAttr()
        _handle.expect(attr, CollectiveAttr, op, "attr")
        _args.whole(op, op=attr.op, datatype=attr.datatype)
        kind, op_number, datatype = map(_args.c_int, (coll, attr.op, attr.datatype))
        count, size, attr.max_members, attr.mode = self.query_collective_core(kind, op_number, datatype, int(flags))
        attr.datatype_attr = AtomicAttr(count, size)
        return attr

    def regions(self) -> list[Any]:
        """The open regions of the domain."""
        return [one for one in _handle.live(self._children) if type(one) is RealMemoryRegion]

    def _release(self) -> None:
        self.close_core()

    def _parents(self) -> tuple[Any, ...]:
        return (self.fabric,) if self._eq is None else (self.fabric, self._eq)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(_handle.live(self._children))} objects"
        return f"<Domain {self.provider.name} {self.name} {state}>"
