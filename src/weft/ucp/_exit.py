"""The end of a `with` block on a handle."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["leave"]


def leave(handle: object, close: Callable[[], object], error: BaseException | None) -> None:
    """Close a handle. What the block raised is never hidden behind what close() raises then: that becomes a note of
    it."""
    if error is None:
        close()
        return
    try:
        close()
    except Exception as reason:  # a UcsError, or what a callback raised
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"weft: the `with` block could not close {handle!r}:\n{reason!r}")
