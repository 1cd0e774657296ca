"""What `attach` and `reattach` accept: a name, a ticket, or an object that has a ticket."""

from __future__ import annotations

from typing import Any

from ... import errors
from ..names.server import check_name, inquire, lookup
from ..names.ticket import PREFIX, Ticket
from ..names.waiting import seconds
from .checks import type_name
from .comparing import Comparing

_LOOK_S = 0.2  # for the owner's answer, while an error is explained


def ticket_from(source: Any, wait: Any, call: str) -> Ticket:
    """The ticket. wait: seconds for a name that does not exist yet. Raises TypeError, and as names.lookup."""
    if isinstance(source, Ticket):
        return source
    if isinstance(source, Comparing):  # a RemoteArray or a Shared
        found: Ticket = source.ticket  # type: ignore[attr-defined]
        return found
    if not isinstance(source, str):
        raise TypeError(
            f"{call}: source must be a name, a ticket or the result of share(), not {type_name(source)}: {source!r}"
        )
    if not source.startswith(PREFIX):
        source = lookup(check_name(source, call), seconds(wait, f"{call}: wait"))
    return Ticket.parse(source)


def named_now(ticket: Ticket) -> Ticket | None:
    """The ticket that the name of an attached array leads to now, if it is that of another region. None: the name leads
    nowhere.

    Does not wait for an owner that is stopped.
    """
    if not ticket.name or not ticket.here:
        return None
    same = None
    for answer in inquire(_LOOK_S, ticket.name):
        try:
            found = Ticket.parse(answer.ticket or "")
        except errors.InvalidArgument:
            continue
        if (found.address, found.key) != (ticket.address, ticket.key):
            return found
        same = found
    return same
