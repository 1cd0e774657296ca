"""How arrays are named and shown: in messages, in repr(), in notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..names.ticket import Ticket


def named(ticket: Ticket) -> str:
    return repr(ticket.name) if ticket.name else f"the array of {ticket.shape}"


def short(value: Any) -> str:
    text = str(value) if isinstance(value, np.generic) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def no_attribute(kind: str, name: str) -> str:
    """The text of an AttributeError: how to call a method that only NumPy's arrays have."""
    text = f"{kind!r} object has no attribute {name!r}"
    if not name.startswith("_") and hasattr(np.ndarray, name):
        call = "(...)" if callable(getattr(np.ndarray, name)) else ""
        text += f"\n  try: t.read().{name}{call}, on a copy of all elements"
    return text


def human_bytes(n: int) -> str:
    """Bytes as people write them: 512 B, 1.5 MiB."""
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{n} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def table_html(title: str, rows: list[tuple[str, str]]) -> str:
    """A small table for notebooks."""
    import html  # imported here, because few programs show a table

    body = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left;word-break:break-all'>{html.escape(value)}</td></tr>"
        for name, value in rows
    )
    return f"<table><caption style='text-align:left'><b>{html.escape(title.strip())}</b></caption>{body}</table>"
