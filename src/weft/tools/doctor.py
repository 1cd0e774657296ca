"""`weft doctor`: what this machine allows, who started this process, which paths data will take here, why not the
others, and what to do.

`_machine.py` has the facts, `_launched.py` the launcher. The paths are tested by a write between two processes and the
NIC's statistics.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from .. import __version__, errors
from ..launch import environment
from ._launched import Row, as_dict, rows
from ._machine import Check, checks
from ._text import console
from .perf import LOCAL_PATHS, tcp_pair, why_another_way

_MEMORY = {
    "direct": "memory that Weft allocated (weft.empty, Domain.alloc)",
    "foreign": "memory of NumPy, torch ...",
    "ring": "a peer that shares nothing (WEFT_ISOLATION=strict)",
    "tcp": "a process of another host, here simulated on this host",
}
_WAY = {
    "direct": "load and store: a key check and a copy",
    "foreign": "process_vm_writev and _readv: one copy by the kernel",
    "ring": "the ring, and the owner's engine: two copies",
    "tcp": "a connection over 127.0.0.1, both sides authenticated",
}
MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "bad": ("BAD", "bold red")}


@dataclass(frozen=True)
class DataPath:
    """The result of a write to one kind of memory.

    Attributes:
        path: "direct", "foreign", "ring" or "tcp": the path under test.
        took: The path that the write took; "" if it failed; "not installed": tcp without PyNaCl.
        why: Why the write took another path, or why it failed.
    """

    path: str
    took: str
    why: str = ""

    @property
    def state(self) -> str:
        """The state as in a Check: "bad" if the write did not arrive."""
        return "bad" if not self.took else "ok" if self.took == self.path else "note"


def data_paths() -> Iterator[DataPath]:
    """The results of writes between two processes on each path. The processes end afterwards."""
    from ._measure import Bench
    from ._pair import Side, Target, TargetError

    for kind in ("shared", "ring", "tcp"):
        mine = [kind] if kind != "shared" else [path for path in LOCAL_PATHS if path != "ring"]
        try:
            env = {"WEFT_ISOLATION": "strict" if kind == "ring" else "shared", "WEFT_CMA": "1", "WEFT_SHM": "1"}
            if kind == "tcp":
                env = tcp_pair()
            with Target(4096, env) as target, Side(4096) as side:
                target.greet()
                bench = Bench(side, target, kind == "ring", kind == "tcp")
                try:
                    for path in mine:
                        took = bench.way(path)
                        yield DataPath(
                            path, took, "" if took == path else why_another_way(path, took, bench.why_not_foreign())
                        )
                finally:
                    if bench.bare is not None:
                        bench.bare.close()
        except errors.NoSys as e:
            yield DataPath(kind, "not installed", str(e))
        except (TargetError, errors.FabricError) as e:
            why = str(e)
            if isinstance(e, errors.NoData):
                why = "WEFT_MR_MODE requires a registration mode that this tool does not serve; unset it to try"
            for path in mine:
                yield DataPath(path, "", why)


def doctor(as_json: bool) -> int:
    """The command; its exit status: 0 if Weft works here."""
    from .info import settings_in_force

    settings = settings_in_force()  # first, because an invalid variable would make everything below fail
    found = list(checks())
    paths = list(data_paths())
    started = environment()
    bad = [state for state in (*(c.state for c in found), *(p.state for p in paths)) if state == "bad"]
    if as_json:
        said: dict[str, Any] = {
            "weft": __version__,
            "ok": not bad,
            "checks": [asdict(one) for one in found],
            "paths": [{**asdict(one), "state": one.state} for one in paths],
            "launch": as_dict(started),
            "settings": {name: value for name, (value, _, _) in settings.items()},
        }
        print(json.dumps(said, indent=1))
        return 1 if bad else 0
    _print(found, paths, list(rows(started, settings)))
    if bad:
        print(f"weft doctor: Weft does not work here: {len(bad)} checks are BAD", file=sys.stderr)
        return 1
    print("Weft works here.")
    return 0


def _print(found: list[Check], paths: list[DataPath], started: list[Row]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    def table(title: str, *columns: str) -> Table:
        made = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in columns:
            made.add_column(column, overflow="fold")
        return made

    facts = table("what this machine allows", "", "", "", "found", "which means")
    last = ""
    for one in found:
        if last and one.group != last:
            facts.add_section()
        mark = Text(*MARKS[one.state])
        facts.add_row("" if one.group == last else one.group, one.name, mark, one.found, one.effect)
        last = one.group
    ways = table("paths, each tried with a write to a second process", "data in", "", "goes by", "because")
    for path in paths:
        ways.add_row(_MEMORY[path.path], Text(*MARKS[path.state]), _WAY.get(path.took, "nothing arrived"), path.why)
    start = table("how this process was started", "", "", "found")
    for row in started:
        start.add_row(row.name, Text(*MARKS[row.state]), row.found)
    out = console()
    out.print(facts)
    out.print(start)
    out.print(ways)
    for one in found:
        if one.todo:
            out.print(Text(f"{one.name}: {one.effect}\n  try: {one.todo}", style="yellow"))
