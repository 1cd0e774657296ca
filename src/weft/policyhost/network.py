"""What a C program's NIC needs to reach other hosts: the key made of the secret, libsodium, and where it listens.

A C program sends the variables of `NAMES`, which are its own, with the question for a domain: the helper has none of
them. Its NIC calls libsodium, which PyNaCl brings inside an extension module; a copy of the module that needs no Python
is in the helper's folder.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from functools import lru_cache
from pathlib import Path

from .. import _process, _sodium, errors, settings
from .records import Record, Value

NAMES = ("WEFT_SECRET", "WEFT_SECRET_FILE", "WEFT_LISTEN", "WEFT_ADVERTISE", "WEFT_TCP_LOG")
_ENCRYPTION = ("auto", "on", "off")  # in the order of link::Encryption
_SYSTEMS = ("libsodium.so.26", "libsodium.so.23", "libsodium.so")

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNSYM = 11
_GLOBAL, _WEAK = 1, 2


def variables(sent: Record) -> dict[str, str]:
    """The variables that a client has sent, without any other name."""
    found = {name: sent.bytes_of(name) for name in NAMES}
    return {name: os.fsdecode(value) for name, value in found.items() if value is not None}


def process(s: settings.Settings, folder: Path | None) -> dict[str, Value]:
    """The record of a client's network.

    Args:
        s: The settings of the client's environment.
        folder: A folder of this user alone, for the copy of libsodium; None: the client finds only the system's.

    Raises:
        InvalidArgument: The secret or the address to listen at is wrong.
        NoSys: PyNaCl is missing, or has not the functions.
    """
    found: dict[str, Value] = {
        "log": int(s.WEFT_TCP_LOG),
        "timeout_ns": int(s.WEFT_TCP_TIMEOUT * 1e9),
        "encryption": _ENCRYPTION.index(s.WEFT_TCP_ENCRYPTION),
    }
    secret = settings.secret(s)
    if secret is not None:
        found["key"] = _sodium.key_of(secret)
        copies = [] if folder is None else [str(_copy(_sodium.library(), folder))]
        found["library"] = [*copies, *_SYSTEMS]
    if s.WEFT_LISTEN:
        ip, port, known_as = _process.place(s.WEFT_LISTEN, s.WEFT_ADVERTISE or None)
        found |= {"listen.ip": ip, "listen.port": port, "listen.known_as": known_as}
    return found


def _copy(library: Path, folder: Path) -> Path:
    """A copy of PyNaCl's module that loads without Python, made once for each version of the module."""
    found = library.stat()
    copy = folder / f"sodium-{_hash(library, found.st_ino, found.st_size, found.st_mtime_ns)}.so"
    if not copy.exists():
        # A file of its own for each thread and each helper; the last to rename wins.
        handle, made = tempfile.mkstemp(prefix=f"{copy.stem}.", dir=folder)
        try:
            with open(handle, "wb") as file:
                file.write(without_python(library.read_bytes(), library))
            os.replace(made, copy)
        except BaseException:
            os.unlink(made)
            raise
    return copy


@lru_cache(maxsize=2)
def _hash(library: Path, *_version: int) -> str:
    """Of the file's content: reading and hashing 2 MB takes milliseconds, and each domain with a secret asks."""
    return hashlib.sha256(library.read_bytes()).hexdigest()[:32]


def without_python(image: bytes, name: object = "the library") -> bytes:
    """A shared library whose undefined symbols of Python are weak, so that a process without Python can load it.

    Nothing of the library that calls Python may be called then. Raises NoSys for a file of another kind.
    """
    out = bytearray(image)
    try:
        if image[: len(_ELF64_LITTLE)] != _ELF64_LITTLE:
            raise ValueError("it is no ELF file of 64 bits, little-endian")
        (start,) = struct.unpack_from("<Q", image, 0x28)
        size, count = struct.unpack_from("<HH", image, 0x3A)
        sections = [_SECTION.unpack_from(image, start + at * size) for at in range(count)]
        table = next((one for one in sections if one[1] == _DYNSYM), None)
        if table is None:
            raise ValueError("it has no table of dynamic symbols")
        texts = sections[table[6]][4]
        for at in range(table[4], table[4] + table[5], _SYMBOL.size):
            text, info, _, section, _, _ = _SYMBOL.unpack_from(image, at)
            python = image.startswith((b"Py", b"_Py"), texts + text)
            if section == 0 and info >> 4 == _GLOBAL and python:
                out[at + 4] = _WEAK << 4 | info & 15
    except (ValueError, IndexError, struct.error) as reason:
        raise errors.NoSys(f"{name} cannot be loaded without Python: {reason}") from None
    return bytes(out)
