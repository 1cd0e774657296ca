"""Signatures of the extension's plain CPython methods, from stub_patterns.txt and calls.inl.

    python text_signatures.py stub_patterns.txt text_signatures.inc      C++ for cpp/bind/signatures.cpp
    python text_signatures.py stub_patterns.txt FOLDER                   the stubs: `make stub`

CPython reads `name($self, a, b=None)\n--\n\n` at the front of a method's doc string as its signature, which
inspect.signature() and help() show. The patterns have the same signatures with types, for the stub.
Those of the data-path calls are made of the names of their parameters.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Type and default of a parameter; "...": it is necessary, behind parameters that are not.
PARAMETERS = {
    **dict.fromkeys(["desc", "result_desc", "compare_desc", "context"], "object = None"),
    **dict.fromkeys(["dest_addr", "src_addr"], "int = 0xffffffffffffffff"),
    **dict.fromkeys(["addr", "key", "tag", "data", "op", "root_addr"], "int = ..."),
    **dict.fromkeys(["ignore", "flags"], "int = 0"),
    **dict.fromkeys(["len", "count", "datatype"], "int | None = None"),
    **dict.fromkeys(["resultv", "comparev"], "Sequence[object] = ..."),
    "datatype!": "int = ...",
    "result!": "object = ...",
    "flags=None": "int | None = None",
    "coll_addr": "object = ...",
    "result": "object = None",
    "iov": "Sequence[object]",
}
_ASYNC = '''# ruff: noqa
# fmt: off
"""The calls of `AsyncEndpoint`: made by `make stub`."""

from collections.abc import Sequence
from typing import Any

class AsyncCalls:
'''


def calls(table: str) -> Iterator[tuple[str, str, str]]:
    """(kind, name, typed parameters) of each call of calls.inl."""
    for kind, name, columns, names in re.findall(r'^WEFT_(\w+)\(\s*(\w+),([^"]*)"([^"]*)"', table, re.MULTILINE):
        shown, first = ["self"], True
        for one in names.replace("|", " * ").split():
            name_of = one.rstrip("!").partition("=")[0]
            what = PARAMETERS.get(one) or PARAMETERS.get(name_of, "object = ...")
            if name_of == "iov" and (kind == "MESSAGE" or "fetch" in columns):
                what += " | None"
            first = first and one.endswith("!")
            shown.append("*" if one == "*" else f"{name_of}: {what.partition(' = ')[0] if first else what}")
        yield kind, name, ", ".join(shown)


def patterns(file: Path) -> tuple[str, str]:
    """The patterns of the file and those of the calls; the stub of AsyncEndpoint's calls."""
    found, awaited = [file.read_text(encoding="utf-8")], [_ASYNC]
    for kind, name, parameters in calls(file.with_name("calls.inl").read_text(encoding="utf-8")):
        ofi = "" if kind == "BATCH" else "(|Ofi)"
        found.append(f"{ofi}EndpointCore\\.{name}$:\n    def {name}({parameters}) -> None:\n        \\doc\n")
        # The context, and what is behind, are given by name.
        parameters = re.sub(r"(?<!\*), context: (.*?), \*, ", r", *, context: \1, ", parameters)
        parameters = re.sub(r"(?<!\*), context: ([^*]*)$", r", *, context: \1", parameters)
        awaited.append(f"    async def {name}({parameters}) -> {'None' if 'inject' in name else 'Any'}: ...\n")
    return "\n".join(found), "".join(awaited)


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


def stubs(file: Path, folder: Path) -> None:
    found, awaited = patterns(file)
    (folder / "fi").mkdir(exist_ok=True)
    (folder / "fi" / "_async_calls.pyi").write_text(awaited, encoding="utf-8")
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as all_patterns:
        all_patterns.write(found)
        all_patterns.flush()
        stubgen = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "weft._nic", "-p", all_patterns.name]
        subprocess.run([*stubgen, "-o", folder / "_nic.pyi"], check=True)


if __name__ == "__main__":
    source, to = Path(sys.argv[1]), Path(sys.argv[2])
    if to.is_dir():
        stubs(source, to)
    else:
        found = signatures(patterns(source)[0])
        lines = [f'{{"{kind}", "{method}", "{signature}\\n--\\n\\n"}},\n' for kind, method, signature in found]
        to.write_text("".join(lines), encoding="utf-8")
