"""`attach_all`, over any channel: every rank shares arrays, and gets a RemoteArray of every rank's.

    meet(channel, arrays, ...)     1. open a node, share the arrays and a control array (control.py)
                                   2. gather the tickets of all ranks by the channel
                                   3. attach them; wait until all ranks have, or one failed
    PeerArrays                     the result

An error of any rank in 1 to 3 is raised by every rank, as the same class and text. Nothing waits without a deadline.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from .. import errors
from ..share import Node, RemoteArray, Shared, Ticket, open
from ..share.names.waiting import seconds
from .channel import RECORD_BYTES_MAX, Channel
from .control import Control, Failure, State, failure_of, rebuilt, stated, waited

DEFAULT_TIMEOUT_S = 60.0
_VERSION = 1
_LINGER_S = 2.0  # time that a failed rank stays, so that the others can read its error
_OPERATION_S = 30.0

Array = Any  # anything that Node.share takes


class PeerArrays:
    """The arrays of all ranks. Made by attach_all(); a context manager.

    `peers[rank]` is the rank's array as a RemoteArray, `peers[rank, "bias"]` one of several arrays by name; this rank's
    own arrays are among them. `peers.view(rank)` is the array's memory as a NumPy array (`RemoteArray.view`), for ranks
    of the same host. Iteration yields the arrays in the order of the ranks, and skips ranks that share none.

    Attributes:
        rank: This rank's number.
        size: The number of ranks, as len(peers).
        node: The node that has the shares; closed with the PeerArrays if attach_all() opened it.
        shared: This rank's shares by name; "" is the name of an array that was passed alone.
        hosts: The name of each rank's host.
        mapped: For each rank, whether loads and stores of this process reach its arrays.

    Each rank owns its memory. The arrays of the others end when their rank closes or dies: accesses then raise
    KeyRejected or ConnectionReset. Views stay valid (`RemoteArray.view`). Thread safety: as RemoteArray's.
    """

    def __init__(self, seat: _Seat, others: Mapping[int, _Peer]) -> None:
        self.rank: int = seat.channel.rank
        self.size: int = seat.channel.size
        self.node: Node = seat.node
        self.shared: dict[str, Shared] = seat.shares
        self._seat = seat
        self._others = dict(others)
        own = {name: share.remote for name, share in seat.shares.items()}
        self._arrays = {rank: one.arrays for rank, one in others.items()} | {self.rank: own}
        self.hosts: tuple[str, ...] = tuple(
            os.uname().nodename if rank == self.rank else others[rank].host for rank in range(self.size)
        )
        self._closed = False
        self._pid = os.getpid()

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[RemoteArray]:
        return (array for rank in range(self.size) for array in self._arrays[rank].values())

    def __getitem__(self, key: int | tuple[int, str]) -> RemoteArray:
        """Raises IndexError (no such rank), NotFound (the rank shares no such array)."""
        rank, name = key if isinstance(key, tuple) else (key, None)
        arrays = self._of(rank)
        if name is None and len(arrays) == 1:
            return next(iter(arrays.values()))
        found = None if name is None else arrays.get(name)
        if found is None:
            there = ", ".join(map(repr, arrays)) or "none"
            what = "one array, or peers[rank, name]" if name is None else repr(name)
            raise errors.NotFound(f"rank {rank} does not share {what}\n  its arrays: {there}")
        return found

    def names(self, rank: int) -> tuple[str, ...]:
        """The names of a rank's arrays: ("",) for an array that was passed alone, () if it shares none."""
        return tuple(self._of(rank))

    def view(self, rank: int, name: str | None = None, mode: Any = None) -> Any:
        """The rank's memory itself as a NumPy array: `peers[rank].view(mode)`, with its errors."""
        return (self[rank] if name is None else self[rank, name]).view(mode)

    @property
    def mapped(self) -> tuple[bool, ...]:
        """For each rank, whether loads and stores of this process reach its arrays (False for a rank without)."""
        return tuple(
            bool(arrays) and (rank == self.rank or all(one.path == "load/store" for one in arrays.values()))
            for rank, arrays in sorted(self._arrays.items())
        )

    def _of(self, rank: Any) -> dict[str, RemoteArray]:
        found: dict[str, RemoteArray] | None = self._arrays.get(rank)
        if found is None:
            raise IndexError(f"rank {rank!r} of {self.size}")
        return found

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed

    def close(self, wait: float = 10.0) -> None:
        """End this rank's shares, when all ranks have come to their close(): others may still use them.

        Args:
            wait: Seconds to wait for the other ranks; 0: end at once. Ranks that died are not waited for.

        The array that was passed does not change. Closing again does nothing, and so does closing in a forked child.
        """
        if self._closed:
            return
        wait = seconds(wait, "close: wait")
        self._closed = True
        if self._pid != os.getpid():
            return  # a forked child: the shares are its parent's
        self._seat.leave({rank: one.control for rank, one in self._others.items()}, wait)

    def __enter__(self) -> PeerArrays:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(10.0 if kind is None else 0.0)

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<weft PeerArrays, rank {self.rank} of {self.size}, {sum(1 for _ in self)} arrays{state}>"


class _Peer:
    """Another rank: what it told, and what is attached of it."""

    def __init__(self, host: str, tickets: dict[str, Ticket], control: Ticket) -> None:
        self.host = host
        self.pid = control.pid
        self.kernel = control.host
        self.listens = bool(control.place)
        self.tickets = tickets
        self.control_ticket = control
        self.control: RemoteArray
        self.arrays: dict[str, RemoteArray] = {}


class _Seat:
    """This rank's part: its node, its shares and its control array."""

    def __init__(self, channel: Channel, node: Node, own: bool) -> None:
        self.channel = channel
        self.node = node
        self.own = own
        self.shares: dict[str, Shared] = {}
        self.control = Control(node)

    def leave(self, controls: Mapping[int, RemoteArray], wait: float, state: State = State.LEFT) -> None:
        """Tell that this rank leaves, wait for the others, and end the shares."""
        if self.node.closed:
            return
        self.control.tell(state)
        over = (State.LEFT, State.FAILED, State.GONE)
        try:
            if wait > 0 and controls:
                waited(controls, over, time.monotonic() + wait)
        except errors.FabricError:
            pass  # another rank cannot be reached any more
        finally:
            self.close()

    def close(self) -> None:
        """End the shares, and the node if it is this seat's own."""
        if self.own:
            self.node.close()
            return
        for share in self.shares.values():
            share.close()
        self.control.close()


Result = TypeVar("Result", bound=PeerArrays)


def meet(
    channel: Channel,
    arrays: Mapping[str, Array],
    access: str,
    *,
    node: Node | None,
    listen: str | None,
    secret: str | bytes | None,
    timeout: float,
    made: type[Result],
    call: str = "attach_all",
) -> Result:
    """attach_all() of every channel; see there for the arguments and errors."""
    timeout = seconds(timeout, f"{call}: timeout")
    deadline = time.monotonic() + timeout
    seat: _Seat | None = None
    others: dict[int, _Peer] = {}
    try:
        failed: Exception | None = None
        try:
            seat = _take_seat(channel, arrays, access, node, listen, secret, timeout, call)
        except Exception as reason:
            failed = reason
        records = channel.gather(_record(channel, seat, failed), deadline, call)
        others = _read(records, channel, call, failed)
        assert seat is not None  # otherwise _read raised this rank's own error
        _check_hosts(others, seat, call)
        _attach(others, seat, deadline, call)
        return made(seat, others)
    except BaseException as reason:
        if seat is not None:
            _withdraw(seat, others, reason)
        raise


def _take_seat(
    channel: Channel,
    arrays: Mapping[str, Array],
    access: str,
    node: Node | None,
    listen: str | None,
    secret: str | bytes | None,
    timeout: float,
    call: str,
) -> _Seat:
    if node is not None and (listen is not None or secret is not None):
        raise errors.InvalidArgument(
            f"{call}: node= and listen= or secret= are both given\n"
            "  try: weft.open(listen=..., secret=...) for the node"
        )
    mine = open(timeout=max(min(timeout, _OPERATION_S), 0.1), listen=listen, secret=secret) if node is None else node
    try:
        seat = _Seat(channel, mine, node is None)
    except BaseException:
        if node is None:
            mine.close()
        raise
    try:
        for name, array in arrays.items():
            if type(name) is not str:
                raise TypeError(f"{call}: names of arrays are str, not {name!r:.60}")
            if array is not None:
                seat.shares[name] = mine.share(array, access=access)
    except BaseException:
        seat.close()
        raise
    return seat


# ---- the records -----------------------------------------------------------------------------------------------------


def _record(channel: Channel, seat: _Seat | None, failed: Exception | None) -> bytes:
    """What this rank tells the others: its tickets, or its error."""
    told: dict[str, Any] = {
        "weft": _VERSION, "rank": channel.rank, "size": channel.size, "host": os.uname().nodename
    }  # fmt: skip
    if failed is not None:
        kind, text = stated(failed)
        told["failed"] = (kind, text[:4096])
    elif seat is not None:
        told["control"] = seat.control.ticket
        told["arrays"] = {name: str(share.ticket) for name, share in seat.shares.items()}
    found = json.dumps(told, separators=(",", ":")).encode()
    if len(found) > RECORD_BYTES_MAX:
        text = f"the tickets of {len(told['arrays'])} arrays have {len(found)} bytes, the limit is {RECORD_BYTES_MAX}"
        return json.dumps({"weft": _VERSION, "rank": channel.rank, "host": "", "failed": ("TooSmall", text)}).encode()
    return found


def _read(records: list[bytes], channel: Channel, call: str, failed: Exception | None) -> dict[int, _Peer]:
    """The other ranks' records. All ranks have the same records, so all raise the same error for the same rank."""
    failures: dict[int, Failure] = {}
    found: dict[int, _Peer] = {}
    for rank, record in enumerate(records):
        told = _parsed(record, rank, channel.size)
        if isinstance(told, _Peer):
            found[rank] = told
        else:
            failures[rank] = told
    if failures:
        channel.settle()
        rank, (kind, text) = next(iter(failures.items()))
        more = f" (and ranks {', '.join(map(str, [*failures][1:9]))})" if len(failures) > 1 else ""
        raise rebuilt((kind, f"{call}: rank {rank} cannot share its array{more}: {text}")) from (
            failed if rank == channel.rank else None
        )
    del found[channel.rank]
    return found


def _parsed(text: bytes, rank: int, size: int) -> _Peer | Failure:
    """A rank's record: its shares, or its error. A text that is no record counts as the rank's error."""
    try:
        told = json.loads(text)
        if told["weft"] != _VERSION:
            return "BadState", f"it has another version of Weft, whose records are of version {told['weft']!r:.20}"
        if "failed" in told:
            kind, why = told["failed"]
            return str(kind), str(why)
        if told["rank"] != rank:
            return "InvalidArgument", f"its record is that of rank {told['rank']!r:.20}"
        if told["size"] != size:
            return "InvalidArgument", f"it counts {told['size']!r:.20} ranks where another rank counts {size}"
        tickets = {str(name): Ticket.parse(one) for name, one in told["arrays"].items()}
        control = Ticket.parse(told["control"])
        if not Control.fits(control):
            return "InvalidArgument", "its record has another array than a control array"
        return _Peer(str(told["host"])[:255], tickets, control)
    except errors.InvalidArgument as reason:
        return "InvalidArgument", reason.message
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return "InvalidArgument", f"its record is damaged: {text[:60]!r}"


def _check_hosts(others: Mapping[int, _Peer], seat: _Seat, call: str) -> None:
    """Ranks of several hosts must all listen. Every rank sees the same, and so raises the same error."""
    mine = Ticket.parse(seat.control.ticket)
    ranks = {rank: (one.kernel, one.host, one.listens) for rank, one in others.items()}
    ranks[seat.channel.rank] = (mine.host, os.uname().nodename, bool(mine.place))
    kernels = {kernel for kernel, _, _ in ranks.values()}
    deaf = [rank for rank in sorted(ranks) if not ranks[rank][2]]
    if len(kernels) > 1 and deaf:
        raise errors.Unreachable(
            f"{call}: rank {deaf[0]} on host {ranks[deaf[0]][1]} does not listen, and the ranks are on {len(kernels)} "
            "hosts\n  rule: processes of different hosts (or network namespaces) reach each other by tcp\n"
            f"  try: {call}(..., listen='tcp://0.0.0.0:0', secret=...) in every rank, or WEFT_LISTEN and WEFT_SECRET"
        )


# ---- attaching -------------------------------------------------------------------------------------------------------


def _attach(others: Mapping[int, _Peer], seat: _Seat, deadline: float, call: str) -> None:
    """Attach the arrays of all other ranks, and wait until all ranks have done the same."""
    me = seat.channel.rank
    # From the next rank on, so that not all ranks ask the same rank at once.
    order = sorted(others, key=lambda rank: (rank < me, rank))
    lost: dict[int, errors.FabricError] = {}
    # Attach all control arrays first: a rank that fails afterwards waits until the others have read its error there.
    for rank in order:
        try:
            others[rank].control = seat.node.attach(others[rank].control_ticket)
        except errors.FabricError as reason:
            lost[rank] = reason
    for rank in order if not lost else ():
        try:
            for name, ticket in others[rank].tickets.items():
                others[rank].arrays[name] = seat.node.attach(ticket)
        except errors.FabricError as reason:
            lost[rank] = reason
            break
    for rank, why in lost.items():
        one = others[rank]
        raise _first_failure(others) or rebuilt(
            (
                type(why).__name__,
                f"{call}: rank {me} cannot attach the array of rank {rank} (process {one.pid} on host {one.host}): "
                + why.message
                + seat.channel.advice,
            )
        ) from why
    seat.control.tell(State.READY)
    controls = {rank: one.control for rank, one in others.items()}
    states = waited(controls, (State.READY, State.LEFT), deadline)
    if State.FAILED in states.values() or State.GONE in states.values():
        found = _first_failure(others)
        if found is not None:
            raise found
        rank = next(rank for rank, state in sorted(states.items()) if state in (State.FAILED, State.GONE))
        raise errors.ConnectionReset(
            f"{call}: rank {rank} (process {others[rank].pid} on host {others[rank].host}) ended before all ranks were "
            "attached\n  try: its own output; start all ranks again"
        )
    late = [rank for rank, state in sorted(states.items()) if state is State.ATTACHING]
    if late:
        shown = ", ".join(map(str, late[:8])) + (" ..." if len(late) > 8 else "")
        raise errors.TimedOut(
            f"{call}: ranks that have not attached the arrays of all ranks in time: {shown}\n"
            "  try: see whether their processes are stopped; a longer timeout="
        )


def _first_failure(others: Mapping[int, _Peer]) -> Exception | None:
    """The error of the lowest other rank that wrote an error: the cause of what this rank sees."""
    for _, one in sorted(others.items()):
        failure = failure_of(one.control) if hasattr(one, "control") else None
        if failure is not None:
            return rebuilt(failure)
    return None


def _withdraw(seat: _Seat, others: Mapping[int, _Peer], reason: BaseException) -> None:
    """End this rank's part after an error, when the others have seen the error or a short time has passed."""
    if seat.node.closed:
        return
    if isinstance(reason, Exception):
        seat.control.tell(State.FAILED, stated(reason))
    controls = {rank: one.control for rank, one in others.items() if hasattr(one, "control")}
    try:
        over = time.monotonic() + _LINGER_S
        for rank, control in controls.items():
            waited({rank: control}, (State.FAILED, State.LEFT, State.GONE), over)
        if len(controls) < len(others):  # this rank cannot see the others, which may be about to attach
            time.sleep(max(over - time.monotonic(), 0.0))
    except errors.FabricError:
        pass
    finally:
        seat.close()
