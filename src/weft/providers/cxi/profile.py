"""Limits and defaults of a release of the CXI provider, as data, with the environment's changes.

fi_cxi(7) describes the releases 2.0 and 2.1 of libfabric; later releases have other numbers. `WEFT_CXI_RELEASE=doc`
(the default) selects the document's numbers, `WEFT_CXI_RELEASE=current` those of later releases where they differ.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace
from typing import Literal

from ... import errors
from ...flags import Order
from . import env

U64_MAX = (1 << 64) - 1
EP_AUTH_KEYS = 4  # authorization keys of an endpoint under FI_AV_AUTH_KEY: VNIs of a service

_ORDER = (
    Order.ORDER_SAS
    | Order.ORDER_WAW
    | Order.ORDER_RMA_WAW
    | Order.ORDER_RMA_RAR
    | Order.ORDER_ATOMIC_WAW
    | Order.ORDER_ATOMIC_RAR
    | Order.ORDER_ATOMIC_WAR
    | Order.ORDER_ATOMIC_RAW
)


@dataclass(frozen=True)
class Profile:
    """Numbers of one release.

    Attributes:
        release: "doc" or "current".
        tx_size: Entries of a transmit queue without a size in the hints (FI_CXI_DEFAULT_TX_SIZE).
        rx_size: Entries of a receive queue without a size in the hints (FI_CXI_DEFAULT_RX_SIZE).
        cq_size: Entries of a completion queue opened with size 0 (FI_CXI_DEFAULT_CQ_SIZE).
        tx_size_max: The largest transmit queue that hints may request.
        rx_size_max: The largest receive queue that hints may request.
        inject_bytes: tx_attr.inject_size.
        message_bytes: ep_attr.max_msg_size.
        msg_order: The orders that hints may request, and the orders without hints.
        max_order: ep_attr.max_order_raw_size, _war_size, _waw_size.
        default_vni: The VNI if the service allows all (FI_CXI_DEFAULT_VNI).
        key_steps: The steps of the search for a service without an authorization key, in order, after the environment.
        newest_service: If several services match in one step, the newest is used; otherwise the first.
        address_vni: Addresses contain the VNI; otherwise that field is 0.
        odp: On-demand paging is offered (FI_CXI_ODP).
        force_odp: Only on-demand paging is offered (FI_CXI_FORCE_ODP).
        devices: The devices to use (FI_CXI_DEVICE_NAME); None: all.
        fork_copies: CXI_FORK_SAFE marks nothing where the kernel copies pinned pages at a fork (5.12); otherwise it
            always does.
        endpoint_vnis: An endpoint may have another VNI of its service than its domain.
        unreliable_fetches: Atomics that return a value take FI_CXI_UNRELIABLE.
        num_extremes: MIN, MAX and MINMAXLOC of doubles are the NUM variants, which skip a NaN.
        compat: The old numbers of FI_ADDR_CXI and FI_PROTO_CXI are: 0 unknown, 1 known too, 2 the only ones
            (FI_CXI_COMPAT).
    """

    release: Literal["doc", "current"]
    tx_size: int = 1024
    rx_size: int = 1024
    cq_size: int = 1024
    tx_size_max: int = 16384
    rx_size_max: int = 15360
    inject_bytes: int = 192
    message_bytes: int = (1 << 32) - 1
    msg_order: Order = _ORDER
    max_order: tuple[int, int, int] = (U64_MAX, U64_MAX, U64_MAX)
    default_vni: int = 10
    key_steps: tuple[Literal["netns", "uid", "gid", "unrestricted"], ...] = ("uid", "gid", "unrestricted")
    newest_service: bool = False
    address_vni: bool = False
    odp: bool = False
    force_odp: bool = False
    devices: tuple[str, ...] | None = None
    fork_copies: bool = False
    endpoint_vnis: bool = False
    unreliable_fetches: bool = False
    num_extremes: bool = False
    compat: int = 1


_DOC = Profile("doc")

RELEASES = {
    "doc": _DOC,
    "current": replace(
        _DOC,
        release="current",
        cq_size=131072,
        max_order=(0, 0, U64_MAX),
        key_steps=("netns", "uid", "gid", "unrestricted"),
        newest_service=True,
        address_vni=True,
        fork_copies=True,
        endpoint_vnis=True,
        unreliable_fetches=True,
        num_extremes=True,
        compat=0,
    ),
}
"""Value of WEFT_CXI_RELEASE -> the profile."""


def load() -> Profile:
    """The profile in force, with the changes by FI_CXI_*. Raises InvalidArgument for an unknown release."""
    return _made(tuple(os.environ.get(name) for name in ("WEFT_CXI_RELEASE", *_READ)))


_READ = (
    "FI_CXI_DEFAULT_TX_SIZE",
    "FI_CXI_DEFAULT_RX_SIZE",
    "FI_CXI_DEFAULT_CQ_SIZE",
    "FI_CXI_DEFAULT_VNI",
    "FI_CXI_ODP",
    "FI_CXI_FORCE_ODP",
    "FI_CXI_DEVICE_NAME",
    "FI_CXI_COMPAT",
)


@functools.lru_cache(maxsize=64)  # every getinfo reads it: compute again only after a change
def _made(texts: tuple[str | None, ...]) -> Profile:
    name = texts[0] or "doc"
    found = RELEASES.get(name)
    if found is None:
        raise errors.InvalidArgument(
            f"WEFT_CXI_RELEASE={name!r} is no release of the CXI provider\n  rule: {' or '.join(RELEASES)}"
        )
    e = env.load()
    return replace(
        found,
        tx_size=e.FI_CXI_DEFAULT_TX_SIZE,
        rx_size=e.FI_CXI_DEFAULT_RX_SIZE,
        cq_size=e.FI_CXI_DEFAULT_CQ_SIZE,
        default_vni=e.FI_CXI_DEFAULT_VNI,
        odp=e.FI_CXI_ODP,
        force_odp=e.FI_CXI_FORCE_ODP,
        devices=tuple(e.FI_CXI_DEVICE_NAME) or None,
        compat=e.FI_CXI_COMPAT if found.release == "doc" else 0,
    )
