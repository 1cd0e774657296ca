"""Arrays of other processes, used like local NumPy arrays.

    table = weft.zeros((1000, 64), "float32")   # in the process that has the data; any other array works, too
    weft.share(table, "table")

    t = weft.attach("table")                    # in any other process of the same user, on the same host
    t[10:20] = 1
    row = t[3, :]
    t.add((3, 0), 0.5)                          # atomic

Both calls use the process's default node. `weft.open()` makes a node of your own: with its own time limit, over TCP or
over a real libfabric. Closing the node ends its shares.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from .arrays._default import default_node as default_node
from .arrays.copies import ReadOnlyCopy as ReadOnlyCopy
from .arrays.remote import RemoteArray as RemoteArray
from .names.ticket import Ticket as Ticket
from .node import Node as Node
from .node import NodeStatistics as NodeStatistics
from .node import open as open
from .shared import Shared as Shared
from .shortcuts import CallableModule
from .shortcuts import attach as attach

# Loaded with their modules at the first use: `weft.open()` needs none of them, and a first use costs their imports.
_ON_USE = {
    "groups.group": "Group",
    "keeping.client": "forget",
    "names.listing": "NameInfo",
    "sync.barrier": "Barrier",
    "sync.event": "Event",
    "sync.lock": "Lock",
    "sync.queue": "Queue",
    "sync.semaphore": "Semaphore",
    "sync.sync_object": "OwnerDied",
}
_MODULES = {name: module for module, names in _ON_USE.items() for name in names.split()}

if TYPE_CHECKING:  # what __getattr__ imports at run time; `make flags` writes the list
    from ._on_use import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
            globals()[name] = found
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = CallableModule  # weft.share(array, "name")

__all__ = [
    "Node",
    "NodeStatistics",
    "ReadOnlyCopy",
    "RemoteArray",
    "Shared",
    "Ticket",
    "attach",
    "default_node",
    "open",
]
__all__ += list(_MODULES)
