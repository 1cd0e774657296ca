"""Attribute structs as text: one field a line, values by name (fi_tostr, in the C library's format: _tostr.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

from ..flags import SHARED_CONTEXT


def number(kind: Callable[[int], Any] | None = None, default: int = 0) -> Any:
    """A numeric field; `kind` is the flag class or enumeration of its values, for printing."""
    return field(default=default, metadata={"kind": kind})


def dotted(version: int) -> str:
    """An interface version as text, `major.minor`."""
    return f"{version >> 16}.{version & 0xFFFF}"


class Table:
    """Dataclass whose repr is a table: one field a line, values by name, without zeros and None."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(_rows(self, 0))


def _rows(obj: Any, indent: int) -> Iterator[str]:
    pad = " " * indent
    yield f"{pad}{type(obj).__name__}"
    for f in dataclasses.fields(obj):
        if not f.repr:
            continue
        value = getattr(obj, f.name)
        if isinstance(value, Table):
            rows = list(_rows(value, indent + 2))
            if len(rows) > 1:
                yield f"{pad}  {f.name}"
                yield from rows[1:]
        elif value is not None and not (type(value) is int and value == 0 and f.metadata.get("kind") is None):
            yield f"{pad}  {f.name:<20} {show(value, f.metadata.get('kind'))}"


def show(value: Any, kind: Callable[[int], Any] | None = None) -> str:
    """A value as the man pages write it: by name, powers of two as such."""
    if kind is not None and isinstance(value, int):
        try:
            return str(kind(value))
        except ValueError:
            return hex(value)
    if isinstance(value, int):
        if value == SHARED_CONTEXT:
            return "unlimited"
        return str(value) if value < 1 << 20 or (value & (value - 1) and value + 1 & value) else _power(value)
    return str(value) if isinstance(value, str) else repr(value)


def _power(value: int) -> str:
    return f"2**{value.bit_length() - 1}" if value & (value - 1) == 0 else f"2**{value.bit_length()}-1"
