"""Packed keys and addresses of regions and endpoints of `weft.fi`, for peers that use this dialect."""

from __future__ import annotations

from typing import Any

from .. import _keys, _nic
from . import placement
from .constants import MemoryType, Prot
from .memh import MemHandle
from .packed import PackedBuffer
from .region import ACCESS_OF
from .status import invalid


def pack_region(region: _nic.MemoryRegionCore, endpoint: _nic.EndpointCore) -> PackedBuffer:
    """A remote key, for `Endpoint.rkey_unpack`, of a region that was registered with `weft.fi`.

    Args:
        region: A `fi.MemoryRegion` of one buffer, enabled.
        endpoint: An enabled `fi.Endpoint` of its domain, through which peers reach the region.

    Remote addresses are virtual addresses of the region's memory, as in UCP, under every mr_mode of the domain.

    Raises:
        UcsError: INVALID_PARAM: the region is closed, or peers have no rights.
    """
    given: Any = region
    if not isinstance(given, _nic.MemoryRegionCore) or isinstance(given, MemHandle):
        raise TypeError(f"pack_region: region must be an fi.MemoryRegion, not {region!r:.60}")
    _expect_endpoint("pack_region", endpoint)
    remote = region.access & ACCESS_OF[Prot.REMOTE_READ | Prot.REMOTE_WRITE]
    if region.state != "enabled" or not remote:
        raise invalid(
            f"pack_region: the region is {region.state if remote else 'not for peers'}\n"
            "  try: an enabled region with REMOTE_READ or REMOTE_WRITE"
        )
    kind = MemoryType.HOST if region.iface == 0 else placement.type_of(region.address)
    return PackedBuffer(_keys.of_region(region, endpoint, int(kind)).pack(), "ucp_memh_pack")


def pack_endpoint(endpoint: _nic.EndpointCore) -> PackedBuffer:
    """The address, for `Worker.ep_create`, of an enabled endpoint of `weft.fi`."""
    _expect_endpoint("pack_endpoint", endpoint)
    return PackedBuffer(_keys.of_endpoint(endpoint).pack(), "ucp_worker_get_address")


def _expect_endpoint(op: str, endpoint: Any) -> None:
    if not isinstance(endpoint, _nic.EndpointCore):
        raise TypeError(f"{op}: endpoint must be an fi.Endpoint, not {endpoint!r:.60}")
