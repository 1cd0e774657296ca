"""A lane: an endpoint with its own completion queue and address vector, used by one thread at a time.

A call takes a lane, posts operations, reads the lane's queue and puts the lane back. Lanes share nothing, so a thread
cannot read another thread's completions. The node makes a lane when all others are in use, and keeps it until the node
is closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _process, errors, fi
from ...fi import _handle

if TYPE_CHECKING:
    from ..node import Node

CELL_BYTES_MAX = 64
_CELLS = 3

Cell = tuple[Any, Any, Any, Any, Any, Any]
"""Registered slice and NumPy array of one element, three times: for a value, a result, a value to compare with."""

Post = Callable[[fi.Endpoint, Any], None]
"""Posts one operation with a context; it has one completion."""


def answers_so_far() -> int:
    """Frames received so far. The count grows while an operation of several frames is under way."""
    nic = _process.nic_if_open()
    return 0 if nic is None else nic.statistics()["frames_served"]


class FailedOperation(Exception):
    """Carries the error entry of an awaited operation to the code that explains it."""

    def __init__(self, entry: fi.CqErrEntry) -> None:
        super().__init__(entry)
        self.entry = entry


class Lane:
    """One lane. `read`, `write`, `fetch_atomic` and `take` are methods of the endpoint and the queue, bound once.

    Attributes:
        native: The object of `weft.fi`; `ep` has its calls.
    """

    __slots__ = (
        "_scratch",
        "av",
        "cells",
        "cq",
        "ep",
        "fetch_atomic",
        "mr",
        "native",
        "read",
        "take",
        "timeout",
        "write",
    )

    def __init__(self, node: Node, *, wait_obj: int = fi.WAIT_UNSPEC, size: int = 64) -> None:
        self.timeout = node.timeout
        self._scratch = np.zeros(CELL_BYTES_MAX * _CELLS, np.uint8)
        self.cells: dict[str, Cell] = {}
        self._open(node, wait_obj, size)

    def _open(self, node: Node, wait_obj: int, size: int) -> None:
        domain = node._domain
        self.cq = domain.cq_open(size=size, format=fi.CQ_FORMAT_CONTEXT, wait_obj=wait_obj)
        self.av = domain.av_open()
        self.ep = domain.endpoint(node._info)
        self.ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
        self.ep.bind(self.av)
        self.ep.enable()
        self.native: Any = self.ep
        self.mr = domain.mr_reg(self._scratch, fi.READ | fi.WRITE)
        _handle.owned(self.cq, self.av, self.ep, self.mr)
        self.read: Callable[..., None] = self.ep.read
        self.write: Callable[..., None] = self.ep.write
        self.fetch_atomic: Callable[..., None] = self.ep.fetch_atomic
        self.take: Callable[[int], Any] = self.cq.read

    def cell(self, dtype: np.dtype[Any], code: str) -> Cell:
        """Memory for elements of a dtype, at most CELL_BYTES_MAX bytes each; cached under `code`."""
        parts: list[Any] = []
        for at in range(0, CELL_BYTES_MAX * _CELLS, CELL_BYTES_MAX):
            parts.append(self.part(at, dtype.itemsize))
            parts.append(self._scratch[at : at + dtype.itemsize].view(dtype))
        cell: Cell = (parts[0], parts[1], parts[2], parts[3], parts[4], parts[5])
        self.cells[code] = cell
        return cell

    def part(self, at: int, nbytes: int) -> Any:
        """Bytes of the lane's own memory, as a buffer of an operation."""
        return self.mr[at : at + nbytes]

    def insert(self, address: str) -> None:
        """Add a peer, whose fi_addr is the number of those before."""
        self.av.insert(address)

    def wait(self) -> None:
        """Wait for the completion of the posted operation.

        Raises Available if the operation failed, TimedOut after the node's timeout.
        """
        timeout = self.timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        answers = answers_so_far()
        # Wait in slices, so that the thread notices when another thread closes the node.
        while deadline is None or time.monotonic() < deadline:
            try:
                if self.cq.sread(1, None, 1.0 if timeout is None else min(1.0, timeout)):
                    return
            except errors.Again:
                pass
            if timeout is not None and answers != (answers := answers_so_far()):
                deadline = time.monotonic() + timeout  # a large array: pieces still arrive
        raise errors.TimedOut(f"no completion in {self.timeout:g} s")

    def run(self, posts: list[Post]) -> None:
        """Post each operation and wait for it. Raises the errors of posting; Available if an operation failed."""
        ep = self.ep
        for post in posts:
            post(ep, None)
            if not self.take(1):
                self.wait()

    def close(self) -> None:
        """Close the endpoint, queue, vector and region. An operation under way ends as canceled."""
        for part in (self.ep, self.cq, self.av, self.mr):
            try:
                part.close()
            except errors.FabricError:
                pass  # Busy: an operation of another thread is just ending; closing the domain closes the rest
