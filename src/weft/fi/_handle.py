"""What all fabric objects share: parents and children, closing, leak warnings, fork.

A child holds a reference to its parents (an `Endpoint` to its `Domain` and queues). A parent has weak references to its
live children, so that `close` of a parent in use can name them. A handle that is collected without `close()` warns and
names the line that made it: creation records two attributes, and the line is computed only when it is printed.

`Life` is the base class that all classes have beside the extension's class. The rest are functions, because the
extension keeps the state of regions, and a data transfer must run no Python code of Weft.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterable
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from .. import _process, errors
from .._with import Closable
from . import _args

if TYPE_CHECKING:
    from .domain import Domain

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


class Parent(Protocol):
    @property
    def _children(self) -> Children: ...


_L = TypeVar("_L", bound="Life")


def no_copies(handle: object) -> NoReturn:
    """What copy and pickle of a handle raise."""
    raise TypeError(
        f"{type(handle).__name__}: the object belongs to its process and cannot be copied or pickled\n"
        "  try: send what names it (an endpoint's address, a region's key), and open another in the other process"
    )


def here(depth: int) -> Site:
    """The code position that makes a handle, `depth` frames up."""
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
    """Enter a child in its parents, as a weak reference."""
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


def check(handle: Handle, op: str, /, **numbers: Any) -> None:
    """Refuse a handle that was closed, or that was made before a fork; then arguments that are not whole numbers, as
    `_args.whole` does."""
    if handle._closed:
        raise errors.BadState(f"{op}: {handle!r} is closed")
    if handle._made_in != _process.generation:
        raise errors.BadState(
            f"{op}: {handle!r} belongs to the process that forked this one\n"
            "  rule: a NIC and everything on it stay with the process that opened them\n"
            "  try: open a new Fabric in the child, or start the child with spawn"
        )
    if numbers:
        _args.whole(op, **numbers)


def expect(value: object, cls: type[Any], op: str, name: str) -> None:
    """Refuse an argument that is not an instance of the class of weft.fi that the call needs."""
    if not isinstance(value, cls):
        raise TypeError(f"{op}: {name} must be an fi.{cls.__name__}, not {value!r}")


def elsewhere(handle: Handle) -> bool:
    """True for a handle made before a fork: the object in the NIC cannot be inspected from this process."""
    return handle._made_in != _process.generation


def close(handle: Handle, core_close: Callable[[], None], children: Children, parents: Iterable[Parent]) -> None:
    """Close a handle. Closing again has no effect; raises Busy, which names the users, while the handle is in use."""
    if handle._closed:
        return
    if handle._made_in != _process.generation:
        handle._closed = True  # a forked copy: only the parent process closes the original
        return
    users = live(children)
    if users:
        raise busy(handle, users)
    core_close()
    handle._closed = True
    abandon(handle, parents)


def busy(handle: object, users: list[Any]) -> errors.Busy:
    """The Busy error that names the users of a handle."""
    return errors.Busy(users_text(handle, users), op="close")


def users_text(handle: object, users: list[Any]) -> str:
    """Why a handle cannot be closed: its users, and the lines that made them."""
    shown = "\n".join(f"  {u!r}, made at {where(u._site)}" for u in users[:10])
    more = f"\n  and {len(users) - 10} more" if len(users) > 10 else ""
    return f"close of {handle!r}: still used by\n{shown}{more}\n  close those first"


def finalize(handle: Handle, core_close: Callable[[], None], parents: Iterable[Parent]) -> None:
    """`__del__`: warn about a handle that was never closed, and release it.

    `Life` takes this function as a default argument, because without a GIL the interpreter clears a module's names
    before it ends the last handles; so `sys` may be None here.
    """
    # While the interpreter ends, imports and warnings no longer work; open objects end with the process.
    if handle._closed or handle._site is None or sys is None or sys.is_finalizing():  # type: ignore[redundant-expr]
        return
    if handle._made_in != _process.generation:
        return
    try:
        warnings.warn(
            f"{handle!r} was never closed; made at {where(handle._site)}", ResourceWarning, source=handle, stacklevel=2
        )
    finally:
        handle._closed = True
        abandon(handle, parents)
        # The last user of an object of a real libfabric closes the object, in the extension.
        if not getattr(handle, "in_use", False):
            core_close()


def owned(*handles: Handle) -> None:
    """Silence the leak warnings of handles whose owner closes them, also when the owner is collected."""
    for handle in handles:
        handle._site = None


class Life(Closable):
    """Whether a handle is open, where it was made, its end, and `with`. A handle has no copies."""

    __slots__ = ()
    _closed = False
    _site: Site | None = None
    _children: Children

    def _opened(self: Any, depth: int, *parents: Parent) -> None:
        """The last step of __init__: from here on close() has an effect, and a handle that is never closed warns.

        Args:
            depth: Frames between the caller and the application's line.
        """
        self._site = here(depth + 1)
        self._children = {}
        adopt(self, *parents)

    def _parents(self) -> Iterable[Parent]:
        """The objects that cannot be closed before this one."""
        return ()

    def _release(self) -> None:
        """Free what the extension and the policy hold for the handle."""

    def close(self) -> None:
        """Close the object (fi_close): what nobody has read from it is lost. Raises Busy, which names the users, while
        other objects use it."""
        close(self, self._release, self._children, self._parents())  # type: ignore[arg-type]

    def __del__(self, finalize: Callable[[Any, Callable[[], None], Iterable[Parent]], None] = finalize) -> None:
        if not self._closed and self._site is not None:
            finalize(self, self._release, self._parents())

    def __reduce__(self) -> NoReturn:
        no_copies(self)

    def __enter__(self: _L) -> _L:
        check(self, "with")  # type: ignore[arg-type]  # each class has its own _made_in
        return self


class LifeInDomain(Life):
    """`Life` of a domain's child; the child was made in the same process as the domain."""

    __slots__ = ()
    if TYPE_CHECKING:
        domain: Domain

    def _parents(self) -> Iterable[Parent]:
        return (self.domain,)

    @property
    def _made_in(self) -> int:
        return self.domain._made_in
