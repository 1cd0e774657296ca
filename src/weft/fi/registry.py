"""The registered providers. This module imports no provider by itself: a provider calls `register` when it is imported.

`weft.fi` names Weft's own providers; applications import others. A provider registered by `register_later` is imported
when it is asked for, so that a program that uses one provider does not load the other (bench/bench_import.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, cast

from .policy import Asked, Provider

if TYPE_CHECKING:
    from .offer import Explanation

# By name, in the order of registration; a str is the module that registers the provider when it is imported.
_providers: dict[str, Provider | str] = {}
# Providers whose names are known only when a library is asked, by the word before the colon of these names.
_families: dict[str, str] = {}


class Family(Protocol):
    """The module of a family of providers."""

    def find(self, name: str) -> Provider | None:
        """The provider of a name."""
        ...

    def offers(self, asked: Asked, name: str | None, found: Explanation, *, bare: bool) -> None:
        """Add the family's offers to what getinfo found. name: the provider or family that the hints name.
        bare: the request is for everything."""


def register(provider: Provider) -> None:
    """Make a provider known. Registering a name again replaces it, in its place."""
    _providers[provider.name] = provider


def register_later(name: str, module: str) -> None:
    """Make a provider known that `module` registers under `name` when it is imported."""
    _providers.setdefault(name, module)


def register_family(prefix: str, module: str) -> None:
    """Make the providers known whose names begin with `prefix:`. The module, a Family, is imported when one of them is
    asked for, or when getinfo wants their offers."""
    _families.setdefault(prefix, module)


def families(name: str | None) -> list[Family]:
    """The family that a name belongs to; None: all families."""
    prefix = None if name is None else name.partition(":")[0]
    return [_family(one) for one in _families if prefix in (None, one)]


def _family(prefix: str) -> Family:
    found: Any = importlib.import_module(_families[prefix])
    return cast(Family, found)


def find(name: str | None) -> Provider | None:
    """The provider of a name."""
    found = None if name is None else _providers.get(name)
    if found is None and isinstance(name, str) and ":" in name:
        for family in families(name):
            return family.find(name)
    if isinstance(found, str):
        importlib.import_module(found)
        found = _providers[str(name)]
        assert not isinstance(found, str), f"{found} does not register {name}"
    return found


def each() -> Iterator[Provider]:
    """The providers in the order of registration, in which getinfo asks them; each is imported in its turn."""
    for name in list(_providers):
        found = find(name)
        if found is not None:
            yield found


def providers() -> list[Provider]:
    """All providers, in the order of their registration."""
    return list(each())
