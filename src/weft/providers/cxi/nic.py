"""The NIC attributes of an Info: fi_info.nic, and the provider's part of it, struct cxip_nic_attr.

Source: fi_nic(3); <rdma/fi_cxi_ext.h>.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ... import errors
from ...fi import attrs
from ...flags import BusType, LinkState
from . import auth_key, device
from .names import NIC_ATTR_VER, Opt
from .number import number


@dataclass
class NicAttr:
    """The provider's attributes of a NIC (struct cxip_nic_attr): `info.nic.prov_attr`.

    Attributes:
        version: The number 1.
        addr: Address of the NIC in the fabric.
        default_rgroup_id: The service of a domain opened without an authorization key; 0: none.
        default_vni: The VNI of such a domain.
        found: The search for the service and the VNI, step by step.
    """

    version: int
    addr: int
    default_rgroup_id: int
    default_vni: int
    found: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        key = f"service {self.default_rgroup_id}, VNI {self.default_vni}" if self.default_rgroup_id else "none"
        return f"address {self.addr:#x}; authorization key by default: {key}"

    def control(self, command: int, arg: Any) -> None:
        """fi_control on the NIC: FI_OPT_CXI_NIC_REFRESH_ATTR searches for service and VNI again.

        Raises InvalidArgument for another command, NoDevice if the NIC is gone.
        """
        if number(command) != Opt.OPT_CXI_NIC_REFRESH_ATTR:
            raise errors.InvalidArgument(
                f"nic.control: no command {command!r} here\n  known: cxi.OPT_CXI_NIC_REFRESH_ATTR"
            )
        there = device.by_nic(self.addr)
        if there is None:
            raise errors.NoDevice(f"nic.control: NIC {self.addr:#x} is not there any more\n  try: `weft device list`")
        self._take(auth_key.find(there))

    def _take(self, found: auth_key.Found) -> None:
        self.default_rgroup_id, self.default_vni, self.found = found.svc_id, found.vni, found.steps


def describe(one: device.Device, found: auth_key.Found) -> attrs.NicAttr:
    """fi_info.nic of a device.

    Args:
        found: The authorization key for domains opened without one.
    """
    return attrs.NicAttr(
        name=one.name,
        device_id="0x501",
        device_version="2",
        vendor_id="0x17db",
        driver="cxi_core",
        bus_type=BusType.BUS_PCI,
        address=f"{one.nic:#x}",
        mtu=one.mtu,
        speed=one.speed,
        state=LinkState.LINK_UP if one.up else LinkState.LINK_DOWN,
        network_type="HPC Ethernet",
        prov_attr=NicAttr(NIC_ATTR_VER, one.nic, found.svc_id, found.vni, found.steps),
    )
