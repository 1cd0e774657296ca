"""Docstrings of src/weft are in Google style: no columns of our own, and `Args:` names only parameters."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from tests.meta.pages import ROOT

SOURCES = sorted((ROOT / "src" / "weft").rglob("*.py"))
_COLUMNS = re.compile(r"\S {2,}\S")
_ENTRY = re.compile(r" {4}(\S[^:]*): ")


def text_lines(docstring: str) -> Iterator[str]:
    """The lines that are no code and no Markdown table: code is a paragraph that begins indented."""
    before, code = "", False
    for line in inspect.cleandoc(docstring).splitlines():
        if not before.strip():
            code = line.startswith(" ")
        if not code and not line.startswith("|"):
            yield line
        before = line


def arguments(docstring: str) -> list[str]:
    """The names in `Args:`."""
    section = re.search(r"^Args:\n((?: {4}.*\n?)+)", inspect.cleandoc(docstring), re.MULTILINE)
    return [found[1] for line in section[1].splitlines() if (found := _ENTRY.match(line))] if section else []


def parameters(node: ast.AST) -> set[str]:
    """Names as in `Args:`. Of a class: of its constructor, else of its methods (a base class), and its fields."""
    if isinstance(node, ast.ClassDef):
        methods = [f for f in node.body if isinstance(f, ast.FunctionDef)]
        made = [f for f in methods if f.name in ("__init__", "__new__")]
        fields = {f.target.id for f in node.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)}
        return set().union(*map(parameters, made)) if made else fields.union(*map(parameters, methods))
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return set()
    given = node.args
    names = {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    return names | {f"{stars}{one.arg}" for stars, one in (("*", given.vararg), ("**", given.kwarg)) if one}


def faults(source: str) -> list[str]:
    """What is wrong with the docstrings of a source, each with its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        text, line = ast.get_docstring(node, clean=False), getattr(node, "lineno", 1)
        if text is None:
            continue
        found += [f"{line}: columns: {shown}" for shown in text_lines(text) if _COLUMNS.search(shown)]
        found += [f"{line}: no parameter: {name}" for name in arguments(text) if name not in parameters(node)]
    return found


def test_docstrings_are_in_google_style() -> None:
    assert len(SOURCES) > 100
    wrong = [f"{path.relative_to(ROOT)}:{fault}" for path in SOURCES for fault in faults(path.read_text("utf-8"))]
    assert not wrong, "use Args:, Returns:, Raises:, Attributes:\n" + "\n".join(wrong)


def test_columns_and_unknown_parameters_are_found() -> None:
    function = 'def f(a, *b, c=1):\n    """Do.\n\n{}\n    """\n'
    assert (
        faults(function.format("    Args:\n        a: One.\n            More: words.\n        *b: Two.\n        c: 3."))
        == []
    )
    assert faults(function.format("    Code:\n\n        x = f(1)    # as it is written")) == []
    assert faults(function.format("    a    one.\n    c    three.")) == [
        "1: columns: a    one.",
        "1: columns: c    three.",
    ]
    assert faults(function.format("    Args:\n        a   One.")) == ["1: columns:     a   One."]
    assert faults(function.format("    Args:\n        d: Four.")) == ["1: no parameter: d"]
    record = 'class C:\n    """C.\n\n    Args:\n        {}: Four.\n    """\n    e: int\n'
    assert faults(record.format("e")) == []
    assert faults(record.format("d")) == ["1: no parameter: d"]
