"""Arrays of all ranks of an MPI communicator.

    from mpi4py import MPI
    from weft.interop import mpi

    with mpi.attach_all(MPI.COMM_WORLD, array) as peers:    # in every rank
        peers[3][10:20]                                     # rank 3's memory, one-sided

MPI carries one message of each rank, its tickets. Afterwards Weft moves the data, and MPI may go on being used.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import errors
from ..share import Node
from .channel import RECORD_BYTES_MAX
from .control import pauses
from .peers import DEFAULT_TIMEOUT_S, PeerArrays, meet


def attach_all(
    comm: Any,
    array: Any,
    *,
    access: str = "rw",
    node: Node | None = None,
    listen: str | None = None,
    secret: str | bytes | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> PeerArrays:
    """Share an array with all ranks of a communicator, and attach the arrays of all ranks. Collective.

    Args:
        comm: An intracommunicator of mpi4py.
        array: An array that Node.share takes, of any shape and dtype in each rank; None: this rank shares nothing; a
            dict of arrays: each under its name, as peers[rank, name]. Arrays of weft.empty are mapped by the other
            ranks of the host, others are reached by process_vm_readv. The caller's array is used in place, and stays
            the caller's.
        access: The other ranks' access: "r", "rw" or "w".
        node: The node to share and attach by; None: a new one, which the PeerArrays close.
        listen: For the new node, as weft.open() takes it: needed if the ranks are on several hosts.
        secret: Likewise.
        timeout: Seconds that all of this may take, then TimedOut.

    Returns:
        The arrays of all ranks.

    If a rank cannot share its array, or cannot attach one, every rank raises the same error, which names the rank.
    Errors: those of Node.share and Node.attach; Unreachable (ranks on several hosts, and one does not listen); TimedOut
    (the message names the ranks that are late; MPI cannot name a rank that never called); ConnectionReset (a rank died,
    or MPI failed); TypeError (comm). After TimedOut the communicator is of no further use, because MPI cannot cancel a
    collective call.

    Ranks call in the same order as their other collective calls on `comm`. While it waits the call sleeps, so that more
    ranks than cores do no harm.
    """
    channel = _Communicator(comm)
    arrays = dict(array) if isinstance(array, Mapping) else {"": array}
    return meet(channel, arrays, access, node=node, listen=listen, secret=secret, timeout=timeout, made=PeerArrays)


# Requests of collective calls that did not end in time, with their buffers: MPI may still write there.
_unfinished: list[Any] = []


class _Communicator:
    """A channel (channel.py) over a communicator."""

    advice = ""

    def __init__(self, comm: Any) -> None:
        try:
            if comm.Is_inter():
                raise TypeError("attach_all: comm is an intercommunicator\n  try: comm.Merge()")
            self.rank: int = comm.Get_rank()
            self.size: int = comm.Get_size()
        except AttributeError:
            raise TypeError(
                f"attach_all: comm is {type(comm).__name__}, not a communicator of mpi4py\n  try: MPI.COMM_WORLD"
            ) from None
        self._comm = comm

    def gather(self, mine: bytes, deadline: float, call: str) -> list[bytes]:
        """Two nonblocking collective calls: the lengths, then the records."""
        sizes = np.zeros(self.size, np.int64)
        length = np.array([len(mine)], np.int64)
        self._finish(lambda: self._comm.Iallgather(length, sizes), (length, sizes), deadline, call)
        if sizes.min() < 0 or sizes.max() > RECORD_BYTES_MAX or sizes.sum() >= 1 << 31:
            raise errors.InvalidArgument(f"{call}: the ranks' records have {sizes.tolist()[:8]} ... bytes")
        starts = np.concatenate(([0], np.cumsum(sizes)))
        text, texts = np.frombuffer(mine, np.uint8), np.empty(int(starts[-1]), np.uint8)
        spec = [texts, (sizes.tolist(), starts[:-1].tolist())]
        self._finish(lambda: self._comm.Iallgatherv(text, spec), (text, texts, spec), deadline, call)
        return [texts[start : start + n].tobytes() for start, n in zip(starts[:-1], sizes, strict=True)]

    def settle(self) -> None:
        """Nothing: a rank that ends waits for the others in MPI_Finalize."""

    def _finish(self, start: Any, buffers: Any, deadline: float, call: str) -> None:
        """Wait for a collective call, without keeping a core busy."""
        pause = pauses()
        try:
            request = start()
            while not request.Test():
                if time.monotonic() > deadline:
                    _unfinished.append((request, buffers))
                    raise errors.TimedOut(
                        f"{call}: not all {self.size} ranks have called in time\n"
                        "  rule: every rank of the communicator calls; MPI does not tell which rank is missing\n"
                        "  try: see which process has ended or is stopped; a longer timeout="
                    )
                time.sleep(next(pause))
        except errors.FabricError:
            raise
        except Exception as reason:  # MPI.Exception, which cannot be named without importing mpi4py
            raise errors.ConnectionReset(
                f"{call}: MPI failed: {reason}\n  try: see which rank has ended; start all ranks again"
            ) from reason
