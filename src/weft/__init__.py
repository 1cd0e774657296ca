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

# Names reached as `weft.<name>`, and the room that defines each.
_NAMES: dict[str, str] = {
    "Barrier": "share",
    "Event": "share",
    "FabricError": "errors",
    "Group": "share",
    "Lock": "share",
    "Node": "share",
    "NotFound": "errors",
    "OwnerDied": "share",
    "Queue": "share",
    "RemoteArray": "share",
    "Replaced": "errors",
    "Semaphore": "share",
    "Shared": "share",
    "Ticket": "share",
    "allocator": "memory",
    "array": "memory",
    "attach": "share",
    "empty": "memory",
    "empty_like": "memory",
    "full": "memory",
    "full_like": "memory",
    "ones": "memory",
    "ones_like": "memory",
    "forget": "share",
    "names": "share.names.listing",  # weft.share.names is a package
    "open": "share",
    "zeros": "memory",
    "zeros_like": "memory",
}


if TYPE_CHECKING:  # what __getattr__ imports at run time
    from . import buffers as buffers
    from . import cxi as cxi
    from . import errors as errors
    from . import fi as fi
    from . import flags as flags
    from . import fm as fm
    from . import interop as interop
    from . import launch as launch
    from . import memory as memory
    from . import observe as observe
    from . import providers as providers
    from . import settings as settings
    from . import testing as testing
    from . import ucp as ucp
    from .errors import FabricError as FabricError
    from .errors import NotFound as NotFound
    from .errors import Replaced as Replaced
    from .memory import allocator as allocator
    from .memory import array as array
    from .memory import empty as empty
    from .memory import empty_like as empty_like
    from .memory import full as full
    from .memory import full_like as full_like
    from .memory import ones as ones
    from .memory import ones_like as ones_like
    from .memory import zeros as zeros
    from .memory import zeros_like as zeros_like
    from .share import Barrier as Barrier
    from .share import Event as Event
    from .share import Group as Group
    from .share import Lock as Lock
    from .share import Node as Node
    from .share import OwnerDied as OwnerDied
    from .share import Queue as Queue
    from .share import RemoteArray as RemoteArray
    from .share import Semaphore as Semaphore
    from .share import Shared as Shared
    from .share import Ticket as Ticket
    from .share import attach as attach
    from .share import forget as forget
    from .share import open as open
    from .share.names.listing import names as names
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
