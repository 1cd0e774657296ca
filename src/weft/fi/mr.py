"""Memory regions (fi_mr).

`Domain.mr_reg`, `mr_regv` and `mr_regattr` make them. The rules that depend on the domain's mr_mode are decided here,
once for all providers; keys, bounds and access are the NIC's.

Source: fi_mr(3).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import _nic, _process, errors
from ..flags import KEY_NOTAVAIL, AvFlag, EqEvent, Errno, Flag, HmemIface, MrFlag, MrMode
from . import _handle
from .cntr import Counter
from .endpoint import Endpoint
from .eq import EqEntry

if TYPE_CHECKING:
    from .domain import Domain

__all__ = ["MemoryRegion", "MrAttr", "MrDmabuf"]

RAW_KEY_SIZE = 8

ACCESS = Flag.SEND | Flag.RECV | Flag.READ | Flag.WRITE | Flag.REMOTE_READ | Flag.REMOTE_WRITE | Flag.COLLECTIVE
_FLAGS = Flag.RMA_EVENT | Flag.RMA_PMEM | MrFlag.MR_SINGLE_USE
_DEVICE_FLAGS = MrFlag.MR_DMABUF | MrFlag.HMEM_DEVICE_ONLY | MrFlag.HMEM_HOST_ALLOC


@dataclass(slots=True)
class MrDmabuf:
    """A piece of a DMA-buf (struct fi_mr_dmabuf). Source: fi_mr(3) "dmabuf"."""

    fd: int = -1
    offset: int = 0
    len: int = 0
    base_addr: int | None = None


@dataclass(slots=True)
class MrAttr:
    """What to register (struct fi_mr_attr), for `Domain.mr_regattr`.

    mr_iov          buffers that together are the region.
    iov_count       how many of them are used; None for all.
    access          `fi.REMOTE_READ | fi.REMOTE_WRITE ...`.
    offset          reserved, 0.
    requested_key   the key to use; ignored under `fi.MR_PROV_KEY`.
    context         comes back in the event of an asynchronous registration; otherwise ignored.
    auth_key_size, auth_key   0 and None: the domain's key.
    iface, device   device memory; ignored without `fi.HMEM`.
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
    address   of the first byte.
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
    _spans: tuple[tuple[int, int], ...] = ()
    _base: MemoryRegion | None = None
    _associated: tuple[Any, ...] = ()
    _subs: _handle.Children | None = None
    _fixed = False  # fi_mr_enable was called: no further bindings
    _wants_event = False  # registered with FI_RMA_EVENT
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

        fid     a Counter, which then counts the accesses that flags select; or an Endpoint: under `fi.MR_ENDPOINT` the
                one through which alone peers may reach the region, otherwise an association and no more, so that a
                program written for `fi.MR_ENDPOINT` runs unchanged.
        flags   for a counter `fi.REMOTE_WRITE`: each RMA write or atomic that modifies the region, made through an
                endpoint opened with `fi.RMA_EVENT`. For an endpoint 0.

        Raises BadFlags; BadState (the region was enabled with `enable()` already; a counter under `fi.MR_RMA_EVENT`
        on a region registered without `fi.RMA_EVENT`); WrongDomain; InvalidArgument (some other object).
        Source: fi_mr(3) fi_mr_bind.
        """
        _handle.check(self, "mr.bind")
        if not isinstance(fid, (Counter, Endpoint)):
            raise errors.InvalidArgument(f"mr.bind: a region takes a Counter or an Endpoint, not {fid!r}")
        _handle.check(fid, "mr.bind")
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
        if not self._unnotified:
            super().enable()

    def raw_attr(self, key_size: int | None = None, flags: int = 0) -> tuple[int, bytes]:
        """Base address and raw key (fi_mr_raw_attr), for `Domain.map_raw` at the peer.

        key_size   bytes that the caller has room for; None for enough.

        Returns (base_addr, raw_key). base_addr is the virtual address under `fi.MR_VIRT_ADDR`, 0 otherwise.
        Raises TooSmall (the message and `.needed` say how many bytes it takes: domain_attr.mr_key_size), BadFlags.
        Source: fi_mr(3) fi_mr_raw_attr.
        """
        _handle.check(self, "mr.raw_attr")
        if flags:
            raise errors.BadFlags(f"mr.raw_attr: flags {flags:#x}; they have to be 0")
        if key_size is not None and key_size < RAW_KEY_SIZE:
            failed = errors.TooSmall(f"mr.raw_attr: a raw key takes {RAW_KEY_SIZE} B, there is room for {key_size} B")
            failed.needed = RAW_KEY_SIZE  # type: ignore[attr-defined]
            raise failed
        base = self.address if self.domain.virt_addr else 0
        return base, self._real_key().to_bytes(RAW_KEY_SIZE, "little")

    def refresh(self, iov: Sequence[Any] | None = None, count: int | None = None, flags: int = 0) -> None:
        """Tell the provider that pages are behind the region, or that they changed (fi_mr_refresh).

        For domains opened with `fi.MR_MMU_NOTIFY`. A region of such a domain can be reached once it was refreshed for
        the first time. While it is refreshed, peers are refused; then it has the current pages.

        iov     buffers within the region whose pages changed; None for the whole region. Only they are looked at.
        count   how many of them are used; None for all.
        flags   0.

        Raises Fault where a page is missing (before the first refresh the region then stays out of reach);
        InvalidArgument (not within the region), BadFlags; NoSys on other domains, where it is not needed: accesses go
        through this process's page tables. Source: fi_mr(3) fi_mr_refresh.
        """
        op = "mr.refresh"
        _handle.check(self, op)
        if not self.domain.mr_mode & MrMode.MR_MMU_NOTIFY:
            raise errors.NoSys(
                f"{op}: the domain does not require MR_MMU_NOTIFY, and accesses go through this process's page tables: "
                "the region has the current pages at any time",
                op=op,
            )
        if flags:
            raise errors.BadFlags(f"{op}: flags {flags:#x}; they have to be 0", op=op)
        pieces = list(self._ranges())
        if iov is not None:
            pieces = [_nic.describe_buffer(buffer)[:2] for buffer in iov[:count]]
            if count is not None and len(pieces) < count:
                raise errors.InvalidArgument(f"{op}: count {count}, but iov has {len(pieces)} entries", op=op)
        for start, size in pieces:
            if not any(a <= start and start + size <= a + n for a, n in self._ranges()):
                raise errors.InvalidArgument(
                    f"{op}: {size} B at {start:#x} do not lie within {self!r}\n"
                    "  try: buffers of the region, or None for all of it",
                    op=op,
                )
        usable = self.state == "enabled"
        self.disable_core()
        missing = next((page for piece in pieces if (page := self.missing_page(*piece)) is not None), None)
        if missing is None:
            self._unnotified = False
            usable = usable or self._fixed or not self._needs_enable
        if usable:
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
        self.close()

    def _finalize(self) -> None:
        """Called by the extension when a region is collected that nobody closed."""
        parents: tuple[Any, ...] = (self.domain,) if self._base is None else (self.domain, self._base)
        _handle.finalize(self, self.close_core, parents)

    def __repr__(self) -> str:
        if self._closed:
            return "<MemoryRegion closed>"
        return f"<MemoryRegion {self._real_key():#x}, {self.length} B, {Flag(self.access)!s}, {self.state}>"


class RawMemoryRegion(MemoryRegion):
    """A region of a domain opened with FI_MR_RAW: `key` is `fi.KEY_NOTAVAIL`, `raw_attr` has it."""

    @property
    def key(self) -> int:
        """`fi.KEY_NOTAVAIL`: use `raw_attr()` here and `Domain.map_raw` at the peer."""
        return KEY_NOTAVAIL

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
) -> MemoryRegion:
    """All registration calls end here, unless nothing about them is special."""
    _handle.check(domain, op)
    _check_flags(domain, op, flags)
    if access & ~int(ACCESS):
        raise errors.InvalidArgument(
            f"{op}: access {Flag(access & ~int(ACCESS))!s} is no permission; known: {ACCESS!s}", op=op
        )
    if offset:
        raise errors.InvalidArgument(f"{op}: offset {offset} is reserved and must be 0, fi_mr(3)", op=op)
    if not buffers:
        raise errors.InvalidArgument(f"{op}: a region needs at least one buffer", op=op)
    if len(buffers) > domain.attr.mr_iov_limit:
        raise errors.InvalidArgument(
            f"{op}: {len(buffers)} buffers; a region takes at most mr_iov_limit, {domain.attr.mr_iov_limit}",
            op=op,
        )
    prov_key = bool(domain.mr_mode & (MrMode.MR_PROV_KEY | MrMode.MR_BASIC))
    if prov_key:
        requested_key = 0
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
    cls = RawMemoryRegion if domain.mr_mode & MrMode.MR_RAW else MemoryRegion
    mr = cls(
        domain,
        buffers,
        access=int(access),
        requested_key=requested_key,
        flags=int(flags),
        context=context,
        enabled=not disabled,
        owned=keep is not None,
    )
    mr.domain = domain
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
        # Deprecated asynchronous registration: it is done by now, but the result is told by an event.
        domain._mr_eq.post(EqEvent.MR_COMPLETE, EqEntry(mr, context))
    return mr


def register_attr(domain: Domain, attr: MrAttr, flags: int) -> MemoryRegion:
    """fi_mr_regattr."""
    op = "mr_regattr"
    _handle.check(domain, op)
    _handle.expect(attr, MrAttr, op, "attr")
    _check_flags(domain, op, flags)
    if attr.hmem_data is not None:
        raise errors.InvalidArgument(f"{op}: hmem_data is reserved and must be None, fi_mr(3)", op=op)
    if attr.auth_key_size or attr.auth_key is not None:
        raise errors.NotSupported(
            f"{op}: this domain has no authorization keys; leave auth_key None and auth_key_size 0", op=op
        )
    if attr.page_size and attr.base_mr is None and attr.page_size not in page_sizes():
        known = ", ".join(str(s) for s in sorted(page_sizes()))
        raise errors.InvalidArgument(f"{op}: page_size {attr.page_size} is none that this system has: {known}", op=op)
    iov = list(attr.mr_iov[: attr.iov_count])
    if attr.iov_count is not None and len(iov) < attr.iov_count:
        raise errors.InvalidArgument(f"{op}: iov_count {attr.iov_count}, but mr_iov has {len(iov)} entries", op=op)
    base = attr.base_mr
    if base is not None:
        _handle.check(base, op)
        if base.domain is not domain:
            raise errors.WrongDomain(f"{op}: base_mr {base!r} belongs to {base.domain!r}", op=op)
        for buffer in iov:
            start, size = _nic.describe_buffer(buffer)[:2]
            if not any(a <= start and start + size <= a + n for a, n in base._ranges()):
                raise errors.InvalidArgument(
                    f"{op}: {size} B at {start:#x} do not lie within base_mr {base!r}\n"
                    "  rule: a sub-MR is fully contained in its base, fi_mr(3) base_mr",
                    op=op,
                )
    return register(domain, op, iov, attr.access, attr.offset, attr.requested_key, flags, attr.context, base, depth=4)


def cut(op: str, buf: Any, length: int, access: int) -> tuple[tuple[int, int], Any]:
    """The first `length` bytes of a buffer, as (address, length), and what keeps them alive."""
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
    if flags & _DEVICE_FLAGS:
        raise errors.BadFlags(f"{op}: {MrFlag(flags)!s} need a domain opened with HMEM, which this one is not", op=op)
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
