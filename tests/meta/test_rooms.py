"""Every room has a README.md with its contents; further rules about the source tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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


def test_version_is_one() -> None:
    """pyproject.toml, weft._version and CMakeLists.txt say the same."""
    stated = {
        "pyproject.toml": re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE),
        "src/weft/_version.py": re.search(r'__version__ = "(.+)"', (ROOT / "src/weft/_version.py").read_text()),
        "CMakeLists.txt": re.search(r"project\(weft VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()),
    }
    assert len({match and match[1] for match in stated.values()}) == 1, stated
