"""What the pass-through objects share: their place among `weft.fi`'s classes, and calls that they do not have.

The objects have classes of their own, because their data path is another type of the extension. `stands_for` makes them
instances of Weft's class for `isinstance()`, by `__class__`; `type()` tells the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ... import errors
from ...fi import _args, _handle
from ...flags import Control, Errno, WaitObj

__all__ = ["Real", "Waits", "later", "stands_for", "unless_used", "with_wait_object"]

_T = TypeVar("_T", bound=type)
_NO_WAIT = (int(Errno.ENOSYS), int(Errno.EOPNOTSUPP), int(Errno.EINVAL))


class Real(_handle.LifeInDomain):
    """An object of the library: open or closed, with parents and children."""

    _called = ""
    _children: _handle.Children
    domain: Any


class Waits:
    """The descriptor of a queue or counter."""

    _fd = -1
    wait_obj: WaitObj
    _closed: bool
    fd_core: Callable[[], int]

    @property
    def fd(self) -> int:
        """A descriptor that is readable when there is something to read (wait_obj=fi.WAIT_FD); else -1.

        Call trywait() before each sleep on it: the library makes progress there. Source: fi_poll(3) fi_trywait.
        """
        if self._fd < 0 and self.wait_obj == WaitObj.WAIT_FD and not self._closed:
            self._fd = self.fd_core()
        return self._fd if not self._closed else -1

    def control(self, command: int, arg: Any = None) -> Any:
        """GETWAIT and GETWAITOBJ (fi_control). Raises NotSupported for other commands."""
        fid: Any = self
        op = f"{fid._called}.control"
        _handle.check(fid, op)
        number = _args.command(op, command=command)
        if number == Control.GETWAITOBJ:
            return self.wait_obj
        if number == Control.GETWAIT:
            if self.fd < 0:
                raise errors.NotSupported(
                    f"{op}: opened with {self.wait_obj!s}, no descriptor\n  try: wait_obj=fi.WAIT_FD"
                )
            return self.fd
        raise errors.NotSupported(f"{op}: command {number} is not passed through", op=op)


def stands_for(real: Callable[[], type]) -> Any:
    """The property `__class__` of a class whose objects pass isinstance() for a class of weft.fi.

    Args:
        real: Returns that class; called when isinstance() asks, so that it is imported then.
    """
    return property(lambda self: real())


def unless_used(core: Any, close: Callable[[], None]) -> Callable[[], None] | None:
    """close() of a forgotten object; None while another object of the library uses it. If a garbage collection
    finalizes the user later, the extension then closes both.
    """
    return None if core.in_use else close


def later(reason: str, *names: str) -> Callable[[_T], _T]:
    """Calls of Weft's class that the decorated one refuses with NotSupported."""

    def decorate(cls: _T) -> _T:
        for name in names:
            setattr(cls, name, _refusing(name, reason))
        return cls

    return decorate


def _refusing(name: str, reason: str) -> Any:
    def call(self: Any, *args: object, **more: object) -> Any:
        op = f"{self._called}.{name}"
        _handle.check(self, op)
        raise errors.NotSupported(f"{op}: {reason}", op=op)

    call.__name__ = name
    call.__doc__ = f"Not through a real libfabric: raises NotSupported ({reason})."
    return call


def with_wait_object(asked: int, make: Callable[[int], None], last: WaitObj = WaitObj.WAIT_NONE) -> bool:
    """Open with the wait object that was asked for, or one that does the same.

    The library's own choice may be FI_WAIT_YIELD, which disregards the limit of a wait (Quirk.YIELD_HAS_NO_LIMIT). Weft
    yields itself there, and WAIT_UNSPEC is a descriptor where the provider has one.

    Args:
        last: Opened for WAIT_UNSPEC where the provider has no descriptor.

    Returns:
        True if the library has a wait object of its own there, so that fi_trywait may be called.
    """
    kinds = {
        int(WaitObj.WAIT_UNSPEC): (int(WaitObj.WAIT_FD), int(last)),
        int(WaitObj.WAIT_YIELD): (int(WaitObj.WAIT_NONE),),
    }.get(asked, (asked,))
    for kind in kinds[:-1]:
        try:
            make(kind)
            return True
        except errors.FabricError as reason:
            if reason.errno not in _NO_WAIT:
                raise
    make(kinds[-1])
    return kinds[-1] != WaitObj.WAIT_NONE


def trywait(op: str, core: Any, fids: Iterable[Any]) -> bool:
    """fi_trywait: True if it is safe to sleep on the descriptors of these open objects.

    Raises InvalidArgument for an object without a wait object: the library would end the process.
    """
    each = list(fids)
    for fid in each:
        if not fid._has_wait:
            raise errors.InvalidArgument(f"{op}: {fid!r} has no wait object\n  try: wait_obj=fi.WAIT_FD", op=op)
    return bool(core.trywait([fid.fid for fid in each]))
