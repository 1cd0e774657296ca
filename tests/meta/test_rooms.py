"""Every room has a README.md with its contents; further rules about the source tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.meta.test_imports import CPP_BELOW, PY_BELOW

ROOT = Path(__file__).parents[2]
GROUND = {"buffers", "flags"}  # what the page says of all Python rooms at once


def rooms() -> list[Path]:
    """Folders that a newcomer opens: each under cpp/ and src/weft/ with sources in it, and the top ones."""
    found = [ROOT / name for name in ("cpp", "tests", "bench", "docs", "examples")]
    for parent in (ROOT / "cpp", ROOT / "src" / "weft"):
        found += [parent] + [
            path for path in sorted(parent.glob("*")) if path.is_dir() and not path.name.startswith(("_", "."))
        ]
    return sorted(set(found))


@pytest.mark.parametrize("room", rooms(), ids=lambda room: room.relative_to(ROOT).as_posix())
def test_room_has_readme(room: Path) -> None:
    readme = room / "README.md"
    assert readme.is_file(), f"{room.relative_to(ROOT)} has no README.md: object graph, what calls what, what surprises"
    assert len(readme.read_text(encoding="utf-8").split()) >= 20


def rooms_page() -> dict[str, dict[str, set[str]]]:
    """The tables of docs/design/rooms.md: part of the tree, room, the rooms that it imports or includes."""
    found: dict[str, dict[str, set[str]]] = {}
    for section in (ROOT / "docs" / "design" / "rooms.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        rows = re.findall(r"^\| `(\w+)` \| .+ \|(.*)\|$", section, re.MULTILINE)
        found[section.partition(",")[0]] = {room: set(re.findall(r"`(\w+)`", below)) for room, below in rows}
    return found


def test_rooms_page_has_each_python_room_and_its_imports() -> None:
    folders = {path.name for path in (ROOT / "src" / "weft").iterdir() if (path / "__init__.py").is_file()} | {"cxi"}
    shown = folders - GROUND
    assert rooms_page()["Python"] == {room: PY_BELOW[room] & shown if room in shown else set() for room in folders}


def test_rooms_page_has_each_cpp_room_and_its_includes() -> None:
    assert rooms_page()["C++"] == CPP_BELOW
    assert set(CPP_BELOW) == {path.name for path in (ROOT / "cpp").iterdir() if path.is_dir() and path.name[0] != "_"}


def test_bind_readme_names_each_source() -> None:
    """The largest room, of many subjects: a newcomer finds a file by its README."""
    folder = ROOT / "cpp" / "bind"
    named = set(re.findall(r"`(\w+\.(?:cpp|hpp))`", (folder / "README.md").read_text(encoding="utf-8")))
    assert named == {path.name for path in folder.iterdir() if path.suffix in (".cpp", ".hpp")}


def test_version_is_one() -> None:
    """pyproject.toml, weft._version and CMakeLists.txt say the same."""
    stated = {
        "pyproject.toml": re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE),
        "src/weft/_version.py": re.search(r'__version__ = "(.+)"', (ROOT / "src/weft/_version.py").read_text()),
        "CMakeLists.txt": re.search(r"project\(weft VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()),
    }
    assert len({match and match[1] for match in stated.values()}) == 1, stated
