"""A small shared array of each rank, in which the others see the rank's progress.

After the tickets are exchanged, ranks wait for each other in these arrays and nowhere else: a rank that fails writes
its error there, and the death of a rank ends the reads of its array.
"""

from __future__ import annotations

import enum
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from .. import errors
from ..memory import zeros
from ..share import Node, RemoteArray, Ticket

_WORDS = 512  # the state, the bytes of the text, the text
_TEXT_BYTES_MAX = (_WORDS - 2) * 8
_GONE = (errors.ConnectionReset, errors.KeyRejected)

# Class and text of an error that another rank had.
Failure = tuple[str, str]


class State(enum.IntEnum):
    """How far a rank is in attach_all, and after it."""

    ATTACHING = 0
    READY = 1
    FAILED = 2
    LEFT = 3
    GONE = 4  # never written: the rank's array has ended, because it closed or its process died


class Control:
    """This rank's array."""

    def __init__(self, node: Node) -> None:
        self._words = zeros(_WORDS, np.int64)
        self._order = threading.Lock()
        self._shared = node.share(self._words, access="r")

    @property
    def ticket(self) -> str:
        """For the other ranks."""
        return str(self._shared.ticket)

    @staticmethod
    def fits(ticket: Ticket) -> bool:
        """Whether a ticket may be that of another rank's control array."""
        return ticket.shape == (_WORDS,) and ticket.numpy_dtype == np.int64 and "r" in ticket.access

    def tell(self, state: State, failure: Failure | None = None) -> None:
        """Write the state; with State.FAILED also the error."""
        if failure is not None:
            text = json.dumps(failure).encode()
            if len(text) > _TEXT_BYTES_MAX:
                text = json.dumps((failure[0], failure[1][: _TEXT_BYTES_MAX // 8] + " ...")).encode()
            self._words[2:].view(np.uint8)[: len(text)] = np.frombuffer(text, np.uint8)
            self._words[1] = len(text)
        with self._order:
            pass  # SYNC POINT: a rank that reads the state after this lock's release reads the text as well
        self._words[0] = state

    def close(self) -> None:
        """End the array: the other ranks then see State.GONE."""
        self._shared.close()


def state_of(control: RemoteArray) -> State:
    """Another rank's state. A number that no rank writes counts as State.FAILED."""
    try:
        number = int(control[0])
    except _GONE:
        return State.GONE
    return State(number) if 0 <= number < State.GONE else State.FAILED


def failure_of(control: RemoteArray) -> Failure | None:
    """The error that another rank wrote; None if its array has ended meanwhile, or does not have one."""
    try:
        words = control.read()
    except errors.FabricError:
        return None
    length = int(words[1])
    try:
        name, text = json.loads(words[2:].view(np.uint8)[: max(min(length, _TEXT_BYTES_MAX), 0)].tobytes())
    except (ValueError, TypeError):
        return None
    return (name, text) if type(name) is str and type(text) is str else None


def waited(controls: Mapping[int, RemoteArray], past: Iterable[State], deadline: float) -> dict[int, State]:
    """The states of the ranks, when all are in `past`, one has failed or is gone, or the deadline is over."""
    wanted, pause = frozenset(past), pauses()
    pending, found = set(controls), dict.fromkeys(controls, State.ATTACHING)
    while pending:
        for rank in sorted(pending):
            found[rank] = state = state_of(controls[rank])
            if state in wanted:
                pending.discard(rank)
            elif state in (State.FAILED, State.GONE):
                return found
        if time.monotonic() > deadline:
            break
        if pending:
            time.sleep(next(pause))
    return found


def pauses() -> Iterator[float]:
    """Seconds to sleep between two looks: no core is kept busy while other ranks have work to do."""
    pause = 50e-6
    while True:
        yield pause
        pause = min(pause * 1.5, 5e-3)


# ---- errors of other ranks -------------------------------------------------------------------------------------------

# Errors of a program; other errors that are no FabricError arrive as BadState.
_PLAIN: dict[str, type[Exception]] = {"TypeError": TypeError, "ValueError": ValueError, "MemoryError": MemoryError}


def stated(reason: Exception) -> Failure:
    """An error of this rank, for the others."""
    if isinstance(reason, errors.FabricError):
        return type(reason).__name__, reason.message
    name = next((name for name, kind in _PLAIN.items() if isinstance(reason, kind)), "BadState")
    return name, str(reason) or type(reason).__name__


def rebuilt(failure: Failure) -> Exception:
    """The error, of the same class in every rank."""
    name, text = failure
    if name in _PLAIN:
        return _PLAIN[name](text)
    kind = getattr(errors, name, None) if name.isidentifier() else None
    return kind(text) if isinstance(kind, type) and issubclass(kind, errors.FabricError) else errors.BadState(text)
