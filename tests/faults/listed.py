"""The list of seeded faults: the files beside this module, one for each room.

A fault is a piece of text in one source file and the text that replaces it, with the tests of which at least one must
fail then: nodes of pytest, or, of a fault in C++, files of Boost.Test, or one case: "tests/cpp/test_rx.cpp::rx/test_x".
A fault in cpp/provider may name tests of C programs instead (tests/provider), which are pytest's.
`survives` holds the reason where no test can notice the fault.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
_KEYS = {"file", "before", "after", "tests", "survives"}


@dataclass(frozen=True)
class Fault:
    """A seeded fault: `before` becomes `after` in `file`, and one of `tests` fails."""

    room: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    survives: str = ""

    @property
    def compiled(self) -> bool:
        """The fault is in C++."""
        return self.file.startswith("cpp/")

    @property
    def of_c_programs(self) -> bool:
        """The fault is in the library that C programs load, and C programs are its tests."""
        return self.file.startswith("cpp/provider/") and self.tests[0].startswith("tests/provider/")

    def __str__(self) -> str:
        before, after = (text.strip().partition("\n")[0] for text in (self.before, self.after))
        return f"{self.file}: {before[:70]} -> {after[:50] or '(nothing)'}"

    def trouble(self, root: Path = ROOT) -> str:
        """The entry's rot; "" if there is none."""
        file = root / self.file
        if not file.is_file():
            return f"{self}: no such file"
        found = file.read_text(encoding="utf-8").count(self.before)
        if found != 1:
            return f"{self}: the text before was found {found} times, not once"
        if self.before == self.after:
            return f"{self}: the text after is the text before"
        if not self.tests:
            return f"{self}: no tests are named"
        for test in self.tests:
            path, *names = test.split("[")[0].split("::")
            place = "tests/provider/" if self.of_c_programs else "tests/cpp/"
            if self.compiled != path.startswith(place):
                return f"{self}: {test} tests another language"
            if not _has(root / path, names):
                return f"{self}: no test {test}"
        return ""

    def seeded(self, text: str) -> str:
        """The file's text with the fault."""
        return text.replace(self.before, self.after, 1)


def _has(path: Path, names: list[str]) -> bool:
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".cpp":  # suite/case
        return all(f"({part})" in text or f"({part}," in text for name in names for part in name.split("/"))
    return all(f"def {name}(" in text or f"class {name}" in text for name in names)


def load() -> list[Fault]:
    """All faults, by room; ValueError for an entry with unknown or missing keys."""
    faults = []
    for file in sorted(FOLDER.glob("*.toml")):
        for entry in tomllib.loads(file.read_text(encoding="utf-8"))["fault"]:
            if not _KEYS - {"survives"} <= set(entry) <= _KEYS:
                raise ValueError(f"{file.name}: a fault has the keys {sorted(_KEYS)}, not {sorted(entry)}")
            faults.append(Fault(file.stem, **{**entry, "tests": tuple(entry["tests"])}))
    return faults
