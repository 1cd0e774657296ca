"""Attribute structs of libfabric: dataclasses with the C field names, and copies of them.

Source: fi_getinfo(3), fi_fabric(3), fi_domain(3), fi_endpoint(3), fi_nic(3).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import errors
from ..flags import (
    VERSION,
    AddrFormat,
    AvType,
    EpType,
    Flag,
    LinkState,
    Mode,
    MrMode,
    Order,
    Progress,
    Protocol,
    ResourceMgmt,
    Tc,
    Threading,
)
from ._table import Table, dotted, number

if TYPE_CHECKING:
    from .domain import Domain
    from .fabric import Fabric

LIBRARY_VERSION = VERSION(2, 1)  # the interface that the documents we follow describe


@dataclass(frozen=True)
class AvAttr:
    """How a vector is opened (struct fi_av_attr): the arguments of `Domain.av_open`, checked."""

    type: int
    rx_ctx_bits: int
    count: int
    ep_per_node: int
    name: str | None
    flags: int


@dataclass(frozen=True)
class CqAttr:
    """How a completion queue is opened (struct fi_cq_attr): the arguments of `Domain.cq_open`, checked."""

    size: int
    flags: int
    format: int
    wait_obj: int
    signaling_vector: int
    wait_cond: int


@dataclass(repr=False, slots=True)
class TxAttr(Table):
    """Transmit side of an endpoint (struct fi_tx_attr). Source: fi_endpoint(3) "Transmit context attributes"."""

    caps: int = number(Flag)
    mode: int = number(Mode)
    op_flags: int = number(Flag)
    msg_order: int = number(Order)
    comp_order: int = 0
    inject_size: int = 0
    size: int = 0
    iov_limit: int = 0
    rma_iov_limit: int = 0
    tclass: int = number(Tc)


@dataclass(repr=False, slots=True)
class RxAttr(Table):
    """Receive side of an endpoint (struct fi_rx_attr). Source: fi_endpoint(3) "Receive context attributes"."""

    caps: int = number(Flag)
    mode: int = number(Mode)
    op_flags: int = number(Flag)
    msg_order: int = number(Order)
    comp_order: int = 0
    total_buffered_recv: int = 0
    size: int = 0
    iov_limit: int = 0


@dataclass(repr=False, slots=True)
class EpAttr(Table):
    """Endpoint attributes (struct fi_ep_attr). Source: fi_endpoint(3) "Endpoint attributes"."""

    type: int = number(EpType)
    protocol: int = number(Protocol)
    protocol_version: int = 0
    max_msg_size: int = 0
    msg_prefix_size: int = 0
    max_order_raw_size: int = 0
    max_order_war_size: int = 0
    max_order_waw_size: int = 0
    mem_tag_format: int = 0
    tx_ctx_cnt: int = 0
    rx_ctx_cnt: int = 0
    auth_key: Any = None
    auth_key_size: int = 0


@dataclass(repr=False, slots=True)
class DomainAttr(Table):
    """Domain attributes (struct fi_domain_attr). Source: fi_domain(3) "Domain attributes"."""

    domain: Domain | None = None
    name: str | None = None
    threading: int = number(Threading)
    control_progress: int = number(Progress)
    data_progress: int = number(Progress)
    resource_mgmt: int = number(ResourceMgmt)
    av_type: int = number(AvType)
    mr_mode: int = number(MrMode)
    mr_key_size: int = 0
    cq_data_size: int = 0
    cq_cnt: int = 0
    ep_cnt: int = 0
    tx_ctx_cnt: int = 0
    rx_ctx_cnt: int = 0
    max_ep_tx_ctx: int = 0
    max_ep_rx_ctx: int = 0
    max_ep_stx_ctx: int = 0
    max_ep_srx_ctx: int = 0
    cntr_cnt: int = 0
    mr_iov_limit: int = 0
    caps: int = number(Flag)
    mode: int = number(Mode)
    auth_key: Any = None
    auth_key_size: int = 0
    max_err_data: int = 0
    mr_cnt: int = 0
    tclass: int = number(Tc)
    max_ep_auth_key: int = 0
    max_group_id: int = 0
    max_cntr_value: int = 0
    max_err_cntr_value: int = 0

    @property
    def progress(self) -> int:
        """The other name of data_progress (they are a union in C)."""
        return self.data_progress

    @progress.setter
    def progress(self, value: int) -> None:
        self.data_progress = value


@dataclass(repr=False, slots=True)
class FabricAttr(Table):
    """Fabric attributes (struct fi_fabric_attr). Source: fi_fabric(3) "Fabric attributes"."""

    fabric: Fabric | None = None
    name: str | None = None
    prov_name: str | None = None
    prov_version: int = number(dotted)
    api_version: int = number(dotted)


@dataclass(repr=False, slots=True)
class NicAttr(Table):
    """The NIC (struct fid_nic: fi_device_attr, fi_bus_attr and fi_link_attr in one). Source: fi_nic(3)."""

    name: str | None = None
    device_id: str | None = None
    device_version: str | None = None
    vendor_id: str | None = None
    driver: str | None = None
    firmware: str | None = None
    bus_type: int = 0
    address: str | None = None
    mtu: int = 0
    speed: int = 0
    state: int = number(LinkState)
    network_type: str | None = None
    prov_attr: Any = None

    def control(self, command: int, arg: Any = None) -> Any:
        """A command of the provider for this NIC (fi_control on fid_nic).

        Raises NoSys if the provider has no commands for NICs; for an unknown command, the provider's error.
        """
        found = getattr(self.prov_attr, "control", None)
        if found is None:
            raise errors.NoSys(f"nic.control: the provider of {self.name} has no commands for NICs, not {command}")
        return found(command, arg)


@dataclass(repr=False, slots=True)
class Info(Table):
    """An endpoint that a provider offers, or hints for one (struct fi_info). Source: fi_getinfo(3).

    Attributes:
        caps: Capabilities.
        mode: Duties of the application.
        addr_format: Format of the two addresses.
        src_addr: The endpoint's address, in `addr_format`: a str for FI_ADDR_STR.
        dest_addr: The peer's address, likewise.
        handle: Returned unchanged from the hints.
        tx_attr: Attributes of the transmit side; None in hints counts as zeros, as in the next four attributes.
        rx_attr: Attributes of the receive side.
        ep_attr: Attributes of the endpoint.
        domain_attr: Attributes of the domain.
        fabric_attr: Attributes of the fabric.
        nic: The NIC of the endpoint; ignored in hints.
    """

    caps: int = number(Flag)
    mode: int = number(Mode)
    addr_format: int = number(AddrFormat)
    src_addr: Any = None
    dest_addr: Any = None
    handle: Any = None
    tx_attr: TxAttr = field(default_factory=TxAttr)
    rx_attr: RxAttr = field(default_factory=RxAttr)
    ep_attr: EpAttr = field(default_factory=EpAttr)
    domain_attr: DomainAttr = field(default_factory=DomainAttr)
    fabric_attr: FabricAttr = field(default_factory=FabricAttr)
    nic: NicAttr | None = None

    @property
    def src_addrlen(self) -> int:
        """Length of src_addr; 0 if src_addr is None."""
        return len(self.src_addr) if self.src_addr is not None else 0

    @property
    def dest_addrlen(self) -> int:
        """Length of dest_addr; 0 if dest_addr is None."""
        return len(self.dest_addr) if self.dest_addr is not None else 0


def allocinfo() -> Info:
    """An empty Info, with all its parts (fi_allocinfo)."""
    return Info()


def dupinfo(info: Info | None) -> Info:
    """A copy of an Info and its parts (fi_dupinfo); an empty one for None. Opened objects in it are shared."""
    if info is None:
        return Info()
    if not isinstance(info, Info):
        raise TypeError(f"dupinfo: info must be an fi.Info or None, not {info!r}")
    copy = dataclasses.replace(info)
    for name in ("tx_attr", "rx_attr", "ep_attr", "domain_attr", "fabric_attr", "nic"):
        part = getattr(info, name)
        setattr(copy, name, None if part is None else dataclasses.replace(part))
    if copy.nic is not None and dataclasses.is_dataclass(copy.nic.prov_attr):
        copy.nic.prov_attr = dataclasses.replace(copy.nic.prov_attr)  # type: ignore[type-var]
    return copy
