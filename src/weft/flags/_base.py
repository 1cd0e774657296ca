"""Classes of flags and of enumerations that print as their public names."""

from __future__ import annotations

import enum
import operator
from typing import Any, TypeVar

__all__ = ["Enum", "Flags", "space", "spaces"]

_F = TypeVar("_F", bound="Flags")


class Flags(enum.IntFlag):
    """IntFlag that prints as an expression of its members, and whose `|` is one dictionary look-up.

    enum's own `|` calls the class on every use. Applications combine flags before every `writemsg`, so the shortcut
    pays.
    """

    def __or__(self: _F, other: int) -> _F:
        cls = self.__class__
        if other.__class__ is not cls and other.__class__ is not int:
            common = _class_of_both(cls, other.__class__)
            if common is None:  # flags of two different fields: a number, not a flag
                return int.__or__(self, other)  # type: ignore[return-value]
            cls = common
        value = int.__or__(self, other)
        member = cls._value2member_map_.get(value)
        return member if member is not None else cls(value)  # type: ignore[return-value]

    __ror__ = __or__

    @classmethod
    def _missing_(cls, value: object) -> Any:
        # A number of another library, as NumPy's, has no `&` and `|` with members that enum could use.
        return super()._missing_(value if isinstance(value, int) else _number(cls, value))

    def __repr__(self) -> str:
        names = _bit_names(self.__class__, int(self))
        return " | ".join(f"fi.{n}" if not n.startswith("0x") else n for n in names) or f"fi.{type(self).__name__}(0)"

    def __str__(self) -> str:
        return "|".join(_bit_names(self.__class__, int(self))) or "0"

    def __format__(self, spec: str) -> str:
        return int.__format__(self, spec) if spec else str(self)


class Enum(enum.IntEnum):
    """IntEnum that prints as its public name."""

    def __repr__(self) -> str:
        return f"fi.{self._name_}"

    def __str__(self) -> str:
        return str(self._name_)

    def __format__(self, spec: str) -> str:
        return int.__format__(self, spec) if spec else str(self)


def _number(cls: type[Any], value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{value!r} is no number, and no {cls.__name__}") from None


def _class_of_both(a: type[Any], b: type[Any]) -> type[Any] | None:
    """Class of `a | b`: the context class if the other is the common space; None if the two cannot be combined."""
    if a in _COMMON and b in _CONTEXTS:
        return b
    if (b in _COMMON and a in _CONTEXTS) or not issubclass(b, Flags):
        return a
    return None


def _bit_names(cls: type[Flags], value: int) -> list[str]:
    names: list[str] = []
    bit = 1
    table = _NAMES.get(cls, {})
    while value:
        if value & bit:
            names.append(table.get(bit) or f"{bit:#x}")
            value &= ~bit
        bit <<= 1
    return names


def _name_table(cls: type[Flags], base: dict[int, str]) -> dict[int, str]:
    table = dict(base)
    own: dict[int, str] = {}
    for name, member in cls.__members__.items():
        own.setdefault(int(member), name)
    table.update(own)
    return table


_NAMES: dict[type[Flags], dict[int, str]] = {}
_COMMON: set[type[Flags]] = set()
_CONTEXTS: set[type[Flags]] = set()


def spaces(common: type[Flags], contexts: tuple[type[Flags], ...]) -> None:
    """Say which class is the common space, and which are contexts that give its high bits another meaning."""
    space(common)
    _COMMON.add(common)
    for cls in contexts:
        space(cls, _NAMES[common])
        _CONTEXTS.add(cls)


def space(cls: type[Flags], base: dict[int, str] | None = None) -> None:
    """Make the names of a class known, over those of `base`."""
    _NAMES[cls] = _name_table(cls, base or {})
    # enum puts its own operators into every subclass that does not define them, over inherited ones: put ours back.
    cls.__or__ = cls.__ror__ = Flags.__or__  # type: ignore[assignment, method-assign]
