"""Every entry of the extension takes its turn where Python has no GIL (cpp/bind/seam.hpp)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

BIND = Path(__file__).parents[2] / "cpp" / "bind"
# Calls that register an entry without the seam, and their replacements.
INSTEAD = {
    r"\bnb::class_<": "Class<",
    r"\bnb::module_\s*&": "Module&",
    r"reinterpret_cast<PyCFunction>": "method<f>()",
    r'\{"\w+",\s*\w+,\s*(METH_|kFast)': "method<f>()",
    r"\{Py_(?!tp_traverse|tp_clear|tp_methods|tp_getset|tp_members)\w+,\s*reinterpret_cast<void\*>": "slot<f>()",
}


def faults(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.[ch]pp")):
        if path.name == "seam.hpp":
            continue
        text = path.read_text(encoding="utf-8")
        for pattern, instead in INSTEAD.items():
            for match in re.finditer(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path.name}:{line}: {match[0]}: write {instead}, or free-threaded Python enters without a turn"


def test_entries_take_turns() -> None:
    assert list(faults(BIND)) == []


@pytest.mark.parametrize(
    "line",
    [
        'nb::class_<Thing>(m, "Thing")',
        "void register_things(nb::module_& m) {",
        '{"poll", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(poll)), METH_FASTCALL, ""},',
        '{"poll", poll, METH_NOARGS, ""},',
        '{"poll", poll, kFast, ""},',
        "{Py_sq_item, reinterpret_cast<void*>(thing_item)},",
    ],
)
def test_entry_without_a_turn_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "thing.cpp").write_text(f"// a file\n{line}\n")
    (found,) = faults(tmp_path)
    assert found.startswith("thing.cpp:2:")
