"""The tables of files and rooms in our READMEs and in docs/design/rooms.md, and its pictures, made from the sources.

    python -m tests.meta.rooms        writes them all (make rooms); tests/meta/test_rooms.py compares

A README's table of files has a row for each source: its content is the first sentence of the file's head, a comment in
C++ and a docstring in Python. A header and the unit of the same name share a row. A table of rooms has the title of
each room's README, and the rooms that the law of test_imports.py lets it use. A table stands between two comments:

    <!-- files -->  or  <!-- rooms: cpp -->          <!-- end -->
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.meta import rooms_picture
from tests.meta.test_imports import CPP_BELOW, PY_BELOW

ROOT = Path(__file__).parents[2]
ROOMS_PAGE = ROOT / "docs" / "design" / "rooms.md"
_TABLE = re.compile(r"(?P<begin><!-- (?P<what>files|rooms: \w+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
_CPP = (".hpp", ".inl", ".cpp")  # in this order a row names them, and takes its sentence of the first that has one
_GROUND = {"buffers", "flags"}  # what the page says of all Python rooms at once


class NoHead(ValueError):
    """A file whose head is no sentence."""


def first_sentence(text: str) -> str:
    """`text` as far as its first full stop, on one line and without the stop."""
    flat = " ".join(text.split())
    match = re.match(r"(.+?)\.(?=\s|$)", flat)
    return (match[1] if match else flat).rstrip(".:")


def cpp_head(path: Path) -> str:
    """The sentence behind `// cpp/room/file:`; "" where the head only points to the header."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("//") or line == "//":
            break
        lines.append(line[2:])
    name, _, text = " ".join(" ".join(lines).split()).partition(": ")
    if name != path.relative_to(ROOT).as_posix() or not text:
        raise NoHead(f"{path.relative_to(ROOT)}: its first line is not `// {path.relative_to(ROOT)}: what it is for.`")
    return "" if re.match(r"see \w+\.hpp", text) else first_sentence(text)


def python_head(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise NoHead(f"{path.relative_to(ROOT)} has no docstring")
    return first_sentence(text)


def file_rows(folder: Path) -> Iterator[tuple[str, str]]:
    """(files, content) of each row of `folder`'s table."""
    stems: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in _CPP:
            stems.setdefault(path.stem, []).append(path)
        elif path.suffix == ".py" and path.name != "__init__.py":
            stems[path.name] = [path]
    for paths in stems.values():
        paths.sort(key=lambda path: _CPP.index(path.suffix) if path.suffix in _CPP else 0)
        heads = [head for path in paths if (head := python_head(path) if path.suffix == ".py" else cpp_head(path))]
        if not heads:
            raise NoHead(f"{paths[0].relative_to(ROOT)}: no file of that name says what it is for")
        yield " ".join(f"`{path.name}`" for path in paths), heads[0]
    for path in sorted(folder.iterdir()):
        if (path / "README.md").is_file():
            yield f"[`{path.name}/`]({path.name}/README.md)", title(path / "README.md")


def title(readme: Path) -> str:
    """What a README's first line says of its room: `# room: what it is`."""
    head = readme.read_text(encoding="utf-8").partition("\n")[0]
    match = re.fullmatch(r"# ([\w/]+): (.+)", head)
    if not match or match[1] != readme.parent.name:
        raise NoHead(f"{readme.relative_to(ROOT)}: its first line is not `# {readme.parent.name}: what it is`")
    return match[2]


def room_rows(tree: str) -> Iterator[tuple[str, str, str]]:
    """(room, what it is, the rooms that it uses) of cpp or of src/weft, the highest rooms first."""
    if tree == "cpp":
        for room in reversed(CPP_BELOW):
            yield f"`{room}`", title(ROOT / "cpp" / room / "README.md"), _names(CPP_BELOW[room])
        return
    below = python_rooms()
    floor = rooms_picture.floors(below)
    for room in sorted(below, key=lambda room: (floor[room], room)):
        path = ROOT / "src" / "weft" / room
        what = title(path / "README.md") if path.is_dir() else python_head(path.with_suffix(".py"))
        yield f"`{room}`", what, _names(below[room])


def python_rooms() -> dict[str, set[str]]:
    """The Python rooms, without the ground that all use, and the rooms that each uses."""
    rooms = {path.name for path in (ROOT / "src" / "weft").iterdir() if (path / "__init__.py").is_file()} | {"cxi"}
    rooms -= _GROUND
    return {room: PY_BELOW[room] & rooms for room in sorted(rooms)}


def pictures() -> dict[Path, str]:
    """Each picture and its text."""
    return {
        ROOT / "docs" / "img" / "rooms-python.svg": rooms_picture.svg(
            "Which room of src/weft uses which", python_rooms()
        ),
        ROOT / "docs" / "img" / "rooms-cpp.svg": rooms_picture.svg("Which room of cpp uses which", CPP_BELOW),
    }


def _names(rooms: set[str]) -> str:
    return ", ".join(f"`{room}`" for room in sorted(rooms)) or "none"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def with_tables(page: Path) -> str:
    """The text of `page` with every table as it should be."""

    def made(match: re.Match[str]) -> str:
        if match["what"] == "files":
            table = _table(("file", "content"), [*file_rows(page.parent)])
        else:
            tree = match["what"].removeprefix("rooms: ")
            table = _table(("room", "content", "uses"), [*room_rows(tree)])
        return match["begin"] + table + match["end"]

    return _TABLE.sub(made, page.read_text(encoding="utf-8"))


def pages() -> list[Path]:
    """Every page that may have such a table."""
    return [
        ROOMS_PAGE,
        *sorted((ROOT / "cpp").rglob("README.md")),
        *sorted((ROOT / "src" / "weft").rglob("README.md")),
    ]


def main() -> None:
    for page, text in [*((page, with_tables(page)) for page in pages()), *pictures().items()]:
        if not page.exists() or text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
