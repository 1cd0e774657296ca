"""Text signatures of the extension's plain CPython methods, from stub_patterns.txt: C++ for cpp/bind/signatures.cpp.

    python text_signatures.py stub_patterns.txt text_signatures.inc

CPython reads `name($self, a, b=None)\n--\n\n` at the front of a method's doc string as its signature, which
inspect.signature() and help() show. The patterns have the same signatures with types, for the stub.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path


def expanded(pattern: str) -> Iterator[tuple[str, list[str]]]:
    """The names that a pattern matches, each with the texts of its groups: `(put|get)_nbx` matches two."""
    group = re.search(r"\(([^)]*)\)", pattern)
    if group is None:
        yield pattern, []
        return
    for choice in group[1].split("|"):
        for name, groups in expanded(pattern[: group.start()] + choice + pattern[group.end() :]):
            yield name, [choice, *groups]


def text(definition: str) -> str:
    """`def read(self, buf: object, desc: object = None) -> None:` as `read($self, buf, desc=None)`."""
    function = ast.parse(definition.rstrip(" .") + " ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        argument.annotation = None
    found = re.sub(r"^self\b", "$self", ast.unparse(arguments))
    return f"{function.name}({found})"


def signatures(patterns: str) -> Iterator[tuple[str, str, str]]:
    """(type, method, text signature) of each pattern that defines a method, by its first overload; the type of a
    function is ""."""
    for pattern, definition in re.findall(r"^(\S+)\$:\n(?:    @overload\n)?    (def .*)$", patterns, re.MULTILINE):
        for name, groups in expanded(pattern.replace("\\", "")):
            line = definition
            for i, group in enumerate(groups, 1):
                line = line.replace(f"\\{i}", group)
            kind, _, method = name.rpartition(".")
            if not method.startswith("__"):
                yield "" if "." in kind else kind, method, text(line)


if __name__ == "__main__":
    found = signatures(Path(sys.argv[1]).read_text(encoding="utf-8"))
    lines = [f'{{"{kind}", "{method}", "{signature}\\n--\\n\\n"}},\n' for kind, method, signature in found]
    Path(sys.argv[2]).write_text("".join(lines), encoding="utf-8")
