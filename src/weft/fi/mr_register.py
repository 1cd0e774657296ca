"""Registration by every rule of fi_mr(3); the extension's Domain.mr_reg handles plain regions itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import _nic, errors
from ..flags import ADDR_UNSPEC, KEY_NOTAVAIL, AvFlag, EqEvent, Flag, MrFlag, MrMode
from ..memory import hmem
from ..memory.pages import page_sizes
from . import _args, _handle
from ._ranges import within
from .auth_key import auth_key_bytes, keys_in_force
from .av import AddressVector
from .eq import EqEntry
from .mr import AsyncMemoryRegion, MemoryRegion, RawMemoryRegion
from .mr_attr import PLAIN, Extra, MrAttr, MrAuthKey
from .mr_device import DEVICE_FLAGS, declared, map_dmabuf, refuse_undeclared
from .policy_rules import RegionFacts
from .rules import Rule

if TYPE_CHECKING:
    from .domain import Domain

_WRITES = int(Flag.REMOTE_WRITE | Flag.READ | Flag.RECV)
ACCESS = Flag.SEND | Flag.RECV | Flag.READ | Flag.WRITE | Flag.REMOTE_READ | Flag.REMOTE_WRITE | Flag.COLLECTIVE


# Under these modes `register` checks each region.
_SPECIAL_MODES = MrMode.MR_BASIC | MrMode.MR_RAW | MrMode.MR_MMU_NOTIFY | MrMode.MR_HMEM


def quick_rules(domain: Domain) -> tuple[_nic.RegionRules, _nic.RegionTakes | None]:
    """The policy's rules and the resources of a region, as data, with which the extension handles plain regions.

    A plain region is one buffer without flags. The extension registers, binds and enables it. To refuse a call, and for
    other regions, the extension calls `register` and the methods of `MemoryRegion`.
    """
    policy, mode = domain.policy, domain.mr_mode
    keys, regions = policy.keys, policy.regions
    disabled = bool(mode & MrMode.MR_ENDPOINT)
    late = keys.provider and keys.known_at == "enable"
    takes = policy.region_takes() if regions.asked else None
    quick = not mode & _SPECIAL_MODES and not domain._av_auth_key
    if late or regions.asked:
        quick = quick and disabled and (takes is not None or not regions.asked)
    elif keys.provider and keys.maker == "policy":
        quick = False
    rules = _nic.RegionRules(
        quick=bool(quick),
        access=int(ACCESS),
        disabled=disabled,
        key_ignored=keys.provider,
        key_later=late,
        key_end=min(1 << keys.client_bits, KEY_NOTAVAIL),
        key_meanings=keys.meanings,
        local_free=regions.local_free,
        needs_bind=regions.needs_bind,
        ep_busy=regions.busy == "ep",
        decided=regions.asked,
    )
    return rules, takes


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
    depth: int = 4,
    extra: Extra | None = None,
) -> MemoryRegion:
    """Register a region by every rule. The extension's Domain.mr_reg calls this only for regions that are not plain."""
    _handle.check(domain, op)
    if extra is None:
        refuse_without_keys(domain, op)
        if domain._hmem and domain.mr_mode & MrMode.MR_HMEM:
            refuse_undeclared(domain, op, buffers)
        extra = PLAIN
    _args.whole(op, access=access, offset=offset, flags=flags)
    access = int(access)  # a NumPy integer cannot be combined with larger numbers
    if access & ~int(ACCESS):
        raise domain._refuse(
            Rule.MR_ACCESS,
            f"{op}: access {Flag(access & ~int(ACCESS))!s} is not a permission; known: {ACCESS!s}"
            + _perhaps_length(op, buffers, access),
        )
    if offset and domain.policy.regions.offset == "reserved":
        raise domain._refuse(
            Rule.MR_OFFSET,
            f"{op}: offset {offset} is reserved and must be 0, fi_mr(3)" + _perhaps_length(op, buffers, access),
        )
    _check_flags(domain, op, flags)
    if not buffers:
        raise domain._refuse(Rule.MR_NO_BUFFER, f"{op}: a region needs at least one buffer")
    if len(buffers) > domain.attr.mr_iov_limit:
        raise domain._refuse(
            Rule.MR_IOV_LIMIT,
            f"{op}: {len(buffers)} buffers; a region takes at most mr_iov_limit, {domain.attr.mr_iov_limit}",
        )
    keys, regions = domain.policy.keys, domain.policy.regions
    _args.integer(op, requested_key=requested_key)
    remote = bool(access & (Flag.REMOTE_READ | Flag.REMOTE_WRITE))
    asked_key = requested_key
    if keys.provider or (regions.local_free and not remote):
        requested_key = 0
    elif requested_key and not keys.client_bits:
        raise domain._refuse(
            Rule.MR_KEY_PROVIDER,
            f"{op}: requested_key {requested_key:#x}: {domain.provider.name} makes the keys itself\n"
            "  try: requested_key=0, and mr.key afterwards",
        )
    elif not 0 <= requested_key < min(1 << max(keys.client_bits, 1), KEY_NOTAVAIL):
        raise domain._refuse(
            Rule.MR_KEY_RANGE,
            f"{op}: requested_key {requested_key:#x} is out of range: a key has {(keys.client_bits + 7) // 8} bytes, "
            "and KEY_NOTAVAIL is not a key",
        )
    elif requested_key & keys.meanings:
        raise domain._refuse(
            Rule.MR_KEY_RANGE,
            f"{op}: requested_key {requested_key:#x} sets {requested_key & keys.meanings:#x}: bits that the provider "
            "has a use of its own for",
        )
    wants_event = bool(flags & Flag.RMA_EVENT)
    unnotified = bool(domain.mr_mode & MrMode.MR_MMU_NOTIFY)
    disabled = (
        unnotified
        or bool(domain.mr_mode & MrMode.MR_ENDPOINT)
        or bool(wants_event and domain.mr_mode & MrMode.MR_RMA_EVENT)
    ) and (remote or not regions.local_free)
    if flags & Flag.RMA_PMEM:
        _check_persistent(domain, op, buffers)
    if regions.allocated and domain.mr_mode & (MrMode.MR_ALLOCATED | MrMode.MR_BASIC) and not extra.unowned:
        _check_backed(op, domain, buffers, access)
    if base is not None and base._by_owner:
        extra = extra._replace(by_owner=True)
    pending = domain._mr_eq is not None
    cls: type[MemoryRegion] = RawMemoryRegion if domain.mr_mode & MrMode.MR_RAW else MemoryRegion
    if pending:
        cls = AsyncMemoryRegion
    late = keys.provider and keys.known_at == "enable" and remote
    decided, facts = None, None
    if regions.asked:
        facts = _facts(domain, buffers, int(access), int(flags), asked_key)
        decided = domain.policy.region(facts)
        if decided is not None and keys.provider and keys.maker == "policy" and not late:
            requested_key = decided.key
    try:
        mr = _made(
            cls,
            domain,
            buffers,
            access=int(access),
            requested_key=requested_key,
            flags=int(flags),
            context=context,
            enabled=not disabled and not pending and not late and decided is None,
            key_later=late,
            owned=keep is not None or extra.owned,
            unowned=extra.unowned,
            by_owner=extra.by_owner,
            base=extra.base_addr,
            vnis=extra.vnis,
            source=extra.source,
        )
    except BaseException:
        if decided is not None:
            decided.close()
        raise
    mr.domain = domain
    if decided is not None:
        mr._decided, mr._facts, mr._special = decided, facts, True
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
    if not disabled and not pending and (late or decided is not None):
        try:
            mr._publish()
        except BaseException:
            mr._site = None
            mr.close()
            raise
    if base is not None:
        _handle.adopt(mr, base)
    if domain._mr_eq is not None:
        assert isinstance(mr, AsyncMemoryRegion)
        # The event holds the region until the application reads it.
        domain._mr_eq.post(EqEvent.MR_COMPLETE, EqEntry(mr, context), mr._complete)
    return mr


def _facts(domain: Domain, buffers: Sequence[Any], access: int, flags: int, requested_key: int) -> RegionFacts:
    found = [_nic.describe_buffer(b)[:4] for b in buffers]
    return RegionFacts(
        address=found[0][0],
        length=sum(one[1] for one in found),
        access=access,
        flags=flags,
        requested_key=requested_key,
        readonly=any(one[2] for one in found),
        iface=found[0][3],
        owner=buffers[0] if len(buffers) == 1 and not isinstance(buffers[0], tuple) else None,
        domain=domain,
    )


def _made(cls: type[MemoryRegion], domain: Domain, buffers: Sequence[Any], **how: Any) -> MemoryRegion:
    """The region; raises the provider's error if the NIC refuses."""
    try:
        return cls(domain, buffers, **how)
    except errors.NoKey as taken:
        raise domain._refuse(Rule.MR_KEY_TAKEN, taken.message) from None
    except errors.AccessDenied as readonly:
        raise domain._refuse(Rule.MR_READ_ONLY, readonly.message) from None


def register_described(domain: Domain, op: str, attr: MrAttr, flags: int) -> MemoryRegion:
    """fi_mr_reg and fi_mr_regv with a flag of device memory: fi_mr_regattr with what their arguments leave out.

    Under FI_MR_DMABUF the buffer is a MrDmabuf; otherwise the runtimes say which device has the memory.
    """
    _args.whole(op, flags=flags)
    buffers = attr.mr_iov
    if flags & MrFlag.MR_DMABUF:
        attr = replace(attr, dmabuf=buffers[0] if len(buffers) == 1 else None)
    elif domain._hmem and buffers:
        found = hmem.locate(int(_nic.describe_buffer(buffers[0])[0]))
        if found is not None:
            attr = replace(attr, iface=found.iface, device=found.device)
    return register_attr(domain, attr, flags, op, 6)


def register_attr(domain: Domain, attr: MrAttr, flags: int, op: str = "mr_regattr", depth: int = 4) -> MemoryRegion:
    """fi_mr_regattr."""
    _handle.check(domain, op)
    _handle.expect(attr, MrAttr, op, "attr")
    _args.whole(op, flags=flags)
    _check_flags(domain, op, flags)
    if attr.hmem_data is not None and attr.base_mr is None:
        raise domain._refuse(Rule.MR_ATTR, f"{op}: hmem_data is reserved and must be None, fi_mr(3)")
    if attr.page_size and attr.base_mr is None and attr.page_size not in page_sizes():
        known = ", ".join(str(s) for s in sorted(page_sizes()))
        raise domain._refuse(
            Rule.MR_PAGE_SIZE, f"{op}: page_size {attr.page_size} is not a page size of this system: {known}"
        )
    if flags & MrFlag.MR_DMABUF:
        buffer, extra = map_dmabuf(domain, op, attr)
        return register(
            domain, op, [buffer], attr.access, attr.offset, attr.requested_key, flags, attr.context,
            depth=depth, extra=authorized(domain, op, attr, flags, extra),
        )  # fmt: skip
    _args.maybe(op, iov_count=attr.iov_count)
    iov = _args.each(op, "mr_iov", attr.mr_iov, "buffers")[: attr.iov_count]
    if attr.iov_count is not None and len(iov) < attr.iov_count:
        raise domain._refuse(Rule.MR_ATTR, f"{op}: iov_count {attr.iov_count}, but mr_iov has {len(iov)} entries")
    base = attr.base_mr
    if base is not None:
        _handle.check(base, op)
        if base.domain is not domain:
            raise domain._refuse(Rule.MR_BASE_DOMAIN, f"{op}: base_mr {base!r} belongs to {base.domain!r}")
        for buffer in iov:
            start, size = _nic.describe_buffer(buffer)[:2]
            if not within((start, size), base._ranges()):
                raise domain._refuse(
                    Rule.MR_BASE_RANGE,
                    f"{op}: {size} B at {start:#x} do not lie within base_mr {base!r}\n"
                    "  rule: a sub-MR is fully contained in its base, fi_mr(3) base_mr",
                )
    extra = declared(domain, op, attr, iov, flags) if base is None else PLAIN
    extra = authorized(domain, op, attr, flags, extra)
    if attr.page_size and domain.mr_mode & MrMode.MR_MMU_NOTIFY and base is None:
        extra = extra._replace(page_size=attr.page_size)
    return register(
        domain, op, iov, attr.access, attr.offset, attr.requested_key, flags, attr.context, base, None, depth, extra
    )


def refuse_without_keys(domain: Domain, op: str) -> None:
    """Refuse a call that names no authorization key, where a region has to (FI_AV_AUTH_KEY)."""
    if domain._av_auth_key:
        raise domain._refuse(
            Rule.MR_AV_AUTH_KEY,
            f"{op}: the domain was opened with AV_AUTH_KEY\n"
            "  rule: its regions name the address vector of their keys, fi_mr(3)\n"
            "  try: mr_regattr(fi.MrAttr(..., auth_key=fi.MrAuthKey(av), auth_key_size=fi.MrAuthKey.SIZE))",
        )


def authorized(domain: Domain, op: str, attr: MrAttr, flags: int, extra: Extra) -> Extra:
    """Add the peers that the region's authorization key admits."""
    if not keys_in_force(domain.info):
        return extra
    if domain._av_auth_key:
        return _authorized_by_av(domain, op, attr, flags, extra)
    if not attr.auth_key_size:
        return extra  # size 0 means the domain's key; auth_key is ignored: fi_mr(3) auth_key
    if attr.auth_key is None:
        raise domain._refuse(
            Rule.MR_AUTH_KEY,
            f"{op}: auth_key None with auth_key_size {attr.auth_key_size}\n"
            "  rule: the bytes of a key and their number, or size 0 for the domain's key, fi_mr(3) auth_key_size",
        )
    key = auth_key_bytes(domain.provider, attr.auth_key, attr.auth_key_size)
    vni = domain.policy.credential_of(key).vni
    return extra if vni == domain.policy.credential.vni else extra._replace(vnis=(vni,))


def _authorized_by_av(domain: Domain, op: str, attr: MrAttr, flags: int, extra: Extra) -> Extra:
    key = attr.auth_key
    if not isinstance(key, MrAuthKey) or attr.auth_key_size != MrAuthKey.SIZE:
        raise domain._refuse(
            Rule.MR_AUTH_KEY,
            f"{op}: auth_key {key!r} with auth_key_size {attr.auth_key_size}\n"
            f"  rule: on a domain opened with AV_AUTH_KEY a MrAuthKey and {MrAuthKey.SIZE}, fi_mr(3) auth_key",
        )
    av = key.av
    if not isinstance(av, AddressVector):
        raise errors.InvalidArgument(f"{op}: av of the MrAuthKey is {av!r}, not an AddressVector")
    _handle.check(av, op)
    if av.domain is not domain:
        raise domain._refuse(Rule.MR_AUTH_KEY_DOMAIN, f"{op}: {av!r} belongs to {av.domain!r}")
    extra = extra._replace(auth_av=av)
    if key.src_addr == ADDR_UNSPEC:
        if not av.vnis:
            raise domain._refuse(
                Rule.MR_AUTH_KEY, f"{op}: {av!r} holds no authorization key\n  try: av.insert_auth_key"
            )
        return extra._replace(vnis=tuple(av.vnis))
    if not domain.info.caps & Flag.DIRECTED_RECV:
        raise domain._refuse(
            Rule.MR_AUTH_KEY,
            f"{op}: src_addr {key.src_addr} on a domain opened without DIRECTED_RECV\n"
            "  try: fi.DIRECTED_RECV in the capabilities of the hints, or src_addr ADDR_UNSPEC",
        )
    if flags & AvFlag.AUTH_KEY:
        return extra._replace(vnis=(domain.policy.credential_of(av.lookup_auth_key(key.src_addr)).vni,))
    return extra._replace(source=av.lookup_address(key.src_addr))


def _perhaps_length(op: str, buffers: Sequence[Any], access: int) -> str:
    """A hint for callers who pass the buffer's length as the access, as in the argument order of C; "" for others."""
    if op != "mr_reg" or access != int(_nic.describe_buffer(buffers[0])[1]):
        return ""
    return f"\n  try: mr_reg(buf, access, ..., len={access}): the length is a separate argument, by default all bytes"


def cut(domain: Domain, op: str, buf: Any, length: int, access: int) -> tuple[tuple[int, int], Any]:
    """The first `length` bytes of a buffer as (address, length), and the object that keeps the memory alive."""
    _args.whole(op, access=access)
    _args.integer(op, len=length)
    address, nbytes, readonly, _, keep = _nic.describe_buffer(buf)
    if length > nbytes:
        raise errors.InvalidArgument(f"{op}: len {length}, but the buffer has {nbytes} B")
    if length < domain.policy.regions.bytes_min or length < 0:
        raise domain._refuse(Rule.MR_EMPTY, f"{op}: len has to be at least 1, not {length}, fi_mr(3)")
    if readonly and access & _WRITES:
        raise domain._refuse(
            Rule.MR_READ_ONLY,
            f"{op}: the buffer is read-only, and {Flag(access)!s} writes to the buffer\n  try: a writable buffer",
        )
    return (address, length), keep


def _check_flags(domain: Domain, op: str, flags: int) -> None:
    known = domain.policy.regions.flags
    if not flags & ~known:
        return
    if flags & DEVICE_FLAGS and domain._hmem:
        if not flags & ~(known | int(DEVICE_FLAGS)):
            return
    elif flags & DEVICE_FLAGS:
        raise domain._refuse(
            Rule.MR_DEVICE_FLAGS, f"{op}: {MrFlag(flags)!s} need a domain opened with HMEM, which this one is not"
        )
    if flags & AvFlag.AUTH_KEY and domain._av_auth_key and op == "mr_regattr":
        flags &= ~int(AvFlag.AUTH_KEY)
        if not flags & ~(known | int(DEVICE_FLAGS)):
            return
    if flags & AvFlag.AUTH_KEY:
        raise domain._refuse(
            Rule.MR_FLAGS, f"{op}: AUTH_KEY needs a domain opened with AV_AUTH_KEY, which this one is not"
        )
    raise domain._refuse(
        Rule.MR_FLAGS, f"{op}: flags {MrFlag(flags & ~known)!s} are not supported; known: {_names(known)}"
    )


def _names(flags: int) -> str:
    most, others = flags.bit_length(), ~flags & ((1 << 64) - 1)
    if most > 32 and others.bit_count() < 8:
        return f"all others but {MrFlag(others)!s}"
    return ", ".join(str(MrFlag(1 << n)) for n in range(flags.bit_length()) if flags & 1 << n)


def _check_persistent(domain: Domain, op: str, buffers: Sequence[Any]) -> None:
    """Refuse FI_RMA_PMEM for memory that is not a shared mapping of a file, because other memory ends with the process.

    Uses the registration cache: asking the system takes 10 us and more, a hit does not ask.
    """
    for buffer in buffers:
        start, size = _nic.describe_buffer(buffer)[:2]
        try:
            if _nic.CacheRef(domain.policy.nic, start, size).persistent:
                continue
        except errors.Fault:
            pass  # pages are missing: the message below says where
        at = _nic.first_not_persistent(start, size)
        if at is not None:
            raise domain._refuse(
                Rule.MR_PERSISTENT,
                f"{op}: RMA_PMEM for {size} B at {start:#x}, which from {at:#x} on are not mapped from a file\n"
                "  rule: persistent memory is a shared mapping of a file, because other memory ends with the process\n"
                "  try: numpy.memmap(path, mode='r+')",
            )


def _check_backed(op: str, domain: Domain, buffers: Sequence[Any], access: int) -> None:
    """Refuse a region with missing pages under FI_MR_ALLOCATED, and a region of read-only pages that the access writes
    to.

    Python objects always have pages and say whether they are writable, so only bare (address, length) pairs are
    checked.
    """
    for buffer in buffers:
        if isinstance(buffer, tuple) and len(buffer) == 2 and isinstance(buffer[0], int):
            start, size = _nic.describe_buffer(buffer)[:2]
            if domain._hmem and hmem.locate(start) is not None:
                continue  # the device's runtime confirmed the allocation
            missing = domain.policy.nic.missing_page(start, size)
            if missing is not None:
                raise domain._refuse(
                    Rule.MR_NOT_ALLOCATED,
                    f"{op}: no page is behind address {missing:#x} of the {size} B at {start:#x}\n"
                    "  rule: under MR_ALLOCATED the whole region has pages when it is registered, fi_mr(3)\n"
                    "  try: map and touch the memory first, or a domain without MR_ALLOCATED",
                )
            fixed = _nic.first_not_writable(start, size) if access & _WRITES else None
            if fixed is not None:
                raise domain._refuse(
                    Rule.MR_READ_ONLY,
                    f"{op}: address {fixed:#x} of the {size} B at {start:#x} is mapped for reading alone\n"
                    f"  rule: {Flag(access & _WRITES)!s} writes to the memory\n"
                    "  try: a mapping with PROT_WRITE, or a region without REMOTE_WRITE, READ and RECV",
                )
