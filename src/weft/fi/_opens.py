"""Opening the objects of a domain, whoever makes them: Weft's NIC or a real libfabric.

Source: fi_domain(3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import errors
from ..flags import AvType, CntrEvents, CqFormat, CqWaitCond, WaitObj
from . import _args, _handle
from .attrs import AvAttr, CqAttr, Info, dupinfo
from .cntr import Counter, PollingCounter
from .cq import CompletionQueue, PollingQueue, UnsignaledQueue

if TYPE_CHECKING:
    from .av import AddressVector
    from .endpoint import Endpoint
    from .mr import MemoryRegion
    from .policy import Extensions


class Opens:
    """Calls of `Domain`."""

    __slots__ = ()
    _endpoint_class: type[Any]
    _vector_class: type[Any]

    @property
    def _extensions(self: Any) -> Extensions:
        found: Extensions = self.policy
        return found

    def endpoint(self: Any, info: Info | None = None, context: Any = None) -> Endpoint:
        """Open an endpoint (fi_endpoint), disabled.

        Args:
            info: An Info from getinfo, copied; None: the Info of the domain.
            context: Any object, kept as `ep.context`.

        Raises:
            InvalidArgument: The type is not the domain's, or no offer has the capabilities, op_flags or sizes.
            BadState: The domain is closed.

        Source: fi_endpoint(3) fi_endpoint.
        """
        _handle.check(self, "endpoint")
        if info is not None:
            _handle.expect(info, Info, "endpoint", "info")
        opened: Endpoint = self._endpoint_class(self, dupinfo(self.info if info is None else info), context)
        return opened

    def av_open(
        self: Any,
        type: int = AvType.AV_UNSPEC,
        *,
        rx_ctx_bits: int = 0,
        count: int = 0,
        ep_per_node: int = 0,
        name: str | None = None,
        flags: int = 0,
        context: Any = None,
    ) -> AddressVector:
        """Open an address vector (fi_av_open).

        Args:
            type: `fi.AV_TABLE` or `fi.AV_MAP`; by default the domain's.
            count: A hint: how many addresses will be inserted.
            ep_per_node: A hint: how many endpoints a node has.
            rx_ctx_bits: 0: there are no scalable endpoints.
            name: None: vectors are not shared between processes.
            flags: `fi.EVENT`: insertions are reported to an event queue (deprecated).

        Raises:
            BadFlags: Unknown flags.
            NoSys: `name` is not None.
            InvalidArgument: There is no such `type`, or `rx_ctx_bits` is not 0.

        Source: fi_av(3) fi_av_open.
        """
        _handle.check(
            self, "av_open", type=type, rx_ctx_bits=rx_ctx_bits, count=count, ep_per_node=ep_per_node, flags=flags
        )
        _args.text("av_open", name=name)
        attr = AvAttr(type or self.attr.av_type, rx_ctx_bits, count, ep_per_node, name, int(flags))
        made: AddressVector = self._vector_class(self, attr, context)
        return made

    def cq_open(
        self: Any,
        *,
        size: int = 0,
        flags: int = 0,
        format: int = CqFormat.CQ_FORMAT_UNSPEC,
        wait_obj: int = WaitObj.WAIT_UNSPEC,
        signaling_vector: int = 0,
        wait_cond: int = CqWaitCond.CQ_COND_NONE,
        context: Any = None,
    ) -> CompletionQueue:
        """Open a completion queue (fi_cq_open).

        Args:
            size: Entries at least, up to 2**24; 0 for 1024.
            format: `fi.CQ_FORMAT_CONTEXT`, `_MSG`, `_DATA` (the default) or `_TAGGED`: the fields of an entry.
            wait_obj: `fi.WAIT_UNSPEC` for sread; `fi.WAIT_FD` for sread and a descriptor; `fi.WAIT_NONE` for neither.
                (In C the default is WAIT_NONE.)
            wait_cond: `fi.CQ_COND_THRESHOLD` gives the argument cond of sread its meaning.
            flags: `fi.AFFINITY`, or 0.
            signaling_vector: With `fi.AFFINITY` a core: a hint, without effect.

        Raises:
            BadFlags: Unknown flags.
            InvalidArgument: `format` or `wait_cond` is wrong, or `size` is negative or too large.
            NoSys: There is no such wait object.

        Source: fi_cq(3) fi_cq_open.
        """
        _handle.check(self, "cq_open")
        most = self.policy.queues.size_max
        _args.least("cq_open", _args.U64_MAX if most is None else most, size=size)
        _args.whole("cq_open", flags=flags, format=format, wait_cond=wait_cond)
        _args.integer("cq_open", signaling_vector=signaling_vector)
        cls = CompletionQueue if self.policy.queues.signals else UnsignaledQueue
        if wait_obj == WaitObj.WAIT_NONE:
            cls = PollingQueue
        return cls(self, CqAttr(size, int(flags), format, wait_obj, signaling_vector, wait_cond), context)

    def cntr_open(
        self: Any,
        *,
        events: int = CntrEvents.CNTR_EVENTS_COMP,
        wait_obj: int = WaitObj.WAIT_UNSPEC,
        flags: int = 0,
        context: Any = None,
    ) -> Counter:
        """Open a counter (fi_cntr_open).

        Args:
            events: `fi.CNTR_EVENTS_COMP` counts operations, `fi.CNTR_EVENTS_BYTES` bytes (a failure counts as one).
            wait_obj: As for cq_open.
            flags: 0.

        Raises:
            BadFlags: Unknown flags.
            InvalidArgument: There are no such `events`.
            NoSys: There is no such wait object.

        Source: fi_cntr(3) fi_cntr_open.
        """
        _handle.check(self, "cntr_open", events=events, flags=flags)
        flags = int(flags)
        cls = PollingCounter if wait_obj == WaitObj.WAIT_NONE else Counter
        return cls(self, events=events, wait_obj=wait_obj, flags=flags, context=context)

    def mr_regv(
        self: Any,
        iov: Sequence[Any],
        access: int,
        *,
        count: int | None = None,
        offset: int = 0,
        requested_key: int = 0,
        flags: int = 0,
        context: Any = None,
    ) -> MemoryRegion:
        """Register several buffers as one region (fi_mr_regv): offset 0 is the first byte of the first buffer.

        Args:
            iov: Buffers; at most domain_attr.mr_iov_limit.
            count: Use only the first `count`; None for all.

        Other arguments and errors as for `mr_reg`. Source: fi_mr(3) fi_mr_regv.
        """
        _args.maybe("mr_regv", count=count)
        buffers = _args.each("mr_regv", "iov", iov, "buffers")[:count]
        if count is not None and count > len(buffers):
            raise errors.InvalidArgument(f"mr_regv: count {count}, but iov has {len(buffers)} entries")
        made: MemoryRegion = self._register("mr_regv", buffers, access, offset, requested_key, flags, context)
        return made
