"""The first steps of `share`, `replace` and `resize`: check an array, register its memory, and make the ticket for
peers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import errors, fi
from ..fi import _handle
from ..memory.reserve import room_of
from .arrays.checks import Array, alias, type_name
from .arrays.comparing import Comparing
from .names.ticket import Ticket, encode_dtype, host_id, process_start

if TYPE_CHECKING:
    from .node import Node

_ACCESS = {
    "r": int(fi.REMOTE_READ),
    "w": int(fi.REMOTE_WRITE),
    "rw": int(fi.REMOTE_READ | fi.REMOTE_WRITE),
}


class Offer(NamedTuple):
    """An array that peers may reach.

    Attributes:
        array: The array as the program passed it.
        local: A NumPy array over the same memory, in C order.
        room: All rows that the array can get, if the array was made with `reserve`, else None.
        order: "F" if the array is local.T.
    """

    array: Any
    local: Array
    room: Array | None
    order: str = "C"

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's."""
        shape: tuple[int, ...] = self.local.shape
        return shape[::-1] if self.order == "F" else shape

    @property
    def whole(self) -> Array:
        """The memory that is registered: with the reserved rows."""
        return self.local if self.room is None else self.room


def check(array: Any, access: str, call: str) -> Offer:
    """Raises TypeError, InvalidArgument, AccessDenied, NotSupported, as `Node.share`."""
    if str(access) not in _ACCESS:  # a list is not hashable
        raise errors.InvalidArgument(f"{call}: access is 'r', 'w' or 'rw', not {access!r}")
    if isinstance(array, Comparing):  # a RemoteArray or a Shared
        raise TypeError(
            f"{call}: a {'Shared' if hasattr(array, 'kept') else 'RemoteArray'} is already shared by its owner\n"
            "  try: send array.ticket to the other process"
        )
    fortran = isinstance(array, np.ndarray) and array.flags.fnc  # the same memory is in C order as array.T
    local = alias(array.T if fortran else array, call)
    if "w" in access and not local.flags.writeable:
        raise errors.AccessDenied(
            f"{call}: the memory of {type_name(array)} is read-only, but access={access!r} lets peers write\n"
            "  try: access='r', or a writable copy"
        )
    return Offer(array, local, None if fortran else room_of(local), "F" if fortran else "C")


def register(node: Node, offer: Offer, name: str, access: str, kept: bool) -> tuple[fi.MemoryRegion | None, Ticket]:
    """The region, None for an array without elements; and the ticket. kept: this process is the keeper."""
    whole, local = offer.whole, offer.local
    if not whole.nbytes:
        mr = None
    elif node._real is None:
        mr = node._domain.mr_reg(whole, _ACCESS[access])
    else:
        mr = node._real.register(node._domain, node._home.native, whole, _ACCESS[access])
    if mr is not None:
        _handle.owned(mr)
    ticket = Ticket(
        name,
        node.address,
        None if mr is None else mr.key,
        mr.address if mr is not None and node._domain.virt_addr else 0,
        offer.shape,
        encode_dtype(local.dtype),
        access,
        node._real is None and (mr is None or mr.direct),
        os.getpid(),
        process_start(os.getpid()),
        host_id(),
        offer.order,
        kept,
    )
    return mr, ticket
