"""Regions of a real libfabric (fi_mr). Source: fi_mr(3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ... import _nic, errors
from ...fi import _args, _handle
from ...fi._control import Controlled
from ...fi.cntr import Counter
from ...fi.mr_attr import MrAttr
from ...flags import Flag, HmemIface, MrFlag, MrMode
from ._common import stands_for

if TYPE_CHECKING:
    from .domain import RealDomain

_LOCAL_WRITES = int(Flag.READ | Flag.RECV | Flag.REMOTE_WRITE)  # rights under which memory is written


class RealMemoryRegion(Controlled, _handle.LifeInDomain, _nic.OfiMemoryRegionCore):
    """A region of the library (struct fid_mr). Made by `Domain.mr_reg`.

    Attributes:
        key: The remote key: `fi.KEY_NOTAVAIL` before enable() where the provider makes keys late.
        desc: The local descriptor, for the argument desc of transfers: the region itself.
        address: Virtual address of the memory.
        length: Bytes.
        access: The access rights, as registered.

    Under `fi.MR_ENDPOINT` bind(ep) and enable() come first. A slice, `mr[8:16]`, is a buffer of these bytes.
    Source: fi_mr(3).
    """

    __class__ = stands_for("mr.MemoryRegion")

    _called = "mr"
    domain: Any
    address: int = 0
    length: int = 0
    access: int = 0
    readonly: bool = False
    iface: HmemIface = HmemIface.HMEM_SYSTEM
    device: int = 0

    def __init__(
        self,
        domain: RealDomain,
        buffers: list[Any],
        access: int,
        offset: int,
        key: int,
        flags: int,
        context: Any,
        attr: MrAttr | None,
    ) -> None:
        self.domain = domain
        self.access = access
        self.context = context
        self._bound: list[Any] = []
        described = [_nic.describe_buffer(one) for one in buffers]
        self.address = described[0][0] if described else 0
        self.length = sum(one[1] for one in described)
        self.readonly = any(one[2] for one in described)
        self._buffers = buffers
        self._enabled = not domain.mr_mode & MrMode.MR_ENDPOINT
        self._base: Any = None if attr is None else attr.base_mr
        more = {} if attr is None else self._described(attr, flags)
        self.iface = HmemIface(more.get("iface", described[0][3] if described else 0))
        self.device = more.get("device", 0)
        _nic.OfiMemoryRegionCore.__init__(
            self, domain, buffers, access, offset, key, flags, bool(access & _LOCAL_WRITES), **more
        )
        self._opened(4, *self._parents())

    def _described(self, attr: MrAttr, flags: int) -> dict[str, Any]:
        """The properties that only attributes have, for the extension."""
        op = "mr_regattr"
        _args.whole(op, access=attr.access, offset=attr.offset, requested_key=attr.requested_key)
        _args.whole(op, iface=attr.iface, device=attr.device, auth_key_size=attr.auth_key_size)
        more: dict[str, Any] = {"by_attr": True, "device": int(attr.device)}
        if attr.iface:
            more["iface"] = int(attr.iface)
        if attr.auth_key_size:
            more["auth_key"] = bytes(_args.octets(op, "auth_key", attr.auth_key))[: int(attr.auth_key_size)]
        if attr.base_mr is not None:
            more["base_mr"] = attr.base_mr
        if flags & MrFlag.MR_DMABUF and attr.dmabuf is not None:
            piece = attr.dmabuf
            more["dmabuf"] = (int(piece.fd), int(piece.offset), int(piece.len), int(piece.base_addr or 0))
            if piece.base_addr:
                self.address = int(piece.base_addr) + int(piece.offset)
            self.length = int(piece.len)
        return more

    def _parents(self) -> tuple[Any, ...]:
        return (self.domain, *self._bound) if self._base is None else (self.domain, self._base, *self._bound)

    @property
    def state(self) -> str:
        """disabled (under `fi.MR_ENDPOINT`, before enable()), enabled or closed."""
        return "closed" if self._closed else "enabled" if self._enabled else "disabled"

    @property
    def desc(self) -> Any:
        """The local descriptor (fi_mr_desc): pass it as desc."""
        return self

    @property
    def base_mr(self) -> Any:
        """The region that this one is a part of, which cannot be closed before; None for others."""
        return self._base

    def __getitem__(self, index: slice) -> Any:
        if not isinstance(index, slice):
            raise TypeError(f"a region takes a slice of bytes, mr[0:8], not {index!r}")
        _handle.check(self, "mr[...]")
        if len(self._buffers) != 1:
            raise errors.InvalidArgument("mr[...]: the region has several buffers: slice these")
        start, stop, step = index.indices(self.length)
        if step != 1:
            raise errors.InvalidArgument("mr[...]: the step of a slice of a region is 1")
        buffer = self._buffers[0]
        if isinstance(buffer, tuple):
            return (self.address + start, max(stop - start, 0))
        return memoryview(buffer).cast("B")[start:stop]

    def bind(self, fid: Any, flags: int = 0) -> None:
        """Bind the region to an endpoint or a counter (fi_mr_bind), before enable(). Raises the library's refusal."""
        from .endpoint import RealEndpoint

        _handle.check(self, "mr.bind")
        counter = isinstance(fid, Counter) and type(fid.domain) is type(self.domain)
        if type(fid) is not RealEndpoint and not counter:
            raise errors.InvalidArgument(f"mr.bind: a region takes a Counter or an Endpoint of its domain, not {fid!r}")
        _handle.check(fid, "mr.bind", flags=flags)
        if fid.domain is not self.domain:
            raise errors.WrongDomain(f"mr.bind: {fid!r} belongs to {fid.domain!r}, the region to {self.domain!r}")
        if counter:
            self.bind_cntr(fid, int(flags))
        else:
            self.bind_ep(fid, int(flags))
        self._bound.append(fid)
        _handle.adopt(self, fid)

    def enable(self) -> None:
        """Make the region accessible (fi_mr_enable). Raises the library's refusal."""
        _handle.check(self, "mr.enable")
        self.enable_core()
        self._enabled = True

    def raw_attr(self, key_size: int | None = None, flags: int = 0) -> tuple[int, bytes]:
        """Base address and raw key (fi_mr_raw_attr). Raises TooSmall for a key_size that is too small."""
        _handle.check(self, "mr.raw_attr", flags=flags)
        _args.maybe("mr.raw_attr", key_size=key_size)
        base, raw = self.raw_attr_core(int(flags))
        if key_size is not None and key_size < len(raw):
            raise errors.TooSmall(f"mr.raw_attr: a raw key takes {len(raw)} B, more than key_size {key_size}")
        return base, raw

    def refresh(self, iov: Sequence[Any] | None = None, count: int | None = None, flags: int = 0) -> None:
        """Tell the provider that pages of the region have changed (fi_mr_refresh). Raises the library's refusal."""
        _handle.check(self, "mr.refresh", flags=flags)
        _args.maybe("mr.refresh", count=count)
        buffers = self._buffers if iov is None else _args.each("mr.refresh", "iov", iov, "buffers")
        self.refresh_core(list(buffers)[:count], int(flags))

    def _release(self) -> None:
        self.close_core()
        self._buffers = []

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.length} B at {self.address:#x}"
        return f"<MemoryRegion {self.domain.provider.name} {state}>"
