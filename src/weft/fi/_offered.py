"""Checks the attribute structs of opening calls against the provider's offers.

`Fabric`, `Fabric.domain` and `Domain.endpoint` take structs that getinfo returned. An application may edit them, or
make them by hand. A struct that no offer matches is refused, by the rules of getinfo with the struct as the hints.

Source: fi_fabric(3), fi_domain(3), fi_endpoint(3), fi_mr(3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import errors
from ..flags import MrMode
from .attrs import LIBRARY_VERSION, Info, dupinfo
from .match import complete, match_caps, match_kinds, match_limits, modes_needed, widen_keys
from .offer import Offer, Rejection, Rejections
from .policy import Asked
from .rules import Rule

if TYPE_CHECKING:
    from .attrs import FabricAttr
    from .policy import Provider

_ENDPOINT = ("caps", "tx_attr", "rx_attr", "ep_attr")
_TRY = "\n  try: an Info that getinfo returned for these as hints"


def fabric(provider: Provider, attr: FabricAttr) -> None:
    """Refuse a fabric name that the provider does not have."""
    names = provider.fabrics()
    if attr.name is not None and attr.name not in names:
        raise provider.refusals.refuse(
            Rule.FABRIC_UNKNOWN,
            f"fabric: {provider.name} has no fabric {attr.name!r}; here: {', '.join(names)}\n"
            "  try: info.fabric_attr of getinfo",
        )


def domain(provider: Provider, info: Info) -> Offer:
    """The offer that a domain is opened on. Raises if the Info lacks registration modes that the offer requires."""
    name = info.domain_attr.name
    named = [o for o in provider.offers(_asked(info)) if o.info.domain_attr.name == name]
    if not named:
        raise provider.refusals.refuse(
            Rule.DOMAIN_UNKNOWN,
            f"domain: {provider.absent(name)}",
        )
    kind = [o for o in named if o.info.ep_attr.type == info.ep_attr.type] or named
    # An Info of getinfo matches its own offer; an edited Info may match another. If no offer matches, report the
    # differences to the closest offer: its modes are honoured, and the fewest fields differ.
    refused: list[tuple[int, errors.FabricError]] = []
    for offer in kind:
        wrong = _domain_of(provider, offer, info)
        if wrong is None:
            return offer
        refused.append(wrong)
    raise min(refused, key=lambda one: one[0])[1]


_DOMAIN = ("caps", "tx_attr", "rx_attr", "ep_attr", "domain_attr")
_MODE_DIFFERS = 1000  # a mode is further from the offer than any number of fields


def _domain_of(provider: Provider, offer: Offer, info: Info) -> tuple[int, errors.FabricError] | None:
    """None if the Info matches the offer; otherwise the distance from the offer, and the refusal."""
    asked = MrMode(info.domain_attr.mr_mode)
    rejections = _rejections(provider, offer, info, _DOMAIN)
    required = modes_needed(info, offer)
    found = provider.mr_mode(required, info.caps, asked, info.mode, LIBRARY_VERSION)
    if isinstance(found, str):
        missing = bin(required & ~asked).count("1")
        return _MODE_DIFFERS * (missing + 1) + len(rejections), provider.refusals.refuse(
            Rule.DOMAIN_MR_MODE,
            f"domain: mr_mode {asked!s}: {found}\n"
            "  rule: a bit that getinfo leaves set is required; others may be added, fi_mr(3)\n"
            "  try: domain_attr.mr_mode as getinfo returned it",
        )
    return (len(rejections), _not_offered(provider, "domain", rejections)) if rejections else None


def endpoint(provider: Provider, offer: Offer, info: Info) -> None:
    """Refuse capabilities, flags or sizes that neither the domain's offer nor another offer of its NIC has."""
    found = _rejections(provider, offer, info, _ENDPOINT)
    if found:
        named = [o for o in provider.offers(_asked(info)) if o.info.domain_attr.name == offer.info.domain_attr.name]
        same = (o for o in named if o.info.ep_attr.type == offer.info.ep_attr.type)
        if any(not _rejections(provider, o, info, _ENDPOINT) for o in same):
            return
        raise _not_offered(provider, "endpoint", found)


def _asked(info: Info | None = None) -> Asked:
    """The request for which getinfo would return this Info."""
    return Asked(LIBRARY_VERSION, hints=None if info is None else complete(info))


def _rejections(provider: Provider, offer: Offer, info: Info, parts: tuple[str, ...]) -> list[Rejection]:
    asked = complete(info)
    # The capabilities of the parts follow from info.caps. An application may have edited info.caps alone.
    asked.tx_attr.caps = asked.rx_attr.caps = asked.domain_attr.caps = 0
    result = dupinfo(offer.info)
    result.domain_attr.mr_mode = asked.domain_attr.mr_mode
    widen_keys(provider, result)
    found = Rejections()
    match_caps(offer, asked, result, found.no)
    match_kinds(provider, offer, asked, result, found.no)
    match_limits(offer, asked, result, found.no)
    return [r for r in found if r.hint.partition(".")[0] in parts]


def _not_offered(provider: Provider, op: str, rejections: list[Rejection]) -> errors.FabricError:
    lines = "\n".join(f"  {r}" for r in rejections)
    return provider.refusals.refuse(Rule.NOT_OFFERED, f"{op}: no offer matches the Info\n{lines}{_TRY}")
