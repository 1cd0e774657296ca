"""The arrays that have names on this host: `weft.names()`, and `weft ls`."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass

from ... import errors
from .processes import command_of
from .server import Answer, inquire
from .ticket import Ticket
from .waiting import seconds


@dataclass(frozen=True)
class NameInfo:
    """A named array of this user on this host.

    Attributes:
        name: The name for `Node.attach`.
        pid: The owner: the process that shared the array. Of a kept array the process that made it, which may have
            ended.
        command: The owner's command line.
        kind: "array"; or "Lock", "Event", "Semaphore", "Barrier", "Queue", whose array is their memory.
        shape: As NumPy's.
        dtype: NumPy's dtype as text (`str(array.dtype)`), also for a dtype that this process lacks.
        nbytes: Bytes of the elements.
        access: Access of peers: "r", "w" or "rw".
        age_s: Seconds since it was shared.
        kept: True: the keeper has it, and it stays until `weft.forget(name)`.
        keeper: The keeper's process; None if the array is not kept.
        answers: False: its process gave no answer in time (it is stopped, or busy). Then only name, pid and command are
            known; the other fields are None or False.
    """

    name: str
    pid: int
    command: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    nbytes: int | None = None
    access: str | None = None
    age_s: float | None = None
    kept: bool = False
    keeper: int | None = None
    answers: bool = True
    kind: str = "array"


def names(wait: float = 1.0) -> list[NameInfo]:
    """The arrays of this user that have names on this host now, sorted by name. The processes that have them answer.

    Args:
        wait: Seconds for all answers; a process that is stopped gives none, and is listed with `answers` False.

    A name ends with its process, so names of dead processes are never listed. `Node.names()` gives only the names, and
    asks nobody.

    Raises:
        TypeError: `wait` is not a number.
        InvalidArgument: `wait` is NaN.
    """
    return [_described(answer) for answer in inquire(seconds(wait, "names: wait"))]


def _described(answer: Answer) -> NameInfo:
    silent = NameInfo(answer.name, answer.pid, command_of(answer.pid), answers=False)
    if answer.ticket is None:
        return silent
    try:
        ticket = Ticket.parse(answer.ticket)
        dtype = ticket.numpy_dtype
        text, nbytes = str(dtype), math.prod(ticket.shape) * dtype.itemsize
    except errors.InvalidArgument:  # of a dtype that needs a package, or of another version
        return silent
    info = _info(answer.info)
    since, maker = info.get("since"), info.get("maker")
    pid, command = answer.pid, silent.command
    if ticket.kept and isinstance(maker, list) and len(maker) == 2 and isinstance(maker[0], int):
        pid, command = maker[0], str(maker[1])
    return NameInfo(
        answer.name,
        pid,
        command,
        ticket.shape,
        text,
        nbytes,
        ticket.access,
        max(time.time() - since, 0.0) if isinstance(since, float) else None,
        ticket.kept,
        answer.pid if ticket.kept else None,
        kind=str(info.get("kind", "array")),
    )


def _info(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
