"""Policies with the man pages' answers, as base classes for providers that differ in some of them.

A provider derives from `BaseProvider`, defines its offers and the form of its addresses, and replaces rules: `keys`,
`regions`, `queues`, `vectors`, `refusals`, `statuses`. For further decisions it defines its own `domain_class` or
`endpoint_class`. `docs/design/providers.md` is the guide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from .. import _nic, _process, errors
from ..fi.attrs import LIBRARY_VERSION, FabricAttr, Info
from ..fi.auth_key import keys_in_force, keys_of_vector
from ..fi.match import negotiate_mr_mode
from ..fi.offer import Offer
from ..fi.policy import (
    CM_DATA_SIZE,
    Address,
    AddressCodec,
    Asked,
    CollectiveLimit,
    CounterPolicy,
    Credential,
    DomainPolicy,
    EndpointPolicy,
    EndpointState,
    Extensions,
    Provider,
    StatusMap,
    man_page_statuses,
)
from ..fi.policy_rules import (
    CommandRules,
    CounterRules,
    KeyRules,
    Option,
    QueueRules,
    RegionRules,
    VectorRules,
)
from ..fi.rules import Refusals, Rule
from ..flags import (
    VERSION,
    CollectiveOp,
    Control,
    Datatype,
    EpType,
    Errno,
    Flag,
    Mode,
    MrMode,
    Op,
    Opt,
    Progress,
    ResourceMgmt,
)

PIDS = range(0x40000000, 0x80000000)
"""The range from which the NIC chooses endpoint numbers, unless a provider has another."""


GROUP_MEMBERS_MAX = (1 << 20) - 1
"""Members of a collective group: contributions are counted in 20 bits."""

PAYLOAD_BYTES = 32
"""Bytes of a reduction, of every provider: fi_cxi(7) "fi_reduction operations"."""

_SIZED = frozenset(one for one in Datatype if one != Datatype.VOID)


class _Unknown(Extensions):
    """The extension calls of a provider without its own commands, calls and values: all refuse."""

    refusals: Refusals
    commands = CommandRules()
    advice: Mapping[str, str] = {}
    """Call, as "domain.control" -> the last line of its refusals here: what there is, or what to try."""
    numbers: tuple[type[IntEnum], ...] = (Control,)
    """Names of the numbers of commands and values."""

    def control(self, fid: Any, command: int, arg: Any) -> Any:
        """Refuses: the object has no such command."""
        op = f"{fid._called}.control"
        known = sorted(self.commands.of(fid._called) & set(fid._commands))
        names = (
            f"  known: {', '.join(str(Control(one)) for one in known)}" if known else "  this object has no commands"
        )
        raise self.refusals.refuse(
            Rule[f"{fid._called.upper()}_CONTROL"],
            f"{op}: no command {self._name(command)} here\n{self.advice.get(op, names)}",
        )

    def open_ops(self, fid: Any, name: str, flags: int) -> Any:
        """Refuses: the object has no such calls."""
        op = f"{fid._called}.open_ops"
        if flags:
            raise self.refusals.refuse(Rule.OPS_FLAGS, f"{op}: flags {flags:#x}; they have to be 0")
        rule = {"domain": Rule.DOMAIN_OPS, "cntr": Rule.CNTR_OPS}.get(fid._called, Rule.OPS_UNKNOWN)
        raise self.refusals.refuse(rule, f"{op}: no operations {name!r} here{self._advice(op)}")

    def set_ops(self, fid: Any, name: str, flags: int, ops: Any) -> None:
        """Refuses: the provider has no such calls to replace."""
        op = f"{fid._called}.set_ops"
        raise self.refusals.refuse(Rule.OPS_UNKNOWN, f"{op}: no operations {name!r} to replace here{self._advice(op)}")

    def get_val(self, fid: Any, name: int) -> Any:
        """Refuses: there is no such value of the object."""
        op = f"{fid._called}.get_val"
        raise self.refusals.refuse(Rule.VAL_UNKNOWN, f"{op}: no value {self._value(name)} here{self._advice(op)}")

    def set_val(self, fid: Any, name: int, value: Any) -> None:
        """Refuses: there is no such value of the object."""
        op = f"{fid._called}.set_val"
        raise self.refusals.refuse(Rule.VAL_UNKNOWN, f"{op}: no value {self._value(name)} here{self._advice(op)}")

    def _name(self, number: int) -> str:
        return next((str(one(number)) for one in self.numbers if number in set(one)), str(number))

    def _value(self, number: int) -> str:
        others = (one for one in self.numbers if one is not Control)
        return next((str(one(number)) for one in others if number in set(one)), str(number))

    def _advice(self, op: str) -> str:
        return f"\n{self.advice[op]}" if op in self.advice else ""


class BaseEndpoint(_Unknown, EndpointPolicy):
    """The policy of one endpoint: `EndpointPolicy` with the man pages' answers."""

    pids = PIDS
    holds_more = False  # operations with FI_MORE wait for the next one without it
    traffic: _nic.TrafficRules | None = None  # the packet formats that telemetry counts; None: not counted
    fence_covers_all = False  # FI_FENCE waits for operations to every peer, not only to its own
    accelerated = False  # collectives as on Slingshot: its operators, accumulators and errors
    close_drops = False  # operations under way at close() have no entries; otherwise they end as canceled
    prefer_numbers = False  # of accelerated collectives: MIN, MAX and MINMAXLOC of a NaN and a number are the number
    min_multi_recv = 0  # OPT_MIN_MULTI_RECV
    min_multi_recv_max = (1 << 63) - 1

    def __init__(self, domain: BaseDomain, info: Info) -> None:
        self.domain = domain
        self.refusals = domain.refusals
        self.info = info
        nic, pid, vni = self._place()
        self.credential = self._credential(vni)
        self.address: Address = nic, pid, self.credential.vni
        self.options: Mapping[int, Option] = {int(name): self._reads(read) for name, read in _OPTIONS.items()}
        if self.messages is not None:
            self.min_multi_recv = self.messages.min_multi_recv
            self.options = {**self.options, int(Opt.OPT_MIN_MULTI_RECV): self._multi_recv()}

    def _place(self) -> Address:
        """The address that the application requests, or the domain's default."""
        if self.info.src_addr is None:
            return self.domain.source
        codec = self.domain.provider.addresses
        return self.domain.peer(codec.own(codec.parse(self.info.src_addr)), None)

    def _reads(self, read: _Read) -> Option:
        return Option(get=lambda: int(read(self.info)))

    def _multi_recv(self) -> Option:
        """FI_OPT_MIN_MULTI_RECV."""

        def put(value: Any) -> None:
            if not isinstance(value, int) or not 0 <= value <= self.min_multi_recv_max:
                raise self.refusals.refuse(
                    Rule.OPT_VALUE,
                    f"ep.setopt: OPT_MIN_MULTI_RECV is 0 to {self.min_multi_recv_max} bytes, not {value!r}",
                )
            self.min_multi_recv = value

        return Option(
            get=lambda: self.min_multi_recv, set=put, tell=lambda ep: ep.set_min_multi_recv(self.min_multi_recv)
        )

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
            return found._replace(found=("ep_attr.auth_key",))
        if keys_in_force(domain.info) and not keys_of_vector(domain.info) and domain.info.domain_attr.auth_key:
            return domain.credential
        if vni == domain.credential.vni:
            return domain.credential
        return Credential(vni, found=("src_addr",))

    @property
    def lane(self) -> tuple[int, int]:
        """The endpoint's order; one class for all."""
        return int(self.info.tx_attr.msg_order), 0

    def nic_config(self) -> _nic.EndpointConfig:
        """The NIC's configuration: capabilities, sizes, order, rules, and the range of endpoint numbers."""
        tx, rx, ep, domain = self.info.tx_attr, self.info.rx_attr, self.info.ep_attr, self.domain
        offered = domain.offer.info  # the limits if the application gives none
        config = _nic.EndpointConfig(
            caps=int(self.info.caps),
            tx_size=int(tx.size),
            inject_size=int(tx.inject_size),
            max_msg_size=int(ep.max_msg_size),
            msg_order=int(tx.msg_order),
            tx_op_flags=int(tx.op_flags),
            vni=self.credential.vni,
            foreign_key=not keys_of_vector(domain.info) and self.credential.vni != domain.credential.vni,
            connected=ep.type == EpType.EP_MSG or domain.info.ep_attr.type == EpType.EP_MSG,
            pids=_nic.PidRange(first=self.pids.start, last=self.pids.stop - 1),
            fence_covers_all=self.fence_covers_all,
            holds_more=self.holds_more,
            close_drops=self.close_drops,
            accelerated=self.accelerated,
            prefer_numbers=self.prefer_numbers,
        )
        if self.op_rules is not None:
            config.rules = self.op_rules
        if self.traffic is not None:
            config.traffic = self.traffic
        if self.messages is not None:
            config.messages = self.messages
        rules = config.rules
        rules.iov_max = min(int(tx.iov_limit or offered.tx_attr.iov_limit) or rules.iov_max, rules.iov_max)
        rules.rma_iov_max = min(
            int(tx.rma_iov_limit or offered.tx_attr.rma_iov_limit) or rules.rma_iov_max, rules.rma_iov_max
        )
        rules.desc_ignored = domain.desc_ignored
        rules.mr_collective = bool(
            self.info.caps & Flag.COLLECTIVE and domain.info.domain_attr.mr_mode & MrMode.MR_COLLECTIVE
        )
        receives = rules.messages
        receives.receive_flags = int(rx.op_flags)
        receives.recv_iov_max = min(
            int(rx.iov_limit or offered.rx_attr.iov_limit) or receives.recv_iov_max, receives.recv_iov_max
        )
        return config

    def check_enable(self, state: EndpointState) -> None:
        """An address vector, and a completion queue for each direction that the endpoint has, fi_endpoint(3)."""
        if not state.has_av and not state.connected:
            raise self.refusals.refuse(
                Rule.EP_ENABLE_AV, "ep.enable: no address vector is bound\n  try: ep.bind(domain.av_open())"
            )
        if self.info.caps & int(Flag.READ | Flag.WRITE | Flag.SEND | Flag.COLLECTIVE) and not state.has_tx_cq:
            raise self.refusals.refuse(
                Rule.EP_ENABLE_CQ,
                "ep.enable: no completion queue is bound for TRANSMIT\n  try: ep.bind(cq, fi.TRANSMIT | fi.RECV)",
            )
        if self.info.caps & Flag.RECV and not state.has_rx_cq:
            raise self.refusals.refuse(
                Rule.EP_ENABLE_CQ,
                "ep.enable: no completion queue is bound for RECV\n  try: ep.bind(cq, fi.TRANSMIT | fi.RECV)",
            )

    def op_flags(self, side: int, flags: int) -> int:
        """The flags, if the offer has them."""
        part = "tx_attr" if side == Flag.TRANSMIT else "rx_attr"
        known = self.domain.offer.ceilings.get(f"{part}.op_flags", getattr(self.domain.offer.info, part).op_flags)
        if flags & ~known:
            raise self.refusals.refuse(
                Rule.EP_OPS_FLAG_UNKNOWN,
                f"ep: op_flags {Flag(flags & ~known)!s}; this provider has {Flag(known)!s} for {Flag(side)!s}",
            )
        return flags


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


class BaseCounter(_Unknown, CounterPolicy):
    """The policy of one counter: `CounterPolicy` with the man pages' answers."""

    def __init__(self, domain: BaseDomain) -> None:
        self.domain = domain
        self.refusals = domain.refusals
        self.commands = domain.commands
        self.advice = domain.advice
        self.numbers = domain.numbers


class BaseDomain(_Unknown, DomainPolicy):
    """The policy of one domain: `DomainPolicy` with the man pages' answers."""

    endpoint_class: type[BaseEndpoint] = BaseEndpoint
    counter_class: type[BaseCounter] = BaseCounter
    work = _nic.WorkRules()

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
        self.keys = provider.keys._replace(provider=bool(mode & (MrMode.MR_PROV_KEY | MrMode.MR_BASIC)))
        self.regions = provider.regions
        self.queues = provider.queues
        self.counters = provider.counters
        self.vectors = provider.vectors
        self.progress = Progress(offer.info.domain_attr.data_progress)  # what is done; the Info has what was asked for
        self.credential = self._credential()

    def _credential(self) -> Credential:
        attr = self.info.domain_attr
        if keys_in_force(self.info) and not keys_of_vector(self.info) and attr.auth_key is not None:
            return self.credential_of(bytes(attr.auth_key))._replace(found=("domain_attr.auth_key",))
        return Credential(self.source[2], found=("default of the provider",))

    def credential_of(self, key: bytes) -> Credential:
        """The decoded authorization key."""
        return self.provider.credential_of(key)

    def collective(self, coll: int, op: int, datatype: int) -> CollectiveLimit | None:
        """The barrier, broadcasts of any datatype, and reductions by every operator that the atomics have for it."""
        if coll == CollectiveOp.BARRIER:
            return CollectiveLimit(0, 0, GROUP_MEMBERS_MAX)
        if coll == CollectiveOp.BROADCAST:
            size = _nic.atomic_valid(datatype, Op.ATOMIC_WRITE, 0)[1] if datatype in _SIZED else 0
        elif coll in (CollectiveOp.REDUCE, CollectiveOp.ALLREDUCE):
            size = _nic.reduction_bytes(op, datatype, 1, True) or 0
        else:
            return None
        return CollectiveLimit(PAYLOAD_BYTES // size, size, GROUP_MEMBERS_MAX) if size else None

    def operator_name(self, op: int) -> str:
        """The name of enum fi_op, or the number."""
        return str(Op(op)) if op in set(Op) else str(op)

    @property
    def desc_ignored(self) -> bool:
        """True if local descriptors are ignored: under interfaces before 1.22, and without FI_MR_LOCAL."""
        info = self.info
        return info.fabric_attr.api_version < VERSION(1, 22) and not info.domain_attr.mr_mode & MrMode.MR_LOCAL

    def nic_config(self) -> _nic.DomainConfig:
        """The NIC's configuration: the domain's modes and the map of statuses."""
        info, attr = self.info, self.info.domain_attr
        mode = MrMode(attr.mr_mode)
        hmem = bool(info.caps & Flag.HMEM)
        return _nic.DomainConfig(
            nic=self.source[0],
            prov_key=self.keys.provider and self.keys.maker == "nic",
            virt_addr=bool(mode & (MrMode.MR_VIRT_ADDR | MrMode.MR_BASIC)),
            mr_local=bool(mode & MrMode.MR_LOCAL) or bool(info.mode & Mode.LOCAL_MR),
            may_overrun=attr.resource_mgmt == ResourceMgmt.RM_DISABLED,
            hmem=hmem,
            mr_hmem=hmem and bool(mode & MrMode.MR_HMEM),
            mr_allocated=bool(mode & (MrMode.MR_ALLOCATED | MrMode.MR_BASIC)),
            raw_keys=bool(mode & MrMode.MR_RAW),
            desc_ignored=self.desc_ignored,
            empty_region_errno=int(self.refusals.errno(Rule.MR_EMPTY)) if self.regions.bytes_min else 0,
            addresses=self.provider.address_text,
            statuses=_nic.StatusMap(entries=[self.statuses[status] for status in _nic.Status]),
            work=self.work,
        )

    def peer(self, address: Address, vni: int | None) -> Address:
        """The address itself, which contains its VNI; it must equal the VNI of the peer's key, if there is one."""
        if vni is not None and address[2] != vni:
            raise self.refusals.refuse(
                Rule.AV_INSERT_KEY,
                f"av.insert: {self.provider.addresses.text(address)} is on VNI {address[2]}, its authorization key is "
                f"for VNI {vni}",
            )
        return address

    def explain_error(self, cq: Any, prov_errno: int, err_data: object) -> str:
        """The provider's text."""
        return self.provider.explain_error(prov_errno, err_data)

    def endpoint(self, info: Info) -> EndpointPolicy:
        """An endpoint of the domain."""
        return self.endpoint_class(self, info)

    def counter(self) -> CounterPolicy:
        """A counter of the domain."""
        return self.counter_class(self)


class BaseProvider(_Unknown, Provider):
    """`Provider` with the man pages' answers; a provider adds `offers` and `resolve`, and overrides others."""

    name = ""
    version = VERSION(0, 1)
    addresses: AddressCodec
    address_text = _nic.AddressText()  # the form of endpoints' addresses in the NIC's texts
    refusals = Refusals()
    keys = KeyRules()
    regions = RegionRules()
    queues = QueueRules()
    counters = CounterRules()
    vectors = VectorRules()
    statuses: StatusMap = man_page_statuses()
    domain_class: type[BaseDomain] = BaseDomain

    def nic(self) -> _nic.Nic:
        """The NIC of the provider's domains: the process's."""
        return _process.nic()

    def offers(self, asked: Asked) -> list[Offer]:
        """The offers for getinfo, best first."""
        raise NotImplementedError

    def fabrics(self) -> list[str]:
        """The fabrics of the offers that getinfo makes without hints."""
        return sorted({offer.info.fabric_attr.name or self.name for offer in self.offers(Asked(LIBRARY_VERSION))})

    def absent(self, name: str | None) -> str:
        """There is no such domain."""
        return f"{self.name} has no domain {name!r}\n  try: an Info that getinfo returned"

    def resolve(self, asked: Asked, offer: Offer | None) -> tuple[Any, Any]:
        """Source and destination address for an offer."""
        raise NotImplementedError

    def mr_mode(self, required: MrMode, caps: int, asked: MrMode, mode: int, version: int) -> MrMode | str:
        """fi_mr(3)'s rule."""
        return negotiate_mr_mode(required, asked, mode, version)

    def key_size(self, mr_mode: int) -> int:
        """domain_attr.mr_key_size under an mr_mode."""
        return self.keys.size(mr_mode)

    def credential_of(self, key: bytes) -> Credential:
        """The VNI, 1 to 65535, from `auth_key_size` bytes, little-endian."""
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
