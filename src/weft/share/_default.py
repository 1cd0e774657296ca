"""The node of this process that arrays which arrive by pickle attach through.

node.py says how nodes are made, so that nothing here imports it: remote arrays need this module, and nodes need them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import _process

if TYPE_CHECKING:
    from .node import Node

__all__ = ["default_node", "forget", "made_by"]

_make: Callable[[], Node]
_default: Node | None = None
_lock = threading.Lock()


def made_by(make: Callable[[], Node]) -> None:
    """Say how the node is made; node.py does."""
    global _make
    _make = make


def default_node() -> Node:
    """The node that arrays which arrive by pickle attach through: one for the process, made when it is first needed."""
    global _default
    node = _default
    if node is None or node._closed or node._made_in != _process.generation:
        with _lock:
            node = _default
            if node is None or node._closed or node._made_in != _process.generation:
                node = _default = _make()
    return node


def forget() -> None:
    """Exit: hold no node, whose finalizer would otherwise run after the modules that it needs have been cleared."""
    global _default
    _default = None


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
