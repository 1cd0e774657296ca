"""Providers of a real libfabric (`ofi:tcp`, `ofi:shm` ...) for `weft perf`, `pingpong` and `fabtest`: their offers."""

from __future__ import annotations

from .. import fi
from ._text import UsageError

PREFIX = "ofi:"
OPS = ("write", "read", "inject_write", "fetch_add", "send", "tsend")
"""Operations of `weft perf` that libfabric has a call for."""

MODES = fi.MR_LOCAL | fi.MR_VIRT_ADDR | fi.MR_ALLOCATED | fi.MR_PROV_KEY | fi.MR_ENDPOINT
_SOCKETS = ("tcp", "sockets", "net", "udp")  # providers whose limit is a bare socket
_SOCKADDR = (fi.SOCKADDR, fi.SOCKADDR_IN, fi.SOCKADDR_IN6)


def is_real(provider: str | None) -> bool:
    """True for the name of a provider of a real libfabric."""
    return provider is not None and provider.startswith(PREFIX)


def over_sockets(provider: str) -> bool:
    """True if the provider's bytes go through sockets of the kernel."""
    return provider.removeprefix(PREFIX).partition(";")[0] in _SOCKETS


def choose(hints: fi.Info, host: str | None = None) -> fi.Info:
    """The provider's first offer; over the network of `host`, an address of this host, where its addresses are of IP.

    Raises NoData if there is none, NoDevice if there is no library.
    """
    found = fi.getinfo(hints=hints)[0]
    if host is None or found.addr_format not in _SOCKADDR:
        return found
    try:
        return fi.getinfo(node=host, flags=fi.SOURCE, hints=hints)[0]
    except fi.NoData:  # a network of its own
        return found


def side_info(provider: str) -> fi.Info:
    """The Info that both processes of a measurement on this host open: with atomics if the provider has them."""
    for caps in (fi.RMA | fi.ATOMIC | fi.MSG | fi.TAGGED, fi.RMA | fi.MSG | fi.TAGGED):
        hints = fi.Info(
            caps=caps,
            ep_attr=fi.EpAttr(type=fi.EP_RDM),
            domain_attr=fi.DomainAttr(mr_mode=MODES),
            fabric_attr=fi.FabricAttr(prov_name=provider),
        )
        try:
            return choose(hints, "127.0.0.1")
        except fi.NoData as reason:
            last = reason
    raise last


def check(provider: str) -> None:
    """Raise UsageError if the provider cannot be measured here."""
    try:
        side_info(provider)
    except fi.NoDevice as reason:
        raise UsageError(f"--provider {provider}: {str(reason).removeprefix('ofi: ')}") from None
    except fi.NoData:
        raise UsageError(
            f"--provider {provider}: the libfabric of this host has no such provider with RMA, messages and tags\n"
            "  try: `weft info`, which lists the library's providers after Weft's"
        ) from None
