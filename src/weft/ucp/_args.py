"""Checks of arguments and struct fields that the control calls share.

The extension checks the arguments of operations. The functions here refuse an unusable argument by name before the
call has any effect: TypeError for a wrong type, UcsError (INVALID_PARAM) for a number out of range.
"""

from __future__ import annotations

import operator
from typing import Any

from .status import invalid


def integer(op: str, /, **numbers: Any) -> None:
    """Check that each argument is a whole number, or None (not given). The caller checks the range."""
    for name, value in numbers.items():
        if value is not None:
            _index(op, name, value)


def needed(op: str, /, **numbers: Any) -> None:
    """Check that each argument is a whole number."""
    for name, value in numbers.items():
        _index(op, name, value)


def whole(op: str, /, **numbers: Any) -> None:
    """Check that each argument is a whole number from 0 to 2**64 - 1, or None (not given)."""
    for name, value in numbers.items():
        if value is not None and not 0 <= _index(op, name, value) < 1 << 64:
            raise invalid(f"{op}: {name} is {value}; it has to be 0 to 2**64 - 1")


def _index(op: str, name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{op}: {name} must be an int, not {value!r:.60}") from None


def text(op: str, /, **texts: Any) -> None:
    """Check that each argument is a str."""
    for name, value in texts.items():
        if not isinstance(value, str):
            raise TypeError(f"{op}: {name} must be a str, not {value!r:.60}")


def function(op: str, name: str, value: Any) -> None:
    """Check that the argument is callable, or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{op}: {name} must be a function or None, not {value!r:.60}")


def expect(op: str, name: str, value: Any, *classes: type[Any]) -> None:
    """Check that the argument has one of these classes of weft.ucp, and that its field mask is a whole number."""
    if not isinstance(value, classes):
        names = " or ".join(f"ucp.{cls.__name__}" for cls in classes)
        raise TypeError(f"{op}: {name} must be a {names}, not {value!r:.60}")
    if hasattr(value, "field_mask"):
        needed(op, field_mask=value.field_mask)
        whole(op, field_mask=value.field_mask)
