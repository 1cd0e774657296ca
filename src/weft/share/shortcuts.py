"""`weft.share(array, "name")` and `weft.attach("name")`: the calls of the process's default node.

The package `weft.share` is itself the first of these calls: its module object can be called.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from ..fi import _handle
from .arrays._default import default_node
from .arrays.reattaching import attach as attach_through
from .arrays.remote import RemoteArray

if TYPE_CHECKING:
    from .names.ticket import Ticket
    from .shared import Shared


def attach(source: str | Ticket | Shared | RemoteArray, wait: float = 0.0) -> RemoteArray:
    """Attach an array of another process (or of this process): `t = weft.attach("table")`.

    This is `Node.attach` of the process's default node; an array that is shared over a real libfabric is attached
    through a node over the same provider. Arguments and errors as for `Node.attach`.
    """
    return attach_through(RemoteArray, None, source, wait, "attach")


class CallableModule(types.ModuleType):
    """The package `weft.share`, which is also a call: `weft.share(table, "table")`."""

    def __call__(self, array: Any, name: str | None = None, access: str = "rw", *, keep: bool = False) -> Shared:
        """Let other processes of this user reach an array.

        This is `Node.share` of the process's default node, which is opened at the first use and stays open as long as
        the process. The share ends with the process, or when its `close()` is called. Arguments and errors as for
        `Node.share`.
        """
        return default_node()._share(array, name, access, keep, {}, _handle.here(2))
