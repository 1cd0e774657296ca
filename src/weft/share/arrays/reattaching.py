"""Attaching by name, and `RemoteArray.reattach`: a remote array goes on with the array that its name has now."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _process, errors
from ..names.ticket import PREFIX
from ._default import default_node
from .show import named
from .sources import ticket_from

if TYPE_CHECKING:
    from ..node import Node
    from .remote import RemoteArray

# Of cpp/sync/object.hpp: magic, kind, version, bytes, n, item, pid namespace, closed, form_bytes.
_HEAD = struct.Struct("<QIIQQQIII")
_HEAD_BYTES = 128
_MAGIC = 0x31636E7974666577
KINDS = {1: "Lock", 2: "Semaphore", 3: "Event", 4: "Barrier", 5: "Queue"}

_TRIES = 100  # an owner may replace the array between the look-up of its name and the first access


def attach(
    cls: type[RemoteArray], node: Node | None, source: Any, wait: Any, call: str, *, objects: bool = False
) -> RemoteArray:
    """A remote array of a name or ticket, whose owner has been asked. See Node.attach. node: None, the default node.

    Args:
        objects: Accept the memory of locks, queues ..., which other code must not write to as an array.
    """
    by_name = isinstance(source, str) and not source.startswith(PREFIX)
    for left in reversed(range(_TRIES if by_name else 1)):
        found = cls._make(ticket_from(source, wait, call), node)
        try:
            found._probe()
            if not objects:
                _refuse_object(found, call)
            return found
        except errors.Replaced:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def head_of(array: RemoteArray) -> tuple[int, ...] | None:
    """The head of a lock, event, semaphore, barrier or queue (cpp/sync/object.hpp); None: the array is none of them."""
    if array.dtype != np.uint8 or array.ndim != 1 or array.nbytes < _HEAD_BYTES or array.ticket.access != "rw":
        return None
    head = _HEAD.unpack(array.at[: _HEAD.size].read().tobytes())
    return head if head[0] == _MAGIC else None


def _refuse_object(array: RemoteArray, call: str) -> None:
    head = head_of(array)
    if head is not None:
        kind = KINDS.get(head[1], "coordination object")
        raise errors.InvalidArgument(
            f"{call}: {named(array.ticket)} is {'an' if kind == 'Event' else 'a'} {kind}, and no array\n"
            f"  try: weft.{kind}({array.ticket.name or '...'!r})"
        )


def reattach(a: RemoteArray, source: Any, wait: Any) -> None:
    """See RemoteArray.reattach. The array's attributes become those of a newly attached one."""
    whole = type(a)._make(a.ticket)
    if (a._base, a._shape, a._strides, a._dtype) != (whole._base, whole._shape, whole._strides, whole._dtype):
        raise errors.InvalidArgument(
            f"reattach: this is a part of {named(a.ticket)}, and another array may have another shape\n"
            "  try: t.reattach() of the whole array, and then t.at[...] again"
        )
    if source is None:
        if not a.ticket.name:
            raise errors.InvalidArgument(
                f"reattach: {named(a.ticket)} has no name that leads to its successor\n"
                "  try: t.reattach(ticket), with the ticket that the owner has now (shared.ticket)"
            )
        if not a.ticket.here:
            raise errors.Unreachable(
                f"reattach: names lead to arrays of the same host, and the owner of {named(a.ticket)} is on another\n"
                "  try: t.reattach(ticket), with the ticket that the owner has now (shared.ticket)"
            )
        source = a.ticket.name
    node = a._node
    if node is None or node._made_in != _process.generation:
        node = default_node(a.ticket.fabric)
    node._check("reattach")
    fresh = attach(type(a), node, source, wait, "reattach")
    # The key last: until then, an access of another thread has the old key, or is checked against the new region.
    for cls in type(a).__mro__:
        for slot in getattr(cls, "__slots__", ()):
            if slot not in ("__weakref__", "_key") and hasattr(fresh, slot):
                setattr(a, slot, getattr(fresh, slot))
    a._key = fresh._key
    a._adopt(fresh)
