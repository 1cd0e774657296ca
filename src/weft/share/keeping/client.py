"""`share(keep=True)`: an array is handed over to the keeper, in one copy. `Node.kept`: another process is its maker.

A whole array of `weft.empty` keeps its addresses: the kept memory takes the place of its pages (`_nic.Nic.overlay`), so
the program goes on with the array that it has. Of all other memory the keeper has a copy, which `Shared.array` maps.
"""

from __future__ import annotations

import json
import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import _nic, _process, errors
from ...fi import _handle
from ..arrays.checks import Array
from ..arrays.explain import keeper_gone
from ..names.processes import command_of
from ..names.server import check_name, inquire, taken, unknown
from ..names.ticket import Ticket, encode_dtype, process_start
from ..offer import Offer
from ..shared import Shared
from . import protocol

if TYPE_CHECKING:
    from ..node import Node

_LOOK_S = 2.0


class KeptShared(Shared):
    """A share whose array the keeper has. close() ends it: the array and its name stay until `weft.forget(name)`.

    The node does not hold the array, which stays when the node ends.
    """

    kept = True
    _again = "node.kept(name) has it again, as long as it is kept"

    def close(self) -> None:
        """End this object. The array stays, under its name: `weft.forget(name)` ends it. Does nothing if closed."""
        self._closed = True
        self._local = self._room = None

    @property
    def ucp_rkey(self) -> bytes:
        """Not for kept arrays: raises NotSupported."""
        raise errors.NotSupported(
            "ucp_rkey: the keeper owns the array, and packs no keys of weft.ucp\n  try: a share without keep=True"
        )

    def _put(self, offer: Offer, call: str) -> None:
        with self._keeper(call) as link:
            kept, ticket, busy = _hand_over(
                self._node, link, offer, {"op": "replace", "name": self.name, "ticket": str(self.ticket)}, call
            )
        self._take(kept, ticket)
        if busy:
            raise errors.Busy(busy)

    def _resize(self, length: int) -> None:
        offer = self._rows_of(length)
        with self._keeper("resize") as link:
            answer = link.call("resize", name=self.name, ticket=str(self.ticket), length=length)
        self._take(offer, Ticket.parse(answer["ticket"]))
        if "busy" in answer:
            raise errors.Busy(answer["busy"])

    def _keeper(self, call: str) -> protocol.Link:
        """A connection to the keeper."""
        try:
            return protocol.to_socket(_keeper_of(self.name, call))
        except (errors.NotFound, protocol.KeeperEnded):
            if process_start(self.ticket.pid) == self.ticket.start:
                raise
            again = f"; here is shared.array still: node.share(shared.array, {self.name!r})"
            raise errors.ConnectionReset(keeper_gone(self.ticket, call) + again) from None

    def _take(self, offer: Offer, ticket: Ticket) -> None:
        self._local, self._room, self.array = offer.local, offer.room, offer.array
        self.ticket = ticket
        self._remote = None

    def _why(self) -> str:
        return f"the keeper, process {self.ticket.pid}, has it in memory that peers map"


def share_kept(node: Node, offer: Offer, name: str | None, access: str, site: _handle.Site) -> KeptShared:
    """`Node.share` with keep=True, after the checks of the array."""
    if name is None:
        raise errors.InvalidArgument(
            "share: keep=True needs a name, because a kept array is found and forgotten by its name\n"
            "  try: node.share(array, name='...', keep=True)"
        )
    _check_isolation("share: keep=True")
    if inquire(_LOOK_S, name):  # checked early: the keeper refuses too, but only after the array is copied
        raise taken(name)
    with protocol.connected() as link:
        request = {
            "op": "keep",
            "name": name,
            "access": access,
            "maker": [os.getpid(), command_of(os.getpid())],
        }
        kept, ticket, _ = _hand_over(node, link, offer, request, "share")
    return KeptShared(node, kept, None, ticket, site)


def kept(node: Node, name: str, site: _handle.Site) -> KeptShared:
    """`Node.kept`."""
    check_name(name, "kept")
    _check_isolation("kept: this process")
    with protocol.to_socket(_keeper_of(name, "kept")) as link:
        answer = link.call("kept", name=name)
        ticket, rows = Ticket.parse(answer["ticket"]), answer["rows"]
        dtype, order = ticket.numpy_dtype, ticket.order
        shape = ticket.shape[::-1] if order == "F" else ticket.shape
        # Before the keeper ends this region; the mapping stays.
        memory: Any = node.attach(Ticket.parse(answer["memory"])).view("rw") if answer["memory"] else bytearray()
    whole: Array = np.ndarray(shape if rows is None else (int(rows), *shape[1:]), dtype, buffer=memory)
    if rows is None:
        return KeptShared(node, Offer(whole.T if order == "F" else whole, whole, None, order), None, ticket, site)
    local = whole[: shape[0]]
    return KeptShared(node, Offer(local, local, whole), None, ticket, site)


def make_kept(name: str, kind: str, number: int, n: int, item: int, form: bytes) -> Ticket:
    """Let the keeper make a lock, event, semaphore, barrier or queue. number: of the class. form: see SyncObject.
    Raises as share_kept."""
    with protocol.connected() as link:
        answer = link.call(
            "make",
            name=name,
            kind=kind,
            number=number,
            n=n,
            item=item,
            form=form.decode(),
            maker=[os.getpid(), command_of(os.getpid())],
        )
    return Ticket.parse(answer["ticket"])


def forget(name: str) -> None:
    """End what is kept under a name: an array (`Node.share` with keep=True), or a lock, queue ... made with keep=True.
    The name is free again. Attached peers, waiting ones too, get KeyRejected.

    The memory is freed when no process has it mapped any more. The keeper ends with its last array.

    Raises NotFound (no such name), NotSupported (the name is of an array that its process shares itself: only that
    process ends it), TypeError, InvalidArgument, TimedOut (the keeper is stopped), Busy (a peer that is stopped copies
    from the array).
    """
    with protocol.to_socket(_keeper_of(check_name(name, "forget"), "forget")) as link:
        link.call("forget", name=name)


def _check_isolation(what: str) -> None:
    if _process.nic().isolation == "strict":
        raise errors.NotSupported(
            f"{what} shares memory with the keeper, and WEFT_ISOLATION=strict shares no memory\n"
            "  try: a process without WEFT_ISOLATION=strict for the arrays that are kept; strict ones can attach them"
        )


def _keeper_of(name: str, call: str) -> str:
    """The socket of the keeper that has a name."""
    others = 0
    for answer in inquire(_LOOK_S, name):
        if answer.ticket is None:
            raise errors.TimedOut(
                f"{call}: process {answer.pid}, which has the name {name!r}, does not answer: is it stopped?"
            )
        try:
            return str(json.loads(answer.info)["keeper"])
        except (ValueError, KeyError, TypeError):
            others = answer.pid
    if others:
        raise errors.NotSupported(
            f"{call}: {name!r} is not kept: process {others} ({command_of(others)}) shares it itself\n"
            "  rule: such an array ends with its process, or when the process closes the share"
        )
    if protocol.was_killed():
        raise errors.NotFound(
            f"{call}: nothing is kept as {name!r}: the keeper of this user is gone, it was killed\n"
            "  rule: if the keeper is killed, what it kept is lost\n"
            "  try: node.share(array, name, keep=True), which starts another keeper"
        )
    raise unknown(name, call)


# ---- handing over ----------------------------------------------------------------------------------------------------


def _hand_over(
    node: Node, link: protocol.Link, offer: Offer, request: dict[str, Any], call: str
) -> tuple[Offer, Ticket, str]:
    """Copy an array to the keeper. Returns the array that this process has from now on, its ticket, and the text of a
    Busy that the keeper met."""
    whole, local = offer.whole, offer.local
    alone = _alone(whole)
    if alone is not None and _process.nic().region_in(whole.ctypes.data, whole.nbytes) is not None:
        raise errors.Busy(
            f"{call}: the array is shared or registered already, and keep=True gives its memory to the keeper\n"
            "  rule: peers of the other share would go on with the memory that the array had before\n"
            "  try: shared.close() of the other share first; or a copy of the array"
        )
    memory: Array | None = None
    if whole.nbytes:
        room = node.attach(Ticket.parse(link.call("room", nbytes=whole.nbytes)["ticket"]))
        if local.nbytes:
            # Through the NIC, which reports a page that the system cannot give; a plain copy would end the process.
            room.at[: local.nbytes].write(local.reshape(-1).view(np.uint8))
        try:
            memory = room.view("rw")
        except errors.NotSupported as reason:
            raise errors.NotSupported(
                f"{call}: keep=True shares memory with the keeper, and the keeper's memory is not mapped here\n"
                f"  found: {reason.message.partition(chr(10))[0]}\n  try: without WEFT_SHM=0, and without "
                "WEFT_ISOLATION=strict, in this process and the keeper"
            ) from None
    answer = link.call(
        **request,
        dtype=encode_dtype(local.dtype),
        shape=list(local.shape),
        order=offer.order,
        rows=None if offer.room is None else len(offer.room),
    )
    return _placed(offer, memory, alone), Ticket.parse(answer["ticket"]), str(answer.get("busy", ""))


def _placed(offer: Offer, memory: Array | None, alone: Array | None) -> Offer:
    """The offered array over the kept memory: the same object if its pages could be exchanged."""
    whole = offer.whole
    if memory is None:
        return offer
    if alone is not None and _process.nic().overlay(whole.ctypes.data, whole.nbytes, memory.ctypes.data):
        # The mapping keeps the keeper from reusing the place, for as long as the array has it.
        weakref.finalize(alone, _let_go, memory).atexit = False
        return offer
    kept: Array = np.ndarray(whole.shape, whole.dtype, buffer=memory)
    if offer.room is None:
        return Offer(kept.T if offer.order == "F" else kept, kept, None, offer.order)
    local = kept[: len(offer.local)]
    return Offer(local, local, kept)


def _let_go(memory: Array) -> None:
    """The array is gone, and `memory` goes with this call."""


def _alone(whole: Array) -> Array | None:
    """The array that owns a whole allocation of Weft; None if `whole` is a part of one, or other memory."""
    owner = whole
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    memory: Any = owner.base
    same = owner.ctypes.data == whole.ctypes.data and owner.nbytes == whole.nbytes
    return owner if same and isinstance(memory, _nic.Allocation) else None
