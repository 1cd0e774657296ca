"""Runs the commands that our documentation tells people to type, and compares their output with the page.

A comment in front of a fence says what the fence is:

    <!-- run: terminal 1 -->      a Python session (">>> ..."), typed into an interpreter of that name. Each name is a
                                  process of its own, which lives until the end of the page: two terminals are two.
    <!-- run: file=worker.py -->  a program, saved under that name in an empty folder that all blocks of the page share.
    <!-- run: shell -->           lines that start with "$ " are run by a shell in that folder; `python` is this one.

A session and a shell block show their output, compared as doctest compares it: "..." stands for anything, and runs of
blanks are one blank. `needs=torch` behind any of them leaves the block out where that package is not installed. Blocks
run in the order of the page; a fence without such a comment is only read by people.

    python -m tests.meta.pages docs/tutorial/arrays.md      prints every block with its real output
"""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import patience

ROOT = Path(__file__).parents[2]
COMMAND_SECONDS_MAX = 60.0  # a watchdog; under a sanitizer an interpreter takes seconds to start
_BLOCK = re.compile(
    r"^<!--\s*run:(?P<how>[^\n]*?)-->\s*^(?P<fence>```+)[^\n]*\n(?P<body>.*?)^(?P=fence)\s*$", re.M | re.S
)
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

_DASK = ".dask"  # its settings: a page does not show a warning that a worker takes seconds to end, on a busy machine

# What runs in a terminal's process: a line of JSON in for each statement, a line of JSON out with its output.
_DRIVER = """\
import contextlib, io, json, sys, traceback
lines, answers = sys.stdin, sys.stdout
names = {"__name__": "__main__", "__builtins__": __builtins__}
for line in lines:
    out, error = io.StringIO(), ""
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(json.loads(line), "<terminal>", "single"), names)
        except BaseException as e:
            error = "".join(traceback.format_exception_only(type(e), e))
    print(json.dumps([out.getvalue(), error]), file=answers, flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A fence that is run. kind: "session", "file" or "shell"; name: of the terminal or the file."""

    kind: str
    name: str
    needs: tuple[str, ...]
    body: str
    line: int


class Mismatch(AssertionError):
    """A page shows another output than its block's."""


def blocks(text: str) -> list[Block]:
    """The blocks of a page that are run, in order. Raises ValueError for a comment that is not understood."""
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        how = match["how"].strip()
        needs = tuple(re.findall(r"\bneeds=(\S+)", how))
        how = re.sub(r"\s*\bneeds=\S+", "", how).strip()
        if how.startswith("file="):
            kind, name = "file", how.removeprefix("file=")
        elif how == "shell":
            kind, name = "shell", ""
        elif how and "=" not in how:
            kind, name = "session", how
        else:
            raise ValueError(f"line {line}: run: {how!r} is none of: a terminal's name, file=NAME, shell")
        found.append(Block(kind, name, needs, match["body"], line))
    if len(found) != len(re.findall(r"<!--\s*run:", text)):
        raise ValueError("a run comment is not followed by a fence")
    return found


def run(page: Path, show: bool = False) -> int:
    """Run a page. Returns the number of blocks run (0: all need missing packages). Raises Mismatch with the line."""
    ran = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        (Path(folder) / _DASK).mkdir()
        (Path(folder) / _DASK / "quiet.yaml").write_text("logging: {distributed.nanny: error}\n", encoding="utf-8")
        terminals: dict[str, _Terminal] = {}
        for block in blocks(page.read_text(encoding="utf-8")):
            if any(importlib.util.find_spec(package) is None for package in block.needs):
                continue
            ran += 1
            if block.kind == "file":
                (Path(folder) / block.name).write_text(block.body, encoding="utf-8")
                continue
            if block.kind == "session" and block.name not in terminals:
                terminals[block.name] = stack.enter_context(_Terminal(folder))
            steps = _shell(block, folder) if block.kind == "shell" else terminals[block.name].session(block)
            for line, typed, wanted, got in steps:
                if show:
                    print(f"{page.name}:{line} {block.name}\n{typed.rstrip()}\n{got.rstrip()}")
                elif not doctest.OutputChecker().check_output(wanted, got, _OPTIONS):
                    raise Mismatch(f"{page.name}:{line}: {typed.rstrip()}\nshown:\n{wanted}\ncame:\n{got}")
    return ran


Step = tuple[int, str, str, str]
"""Line of the page, input, output in the page, actual output."""


class _Terminal:
    """An interpreter of its own."""

    def __init__(self, folder: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _DRIVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=_environment(folder),
        )

    def session(self, block: Block) -> Iterator[Step]:
        for example in doctest.DocTestParser().get_examples(block.body):
            out, error = self._type(example.source)
            wanted = example.want if example.exc_msg is None else example.exc_msg
            if error and example.exc_msg is None:
                out += error  # comes unasked: never equal
            elif example.exc_msg is not None:
                out = error
            yield block.line + 2 + example.lineno, example.source, wanted, out

    def _type(self, source: str) -> tuple[str, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(source) + "\n")
        self._process.stdin.flush()
        watchdog = threading.Timer(COMMAND_SECONDS_MAX, self._process.kill)
        watchdog.start()
        answer = self._process.stdout.readline()
        watchdog.cancel()
        if not answer:
            raise Mismatch(f"the interpreter ended at {source!r}")
        out, error = json.loads(answer)
        return out, error

    def __enter__(self) -> _Terminal:
        return self

    def __exit__(self, *error: Any) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(5 if error[0] is None else 0.1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _shell(block: Block, folder: str) -> Iterator[Step]:
    """Commands of a shell block: lines from "$ " on, continued where they end with a backslash; then their output."""
    for match in re.finditer(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n((?:(?!\$ )[^\n]*\n)*)", block.body, re.M):
        line = block.line + 2 + block.body.count("\n", 0, match.start())
        done = patience.run(
            match[1],
            shell=True,
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS_MAX,
        )
        got = done.stdout + (f"(exit status {done.returncode})\n" if done.returncode else "")
        yield line, match[1], match[2], got


def _environment(folder: str) -> dict[str, str]:
    """This process's without Weft's variables; this interpreter is `python`; the page has CXI devices of its own."""
    # PYTHONUNBUFFERED: the lines of processes that share an output would come in pieces.
    ours = ("WEFT_", "FI_", "SLINGSHOT_", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    import weft

    source = str(Path(weft.__file__).parents[1])
    return {
        **kept,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, [source, kept.get("PYTHONPATH", "")])),
        "WEFT_CXI_REGISTRY": str(Path(folder) / "cxi"),
        "DASK_CONFIG": str(Path(folder) / _DASK),
        "PYTHONWARNINGS": "default::ResourceWarning",
        "COLUMNS": "100",
    }


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        run(Path(argument), show=True)
