"""The command `weft`: version, help, answers to typing errors; programs that import Weft never load it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import patience

import weft
from weft.tools._table import Printer, Table
from weft.tools._text import console, plain_table
from weft.tools.cli import app

from .conftest import Command


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_version(command: Command, option: str) -> None:
    ended = command(option)
    assert (ended.code, ended.out) == (0, f"weft {weft.__version__}\n")


@pytest.mark.parametrize("option", ["-V", "info --list", "pref"])
def test_python_m_weft_is_the_command(command: Command, option: str) -> None:
    result = patience.run([sys.executable, "-m", "weft", *option.split()], timeout=100)
    ended = command(*option.split())
    assert (result.returncode, result.stdout) == (ended.code, ended.out)
    assert result.stderr == ended.err


def weft_as_a_process(*arguments: str, **environment: str) -> str:
    """The output of the command. The variable of typer makes the shell an argument instead of the parent process."""
    result = patience.run(
        [sys.executable, "-m", "weft", *arguments], timeout=100,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", **environment})  # fmt: skip
    assert "Traceback" not in result.stderr
    return result.stdout


# A shell's question, for the words typed so far; `weft --install-completion` writes a function that asks it.
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("weft ", {"info", "doctor", "perf", "top", "trace", "launch"}),
        ("weft p", {"perf", "pingpong"}),
        ("weft perf --qu", {"--quick"}),
        ("weft device l", {"list"}),
    ],
)
def test_shell_completes_commands_and_options(words: str, expected: set[str]) -> None:
    last = str(len(words.split(" ")) - 1)
    found = weft_as_a_process(_WEFT_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=last)
    assert expected <= set(found.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_a_shell_is_shown(shell: str) -> None:
    shown = weft_as_a_process("--show-completion", shell)
    assert "_WEFT_COMPLETE=complete_" + shell in shown


def test_completion_is_installed_for_the_user(tmp_path: Path) -> None:
    """In the home folder, for one shell: a file of its own, and a line that reads it."""
    weft_as_a_process("--install-completion", "bash", HOME=str(tmp_path))
    (written,) = (path for path in tmp_path.rglob("*") if path.is_file() and "_WEFT_COMPLETE" in path.read_text())
    assert str(written) in (tmp_path / ".bashrc").read_text()


def test_without_command_prints_help(command: Command) -> None:
    ended = command()
    for name in ("info", "doctor", "perf"):
        assert name in ended.out + ended.err


def commands_of(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, one in getattr(command, "commands", {}).items():
        yield from commands_of(one, f"{name} {word}")


def test_help_of_every_command_fits_80_columns() -> None:
    import click
    import typer

    seen = []
    for name, command in commands_of(typer.main.get_command(app), "weft"):
        with click.Context(command, info_name=name, terminal_width=80) as context:
            text = command.get_help(context)
        assert [line for line in text.splitlines() if len(line) > 80] == [], name
        seen.append(name)
    assert {"weft perf", "weft top", "weft fm serve", "weft service create"} <= set(seen)


@pytest.mark.parametrize(("columns", "widest"), [("70", 70), ("200", 200), ("", 112), ("wide", 112)])
def test_table_in_a_pipe_is_as_wide_as_columns_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str, widest: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    made = plain_table("title", "what")
    made.add_row("word " * 100)
    console().print(made)
    shorter = Table("title", "what")
    shorter.add_row("word " * 100)
    Printer().table(shorter)
    for part in capsys.readouterr().out.split("title")[1:]:
        assert widest - 8 < max(len(line.rstrip()) for line in part.splitlines()) <= widest


def test_perf_help_explains_every_column(command: Command) -> None:
    text = command("perf", "--help").out
    for word in ("latency", "p99", "rate", "bandwidth", "limit", "--ops", "--path", "--sizes", "--quick", "--json"):
        assert word in text, word
    for word in ("--server", "--connect", "--plot", "--seconds", "latency_ns_median", "limit_share"):
        assert word in text, word


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("pref", ("'pref'", "Did you mean 'perf'")),
        ("perf --opps write", ("--opps", "--ops")),
        ("perf more", ("more", "weft perf -h")),
        ("perf --ops push", ("--ops", "'push'", "write, read, inject_write, fetch_add, batch")),
        ("perf --ops fetch-add", ("--ops", "did you mean fetch_add?")),
        ("perf --ops ,", ("--ops", "empty", "write, read")),
        ("perf --path warp", ("--path", "'warp'", "direct, foreign, ring")),
        ("perf --sizes 8,4Q", ("--sizes", "'4Q'", "try: bytes such as", "4K")),
        ("perf --sizes 0", ("--sizes", "'0'", "from 1")),
        ("perf --sizes 2G", ("--sizes", "'2G'", "1G")),
        ("perf --sizes ,", ("--sizes", "not a size", "4K")),
        ("perf --seconds 0", ("--seconds", "try: from 0.1")),
        ("perf --seconds soon", ("--seconds", "number")),
        ("perf --plot chart.pdf", ("--plot", "'chart.pdf'", "try: --plot chart.png")),
        ("perf --plot nowhere/at/all.png", ("--plot", "'nowhere/at'", "make it first")),
        ("perf --server --quick", ("--server takes only --name", "--connect")),
        ("perf --name x", ("--name", "try: --server --name NAME")),
        (
            "perf --connect nobody-is-called-this",
            ("no server", "servers here", "try: weft perf --server --name nobody"),
        ),
        ("info --caps rnma", ("--caps", "'rnma'", "did you mean rma?", "known: msg, rma")),
        ("info --caps |", ("--caps", "empty", "rma")),
        ("info --ep-type rdn", ("--ep-type", "did you mean rdm?", "msg, dgram, rdm")),
        ("info --mr-mode scalible", ("--mr-mode", "did you mean scalable?", "prov_key")),
        ("info --mode x", ("--mode", "context")),
        ("info --addr-format ipv4", ("--addr-format", "addr_str")),
        ("info --threading none", ("--threading", "safe")),
        ("info --progress never", ("--progress", "auto, manual")),
        ("info --msg-order fifo", ("--msg-order", "rma_waw")),
        ("info --inject-size lots", ("--inject-size", "'lots'", "256, 4K")),
        ("info --max-msg-size -1", ("--max-msg-size", "'-1'", "4K")),
        ("doctor who", ("who", "weft doctor -h")),
        ("run --explian -- true", ("--explian", "--explain")),
        ("launch --vrebose -- true", ("--vrebose", "--verbose")),
    ],
)
def test_wrong_option_is_answered_with_what_to_do(command: Command, arguments: str, said: tuple[str, ...]) -> None:
    ended = command(*arguments.split())
    assert ended.code == 2
    assert ended.out == ""
    for text in said:
        assert text in ended.err
    assert "Traceback" not in ended.err


def test_perf_name_that_cannot_be_one_is_refused(command: Command) -> None:
    for option in ("--connect", "--server --name"):
        ended = command("perf", *option.split(), "two words")
        assert ended.code == 1
        assert "'two words' is not a valid name" in ended.err
        assert "without blanks" in ended.err


def test_plot_without_matplotlib_says_what_to_install(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The option is refused before the measurement."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = command("perf", "--plot", str(tmp_path / "chart.png"))
    assert ended.code == 2
    assert "matplotlib" in ended.err
    assert "pip install 'weft-fabric[plot]'" in ended.err


def test_setting_that_is_not_understood_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CMA", "maybe")
    for name in ("info", "doctor"):
        ended = command(name)
        assert ended.code == 1
        assert "WEFT_CMA='maybe'" in ended.err
        assert "values: 0, 1" in ended.err


def test_import_weft_fi_loads_no_tool() -> None:
    """Importing Weft loads neither the command line nor its libraries."""
    program = (
        "import sys, weft.fi\n"
        "print(*(m for m in sys.modules if m.partition('.')[0] in ('typer', 'rich', 'click', 'matplotlib')))\n"
        "print(*(m for m in sys.modules if m.startswith('weft.tools')))"
    )
    result = patience.run([sys.executable, "-c", program], check=True, timeout=100)
    assert result.stdout.split() == []


def test_version_loads_neither_numpy_nor_the_extension() -> None:
    program = (
        "import sys\nfrom weft.tools.cli import main\nsys.argv = ['weft', '--version']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(*(m for m in ('numpy', 'weft._nic', 'weft.tools._measure') if m in sys.modules))"
    )
    result = patience.run([sys.executable, "-c", program], check=True, timeout=100)
    assert result.stdout.splitlines()[1:] == [""]
