"""Memory regions (fi_mr).

`Domain.mr_reg`, `mr_regv` and `mr_regattr` make them. The rules that depend on the domain's mr_mode are decided here,
once for all providers; keys, bounds and access are the NIC's.

Source: fi_mr(3).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from .. import _nic, _process, errors
from ..flags import ADDR_UNSPEC, KEY_NOTAVAIL, AvFlag, EqEvent, Errno, Flag, HmemIface, MrFlag, MrMode
from ..memory import hmem
from . import _args, _handle
from ._ranges import within
from .auth_key import auth_key_bytes
from .av import AddressVector
from .cntr import Counter
from .endpoint import Endpoint
from .eq import EqEntry
from .raw_key import make_raw_key

if TYPE_CHECKING:
    from .domain import Domain

__all__ = ["MemoryRegion", "MrAttr", "MrAuthKey", "MrDmabuf"]

ACCESS = Flag.SEND | Flag.RECV | Flag.READ | Flag.WRITE | Flag.REMOTE_READ | Flag.REMOTE_WRITE | Flag.COLLECTIVE
_FLAGS = Flag.RMA_EVENT | Flag.RMA_PMEM | MrFlag.MR_SINGLE_USE
_DEVICE_FLAGS = MrFlag.MR_DMABUF | MrFlag.HMEM_DEVICE_ONLY | MrFlag.HMEM_HOST_ALLOC


@dataclass(slots=True)
class MrDmabuf:
    """A piece of a DMA-buf (struct fi_mr_dmabuf), for `Domain.mr_regattr` with `fi.MR_DMABUF`.

    fd          descriptor of the DMA-buf; the region keeps one of its own.
    offset      where in the DMA-buf the region starts, bytes.
    len         bytes of the region, from offset on.
    base_addr   page-aligned virtual address at which the DMA-buf's allocation starts; None where there is none.

    Source: fi_mr(3) "dmabuf".
    """

    fd: int = -1
    offset: int = 0
    len: int = 0
    base_addr: int | None = None


@dataclass(slots=True)
class MrAuthKey:
    """Authorization keys out of an address vector (struct fi_mr_auth_key), for MrAttr.auth_key.

    av         the vector that holds them: all of them admit, unless
    src_addr   restricts the region to one endpoint of that vector; or, with the flag `fi.AUTH_KEY`, to one key: what
               `AddressVector.insert_auth_key` returned. Needs a domain opened with `fi.DIRECTED_RECV`.

    Source: fi_mr(3) "av", "addr".
    """

    SIZE: ClassVar[int] = 16  # sizeof(struct fi_mr_auth_key)

    av: AddressVector
    src_addr: int = ADDR_UNSPEC


@dataclass(slots=True)
class MrAttr:
    """What to register (struct fi_mr_attr), for `Domain.mr_regattr`.

    mr_iov          buffers that together are the region.
    iov_count       how many of them are used; None for all.
    access          `fi.REMOTE_READ | fi.REMOTE_WRITE ...`.
    offset          reserved, 0.
    requested_key   the key to use; ignored under `fi.MR_PROV_KEY`.
    context         comes back in the event of an asynchronous registration; otherwise ignored.
    auth_key_size, auth_key   the bytes of an authorization key, and the key: only peers that use it reach the region.
                    Size 0: the domain's key, whatever auth_key is. On a domain opened with `fi.AV_AUTH_KEY` a
                    MrAuthKey, and MrAuthKey.SIZE.
    iface, device   whose memory it is: `fi.HMEM_CUDA` and the device's number ... Ignored without `fi.HMEM`. Under
                    `fi.MR_HMEM` device memory has to say it; otherwise HMEM_SYSTEM means "find out".
    hmem_data       reserved, None.
    page_size       a hint, ignored; a page size of this system, or 0.
    base_mr         makes a sub-MR of that region.
    sub_mr_cnt      a hint, ignored: how many sub-MRs are to come.
    dmabuf          instead of mr_iov, under `fi.MR_DMABUF`.

    Source: fi_mr(3) "Memory region attributes".
    """

    mr_iov: Sequence[Any] = ()
    iov_count: int | None = None
    access: int = 0
    offset: int = 0
    requested_key: int = 0
    context: Any = None
    auth_key_size: int = 0
    auth_key: Any = None
    iface: int = HmemIface.HMEM_SYSTEM
    device: int = 0
    hmem_data: Any = None
    page_size: int = 0
    base_mr: MemoryRegion | None = None
    sub_mr_cnt: int = 0
    dmabuf: MrDmabuf | None = None


class MemoryRegion(_nic.MemoryRegionCore):
    """Memory that peers may reach with a key (struct fid_mr).

    key       remote key (fi_mr_key); `fi.KEY_NOTAVAIL` on a domain opened with `fi.MR_RAW`.
    desc      local descriptor (fi_mr_desc), for the desc argument of data transfers.
    length    bytes.
    address   virtual address of the first byte, under every mode. What peers count from is another matter: 0, or under
              `fi.MR_VIRT_ADDR` this address; the first value of `raw_attr()` is it.
    access    as registered.
    state     "disabled", "enabled" or "closed".
    mr[a:b]   a registered slice: the local buffer that is quickest to use.

    The region holds what exports its memory until it is closed. Thread safety: any thread. Source: fi_mr(3).
    """

    # Registration is a hot path: this class has no __init__ of its own, and the extension keeps `_closed`, `_site` and
    # `domain` (set after construction, which enters the region in the domain's list), so that a plain region has no
    # __dict__. `_special` tells `close()` that there is more to it than the extension knows.
    if TYPE_CHECKING:
        domain: Domain
        _closed: bool
        _site: _handle.Site | None
        _special: bool
    _keep: Any = None
    _by_owner = False  # only this process's engine can copy it
    _base_addr: int | None = None  # of a DMA-buf: the virtual address it stands for
    _spans: tuple[tuple[int, int], ...] = ()
    _base: MemoryRegion | None = None
    _associated: tuple[Any, ...] = ()
    _subs: _handle.Children | None = None
    _fixed = False  # fi_mr_enable was called: no further bindings
    _wants_event = False  # registered with FI_RMA_EVENT
    _pending = False  # asynchronous registration: its event was not read yet
    _auth_av: Any = None  # the address vector of its authorization keys
    _page_size = 0
    _unnotified = False  # under FI_MR_MMU_NOTIFY: fi_mr_refresh has not been called yet

    @property
    def _made_in(self) -> int:
        return self.domain._made_in

    @property
    def _children(self) -> _handle.Children:
        subs = self._subs
        if subs is None:
            subs = self._subs = {}
            self._special = True
        return subs

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed

    @property
    def base_mr(self) -> MemoryRegion | None:
        """The region that this sub-MR was made of, or None."""
        return self._base

    def bind(self, fid: Counter | Endpoint, flags: int = 0) -> None:
        """Associate the region with a counter or an endpoint (fi_mr_bind).

        fid     a Counter, which then counts the accesses that flags select; or an Endpoint: under `fi.MR_ENDPOINT` one
                through which peers may reach the region, otherwise an association and no more, so that a program
                written for `fi.MR_ENDPOINT` runs unchanged.
        flags   for a counter `fi.REMOTE_WRITE`: each RMA write and each atomic that may modify the region, made through
                an endpoint opened with `fi.RMA_EVENT`. All atomics count but ATOMIC_READ, also a comparison that failed
                and so changed nothing. For an endpoint 0.

        A region may be bound to several objects: each of its counters counts every access, each of its endpoints
        serves it. Binding the same object again changes nothing. A binding ends with its endpoint; endpoints that
        are opened later do not serve the region.

        Raises BadFlags; BadState (the region was enabled with `enable()` already; a counter under `fi.MR_RMA_EVENT`
        on a region registered without `fi.RMA_EVENT`); WrongDomain; InvalidArgument (some other object).
        Source: fi_mr(3) fi_mr_bind.
        """
        _handle.check(self, "mr.bind")
        if not isinstance(fid, (Counter, Endpoint)):
            raise errors.InvalidArgument(f"mr.bind: a region takes a Counter or an Endpoint, not {fid!r}")
        _handle.check(fid, "mr.bind")
        _args.whole("mr.bind", flags=flags)
        if fid.domain is not self.domain:
            raise errors.WrongDomain(f"mr.bind: {fid!r} belongs to {fid.domain!r}, the region to {self.domain!r}")
        if self._fixed:
            raise errors.BadState(
                f"mr.bind: {self!r} is enabled\n"
                "  rule: bindings come before fi_mr_enable, fi_mr(3)\n"
                "  try: bind, then enable()"
            )
        if isinstance(fid, Counter):
            self._bind_cntr(fid, flags)
        else:
            self._bind_ep(fid, flags)
        self._associated += (fid,)
        self._special = True

    def _bind_cntr(self, cntr: Counter, flags: int) -> None:
        if not self.domain.provider.region_events:
            raise errors.NoSys(f"mr.bind: {self.domain.provider.name} cannot report accesses to a region")
        if flags != Flag.REMOTE_WRITE:
            raise errors.BadFlags(f"mr.bind: flags {Flag(flags)!s} for a counter; REMOTE_WRITE is what can be counted")
        if self.domain.mr_mode & MrMode.MR_RMA_EVENT and not self._wants_event:
            raise errors.BadState(
                "mr.bind: the domain requires MR_RMA_EVENT and this region was registered without RMA_EVENT\n"
                "  try: mr_reg(..., flags=fi.RMA_EVENT), bind, enable()"
            )
        self.bind_cntr(cntr, int(flags))

    def _bind_ep(self, ep: Endpoint, flags: int) -> None:
        if flags:
            raise errors.BadFlags(f"mr.bind: flags {Flag(flags)!s} for an endpoint; they have to be 0")
        if self.domain.mr_mode & MrMode.MR_ENDPOINT:
            if self._auth_av is not None and ep._av is not self._auth_av:
                raise errors.InvalidArgument(
                    f"mr.bind: the region's authorization keys are of {self._auth_av!r}, the endpoint uses {ep._av!r}\n"
                    "  rule: under MR_ENDPOINT both are the same vector, fi_mr(3) av"
                )
            self.bind_ep(ep)

    def enable(self) -> None:
        """Make a region that was created disabled usable (fi_mr_enable). No bindings after it.

        Regions are created disabled under `fi.MR_ENDPOINT`, and under `fi.MR_RMA_EVENT` with the flag `fi.RMA_EVENT`.
        Enabling an enabled region changes nothing.

        Raises BadState under `fi.MR_ENDPOINT` before the region is bound to an endpoint.
        Source: fi_mr(3) fi_mr_enable.
        """
        _handle.check(self, "mr.enable")
        if self._fixed:
            return
        if self.domain.mr_mode & MrMode.MR_ENDPOINT and not any(isinstance(a, Endpoint) for a in self._associated):
            raise errors.BadState(
                "mr.enable: the domain requires MR_ENDPOINT and the region is bound to no endpoint\n"
                "  try: mr.bind(ep) first"
            )
        self._fixed = True
        if not self._unnotified and not self._pending:
            super().enable()

    def raw_attr(self, key_size: int | None = None, flags: int = 0) -> tuple[int, bytes]:
        """Base address and raw key (fi_mr_raw_attr), for `Domain.map_raw` at the peer.

        key_size   bytes that the caller has room for; None for enough.

        Returns (base_addr, raw_key). base_addr is the virtual address under `fi.MR_VIRT_ADDR`, 0 otherwise.
        Raises TooSmall (the message and `.needed` say how many bytes it takes: domain_attr.mr_key_size), BadFlags.
        Source: fi_mr(3) fi_mr_raw_attr.
        """
        _handle.check(self, "mr.raw_attr")
        _args.whole("mr.raw_attr", flags=flags)
        _args.maybe("mr.raw_attr", key_size=key_size)
        if flags:
            raise errors.BadFlags(f"mr.raw_attr: flags {flags:#x}; they have to be 0")
        size = self.domain.attr.mr_key_size
        if key_size is not None and key_size < size:
            failed = errors.TooSmall(f"mr.raw_attr: a raw key takes {size} B, there is room for {key_size} B")
            failed.needed = size  # type: ignore[attr-defined]
            raise failed
        base = 0
        if self.domain.virt_addr:
            base = self.address if self._base_addr is None else self._base_addr
        return base, make_raw_key(self.domain, self._real_key())

    def refresh(self, iov: Sequence[Any] | None = None, count: int | None = None, flags: int = 0) -> None:
        """Tell the provider that pages are behind the region, or that they changed (fi_mr_refresh).

        For domains opened with `fi.MR_MMU_NOTIFY`. A region of such a domain can be reached once it was refreshed for
        the first time. While it is refreshed, peers are refused; then it has the current pages.

        iov     buffers within the region whose pages changed; None for the whole region. Only they are looked at.
        count   how many of them are used; None for all.
        flags   0.

        Raises Fault where a page is missing (before the first refresh the region then stays out of reach);
        InvalidArgument (not within the region; pages of another size than the region's page_size), BadFlags; NoSys on
        other domains, where it is not needed: accesses go through this process's page tables.
        Source: fi_mr(3) fi_mr_refresh.
        """
        op = "mr.refresh"
        _handle.check(self, op)
        _args.whole(op, flags=flags)
        _args.maybe(op, count=count)
        notified = bool(self.domain.mr_mode & MrMode.MR_MMU_NOTIFY)
        if not notified and not self.domain.provider.refreshes:
            raise errors.NoSys(
                f"{op}: the domain does not require MR_MMU_NOTIFY, and accesses go through this process's page tables: "
                "the region has the current pages at any time",
                op=op,
            )
        if flags:
            raise errors.BadFlags(f"{op}: flags {flags:#x}; they have to be 0", op=op)
        if self._pending:
            raise errors.BadState(f"{op}: {self!r} is not complete: read its MR_COMPLETE event first")
        pieces = list(self._ranges())
        if iov is not None:
            pieces = [_nic.describe_buffer(b)[:2] for b in _args.each(op, "iov", iov, "buffers")[:count]]
            if count is not None and len(pieces) < count:
                raise errors.InvalidArgument(f"{op}: count {count}, but iov has {len(pieces)} entries", op=op)
        for start, size in pieces:
            if not within((start, size), self._ranges()):
                raise errors.InvalidArgument(
                    f"{op}: {size} B at {start:#x} do not lie within {self!r}\n"
                    "  try: buffers of the region, or None for all of it",
                    op=op,
                )
        usable = self.state == "enabled"
        if notified:
            self.disable_core()
        if self._page_size:
            try:
                _check_pages(op, self._page_size, pieces)
            except errors.FabricError:
                if notified and usable and not self._unnotified:
                    super().enable()
                raise
        missing = next((page for piece in pieces if (page := self.missing_page(*piece)) is not None), None)
        if missing is None:
            self._unnotified = False
            usable = usable or self._fixed or not self._needs_enable
        if notified and usable:
            super().enable()
        if missing is not None:
            raise errors.make(
                int(Errno.EFAULT),
                f"{op}: no page is behind address {missing:#x} of {self!r}\n"
                "  rule: the notification says that all pages it names are there, fi_mr(3) MR_MMU_NOTIFY\n"
                "  try: map and touch them first, or name only those that are there in iov",
            )

    @property
    def _needs_enable(self) -> bool:
        mode = self.domain.mr_mode
        return bool(mode & MrMode.MR_ENDPOINT) or bool(self._wants_event and mode & MrMode.MR_RMA_EVENT)

    # close() is the extension's; it calls this where somebody else is concerned.
    def _close(self) -> None:
        if self._closed:
            return
        if self._associated and self.domain.provider.close_region_needs_unbound:
            users = [a for a in self._associated if not a._closed]
            if users and self._made_in == users[0]._made_in:
                raise _handle.busy(self, users)
        parents: tuple[Any, ...] = (self.domain,) if self._base is None else (self.domain, self._base)
        _handle.close(self, self.close_core, self._subs or {}, parents)

    @property
    def hmem_data(self) -> None:
        """Reserved, None; a sub-MR has its base's."""
        return None

    def _real_key(self) -> int:
        return self.key

    def _ranges(self) -> tuple[tuple[int, int], ...]:
        """(address, bytes) of the buffers."""
        return self._spans or ((self.address, self.length),)

    def __enter__(self) -> MemoryRegion:
        return _handle.enter(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _handle.exit(self, kind, error, trace)

    def _finalize(self) -> None:
        """Called by the extension when a region is collected that nobody closed."""
        parents: tuple[Any, ...] = (self.domain,) if self._base is None else (self.domain, self._base)
        _handle.finalize(self, self.close_core, parents)

    def __repr__(self) -> str:
        if self._closed:
            return "<MemoryRegion closed>"
        where = f", {HmemIface(self.iface).name} {self.device}" if self.iface else ""
        return f"<MemoryRegion {self._real_key():#x}, {self.length} B{where}, {Flag(self.access)!s}, {self.state}>"


class RawMemoryRegion(MemoryRegion):
    """A region of a domain opened with FI_MR_RAW: `key` is `fi.KEY_NOTAVAIL`, `raw_attr` has it."""

    @property
    def key(self) -> int:
        """`fi.KEY_NOTAVAIL`: use `raw_attr()` here and `Domain.map_raw` at the peer."""
        return KEY_NOTAVAIL

    def _real_key(self) -> int:
        return _core_key.__get__(self)  # type: ignore[no-any-return]


class AsyncMemoryRegion(MemoryRegion):
    """A region of a domain bound to an event queue with `fi.REG_MR`: complete when its MR_COMPLETE event was read."""

    _pending = True

    @property
    def key(self) -> int:
        """`fi.KEY_NOTAVAIL` until the registration is complete (and under `fi.MR_RAW`)."""
        return KEY_NOTAVAIL if self._pending or self.domain.mr_mode & MrMode.MR_RAW else self._real_key()

    @property
    def desc(self) -> object:
        """Local descriptor (fi_mr_desc). Raises BadState until the registration is complete."""
        self._completed("mr.desc")
        return self

    def raw_attr(self, key_size: int | None = None, flags: int = 0) -> tuple[int, bytes]:
        """As `MemoryRegion.raw_attr`; raises BadState until the registration is complete."""
        _handle.check(self, "mr.raw_attr")
        self._completed("mr.raw_attr")
        return super().raw_attr(key_size, flags)

    def _completed(self, op: str) -> None:
        if self._pending:
            raise errors.BadState(
                f"{op}: {self!r} is not complete\n"
                "  rule: an asynchronous registration is complete when its event was read, fi_mr(3)\n"
                "  try: read the MR_COMPLETE event from the domain's event queue first"
            )

    def _complete(self) -> None:
        if not self._pending:
            return
        self._pending = False
        if not self._closed and not self._unnotified and (self._fixed or not self._needs_enable):
            _nic.MemoryRegionCore.enable(self)

    def _real_key(self) -> int:
        return _core_key.__get__(self)  # type: ignore[no-any-return]


_core_key: Any = _nic.MemoryRegionCore.__dict__["key"]


_nic.set_region_type(MemoryRegion)


# ---- registration with anything out of the ordinary (Domain.mr_reg has the plain case) -------------------------------


def register(
    domain: Domain,
    op: str,
    buffers: Sequence[Any],
    access: int,
    offset: int,
    requested_key: int,
    flags: int,
    context: Any,
    base: MemoryRegion | None = None,
    keep: Any = None,
    depth: int = 3,
    extra: Extra | None = None,
) -> MemoryRegion:
    """All registration calls end here, unless nothing about them is special."""
    _handle.check(domain, op)
    if extra is None:
        if domain._av_auth_key:
            raise errors.NotSupported(
                f"{op}: the domain was opened with AV_AUTH_KEY\n"
                "  rule: its regions name the address vector of their keys, fi_mr(3)\n"
                "  try: mr_regattr(fi.MrAttr(..., auth_key=fi.MrAuthKey(av), auth_key_size=fi.MrAuthKey.SIZE))",
                op=op,
            )
        if domain._hmem and domain.mr_mode & MrMode.MR_HMEM:
            _refuse_undeclared(op, buffers)
        extra = _PLAIN
    _args.whole(op, access=access, offset=offset, flags=flags)
    if access & ~int(ACCESS):
        raise errors.InvalidArgument(
            f"{op}: access {Flag(access & ~int(ACCESS))!s} is no permission; known: {ACCESS!s}"
            + _perhaps_length(op, buffers, access),
            op=op,
        )
    if offset:
        raise errors.InvalidArgument(
            f"{op}: offset {offset} is reserved and must be 0, fi_mr(3)" + _perhaps_length(op, buffers, access), op=op
        )
    _check_flags(domain, op, flags)
    if not buffers:
        raise errors.InvalidArgument(f"{op}: a region needs at least one buffer", op=op)
    if len(buffers) > domain.attr.mr_iov_limit:
        raise errors.InvalidArgument(
            f"{op}: {len(buffers)} buffers; a region takes at most mr_iov_limit, {domain.attr.mr_iov_limit}",
            op=op,
        )
    prov_key = bool(domain.mr_mode & (MrMode.MR_PROV_KEY | MrMode.MR_BASIC))
    _args.integer(op, requested_key=requested_key)
    if prov_key:
        requested_key = 0
    elif requested_key and not domain.provider.client_keys:
        raise errors.KeyRejected(
            f"{op}: requested_key {requested_key:#x}: {domain.provider.name} makes the keys itself\n"
            "  try: requested_key=0, and mr.key afterwards",
            op=op,
        )
    elif not 0 <= requested_key < KEY_NOTAVAIL:
        raise errors.KeyRejected(
            f"{op}: requested_key {requested_key:#x} is out of range: a key has {domain.attr.mr_key_size} bytes, "
            "and KEY_NOTAVAIL is none",
            op=op,
        )
    wants_event = bool(flags & Flag.RMA_EVENT)
    unnotified = bool(domain.mr_mode & MrMode.MR_MMU_NOTIFY)
    disabled = (
        unnotified
        or bool(domain.mr_mode & MrMode.MR_ENDPOINT)
        or bool(wants_event and domain.mr_mode & MrMode.MR_RMA_EVENT)
    )
    if flags & Flag.RMA_PMEM:
        _check_persistent(op, buffers)
    if domain.mr_mode & (MrMode.MR_ALLOCATED | MrMode.MR_BASIC) and not extra.unowned:
        _check_backed(op, domain, buffers)
    if base is not None and base._by_owner:
        extra = replace(extra, by_owner=True)
    pending = domain._mr_eq is not None
    cls: type[MemoryRegion] = RawMemoryRegion if domain.mr_mode & MrMode.MR_RAW else MemoryRegion
    if pending:
        cls = AsyncMemoryRegion
    mr = cls(
        domain,
        buffers,
        access=int(access),
        requested_key=requested_key,
        flags=int(flags),
        context=context,
        enabled=not disabled and not pending,
        owned=keep is not None or extra.owned,
        unowned=extra.unowned,
        by_owner=extra.by_owner,
        base=extra.base_addr,
        vnis=extra.vnis,
        source=extra.source,
    )
    mr.domain = domain
    if extra is not _PLAIN:
        mr._by_owner = extra.by_owner
        mr._base_addr = extra.base_addr
        mr._auth_av = extra.auth_av
        mr._page_size = extra.page_size
    if wants_event:
        mr._wants_event = True
    if unnotified:
        mr._unnotified = True
    if keep is not None:
        mr._keep = keep
    if base is not None:
        mr._base = base
        mr._special = True
    if len(buffers) > 1:
        mr._spans = tuple(_nic.describe_buffer(b)[:2] for b in buffers)
    mr._site = _handle.here(depth)
    if base is not None:
        _handle.adopt(mr, base)
    if domain._mr_eq is not None:
        assert isinstance(mr, AsyncMemoryRegion)
        domain._mr_eq.post(EqEvent.MR_COMPLETE, EqEntry(mr, context), mr._complete)  # holds the region until then
    return mr


def register_attr(domain: Domain, attr: MrAttr, flags: int) -> MemoryRegion:
    """fi_mr_regattr."""
    op = "mr_regattr"
    _handle.check(domain, op)
    _handle.expect(attr, MrAttr, op, "attr")
    _args.whole(op, flags=flags)
    _check_flags(domain, op, flags)
    if attr.hmem_data is not None and attr.base_mr is None:
        raise errors.InvalidArgument(f"{op}: hmem_data is reserved and must be None, fi_mr(3)", op=op)
    if attr.page_size and attr.base_mr is None and attr.page_size not in page_sizes():
        known = ", ".join(str(s) for s in sorted(page_sizes()))
        raise errors.InvalidArgument(f"{op}: page_size {attr.page_size} is none that this system has: {known}", op=op)
    if flags & MrFlag.MR_DMABUF:
        return _register_dmabuf(domain, op, attr, flags)
    _args.maybe(op, iov_count=attr.iov_count)
    iov = _args.each(op, "mr_iov", attr.mr_iov, "buffers")[: attr.iov_count]
    if attr.iov_count is not None and len(iov) < attr.iov_count:
        raise errors.InvalidArgument(f"{op}: iov_count {attr.iov_count}, but mr_iov has {len(iov)} entries", op=op)
    base = attr.base_mr
    if base is not None:
        _handle.check(base, op)
        if base.domain is not domain:
            raise errors.WrongDomain(f"{op}: base_mr {base!r} belongs to {base.domain!r}", op=op)
        for buffer in iov:
            start, size = _nic.describe_buffer(buffer)[:2]
            if not within((start, size), base._ranges()):
                raise errors.InvalidArgument(
                    f"{op}: {size} B at {start:#x} do not lie within base_mr {base!r}\n"
                    "  rule: a sub-MR is fully contained in its base, fi_mr(3) base_mr",
                    op=op,
                )
    extra = _declared(domain, op, attr, iov, flags) if base is None else _PLAIN
    extra = _authorized(domain, op, attr, flags, extra)
    if attr.page_size and domain.mr_mode & MrMode.MR_MMU_NOTIFY and base is None:
        extra = replace(extra, page_size=attr.page_size)
    return register(
        domain, op, iov, attr.access, attr.offset, attr.requested_key, flags, attr.context, base, None, 4, extra
    )


# ---- authorization keys ----------------------------------------------------------------------------------------------


def _authorized(domain: Domain, op: str, attr: MrAttr, flags: int, extra: Extra) -> Extra:
    """Whom the region admits."""
    if not domain._auth_keys:
        return extra
    if domain._av_auth_key:
        return _authorized_by_av(domain, op, attr, flags, extra)
    if not attr.auth_key_size:
        return extra  # the domain's key, whatever stands in auth_key: fi_mr(3) auth_key
    if attr.auth_key is None:
        raise errors.InvalidArgument(
            f"{op}: auth_key None with auth_key_size {attr.auth_key_size}\n"
            "  rule: the bytes of a key and their number, or size 0 for the domain's key, fi_mr(3) auth_key_size",
            op=op,
        )
    vni = domain.provider.parse_auth_key(auth_key_bytes(domain.provider, attr.auth_key, attr.auth_key_size))
    return extra if vni == domain._vni else replace(extra, vnis=(vni,))


def _authorized_by_av(domain: Domain, op: str, attr: MrAttr, flags: int, extra: Extra) -> Extra:
    key = attr.auth_key
    if not isinstance(key, MrAuthKey) or attr.auth_key_size != MrAuthKey.SIZE:
        raise errors.InvalidArgument(
            f"{op}: auth_key {key!r} with auth_key_size {attr.auth_key_size}\n"
            f"  rule: on a domain opened with AV_AUTH_KEY a MrAuthKey and {MrAuthKey.SIZE}, fi_mr(3) auth_key",
            op=op,
        )
    av = key.av
    if not isinstance(av, AddressVector):
        raise errors.InvalidArgument(f"{op}: av of the MrAuthKey is {av!r}, no AddressVector", op=op)
    _handle.check(av, op)
    if av.domain is not domain:
        raise errors.WrongDomain(f"{op}: {av!r} belongs to {av.domain!r}", op=op)
    extra = replace(extra, auth_av=av)
    if key.src_addr == ADDR_UNSPEC:
        if not av.vnis:
            raise errors.InvalidArgument(f"{op}: {av!r} holds no authorization key\n  try: av.insert_auth_key", op=op)
        return replace(extra, vnis=tuple(av.vnis))
    if not domain.info.caps & Flag.DIRECTED_RECV:
        raise errors.InvalidArgument(
            f"{op}: src_addr {key.src_addr} on a domain opened without DIRECTED_RECV\n"
            "  try: fi.DIRECTED_RECV in the capabilities of the hints, or src_addr ADDR_UNSPEC",
            op=op,
        )
    if flags & AvFlag.AUTH_KEY:
        return replace(extra, vnis=(domain.provider.parse_auth_key(av.lookup_auth_key(key.src_addr)),))
    return replace(extra, source=av.lookup_address(key.src_addr))


# ---- device memory ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extra:
    """What few regions have."""

    by_owner: bool = False
    owned: bool = False
    unowned: bool = False  # pages may go missing, whoever holds the memory
    base_addr: int | None = None
    vnis: tuple[int, ...] = ()
    source: tuple[int, int, int] | None = None
    auth_av: Any = None
    page_size: int = 0


_PLAIN = Extra()


def _address_of(buffer: Any) -> int:
    return int(_nic.describe_buffer(buffer)[0])


def _refuse_undeclared(op: str, buffers: Sequence[Any]) -> None:
    """Under FI_MR_HMEM device memory is registered with its interface named."""
    for buffer in buffers:
        found = hmem.locate(_address_of(buffer))
        if found is not None and found.kind != "host":
            raise errors.InvalidArgument(
                f"{op}: the buffer is {found.kind} memory of {found.iface.name} {found.device}, and nothing says so\n"
                "  rule: under MR_HMEM device memory is registered with fi_mr_regattr, iface and device filled in\n"
                f"  try: mr_regattr(fi.MrAttr(..., iface=fi.{found.iface.name}, device={found.device}))",
                op=op,
            )


def _declared(domain: Domain, op: str, attr: MrAttr, iov: Sequence[Any], flags: int) -> Extra:
    """Hold iface, device and flags against what the runtime says lies there."""
    if not domain._hmem:
        return _PLAIN
    if attr.iface not in HmemIface.__members__.values():
        raise errors.InvalidArgument(f"{op}: iface {attr.iface!r} is none of FI_HMEM_*", op=op)
    iface = HmemIface(attr.iface)
    only, host = bool(flags & MrFlag.HMEM_DEVICE_ONLY), bool(flags & MrFlag.HMEM_HOST_ALLOC)
    if only and host:
        raise errors.BadFlags(f"{op}: HMEM_DEVICE_ONLY and HMEM_HOST_ALLOC exclude each other", op=op)
    if iface == HmemIface.HMEM_SYSTEM:
        if only or host:
            raise errors.InvalidArgument(
                f"{op}: {MrFlag(flags & int(_DEVICE_FLAGS))!s} with iface HMEM_SYSTEM\n"
                "  rule: iface still says which device's interface the memory comes from, fi_mr(3) FLAGS",
                op=op,
            )
        if domain.mr_mode & MrMode.MR_HMEM:
            _refuse_undeclared(op, iov)
        return _PLAIN
    state = hmem.require(iface, op)
    number = hmem.device_number(iface, attr.device)
    if not host and not 0 <= number < state.devices:
        raise errors.InvalidArgument(
            f"{op}: device {number} of {iface.name}; there are {state.devices}, numbered from 0", op=op
        )
    for buffer in iov:
        address = _address_of(buffer)
        found = hmem.locate(address)
        what = f"{found.kind} memory of {found.iface.name} {found.device}" if found else "no memory of its"
        if host and (found is None or found.kind == "host"):
            continue
        wrong = (
            host
            or found is None
            or found.iface != iface
            or (only and found.kind != "device")
            or (found.kind == "device" and found.device != number)
        )
        if wrong:
            said = "HMEM_HOST_ALLOC" if host else f"device {number}" + (", HMEM_DEVICE_ONLY" if only else "")
            raise errors.InvalidArgument(
                f"{op}: the buffer at {address:#x} was said to be {iface.name}, {said}; the runtime says: {what}\n"
                "  try: weft.memory.hmem.locate(address), or iface HMEM_SYSTEM for memory of the host",
                op=op,
            )
    return Extra(by_owner=host, owned=host)


def _register_dmabuf(domain: Domain, op: str, attr: MrAttr, flags: int) -> MemoryRegion:
    """fi_mr_regattr with FI_MR_DMABUF: `dmabuf` is read, mr_iov is not."""
    piece = attr.dmabuf
    if not isinstance(piece, MrDmabuf):
        raise errors.InvalidArgument(f"{op}: under MR_DMABUF, dmabuf has to be a MrDmabuf, not {piece!r}", op=op)
    if attr.base_mr is not None:
        raise errors.InvalidArgument(f"{op}: base_mr has to be None under MR_DMABUF, fi_mr(3) base_mr", op=op)
    try:
        size = os.lseek(piece.fd, 0, os.SEEK_END)
    except (OSError, OverflowError) as e:
        raise errors.InvalidArgument(f"{op}: fd {piece.fd} is no DMA-buf: {e}", op=op) from None
    if (piece.base_addr or 0) + piece.offset + piece.len >= 1 << 64:
        raise errors.InvalidArgument(
            f"{op}: {piece.len} B at offset {piece.offset} from {piece.base_addr or 0:#x} pass the end of the address "
            "space",
            op=op,
        )
    if piece.len <= 0 or piece.offset < 0 or piece.offset + piece.len > size:
        raise errors.InvalidArgument(
            f"{op}: {piece.len} B from offset {piece.offset} of a DMA-buf of {size} B\n"
            "  rule: at least 1 byte, within the DMA-buf, fi_mr(3) dmabuf",
            op=op,
        )
    if piece.base_addr is not None and piece.base_addr % mmap.PAGESIZE:
        raise errors.InvalidArgument(
            f"{op}: base_addr {piece.base_addr:#x} is not page-aligned, fi_mr(3) dmabuf", op=op
        )
    start = (piece.base_addr or 0) + piece.offset
    found = hmem.locate(start) if piece.base_addr is not None else None
    if found is not None and start + piece.len <= found.base + found.length:
        # Mapped in this process already: the device's runtime copies.
        return register(
            domain, op, [(start, piece.len)], attr.access, attr.offset, attr.requested_key, flags, attr.context,
            depth=4, extra=_authorized(domain, op, attr, flags, Extra(base_addr=start)),
        )  # fmt: skip
    first = piece.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    writes = attr.access & (Flag.REMOTE_WRITE | Flag.READ | Flag.RECV)
    try:
        window = mmap.mmap(
            piece.fd,
            piece.offset + piece.len - first,
            prot=mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0),
            offset=first,
        )
    except (OSError, ValueError) as e:
        raise errors.NotSupported(
            f"{op}: the DMA-buf of fd {piece.fd} cannot be mapped ({e}), and base_addr names no memory of a device's "
            "runtime in this process\n"
            "  try: base_addr of the allocation, in the process that made it",
            op=op,
        ) from None
    mapped = memoryview(window)[piece.offset - first :]
    # Where the kernel reads it for us, it answers with an error when the exporter takes pages away.
    readable = _process.nic().missing_page(_address_of(mapped), 1) is None
    extra = Extra(by_owner=True, unowned=readable, base_addr=start)
    return register(
        domain, op, [mapped], attr.access, attr.offset, attr.requested_key, flags, attr.context,
        depth=4, extra=_authorized(domain, op, attr, flags, extra),
    )  # fmt: skip


def _perhaps_length(op: str, buffers: Sequence[Any], access: int) -> str:
    """What to try where the access looks like the length that C has in its place."""
    if op != "mr_reg" or access != int(_nic.describe_buffer(buffers[0])[1]):
        return ""
    return f"\n  try: mr_reg(buf, access, ..., len={access}): the length is an argument of its own, the buffer has it"


def cut(op: str, buf: Any, length: int, access: int) -> tuple[tuple[int, int], Any]:
    """The first `length` bytes of a buffer, as (address, length), and what keeps them alive."""
    _args.whole(op, access=access)
    _args.integer(op, len=length)
    address, nbytes, readonly, _, keep = _nic.describe_buffer(buf)
    if length > nbytes:
        raise errors.InvalidArgument(f"{op}: len {length}, but the buffer has {nbytes} B", op=op)
    if length <= 0:
        raise errors.InvalidArgument(f"{op}: len has to be at least 1, not {length}, fi_mr(3)", op=op)
    if readonly and access & (Flag.REMOTE_WRITE | Flag.READ | Flag.RECV):
        raise errors.AccessDenied(
            f"{op}: the buffer is read-only, and {Flag(access)!s} writes to it\n  try: a writable buffer", op=op
        )
    return (address, length), keep


def _check_flags(domain: Domain, op: str, flags: int) -> None:
    if not flags & ~int(_FLAGS):
        return
    if flags & _DEVICE_FLAGS and domain._hmem:
        if not flags & ~int(_FLAGS | _DEVICE_FLAGS):
            if op == "mr_regattr":
                return
            raise errors.BadFlags(f"{op}: {MrFlag(flags)!s} describe an MrAttr: use mr_regattr", op=op)
    elif flags & _DEVICE_FLAGS:
        raise errors.BadFlags(f"{op}: {MrFlag(flags)!s} need a domain opened with HMEM, which this one is not", op=op)
    if flags & AvFlag.AUTH_KEY and domain._av_auth_key and op == "mr_regattr":
        flags &= ~int(AvFlag.AUTH_KEY)
        if not flags & ~int(_FLAGS | _DEVICE_FLAGS):
            return
    if flags & AvFlag.AUTH_KEY:
        raise errors.BadFlags(f"{op}: AUTH_KEY needs a domain opened with AV_AUTH_KEY, which this one is not", op=op)
    raise errors.BadFlags(
        f"{op}: flags {MrFlag(flags & ~int(_FLAGS))!s} are not supported; RMA_EVENT, RMA_PMEM and MR_SINGLE_USE are",
        op=op,
    )


def _check_persistent(op: str, buffers: Sequence[Any]) -> None:
    """Is what is registered with FI_RMA_PMEM a shared mapping of a file? Anything else ends with the process.

    Goes through the registration cache: to ask the system takes 10 us and more, a hit none.
    """
    for buffer in buffers:
        start, size = _nic.describe_buffer(buffer)[:2]
        try:
            if _nic.cache_search(_process.nic(), start, size).persistent:
                continue
        except errors.Fault:
            pass  # pages are missing: the message below says where
        at = _nic.first_not_persistent(start, size)
        if at is not None:
            raise errors.InvalidArgument(
                f"{op}: RMA_PMEM for {size} B at {start:#x}, of which the part from {at:#x} on is not a file\n"
                "  rule: persistent memory outlives the process: a shared mapping of a file\n"
                "  try: numpy.memmap(path, mode='r+')",
                op=op,
            )


def _check_backed(op: str, domain: Domain, buffers: Sequence[Any]) -> None:
    """Under FI_MR_ALLOCATED pages are behind the whole region. Objects have them; bare addresses are tried."""
    for buffer in buffers:
        if isinstance(buffer, tuple) and len(buffer) == 2 and isinstance(buffer[0], int):
            start, size = _nic.describe_buffer(buffer)[:2]
            if domain._hmem and hmem.locate(start) is not None:
                continue  # its runtime has said that it is there
            missing = _process.nic().missing_page(start, size)
            if missing is not None:
                raise errors.make(
                    int(Errno.EFAULT),
                    f"{op}: no page is behind address {missing:#x} of the {size} B at {start:#x}\n"
                    "  rule: under MR_ALLOCATED the whole region has pages when it is registered, fi_mr(3)\n"
                    "  try: map and touch the memory first, or a domain without MR_ALLOCATED",
                )


def _check_pages(op: str, page_size: int, pieces: Sequence[tuple[int, int]]) -> None:
    """Are the pages behind these ranges of the size that the region was created with?"""
    with open("/proc/self/smaps") as file:
        low = high = 0
        for line in file:
            first, _, rest = line.partition(" ")
            if "-" in first and not first.endswith(":"):
                low, high = (int(word, 16) for word in first.split("-"))
            elif first == "KernelPageSize:":
                size = int(rest.split()[0]) * 1024
                for start, length in pieces:
                    if size != page_size and low < start + length and start < high:
                        raise errors.InvalidArgument(
                            f"{op}: at {max(low, start):#x} lie pages of {size} B; the region was made with page_size "
                            f"{page_size}\n"
                            "  rule: all pages tied to it later have that size, fi_mr(3) page_size\n"
                            "  try: page_size 0, which leaves it to the system",
                            op=op,
                        )


def page_sizes() -> set[int]:
    """Page sizes of this system, in bytes."""
    sizes = {os.sysconf("SC_PAGE_SIZE")}
    sizes.update(_huge_page_sizes())
    return sizes


def _huge_page_sizes() -> Iterator[int]:
    try:
        for name in os.listdir("/sys/kernel/mm/hugepages"):
            yield int(name.removeprefix("hugepages-").removesuffix("kB")) * 1024
    except (OSError, ValueError):
        return
