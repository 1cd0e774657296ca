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
    "Barrier": "sync.barrier",
    "Event": "sync.event",
    "Group": "groups.group",
    "Lock": "sync.lock",
    "NameInfo": "names.listing",
    "OwnerDied": "sync.sync_object",
    "Queue": "sync.queue",
    "Semaphore": "sync.semaphore",
    "forget": "keeping.client",
}

if TYPE_CHECKING:  # what __getattr__ imports at run time
    from .groups.group import Group as Group
    from .keeping.client import forget as forget
    from .names.listing import NameInfo as NameInfo
    from .sync.barrier import Barrier as Barrier
    from .sync.event import Event as Event
    from .sync.lock import Lock as Lock
    from .sync.queue import Queue as Queue
    from .sync.semaphore import Semaphore as Semaphore
    from .sync.sync_object import OwnerDied as OwnerDied
else:

    def __getattr__(name: str) -> Any:
        if name in _ON_USE:
            found = getattr(importlib.import_module(f"{__name__}.{_ON_USE[name]}"), name)
            globals()[name] = found
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = CallableModule  # weft.share(array, "name")

__all__ = [
    "Barrier",
    "Event",
    "Group",
    "Lock",
    "NameInfo",
    "Node",
    "NodeStatistics",
    "OwnerDied",
    "Queue",
    "ReadOnlyCopy",
    "RemoteArray",
    "Semaphore",
    "Shared",
    "Ticket",
    "attach",
    "default_node",
    "forget",
    "open",
]
