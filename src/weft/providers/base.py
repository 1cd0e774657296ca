"""The man pages' answers to everything that a provider decides, for providers that differ in a few of them.

A provider derives from `BaseProvider`, says what it offers and how its addresses look, and puts its own rules in the
place of those here: `keys`, `regions`, `queues`, `vectors`, `refusals`, `statuses`. A provider that decides more has a
`domain_class` or `endpoint_class` of its own. `docs/design/providers.md` is the guide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .. import _nic, _process, errors
from ..fi.attrs import FabricAttr, Info
from ..fi.auth_key import keys_in_force, keys_of_vector
from ..fi.offer import Candidate, Offer, Rejection
from ..fi.policy import (
    CM_DATA_SIZE,
    Address,
    AddressCodec,
    Asked,
    Credential,
    DomainPolicy,
    EndpointPolicy,
    EndpointState,
    KeyRules,
    Option,
    QueueRules,
    RegionRules,
    StatusMap,
    VectorRules,
    man_page_statuses,
)
from ..fi.rules import Refusals, Rule
from ..flags import (
    VERSION,
    EpType,
    Errno,
    Flag,
    Mode,
    MrMode,
    Opt,
    Progress,
    ResourceMgmt,
)

__all__ = ["PIDS", "BaseDomain", "BaseEndpoint", "BaseProvider"]

PIDS = range(0x40000000, 0x80000000)
"""Endpoint numbers from which the NIC chooses, unless a provider says otherwise."""


class _Unknown:
    """fi_control, fi_open_ops, fi_get_val and fi_set_val of a provider without commands, operations and values."""

    refusals: Refusals
    _what: str

    def control(self, command: int, arg: Any) -> Any:
        """Refuses: there is no command here."""
        raise self.refusals.refuse(Rule.CONTROL_UNKNOWN, f"{self._what}.control: no command {command} here")

    def open_ops(self, name: str) -> Any:
        """Refuses: there are no such calls here."""
        raise self.refusals.refuse(Rule.OPS_UNKNOWN, f"{self._what}.open_ops: no operations {name!r} here")

    def get_val(self, name: int) -> Any:
        """Refuses: there is no such value here."""
        raise self.refusals.refuse(Rule.VAL_UNKNOWN, f"{self._what}.get_val: no value {name} here")

    def set_val(self, name: int, value: Any) -> None:
        """Refuses: there is no such value here."""
        raise self.refusals.refuse(Rule.VAL_UNKNOWN, f"{self._what}.set_val: no value {name} here")


class BaseEndpoint(_Unknown):
    """What is decided of one endpoint: `EndpointPolicy` with the man pages' answers."""

    _what = "ep"
    pids = PIDS
    op_rules: _nic.OpRules | None = None  # what calls may ask for; None: what the NIC can do
    iov_max = _nic.limits().iov_count

    def __init__(self, domain: BaseDomain, info: Info) -> None:
        self.domain = domain
        self.refusals = domain.refusals
        self.info = info
        codec = domain.provider.addresses
        nic, pid, vni = codec.own(codec.parse(info.src_addr)) if info.src_addr is not None else domain.source
        self.credential = self._credential(vni)
        self.address: Address = nic, pid, self.credential.vni
        self.options: Mapping[int, Option] = {int(name): self._reads(read) for name, read in _OPTIONS.items()}

    def _reads(self, read: _Read) -> Option:
        return Option(get=lambda: int(read(self.info)))

    def _credential(self, vni: int) -> Credential:
        """The key that the endpoint uses: its own, the domain's, or the one of its address."""
        domain, ep = self.domain, self.info.ep_attr
        if keys_in_force(domain.info) and ep.auth_key is not None:
            if keys_of_vector(domain.info):
                raise self.refusals.refuse(
                    Rule.EP_AUTH_KEY,
                    "endpoint: the domain was opened with AV_AUTH_KEY: the keys come from the address vector\n"
                    "  try: ep_attr.auth_key None",
                )
            found = domain.credential_of(bytes(memoryview(ep.auth_key)))
            return replace(found, found=("ep_attr.auth_key",))
        if keys_in_force(domain.info) and not keys_of_vector(domain.info) and domain.info.domain_attr.auth_key:
            return domain.credential
        if vni == domain.credential.vni:
            return domain.credential
        return Credential(vni, found=("src_addr",))

    def nic_config(self) -> dict[str, Any]:
        """What the NIC enforces: capabilities, sizes, order, and the numbers that it may choose from."""
        tx, ep = self.info.tx_attr, self.info.ep_attr
        offered = self.domain.offer.info.tx_attr  # where the application names no limit
        return {
            "caps": int(self.info.caps),
            "tx_size": int(tx.size),
            "inject_size": int(tx.inject_size),
            "max_msg_size": int(ep.max_msg_size),
            "msg_order": int(tx.msg_order),
            "tx_op_flags": int(tx.op_flags),
            "iov_limit": int(tx.iov_limit or offered.iov_limit or self.iov_max),
            "rma_iov_limit": int(tx.rma_iov_limit or offered.rma_iov_limit or self.iov_max),
            "vni": self.credential.vni,
            "foreign_key": not keys_of_vector(self.domain.info) and self.credential.vni != self.domain.credential.vni,
            "connected": ep.type == EpType.EP_MSG or self.domain.info.ep_attr.type == EpType.EP_MSG,
            "pids": (self.pids.start, self.pids.stop - 1),
            "rules": self.op_rules,
        }

    def check_enable(self, state: EndpointState) -> None:
        """An address vector, and a completion queue for each direction that the endpoint has, fi_endpoint(3)."""
        if not state.has_av and not state.connected:
            raise self.refusals.refuse(
                Rule.EP_ENABLE_AV, "ep.enable: no address vector is bound\n  try: ep.bind(domain.av_open())"
            )
        if self.info.caps & int(Flag.READ | Flag.WRITE | Flag.SEND) and not state.has_tx_cq:
            raise self.refusals.refuse(
                Rule.EP_ENABLE_CQ,
                "ep.enable: no completion queue is bound for TRANSMIT\n  try: ep.bind(cq, fi.TRANSMIT | fi.RECV)",
            )
        if self.info.caps & Flag.RECV and not state.has_rx_cq:
            raise self.refusals.refuse(
                Rule.EP_ENABLE_CQ,
                "ep.enable: no completion queue is bound for RECV\n  try: ep.bind(cq, fi.TRANSMIT | fi.RECV)",
            )

    def alias(self, flags: int) -> Any:
        """Refuses: there are no aliases here."""
        raise self.refusals.refuse(Rule.EP_ALIAS, "ep.alias: this provider has no aliases of endpoints")


_Read = Callable[[Info], int]


def _with(cap: int, read: _Read) -> _Read:
    return lambda info: read(info) if info.caps & cap else 0


def _message(info: Info) -> int:
    return info.ep_attr.max_msg_size


def _inject(info: Info) -> int:
    return info.tx_attr.inject_size


_OPTIONS: dict[Opt, _Read] = {
    Opt.OPT_CM_DATA_SIZE: lambda info: CM_DATA_SIZE if info.ep_attr.type == EpType.EP_MSG else 0,
    Opt.OPT_TX_SIZE: lambda info: info.tx_attr.size,
    Opt.OPT_RX_SIZE: lambda info: info.rx_attr.size,
    Opt.OPT_MAX_MSG_SIZE: _with(Flag.MSG, _message),
    Opt.OPT_MAX_TAGGED_SIZE: _with(Flag.TAGGED, _message),
    Opt.OPT_MAX_RMA_SIZE: _with(Flag.RMA, _message),
    Opt.OPT_MAX_ATOMIC_SIZE: _with(Flag.ATOMIC, _message),
    Opt.OPT_INJECT_MSG_SIZE: _with(Flag.MSG, _inject),
    Opt.OPT_INJECT_TAGGED_SIZE: _with(Flag.TAGGED, _inject),
    Opt.OPT_INJECT_RMA_SIZE: _with(Flag.RMA, _inject),
    Opt.OPT_INJECT_ATOMIC_SIZE: _with(Flag.ATOMIC, _inject),
}


class BaseDomain(_Unknown):
    """What is decided of one domain: `DomainPolicy` with the man pages' answers."""

    _what = "domain"
    endpoint_class: type[BaseEndpoint] = BaseEndpoint

    def __init__(self, provider: BaseProvider, info: Info, offer: Offer) -> None:
        self.provider = provider
        self.info = info
        self.offer = offer
        self.refusals = provider.refusals
        self.statuses = provider.statuses
        self.nic = provider.nic()
        codec = provider.addresses
        self.source: Address = codec.own(codec.parse(offer.info.src_addr))
        mode = MrMode(info.domain_attr.mr_mode)
        self.keys = replace(provider.keys, provider=bool(mode & (MrMode.MR_PROV_KEY | MrMode.MR_BASIC)))
        self.regions = provider.regions
        self.queues = provider.queues
        self.vectors = provider.vectors
        self.progress = Progress(info.domain_attr.data_progress or offer.info.domain_attr.data_progress)
        self.credential = self._credential()

    def _credential(self) -> Credential:
        attr = self.info.domain_attr
        if keys_in_force(self.info) and not keys_of_vector(self.info) and attr.auth_key is not None:
            return replace(self.credential_of(bytes(attr.auth_key)), found=("domain_attr.auth_key",))
        return Credential(self.source[2], found=("default of the provider",))

    def credential_of(self, key: bytes) -> Credential:
        """The provider's reading of an authorization key."""
        return self.provider.credential_of(key)

    def nic_config(self) -> dict[str, Any]:
        """What the NIC does under the domain's modes, and what it reports."""
        info, attr = self.info, self.info.domain_attr
        mode = MrMode(attr.mr_mode)
        hmem = bool(info.caps & Flag.HMEM)
        return {
            "nic_index": self.source[0],
            "prov_key": self.keys.provider,
            "virt_addr": bool(mode & (MrMode.MR_VIRT_ADDR | MrMode.MR_BASIC)),
            "mr_local": bool(mode & MrMode.MR_LOCAL) or bool(info.mode & Mode.LOCAL_MR),
            "rm_enabled": attr.resource_mgmt != ResourceMgmt.RM_DISABLED,
            "hmem": hmem,
            "mr_hmem": hmem and bool(mode & MrMode.MR_HMEM),
            "mr_allocated": bool(mode & (MrMode.MR_ALLOCATED | MrMode.MR_BASIC)),
            "raw_keys": bool(mode & MrMode.MR_RAW),
            "desc_ignored": info.fabric_attr.api_version < VERSION(1, 22) and not mode & MrMode.MR_LOCAL,
            "empty_region_errno": int(self.refusals.errno(Rule.MR_EMPTY)) if self.regions.bytes_min else 0,
            "statuses": [self.statuses[status] for status in _nic.Status],
        }

    def endpoint(self, info: Info) -> EndpointPolicy:
        """An endpoint of the domain."""
        return self.endpoint_class(self, info)

    def close(self) -> None:
        """Nothing was taken."""


class BaseProvider:
    """`Provider` with the man pages' answers; a provider adds `offers`, `resolve` and what it does differently."""

    name = ""
    version = VERSION(0, 1)
    addresses: AddressCodec
    refusals = Refusals()
    keys = KeyRules()
    regions = RegionRules()
    queues = QueueRules()
    vectors = VectorRules()
    statuses: StatusMap = man_page_statuses()
    auth_key_size = 2
    max_ep_auth_key = _nic.limits().region_vni_count  # a region admits all keys of its vector
    fabric_class: type | None = None
    domain_class: type[BaseDomain] = BaseDomain

    def nic(self) -> _nic.Nic:
        """The NIC of its domains: the process's."""
        return _process.nic()

    def offers(self, asked: Asked) -> list[Offer]:
        """What getinfo chooses from, best first."""
        raise NotImplementedError

    def resolve(self, asked: Asked, offer: Offer | None) -> tuple[Any, Any]:
        """Source and destination address for an offer."""
        raise NotImplementedError

    def meets(self, offer: Offer, asked: Asked, info: Info, no: Callable[[Rejection], object]) -> None:
        """The common rules are all of them."""

    def select(self, candidates: list[Candidate], asked: Asked) -> list[Candidate]:
        """All of its candidates, as they were offered."""
        return candidates

    def key_size(self, mr_mode: int) -> int:
        """domain_attr.mr_key_size under an mr_mode."""
        return self.keys.size(mr_mode)

    def credential_of(self, key: bytes) -> Credential:
        """As many bytes as `auth_key_size`, little-endian: the VNI, 1 to 65535."""
        vni = int.from_bytes(key, "little")
        if len(key) != self.auth_key_size or not 0 < vni < 1 << 16:
            raise errors.InvalidArgument(
                f"{key!r} is no authorization key of the provider {self.name}\n"
                f"  rule: {self.auth_key_size} bytes, little-endian, the VNI (1 to 65535)\n"
                f"  try: (1024).to_bytes({self.auth_key_size}, 'little')"
            )
        return Credential(vni, raw=key)

    def domain(self, attr: FabricAttr, info: Info, offer: Offer) -> DomainPolicy:
        """Open a domain."""
        return self.domain_class(self, info, offer)

    def explain_error(self, prov_errno: int, err_data: object) -> str:
        """The NIC's own text if there is one; otherwise the text of the statuses that map to the number."""
        if isinstance(err_data, (bytes, bytearray)) and err_data:
            return bytes(err_data).decode("utf-8", "replace")
        for err, prov in self.statuses.values():
            if prov == prov_errno:
                return errors.strerror(err) if err != Errno.SUCCESS else "no provider error"
        return f"unknown provider error {prov_errno}"
