"""Directives that generate the parts of pages that would become stale if written by hand.

weft-settings [cache]    environment variables, from weft.settings; those of the registration cache
weft-settings cxi        those of the CXI provider
weft-launchers           variables of launchers, from weft.launch
weft-help COMMAND        what `weft COMMAND --help` prints
weft-commands COMMAND    a section with the help of every command but those named
weft-benchmarks          tables of the last run of make bench, or of the run that is committed
weft-flags               flags and enumerations of weft.flags
weft-ucp-constants       flags and enumerations of weft.ucp, with the plain name of each member
weft-ucp-statuses        weft.ucp's statuses: number, UCX's text, nearest error number of the system
weft-errors              exceptions of weft.errors (in reStructuredText)
weft-docstring NAME      a docstring (in reStructuredText)
weft-class NAME          a class with all its methods, those of the extension with the signatures of its stub (in
                         reStructuredText); with "own" behind it, without the extension's
weft-methods NAME ...    methods of the extension of a class, by name or by the table of calls that has them (msg, rma);
                         "others": those that no earlier one has named
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective
from weft_docstrings import INTERNAL, convert

import weft
from weft import errors, flags, settings
from weft.fi._calls import CALLS
from weft.launch.variables import VARIABLES
from weft.providers.cxi import env as cxi_env
from weft.settings import shown

ROOT = Path(__file__).parents[2]
HELP_SECONDS_MAX = 60
HELP_COLUMNS = 100


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> nodes.table:
    """A table; text between backticks in a cell is code."""
    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]
    group += nodes.thead("", _row(head))
    group += nodes.tbody("", *(_row(cells) for cells in body))
    return nodes.table("", group)


def _row(cells: Sequence[str]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *_inline(cell))) for cell in cells))


def _inline(text: str) -> list[nodes.Node]:
    parts = text.split("`")
    return [nodes.literal("", p) if i % 2 else nodes.Text(p) for i, p in enumerate(parts) if p]


class Generated(SphinxDirective):
    """A directive whose page is read again at every build, because its source is outside the page."""

    optional_arguments = 20

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()
        return self.make()

    def make(self) -> list[nodes.Node]:
        raise NotImplementedError

    def rst(self, lines: list[str]) -> list[nodes.Node]:
        """Parse lines of reStructuredText (inside eval-rst)."""
        box = nodes.container()
        self.state.nested_parse(StringList(lines, source=self.name), self.content_offset, box)
        return box.children


# ---- settings --------------------------------------------------------------------------------------------------------


class SettingsTable(Generated):
    def make(self) -> list[nodes.Node]:
        if self.arguments[:1] == ["cxi"]:
            return [table(["variable", "values", "default", "meaning", "takes effect"], cxi_variables())]
        of_cache = self.arguments[:1] == ["cache"]
        known = settings.CacheSettings.variables() if of_cache else settings.Settings.variables()
        rows = [(f"`{v.name}`", v.values, _default(v.default), v.meaning, v.effect) for v in known]
        return [table(["variable", "values", "default", "meaning", "takes effect"], rows)]


def cxi_variables() -> list[tuple[str, str, str, str, str]]:
    """Every variable of the CXI provider, with its default in the releases of the document and in later ones."""
    doc, later = (cxi_env.CxiEnvironment({}, release) for release in ("doc", "current"))
    rows = []
    for v in cxi_env.CxiEnvironment.variables():
        name = f"`{v.name}`" + (f" (`{v.also}`)" if v.also else "")
        before, now = (shown(e.all[v.name].value) if v.name in e.all else "not read" for e in (doc, later))
        default = before if before == now else f"{before}; later releases: {now}"
        rows.append((name, v.values, default, v.meaning, v.effect or "as documented"))
    return rows


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return str(value) if value else ""


# ---- commands --------------------------------------------------------------------------------------------------------


def commands() -> dict[str, list[str]]:
    """Names of the commands of `weft`, each with its subcommands."""
    import typer.main

    from weft.tools.cli import app

    every = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {name: list(getattr(command, "commands", ())) for name, command in every.items()}


def help_of(*command: str) -> str:
    """What `weft COMMAND --help` prints."""
    environment = {**os.environ, "COLUMNS": str(HELP_COLUMNS), "TERMINAL_WIDTH": str(HELP_COLUMNS), "NO_COLOR": "1"}
    program = "import sys; sys.argv[0] = 'weft'; from weft.tools.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *command, "--help"],
        capture_output=True,
        text=True,
        timeout=HELP_SECONDS_MAX,
        env={**environment, "TERM": "dumb"},
    )
    if done.returncode:
        raise ExtensionError(f"weft {' '.join(command)} --help: {done.stderr}")
    return done.stdout.strip("\n")


def _block(text: str, language: str = "text") -> nodes.literal_block:
    return nodes.literal_block(text, text, language=language)


class LauncherTable(Generated):
    """{weft-launchers}"""

    def make(self) -> list[nodes.Node]:
        body = [(who, ", ".join(f"`{name}`" for name in names)) for who, names in VARIABLES.items()]
        return [table(("set by", "variables"), body)]


class CommandHelp(Generated):
    def make(self) -> list[nodes.Node]:
        return [_block(help_of(*self.arguments))]


class OtherCommands(Generated):
    def make(self) -> list[nodes.Node]:
        out: list[nodes.Node] = []
        for name, own in commands().items():
            if name in self.arguments:
                continue
            section = nodes.section(ids=[nodes.make_id(f"weft-{name}")], names=[f"weft {name}"])
            section += nodes.title("", f"weft {name}")
            section += _block(help_of(name))
            section += [_block(help_of(name, each)) for each in own]
            self.state.document.note_explicit_target(section)
            out.append(section)
        return out


class Benchmarks(Generated):
    """The tables of bench/report.py, of this checkout's last run, or of the run that is committed."""

    def make(self) -> list[nodes.Node]:
        report = bench_report()
        path = ROOT / "bench" / "results" / "latest.json"
        if not path.exists():
            path = ROOT / "bench" / "reference.json"
        self.env.note_dependency(str(path))
        result = json.loads(path.read_text())
        out: list[nodes.Node] = [nodes.paragraph("", report.heading(result))]
        for title, says, head, lines in (
            ("Beside other libraries", report.RACE_SAYS, report.RACE_HEAD, report.race_table(result)),
            ("The speed budget", report.BUDGET_SAYS, report.BUDGET_HEAD, report.budget_table(result)),
        ):
            section = nodes.section(ids=[nodes.make_id(title)], names=[title.lower()])
            section += nodes.title("", title)
            section += nodes.paragraph("", says)
            body = [[cell.replace("`", "'") for cell in line] for line in lines]
            section += nodes.container("", table(list(head), body), classes=["wide"])
            out.append(section)
        return out


def bench_report() -> Any:
    """bench/report.py as a module; bench/ is no package."""
    folder = str(ROOT / "bench")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("report")
    finally:
        sys.path.remove(folder)


# ---- flags, errors, docstrings ---------------------------------------------------------------------------------------


class Flags(Generated):
    def make(self) -> list[nodes.Node]:
        out: list[nodes.Node] = []
        for name, cls in vars(flags).items():
            if not (isinstance(cls, type) and issubclass(cls, enum.IntEnum | enum.IntFlag)) or not cls.__members__:
                continue
            if name.startswith("_") or not cls.__module__.startswith(f"{flags.__name__}."):
                continue
            show = "{:#x}" if issubclass(cls, enum.IntFlag) else "{:d}"
            section = nodes.section(ids=[nodes.make_id(name)], names=[name.lower()])
            section += nodes.title("", name)
            section += nodes.paragraph("", "", *_inline((cls.__doc__ or "").strip().partition("\n\n")[0]))
            body = [(f"`{member}`", f"`{show.format(int(value))}`") for member, value in cls.__members__.items()]
            section += table(["name", "value"], body)
            out.append(section)
        return out


class UcpConstants(Generated):
    def make(self) -> list[nodes.Node]:
        from weft import ucp
        from weft.ucp import constants

        plain = {id(value): name for name, value in vars(ucp).items() if name.isupper()}
        out: list[nodes.Node] = []
        for name, cls in vars(constants).items():
            if not isinstance(cls, type):
                continue
            show = "{:#x}" if issubclass(cls, enum.IntFlag) else "{:d}"
            section = nodes.section(ids=[nodes.make_id(name)], names=[name.lower()])
            section += nodes.title("", name)
            section += nodes.paragraph("", "", *_inline((cls.__doc__ or "").strip().partition("\n\n")[0]))
            body = [
                (f"`{plain[id(value)]}`", f"`{name}.{member}`", f"`{show.format(int(value))}`")
                for member, value in cls.__members__.items()
            ]
            section += table(["name", "member", "value"], body)
            out.append(section)
        return out


class UcpStatuses(Generated):
    def make(self) -> list[nodes.Node]:
        import errno

        from weft import ucp

        body = []
        for status in ucp.Status:
            error = ucp.UcsError(status).errno if status < 0 else None
            name = errno.errorcode[error] if error is not None else ""
            body.append((f"`{status.name}`", str(int(status)), ucp.status_string(status), f"`{name}`"))
        return [table(["name", "value", "text", "errno of the `UcsError`"], body)]


class Errors(Generated):
    def make(self) -> list[nodes.Node]:
        classes = [cls for name in errors.__all__ if isinstance(cls := getattr(errors, name), type)]
        classes.remove(errors.FabricError)
        lines = []
        for cls in sorted(classes, key=lambda c: int(c.code)):
            lines += [f".. autoexception:: weft.errors.{cls.__name__}", "   :show-inheritance:", ""]
        return self.rst(lines)


class Docstring(Generated):
    def make(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        text = inspect.getdoc(getattr(importlib.import_module(module), name)) or ""
        return self.rst(convert(text.splitlines(), self.arguments[0]))


@lru_cache(maxsize=1)
def stub_signatures() -> dict[tuple[str, str], str]:
    """(class, method) -> its signature in weft/_nic.pyi, without self."""
    stub = Path(weft.__file__).with_name("_nic.pyi")
    found = {}
    for cls in ast.parse(stub.read_text(encoding="utf-8")).body:
        for method in cls.body if isinstance(cls, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef) and method.args.args:
                del method.args.args[0]
                arguments = ast.unparse(method.args).replace(str(int(flags.ADDR_UNSPEC)), "ADDR_UNSPEC")
                found[cls.name, method.name] = f"({arguments}) -> {ast.unparse(method.returns or ast.Constant(None))}"
    return found


def extension_members(name: str) -> dict[str, str]:
    """Public members that a class of weft.fi inherits from the extension, or shares with the objects of a real
    libfabric: name -> directive that documents it."""
    module, _, class_name = name.rpartition(".")
    cls = getattr(importlib.import_module(module), class_name)
    own: set[str] = set()
    found = {}
    for base in cls.__mro__:
        if base.__module__ not in ("weft._nic", "weft.fi._of_info"):
            own |= set(vars(base))
            continue
        for member, value in vars(base).items():
            if member.startswith("_") or member in own or member in INTERNAL or not inspect.getdoc(value):
                continue
            signature = stub_signatures().get((base.__name__, member))
            if callable(value) and signature:
                found[member] = f".. automethod:: {name}.{member}{signature}"
            else:
                found[member] = f".. autoattribute:: {name}.{member}"
    return found


class Class(Generated):
    required_arguments = 1

    def make(self) -> list[nodes.Node]:
        lines = [f".. autoclass:: {self.arguments[0]}", "   :members:", "   :exclude-members: __init__", ""]
        if "own" not in self.arguments[1:]:
            lines += ["   " + line for line in extension_members(self.arguments[0]).values()]
        return self.rst(lines)


class Methods(Generated):
    required_arguments = 1

    def make(self) -> list[nodes.Node]:
        shown = self.env.temp_data.setdefault("weft-methods", set())
        members = extension_members(self.arguments[0])
        given = self.arguments[1:]
        wanted = [call.name for call in CALLS if call.table in given] or given
        if given == ["others"]:
            wanted = [name for name in members if name not in shown]
        shown.update(wanted)
        return self.rst([members[name] for name in wanted])


def setup(app: Sphinx) -> dict[str, Any]:
    """Entry point of Sphinx."""
    app.add_directive("weft-settings", SettingsTable)
    app.add_directive("weft-launchers", LauncherTable)
    app.add_directive("weft-help", CommandHelp)
    app.add_directive("weft-commands", OtherCommands)
    app.add_directive("weft-benchmarks", Benchmarks)
    app.add_directive("weft-flags", Flags)
    app.add_directive("weft-ucp-constants", UcpConstants)
    app.add_directive("weft-ucp-statuses", UcpStatuses)
    app.add_directive("weft-errors", Errors)
    app.add_directive("weft-docstring", Docstring)
    app.add_directive("weft-class", Class)
    app.add_directive("weft-methods", Methods)
    return {"parallel_read_safe": True}
