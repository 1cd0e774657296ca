"""The packet formats of an endpoint's operations, as plain data for the NIC; visible only in telemetry.

Low-overhead ("restricted") packets go to optimized regions without events, from endpoints that do not order writes
after writes. Source: fi_cxi(7) "Optimized RMA", "Unreliable AMOs", "High Rate Put", "PCIe Atomics".
"""

from __future__ import annotations

from ... import _nic
from ...fi.attrs import Info
from ...flags import Flag
from . import env
from .mr import CACHED, CLIENT_OPTIMIZED, EVENTS, OPTIMIZED, PROVIDER
from .names import OpFlag


def rules(info: Info) -> _nic.TrafficRules:
    """The rules of an endpoint."""
    found = _nic.TrafficRules(on=True)
    found.optimized_below = CLIENT_OPTIMIZED if env.load().FI_CXI_OPTIMIZED_MRS else 0
    found.provider_bit, found.cached_bit = PROVIDER, CACHED
    found.optimized_bit, found.events_bit = OPTIMIZED, EVENTS
    # A client key does not show whether its region has events: assume so if the initiator has the capability.
    found.client_events = bool(info.caps & Flag.RMA_EVENT)
    found.flush_flags = int(Flag.DELIVERY_COMPLETE | Flag.MATCH_COMPLETE)
    found.unreliable_flag = int(OpFlag.UNRELIABLE)
    found.hrp_flag = int(OpFlag.HRP)
    found.pcie_flag = int(OpFlag.PCIE_AMO)
    found.hrp_without_uint32 = True
    return found
