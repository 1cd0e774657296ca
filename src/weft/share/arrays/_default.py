"""The default node of this process, for arrays that arrive by pickle.

This module does not import node.py, because remote arrays import this module and node.py imports remote arrays: node.py
calls `made_by` instead.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ... import _process

if TYPE_CHECKING:
    from ..node import Node

_make: Callable[..., Node]
_default: Node | None = None
_of_fabrics: dict[str, Node] = {}  # over a real libfabric, by its provider
_lock = threading.Lock()


def made_by(make: Callable[..., Node]) -> None:
    """Set the function that makes the default node."""
    global _make
    _make = make


def default_node(fabric: str = "") -> Node:
    """The default node of the process, made at the first call. Arrays that arrive by pickle attach through it.

    Args:
        fabric: The provider of a real libfabric, which has a node of its own.
    """
    global _default
    if fabric:
        return _of_fabric(fabric)
    node = _default
    if node is None or node._closed or node._made_in != _process.generation:
        with _lock:
            node = _default
            if node is None or node._closed or node._made_in != _process.generation:
                node = _default = _make()
    return node


def _of_fabric(fabric: str) -> Node:
    with _lock:
        node = _of_fabrics.get(fabric)
        if node is None or node._closed or node._made_in != _process.generation:
            node = _of_fabrics[fabric] = _make(fabric=fabric)
        return node


def forget() -> None:
    """Drop the node at exit: its finalizer would otherwise run after the modules that it needs have been cleared."""
    global _default
    _default = None
    _of_fabrics.clear()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
