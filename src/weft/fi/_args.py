"""Argument checks that all calls share: numbers, texts, lists.

The extension checks the arguments of the data path. The functions here refuse an unusable argument by name before the
call has any effect: TypeError for a wrong type, InvalidArgument for a number out of range.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, TypeVar

from .. import errors

U64_MAX = (1 << 64) - 1

_T = TypeVar("_T")


def whole(op: str, /, **numbers: Any) -> None:
    """Check that each argument is a whole number from 0 to 2**64 - 1."""
    for name, value in numbers.items():
        _index(op, name, value, "an int")


def number(op: str, /, **one: Any) -> int:
    """An argument that `whole` accepts, as an int."""
    whole(op, **one)
    ((_, value),) = one.items()
    return int(value)


def maybe(op: str, /, **numbers: Any) -> None:
    """Check that each argument is a whole number from 0 to 2**64 - 1, or None."""
    for name, value in numbers.items():
        if value is not None:
            _index(op, name, value, "an int or None")


def _index(op: str, name: str, value: Any, kind: str) -> None:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{op}: {name} must be {kind}, not {value!r}") from None
    if not 0 <= number <= U64_MAX:
        raise errors.InvalidArgument(f"{op}: {name} is {number}; it has to be 0 to 2**64 - 1")


def command(op: str, /, **one: Any) -> int:
    """The number of a command or value as a C int: -2**31 to 2**31 - 1; unsigned numbers are converted."""
    ((name, value),) = one.items()
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{op}: {name} must be an int, not {value!r}") from None
    if not -(1 << 31) <= number < 1 << 32:
        raise errors.InvalidArgument(f"{op}: {name} is {number}; it has to be a C int")
    return number - (1 << 32) if number >= 1 << 31 else number


def c_int(value: Any) -> int:
    """A number that `whole` has passed, as a C int: the same number of an enumeration, or an unknown one."""
    return min(int(value), (1 << 31) - 1)


def least(op: str, most: int, /, **sizes: Any) -> None:
    """Check that each argument is a queue size: a number from 0 (the provider chooses) to `most`."""
    for name, value in sizes.items():
        try:
            number = operator.index(value)
        except TypeError:
            raise TypeError(f"{op}: {name} must be an int, not {value!r}") from None
        if number < 0:
            raise errors.InvalidArgument(f"{op}: {name} {number} is negative; 0 leaves it to the provider")
        if number > most:
            raise errors.InvalidArgument(f"{op}: {name} {number} is more than the maximum, {most}")


def text(op: str, /, **texts: Any) -> None:
    """Check that each argument is a str or None."""
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{op}: {name} must be a str or None, not {value!r}")


def integer(op: str, /, **numbers: Any) -> None:
    """Check that each argument is a whole number; the caller checks the range."""
    for name, value in numbers.items():
        try:
            operator.index(value)
        except TypeError:
            raise TypeError(f"{op}: {name} must be an int, not {value!r}") from None


def octets(op: str, name: str, value: Any) -> bytes:
    """The bytes of an argument."""
    try:
        return bytes(memoryview(value))
    except TypeError:
        raise TypeError(f"{op}: {name} must be bytes, not {value!r}") from None


def seconds(op: str, /, **times: Any) -> None:
    """Check that each argument is a number of seconds or None."""
    for name, value in times.items():
        if value is None:
            continue
        if not isinstance(value, (int, float)) or value != value:
            raise TypeError(f"{op}: {name} must be a number of seconds or None, not {value!r}")


def each(op: str, name: str, values: Iterable[_T], what: str) -> list[_T]:
    """The entries of an argument that must be a list of `what`."""
    if isinstance(values, (str, bytes)):
        raise TypeError(f"{op}: {name} must be a list of {what}, not {values!r}")
    try:
        return list(values)
    except TypeError:
        raise TypeError(f"{op}: {name} must be a list of {what}, not {values!r}") from None
