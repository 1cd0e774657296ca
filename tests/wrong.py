"""Values that no call can use, and the form of texts from the interpreter or the binding instead of Weft."""

from __future__ import annotations

import re
from typing import Any


class Wrong:
    """An object that has no protocol of any kind."""

    def __repr__(self) -> str:
        return "<Wrong>"


VALUES: dict[str, Any] = {
    "None": None,
    "text": "weft://0/1/7",
    "minus one": -1,
    "2**40": 1 << 40,
    "2**70": 1 << 70,
    "float": 1.5,
    "object": Wrong(),
    "list": [Wrong()],
}
# Texts of the interpreter or the binding.
FOREIGN = re.compile(
    r"incompatible function arguments|unsupported operand|object has no attribute|cannot be interpreted|not iterable|"
    r"can't convert|too large to convert|is not a valid |not subscriptable|not supported between|has no len|"
    r"a bytes-like object is required|std::|bad cast|nanobind|expected .* argument"
)
