"""Raw keys (fi_mr_raw_attr, fi_mr_map_raw): a region's key as bytes. Source: fi_mr(3) "FI_MR_RAW"."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from ..flags import MrMode
from .rules import Rule

if TYPE_CHECKING:
    from .domain import Domain

KEY_SIZE = 8
_RAW_VERSION = 1


def make_raw_key(domain: Domain, key: int) -> bytes:
    """A key as mr_key_size bytes; under FI_MR_RAW with a version and a checksum."""
    if not domain.mr_mode & MrMode.MR_RAW:
        return key.to_bytes(domain.attr.mr_key_size, "little")
    plain = key.to_bytes(KEY_SIZE, "little")
    head = plain + _RAW_VERSION.to_bytes(4, "little")
    return head + zlib.crc32(head).to_bytes(4, "little")


def parse_raw_key(domain: Domain, raw: bytes) -> int:
    """The reverse of `make_raw_key`. Raises InvalidArgument for an invalid raw key."""
    size = domain.attr.mr_key_size
    if len(raw) != size:
        raise domain._refuse(Rule.MR_RAW_KEY, f"map_raw: a raw key has {size} B, not {len(raw)}")
    key = int.from_bytes(raw[:KEY_SIZE], "little")
    if raw != make_raw_key(domain, key):
        raise domain._refuse(
            Rule.MR_RAW_KEY,
            "map_raw: these bytes are not a raw key: the version or the checksum is wrong\n"
            "  try: the bytes that the peer's raw_attr() returned",
        )
    return key
