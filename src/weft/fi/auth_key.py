"""Authorization keys of applications, checked. Source: fi_domain(3), fi_mr(3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import errors

if TYPE_CHECKING:
    from .registry import Provider

__all__ = ["auth_key_bytes"]


def auth_key_bytes(provider: Provider, key: Any, size: int = 0) -> bytes:
    """An authorization key as bytes, checked. size: as in the attributes; 0 for all of it."""
    try:
        found = bytes(memoryview(key))
    except TypeError:
        raise errors.InvalidArgument(f"an authorization key is bytes, not {key!r}") from None
    if size and size != len(found):
        raise errors.InvalidArgument(f"auth_key_size {size}, but auth_key has {len(found)} bytes")
    provider.parse_auth_key(found)
    return found
