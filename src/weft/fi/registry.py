"""The registered providers. This module imports none of them: each provider calls `register` when it is imported.

`weft.fi` imports Weft's own providers; applications import others.
"""

from __future__ import annotations

from .policy import Provider

__all__ = ["find", "providers", "register"]

_providers: dict[str, Provider] = {}


def register(provider: Provider) -> None:
    """Make a provider known. Registering a name again replaces it."""
    _providers[provider.name] = provider


def find(name: str | None) -> Provider | None:
    """The provider of a name."""
    return _providers.get(name) if name is not None else None


def providers() -> list[Provider]:
    """All providers, in the order in which getinfo asks them: that of their registration."""
    return list(_providers.values())
