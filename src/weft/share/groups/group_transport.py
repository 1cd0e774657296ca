"""The transport of a group: an endpoint, the group's collectives, and a window of memory in every member.

A window has two halves, used in turn. In one phase a member writes its half, all members meet at a barrier, and then
they read each other's halves. Two phases later the member writes the same half. By then it has passed the barrier of
the phase between. Every member came to that barrier after its reads, so no half is overwritten while a member reads it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _nic, errors, fi
from ...fi import _handle
from ...memory.arrays import zeros
from ..arrays.checks import Array

if TYPE_CHECKING:
    from ..node import Node

CHUNK = 2 << 20  # bytes of a half, without its header
HEADER = 256  # the phase, and what the member is doing, as text: members that do different things notice
_WORD = 8  # bytes of the phase
_TEXT = HEADER - _WORD
_MAPPED_MAX = 63  # other members whose windows a member maps: 4 MiB of addresses each
_HALF = HEADER + CHUNK
_SLICE_S = 1.0  # a waiting thread checks again after this time
# Columns of fi.RMA_DESC.
_LOCAL, _LENGTH, _DEST, _REMOTE, _KEY = range(5)

Reads = tuple[Array, Array]
"""Descriptors of reads: from the first half of other members, and from the second."""


class GroupTransport:
    """One member's side of a group's traffic; used by one thread at a time."""

    def __init__(self, node: Node) -> None:
        info = fi.getinfo(
            hints=fi.Info(
                caps=fi.RMA | fi.ATOMIC | fi.MSG | fi.COLLECTIVE,
                domain_attr=fi.DomainAttr(mr_mode=node._info.domain_attr.mr_mode),
                addr_format=fi.ADDR_STR,
            )
        )[0]
        domain = node._domain
        self._virtual = domain.virt_addr
        self.window: Array = zeros(2 * _HALF, np.uint8)
        self.cq = domain.cq_open(size=64, format=fi.CQ_FORMAT_CONTEXT)
        self.eq = node._fabric.eq_open()
        self.av = domain.av_open()
        self.ep = domain.endpoint(info)
        self.ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
        self.ep.bind(self.av)
        self.ep.bind(self.eq)
        self.ep.enable()
        self.mr = domain.mr_reg(self.window, fi.REMOTE_READ)
        _handle.owned(self.cq, self.eq, self.av, self.ep, self.mr)
        self.set: Any = None
        self.mc: Any = None
        self.phase = 0
        self._heads = [self.window[at : at + HEADER] for at in (0, _HALF)]
        self._halves = [self.window[at + HEADER : at + _HALF] for at in (0, _HALF)]
        self._announced = [b"", b""]  # by half
        self._mapped: dict[int, tuple[Array, Array]] = {}  # by rank
        self._room: Array = np.zeros(0, np.uint8)
        self.begun = False  # the present call has begun to move data, and an error leaves the members out of step
        self._keys: Array = np.zeros(0, np.uint64)
        self._bases: Array = np.zeros(0, np.uint64)

    def record(self) -> dict[str, Any]:
        """What the other members must know."""
        return {"address": str(self.ep.getname()), "key": self.mr.key, "base": self.mr.address if self._virtual else 0}

    def join(self, records: list[dict[str, Any]], deadline: float) -> None:
        """Join the group of these members. Raises TimedOut, ConnectionRefused (the join failed)."""
        for record in records:
            self.av.insert(str(record["address"]))
        self._keys = np.array([int(record["key"]) for record in records], np.uint64)
        self._bases = np.array([int(record["base"]) for record in records], np.uint64)
        self.set = self.av.av_set(fi.AvSetAttr(count=len(records), start_addr=0, end_addr=len(records) - 1, stride=1))
        self.mc = self.ep.join_collective(fi.ADDR_NOTAVAIL, self.set)
        while True:
            try:
                if self.eq.sread(_SLICE_S)[0] == fi.JOIN_COMPLETE:
                    return
            except errors.Available:
                entry = self.eq.readerr()
                why = self.eq.strerror(entry.prov_errno, entry.err_data)
                raise errors.make(entry.err, f"Group: {why}") from None
            except errors.Again:
                if time.monotonic() > deadline:
                    raise errors.TimedOut(
                        "Group: all members have come, but not all have joined in time\n  try: a longer wait="
                    ) from None

    # ---- phases -----------------------------------------------------------------------------------------------------

    def half(self) -> Array:
        """The bytes of this phase's half, without the header."""
        return self._halves[self.phase & 1]

    def announce(self, what: bytes) -> None:
        """Write what this member is doing into the half's header. Raises TooSmall: the text does not fit."""
        if len(what) > _TEXT:
            raise errors.TooSmall(
                f"Group: the call takes {len(what)} bytes to describe, and {_TEXT} are there: {what.decode():.80} ...\n"
                "  try: the bytes of the array, a.view('u1'), and fewer dimensions"
            )
        head = self._heads[self.phase & 1]
        head[:_WORD].view(np.uint64)[0] = self.phase
        if self._announced[self.phase & 1] != what:
            self._announced[self.phase & 1] = what
            head[_WORD:] = 0
            head[_WORD : _WORD + len(what)] = np.frombuffer(what, np.uint8)

    def all_do(self, heads: bytes) -> bool:
        """Whether the members of these headers do what this member has announced."""
        mine = self._heads[self.phase & 1].tobytes()
        return heads == mine * (len(heads) // HEADER)

    def said(self, head: bytes) -> str:
        """What a member is doing in this phase, by its header; "" for a member that is not in this phase."""
        phase, text = int.from_bytes(head[:_WORD], sys.byteorder), head[_WORD:]
        return text.rstrip(b"\0").decode(errors="replace") if phase == self.phase else ""

    def reads(self, ranks: Array, offsets: Array, lengths: Array, at: Array) -> Reads:
        """Prepare reads from the halves of members: `lengths` bytes from `offsets` on, to `at` of a buffer."""
        some = lengths > 0
        descs = np.zeros((2, int(some.sum()), 6), np.uint64)
        descs[:, :, _LOCAL] = at[some]
        descs[:, :, _LENGTH] = lengths[some]
        descs[:, :, _DEST] = ranks[some]
        descs[:, :, _KEY] = self._keys[ranks[some]]
        for half in range(2):
            places = half * _HALF + HEADER + offsets[some]
            descs[half, :, _REMOTE] = self._bases[ranks[some]] + places.astype(np.uint64)
        return descs[0], descs[1]

    def read(self, out: Array, reads: Reads, deadline: float | None) -> None:
        """Read from this phase's halves of other members. Raises as `wait`."""
        descs = reads[self.phase & 1]
        if len(descs):
            self.begun = True
            self.ep.read_batch(out, descs)
            self.wait(deadline)

    def mapped(self, ranks: list[int], deadline: float | None) -> list[tuple[Array, Array]] | None:
        """The halves of members, as this process has them mapped; None: at least one is not mapped here.

        A member that ends leaves its last contents. The arrays keep the memory.
        """
        if len(ranks) > _MAPPED_MAX:
            return None
        for rank in ranks:
            if rank in self._mapped:
                continue
            # A read waits until the connection and the mapping are there.
            one = np.array([rank]), np.array([-HEADER]), np.array([HEADER]), np.array([0])
            self.read(np.empty(HEADER, np.uint8), self.reads(*one), deadline)
            base, key = int(self._bases[rank]), int(self._keys[rank])
            found: Any = _nic.peer_memory(self.ep, rank, key, base, 2 * _HALF, False, own=True)
            if found is None or isinstance(found, int):
                return None
            memory: Array = np.ndarray((2 * _HALF,), np.uint8, buffer=found)
            self._mapped[rank] = memory[HEADER:_HALF], memory[_HALF + HEADER :]
        return [self._mapped[rank] for rank in ranks]

    def room(self, nbytes: int) -> Array:
        """Bytes for what is read from others; the next call has the same."""
        if self._room.size < nbytes:
            self._room = np.empty(nbytes, np.uint8)
        return self._room

    # ---- the group's collectives ------------------------------------------------------------------------------------

    def run(self, post: Callable[[], None], deadline: float | None) -> None:
        """Post one collective and wait for its end."""
        self.begun = True
        while True:
            try:
                post()
                break
            except errors.Again:
                self.cq.read(0)
        self.wait(deadline)

    def barrier(self, deadline: float | None) -> None:
        """Wait until all members have come to their barrier."""
        self.run(lambda: self.ep.barrier(self.mc.addr), deadline)

    def wait(self, deadline: float | None) -> None:
        """Wait for the completion of what was posted. Raises Available for an error entry, TimedOut."""
        if self.cq.read(1):
            return
        while True:
            try:
                if self.cq.sread(1, None, _SLICE_S):
                    return
            except errors.Again:
                pass
            if deadline is not None and time.monotonic() > deadline:
                raise errors.TimedOut("the other members have not come to the same call in time")

    def close(self) -> None:
        """Leave: close everything, as far as it exists."""
        self._mapped.clear()
        for part in (self.mc, self.set, self.ep, self.mr, self.av, self.cq, self.eq):
            if part is not None:
                part.close()
