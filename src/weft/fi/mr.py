"""Memory regions (fi_mr): their life from registration to close.

`Domain.mr_reg`, `mr_regv` and `mr_regattr` make them, by way of `mr_register.py`. What a region does under the domain's
mr_mode is decided here, once for all providers; keys, bounds and access are the NIC's.

Source: fi_mr(3).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import _nic, errors
from ..flags import KEY_NOTAVAIL, Flag, HmemIface, MrMode
from ..memory.pages import other_page_size
from . import _args, _handle
from ._ranges import within
from .cntr import Counter
from .endpoint import Endpoint
from .raw_key import make_raw_key
from .rules import Rule

if TYPE_CHECKING:
    from .domain import Domain

__all__ = ["MemoryRegion"]


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

    The region keeps the exporter of its memory alive until the region is closed. Thread safety: any thread.
    Source: fi_mr(3).
    """

    # Registration is a hot path: this class has no __init__ of its own, and the extension keeps `_closed`, `_site` and
    # `domain` (set after construction, which enters the region in the domain's list), so that a plain region has no
    # __dict__. `_special` tells `close()` to call `_close` below, for state that the extension does not know.
    if TYPE_CHECKING:
        domain: Domain
        _closed: bool
        _site: _handle.Site | None
        _special: bool
    _keep: Any = None
    _by_owner = False  # only this process's engine can copy it
    _base_addr: int | None = None  # of a DMA-buf: the virtual address of its first byte
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
                through which peers may reach the region, otherwise an association without effect, so that a program
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
            raise self._refuse(Rule.MR_BIND_OBJECT, f"mr.bind: a region takes a Counter or an Endpoint, not {fid!r}")
        _handle.check(fid, "mr.bind")
        _args.whole("mr.bind", flags=flags)
        if fid.domain is not self.domain:
            raise self._refuse(
                Rule.MR_BIND_DOMAIN, f"mr.bind: {fid!r} belongs to {fid.domain!r}, the region to {self.domain!r}"
            )
        if self._fixed:
            raise self._refuse(
                Rule.MR_BIND_STATE,
                f"mr.bind: {self!r} is enabled\n"
                "  rule: bindings come before fi_mr_enable, fi_mr(3)\n"
                "  try: bind, then enable()",
            )
        if isinstance(fid, Counter):
            self._bind_cntr(fid, flags)
        else:
            self._bind_ep(fid, flags)
        self._associated += (fid,)
        if self.domain.policy.regions.busy == "ep":
            _handle.adopt(self, fid)
        self._special = True

    def _bind_cntr(self, cntr: Counter, flags: int) -> None:
        if not self.domain.policy.regions.events:
            raise self._refuse(
                Rule.MR_BIND_EVENTS, f"mr.bind: {self.domain.provider.name} cannot report accesses to a region"
            )
        if flags != Flag.REMOTE_WRITE:
            raise self._refuse(
                Rule.MR_BIND_FLAGS, f"mr.bind: flags {Flag(flags)!s} for a counter; REMOTE_WRITE is what can be counted"
            )
        if self.domain.mr_mode & MrMode.MR_RMA_EVENT and not self._wants_event:
            raise self._refuse(
                Rule.MR_BIND_NO_EVENT,
                "mr.bind: the domain requires MR_RMA_EVENT and this region was registered without RMA_EVENT\n"
                "  try: mr_reg(..., flags=fi.RMA_EVENT), bind, enable()",
            )
        self.bind_cntr(cntr, int(flags))

    def _bind_ep(self, ep: Endpoint, flags: int) -> None:
        if flags:
            raise self._refuse(Rule.MR_BIND_FLAGS, f"mr.bind: flags {Flag(flags)!s} for an endpoint; they have to be 0")
        if self.domain.mr_mode & MrMode.MR_ENDPOINT:
            if self._auth_av is not None and ep._av is not self._auth_av:
                raise self._refuse(
                    Rule.MR_BIND_AV,
                    f"mr.bind: the region's authorization keys are of {self._auth_av!r}, the endpoint uses {ep._av!r}\n"
                    "  rule: under MR_ENDPOINT both are the same vector, fi_mr(3) av",
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
        bound_first = self.domain.policy.regions.needs_bind and self.domain.mr_mode & MrMode.MR_ENDPOINT
        if bound_first and not any(isinstance(a, Endpoint) for a in self._associated):
            raise self._refuse(
                Rule.MR_ENABLE_UNBOUND,
                "mr.enable: the domain requires MR_ENDPOINT and the region is bound to no endpoint\n"
                "  try: mr.bind(ep) first",
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
            raise self._refuse(Rule.MR_RAW_ATTR_FLAGS, f"mr.raw_attr: flags {flags:#x}; they have to be 0")
        size = self.domain.attr.mr_key_size
        if key_size is not None and key_size < size:
            failed = self._refuse(
                Rule.MR_RAW_ATTR_SIZE, f"mr.raw_attr: a raw key takes {size} B, there is room for {key_size} B"
            )
            failed.needed = size  # type: ignore[attr-defined]
            raise failed
        base = 0
        if self.domain.virt_addr:
            base = self.address if self._base_addr is None else self._base_addr
        return base, make_raw_key(self.domain, self._real_key())

    def refresh(self, iov: Sequence[Any] | None = None, count: int | None = None, flags: int = 0) -> None:
        """Tell the provider that pages are behind the region, or that they changed (fi_mr_refresh).

        For domains opened with `fi.MR_MMU_NOTIFY`. A region of such a domain can be reached once it was refreshed for
        the first time. During a refresh peers are refused; afterwards the region has the current pages.

        iov     buffers within the region whose pages changed; None for the whole region. Only these pages are checked.
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
        if not notified and not self.domain.policy.regions.refreshes:
            raise self._refuse(
                Rule.MR_REFRESH_MODE,
                f"{op}: the domain does not require MR_MMU_NOTIFY, and accesses go through this process's page tables: "
                "the region has the current pages at any time",
                op=op,
            )
        if flags:
            raise self._refuse(Rule.MR_REFRESH_FLAGS, f"{op}: flags {flags:#x}; they have to be 0", op=op)
        if self._pending:
            raise self._refuse(Rule.MR_INCOMPLETE, f"{op}: {self!r} is not complete: read its MR_COMPLETE event first")
        pieces = list(self._ranges())
        if iov is not None:
            pieces = [_nic.describe_buffer(b)[:2] for b in _args.each(op, "iov", iov, "buffers")[:count]]
            if count is not None and len(pieces) < count:
                raise self._refuse(
                    Rule.MR_REFRESH_RANGE, f"{op}: count {count}, but iov has {len(pieces)} entries", op=op
                )
        for start, size in pieces:
            if not within((start, size), self._ranges()):
                raise self._refuse(
                    Rule.MR_REFRESH_RANGE,
                    f"{op}: {size} B at {start:#x} do not lie within {self!r}\n"
                    "  try: buffers of the region, or None for all of it",
                    op=op,
                )
        usable = self.state == "enabled"
        if notified:
            self.disable_core()
        if self._page_size:
            try:
                _check_pages(self, op, self._page_size, pieces)
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
            raise self._refuse(
                Rule.MR_REFRESH_PAGES,
                f"{op}: no page is behind address {missing:#x} of {self!r}\n"
                "  rule: the notification says that all pages it names are there, fi_mr(3) MR_MMU_NOTIFY\n"
                "  try: map and touch the pages first, or name only present pages in iov",
            )

    @property
    def _needs_enable(self) -> bool:
        mode = self.domain.mr_mode
        return bool(mode & MrMode.MR_ENDPOINT) or bool(self._wants_event and mode & MrMode.MR_RMA_EVENT)

    # close() is the extension's; it calls this where somebody else is concerned.
    def _close(self) -> None:
        if self._closed:
            return
        if self._associated and self.domain.policy.regions.busy == "mr":
            users = [a for a in self._associated if not a._closed]
            if users and self._made_in == users[0]._made_in:
                raise self._refuse(Rule.MR_CLOSE_BOUND, _handle.users_text(self, users), op="close")
        _handle.close(self, self.close_core, self._subs or {}, self._parents())

    def _parents(self) -> tuple[Any, ...]:
        held = self._associated if self.domain.policy.regions.busy == "ep" else ()
        return (self.domain, *held) if self._base is None else (self.domain, self._base, *held)

    @property
    def hmem_data(self) -> None:
        """Reserved, None; a sub-MR has its base's."""
        return None

    def _refuse(self, rule: Rule, message: str, *, op: str | None = None) -> errors.FabricError:
        return self.domain.policy.refusals.refuse(rule, message, op=op)

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
        _handle.finalize(self, self.close_core, self._parents())

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


class LateMemoryRegion(MemoryRegion):
    """A region whose key the provider makes when the region is enabled."""

    @property
    def key(self) -> int:
        """Remote key (fi_mr_key); `fi.KEY_NOTAVAIL` before enable()."""
        return KEY_NOTAVAIL if self._needs_enable and not self._fixed else self._real_key()

    def raw_attr(self, key_size: int | None = None, flags: int = 0) -> tuple[int, bytes]:
        """As `MemoryRegion.raw_attr`; raises BadState before enable()."""
        _handle.check(self, "mr.raw_attr")
        if self.key == KEY_NOTAVAIL:
            raise self._refuse(
                Rule.MR_INCOMPLETE, f"mr.raw_attr: {self!r} has no key yet\n  try: enable() first", op="mr.raw_attr"
            )
        return super().raw_attr(key_size, flags)

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
            raise self._refuse(
                Rule.MR_INCOMPLETE,
                f"{op}: {self!r} is not complete\n"
                "  rule: an asynchronous registration is complete when its event was read, fi_mr(3)\n"
                "  try: read the MR_COMPLETE event from the domain's event queue first",
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


def _check_pages(mr: MemoryRegion, op: str, page_size: int, pieces: Sequence[tuple[int, int]]) -> None:
    """Are the pages behind these ranges of the size that the region was created with?"""
    found = other_page_size(page_size, pieces)
    if found is not None:
        raise mr._refuse(
            Rule.MR_PAGE_SIZE,
            f"{op}: at {found[0]:#x} lie pages of {found[1]} B; the region was made with page_size {page_size}\n"
            "  rule: all pages tied to it later have that size, fi_mr(3) page_size\n"
            "  try: page_size 0, which leaves it to the system",
            op=op,
        )
