"""Authorization keys of applications, checked. Source: fi_domain(3), fi_mr(3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import errors
from ..flags import AV_AUTH_KEY, VERSION

if TYPE_CHECKING:
    from .attrs import DomainAttr, EpAttr, Info
    from .policy import Provider


def auth_key_bytes(provider: Provider, key: Any, size: int = 0) -> bytes:
    """An authorization key as bytes, checked. size: as in the attributes; 0 for the length of the key."""
    try:
        found = bytes(memoryview(key))
    except TypeError:
        raise errors.InvalidArgument(f"an authorization key is bytes, not {key!r}") from None
    if size and size != len(found):
        raise errors.InvalidArgument(
            f"auth_key_size {size}, but auth_key has {len(found)} bytes\n  try: auth_key_size 0, for all of them"
        )
    provider.credential_of(found)
    return found


def take_key(op: str, provider: Provider, attr: DomainAttr | EpAttr) -> None:
    """Check the authorization key of attributes, if there is one, and set its size. Without a key the size is 0."""
    if attr.auth_key is not None:
        attr.auth_key = auth_key_bytes(provider, attr.auth_key, attr.auth_key_size)
        attr.auth_key_size = len(attr.auth_key)
    elif attr.auth_key_size:
        raise errors.InvalidArgument(
            f"{op}: auth_key_size {attr.auth_key_size}, but auth_key is None\n"
            "  rule: the bytes of a key and their number, or neither\n  try: auth_key_size 0, or a key"
        )


def keys_in_force(info: Info) -> bool:
    """Whether a domain has authorization keys: callers of an interface before 1.5 have none, whatever they set."""
    return info.fabric_attr.api_version >= VERSION(1, 5)


def keys_of_vector(info: Info) -> bool:
    """Whether the keys of a domain come from its address vectors (FI_AV_AUTH_KEY)."""
    return keys_in_force(info) and info.domain_attr.auth_key_size == AV_AUTH_KEY
