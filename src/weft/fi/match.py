"""Matching of one offer against the hints of getinfo.

The rules of fi_getinfo(3), in short:

* a zero in the hints means "anything"; a non-zero value is met or the offer is rejected;
* `mode` and `mr_mode` work the other way round: the caller lists the duties that it accepts; the provider keeps the
  bits that it needs and clears the rest, and is rejected if it needs more;
* primary capabilities are granted only on request, their modifiers limit them; secondary capabilities may be added.

Source: fi_getinfo(3), fi_domain(3), fi_endpoint(3), fi_mr(3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import errors
from ..flags import (
    AV_AUTH_KEY,
    MR_BASIC_MAP,
    VERSION,
    AddrFormat,
    AvType,
    EpType,
    Flag,
    Mode,
    MrMode,
    Order,
    Progress,
    Protocol,
    ResourceMgmt,
    Tc,
    Threading,
)
from ._table import show
from .attrs import DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr, dupinfo
from .auth_key import auth_key_bytes
from .offer import Candidate, No, Offer, Rejections

if TYPE_CHECKING:
    from .policy import Asked, Provider

_RMA_MODIFIERS = Flag.READ | Flag.WRITE | Flag.REMOTE_READ | Flag.REMOTE_WRITE
_MSG_MODIFIERS = Flag.SEND | Flag.RECV
_SECONDARY = (
    Flag.MULTI_RECV
    | Flag.SOURCE
    | Flag.RMA_EVENT
    | Flag.SHARED_AV
    | Flag.TRIGGER
    | Flag.FENCE
    | Flag.LOCAL_COMM
    | Flag.REMOTE_COMM
    | Flag.SOURCE_ERR
    | Flag.RMA_PMEM
)
_PRIMARY = (
    Flag.MSG
    | Flag.RMA
    | Flag.TAGGED
    | Flag.ATOMIC
    | Flag.MULTICAST
    | Flag.NAMED_RX_CTX
    | Flag.DIRECTED_RECV
    | Flag.HMEM
    | Flag.COLLECTIVE
    | Flag.XPU
    | Flag.AV_USER_ID
    | Flag.PEER
    | Flag.TAGGED_DIRECTED_RECV
    | Flag.TAGGED_MULTI_RECV
    | Flag.EXACT_DIRECTED_RECV
)
_OF_DOMAINS = Flag.AV_USER_ID | Flag.PEER
_OF_RECEIVES = Flag.DIRECTED_RECV | Flag.TAGGED_DIRECTED_RECV | Flag.TAGGED_MULTI_RECV | Flag.EXACT_DIRECTED_RECV
TX_CAPS = (
    _PRIMARY & ~(Flag.NAMED_RX_CTX | _OF_RECEIVES | _OF_DOMAINS)
    | Flag.READ
    | Flag.WRITE
    | Flag.SEND
    | Flag.FENCE
    | Flag.TRIGGER
)
RX_CAPS = (
    _PRIMARY & ~_OF_DOMAINS
    | Flag.REMOTE_READ
    | Flag.REMOTE_WRITE
    | Flag.RECV
    | Flag.RMA_EVENT
    | Flag.SOURCE
    | Flag.SOURCE_ERR
    | Flag.MULTI_RECV
)
DOMAIN_CAPS = Flag.LOCAL_COMM | Flag.REMOTE_COMM | Flag.SHARED_AV | _OF_DOMAINS

# A value satisfies a hint if it demands no more of the application: a higher rank means fewer duties.
_THREADING = {
    Threading.THREAD_SAFE: 5,
    Threading.THREAD_FID: 4,
    Threading.THREAD_ENDPOINT: 3,
    Threading.THREAD_COMPLETION: 2,
    Threading.THREAD_DOMAIN: 1,
    Threading.THREAD_UNSPEC: 0,
}
_PROGRESS = {
    Progress.PROGRESS_AUTO: 3,
    Progress.PROGRESS_CONTROL_UNIFIED: 2,
    Progress.PROGRESS_MANUAL: 1,
    Progress.PROGRESS_UNSPEC: 0,
}

_LIMITS = {
    "tx_attr": ("inject_size", "size", "iov_limit", "rma_iov_limit"),
    "rx_attr": ("total_buffered_recv", "size", "iov_limit"),
    "ep_attr": (
        "protocol_version",
        "max_msg_size",
        "msg_prefix_size",
        "max_order_raw_size",
        "max_order_war_size",
        "max_order_waw_size",
        "tx_ctx_cnt",
        "rx_ctx_cnt",
    ),
    "domain_attr": (
        "mr_key_size",
        "cq_data_size",
        "cq_cnt",
        "ep_cnt",
        "tx_ctx_cnt",
        "rx_ctx_cnt",
        "max_ep_tx_ctx",
        "max_ep_rx_ctx",
        "max_ep_stx_ctx",
        "max_ep_srx_ctx",
        "cntr_cnt",
        "mr_iov_limit",
        "max_err_data",
        "mr_cnt",
        "max_ep_auth_key",
        "max_group_id",
        "max_cntr_value",
        "max_err_cntr_value",
    ),
}
# Flag sets of which the hints may request any part; the answer has all offered flags.
_SUBSETS: tuple[tuple[str, str, type[Any]], ...] = (
    ("tx_attr", "msg_order", Order),
    ("rx_attr", "msg_order", Order),
)
# Flag sets for which the answer has the hints' flags, because these flags change the operations.
_CHOSEN: tuple[tuple[str, str, type[Any]], ...] = (
    ("tx_attr", "op_flags", Flag),
    ("rx_attr", "op_flags", Flag),
)


def match_offer(provider: Provider, offer: Offer, asked: Asked) -> Candidate:
    """Match one offer with the request."""
    version, h = asked.version, asked.hints
    info = dupinfo(offer.info)
    info.fabric_attr.api_version = version
    info.domain_attr.mr_mode = modes_needed(info, offer)
    rejections = Rejections()
    no = rejections.no

    if h is not None:
        _match_names(offer, h, no)
        match_caps(offer, h, info, no)
        _match_modes(provider, offer, h, info, version, no)
        widen_keys(provider, info)
        match_kinds(provider, offer, h, info, no)
        match_limits(offer, h, info, no)
        _match_auth_keys(provider, h, info, version, no)
        info.handle = h.handle
    else:
        widen_keys(provider, info)

    # Do not resolve names that are meant for another provider: "cxi0" is not a host name.
    foreign = any(r.hint in ("fabric_attr.prov_name", "addr_format") for r in rejections)
    try:
        src, dest = (None, None) if foreign else provider.resolve(asked, offer)
    except errors.FabricError as e:
        if isinstance(e, errors.InvalidArgument):
            raise
        no("node, service", f"{asked.node}, {asked.service}", "no such address", e.message)
    else:
        info.src_addr = src if src is not None else info.src_addr
        info.dest_addr = dest
        named = None if h is None else h.src_addr
        _take_vni(provider, info, named, no)
    provider.meets(offer, asked, info, no)

    kind = EpType(offer.info.ep_attr.type)
    domain = offer.info.domain_attr.name or ""
    return Candidate(provider.name, domain, kind, None if rejections else info, rejections)


def widen_keys(provider: Provider, info: Info) -> None:
    """Set mr_key_size to the length of keys under the granted mr_mode, fi_mr(3)."""
    info.domain_attr.mr_key_size = provider.key_size(info.domain_attr.mr_mode)


def modes_needed(info: Info, offer: Offer) -> MrMode:
    """The mr_mode bits that an offer requires for `info.caps`. MR_HMEM applies only with HMEM, MR_COLLECTIVE only with
    COLLECTIVE, fi_mr(3)."""
    mode = MrMode(offer.required)
    for bit, capability in _MODE_OF_CAPABILITY:
        if not Flag(info.caps) & capability:
            mode &= ~bit
    return mode


def complete(hints: Info) -> Info:
    """Hints with every part present: a part that the caller set to None counts as zeros."""
    h = dupinfo(hints)
    for name, cls in (
        ("tx_attr", TxAttr),
        ("rx_attr", RxAttr),
        ("ep_attr", EpAttr),
        ("domain_attr", DomainAttr),
        ("fabric_attr", FabricAttr),
    ):
        if getattr(h, name) is None:
            setattr(h, name, cls())
    return h


def _match_names(offer: Offer, h: Info, no: No) -> None:
    mine = offer.info
    asked_prov = h.fabric_attr.prov_name
    if h.fabric_attr.fabric is not None:
        asked_prov = asked_prov or h.fabric_attr.fabric.attr.prov_name
    domain_name = h.domain_attr.name
    if h.domain_attr.domain is not None:
        domain_name = domain_name or h.domain_attr.domain.name
    for hint, asked, offered in (
        ("fabric_attr.prov_name", asked_prov, mine.fabric_attr.prov_name),
        ("fabric_attr.name", h.fabric_attr.name, mine.fabric_attr.name),
        ("domain_attr.name", domain_name, mine.domain_attr.name),
    ):
        if asked is not None and asked != offered:
            no(hint, repr(asked), repr(offered))


def match_caps(offer: Offer, h: Info, info: Info, no: No) -> None:
    offered = Flag(offer.info.caps)
    asked = Flag(h.caps)
    for bit in _bits(int(asked) & ~int(offered)):  # numbers, because the complement of a flag has only known bits
        no("caps", str(Flag(bit)), str(offered), offer.remarks.get(bit, ""))
    if asked:
        data = Flag.RMA | Flag.ATOMIC
        messages = Flag.MSG | Flag.TAGGED | Flag.MULTICAST
        if asked & _RMA_MODIFIERS and not asked & data:
            no(
                "caps",
                str(asked & _RMA_MODIFIERS),
                "them with RMA or ATOMIC",
                "they limit RMA and ATOMIC; ask for one of these as well",
            )
        if asked & _MSG_MODIFIERS & offered and not asked & (messages | Flag.COLLECTIVE):
            no(
                "caps",
                str(asked & _MSG_MODIFIERS),
                "them with MSG or TAGGED",
                "they limit MSG and TAGGED; ask for one of these as well",
            )
        if asked & Flag.SOURCE_ERR & offered and not asked & Flag.SOURCE:
            no("caps", "SOURCE_ERR", "it with SOURCE", "ask for SOURCE as well")
        caps = asked & _PRIMARY
        if asked & data:
            caps |= asked & _RMA_MODIFIERS or _RMA_MODIFIERS
        if asked & messages:
            caps |= asked & _MSG_MODIFIERS or _MSG_MODIFIERS
        caps |= asked & _SECONDARY | (offered & _SECONDARY & ~offer.quiet)
        if asked & Flag.RMA_EVENT and not caps & (Flag.REMOTE_READ | Flag.REMOTE_WRITE):
            no(
                "caps",
                "RMA_EVENT",
                "it with REMOTE_READ or REMOTE_WRITE",
                "the target of an access makes the event, and without these the endpoint is no target",
            )
        info.caps = caps
    for part, mask in (("tx_attr", TX_CAPS), ("rx_attr", RX_CAPS), ("domain_attr", DOMAIN_CAPS)):
        have = Flag(info.caps) & mask
        want = Flag(getattr(h, part).caps)
        if part == "domain_attr":  # capabilities of the domain are requested there too
            have |= want & Flag(offer.info.domain_attr.caps)
        if int(want) & ~int(have):
            no(f"{part}.caps", str(want), str(have), "these have to be among the capabilities of the endpoint")
        getattr(info, part).caps = have


def _match_modes(provider: Provider, offer: Offer, h: Info, info: Info, version: int, no: No) -> None:
    needed = Mode(offer.info.mode)
    if needed & ~h.mode:
        no(
            "mode",
            str(Mode(h.mode)),
            f"it with {needed}",
            "the provider needs these modes; set them in the hints once the application honours them",
        )
    asked = MrMode(h.domain_attr.mr_mode)
    required = modes_needed(info, offer)
    found = provider.mr_mode(required, info.caps, asked, h.mode, version)
    if isinstance(found, str):
        no("domain_attr.mr_mode", str(asked), f"registration under {required}", found)
        return
    info.domain_attr.mr_mode = found
    # FI_LOCAL_MR replaces FI_MR_LOCAL for interface versions without that bit.
    if offer.required & MrMode.MR_LOCAL and not found & MrMode.MR_LOCAL:
        info.mode = info.mode | Mode.LOCAL_MR


_MODE_OF_CAPABILITY = ((MrMode.MR_HMEM, Flag.HMEM), (MrMode.MR_COLLECTIVE, Flag.COLLECTIVE))


def negotiate_mr_mode(required: MrMode, asked: MrMode, mode: int, version: int) -> MrMode | str:
    """The mr_mode in force for the provider's required and the caller's offered bits, or the reason of a rejection.

    Args:
        required: Bits that the provider needs.
        asked: Bits of the hints; FI_MR_BASIC and FI_MR_SCALABLE exclude other bits.
        mode: fi_info.mode of the hints (FI_LOCAL_MR).
        version: Interface version of the caller: before 1.5 a zero means "any".

    Source: fi_mr(3) from "FI_MR_LOCAL" to "Basic Memory Registration".
    """
    local = bool(required & MrMode.MR_LOCAL)
    rest = required & ~MrMode.MR_LOCAL
    legacy_local = bool(mode & Mode.LOCAL_MR)
    if asked & (MrMode.MR_BASIC | MrMode.MR_SCALABLE):
        alone = asked & (MrMode.MR_BASIC | MrMode.MR_SCALABLE)
        if asked not in (MrMode.MR_BASIC, MrMode.MR_SCALABLE):
            return f"{alone} has to be set alone"
        if local and not legacy_local:
            return "buffers of local operations have to be registered: set fi.LOCAL_MR in mode, or offer fi.MR_LOCAL"
        if asked == MrMode.MR_BASIC:
            # The application gets basic registration when it asks for it, even if the provider does not need it.
            return asked if not rest & ~MR_BASIC_MAP else f"MR_BASIC does not cover {rest & ~MR_BASIC_MAP}"
        return asked if not rest else f"the provider needs {rest}, which MR_SCALABLE excludes: offer those bits"
    if asked == 0 and version < VERSION(1, 5):
        if local and not legacy_local:
            return "buffers of local operations have to be registered: set fi.LOCAL_MR in mode"
        if not rest:
            return MrMode.MR_SCALABLE
        return MrMode.MR_BASIC if not rest & ~MR_BASIC_MAP else f"an interface before 1.5 cannot express {rest}"
    missing = required & ~asked
    if missing:
        return f"the provider needs {missing}: offer it in hints.domain_attr.mr_mode once the application honours it"
    return required


def match_kinds(provider: Provider, offer: Offer, h: Info, info: Info, no: No) -> None:
    mine = offer.info
    if h.addr_format not in (AddrFormat.FORMAT_UNSPEC, mine.addr_format):
        no("addr_format", str(_kind(AddrFormat, h.addr_format)), str(_kind(AddrFormat, mine.addr_format)))
    if h.ep_attr.type not in (EpType.EP_UNSPEC, mine.ep_attr.type):
        reason = offer.remarks.get(f"ep_attr.type={h.ep_attr.type:d}", "")
        no("ep_attr.type", str(_kind(EpType, h.ep_attr.type)), str(_kind(EpType, mine.ep_attr.type)), reason)
    if h.ep_attr.protocol not in (Protocol.PROTO_UNSPEC, mine.ep_attr.protocol):
        offered = str(_kind(Protocol, mine.ep_attr.protocol))
        reason = offer.remarks.get("ep_attr.protocol", "")
        no("ep_attr.protocol", str(_kind(Protocol, h.ep_attr.protocol)), offered, reason)
    asked, have = h.domain_attr.threading, mine.domain_attr.threading
    if _THREADING.get(asked, 9) > _THREADING[have]:  # type: ignore[call-overload, index]
        no("domain_attr.threading", str(_kind(Threading, asked)), str(have))
    elif asked:  # the caller honours the model that it named, and compares
        info.domain_attr.threading = _kind(Threading, asked)
    for name in ("control_progress", "data_progress"):
        asked, have = getattr(h.domain_attr, name), getattr(mine.domain_attr, name)
        if _PROGRESS.get(asked, 9) > _PROGRESS[have]:
            no(f"domain_attr.{name}", str(_kind(Progress, asked)), str(have), offer.remarks.get("progress", ""))
        elif asked:
            setattr(info.domain_attr, name, _kind(Progress, asked))
    if h.domain_attr.resource_mgmt:
        if h.domain_attr.resource_mgmt > mine.domain_attr.resource_mgmt:
            no(
                "domain_attr.resource_mgmt",
                str(_kind(ResourceMgmt, h.domain_attr.resource_mgmt)),
                str(mine.domain_attr.resource_mgmt),
            )
        info.domain_attr.resource_mgmt = _kind(ResourceMgmt, h.domain_attr.resource_mgmt)
    if h.domain_attr.av_type:
        types = provider.vectors.types
        if h.domain_attr.av_type not in types:
            known = ", ".join(kind.name for kind in AvType if kind in types)
            no("domain_attr.av_type", str(h.domain_attr.av_type), known)
        info.domain_attr.av_type = _kind(AvType, h.domain_attr.av_type)
    for part in ("tx_attr", "domain_attr"):
        tclass = getattr(h, part).tclass
        if f"{part}.tclass" in offer.taken:  # the class is checked when the object is opened
            getattr(info, part).tclass = _kind(Tc, tclass or getattr(mine, part).tclass)
            continue
        if tclass in offer.tclasses:
            getattr(info, part).tclass = tclass
        elif tclass not in (Tc.TC_UNSPEC, getattr(mine, part).tclass):
            no(
                f"{part}.tclass",
                str(_kind(Tc, tclass)),
                str(_kind(Tc, getattr(mine, part).tclass)),
                offer.remarks.get("tclass", ""),
            )
    for part in ("tx_attr", "rx_attr"):
        if getattr(h, part).comp_order:
            no(
                f"{part}.comp_order",
                hex(getattr(h, part).comp_order),
                "0",
                "completion ordering is deprecated; leave it 0",
            )
    # A format names the fields of a tag; its highest bit is the length of the longest tag that the caller makes.
    tag = int(h.ep_attr.mem_tag_format)
    if h.caps & Flag.TAGGED and tag.bit_length() > int(mine.ep_attr.mem_tag_format).bit_length():
        no(
            "ep_attr.mem_tag_format",
            hex(tag),
            hex(mine.ep_attr.mem_tag_format),
            "the highest bit of the format is a tag's highest bit",
        )


def _match_auth_keys(provider: Provider, h: Info, info: Info, version: int, no: No) -> None:
    domain, ep = h.domain_attr, h.ep_attr
    if version < VERSION(1, 5):  # fi_mr(3): authorization keys came with that interface
        return
    if domain.auth_key_size == AV_AUTH_KEY:
        if domain.auth_key is not None or ep.auth_key is not None or ep.auth_key_size:
            no(
                "domain_attr.auth_key_size",
                "AV_AUTH_KEY",
                "it without other keys",
                "the keys come from the address vector: leave auth_key None, and ep_attr.auth_key_size 0",
            )
        info.domain_attr.auth_key_size = AV_AUTH_KEY
        return
    for part, attr in (("domain_attr", domain), ("ep_attr", ep)):
        if attr.auth_key is None:
            continue
        try:
            key = auth_key_bytes(provider, attr.auth_key, attr.auth_key_size)
        except errors.InvalidArgument as e:
            no(f"{part}.auth_key", repr(attr.auth_key), f"{provider.auth_key_size} bytes", e.message)
            continue
        mine = getattr(info, part)
        mine.auth_key, mine.auth_key_size = key, len(key)
    if info.domain_attr.auth_key is None and info.ep_attr.auth_key is not None:
        info.domain_attr.auth_key = info.ep_attr.auth_key
        info.domain_attr.auth_key_size = info.ep_attr.auth_key_size


def _take_vni(provider: Provider, info: Info, named: object | None, no: No) -> None:
    """The addresses are on the VNI of the authorization key."""
    key = info.ep_attr.auth_key or info.domain_attr.auth_key
    if key is None or not provider.addresses.tells_vni:
        return
    vni = provider.credential_of(key).vni
    if info.src_addr is not None:
        nic, pid, found = provider.addresses.parse(info.src_addr)
        if named is not None and found != vni:
            no("src_addr", str(named), f"an address of VNI {vni}", "auth_key and src_addr name different VNIs")
            return
        info.src_addr = provider.addresses.emit((nic, pid, vni))


def match_limits(offer: Offer, h: Info, info: Info, no: No) -> None:
    for part, names in _LIMITS.items():
        for name in names:
            asked = getattr(getattr(h, part), name)
            have = getattr(getattr(info, part), name)
            if f"{part}.{name}" in offer.advisory:
                continue
            top = offer.ceilings.get(f"{part}.{name}", have)
            if asked > top:
                no(f"{part}.{name}", show(asked), f"at most {show(top)}", offer.remarks.get(f"{part}.{name}", ""))
            elif asked > have or (asked and f"{part}.{name}" in offer.taken):
                setattr(getattr(info, part), name, asked)
    for part, name, kind in (*_SUBSETS, *_CHOSEN):
        asked = kind(getattr(getattr(h, part), name))
        top_flags = kind(offer.ceilings.get(f"{part}.{name}", getattr(getattr(offer.info, part), name)))
        if int(asked) & ~int(top_flags):
            no(f"{part}.{name}", str(asked), str(top_flags), offer.remarks.get(f"{part}.{name}", ""))
        elif (part, name, kind) in _CHOSEN and (asked or f"{part}.{name}" in offer.taken):
            setattr(getattr(info, part), name, asked)


def _kind(cls: type[Any], value: int) -> Any:
    try:
        return cls(value)
    except ValueError:
        return value


def _bits(value: int) -> Iterator[int]:
    bit = 1
    while bit <= value:
        if value & bit:
            yield bit
        bit <<= 1
