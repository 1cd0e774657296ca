"""Kinds of values of the CXI provider's environment variables, with the bounds and replacements of the real provider.

An invalid text or a number out of bounds is never an error: weft.settings uses another value, and notes the reason.
Source: fi_cxi(7) "RUNTIME PARAMETERS".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ... import settings
from ...settings import Instead


class Flag:
    """0 or 1, or one of libfabric's words for them."""

    values = "0, 1 (no, yes, false, true, off, on)"

    def __call__(self, text: str) -> bool:
        word = text.lower()
        if word in ("1", "yes", "true", "on"):
            return True
        if word in ("0", "no", "false", "off"):
            return False
        raise ValueError("is neither 0 nor 1")


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

    def __call__(self, text: str) -> int:
        if not re.fullmatch(r"[-+]?(0[xX][0-9a-fA-F]+|[0-9]+)", text.strip(), re.ASCII):
            raise ValueError("is no whole number")
        digits = text.strip().lower()
        value = int(digits, 16 if "x" in digits else 10)
        if value < self.least:
            raise self._outside(self.below, f"is less than {self.least}")
        if value > self.most:
            raise self._outside(self.above, f"is more than {self.most}")
        return value

    @staticmethod
    def _outside(value: int | None, why: str) -> ValueError:
        return ValueError(why) if value is None else Instead(value, why)


class Words(settings.Words):
    """One of several words; `loose`: in any case. A dash equals an underscore."""

    def __init__(self, *words: str, loose: tuple[str, ...] = ()) -> None:
        super().__init__(*words)
        self.loose = loose

    def __call__(self, text: str) -> str:
        word = text.strip().replace("-", "_")
        if word.lower() in self.loose:
            word = word.lower()
        if word not in self.words:
            raise ValueError(f"is none of {self.values}")
        return word


class Names:
    """A list of names, joined by commas. A name that does not match `each` makes the whole list invalid."""

    def __init__(self, values: str, each: str = r"[^,\s]+") -> None:
        self.values = values
        self._each = re.compile(each, re.ASCII)

    def __call__(self, text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        for name in names:
            if not self._each.fullmatch(name):
                raise ValueError(f"has {name!r}, so that the whole list is ignored")
        return names


class Present:
    """True if the variable is set, to any value."""

    values = "set, or not set"

    def __call__(self, text: str) -> bool:
        return True
