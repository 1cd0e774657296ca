"""Tickets come from anywhere: a ticket that no share made is refused before it has any effect."""

from __future__ import annotations

import base64
import dataclasses
import json
import pickle
from typing import Any

import pytest

import weft
from weft import errors
from weft.share import Ticket
from weft.share.names.ticket import PREFIX

# A field of a ticket, and an invalid value.
SENSELESS: list[tuple[str, Any]] = [
    ("shape", (-1, 3)),
    ("shape", (2, -3)),
    ("shape", (-2, -3)),
    ("shape", (1 << 40, 1 << 40)),
    ("key", -1),
    ("key", 1 << 64),
    ("key", None),
    ("base", -8),
    ("base", 1 << 64),
    ("access", "x"),
    ("access", ""),
    ("dtype", "'O'"),
    ("dtype", "[('a', 'O')]"),
    ("dtype", "'nonsense'"),
    ("dtype", "__import__('os')"),
    ("dtype", "ml:nonsense"),
    ("pid", -1),
    ("start", 1 << 64),
    ("kept", "yes"),
    ("kept", 1),
]


@pytest.fixture
def ticket(node: weft.Node) -> Ticket:
    return node.share(weft.zeros((2, 3))).ticket


def as_text(ticket: Ticket) -> str:
    """The form of str(ticket), with any fields."""
    fields = [1, *dataclasses.astuple(ticket)]
    return PREFIX + base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()


def test_ticket_text_is_read_back(ticket: Ticket) -> None:
    assert Ticket.parse(str(ticket)) == ticket
    assert Ticket.parse(as_text(ticket)) == ticket


@pytest.mark.parametrize(("field", "value"), SENSELESS)
def test_ticket_with_a_senseless_field_is_refused(node: weft.Node, ticket: Ticket, field: str, value: Any) -> None:
    bad = dataclasses.replace(ticket, **{field: value})
    for use in (
        lambda: Ticket.parse(as_text(bad)),
        lambda: node.attach(as_text(bad)),
        lambda: node.attach(bad),
        lambda: node.attach(pickle.loads(pickle.dumps(bad))),
    ):
        with pytest.raises(errors.InvalidArgument, match="attach: "):
            use()


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", 5), ("address", None), ("shape", ("2", 3)), ("shape", 3), ("pid", 1.5), ("direct", None)],
)
def test_ticket_with_a_field_of_another_type_is_refused(
    node: weft.Node, ticket: Ticket, field: str, value: Any
) -> None:
    with pytest.raises(errors.InvalidArgument, match="has invalid fields"):
        node.attach(dataclasses.replace(ticket, **{field: value}))


@pytest.mark.parametrize("fields", ["[]", "{}", "7", "[1, 2, 3]", "[2" + ", 0" * 11 + "]", "[" * 100_000])
def test_ticket_text_of_something_else_is_refused(fields: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="is no ticket"):
        Ticket.parse(PREFIX + base64.urlsafe_b64encode(fields.encode()).decode())


def test_ticket_pickles_and_is_of_one_version(ticket: Ticket) -> None:
    assert pickle.loads(pickle.dumps(ticket)) == ticket
    rebuild, (version, *fields) = ticket.__reduce__()
    assert rebuild(version, *fields) == ticket
    with pytest.raises(errors.InvalidArgument, match=f"of version {version + 1}, this Weft reads version {version}"):
        rebuild(version + 1, *fields, "a field of later")


def test_ticket_text_with_infinite_numbers_is_refused(ticket: Ticket) -> None:
    text = as_text(dataclasses.replace(ticket, base=float("inf")))  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument, match="is no ticket"):
        Ticket.parse(text)


@pytest.mark.parametrize("address", ["", "nonsense", "weft://0/1", "weft://0/1/99999999999", "weft://host:port/0/1/2"])
def test_ticket_of_no_address_leaves_the_node_usable(node: weft.Node, ticket: Ticket, address: str) -> None:
    """The ticket is refused before the node counts its owner, so later attaches and new threads still work."""
    bad = dataclasses.replace(ticket, address=address)
    for _ in range(2):
        with pytest.raises(errors.FabricError):
            node.attach(bad)
    remote = node.attach(ticket)
    remote[0, 0] = 3
    lane = node._idle.pop()  # as another thread that is just using it
    assert remote[0, 0] == 3
    node._idle.append(lane)
    with weft.open() as other:
        assert other.attach(ticket)[0, 0] == 3
