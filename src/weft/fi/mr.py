"""Memory regions (fi_mr): their life from registration to close.

`Domain.mr_reg`, `mr_regv` and `mr_regattr` make them, by way of `mr_register.py`. This module
implements a region's behaviour under the domain's mr_mode for all providers; the NIC checks keys, bounds and access.

Source: fi_mr(3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from .. import _nic, errors
from .._with import With
from ..flags import KEY_NOTAVAIL, Control, Flag, HmemIface, MrMode
from ..memory.pages import other_page_size
from . import _args, _handle
from ._control import Controlled
from ._ranges import within
from .cntr import Counter
from .endpoint import Endpoint
from .policy import RegionPolicy
from .policy_rules import RegionFacts
from .raw_key import make_raw_key
from .rules import Rule

if TYPE_CHECKING:
    from .domain import Domain

# Operators of the enumerations cost a microsecond each.
_REMOTE, _ENDPOINT = int(Flag.REMOTE_READ | Flag.REMOTE_WRITE), int(MrMode.MR_ENDPOINT)


class MemoryRegion(Controlled, With, _nic.MemoryRegionCore):
    """Memory that peers may reach with a key (struct fid_mr).

    Attributes:
        key: Remote key (fi_mr_key); `fi.KEY_NOTAVAIL` on a domain opened with `fi.MR_RAW`.
        desc: Local descriptor (fi_mr_desc), for the desc argument of data transfers.
        length: Bytes.
        address: Virtual address of the first byte, under every mode. Peers address the first byte by 0, or under
            `fi.MR_VIRT_ADDR` by this address: the first value of `raw_attr()`.
        access: The access rights, as registered.
        state: "disabled", "enabled" or "closed".

    `mr[a:b]` is a registered slice, the fastest local buffer.

    The region keeps the exporter of its memory alive until the region is closed. Thread safety: any thread.
    Source: fi_mr(3).
    """

    # Registration is a hot path: this class has no __init__ of its own, and the extension keeps `_closed`, `_site`,
    # `_fixed`, `_associated` and `domain` (set after construction, which enters the region in the domain's list), so
    # that an ordinary region has no __dict__. The extension implements `bind`, `enable` and `close`; it calls the
    # methods below for refusals and for regions that are not ordinary. `_special` tells `close()` to call `_close`,
    # for state that the extension does not know.
    _called = "mr"
    _commands = {  # noqa: RUF012
        int(Control.ENABLE): lambda mr, _: mr.enable(),
        int(Control.GET_RAW_MR): lambda mr, arg: mr.raw_attr(arg),
        int(Control.REFRESH): lambda mr, arg: mr.refresh(arg),
    }
    if TYPE_CHECKING:
        domain: Domain
        _closed: bool
        _site: _handle.Site | None
        _special: bool
        _staged: bool  # the extension registered it, and may bind and enable it
        _fixed: bool  # enable() was called: no further bindings
        _associated: tuple[Any, ...]  # the endpoints and counters that it is bound to
    _keep: Any = None
    _by_owner = False  # only this process's engine can copy the memory
    _base_addr: int | None = None  # of a DMA-buf: the virtual address of its first byte
    _spans: tuple[tuple[int, int], ...] = ()
    _base: MemoryRegion | None = None
    _subs: _handle.Children | None = None
    _wants_event = False  # registered with FI_RMA_EVENT
    _pending = False  # asynchronous registration: the application has not read its event yet
    _auth_av: Any = None  # the address vector of its authorization keys
    _page_size = 0
    _unnotified = False  # under FI_MR_MMU_NOTIFY: fi_mr_refresh has not been called yet
    _decided: RegionPolicy | None = None  # the provider's policy of this region
    _facts: RegionFacts | None = None
    _published = False  # peers may have reached the region

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

    def _bind(self, fid: Counter | Endpoint, flags: int = 0) -> None:
        _handle.check(self, "mr.bind")
        if not isinstance(fid, (Counter, Endpoint)):
            raise self._refuse(Rule.MR_BIND_OBJECT, f"mr.bind: a region takes a Counter or an Endpoint, not {fid!r}")
        _handle.check(fid, "mr.bind")
        flags = _args.number("mr.bind", flags=flags)
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
        self._unstage()
        if isinstance(fid, Counter):
            self._check_count(fid, self.domain.policy.regions.counters_max)
            self._bind_cntr(fid, flags)
        else:
            self._check_count(fid, self.domain.policy.regions.endpoints_max)
            self._bind_ep(fid, flags)
        self._associated += (fid,)
        if self.domain.policy.regions.busy == "ep":
            _handle.adopt(self, fid)
        self._special = True

    def _check_count(self, fid: Counter | Endpoint, most: int | None) -> None:
        kind = Counter if isinstance(fid, Counter) else Endpoint
        bound = [a for a in self._associated if isinstance(a, kind)]
        if most is not None and len(bound) >= most:
            raise self._refuse(
                Rule.MR_BIND_COUNT,
                f"mr.bind: {self!r} is bound to {bound[0]!r} already\n"
                f"  rule: {self.domain.provider.name} binds a region to at most {most} {kind.__name__}\n"
                "  try: another region of the same memory",
            )

    def _bind_cntr(self, cntr: Counter, flags: int) -> None:
        if not self.domain.policy.regions.events:
            raise self._refuse(
                Rule.MR_BIND_EVENTS, f"mr.bind: {self.domain.provider.name} cannot report accesses to a region"
            )
        exact = self.domain.policy.regions.bind_flags == "exact"
        if flags != Flag.REMOTE_WRITE if exact else not flags & Flag.REMOTE_WRITE:
            raise self._refuse(
                Rule.MR_BIND_FLAGS, f"mr.bind: flags {Flag(flags)!s} for a counter; only REMOTE_WRITE can be counted"
            )
        if self.domain.mr_mode & MrMode.MR_RMA_EVENT and not self._wants_event:
            raise self._refuse(
                Rule.MR_BIND_NO_EVENT,
                "mr.bind: the domain requires MR_RMA_EVENT and this region was registered without RMA_EVENT\n"
                "  try: mr_reg(..., flags=fi.RMA_EVENT), bind, enable()",
            )
        self.bind_cntr(cntr, int(Flag.REMOTE_WRITE))

    def _bind_ep(self, ep: Endpoint, flags: int) -> None:
        if flags and self.domain.policy.regions.bind_flags == "exact":
            raise self._refuse(Rule.MR_BIND_FLAGS, f"mr.bind: flags {Flag(flags)!s} for an endpoint; they have to be 0")
        if self.domain.mr_mode & MrMode.MR_ENDPOINT:
            if self._auth_av is not None and ep._av is not self._auth_av:
                raise self._refuse(
                    Rule.MR_BIND_AV,
                    f"mr.bind: the region's authorization keys are of {self._auth_av!r}, the endpoint uses {ep._av!r}\n"
                    "  rule: under MR_ENDPOINT both are the same vector, fi_mr(3) av",
                )
            if not ep.enabled:
                raise self._refuse(
                    Rule.MR_BIND_ENDPOINT,
                    f"mr.bind: {ep!r} is not enabled\n"
                    "  rule: a region is bound to an endpoint that has its address\n"
                    "  try: ep.enable() first",
                )
            if self._wants_event and self.domain.policy.regions.asked and not ep.caps & Flag.RMA_EVENT:
                raise self._refuse(
                    Rule.MR_BIND_EP_EVENT,
                    f"mr.bind: {self!r} was registered with RMA_EVENT, {ep!r} was opened without that capability\n"
                    "  try: fi.RMA_EVENT among the capabilities of the hints",
                )
            if not self._local_free:
                self.bind_ep(ep)

    @property
    def _local_free(self) -> bool:
        return self.domain.policy.regions.local_free and not self.access & _REMOTE

    def _unstage(self) -> None:
        """Let this class manage a region that the extension registered by itself."""
        if not self._staged:
            return
        regions = self.domain.policy.regions
        if regions.busy == "ep":
            _handle.adopt(self, *self._associated)
        self.unstage()
        self._special = True
        if regions.asked:
            owner = _nic.region_exporters(self)[0]
            self._facts = RegionFacts(
                address=self.address,
                length=self.length,
                access=self.access,
                flags=0,
                requested_key=0 if self.domain.policy.keys.provider else self.key,
                readonly=self.readonly,
                iface=self.iface,
                owner=None if isinstance(owner, tuple) else owner,
                domain=self.domain,
            )
            self._decided = self.domain.policy.region(self._facts)

    def _enable(self) -> None:
        _handle.check(self, "mr.enable")
        if self._fixed:
            return
        bound_first = self.domain.policy.regions.needs_bind and self.domain._mode_bits & _ENDPOINT
        if bound_first and not any(isinstance(a, Endpoint) for a in self._associated):
            raise self._refuse(
                Rule.MR_ENABLE_UNBOUND,
                "mr.enable: the domain requires MR_ENDPOINT and the region is bound to no endpoint\n"
                "  try: mr.bind(ep) first",
            )
        self._unstage()
        if not self._unnotified and not self._pending:
            self._publish()
        self._fixed = True

    def _publish(self) -> None:
        """Enable the region for peers; the first time, the region's policy takes the resources."""
        if self._decided is None or self._published or self._local_free:
            self.enable_core()
            return
        assert self._facts is not None
        found = self._decided.enable(
            self._facts._replace(
                endpoints=tuple([a for a in self._associated if isinstance(a, Endpoint)]),
                counters=tuple([a for a in self._associated if isinstance(a, Counter)]),
            )
        )
        try:
            if isinstance(found, _nic.Mapping):
                self.enable_mapped(found)
            else:
                self.enable_core(found)
        except errors.NoKey as taken:
            raise self._refuse(Rule.MR_KEY_TAKEN, taken.message, op="mr.enable") from None
        self._published = True

    def raw_attr(self, key_size: int | None = None, flags: int = 0) -> tuple[int, bytes]:
        """Base address and raw key (fi_mr_raw_attr), for `Domain.map_raw` at the peer.

        Args:
            key_size: Bytes of space that the caller has; None: as many as needed.

        Returns:
            (base_addr, raw_key). base_addr is the virtual address under `fi.MR_VIRT_ADDR`, 0 otherwise.

        Raises:
            TooSmall: The message and `.needed` give the size of the key, domain_attr.mr_key_size.
            BadFlags: Unknown flags.

        Source: fi_mr(3) fi_mr_raw_attr.
        """
        _handle.check(self, "mr.raw_attr")
        self._has(Control.GET_RAW_MR)
        flags = _args.number("mr.raw_attr", flags=flags)
        _args.maybe("mr.raw_attr", key_size=key_size)
        if flags:
            raise self._refuse(Rule.MR_RAW_ATTR_FLAGS, f"mr.raw_attr: flags {flags:#x}; they have to be 0")
        size = self.domain.attr.mr_key_size
        if key_size is not None and key_size < size:
            failed = self._refuse(
                Rule.MR_RAW_ATTR_SIZE, f"mr.raw_attr: a raw key takes {size} B, more than key_size {key_size}"
            )
            failed.needed = size  # type: ignore[attr-defined]
            raise failed
        if self._late and self._real_key() == KEY_NOTAVAIL:
            raise self._refuse(Rule.MR_INCOMPLETE, f"mr.raw_attr: {self!r} has no key yet\n  try: enable() first")
        base = 0
        if self.domain.virt_addr:
            base = self.address if self._base_addr is None else self._base_addr
        return base, make_raw_key(self.domain, self._real_key())

    def refresh(self, iov: Sequence[Any] | None = None, count: int | None = None, flags: int = 0) -> None:
        """Notify the provider that the region's pages exist now, or have changed (fi_mr_refresh).

        For domains opened with `fi.MR_MMU_NOTIFY`. Peers can access a region of such a domain after its first refresh.
        During a refresh peers are refused; afterwards the region has the current pages.

        Args:
            iov: Buffers within the region whose pages changed; None: the whole region. Only these pages are checked.
            count: Number of these buffers to use; None: all.
            flags: 0.

        Raises:
            Fault: A page is missing. Before the first refresh the region then stays inaccessible.
            InvalidArgument: A buffer is not within the region, or its pages have another size than the region's
                page_size.
            BadFlags: Unknown flags.
            NoSys: The domain does not need the call: accesses go through this process's page tables.

        Source: fi_mr(3) fi_mr_refresh.
        """
        op = "mr.refresh"
        _handle.check(self, op)
        self._has(Control.REFRESH)
        flags = _args.number(op, flags=flags)
        _args.maybe(op, count=count)
        notified = bool(self.domain.mr_mode & MrMode.MR_MMU_NOTIFY)
        if not notified and not self.domain.policy.regions.refreshes:
            raise self._refuse(
                Rule.MR_REFRESH_MODE,
                f"{op}: the domain does not require MR_MMU_NOTIFY, and accesses go through this process's page tables: "
                "the region has the current pages at any time",
            )
        if flags:
            raise self._refuse(Rule.MR_REFRESH_FLAGS, f"{op}: flags {flags:#x}; they have to be 0")
        if self._pending:
            raise self._refuse(Rule.MR_INCOMPLETE, f"{op}: {self!r} is not complete: read its MR_COMPLETE event first")
        pieces = list(self._ranges())
        if iov is not None:
            pieces = [_nic.describe_buffer(b)[:2] for b in _args.each(op, "iov", iov, "buffers")[:count]]
            if count is not None and len(pieces) < count:
                raise self._refuse(Rule.MR_REFRESH_RANGE, f"{op}: count {count}, but iov has {len(pieces)} entries")
        for start, size in pieces:
            if not within((start, size), self._ranges()):
                raise self._refuse(
                    Rule.MR_REFRESH_RANGE,
                    f"{op}: {size} B at {start:#x} do not lie within {self!r}\n"
                    "  try: buffers of the region, or None for all of it",
                )
        usable = self.state == "enabled"
        if notified:
            self.disable_core()
        if self._page_size:
            try:
                _check_pages(self, op, self._page_size, pieces)
            except errors.FabricError:
                if notified and usable and not self._unnotified:
                    self._publish()
                raise
        missing = next((page for piece in pieces if (page := self.missing_page(*piece)) is not None), None)
        if missing is None:
            self._unnotified = False
            usable = usable or self._fixed or not self._needs_enable
        if notified and usable:
            self._publish()
        if missing is not None:
            raise self._refuse(
                Rule.MR_REFRESH_PAGES,
                f"{op}: no page is behind address {missing:#x} of {self!r}\n"
                "  rule: all pages that a notification names must exist, fi_mr(3) MR_MMU_NOTIFY\n"
                "  try: map and touch the pages first, or name only present pages in iov",
            )

    @property
    def _late(self) -> bool:
        """True if the region gets its key when it is enabled."""
        keys = self.domain.policy.keys
        return keys.provider and keys.known_at == "enable"

    @property
    def _needs_enable(self) -> bool:
        mode = self.domain.mr_mode
        if self._local_free:
            return False
        return bool(mode & MrMode.MR_ENDPOINT) or bool(self._wants_event and mode & MrMode.MR_RMA_EVENT)

    # The extension's close() calls this for regions with bindings, sub-MRs or a policy.
    def _close(self) -> None:
        if self._closed:
            return
        if self._associated and self.domain.policy.regions.busy == "mr":
            users = [a for a in self._associated if not a._closed]
            if users and self._made_in == users[0]._made_in:
                raise self._refuse(Rule.MR_CLOSE_BOUND, _handle.users_text(self, users), op="close")
        _handle.close(self, self._end, self._subs or {}, self._parents())

    def _end(self) -> None:
        self.close_core()
        if self._decided is not None:
            self._decided.close()
            self._decided = self._facts = None  # drops their references to the memory's owner

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

    def __reduce__(self) -> NoReturn:
        _handle.no_copies(self)

    def __enter__(self) -> MemoryRegion:
        _handle.check(self, "with")
        return self

    def _finalize(self) -> None:
        """Called by the extension when a region is collected without close()."""
        _handle.finalize(self, self._end, self._parents())

    def __repr__(self) -> str:
        if self._closed:
            return "<MemoryRegion closed>"
        where = f", {HmemIface(self.iface).name} {self.device}" if self.iface else ""
        return f"<MemoryRegion {self._real_key():#x}, {self.length} B{where}, {Flag(self.access)!s}, {self.state}>"


class RawMemoryRegion(MemoryRegion):
    """A region of a domain opened with FI_MR_RAW: `key` is `fi.KEY_NOTAVAIL`, `raw_attr` returns the key."""

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
            raise self._refuse(
                Rule.MR_INCOMPLETE,
                f"{op}: {self!r} is not complete\n"
                "  rule: an asynchronous registration is complete when its event has been read, fi_mr(3)\n"
                "  try: read the MR_COMPLETE event from the domain's event queue first",
            )

    def _complete(self) -> None:
        if not self._pending:
            return
        self._pending = False
        if not self._closed and not self._unnotified and (self._fixed or not self._needs_enable):
            self._publish()

    def _real_key(self) -> int:
        return _core_key.__get__(self)  # type: ignore[no-any-return]


_core_key: Any = _nic.MemoryRegionCore.__dict__["key"]


_nic.set_region_type(MemoryRegion)


def _check_pages(mr: MemoryRegion, op: str, page_size: int, pieces: Sequence[tuple[int, int]]) -> None:
    """Refuse ranges whose pages differ in size from the region's page_size."""
    found = other_page_size(page_size, pieces)
    if found is not None:
        raise mr._refuse(
            Rule.MR_PAGE_SIZE,
            f"{op}: the pages at {found[0]:#x} have {found[1]} B; the region was made with page_size {page_size}\n"
            "  rule: all pages of the region have that size, fi_mr(3) page_size\n"
            "  try: page_size 0, which accepts pages of any size",
        )
