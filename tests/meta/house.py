"""How large the house is, and how much a newcomer must hold in mind: `make house` prints the figures.

A figure may not grow past its mark (tests/meta/test_house.py). A change that makes a figure smaller lowers its mark; a
change that must raise a mark says why in the commit. For assertions the mark is a least value.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.meta import flag_names

ROOT = Path(__file__).parents[2]
GENERATED = {"src/weft/_nic.pyi", "src/weft/fi/_async_calls.pyi"} | {
    str(path.relative_to(ROOT)) for path in flag_names.texts()
}
CALLS = ("tsenddata", "inject_writedata", "trecvmsg")  # calls of three kinds, to see in how many files one call stands
_METHOD = re.compile(r"^(?:[\w:<>,&*\[\]][\w:<>,&*\[\] ]*[ &*])?(\w+)::(~?\w+|operator[^\s(]+)\(", re.MULTILINE)
_FRIEND = re.compile(r"^\s*friend ", re.MULTILINE)
_ASSERT = re.compile(r"\b(?:WEFT_ASSERT|assert|assert_held|assert_progress_held)\s*\(")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Figure:
    """A name, its value, and the most (or, for `least`, the least) that it may be; None: shown only."""

    name: str
    value: int
    mark: int | None = None
    least: bool = False

    @property
    def holds(self) -> bool:
        return self.mark is None or (self.value >= self.mark if self.least else self.value <= self.mark)


def sources() -> dict[str, str]:
    """path -> text of every hand-written file of cpp and src."""
    listed = subprocess.run(["git", "ls-files", "cpp", "src"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        name: (ROOT / name).read_text(encoding="utf-8")
        for name in listed.stdout.splitlines()
        if name.endswith((".hpp", ".cpp", ".inl", ".py", ".pyi")) and name not in GENERATED and (ROOT / name).exists()
    }


def room(name: str) -> str:
    """cpp/nic or src/weft/fi, of a file's name; the folder of a file that is in no room."""
    if name.count("/") == 1:
        return "cpp"
    parts = name.split("/")
    return "/".join(parts[:2] if parts[0] == "cpp" else parts[: min(3, len(parts) - 1)])


def methods(files: dict[str, str]) -> dict[str, tuple[int, int]]:
    """class -> (methods that are defined outside its body, files that define them), of cpp/nic."""
    found: dict[str, set[tuple[str, str]]] = {}
    for name, text in files.items():
        if name.startswith("cpp/nic/"):
            for owner, method in _METHOD.findall(text):
                found.setdefault(owner, set()).add((method, name))
    return {
        owner: (len({method for method, _ in pairs}), len({file for _, file in pairs}))
        for owner, pairs in found.items()
    }


def figures(marks: dict[str, int]) -> Iterator[Figure]:
    """Every figure. `marks`: the mark of each by its name."""
    files = sources()
    cpp = {name: _COMMENT.sub("", text) for name, text in files.items() if name.startswith("cpp/")}

    def figure(name: str, value: int, least: bool = False) -> Figure:
        return Figure(name, value, marks.get(name), least)

    lines = Counter({name: text.count("\n") for name, text in files.items()})
    yield figure("lines of src and cpp", lines.total())
    by_room: Counter[str] = Counter()
    for name, count in lines.items():
        by_room[room(name)] += count
    for place, count in by_room.most_common():
        yield figure(f"lines of {place}/", count)
    for owner, (count, where) in sorted(methods(files).items(), key=lambda item: -item[1][0])[:4]:
        yield figure(f"methods of nic::{owner}", count)
        yield figure(f"files that define nic::{owner}", where)
    yield figure("friends in cpp/nic", sum(len(_FRIEND.findall(text)) for name, text in cpp.items() if "/nic/" in name))
    yield figure("friends in all of cpp", sum(len(_FRIEND.findall(text)) for text in cpp.values()))
    for call in CALLS:
        yield figure(f"files with the call {call}", sum(bool(re.search(rf"\b{call}\b", t)) for t in files.values()))
    fi = [text for name, text in files.items() if name.startswith("src/weft/fi/")]
    yield figure("classes swapped at run time in weft.fi", sum(text.count("__class__ = ") for text in fi))
    asserted = Counter({name: len(_ASSERT.findall(text)) for name, text in cpp.items()})
    yield figure("assertions in cpp", asserted.total(), least=True)
    for place in sorted({room(name) for name in cpp} - {"cpp"}):
        yield figure(
            f"assertions in {place}", sum(n for name, n in asserted.items() if room(name) == place), least=True
        )


MARKS = {
    "lines of src and cpp": 125_150,
    "lines of cpp/bind/": 16_160,
    "methods of nic::TxPort": 69,
    "files that define nic::TxPort": 11,
    "methods of nic::Nic": 86,
    "friends in cpp/nic": 7,
    "friends in all of cpp": 15,
    "files with the call tsenddata": 2,
    "files with the call inject_writedata": 2,
    "files with the call trecvmsg": 5,
    "classes swapped at run time in weft.fi": 0,
    "assertions in cpp": 390,
}


def main() -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("figure")
    table.add_column("now", justify="right")
    table.add_column("mark", justify="right")
    for figure in figures(MARKS):
        mark = "" if figure.mark is None else f"{'>=' if figure.least else '<='} {figure.mark:,}"
        table.add_row(figure.name, f"{figure.value:,}", mark, style="" if figure.holds else "red")
    Console().print(table)


if __name__ == "__main__":
    main()
