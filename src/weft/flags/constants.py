"""Sentinels, limits and the C macros: numbers that belong to no enumeration."""

from __future__ import annotations

from .bits import MrMode
from .enums import Tc

__all__ = [
    "ADDR_NOTAVAIL",
    "ADDR_UNSPEC",
    "ATOMIC_OP_LAST",
    "AV_AUTH_KEY",
    "COLLECTIVE_OFFSET",
    "DATATYPE_LAST",
    "EP_SOCK_STREAM",
    "ERRNO_MAX",
    "ERRNO_OFFSET",
    "KEY_NOTAVAIL",
    "MAJOR",
    "MINOR",
    "MPI_IGNORE_PAYLOAD",
    "MPI_IGNORE_TAG",
    "MR_BASIC_MAP",
    "NAME_MAX",
    "NOTIFY_FLAGS_ONLY",
    "PROTO_PROVIDER",
    "RESTRICTED_COMP",
    "SHARED_CONTEXT",
    "VARIABLE_MSG",
    "VERSION",
    "VERSION_GE",
    "VERSION_LT",
    "hmem_ze_device",
    "tc_dscp_get",
    "tc_dscp_set",
]

# Sentinels and limits
ADDR_UNSPEC = (1 << 64) - 1  # no address, or any
ADDR_NOTAVAIL = (1 << 64) - 1  # an address that is not known
KEY_NOTAVAIL = (1 << 64) - 1  # no 64-bit key (yet)
SHARED_CONTEXT = (1 << 64) - 1  # ep_attr.tx_ctx_cnt, rx_ctx_cnt
AV_AUTH_KEY = (1 << 64) - 1  # domain_attr.auth_key_size: keys come from the address vector
NAME_MAX = 64
ERRNO_OFFSET = 256  # first of libfabric's own error numbers
ERRNO_MAX = 272
COLLECTIVE_OFFSET = 256  # first datatype and operation that only collectives have
DATATYPE_LAST = 14  # frozen; not the last datatype
ATOMIC_OP_LAST = 19  # frozen
VARIABLE_MSG = 0  # legacy
NOTIFY_FLAGS_ONLY = 0  # legacy
RESTRICTED_COMP = 0  # legacy
EP_SOCK_STREAM = 0  # legacy
MPI_IGNORE_TAG = 0xFFFFFFFF
MPI_IGNORE_PAYLOAD = 0xFF00000000
PROTO_PROVIDER = 1 << 31  # top bit of a protocol number that belongs to a provider

# The bits that FI_MR_BASIC implies (fi_mr(3) "Basic Memory Registration").
MR_BASIC_MAP = MrMode.MR_VIRT_ADDR | MrMode.MR_ALLOCATED | MrMode.MR_PROV_KEY


def VERSION(major: int, minor: int) -> int:
    """Interface version as one number (FI_VERSION)."""
    return major << 16 | minor


def MAJOR(version: int) -> int:
    """Major part of an interface version (FI_MAJOR)."""
    return version >> 16


def MINOR(version: int) -> int:
    """Minor part of an interface version (FI_MINOR)."""
    return version & 0xFFFF


def VERSION_GE(a: int, b: int) -> bool:
    """True where interface version `a` is `b` or later (FI_VERSION_GE)."""
    return a >= b


def VERSION_LT(a: int, b: int) -> bool:
    """True where interface version `a` is before `b` (FI_VERSION_LT)."""
    return a < b


def tc_dscp_set(dscp: int) -> int:
    """Traffic class for a DSCP value (fi_tc_dscp_set)."""
    return dscp | Tc.TC_DSCP


def tc_dscp_get(tclass: int) -> int:
    """DSCP value of a traffic class; 0 for a traffic class that is a label (fi_tc_dscp_get)."""
    return tclass & 0xFF if tclass & Tc.TC_DSCP else 0


def hmem_ze_device(driver_index: int, device_index: int) -> int:
    """Device identifier of a Level Zero driver and device (fi_hmem_ze_device), for MrAttr.device.

    Args:
        driver_index: Position, from 0, in the drivers that zeDriverGet returns.
        device_index: Position, from 0, in the devices that zeDeviceGet returns.

    Source: fi_mr(3) fi_hmem_ze_device.
    """
    return driver_index << 16 | device_index
