"""No module of weft needs itself: imports at run time, also those inside functions, make no circle.

Imports for type checkers alone (`if TYPE_CHECKING:`) do not count. One arrow is left out: fi.registry asks a provider
for its policy by name, and only then imports it.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

WEFT = Path(__file__).parents[2] / "src" / "weft"
REGISTRY, PROVIDERS = "weft.fi.registry", "weft.providers"


def modules(weft: Path) -> dict[str, Path]:
    """Name and file of each module."""
    found = {}
    for path in weft.rglob("*.py"):
        parts = path.relative_to(weft.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, package: list[str], known: dict[str, Path]) -> Iterator[str]:
    """Modules of `known` that a file imports when it runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*(package[: len(package) - node.level + 1] if node.level else []), *filter(None, [node.module])]
            for alias in node.names:
                whole = ".".join([*base, alias.name])
                names.append(whole if whole in known else ".".join(base))
        else:
            yield from imported(node, package, known)
        yield from (name for name in names if name in known)


def circle(weft: Path) -> list[str]:
    """One circle of imports, as the list of its names; empty if there is none."""
    known = modules(weft)
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        found = set(imported(ast.parse(path.read_text(encoding="utf-8")), package, known)) - {name}
        graph[name] = {other for other in found if name != REGISTRY or not other.startswith(PROVIDERS)}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as reason:
        return list(reason.args[1])
    return []


def test_imports_make_no_circle() -> None:
    assert circle(WEFT) == []


@pytest.mark.parametrize("inside", [False, True], ids=["top", "function"])
def test_circle_of_imports_is_found(tmp_path: Path, inside: bool) -> None:
    weft = tmp_path / "weft"
    weft.mkdir()
    (weft / "__init__.py").write_text("")
    (weft / "a.py").write_text("from .b import x\n")
    (weft / "b.py").write_text("def f():\n    from . import a\n" if inside else "import weft.a\n")
    assert set(circle(weft)) == {"weft.a", "weft.b"}
    (weft / "b.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import a\n")
    assert circle(weft) == []
