"""The registered providers. This module imports none unasked: a provider calls `register` when it is imported.

`weft.fi` names Weft's own providers; applications import others. A provider registered by `register_later` is imported
when it is asked for, so that a program that uses one provider does not load the other (bench/bench_import.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from .policy import Provider

__all__ = ["each", "find", "providers", "register", "register_later"]

# By name, in the order of registration; a str is the module that registers the provider when it is imported.
_providers: dict[str, Provider | str] = {}


def register(provider: Provider) -> None:
    """Make a provider known. Registering a name again replaces it, in its place."""
    _providers[provider.name] = provider


def register_later(name: str, module: str) -> None:
    """Make a provider known that `module` registers under `name` when it is imported."""
    _providers.setdefault(name, module)


def find(name: str | None) -> Provider | None:
    """The provider of a name."""
    found = None if name is None else _providers.get(name)
    if isinstance(found, str):
        importlib.import_module(found)
        found = _providers[str(name)]
        assert not isinstance(found, str), f"{found} does not register {name}"
    return found


def each() -> Iterator[Provider]:
    """The providers in the order in which getinfo asks them, that of registration; each is imported in its turn."""
    for name in list(_providers):
        found = find(name)
        if found is not None:
            yield found


def providers() -> list[Provider]:
    """All providers, in the order of their registration."""
    return list(each())
