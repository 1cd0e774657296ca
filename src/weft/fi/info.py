"""getinfo: what providers offer, matched against hints (fi_getinfo).

`getinfo(..., explain=True)` returns every candidate and its rejections as an object instead of raising.

Source: fi_getinfo(3), fi_version(3).
"""

from __future__ import annotations

from typing import Literal, overload

from .. import errors
from ..flags import EpType, Flag, GetinfoFlag
from . import _args
from .attrs import LIBRARY_VERSION, FabricAttr, Info
from .match import complete, match_offer
from .offer import Candidate, Explanation
from .policy import Asked, Provider
from .registry import each, families, providers


def version() -> int:
    """Interface version of the library, as `fi.VERSION(major, minor)` (fi_version)."""
    return LIBRARY_VERSION


_FLAGS = int(Flag.SOURCE | Flag.RESCAN) | int(GetinfoFlag.PROV_ATTR_ONLY | GetinfoFlag.NUMERICHOST)


@overload
def getinfo(
    version: int | None = None,
    node: str | None = None,
    service: str | None = None,
    flags: int = 0,
    hints: Info | None = None,
    *,
    explain: Literal[False] = False,
) -> list[Info]: ...
@overload
def getinfo(
    version: int | None = None,
    node: str | None = None,
    service: str | None = None,
    flags: int = 0,
    hints: Info | None = None,
    *,
    explain: Literal[True],
) -> Explanation: ...
def getinfo(
    version: int | None = None,
    node: str | None = None,
    service: str | None = None,
    flags: int = 0,
    hints: Info | None = None,
    *,
    explain: bool = False,
) -> list[Info] | Explanation:
    """Find endpoints that meet the hints (fi_getinfo).

    Args:
        version: Interface version that the caller was written for, `fi.VERSION(2, 1)`; None: the library's. A newer
            version is answered with the library's, in `fabric_attr.api_version`.
        node: Name or address to resolve: the destination, or with `fi.SOURCE` the local address. The provider defines
            the names: "weft0", a host, a complete address string (FI_ADDR_STR, without a service); "cxi0".
        service: The endpoint's number at that node, as text.
        flags: `fi.SOURCE`, `fi.NUMERICHOST`, `fi.PROV_ATTR_ONLY`, `fi.RESCAN`.
        hints: An Info with the requested values set; None requests all offers.
        explain: Return the `Explanation` of every candidate instead; getinfo then does not raise NoData.

    The providers of a real libfabric, `ofi:tcp` ..., come after Weft's: in a call without hints, node and service; with
    hints that name one of them, or `ofi` for all; and where none of Weft's meets the hints. Other calls do not load it.

    Returns:
        A list of new Infos, best first; the caller owns them.

    If the hints name a threading or progress model or a traffic class, the Infos have the same one.

    Raises:
        NoData: No offer matches; the message and `.explanation` say which hint rejected which candidate.
        BadFlags: Flags that fi_getinfo does not know.
        InvalidArgument: fi.SOURCE without node and service, or an address string with a service.

    Thread safety: any number of threads. Source: fi_getinfo(3).
    """
    if isinstance(version, Info):
        raise TypeError(
            "getinfo: version is an Info; the order is (version, node, service, flags, hints): try hints=info"
        )
    _args.maybe("getinfo", version=version)
    _args.text("getinfo", node=node, service=service)
    _args.whole("getinfo", flags=flags)
    if hints is not None and not isinstance(hints, Info):
        raise TypeError(f"getinfo: hints must be an fi.Info or None, not {hints!r}")
    # A program that passes the version of its headers need not know ours: each version contains those before.
    version = LIBRARY_VERSION if version is None else min(version, LIBRARY_VERSION)
    if unknown := int(flags) & ~int(_FLAGS):
        raise errors.BadFlags(
            f"getinfo: flags {Flag(unknown)!s} are not known\n  known: SOURCE, NUMERICHOST, PROV_ATTR_ONLY, RESCAN"
        )
    if flags & Flag.SOURCE and node is None and service is None:
        raise errors.InvalidArgument("getinfo: FI_SOURCE says that node and service are local, but neither was given")
    found = Explanation([])
    name = hints.fabric_attr.prov_name if hints is not None and hints.fabric_attr is not None else None
    named = families(name) if name is not None else []
    known = [] if named else providers()
    asked = Asked(version, node, service, int(flags), None if hints is None else complete(hints))
    if flags & GetinfoFlag.PROV_ATTR_ONLY:
        for p in known:
            attr = FabricAttr(prov_name=p.name, prov_version=p.version)
            found.candidates.append(Candidate(p.name, "", EpType.EP_UNSPEC, Info(fabric_attr=attr), []))
    else:
        for p in known:
            _ask(p, asked, name, found)
    # A library behind Weft's providers takes long to load. It is asked if the hints name it, if the call asks for
    # everything, or if no provider of Weft meets the request.
    bare = hints is None and node is None and service is None
    if named or bare or (name is None and not found.infos):
        for family in named or families(None):
            family.offers(asked, name, found, bare=bare)
    if name is not None and not named and not any(p.name == name for p in known):
        found.notes.append(f"providers here: {', '.join(p.name for p in known)}; {name!r} is not among them")
    if explain:
        return found
    infos = found.infos
    if not infos:
        failed = errors.NoData(f"getinfo: no provider offers what the hints ask for\n{found}")
        failed.explanation = found
        raise failed
    return infos


def first(hints: Info) -> Info:
    """`getinfo(hints=hints)[0]`, without the offers behind it: the providers after the first that meets the hints are
    neither asked nor imported. For layers that take the best offer, such as weft.share.
    """
    asked = Asked(LIBRARY_VERSION, None, None, 0, complete(hints))
    for p in each():
        found = Explanation([])
        try:
            _ask(p, asked, None, found)
        except errors.FabricError:  # getinfo raises the error
            break
        if found.infos:
            return found.infos[0]
    return getinfo(hints=hints)[0]


def of_provider(
    name: str, version: int, node: str | None, service: str | None, flags: int, hints: Info | None
) -> list[Info]:
    """getinfo of one of Weft's providers alone, also without hints. Raises as `getinfo`."""
    version = min(version, LIBRARY_VERSION)
    asked = Asked(version, node, service, flags, None if hints is None else complete(hints))
    found = Explanation([])
    for p in providers():
        if p.name == name:
            _ask(p, asked, name, found)
    if not found.infos:
        failed = errors.NoData(f"getinfo: the provider {name} does not offer what the hints ask for\n{found}")
        failed.explanation = found
        raise failed
    return found.infos


def _ask(p: Provider, asked: Asked, name: str | None, found: Explanation) -> None:
    """Add a provider's candidates, or why it has none, to what was found. name: the provider that the hints name."""
    try:
        offers = p.offers(asked)
    except errors.FabricError as reason:
        if name == p.name:
            raise
        found.notes.append(f"{p.name} offers nothing: {reason.message}")
        return
    if name == p.name and not offers:
        found.notes.append(f"{p.name} offers nothing: {p.nothing}")
    found.candidates += p.select([match_offer(p, offer, asked) for offer in offers], asked)
