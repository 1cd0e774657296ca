"""Environment variables of the CXI provider: kinds of values, bounds, and replacements of invalid texts.

An invalid text or a number out of bounds is never an error: another value is used, and `Found.note` has the value and
the reason. Source: fi_cxi(7) "RUNTIME PARAMETERS".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast, overload

__all__ = [
    "Count",
    "Environment",
    "Flag",
    "Found",
    "Names",
    "Present",
    "Text",
    "Variable",
    "Words",
    "shown",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Wrong(ValueError):
    """An invalid text, which the default replaces."""


class Kind(Protocol[T_co]):
    """Converts a text to a value and a note, which is "" if the value is exactly the text's. Raises Wrong."""

    @property
    def values(self) -> str: ...

    def __call__(self, text: str) -> tuple[T_co, str]: ...


class Flag:
    """0 or 1, or one of libfabric's words for them."""

    values = "0, 1 (no, yes, false, true, off, on)"

    def __call__(self, text: str) -> tuple[bool, str]:
        word = text.lower()
        if word in ("1", "yes", "true", "on"):
            return True, ""
        if word in ("0", "no", "false", "off"):
            return False, ""
        raise Wrong("is neither 0 nor 1")


@dataclass(frozen=True)
class Count:
    """An integer from `least` to `most`. Outside, `below` or `above` is used, or the default if that is None."""

    least: int = 0
    most: int = (1 << 64) - 1
    below: int | None = None
    above: int | None = None
    unit: str = ""

    @property
    def values(self) -> str:
        upto = "" if self.most >= (1 << 31) - 1 else f" to {self.most}"
        start = "any" if self.least < -(1 << 30) else f"from {self.least}"
        return f"a whole number, {start}{upto}" + (f", {self.unit}" if self.unit else "")

    def __call__(self, text: str) -> tuple[int, str]:
        if not re.fullmatch(r"[-+]?(0[xX][0-9a-fA-F]+|[0-9]+)", text.strip(), re.ASCII):
            raise Wrong("is no whole number")
        digits = text.strip().lower()
        value = int(digits, 16 if "x" in digits else 10)
        if value < self.least:
            return self._instead(self.below, f"is less than {self.least}")
        if value > self.most:
            return self._instead(self.above, f"is more than {self.most}")
        return value, ""

    @staticmethod
    def _instead(value: int | None, why: str) -> tuple[int, str]:
        if value is None:
            raise Wrong(why)
        return value, why


class Words:
    """One of several words; `loose`: in any case. A dash equals an underscore."""

    def __init__(self, *words: str, loose: tuple[str, ...] = ()) -> None:
        self.words, self.loose = words, loose
        self.values = ", ".join(words)

    def __call__(self, text: str) -> tuple[str, str]:
        word = text.strip().replace("-", "_")
        if word.lower() in self.loose:
            word = word.lower()
        if word not in self.words:
            raise Wrong(f"is none of {self.values}")
        return word, ""


class Names:
    """A list of names, joined by commas. A name that does not match `each` makes the whole list invalid."""

    def __init__(self, values: str, each: str = r"[^,\s]+") -> None:
        self.values = values
        self._each = re.compile(each, re.ASCII)

    def __call__(self, text: str) -> tuple[tuple[str, ...], str]:
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        for name in names:
            if not self._each.fullmatch(name):
                raise Wrong(f"has {name!r}, so that the whole list is ignored")
        return names, ""


class Text:
    """Any text, or one that matches `pattern`."""

    def __init__(self, values: str, pattern: str = r"(?s:.*)", kind: Callable[[str], str] = str) -> None:
        self.values = values
        self._pattern, self._kind = re.compile(pattern), kind

    def __call__(self, text: str) -> tuple[str, str]:
        if not self._pattern.fullmatch(text):
            raise Wrong("does not match")
        return self._kind(text), ""


class Present:
    """True if the variable is set, to any value."""

    values = "set, or not set"

    def __call__(self, text: str) -> tuple[bool, str]:
        return True, ""


class Found(NamedTuple):
    """The result for a variable: its value, "environment" or "default", and what was wrong with the text, or ""."""

    value: Any
    origin: str
    note: str = ""


@dataclass(frozen=True)
class Variable(Generic[T]):
    """A variable, and an attribute of `Environment` that has its value.

    name      in the environment.        also     an older name, used if the first is not set.
    default   of the documented releases.  current   of later releases, if different.
    only      "doc" or "current": other releases do not know the variable. "": all know it.
    effect    the effect in Weft if it differs from the meaning: mostly "none", and why. "": works as documented.
    """

    name: str
    kind: Kind[T]
    default: T
    meaning: str
    effect: str = ""
    current: T | None = None
    also: str = ""
    only: str = ""

    def default_of(self, release: str) -> T:
        """The default in a release."""
        return self.current if release == "current" and self.current is not None else self.default

    def read(self, environ: Mapping[str, str], release: str) -> Found:
        """The value, with the reason if it differs from the text."""
        default = self.default_of(release)
        name = next((name for name in (self.name, self.also) if name and name in environ), None)
        if name is None or (self.only and self.only != release):
            return Found(default, "default")
        text = environ[name]
        try:
            value, note = self.kind(text)
        except Wrong as reason:
            return Found(default, "default", f"{name}={text!r} {reason}: {shown(default)} is used")
        return Found(value, "environment", f"{name}={text!r} {note}: {shown(value)} is used" if note else "")

    @overload
    def __get__(self, e: None, owner: type[Environment]) -> Variable[T]: ...
    @overload
    def __get__(self, e: Environment, owner: type[Environment]) -> T: ...
    def __get__(self, e: Environment | None, owner: type[Environment]) -> Variable[T] | T:
        return self if e is None else cast(T, e.all[self.name].value)


class Environment:
    """Values of the variables that a subclass lists, read when it is made. `all`: name of a variable -> Found."""

    def __init__(self, environ: Mapping[str, str], release: str) -> None:
        self.release = release
        self.all: dict[str, Found] = {v.name: v.read(environ, release) for v in self.variables(release)}
        self._depend()

    def _depend(self) -> None:
        """Apply rules between variables; for subclasses."""

    def instead(self, variable: Variable[T], value: T, why: str) -> None:
        """Replace a value and set the reason; if the default had replaced an invalid text, keep that reason."""
        was = self.all[variable.name]
        if was.origin == "environment":
            note = f"{variable.name}: {shown(was.value)} {why}: {shown(value)} is used"
        else:
            note = was.note.replace(f": {shown(was.value)} is used", f": {shown(value)} is used")
        self.all[variable.name] = Found(value, was.origin, note)

    def found(self, attribute: str) -> Found:
        """The result for the variable of an attribute, as in `found("rdzv_threshold")`."""
        return self.all[getattr(type(self), attribute).name]

    @classmethod
    def variables(cls, release: str | None = None) -> list[Variable[Any]]:
        """The variables that a release knows; all of them for None. In the order of the list."""
        every = (v for v in vars(cls).values() if isinstance(v, Variable))
        return [v for v in every if release is None or not v.only or v.only == release]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={f.value!r}' for name, f in self.all.items())})"


def shown(value: Any) -> str:
    """The text of a value for people."""
    if value is None or value == () or value == "":
        return "nothing"
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(value) if isinstance(value, tuple) else str(value)
