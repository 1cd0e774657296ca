"""Weft: a memory fabric in software.

    from weft import fi     libfabric's objects: Fabric, Domain, Endpoint, MemoryRegion, CompletionQueue ...
    from weft import ucp    UCX's objects: Context, Worker, Endpoint, MemHandle, RemoteKey ...
    import weft             arrays that other processes read, write and update

Importing `weft` imports nothing else: each name below is resolved when it is first used, so that a program which needs
one dialect does not pay for the other, for NumPy or for the command line (tests/meta/test_light_import.py).
"""

from __future__ import annotations

import importlib
from typing import Any

from weft._version import __version__

__all__ = ["__version__"]

# Rooms reached as `weft.<room>`.
_ROOMS = frozenset(
    {"buffers", "errors", "fi", "flags", "fm", "interop", "memory", "observe", "providers", "share", "testing", "ucp"}
)

# Names reached as `weft.<name>`, and the room that defines each.
_NAMES: dict[str, str] = {
    "Node": "share",
    "RemoteArray": "share",
    "allocator": "memory",
    "empty": "memory",
    "open": "share",
    "zeros": "memory",
}


def __getattr__(name: str) -> Any:
    """Import the room that `name` is, or that defines it; the second use finds it in the module."""
    if name in _ROOMS:
        try:
            return importlib.import_module(f"weft.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"weft.{name}":  # the room is there, something that it needs is not: say that
                raise
            raise AttributeError(f"weft.{name} is not part of weft {__version__}") from None
    if name in _NAMES:
        value = getattr(importlib.import_module(f"weft.{_NAMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, *_NAMES})
