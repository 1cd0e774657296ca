"""The command line in this process. Commands that depend on the environment of a NIC run in another process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from weft.tools.cli import main


@dataclass(frozen=True)
class Ended:
    """The result of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Ended]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`weft` with these arguments."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["weft", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Ended(int(ended.value.code or 0), out, err)

    return run
