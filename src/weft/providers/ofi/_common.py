"""What the pass-through objects share: their place among `weft.fi`'s classes, and calls that they do not have.

The objects have classes of their own, because their data path is another type of the extension. `stands_for` makes them
instances of Weft's class for `isinstance()`, by `__class__`; `type()` tells the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, TypeVar

from ... import errors
from ...fi import _handle

_T = TypeVar("_T", bound=type)


def stands_for(name: str) -> Any:
    """The property `__class__` of a class whose objects pass isinstance() for a class of weft.fi.

    Args:
        name: "av.AddressVector": of weft.fi, imported when isinstance() asks.
    """
    module, _, cls = name.partition(".")
    return property(lambda self: getattr(import_module(f"weft.fi.{module}"), cls))


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
        raise errors.NotSupported(f"{op}: {reason}")

    call.__name__ = name
    call.__doc__ = f"Not through a real libfabric: raises NotSupported ({reason})."
    return call


def trywait(op: str, core: Any, fids: Iterable[Any]) -> bool:
    """fi_trywait: True if it is safe to sleep on the descriptors of these open objects.

    Raises InvalidArgument for an object without a wait object: the library would end the process.
    """
    each = list(fids)
    for fid in each:
        if not fid._has_wait:
            raise errors.InvalidArgument(f"{op}: {fid!r} has no wait object\n  try: wait_obj=fi.WAIT_FD")
    return bool(core.trywait([fid.fid for fid in each]))
