"""Weft: a memory fabric in software.

    from weft import fi     libfabric's objects: Fabric, Domain, Endpoint, MemoryRegion, CompletionQueue ...
    from weft import cxi    the CXI provider's own names: Address, AuthKey, flags and options of fi_cxi_ext.h
    from weft import ucp    UCX's objects: Context, Worker, Endpoint, MemHandle, RemoteKey ...
    import weft             arrays that other processes read, write and update

Importing `weft` imports nothing else: each name below is resolved at its first use, so that a program that needs one
dialect does not load the other, NumPy or the command line (tests/meta/test_light_import.py).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from weft._version import __version__

__all__ = ["__version__"]

# Rooms reached as `weft.<room>`. `weft.share` is also a call.
_ROOMS = frozenset(
    {
        "buffers",
        "cxi",
        "errors",
        "fi",
        "flags",
        "fm",
        "interop",
        "launch",
        "memory",
        "observe",
        "providers",
        "settings",
        "share",
        "testing",
        "ucp",
    }
)

# The rooms that define names reached as `weft.<name>`, and these names.
_ON_USE = {
    "errors": "FabricError NotFound Replaced",
    "memory": "allocator array empty empty_like full full_like ones ones_like zeros zeros_like",
    "share": "Barrier Event Group Lock Node OwnerDied Queue RemoteArray Semaphore Shared Ticket attach forget open",
    "share.names.listing": "names",  # weft.share.names is a package
}
_NAMES = {name: room for room, names in _ON_USE.items() for name in names.split()}


if TYPE_CHECKING:  # what __getattr__ imports at run time; `make flags` writes the list
    from ._on_use import *  # noqa: F403
    from .share.shortcuts import CallableModule

    share: CallableModule
else:

    def __getattr__(name: str) -> Any:
        """Import the module `name`, or the name from the module that defines it; a name is cached for the next use."""
        if name in _ROOMS:
            return importlib.import_module(f"weft.{name}")
        if name in _NAMES:
            value = getattr(importlib.import_module(f"weft.{_NAMES[name]}"), name)
            globals()[name] = value
            return value
        raise _unknown(name)


def _unknown(name: str) -> AttributeError:
    """The error for a name that does not exist. It has the name and no object, so that Python suggests nothing more."""
    hint = ""
    if not name.startswith("_"):  # tools of Python ask every module for such names
        import difflib

        close = difflib.get_close_matches(name, __dir__(), 1)
        hint = f"; did you mean weft.{close[0]}?" if close else ""
    return AttributeError(f"module 'weft' has no attribute {name!r}{hint}", name=name)


def __dir__() -> list[str]:
    """The names that docs/reference describes."""
    return sorted({"__version__", *_ROOMS, *_NAMES} - {"settings"})


def _refuse_subinterpreters() -> None:
    """Refuse subinterpreters: the extension holds objects of one interpreter, and NumPy supports only one as well."""
    for module in ("_interpreters", "_xxsubinterpreters"):  # since Python 3.13; before that
        try:
            interpreters = importlib.import_module(module)
            here, first = interpreters.get_current(), interpreters.get_main()
        except (ImportError, AttributeError):
            continue
        if here != first:
            raise ImportError(
                "weft works in the main interpreter of a process alone, and this is a subinterpreter\n"
                "  rule: a process has one NIC, and NumPy serves one interpreter\n"
                "  try: threads or processes instead; under mod_wsgi: WSGIApplicationGroup %{GLOBAL}",
                name="weft",
            )
        return


_refuse_subinterpreters()
