"""Numbers among the arguments of an application."""

from __future__ import annotations

import operator


def number(value: object) -> int | None:
    """A whole number, of Python or of another library; None for anything else."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
