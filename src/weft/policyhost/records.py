"""Records: named values as bytes, the form of questions and answers; cpp/provider/record.cpp is the other side.

    record := magic "WR" | version, one byte | entries
    entry  := kind, one byte | length of the name, one byte | the name | value
    kind n: a number, 8 bytes, little-endian (negative ones in two's complement)
    kind b: bytes, after their length in 4 bytes: also text (UTF-8) and records within records

A name that comes several times is a list. Readers ignore names that they do not know.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias, Union

from .. import errors

VERSION = 1
_HEAD = b"WR" + bytes([VERSION])
_NUMBER = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")

Value: TypeAlias = Union[int, bytes, str, "Mapping[str, Value]", "Sequence[Value]", None]


class Record(dict[str, "list[int | bytes]"]):
    """The values of a record by name; each is a list."""

    def number(self, name: str, otherwise: int = 0) -> int:
        """The first number of this name."""
        found = self.get(name)
        return found[0] if found and isinstance(found[0], int) else otherwise

    def bytes_of(self, name: str) -> bytes | None:
        """The first bytes of this name; None if there are none."""
        found = self.get(name)
        return found[0] if found and isinstance(found[0], bytes) else None

    def text(self, name: str) -> str | None:
        """The first text of this name; None if there is none."""
        found = self.bytes_of(name)
        return None if found is None else found.decode("utf-8", "replace")


def pack(fields: Mapping[str, Value]) -> bytes:
    """The record of these fields. None is left out; a list has an entry for each of its values."""
    out = bytearray(_HEAD)
    for name, value in fields.items():
        each = value if isinstance(value, (list, tuple)) else (value,)
        for one in each:
            _append(out, name.encode(), one)
    return bytes(out)


def _append(out: bytearray, name: bytes, value: Value) -> None:
    if value is None:
        return
    if isinstance(value, Mapping):
        value = pack(value)
    elif isinstance(value, str):
        value = value.encode()
    if isinstance(value, (bytes, bytearray)):
        out += b"b" + bytes([len(name)]) + name + _LENGTH.pack(len(value)) + value
    elif isinstance(value, int):
        out += b"n" + bytes([len(name)]) + name + _NUMBER.pack(value & 0xFFFF_FFFF_FFFF_FFFF)
    else:
        raise TypeError(f"{name!r}: a record has numbers, bytes and texts, not {value!r}")


def unpack(data: bytes) -> Record:
    """The values of a record. Raises InvalidArgument for bytes that are none of this version."""
    if data[: len(_HEAD)] != _HEAD:
        raise errors.InvalidArgument(f"{data[:8]!r} begins no record of version {VERSION}")
    found, at = Record(), len(_HEAD)
    try:
        while at < len(data):
            kind, size = data[at], data[at + 1]
            name = data[at + 2 : at + 2 + size].decode()
            at += 2 + size
            if kind == ord("n"):
                found.setdefault(name, []).append(_NUMBER.unpack_from(data, at)[0])
                at += 8
                continue
            (size,) = _LENGTH.unpack_from(data, at)
            value = data[at + 4 : at + 4 + size]
            if kind != ord("b") or len(value) != size:
                raise ValueError
            found.setdefault(name, []).append(value)
            at += 4 + size
    except (IndexError, ValueError, struct.error):
        raise errors.InvalidArgument(f"a record is damaged at byte {at} of {len(data)}") from None
    return found
