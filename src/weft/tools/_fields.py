"""Fields of an Info as texts: flags and enumerations by name, powers of two as such."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from .. import fi


def field_of(one: fi.Info, path: str) -> tuple[Any, Any]:
    """Value and kind of a dotted field; (None, None) if a part is missing."""
    obj: Any = one
    kind = None
    for name in path.split("."):
        if obj is None:
            return None, None
        kind = next(f.metadata.get("kind") for f in dataclasses.fields(obj) if f.name == name)
        obj = getattr(obj, name)
    return obj, kind


def named_value(value: Any, kind: Any) -> Any:
    """A field for JSON: flags and enumerations by name."""
    if isinstance(kind, type) and issubclass(kind, enum.IntFlag):
        return [name for name in str(kind(value)).split("|") if name != "0"]
    if kind is not None and isinstance(value, int):
        try:
            return str(kind(value))
        except ValueError:
            return hex(value)
    return value if value is None or isinstance(value, (int, str)) else str(value)


def shown_value(value: Any, kind: Any) -> str:
    named = named_value(value, kind)
    if isinstance(named, list):
        return " ".join(named) or "none"
    if isinstance(named, int) and named >= 1 << 20:
        # Show powers of two: a limit such as 9223372036854775807 is hard to read.
        if named == (1 << 64) - 1:
            return "unlimited"
        exact = named & (named - 1) == 0
        return (
            f"2**{named.bit_length() - 1}" if exact else f"2**{named.bit_length()} - 1" if _ones(named) else str(named)
        )
    return "" if named is None else str(named)


def _ones(value: int) -> bool:
    return value & (value + 1) == 0
