"""What may be opened: an attribute struct held against what its provider offers.

`Fabric`, `Fabric.domain` and `Domain.endpoint` take structs that getinfo returned. An application may edit them, or
make them by hand; what no offer has is refused here, by the rules of getinfo with the struct in the place of the hints.

Source: fi_fabric(3), fi_domain(3), fi_endpoint(3), fi_mr(3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..flags import MrMode
from .attrs import LIBRARY_VERSION, Info, dupinfo
from .match import complete, match_caps, match_kinds, match_limits, modes_needed, negotiate_mr_mode, widen_keys
from .offer import Offer, Rejection
from .policy import Asked
from .rules import Rule

if TYPE_CHECKING:
    from .attrs import FabricAttr
    from .policy import Provider

__all__ = ["domain", "endpoint", "fabric"]

_TRY = "\n  try: an Info that getinfo returned for these as hints"


def fabric(provider: Provider, attr: FabricAttr) -> None:
    """Is there a fabric of that name?"""
    names = sorted({o.info.fabric_attr.name or provider.name for o in provider.offers(_asked())})
    if attr.name is not None and attr.name not in names:
        raise provider.refusals.refuse(
            Rule.FABRIC_UNKNOWN,
            f"fabric: {provider.name} has no fabric {attr.name!r}; here: {', '.join(names)}\n"
            "  try: info.fabric_attr of getinfo",
        )


def domain(provider: Provider, info: Info) -> Offer:
    """The offer that a domain is opened on; the registration modes that it requires are in force."""
    name = info.domain_attr.name
    named = [o for o in provider.offers(_asked(info)) if o.info.domain_attr.name == name]
    if not named:
        raise provider.refusals.refuse(
            Rule.DOMAIN_UNKNOWN,
            f"domain: {provider.name} has no domain {name!r}\n  try: an Info that getinfo returned",
        )
    offer = next((o for o in named if o.info.ep_attr.type == info.ep_attr.type), named[0])
    asked = MrMode(info.domain_attr.mr_mode)
    found = negotiate_mr_mode(modes_needed(info, offer), asked, info.mode, LIBRARY_VERSION)
    if isinstance(found, str):
        raise provider.refusals.refuse(
            Rule.DOMAIN_MR_MODE,
            f"domain: mr_mode {asked!s}: {found}\n"
            "  rule: a bit that getinfo leaves set is required; others may be added, fi_mr(3)\n"
            "  try: domain_attr.mr_mode as getinfo returned it",
        )
    _refuse(
        provider, "domain", _rejections(provider, offer, info, ("caps", "tx_attr", "rx_attr", "ep_attr", "domain_attr"))
    )
    return offer


def endpoint(provider: Provider, offer: Offer, info: Info) -> None:
    """Has the domain's offer the capabilities, flags and sizes of the endpoint?"""
    _refuse(provider, "endpoint", _rejections(provider, offer, info, ("caps", "tx_attr", "rx_attr", "ep_attr")))


def _asked(info: Info | None = None) -> Asked:
    """What getinfo would be asked for to get an Info again."""
    return Asked(LIBRARY_VERSION, hints=None if info is None else complete(info))


def _rejections(provider: Provider, offer: Offer, info: Info, parts: tuple[str, ...]) -> list[Rejection]:
    asked = complete(info)
    # The capabilities of the parts follow from those of the whole, which an application edits alone.
    asked.tx_attr.caps = asked.rx_attr.caps = asked.domain_attr.caps = 0
    result = dupinfo(offer.info)
    result.domain_attr.mr_mode = asked.domain_attr.mr_mode
    widen_keys(provider, result)
    found: list[Rejection] = []
    match_caps(offer, asked, result, found.append)
    match_kinds(provider, offer, asked, result, found.append)
    match_limits(offer, asked, result, found.append)
    return [r for r in found if r.hint.partition(".")[0] in parts]


def _refuse(provider: Provider, op: str, rejections: list[Rejection]) -> None:
    if rejections:
        lines = "\n".join(f"  {r}" for r in rejections)
        raise provider.refusals.refuse(Rule.NOT_OFFERED, f"{op}: no offer has what the Info asks for\n{lines}{_TRY}")
