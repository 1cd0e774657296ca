"""The CXI provider: its offers to getinfo, and its rules about hints. Source: fi_cxi(7) "Supported Features"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ... import _nic, errors
from ...fi.attrs import DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr
from ...fi.match import DOMAIN_CAPS, RX_CAPS, TX_CAPS, negotiate_mr_mode
from ...fi.offer import Candidate, No, Offer, Rejection
from ...fi.policy import AddressCodec, Asked, Credential, DomainPolicy, Provider
from ...fi.policy_rules import KeyRules
from ...fi.registry import register
from ...flags import (
    AV_AUTH_KEY,
    VERSION,
    AddrFormat,
    AvType,
    EpType,
    Flag,
    MrMode,
    Order,
    Progress,
    Protocol,
    ResourceMgmt,
    Tc,
    Threading,
)
from ..base import BaseProvider
from . import auth_key, counter, device, env, nic, profile, resolve, slots, statuses
from .address import NIC_MAX, PID_ANY, Address, CxiAddresses
from .auth_key import KEY_BYTES, AuthKey
from .messages import TAG_BITS, TAG_BITS_RNR, tag_format
from .rules import ADVICE, COMMANDS, EVENT_QUEUES, LABELS, NUMBERS, REFUSALS, REGIONS, VECTORS

U64_MAX = (1 << 64) - 1

CAPS = (
    Flag.RMA
    | Flag.ATOMIC
    | Flag.TAGGED
    | Flag.MSG
    | Flag.RECV
    | Flag.SEND
    | Flag.READ
    | Flag.WRITE
    | Flag.REMOTE_READ
    | Flag.REMOTE_WRITE
    | Flag.DIRECTED_RECV
    | Flag.NAMED_RX_CTX
    | Flag.HMEM
    | Flag.COLLECTIVE
    | Flag.SOURCE
    | Flag.SOURCE_ERR
    | Flag.LOCAL_COMM
    | Flag.REMOTE_COMM
    | Flag.RMA_EVENT
    | Flag.MULTI_RECV
    | Flag.FENCE
    | Flag.TRIGGER
    | Flag.AV_USER_ID
    | Flag.PEER
)
TX_OP_FLAGS = (
    Flag.INJECT
    | Flag.COMPLETION
    | Flag.INJECT_COMPLETE
    | Flag.TRANSMIT_COMPLETE
    | Flag.DELIVERY_COMPLETE
    | Flag.MATCH_COMPLETE
    | Flag.REMOTE_CQ_DATA
    | Flag.MORE
    | Flag.FENCE
)
RX_OP_FLAGS = Flag.COMPLETION | Flag.MULTI_RECV | Flag.MORE
# Reported only on request, because they cost time on every operation or every receive.
SOURCES = Flag.SOURCE | Flag.SOURCE_ERR
COSTLY = SOURCES | Flag.RMA_EVENT | Flag.FENCE

# The numbers of FI_ADDR_CXI and FI_PROTO_CXI before they were libfabric's (FI_CXI_COMPAT).
OLD_ADDR_CXI = 14
OLD_PROTO_CXI = 23
FORMATS = (AddrFormat.ADDR_CXI, OLD_ADDR_CXI)


@dataclass(frozen=True)
class Kind:
    """One row of the table of infos.

    Attributes:
        protocol: FI_PROTO_CXI, FI_PROTO_CXI_RNR, or the old number of the first.
        mr_mode: The required bits.
        auth_keys: Authorization keys of an endpoint.
    """

    protocol: int
    mr_mode: MrMode
    auth_keys: int

    @property
    def rnr(self) -> bool:
        """True for the receiver-not-ready protocol."""
        return self.protocol == Protocol.PROTO_CXI_RNR


class Cxi(BaseProvider):
    """Policy of the provider "cxi"."""

    name = "cxi"
    version = VERSION(0, 2)
    addresses: AddressCodec = CxiAddresses()
    refusals = REFUSALS
    queues = EVENT_QUEUES
    counters = counter.RULES
    regions = REGIONS
    vectors = VECTORS
    commands = COMMANDS
    advice = ADVICE
    numbers = NUMBERS
    trywaits = frozenset({"cq"})
    keys = KeyRules(client_bits=32, known_at="enable", maker="policy")
    statuses = statuses.STATUSES
    address_text = _nic.AddressText(form="nic 0x{nic:x}, pid {pid}, vni {vni}", nic_mask=NIC_MAX)
    auth_key_size = KEY_BYTES
    max_ep_auth_key = profile.EP_AUTH_KEYS
    nothing = "no device is up, or FI_CXI_DEVICE_NAME names none that is; try: `weft device list`"
    take_place = staticmethod(slots.take)

    def credential_of(self, key: bytes) -> Credential:
        """Service and VNI of a key; the domain checks whether they exist."""
        return auth_key.credential(AuthKey.from_bytes(key), "authorization key")

    def become_job(self, **asked: Any) -> dict[str, str]:
        """`launch.become`."""
        from . import launch

        return launch.become(**asked)

    def environment(self) -> Sequence[tuple[str, str, str, str, str, str]]:
        """The variables of fi_cxi(7), and other variables of the real provider."""
        return env.table()

    def domain(self, attr: FabricAttr, info: Info, offer: Offer) -> DomainPolicy:
        """Open a domain. Imports the modules that only domains need."""
        from .domain import CxiDomain

        return CxiDomain(self, info, offer)

    def explain_error(self, prov_errno: int, err_data: object) -> str:
        """The NIC's own text if there is one; otherwise the name of the hardware's return code."""
        return statuses.explain(prov_errno, err_data)

    # ---- offers ------------------------------------------------------------------------------------------------------

    def offers(self, asked: Asked) -> list[Offer]:
        """Every info of every device: first those of FI_PROTO_CXI, then those of FI_PROTO_CXI_RNR."""
        hints = asked.hints
        # Do not make a device registry for hints that ask for another provider or for addresses as text.
        if hints is not None and (
            hints.fabric_attr.prov_name not in (None, self.name)
            or (hints.fabric_attr.prov_name is None and hints.addr_format not in (*FORMATS, 0))
        ):
            return []
        chosen = profile.load()
        found = []
        for one in self._devices(chosen):
            key = auth_key.find(one)
            found += [_offer(one, key, chosen, kind) for kind in _kinds(chosen, asked)]
        return found

    def fabrics(self) -> list[str]:
        """The one fabric, also while the link of every device is down."""
        return [self.name] if device.devices() else []

    def absent(self, name: str | None) -> str:
        """A device is not there, not chosen, or its link is down."""
        found = None if name is None else device.by_name(name)
        if found is None:
            return f"{super().absent(name)}; `weft device list`"
        if not found.up:
            return f"the link of {name} is down\n  try: `weft device up {name}`, or another device of getinfo's"
        return f"FI_CXI_DEVICE_NAME does not name {name}\n  try: a device that getinfo returns"

    def _devices(self, chosen: profile.Profile) -> Iterator[device.Device]:
        for one in device.devices():
            if one.up and (chosen.devices is None or one.name in chosen.devices):
                yield one

    # ---- hints -------------------------------------------------------------------------------------------------------

    def mr_mode(self, required: MrMode, caps: int, asked: MrMode, mode: int, version: int) -> MrMode | str:
        """0 accepts the required bits; otherwise hints for RMA or atomics must contain them.

        Hints of FI_MR_ENDPOINT alone mean FI_MR_ALLOCATED as well, except with on-demand paging.
        """
        if version < VERSION(1, 5) or asked & (MrMode.MR_BASIC | MrMode.MR_SCALABLE):
            return f"the provider needs {required}, which an interface before 1.5 cannot express"
        if asked == MrMode.MR_ENDPOINT and not profile.load().odp:
            asked |= MrMode.MR_ALLOCATED
        if _is_target(caps):
            return required if not asked else negotiate_mr_mode(required, asked, mode, version)
        if not caps & (Flag.RMA | Flag.ATOMIC):
            return MrMode.MR_UNSPEC
        if required & ~asked:
            return f"operations on memory need {required}: offer it in hints.domain_attr.mr_mode"
        return required

    def meets(self, offer: Offer, asked: Asked, info: Info, no: No) -> None:
        """The provider's own rules about hints."""
        hints = asked.hints
        if hints is None:
            info.caps = Flag(info.caps & ~SOURCES)
            info.rx_attr.caps = Flag(info.rx_attr.caps & ~SOURCES)
            return
        refused = self.threading_refused(hints.domain_attr.threading)
        if refused is not None:
            no(*refused)
        self._meets_caps(hints, info, no)
        self._meets_key(offer, hints, info, no)
        # The order determines the packet format, so it is the application's choice; 0 is a valid choice.
        info.tx_attr.msg_order = Order(hints.tx_attr.msg_order)

    def threading_refused(self, asked: int) -> Rejection | None:
        """Why a threading level is refused, by getinfo and by fi_domain; None if it is accepted."""
        if asked not in (Threading.THREAD_FID, Threading.THREAD_ENDPOINT):
            return None
        return Rejection(
            "domain_attr.threading",
            str(Threading(asked)),
            "THREAD_SAFE, THREAD_DOMAIN or THREAD_COMPLETION",
            "objects of a domain share the queues of the NIC",
        )

    def _meets_caps(self, hints: Info, info: Info, no: No) -> None:
        asked = Flag(hints.caps)
        if not asked:
            info.caps = Flag(info.caps & ~SOURCES)
        if asked & Flag.COLLECTIVE and not info.caps & (Flag.MSG | Flag.TAGGED):
            info.caps |= Flag.MSG | Flag.SEND | Flag.RECV
        info.tx_attr.caps = Flag(info.caps) & TX_CAPS
        info.rx_attr.caps = Flag(info.caps) & RX_CAPS
        if info.ep_attr.protocol == Protocol.PROTO_CXI_RNR:
            info.tx_attr.caps |= Flag(info.caps) & Flag.DIRECTED_RECV

    def _meets_key(self, offer: Offer, hints: Info, info: Info, no: No) -> None:
        for part in ("domain_attr", "ep_attr"):
            size = getattr(hints, part).auth_key_size
            if size not in (0, KEY_BYTES) and not (part == "domain_attr" and size == AV_AUTH_KEY):
                no(f"{part}.auth_key_size", str(size), str(KEY_BYTES), "the bytes of struct cxi_auth_key")
            elif size == KEY_BYTES and getattr(hints, part).auth_key is None:
                advice = "a size needs a key: set auth_key as well, or leave the size 0"
                no(f"{part}.auth_key_size", f"{size} without a key", "0 without a key", advice)
            elif getattr(info, part).auth_key is None and size != AV_AUTH_KEY:
                getattr(info, part).auth_key_size = 0
        for part in ("domain_attr", "ep_attr"):
            key = getattr(info, part).auth_key
            if key is None:
                continue
            one = device.by_name(str(offer.info.domain_attr.name))
            why = "the device is not there any more" if one is None else auth_key.check(one, AuthKey.from_bytes(key))
            if why is not None:
                no(f"{part}.auth_key", repr(AuthKey.from_bytes(key)), "a key that is valid here", why)

    def select(self, candidates: list[Candidate], asked: Asked) -> list[Candidate]:
        """With hints: for each device and address format the first candidate that meets them."""
        if asked.hints is None:
            return candidates
        seen = set()
        found = []
        for one in candidates:
            if one.info is not None:
                place = one.domain, int(one.info.addr_format)
                if place in seen:
                    continue
                seen.add(place)
            found.append(one)
        return found

    def resolve(self, asked: Asked, offer: Offer | None) -> tuple[Address | None, Address | None]:
        """node is a device, an Ethernet address or the address of a NIC; service is a PID."""
        try:
            if offer is None:
                return None, resolve.peer(asked)
            return resolve.addresses(asked, str(offer.info.domain_attr.name))
        except errors.InvalidArgument as refused:
            hints = asked.hints
            if offer is None or (hints is not None and hints.fabric_attr.prov_name == self.name):
                raise
            raise errors.NotAvailable(refused.message) from None  # other providers may know it


def _is_target(caps: int) -> bool:
    """True if peers access memory of an endpoint with these capabilities."""
    if not caps & (Flag.RMA | Flag.ATOMIC):
        return False
    sides = caps & (Flag.READ | Flag.WRITE | Flag.REMOTE_READ | Flag.REMOTE_WRITE)
    return not sides or bool(sides & (Flag.REMOTE_READ | Flag.REMOTE_WRITE))


def _kinds(chosen: profile.Profile, asked: Asked) -> Iterator[Kind]:
    old = asked.hints is not None and (
        asked.hints.addr_format == OLD_ADDR_CXI or asked.hints.ep_attr.protocol == OLD_PROTO_CXI
    )
    protocols: list[int] = [Protocol.PROTO_CXI, Protocol.PROTO_CXI_RNR]
    if asked.hints is not None and not asked.hints.ep_attr.protocol:
        protocols = [Protocol.PROTO_CXI]  # hints must request FI_PROTO_CXI_RNR explicitly
    if chosen.compat == 2 or (chosen.compat == 1 and old):
        protocols = [OLD_PROTO_CXI]
    for protocol in protocols:
        for auth_keys in (1, profile.EP_AUTH_KEYS):
            for paging in (False, True):
                if chosen.odp if paging else not chosen.force_odp:
                    pages = MrMode.MR_UNSPEC if paging else MrMode.MR_ALLOCATED
                    yield Kind(protocol, MrMode.MR_ENDPOINT | pages | MrMode.MR_PROV_KEY, auth_keys)
                    yield Kind(protocol, MrMode.MR_ENDPOINT | pages, auth_keys)


def _offer(one: device.Device, key: auth_key.Found, chosen: profile.Profile, kind: Kind) -> Offer:
    caps = CAPS if kind.auth_keys == 1 or kind.rnr else CAPS & ~Flag.DIRECTED_RECV
    order = chosen.msg_order & ~Order.ORDER_SAS if kind.rnr else chosen.msg_order
    raw, war, waw = chosen.max_order
    info = Info(
        caps=caps,
        addr_format=OLD_ADDR_CXI if kind.protocol == OLD_PROTO_CXI else AddrFormat.ADDR_CXI,
        src_addr=Address(one.nic, PID_ANY),
        tx_attr=TxAttr(
            caps=caps & TX_CAPS | (caps & Flag.DIRECTED_RECV if kind.rnr else Flag(0)),
            op_flags=TX_OP_FLAGS,
            msg_order=order,
            inject_size=0 if kind.rnr else chosen.inject_bytes,
            size=chosen.tx_size,
            iov_limit=1,
            rma_iov_limit=1,
            tclass=Tc.TC_UNSPEC,
        ),
        rx_attr=RxAttr(caps=caps & RX_CAPS, op_flags=RX_OP_FLAGS, msg_order=order, size=chosen.rx_size, iov_limit=1),
        ep_attr=EpAttr(
            type=EpType.EP_RDM,
            protocol=_protocol(kind.protocol),
            protocol_version=1,
            max_msg_size=chosen.message_bytes,
            max_order_raw_size=raw,
            max_order_war_size=war,
            max_order_waw_size=waw,
            mem_tag_format=tag_format(TAG_BITS_RNR if kind.rnr else TAG_BITS),
            tx_ctx_cnt=1,
            rx_ctx_cnt=1,
        ),
        domain_attr=DomainAttr(
            name=one.name,
            threading=Threading.THREAD_SAFE,
            control_progress=Progress.PROGRESS_MANUAL,
            data_progress=Progress.PROGRESS_MANUAL,
            resource_mgmt=ResourceMgmt.RM_ENABLED,
            av_type=AvType.AV_UNSPEC,
            cq_data_size=8,
            cq_cnt=32,
            ep_cnt=128,
            tx_ctx_cnt=1,
            rx_ctx_cnt=1,
            max_ep_tx_ctx=1,
            max_ep_rx_ctx=1,
            cntr_cnt=16,
            mr_iov_limit=1,
            caps=caps & DOMAIN_CAPS,
            mr_cnt=100,
            max_ep_auth_key=kind.auth_keys,
            tclass=Tc.TC_UNSPEC,
        ),
        fabric_attr=FabricAttr(name="cxi", prov_name=Cxi.name, prov_version=Cxi.version),
        nic=nic.describe(one, key),
    )
    ceilings = {"tx_attr.size": chosen.tx_size_max, "rx_attr.size": chosen.rx_size_max}
    return Offer(info, ceilings, kind.mr_mode, COSTLY, _REMARKS, _TAKEN, _ADVISORY, _TCLASSES)


def _protocol(number: int) -> int:
    return Protocol(number) if number != OLD_PROTO_CXI else number


# Reasons of rejected hints.
_ONE_TYPE = "there are only reliable datagrams, which need no connection"
_REMARKS: dict[int | str, str] = {
    **{f"ep_attr.type={kind:d}": _ONE_TYPE for kind in EpType},
    "progress": "the application makes progress: it reads its queues and counters",
    int(Flag.SHARED_AV): "address vectors are not shared between processes: each inserts the addresses it uses",
    int(Flag.MULTICAST): "multicast trees are made by joining collectives",
    int(Flag.RMA_PMEM): "there is no persistent memory",
    "ep_attr.protocol": "PROTO_CXI, or PROTO_CXI_RNR by name",
}

# Fields whose value the application may choose, higher or lower than the offer without hints.
_TAKEN = frozenset(
    {
        "tx_attr.size",
        "rx_attr.size",
        "tx_attr.inject_size",
        "domain_attr.max_ep_auth_key",
        "tx_attr.op_flags",
        "rx_attr.op_flags",
        "tx_attr.tclass",
        "domain_attr.tclass",
    }
)
_TCLASSES = frozenset(int(one) for one in LABELS)
_ADVISORY = frozenset({"domain_attr.cq_cnt", "domain_attr.ep_cnt"})

_cxi: Provider = Cxi()
register(_cxi)
