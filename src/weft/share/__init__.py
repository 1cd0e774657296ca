"""Arrays of other processes, used like local NumPy arrays.

import weft

with weft.open() as node:                       # in the process that has the data
    table = weft.zeros((1000, 64), "float32")   # peers reach it by load and store; any other array works, too
    node.share(table, name="table")
    ...

with weft.open() as node:                       # in any other process of the same user, on the same host
    t = node.attach("table")
    t[10:20] = 1
    row = t[3, :]
    t.add((3, 0), 0.5)                          # atomic
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._default import default_node as default_node
from .copies import ReadOnlyCopy as ReadOnlyCopy
from .node import Node as Node
from .node import NodeStatistics as NodeStatistics
from .node import open as open
from .remote import RemoteArray as RemoteArray
from .shared import Shared as Shared
from .ticket import Ticket as Ticket

# Loaded with their modules at the first use: `weft.open()` needs none of them, and a first use costs their imports.
_ON_USE = {
    "Barrier": "barrier",
    "Event": "event",
    "Group": "group",
    "Lock": "lock",
    "NameInfo": "listing",
    "OwnerDied": "coordinated",
    "Queue": "queue",
    "Semaphore": "semaphore",
    "forget": "keeping",
}

if TYPE_CHECKING:  # what __getattr__ imports at run time
    from .barrier import Barrier as Barrier
    from .coordinated import OwnerDied as OwnerDied
    from .event import Event as Event
    from .group import Group as Group
    from .keeping import forget as forget
    from .listing import NameInfo as NameInfo
    from .lock import Lock as Lock
    from .queue import Queue as Queue
    from .semaphore import Semaphore as Semaphore
else:

    def __getattr__(name: str) -> Any:
        if name in _ON_USE:
            found = getattr(importlib.import_module(f"{__name__}.{_ON_USE[name]}"), name)
            globals()[name] = found
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    "default_node",
    "forget",
    "open",
]
