"""Providers: policy objects that this package asks, and where it finds them.

A provider says what getinfo offers, reads and writes addresses, and decides the rules that differ from one provider to
the next. No other file here knows that there is more than one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .attrs import Info
    from .offer import Offer

__all__ = ["Address", "Provider", "find", "providers", "register"]

Address = tuple[int, int | None, int]
"""(nic, pid or None, vni): an endpoint's identity; without a pid, one that the NIC will choose."""


class Provider(Protocol):
    """What a provider decides.

    name, version                 as in fi_fabric_attr.
    close_region_needs_unbound    closing a region that an open endpoint or counter is associated with is FI_EBUSY, as
                                  fi_mr(3) fi_close has it.
    client_keys                   applications may choose the keys of regions; if not, requested_key has to be 0.
    refreshes                     works also where FI_MR_MMU_NOTIFY does not ask for it; if not, it is FI_ENOSYS
                                  there.
    region_events                 access to a region can be counted; if not, binding a counter is FI_ENOSYS.
    auth_key_size                 bytes of an authorization key.
    max_ep_auth_key               authorization keys that an endpoint may have at a time (FI_AV_AUTH_KEY).
    raw_key_size                  bytes of a raw key.
    """

    name: str
    version: int
    close_region_needs_unbound: bool
    client_keys: bool
    refreshes: bool
    region_events: bool
    auth_key_size: int
    max_ep_auth_key: int
    raw_key_size: int

    def offers(self) -> list[Offer]:
        """What getinfo chooses from, best first."""
        ...

    def resolve(
        self, node: str | None, service: str | None, flags: int, hints: Info | None
    ) -> tuple[object | None, object | None]:
        """Source and destination address for the arguments of getinfo, in the provider's format; None for none.

        Raises NotAvailable where there is no such address, InvalidArgument where it makes no sense.
        """
        ...

    def parse_address(self, address: object) -> Address:
        """Take an address apart. Raises InvalidArgument, saying what an address looks like."""
        ...

    def format_address(self, address: Address) -> object:
        """The reverse of parse_address: what getname returns and peers insert."""
        ...

    def parse_auth_key(self, key: bytes) -> int:
        """The VNI that an authorization key stands for. Raises InvalidArgument, saying what a key looks like."""
        ...

    def format_auth_key(self, vni: int) -> bytes:
        """The reverse of parse_auth_key."""
        ...

    def explain_error(self, prov_errno: int, err_data: object) -> str:
        """A provider error number in words (fi_cq_strerror)."""
        ...


_providers: dict[str, Provider] = {}


def register(provider: Provider) -> None:
    """Make a provider known. Registering a name again replaces it."""
    _providers[provider.name] = provider


def find(name: str | None) -> Provider | None:
    """The provider of a name."""
    _load()
    return _providers.get(name) if name is not None else None


def providers() -> list[Provider]:
    """All providers, in the order in which getinfo asks them."""
    _load()
    return list(_providers.values())


def _load() -> None:
    # Asked for the first time: our own providers register themselves when they are imported.
    from ..providers import general  # noqa: F401
