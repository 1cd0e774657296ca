"""The program far.c: one of two processes on any hosts, which hears of the other by its standard input."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import patience
from tests.provider import support


class Far:
    """A process of the program.

    Args:
        command: The program with its arguments.
        log: A file for its standard error.
        more: Further arguments of Popen.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path, **more: Any) -> None:
        self.err = open(log, "w+")  # noqa: SIM115  # closed by the program's end
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.err}
        self.process: subprocess.Popen[str] = subprocess.Popen(command, text=True, env=dict(env), **pipes, **more)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def ended(self) -> str:
        out, _ = patience.communicate(self.process, support.PROGRAM_S)
        return str(out)

    def said(self) -> str:
        self.err.seek(0)
        return self.err.read()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.err.close()


def name_of(line: str) -> str:
    """The text of the address in the first line of a program."""
    return bytes.fromhex(line.split()[1]).rstrip(b"\0").decode("latin-1")


def introduce(a: Far, b: Far) -> list[str]:
    """Each hears of the other's address; the addresses."""
    names = []
    for one, other in ((a, b), (b, a)):
        line = one.line()
        assert line.startswith("me "), one.said()
        names.append(name_of(line))
        other.tell(line[3:])
    return names
