"""The report of a run: every row of the speed budget with its result; the comparison with other libraries; a chart.

    python bench/report.py [RESULT.json] [--output STEM]

Prints both tables; with --output writes STEM.md, and STEM.png where matplotlib is installed. Without a file: the
reference run, reference.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import places
from common import HERE, Row, cells

# The speed budget (the project's design): path, budget, best elsewhere on the machine that the budgets come from, and
# the rows that show it, as (benchmark, pattern of its path). Without such a row, the reason in the last place.
BUDGET: tuple[tuple[str, str, str, tuple[tuple[str, str], ...], str], ...] = (
    ("8 B put, direct path, NIC level", "<= 15 ns a call; seen by a polling peer within 1.1 x floor",
     "UCX 1.13: 9 ns, 1.05 x", (("nic", r"put 8 B, completions read|put 8 B, half round trip to"),), ""),
    ("8 B put from Python", "<= 80 / 120 ns a call (registered / NumPy); half a round trip <= floor + 120 ns",
     "mpi4py on Open MPI: 244 ns; floor + 260",
     (("rma", r"8 B put, (registered slice|NumPy array): a call|8 B put, half a round trip"),), ""),
    ("vectored put and get from Python", "<= 12 ns + copy, a descriptor", "NIXL: 1,200 ns",
     (("batch", r"vectored .* x (8|4096) B"),), ""),
    ("4 KiB put from Python", ">= 30 GB/s, same buffer", "mpi4py 13; UCX in C 75", (("rma", r"^4 KiB put"),), ""),
    (">= 64 KiB put and get, direct path", ">= 0.97 x memcpy between the same buffers, in cache and beyond it",
     "UCX 0.92-0.97", (("rma", r"KiB (put|get), Weft's"),), ""),
    (">= 64 KiB, memory that Weft did not allocate", ">= 0.95 x bare process_vm_writev; huge pages where there are",
     "UCX 1.21", (("rma", r"KiB (put|get), NumPy's"),), "not measured: process_vm_writev is refused here"),
    ("fetch-add, NIC level / from Python", "<= 20 / 110 ns uncontended", "UCX 26; mpi4py 455",
     (("nic", r"fetch-add int64"), ("atomic", r"fetch-add: a call")), ""),
    ("8 B tagged message, half a round trip", "<= floor + 60 / + 200 ns (NIC level / Python)",
     "libfabric shm floor + 55; mpi4py floor + 310",
     (("nic", r"tagged 8 B, (half|the same)"), ("message", r"8 B tagged message, half")), ""),
    ("1 MiB message, half a round trip", "<= 1.2 x memcpy + flag", "libfabric 6 x; iceoryx2 1.9 x",
     (("nic", r"tagged 1 MiB"), ("message", r"1 MiB tagged message")), ""),
    ("matching with 10^5 posted or unexpected", "<= 0.2 us, within 2 x of matching with 10",
     "UCX 2 us; libfabric 170-390; MPI 500", (("nic", r"match.* 100000$"), ("message", r"match")), ""),
    ("registration of memory, any size, NIC level / Python", "<= 0.1 / 0.5 us; 10^6 live regions",
     "libfabric 0.1; MPI attach 0.3", (("nic", r"^register "), ("registration", r"^mr_reg")), ""),
    ("tcp link, loopback", "half a round trip <= 1.15 x a polling bare socket; bandwidth >= 0.9 of one that seals",
     "libfabric 1.24 x; 0.9", (("nic", r"tcp"), ("tcp", r"")), "not measured: the tcp link is not in this version"),
    ("four pollers on two cores", "put <= 1.5 us, tagged <= 3 us half a round trip, never a 4 ms time slice",
     "Open MPI 0.3-0.6, 2.5; UCX up to 3.9 ms",
     (("nic", r"4 pollers"), ("oversubscription", r"four pollers|99th")), ""),
)  # fmt: skip

# The comparison: a row of Weft, and the same operation in other libraries.
RACE: tuple[tuple[str, str, str], ...] = (
    ("rma", r"8 B put, NumPy array: a call", "8 B put: the call"),
    ("rma", r"8 B put and its completion", "8 B put, completed"),
    ("rma", r"8 B get and its completion", "8 B get, completed"),
    ("atomic", r"fetch-add and its completion", "fetch-add, completed"),
    ("elements", r"t\[i\] = x", "RemoteArray t[i] = x"),
    ("elements", r"t\[i\]$", "RemoteArray t[i]"),
    ("elements", r"fetch_add", "RemoteArray fetch_add"),
    ("rma", r"half a round trip", "8 B, half a round trip"),
    ("message", r"8 B tagged message, half a round trip$", "8 B tagged message, half a round trip"),
    ("message", r"8 B tagged message, half a round trip, median", "the same, median"),
    ("nic", r"tagged 8 B, half", "the same in C++, median"),
    ("message", r"1 MiB tagged message, half a round trip$", "1 MiB tagged message, half a round trip"),
    ("message", r"1 MiB tagged message, half a round trip, median", "the same, median"),
    ("nic", r"tagged 1 MiB", "the same in C++, median"),
    ("message", r"messages one way, 64 posted", "8 B messages one way: a message"),
    ("message", r"match of a posted", "match behind 100,000 receives"),
    ("message", r"match of an unexpected", "match behind 100,000 unexpected messages"),
    ("rma", r"^4 KiB put", "4 KiB put"),
    ("rma", r"^64 KiB put, Weft's", "64 KiB put"),
    ("rma", r"^64 KiB get, Weft's", "64 KiB get"),
    ("rma", r"1,024 KiB put, Weft's", "1 MiB put"),
    ("rma", r"1,024 KiB get, Weft's", "1 MiB get"),
    ("ucp", r"8 B put_nbx, NumPy array: a call", "ucp.put_nbx of 8 B: the call"),
    ("ucp", r"8 B put_nbx and flush_nbx", "ucp.put_nbx and flush_nbx of 8 B"),
    ("ucp", r"^fetch-add$", "ucp.atomic_op_nbx: fetch-add"),
    ("ucp", r"half a round trip", "ucp.put_nbx of 8 B, half a round trip"),
    ("ucp", r"^64 KiB put", "ucp.put_nbx of 64 KiB"),
    ("ucp", r"^64 KiB get", "ucp.get_nbx of 64 KiB"),
    ("ucp", r"^mem_map of 1,024 KiB", "ucp: mem_map of 1 MiB"),
)
_PEERS = ("MPICH", "Open MPI", "pyzmq", "shared_memory", "UCX (C)", "libfabric shm (C)")


@dataclass
class Line:
    """A line of the budget; if nothing was measured, `row` is None and `why` has the reason."""

    path: str
    budget: str
    elsewhere: str
    row: Row | None
    why: str


def rows_of(result: dict[str, Any], name: str, pattern: str) -> list[Row]:
    return [Row(**row) for row in result["rows"].get(name, ()) if re.search(pattern, row["path"])]


def budget(result: dict[str, Any]) -> Iterator[Line]:
    """Every row of the budget, with each figure that shows it."""
    for path, said, elsewhere, shown_by, missing in BUDGET:
        found = [row for name, pattern in shown_by for row in rows_of(result, name, pattern)]
        for row in found:
            yield Line(path, said, elsewhere, row, "" if row.met is not False else row.why or beyond(row))
        if not found:
            yield Line(path, said, elsewhere, None, missing or "not measured: its benchmark did not run")


def beyond(row: Row) -> str:
    """A remark on a figure whose benchmark gives no reason."""
    if row.limit is None:
        return "its benchmark measures no limit"
    if row.unit == "GB/s":
        return f"{row.value / row.limit:.2f} of {row.limit_is}"
    return f"{row.value - row.limit:,.0f} {row.unit} beside {row.limit_is}"


BUDGET_HEAD = ("path", "budget", "best elsewhere", "measured here", "", "", "limit in the same run", "reason")


def budget_table(result: dict[str, Any]) -> list[list[str]]:
    table, last = [], ""
    for line in budget(result):
        head = ["", "", ""] if line.path == last else [line.path, line.budget, line.elsewhere]
        last = line.path
        if line.row is None:
            table.append([*head, "", "", "", "", line.why])
        else:
            path, value, _, met, limit, _, _ = cells(line.row)
            table.append([*head, path, value, met or "no budget", limit, line.why])
    return table


def race_table(result: dict[str, Any]) -> list[list[str]]:
    """Weft, the limit, each peer: ns (less is better) or GB/s (more is better)."""
    table = []
    for name, pattern, title in RACE:
        for row in rows_of(result, name, pattern)[:1]:
            found = row.peers or {}
            values = ["absent" if found.get(peer, 0) is None else number(found.get(peer)) for peer in _PEERS]
            table.append([title, row.unit, number(row.value), number(row.limit), *values])
    return table


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


RACE_HEAD = ("from Python", "", "Weft", "limit", *_PEERS)
TWICE_HEAD = ("row", "", "first run", "limit", "place", "second run", "limit", "place")
CHANGED_HEAD = ("row", "", "reference", "now", "x as fast", "its limit")
CHANGED = 1.1
"""A row is listed as changed if it is faster or slower by this factor."""


def place(floors: list[float] | None) -> str:
    """The place of a run, and its floor: before and after, if the machine changed in between."""
    if not floors:
        return ""
    names = [places.place_of(floor) for floor in floors]
    if names[0] == names[-1]:
        return f"{names[0]}, {number(min(floors))} ns"
    return f"{names[0]}, then {names[-1]}"


def twice_table(result: dict[str, Any]) -> list[list[str]]:
    """Every row of both runs, with the place of each."""
    again = result.get("again")
    if not again:
        return []
    table = []
    for name, rows in result["rows"].items():
        second = {row["path"]: row for row in again["rows"].get(name, ())}
        for one in rows:
            row, other = Row(**one), second.get(one["path"])
            first_cells = [number(row.value), number(row.limit), place(result["floors"].get(name))]
            other_cells = ["", ""] if other is None else [number(other["value"]), number(other["limit"])]
            place_again = place(again["floors"].get(name))
            table.append([f"{name}: {row.path}", row.unit, *first_cells, *other_cells, place_again])
    return table


def changed_table(result: dict[str, Any], reference: dict[str, Any]) -> list[list[str]]:
    """Rows that are faster or slower than in the reference, as ratios; the most changed first."""
    found = []
    for name, rows in result["rows"].items():
        known = {row["path"]: Row(**row) for row in reference["rows"].get(name, ())}
        for one in rows:
            row = Row(**one)
            old = known.get(row.path)
            if old is None or not old.value or not row.value or old.unit != row.unit:
                continue
            more = row.unit in ("GB/s", "/s")
            ratio = row.value / old.value if more else old.value / row.value
            limit = ""
            if row.limit and old.limit:
                limit = f"{row.limit / old.limit if more else old.limit / row.limit:.2f}"
            if max(ratio, 1 / ratio) >= CHANGED:
                line = [f"{name}: {row.path}", row.unit, number(old.value), number(row.value), f"{ratio:.2f}", limit]
                found.append((abs(math.log(ratio)), line))
    return [line for _, line in sorted(found, key=lambda each: -each[0])]


def heading(result: dict[str, Any]) -> str:
    m = result["machine"]
    libraries = ", ".join(str(p["library"]) for p in result["peers"].values())
    return (
        f"{m['cores']} cores of {m['cpu']}, Linux {m['linux']}, Python {m['python']}; load {m['load_before']} "
        f"before the run; {result['seconds']} s; {result['time']}. Beside it: {libraries or 'no other library'}."
        + "".join(f" Note: {note}." for note in result["notes"])
    )


def markdown(result: dict[str, Any]) -> str:
    """Both tables as a page."""

    twice = twice_table(result)

    def table(head: tuple[str, ...], lines: list[list[str]]) -> str:
        escaped = [[cell.replace("|", "\\|") for cell in line] for line in (list(head), ["---"] * len(head), *lines)]
        return "\n".join("| " + " | ".join(line) + " |" for line in escaped)

    return (
        f"# Benchmarks\n\n{heading(result)}\n\n## Beside other libraries\n\n{RACE_SAYS}\n\n"
        f"{table(RACE_HEAD, race_table(result))}\n\n"
        + (f"## Each row twice\n\n{TWICE_SAYS}\n\n{table(TWICE_HEAD, twice)}\n\n" if twice else "")
        + f"## The speed budget\n\n{table(BUDGET_HEAD, budget_table(result))}\n"
    )


TWICE_SAYS = (
    "Two runs, each with its place and its floor: between two processors of one core a line of cache moves in 30 to 50 "
    "ns, between two cores in more than 80. A virtual machine decides which it is."
)
BUDGET_SAYS = 'Weft\'s goals, row by row; "best elsewhere" was measured on the machine that the budget comes from.'
RACE_SAYS = (
    "ns (less is better) or GB/s (more is better); the least of many short batches, all in one run. MPI: Win.Put, "
    "Win.Get, Win.Fetch_and_op, each with Win.Flush. pyzmq has messages: a put is a message of a stream, a completed "
    "put a message and its answer. shared_memory is a plain store: no key, no bounds, no completion, and a lock as "
    "atomic. UCX (C) is the cost of libucp without Python: the cost of ctypes is subtracted. Messages: MPI by Send and "
    "Recv, Isend and Irecv; libfabric shm (C) is fi_pingpong of tagged messages, without Python."
)


def show(result: dict[str, Any]) -> None:
    """Both tables, on the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    out = Console(highlight=False, markup=False)
    if not out.is_terminal:
        out = Console(width=190, highlight=False, markup=False)
    for title, head, lines in (
        ("beside other libraries: ns (less is better), GB/s (more is better)", RACE_HEAD, race_table(result)),
        ("the speed budget", BUDGET_HEAD, budget_table(result)),
    ):
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for i, name in enumerate(head):
            table.add_column(name, overflow="fold", justify="right" if head is RACE_HEAD and i > 1 else "left")
        for line in lines:
            table.add_row(*line)
        out.print(table)
    reference = HERE / "reference.json"
    if reference.exists():
        told = json.loads(reference.read_text())
        if told["time"] != result["time"] and (lines := changed_table(result, told)):
            where = "" if told["machine"]["cpu"] == result["machine"]["cpu"] else ", another machine"
            table = Table(
                title=f"changed against reference.json of {told['time']}{where}", title_justify="left", box=SIMPLE_HEAD
            )
            for name in CHANGED_HEAD:
                table.add_column(name, overflow="fold")
            for line in lines:
                table.add_row(*line)
            out.print(table)
    out.print(heading(result), style="dim")


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(result: dict[str, Any], file: Path) -> None:
    """The race as bars, a row of charts; each has its limit as a line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [(title, row) for name, pattern, title in RACE for row in rows_of(result, name, pattern)[:1] if row.peers]
    columns = 4
    figure = Figure(figsize=(14, 3.2 * -(-len(shown) // columns)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(-(-len(shown) // columns), columns, squeeze=False).ravel()
    for axes in grid[len(shown) :]:
        axes.set_axis_off()
    for axes, (title, row) in zip(grid, shown, strict=False):
        names = ["Weft", *(peer for peer in _PEERS if row.peers.get(peer) is not None)]
        values = [row.value, *(row.peers[peer] for peer in names[1:])]
        bars = axes.bar(names, values, color=["C0", *["0.7"] * len(names)])
        axes.bar_label(bars, [number(v) for v in values], fontsize="x-small")
        if row.limit is not None:
            axes.axhline(
                row.limit, color="C3", linewidth=0.8, linestyle="--", label=f"limit: {row.limit_is.partition(':')[0]}"
            )
            axes.legend(fontsize="x-small")
        less = row.unit == "ns"
        axes.set_title(f"{title}, {row.unit} ({'less' if less else 'more'} is better)", fontsize="small")
        if less:
            axes.set_yscale("log")
        axes.margins(y=0.25)
        axes.tick_params(labelsize="x-small")
    figure.savefig(file)


def write(result: dict[str, Any], stem: Path) -> None:
    """STEM.md, and STEM.png where it can be drawn."""
    stem.with_suffix(".md").write_text(markdown(result))
    if can_draw() and any(row.peers for name, pattern, _ in RACE for row in rows_of(result, name, pattern)[:1]):
        draw(result, stem.with_suffix(".png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, nargs="?", default=HERE / "reference.json")
    parser.add_argument("--output", type=Path, metavar="STEM")
    chosen = parser.parse_args()
    result = json.loads(chosen.result.read_text())
    show(result)
    if chosen.output is not None:
        write(result, chosen.output)


if __name__ == "__main__":
    main()
