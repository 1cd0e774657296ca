"""libsodium, through PyNaCl, for the authentication between processes of different hosts.

The NIC contains no cryptography: it is handed the addresses of libsodium's functions (`functions`). A secret becomes
the NIC's key by a slow function of memory and time (`key_of`). PyNaCl is imported only when a secret is
used: the extra `weft-fabric[tcp]` installs it.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from . import _nic, errors

VERSION_MIN = "1.6"
"""The first version of PyNaCl with libsodium 1.0.20, which has AEGIS."""

# Argon2id as libsodium recommends it for interactive use (0.1 s). The salt is a constant of Weft, because both hosts
# must derive the same key, and have only the secret in common.
_PASSES, _MEMORY_BYTES, _SALT = 2, 64 << 20, b"weft tcp secret "


def _pynacl(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as reason:
        raise errors.NoSys(
            f"the tcp link needs PyNaCl {VERSION_MIN} or newer, which cannot be imported here: {reason}\n"
            f"  try: pip install 'pynacl>={VERSION_MIN}' (or weft-fabric[tcp]);"
            " or unset WEFT_SECRET and WEFT_SECRET_FILE"
        ) from None


def functions() -> dict[str, int]:
    """Addresses of the functions that the NIC calls. PyNaCl stays loaded as long as the process lives.

    Raises NoSys: PyNaCl is missing, or was built without the functions.
    """
    _pynacl("nacl.bindings")  # calls sodium_init()
    sodium = _pynacl("nacl._sodium")
    found = {}
    for name in _nic.Nic.sodium_functions():
        try:
            address = sodium.ffi.addressof(sodium.lib, name)
        except AttributeError:
            address = None
        # If libsodium was built without the function, the name belongs to a variable.
        if address is None or sodium.ffi.typeof(address).kind != "function":
            raise errors.NoSys(
                f"PyNaCl {_pynacl('nacl').__version__} here has no {name}\n"
                f"  try: pip install --force-reinstall --only-binary=:all: 'pynacl>={VERSION_MIN}'"
            )
        found[name] = int(sodium.ffi.cast("uintptr_t", address))
    return found


def library() -> Path:
    """The file with the functions: PyNaCl's extension module. Raises as `functions`."""
    functions()
    return Path(_pynacl("nacl._sodium").__file__)


@lru_cache(maxsize=2)
def key_of(secret: bytes) -> bytes:
    """32 bytes made from a secret: Argon2id, 0.1 s and 64 MiB, once a process.

    Raises NoSys (PyNaCl is missing), NoMemory.
    """
    kdf = _pynacl("nacl.pwhash.argon2id").kdf
    try:
        made: bytes = kdf(32, secret, _SALT, opslimit=_PASSES, memlimit=_MEMORY_BYTES)
    except RuntimeError as reason:
        raise errors.NoMemory(
            f"making the tcp link's key from the secret takes {_MEMORY_BYTES >> 20} MiB for a moment: {reason}"
        ) from None
    return made
