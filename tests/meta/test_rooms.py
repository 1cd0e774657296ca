"""Every room has a README.md with its contents; further rules about the source tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.meta.rooms import ROOMS_PAGE, NoHead, file_rows, pages, pictures, with_tables
from tests.meta.test_imports import CPP_BELOW

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


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_tables_of_files_and_rooms_are_what_the_sources_say(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == with_tables(page), "make rooms"


@pytest.mark.parametrize(
    "room",
    [*(ROOT / "cpp").glob("*/README.md"), *(ROOT / "src" / "weft").rglob("README.md")],
    ids=lambda readme: readme.parent.relative_to(ROOT).as_posix(),
)
def test_readme_has_a_table_of_the_files(room: Path) -> None:
    assert "<!-- files -->" in room.read_text(encoding="utf-8")


@pytest.mark.parametrize("picture", pictures(), ids=lambda path: path.name)
def test_picture_of_the_rooms_is_what_the_law_says(picture: Path) -> None:
    assert picture.read_text(encoding="utf-8") == pictures()[picture], "make rooms"


def test_rooms_page_has_both_tables_and_each_cpp_folder_is_a_room() -> None:
    text = ROOMS_PAGE.read_text(encoding="utf-8")
    assert "<!-- rooms: python -->" in text
    assert "<!-- rooms: cpp -->" in text
    assert set(CPP_BELOW) == {path.name for path in (ROOT / "cpp").iterdir() if path.is_dir() and path.name[0] != "_"}


def test_file_without_a_head_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.meta.rooms.ROOT", tmp_path)
    (tmp_path / "cpp").mkdir()
    (tmp_path / "cpp" / "a.hpp").write_text("// something\n")
    with pytest.raises(NoHead, match=r"cpp/a\.hpp"):
        list(file_rows(tmp_path / "cpp"))


def test_header_and_unit_share_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.meta.rooms.ROOT", tmp_path)
    (tmp_path / "cpp").mkdir()
    (tmp_path / "cpp" / "a.cpp").write_text("// cpp/a.cpp: see a.hpp. Slow.\n")
    (tmp_path / "cpp" / "a.hpp").write_text("// cpp/a.hpp: what it is,\n// and for whom. More.\n")
    (tmp_path / "cpp" / "b.cpp").write_text("// cpp/b.cpp: alone. More.\n")
    assert [*file_rows(tmp_path / "cpp")] == [("`a.hpp` `a.cpp`", "what it is, and for whom"), ("`b.cpp`", "alone")]


def test_version_is_one() -> None:
    """pyproject.toml, weft._version and CMakeLists.txt say the same."""
    stated = {
        "pyproject.toml": re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE),
        "src/weft/_version.py": re.search(r'__version__ = "(.+)"', (ROOT / "src/weft/_version.py").read_text()),
        "CMakeLists.txt": re.search(r"project\(weft VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()),
    }
    assert len({match and match[1] for match in stated.values()}) == 1, stated
