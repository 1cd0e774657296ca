"""The general provider, "weft": exactly fi_mr(3), fi_rma(3), fi_msg(3) and fi_tagged(3), on the software NIC.

Addresses are strings (FI_ADDR_STR): `weft://<nic>/<vni>/<pid>`, or `weft://<host>:<port>/<nic>/<vni>/<pid>` if the
process listens for other hosts (hosts.py). Without a pid an endpoint takes a free one.

By default the provider requires no mr_mode bits; `WEFT_MR_MODE` makes it require some, so that a program can run under
every registration mode. A domain honours every bit of its mr_mode, required or not.
"""

from __future__ import annotations

from .. import _nic, errors
from .._keys import VNI_DEFAULT
from ..fi.attrs import DomainAttr, EpAttr, FabricAttr, Info, NicAttr, RxAttr, TxAttr, dupinfo
from ..fi.match import DOMAIN_CAPS, RX_CAPS, TX_CAPS
from ..fi.offer import No, Offer
from ..fi.policy import AddressCodec, Asked, Provider
from ..fi.registry import register
from ..flags import (
    PROTO_PROVIDER,
    VERSION,
    AddrFormat,
    AvType,
    EpType,
    Flag,
    LinkState,
    Order,
    Progress,
    ResourceMgmt,
    Tc,
    Threading,
    tc_dscp_set,
)
from . import hosts
from .addresses import WeftAddresses
from .base import BaseDomain, BaseEndpoint, BaseProvider

PROTO_WEFT = PROTO_PROVIDER | 1
NIC_NAME = "weft0"

_LIMITS = _nic.limits()
TX_SIZE = 1024
TX_SIZE_MAX = 65536
RX_SIZE = 1024  # receives at a time
RX_SIZE_MAX = 1 << 20
_TAG_FORMAT = 0xAAAAAAAAAAAAAAAA  # 64 bits, in fields of one bit each
_UNEXPECTED_BUFFERS = 256  # of 2 MiB: messages without a receive, of all senders of an endpoint
QUEUE_COUNT_MAX = 65536  # completion queues, counters: bounded by descriptors and memory, not by a table
U64_MAX = (1 << 64) - 1

_CAPS = (
    Flag.RMA
    | Flag.ATOMIC
    | Flag.MSG
    | Flag.TAGGED
    | Flag.SEND
    | Flag.RECV
    | Flag.READ
    | Flag.WRITE
    | Flag.REMOTE_READ
    | Flag.REMOTE_WRITE
    | Flag.FENCE
    | Flag.RMA_EVENT
    | Flag.SOURCE
    | Flag.LOCAL_COMM
    | Flag.REMOTE_COMM
    | Flag.RMA_PMEM
    | Flag.HMEM
    | Flag.DIRECTED_RECV
    | Flag.TAGGED_DIRECTED_RECV
    | Flag.TAGGED_MULTI_RECV
    | Flag.MULTI_RECV
    | Flag.SOURCE_ERR
    | Flag.COLLECTIVE
    | Flag.TRIGGER
)
# Transfers of an endpoint reach one peer in the order in which they were posted. Messages do, too, and arrive after the
# writes that were posted before them. A transfer may pass a message.
_ORDER = (
    Order.ORDER_RAR
    | Order.ORDER_RAW
    | Order.ORDER_WAR
    | Order.ORDER_WAW
    | Order.ORDER_RMA_RAR
    | Order.ORDER_RMA_RAW
    | Order.ORDER_RMA_WAR
    | Order.ORDER_RMA_WAW
    | Order.ORDER_ATOMIC_RAR
    | Order.ORDER_ATOMIC_RAW
    | Order.ORDER_ATOMIC_WAR
    | Order.ORDER_ATOMIC_WAW
    | Order.ORDER_SAS
    | Order.ORDER_SAW
)
_OP_FLAGS = (
    Flag.COMPLETION
    | Flag.INJECT_COMPLETE
    | Flag.TRANSMIT_COMPLETE
    | Flag.DELIVERY_COMPLETE
    | Flag.COMMIT_COMPLETE
    | Flag.MATCH_COMPLETE
)
_RX_OP_FLAGS = Flag.COMPLETION | Flag.MULTI_RECV
# Accepted and returned; all packets are treated alike.
_TCLASSES = frozenset([*map(int, Tc), *map(tc_dscp_set, range(64))])

_REMARKS: dict[int | str, str] = {
    int(
        Flag.MULTICAST
    ): "this provider has no datagrams to multicast addresses; groups are joined with join_collective",
    int(Flag.COLLECTIVE): "connected endpoints have no address vector, whose sets make groups; use EP_RDM",
    int(Flag.HMEM): "this provider cannot copy device memory through the host, and FI_HMEM_DISABLE_P2P=1 is set",
    int(Flag.SHARED_AV): "address vectors are not shared between processes: each inserts the addresses it uses",
    f"ep_attr.type={EpType.EP_DGRAM:d}": "this provider has no unreliable datagrams; use EP_RDM",
    "progress": "WEFT_ENGINE=manual turned the engine thread off; unset it for automatic progress",
    "tclass": "a class is a label (fi.TC_LOW_LATENCY ...) or fi.tc_dscp_set(0 to 63)",
    "tx_attr.op_flags": "",
}

# prov_errno of error completions.
PROV_ERRORS = {int(status): str(status.__doc__) for status in _nic.Status}


class GeneralEndpoint(BaseEndpoint):
    """An endpoint of the general provider: rx_attr.size bounds its receives."""

    def __init__(self, domain: BaseDomain, info: Info) -> None:
        size = int(info.rx_attr.size) or RX_SIZE
        buffers = _nic.RxBufferConfig(count_max=_UNEXPECTED_BUFFERS)
        self.messages = _nic.MessageConfig(posted_max=size, buffers=buffers)
        super().__init__(domain, info)


class GeneralDomain(BaseDomain):
    """A domain of the general provider."""

    endpoint_class = GeneralEndpoint


class General(BaseProvider):
    """Policy of the provider "weft": the rules of the man pages, on the process's NIC."""

    name = "weft"
    version = VERSION(0, 1)
    addresses: AddressCodec = WeftAddresses()
    domain_class = GeneralDomain
    copies_device_memory = True  # if peer-to-peer is forbidden; a subclass without copies does not offer FI_HMEM then

    def offers(self, asked: Asked) -> list[Offer]:
        """One reliable-datagram endpoint on the one virtual NIC."""
        from .. import settings

        s = settings.load()
        caps = _CAPS if self.copies_device_memory or not s.FI_HMEM_DISABLE_P2P else _CAPS & ~Flag.HMEM
        progress = Progress.PROGRESS_AUTO if s.WEFT_ENGINE == "thread" else Progress.PROGRESS_MANUAL
        info = Info(
            caps=caps,
            addr_format=AddrFormat.ADDR_STR,
            src_addr=f"weft://0/{VNI_DEFAULT}",
            tx_attr=TxAttr(
                caps=caps & TX_CAPS,
                op_flags=Flag(0),
                msg_order=_ORDER,
                inject_size=_LIMITS.inject_bytes,
                size=TX_SIZE,
                iov_limit=_LIMITS.iov_count,
                rma_iov_limit=_LIMITS.iov_count,
                tclass=Tc.TC_UNSPEC,
            ),
            rx_attr=RxAttr(
                caps=caps & RX_CAPS, op_flags=Flag(0), msg_order=_ORDER, size=RX_SIZE, iov_limit=_LIMITS.iov_count
            ),
            ep_attr=EpAttr(
                type=EpType.EP_RDM,
                protocol=PROTO_WEFT,
                protocol_version=1,
                max_msg_size=_LIMITS.message_bytes,
                max_order_raw_size=U64_MAX,
                max_order_war_size=U64_MAX,
                max_order_waw_size=U64_MAX,
                tx_ctx_cnt=1,
                rx_ctx_cnt=1,
                mem_tag_format=_TAG_FORMAT,
            ),
            domain_attr=DomainAttr(
                name=NIC_NAME,
                threading=Threading.THREAD_SAFE,
                control_progress=progress,
                data_progress=progress,
                resource_mgmt=ResourceMgmt.RM_ENABLED,
                av_type=AvType.AV_TABLE,
                mr_key_size=8,
                cq_data_size=8,
                cq_cnt=QUEUE_COUNT_MAX,
                ep_cnt=_LIMITS.endpoint_count,
                tx_ctx_cnt=_LIMITS.endpoint_count,
                rx_ctx_cnt=_LIMITS.endpoint_count,
                max_ep_tx_ctx=1,
                max_ep_rx_ctx=1,
                cntr_cnt=QUEUE_COUNT_MAX,
                mr_iov_limit=_LIMITS.iov_count,
                caps=caps & DOMAIN_CAPS,
                max_err_data=256,
                mr_cnt=_LIMITS.region_count,
                max_ep_auth_key=1,
                tclass=Tc.TC_UNSPEC,
                max_cntr_value=U64_MAX,
                max_err_cntr_value=U64_MAX,
            ),
            fabric_attr=FabricAttr(name="weft", prov_name=self.name, prov_version=self.version),
            nic=NicAttr(name=NIC_NAME, driver="weft", state=LinkState.LINK_UP, network_type="shared memory"),
        )
        ceilings = {
            "tx_attr.size": TX_SIZE_MAX,
            "rx_attr.size": RX_SIZE_MAX,
            "tx_attr.op_flags": int(_OP_FLAGS),
            "rx_attr.op_flags": int(_RX_OP_FLAGS),
            "domain_attr.max_ep_auth_key": self.max_ep_auth_key,
        }
        quiet = Flag.RMA_EVENT | Flag.SOURCE | Flag.SOURCE_ERR | Flag.RMA_PMEM | Flag.TRIGGER
        connected = dupinfo(info)
        connected.ep_attr.type = EpType.EP_MSG
        for part in (connected, connected.tx_attr, connected.rx_attr):
            part.caps = Flag(part.caps & ~Flag.COLLECTIVE)
        return [
            Offer(info, ceilings, s.WEFT_MR_MODE, quiet=quiet, remarks=_REMARKS, tclasses=_TCLASSES),
            Offer(connected, ceilings, s.WEFT_MR_MODE, quiet=quiet, remarks=_REMARKS, tclasses=_TCLASSES),
        ]

    def meets(self, offer: Offer, asked: Asked, info: Info, no: No) -> None:
        """FI_MULTI_RECV is added to the capabilities of an endpoint that has messages."""
        hinted = asked.hints is not None and asked.hints.caps & Flag.MULTI_RECV
        if not hinted and not info.caps & (Flag.MSG | Flag.TAGGED):
            info.caps = Flag(info.caps & ~Flag.MULTI_RECV)
            info.rx_attr.caps = Flag(info.rx_attr.caps & ~Flag.MULTI_RECV)

    def resolve(self, asked: Asked, offer: Offer | None) -> tuple[object | None, object | None]:
        """node is an address string, `weft0` or 0, and service a pid. Or node is a host, and service its port."""
        node, service, hints = asked.node, asked.service, asked.hints
        source = bool(asked.flags & Flag.SOURCE)
        named = self._named(node, service) if node is not None or service is not None else None
        hint_src = hints.src_addr if hints is not None and not source else None
        hint_dest = hints.dest_addr if hints is not None and (named is None or source) else None
        src = self._own(named) if source else self._own(self._hinted(hint_src))
        dest = self._hinted(hint_dest) if source or named is None else named
        return src, dest

    def _own(self, address: object | None) -> object | None:
        """A source address without its host, which must be this one."""
        if address is None:
            return None
        own = self.addresses.own(self.addresses.parse(address))
        if own[0] >= hosts.REMOTE_NIC:
            raise errors.NotAvailable(
                f"{address!r} is no address of this process, so no endpoint can be opened there\n"
                "  try: listen there first (WEFT_LISTEN, weft.open(listen=...)), or leave the source address out"
            )
        found: object = self.addresses.emit(own)
        return found

    def _hinted(self, address: object | None) -> object | None:
        return None if address is None else self.addresses.emit(self.addresses.parse(address))

    def _named(self, node: str | None, service: str | None) -> object:
        if node is not None and "://" in node:
            if service is not None:
                raise errors.InvalidArgument(
                    f"getinfo: node {node!r} is a whole address (FI_ADDR_STR), so service must be None, not {service!r}"
                )
            return self.addresses.emit(self.addresses.parse(node))
        if node is not None and node not in ("0", NIC_NAME):
            there = hosts.named(node, service)
            if there is not None:
                return self.addresses.emit(there)
            raise errors.NotAvailable(
                f"no NIC {node!r} here; there is {NIC_NAME} (or 0); an endpoint of another host needs a port as service"
            )
        if service is not None and not (service.isascii() and service.isdecimal() and int(service) < 1 << 32):
            raise errors.NotAvailable(f"service {service!r} is no endpoint number (0 to 2**32-1)")
        return self.addresses.emit((0, None if service is None else int(service), VNI_DEFAULT))

    def explain_error(self, prov_errno: int, err_data: object) -> str:
        """The NIC's text, or the meaning of the number."""
        if isinstance(err_data, (bytes, bytearray)) and err_data:
            return bytes(err_data).decode("utf-8", "replace")
        return PROV_ERRORS.get(prov_errno, f"unknown provider error {prov_errno}")


_general: Provider = General()
register(_general)
