"""Handles that end with a `with` block."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from . import errors

T = TypeVar("T")


class With:
    """Base of a handle that a `with` block closes."""

    __slots__ = ()

    def _leave(self: Any) -> None:
        """End the handle, after its block."""
        self.close()

    def __enter__(self: T) -> T:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the handle. An error of that never replaces an exception from the block, for example Busy because the
        block left other handles open: the error becomes a note on the exception, and the handle stays open."""
        if error is None:
            self._leave()
            return
        try:
            self._leave()
        except Exception as reason:  # also the exception of a callback
            if hasattr(error, "add_note"):  # Python 3.11
                why = reason if isinstance(reason, errors.FabricError) else repr(reason)
                error.add_note(f"weft: the `with` block could not close {self!r}:\n{why}")


class Closable(With):
    """A handle that close() ends, once."""

    __slots__ = ()
    if TYPE_CHECKING:
        _closed: bool

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed
