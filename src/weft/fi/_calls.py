"""The data-path calls of endpoints by kind. Source: cpp/bind/calls.inl, their table."""

from __future__ import annotations

from typing import NamedTuple

from .. import _nic


class Call(NamedTuple):
    """A call of endpoints: a row of the table.

    Attributes:
        name: As `fi.Endpoint` has it.
        table: rma, batch, atomic, msg, tagged or collective.
        form: one (buffer), inject, list, or message (struct).
        kind: read or write; base, fetch or compare; send or recv; or the collective.
        params: Names in order, each with "!" if it is necessary.
    """

    name: str
    table: str
    form: str
    kind: str
    params: tuple[str, ...]


CALLS = [
    Call(name, table, form, kind, tuple(params.replace("|", " ").split()))
    for name, table, form, kind, params in _nic.calls()
]
