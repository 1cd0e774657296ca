"""Domains (fi_domain): a NIC opened for use, which makes all other objects. Source: fi_domain(3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import _nic, _process, errors
from ..flags import (
    Control,
    Flag,
    MrMode,
    RegisterMode,
)
from ..memory import hmem
from . import _args, _handle, _offered
from ._control import Controlled
from ._later import DomainLater
from ._of_info import DomainOfInfo
from ._opens import Opens
from .atomic import AtomicAttr, family_of, query
from .attrs import Info, dupinfo
from .auth_key import keys_in_force, keys_of_vector, take_key
from .av import AddressVector
from .collective import CollectiveAttr, query_collective
from .endpoint import Endpoint
from .eq import EventQueue
from .mr import MemoryRegion
from .mr_attr import MrAttr
from .mr_device import of_device
from .mr_register import cut, quick_rules, register, register_attr, register_described
from .raw_key import parse_raw_key
from .rules import Rule

if TYPE_CHECKING:
    import numpy as np

    from .fabric import Fabric
    from .policy import Provider


def _work() -> Any:
    """The module of deferred work, imported at the first use: few domains have any."""
    from . import trigger

    return trigger


class Domain(DomainOfInfo, Opens, Controlled, DomainLater, _handle.Life, _nic.DomainCore):
    """A NIC opened for use (struct fid_domain). Made by `Fabric.domain`.

    Thread safety: any thread. Source: fi_domain(3).
    """

    _called = "domain"
    _endpoint_class, _vector_class = Endpoint, AddressVector
    _commands = {  # noqa: RUF012
        int(Control.MAP_RAW_MR): lambda domain, arg: domain.map_raw(*_mapped(arg)),
        int(Control.UNMAP_KEY): lambda domain, arg: domain.unmap_key(arg),
        int(Control.QUEUE_WORK): lambda domain, work: _work().queue(domain, work),
        int(Control.CANCEL_WORK): lambda domain, work: _work().cancel(domain, work),
        int(Control.FLUSH_WORK): lambda domain, arg: _work().flush(domain, arg),
    }

    def __init__(self, fabric: Fabric, info: Info, context: Any) -> None:
        self.fabric = fabric
        self.provider: Provider = fabric.provider
        self._refuse = fabric.provider.refusals.refuse
        self.info = dupinfo(info)
        self.context = context
        self._made_in = _process.generation
        self._mapped: dict[int, int] = {}  # key returned by map_raw -> the peer's key
        self._eq: EventQueue | None = None
        self._mr_eq: EventQueue | None = None
        self._bound: list[EventQueue] = []
        attr = self.info.domain_attr
        self._offer = _offered.domain(self.provider, self.info)
        mode = MrMode(attr.mr_mode)
        self._mr_mode = mode
        self._mode_bits = int(mode)
        attr.mr_key_size = self.provider.key_size(mode)
        self._av_auth_key = keys_of_vector(self.info)
        if self._av_auth_key:
            if not 1 <= attr.max_ep_auth_key <= self.provider.max_ep_auth_key:
                attr.max_ep_auth_key = self.provider.max_ep_auth_key
        elif keys_in_force(self.info):
            take_key("domain", self.provider, attr)
        self.policy = self.provider.domain(fabric.attr, self.info, self._offer)
        self._refuse = self.policy.refusals.refuse
        self._hmem = bool(self.info.caps & Flag.HMEM)
        try:
            if self._hmem:
                hmem.load(self.policy.nic)
            config = self.policy.nic_config()
            config.regions, takes = quick_rules(self)
            super().__init__(self.policy.nic, config, takes)
        except BaseException:
            self.policy.close()
            raise
        self.policy.opened(self)
        self._opened(3, fabric)

    # ---- memory ------------------------------------------------------------------------------------------------------

    # mr_reg is a method of the extension: a plain registration runs no Python. For others the extension calls _mr_reg.
    def _mr_reg(
        self,
        buf: Any,
        access: int,
        offset: int = 0,
        requested_key: int = 0,
        flags: int = 0,
        context: Any = None,
        *,
        len: int | None = None,
    ) -> MemoryRegion:
        keep = None
        if len is not None:
            _handle.check(self, "mr_reg")
            buf, keep = cut(self, "mr_reg", buf, len, access)
        return self._register("mr_reg", (buf,), access, offset, requested_key, flags, context, keep)

    if TYPE_CHECKING:
        mr_reg = _mr_reg

    def _register(
        self,
        op: str,
        buffers: Sequence[Any],
        access: int,
        offset: int,
        key: int,
        flags: int,
        context: Any,
        keep: Any = None,
    ) -> MemoryRegion:
        if not of_device(flags):
            return register(self, op, buffers, access, offset, key, flags, context, None, keep)
        described = MrAttr(buffers, access=access, offset=offset, requested_key=key, context=context)
        mr = register_described(self, op, described, flags)
        if keep is not None:
            mr._keep = keep
        return mr

    def mr_regattr(self, attr: MrAttr, flags: int = 0) -> MemoryRegion:
        """Register the memory that an MrAttr describes (fi_mr_regattr); also makes sub-MRs.

        Raises as `mr_reg`; InvalidArgument for a sub-MR outside of its base, a bad authorization key, device memory
        that does not match its description; NoSys for a device interface that this machine does not have.
        Source: fi_mr(3) fi_mr_regattr.
        """
        return register_attr(self, attr, flags)

    def map_raw(self, base_addr: int, raw_key: bytes, key_size: int | None = None, flags: int = 0) -> int:
        """Turn a peer's raw key into a key for data transfers (fi_mr_map_raw).

        Args:
            base_addr: First value of the peer's `MemoryRegion.raw_attr()`.
            raw_key: Second value of the peer's `raw_attr()`.
            key_size: Bytes of raw_key that are used; None for all.
            flags: 0.

        Returns:
            A key for transfers; under `fi.MR_RAW` transfers accept only such keys.

        Give the key back with `unmap_key` before the domain is closed.

        Raises:
            InvalidArgument: `raw_key` is not a raw key.
            BadFlags: Unknown flags.

        Source: fi_mr(3) fi_mr_map_raw.
        """
        _handle.check(self, "map_raw")
        self._has(Control.MAP_RAW_MR)
        _args.whole("map_raw", base_addr=base_addr, flags=flags)
        flags = int(flags)
        _args.maybe("map_raw", key_size=key_size)
        if flags:
            raise self._refuse(Rule.MR_MAP_RAW_FLAGS, f"map_raw: flags {flags:#x}; they have to be 0")
        key = parse_raw_key(self, _args.octets("map_raw", "raw_key", raw_key)[:key_size])
        if not self._mr_mode & MrMode.MR_RAW:  # keys are used as they are
            self._mapped[key] = self._mapped.get(key, 0) + 1
            return key
        handle = self.map_key(key)
        self._mapped[handle] = 1
        return handle

    def unmap_key(self, key: int) -> None:
        """Give a mapped key back (fi_mr_unmap_key).

        Raises InvalidArgument for a key that is not mapped. Source: fi_mr(3) fi_mr_unmap_key.
        """
        _handle.check(self, "unmap_key")
        self._has(Control.UNMAP_KEY)
        _args.whole("unmap_key", key=key)
        count = self._mapped.get(key, 0)
        if not count:
            raise self._refuse(
                Rule.MR_UNMAP_UNKNOWN, f"unmap_key: {key:#x} was not mapped by map_raw, or is unmapped already"
            )
        if self._mr_mode & MrMode.MR_RAW:
            self.unmap_handle(key)
        if count == 1:
            del self._mapped[key]
        else:
            self._mapped[key] = count - 1

    def alloc(self, shape: int | tuple[int, ...], dtype: Any = float) -> np.ndarray[Any, Any]:
        """A NumPy array in memory that peers on this host can map, for the fastest transfers.

        Args:
            shape: As for numpy.empty.
            dtype: As for numpy.empty; no object dtypes.

        The memory lives as long as the array or a view of the array, also after the domain is closed.

        Raises:
            NoMemory: More than the machine has.
            TypeError: `dtype` has Python objects, or is no dtype.
            BadState: The domain is closed.
        """
        _handle.check(self, "alloc")
        return _process.array(shape, dtype, call="alloc", nic=self.policy.nic)

    # ---- other calls -------------------------------------------------------------------------------------------------

    def bind(self, eq: EventQueue, flags: int = 0) -> None:
        """Report control events of the domain to an event queue (fi_domain_bind).

        Args:
            flags: 0; or `fi.REG_MR`, which makes registrations asynchronous (deprecated): the region is made at once,
                and is complete (has a key, can be reached by peers) when its MR_COMPLETE event is read.

        Raises:
            BadFlags: Unknown flags.
            InvalidArgument: A queue is bound already.

        Source: fi_domain(3) fi_domain_bind, fi_mr(3).
        """
        _handle.check(self, "domain.bind")
        if not isinstance(eq, EventQueue):
            raise errors.InvalidArgument(f"domain.bind: a domain takes an EventQueue, not {eq!r}")
        _handle.check(eq, "domain.bind")
        flags = _args.number("domain.bind", flags=flags)
        if flags not in (0, RegisterMode.REG_MR):
            raise self._refuse(Rule.DOMAIN_BIND_FLAGS, f"domain.bind: flags {flags:#x}; 0 or REG_MR")
        if self._eq is not None:
            raise self._refuse(Rule.DOMAIN_BIND_TAKEN, f"domain.bind: the domain reports to {self._eq!r} already")
        self._eq = eq
        if flags:
            self._mr_eq = eq
            self.set_mr_quick(False)
        self._bound.append(eq)
        _handle.adopt(self, eq)

    def query_atomic(self, datatype: int, op: int, flags: int = 0) -> AtomicAttr:
        """Whether an atomic operation is supported, and on how many elements a call (fi_query_atomic).

        Args:
            datatype: `fi.UINT64` ...
            op: `fi.SUM` ...
            flags: 0 for `atomic`, `fi.FETCH_ATOMIC`, `fi.COMPARE_ATOMIC`.

        Raises:
            NotSupported: There is no such operation on the datatype; the message names both.
            BadFlags: Unknown flags.

        Source: fi_atomic(3) fi_query_atomic.
        """
        _handle.check(self, "query_atomic", datatype=datatype, op=op, flags=flags)
        flags = int(flags)
        policy = self.policy
        family = family_of(flags & ~policy.query_flags, policy.refusals)
        return query(
            datatype,
            op,
            family,
            policy.refusals,
            lambda kind, what, form: policy.atomic_limit(kind, what, form, flags & policy.query_flags),
        )

    def query_collective(self, coll: int, attr: CollectiveAttr | None = None, flags: int = 0) -> CollectiveAttr:
        """Whether a collective is supported, and its limits (fi_query_collective).

        Args:
            coll: `fi.BARRIER`, `fi.BROADCAST`, `fi.ALLREDUCE` ...
            attr: The operator and the datatype; None, for a barrier only. The call writes its answer to attr.
            flags: 0.

        Returns:
            `attr`, or a new CollectiveAttr for None.

        Raises:
            NotSupported: There is no such operation on the datatype; the message names both.
            InvalidArgument: `attr` is None, and `coll` is not a barrier.

        Source: fi_collective(3) "Query Collective Attributes".
        """
        op = "query_collective"
        _handle.check(self, op, coll=coll, flags=flags)
        if attr is not None:
            _handle.expect(attr, CollectiveAttr, op, "attr")
            _args.whole(op, op=attr.op, datatype=attr.datatype)
        return query_collective(self.policy, int(coll), attr, int(flags))

    # ---- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the domain (fi_close). Raises Busy, which names them, while objects of the domain are open or raw keys
        mapped."""
        if not self._closed and self._mapped and self._made_in == _process.generation:
            keys = ", ".join(hex(k) for k in list(self._mapped)[:5])
            raise self._refuse(
                Rule.DOMAIN_KEYS_MAPPED,
                f"close of {self!r}: {len(self._mapped)} raw keys are still mapped ({keys})\n  try: unmap_key first",
                op="close",
            )
        if not self._closed and self._made_in == _process.generation and self.regions():
            raise _handle.busy(self, self._users())
        super().close()

    def _parents(self) -> tuple[Any, ...]:
        return (self.fabric, *self._bound)

    def _release(self) -> None:
        _nic.DomainCore.close(self)
        self.policy.close()

    def _users(self) -> list[Any]:
        """The open objects of the domain."""
        return [*_handle.live(self._children), *self.regions()]

    def __repr__(self) -> str:
        if self._closed:
            return f"<Domain {self.name} closed>"
        kinds: dict[str, int] = {}
        for child in self._users():
            kinds[type(child).__name__] = kinds.get(type(child).__name__, 0) + 1
        held = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
        about = f" ({self.policy.text})" if self.policy.text else ""
        return f"<Domain {self.name}{about} {held or 'empty'}>"


def _mapped(arg: Any) -> tuple[Any, ...]:
    """The argument of FI_MAP_RAW_MR: (base_addr, raw_key[, key_size[, flags]])."""
    if not isinstance(arg, tuple) or not 2 <= len(arg) <= 4:
        raise errors.InvalidArgument(f"domain.control: MAP_RAW_MR takes (base_addr, raw_key), not {arg!r}")
    return arg
