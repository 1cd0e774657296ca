"""What all fabric objects share: who holds whom, closing, leaks, fork.

A child holds its parent (`Endpoint` its `Domain`, its queues ...); a parent knows its live children weakly, so that
closing it too early can name them. A handle that is collected without `close()` warns, with the line that made it; the
line costs two attribute loads at creation and is worked out only when it is printed.

These are functions and not a base class: the objects derive from the extension's classes, which admit no second base,
and the path of a data transfer must meet no Python of ours.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterable
from types import CodeType, TracebackType
from typing import Any, Protocol, TypeVar

from .. import _process, errors

__all__ = [
    "Children",
    "Handle",
    "Site",
    "adopt",
    "check",
    "close",
    "elsewhere",
    "enter",
    "exit",
    "finalize",
    "here",
    "live",
    "owned",
    "users_text",
    "where",
]

Site = tuple[CodeType, int]
Children = dict[int, "weakref.ReferenceType[Any]"]


class Handle(Protocol):
    """The attributes that the functions below use."""

    _closed: bool
    _site: Site | None

    @property
    def _made_in(self) -> int:
        """`_process.generation` at creation."""
        ...

    def close(self) -> None: ...


class Closable(Protocol):
    """What `exit` needs."""

    def close(self) -> None: ...


class Parent(Protocol):
    @property
    def _children(self) -> Children: ...


_H = TypeVar("_H", bound=Handle)


def here(depth: int) -> Site:
    """The place in the caller's caller ... that makes a handle."""
    frame = sys._getframe(depth)
    return frame.f_code, frame.f_lasti


def where(site: Site | None) -> str:
    """`file:line` of a site."""
    if site is None:
        return "unknown"
    code, at = site
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= at < end and number is not None:
            line = number
    return f"{code.co_filename}:{line}"


def adopt(child: Any, *parents: Parent) -> None:
    """Let the parents know of a child, weakly."""
    ref = weakref.ref(child)
    for parent in parents:
        parent._children[id(child)] = ref


def abandon(child: Any, parents: Iterable[Parent]) -> None:
    """The reverse of `adopt`."""
    for parent in parents:
        parent._children.pop(id(child), None)


def live(children: Children) -> list[Any]:
    """The open handles among the children."""
    found = []
    for ref in list(children.values()):
        child = ref()
        if child is not None and not child._closed:
            found.append(child)
    return found


def check(handle: Handle, op: str) -> None:
    """Refuse to use a handle that was closed, or that belongs to the process before a fork."""
    if handle._closed:
        raise errors.BadState(f"{op}: {handle!r} is closed", op=op)
    if handle._made_in != _process.generation:
        raise errors.BadState(
            f"{op}: {handle!r} belongs to the process that forked this one\n"
            "  rule: a NIC and everything on it stay with the process that opened them\n"
            "  try: open a Fabric of its own in the child, or start the child with spawn",
            op=op,
        )


def expect(value: object, cls: type[Any], op: str, name: str) -> None:
    """Refuse an argument that is not of the class of weft.fi that the call needs."""
    if not isinstance(value, cls):
        raise TypeError(f"{op}: {name} must be an fi.{cls.__name__}, not {value!r}")


def elsewhere(handle: Handle) -> bool:
    """True for a handle of the process that forked this one: nothing of it can be looked at."""
    return handle._made_in != _process.generation


def close(handle: Handle, core_close: Callable[[], None] | None, children: Children, parents: Iterable[Parent]) -> None:
    """Close a handle: nothing the second time; Busy, naming them, while others still use it."""
    if handle._closed:
        return
    if handle._made_in != _process.generation:
        handle._closed = True  # a forked copy: the original is not ours to close
        return
    users = live(children)
    if users:
        raise busy(handle, users)
    if core_close is not None:
        core_close()
    handle._closed = True
    abandon(handle, parents)


def busy(handle: object, users: list[Any]) -> errors.Busy:
    """The Busy that names who still uses a handle."""
    return errors.Busy(users_text(handle, users), op="close")


def users_text(handle: object, users: list[Any]) -> str:
    """Why a handle cannot be closed: who still uses it, and where they were made."""
    shown = "\n".join(f"  {u!r}, made at {where(u._site)}" for u in users[:10])
    more = f"\n  and {len(users) - 10} more" if len(users) > 10 else ""
    return f"close of {handle!r}: still used by\n{shown}{more}\n  close those first"


def finalize(handle: Handle, core_close: Callable[[], None] | None, parents: Iterable[Parent]) -> None:
    """`__del__`: warn of a handle that nobody closed, and release it."""
    # At the end of the interpreter nothing can be imported or warned of any more; what is open ends with the process.
    if sys.is_finalizing() or handle._closed or handle._site is None or handle._made_in != _process.generation:
        return
    try:
        warnings.warn(
            f"{handle!r} was never closed; made at {where(handle._site)}", ResourceWarning, source=handle, stacklevel=2
        )
    finally:
        handle._closed = True
        abandon(handle, parents)
        if core_close is not None:
            core_close()


def owned(*handles: Handle) -> None:
    """Handles inside an object that closes them, also when it is collected: they do not warn for themselves."""
    for handle in handles:
        handle._site = None


def enter(handle: _H) -> _H:
    """`__enter__`."""
    check(handle, "with")
    return handle


def exit(
    handle: Closable, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None:
    """`__exit__`: close. What the block raised is never hidden behind what close() says then (Busy, because the block
    had no time to close what it made): that becomes a note of it, and the handle stays open."""
    if error is None:
        handle.close()
        return
    try:
        handle.close()
    except errors.FabricError as reason:
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"weft: the `with` block could not close {handle!r}:\n{reason}")
