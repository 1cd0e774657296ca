"""The end of a `with` block on a handle."""

from __future__ import annotations

from collections.abc import Callable


def leave(handle: object, close: Callable[[], object], error: BaseException | None) -> None:
    """Close a handle. An error of close() never replaces an exception of the block: the error becomes a note on the
    exception."""
    if error is None:
        close()
        return
    try:
        close()
    except Exception as reason:  # a UcsError, or the exception of a callback
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"weft: the `with` block could not close {handle!r}:\n{reason!r}")
