"""`weft doctor --watch`: what keeps messages of this user's processes from moving (CXI provider). Opens nothing.

Source: fi_cxi(7) "Rendezvous Messages", "Selecting Proper Receive Match Mode".
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING

from .. import fi  # noqa: F401  # first: it registers the provider, and the modules import each other
from ..providers.cxi import registry, trouble
from ._text import console, plain_table

if TYPE_CHECKING:
    from rich.table import Table

LOOK_S = 0.5


def watch(once: bool, as_json: bool) -> int:
    """The command; its exit status with --once: 0 if nothing is stuck."""
    if once or as_json:
        found = trouble.read()
        if as_json:
            rows = [{"process": one.process, "since": one.since, **one.stuck._asdict()} for one in found]
            print(json.dumps({"registry": str(registry.folder()), "ok": not found, "stuck": rows}, indent=1))
        elif found:
            console().print(_table(found))
        else:
            print("Nothing is stuck.")
        return int(bool(found))
    from rich.live import Live

    with contextlib.suppress(KeyboardInterrupt), Live(_table(trouble.read()), console=console()) as live:
        while True:
            time.sleep(LOOK_S)
            live.update(_table(trouble.read()))
    return 0


def _table(found: list[trouble.Report]) -> Table:
    title = f"messages that are stuck, in {registry.folder()}" + ("" if found else ": none")
    table = plain_table(title, "process", "endpoint", "s", "stuck", "in force, and wanted")
    for process, since, one in found:
        table.add_row(
            process,
            f"{one.endpoint} of {one.device}, service {one.service}",
            f"{max(time.time() - since, 0):.0f}",
            f"{one.resource}: {one.what}",
            f"{one.in_force}; wanted: {one.wanted}",
        )
        table.add_row("", "", "", f"try: {one.advice}", "")
    return table
