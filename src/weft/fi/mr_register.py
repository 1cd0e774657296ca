"""Registration by every rule of fi_mr(3); the extension's Domain.mr_reg handles plain regions itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import _nic, _process, errors
from ..flags import ADDR_UNSPEC, KEY_NOTAVAIL, AvFlag, EqEvent, Errno, Flag, MrFlag, MrMode
from ..memory import hmem
from ..memory.pages import page_sizes
from . import _args, _handle
from ._ranges import within
from .auth_key import auth_key_bytes
from .av import AddressVector
from .eq import EqEntry
from .mr import AsyncMemoryRegion, MemoryRegion, RawMemoryRegion
from .mr_attr import PLAIN, Extra, MrAttr, MrAuthKey
from .mr_device import DEVICE_FLAGS, declared, map_dmabuf, refuse_undeclared

if TYPE_CHECKING:
    from .domain import Domain

__all__ = ["ACCESS", "cut", "register", "register_attr"]

ACCESS = Flag.SEND | Flag.RECV | Flag.READ | Flag.WRITE | Flag.REMOTE_READ | Flag.REMOTE_WRITE | Flag.COLLECTIVE
_FLAGS = Flag.RMA_EVENT | Flag.RMA_PMEM | MrFlag.MR_SINGLE_USE


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
            refuse_undeclared(op, buffers)
        extra = PLAIN
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
    if extra is not PLAIN:
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
        buffer, extra = map_dmabuf(op, attr)
        return register(
            domain, op, [buffer], attr.access, attr.offset, attr.requested_key, flags, attr.context,
            depth=4, extra=_authorized(domain, op, attr, flags, extra),
        )  # fmt: skip
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
    extra = declared(domain, op, attr, iov, flags) if base is None else PLAIN
    extra = _authorized(domain, op, attr, flags, extra)
    if attr.page_size and domain.mr_mode & MrMode.MR_MMU_NOTIFY and base is None:
        extra = replace(extra, page_size=attr.page_size)
    return register(
        domain, op, iov, attr.access, attr.offset, attr.requested_key, flags, attr.context, base, None, 4, extra
    )


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
    if flags & DEVICE_FLAGS and domain._hmem:
        if not flags & ~int(_FLAGS | DEVICE_FLAGS):
            if op == "mr_regattr":
                return
            raise errors.BadFlags(f"{op}: {MrFlag(flags)!s} describe an MrAttr: use mr_regattr", op=op)
    elif flags & DEVICE_FLAGS:
        raise errors.BadFlags(f"{op}: {MrFlag(flags)!s} need a domain opened with HMEM, which this one is not", op=op)
    if flags & AvFlag.AUTH_KEY and domain._av_auth_key and op == "mr_regattr":
        flags &= ~int(AvFlag.AUTH_KEY)
        if not flags & ~int(_FLAGS | DEVICE_FLAGS):
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
