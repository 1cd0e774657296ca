"""`weft perf`: two processes, one-sided operations between their arrays, and the physical limit beside each figure.

The first form: it starts its own second process. `_pair.py` has the two processes, `_measure.py` the measurements; this
file has the options, the order of things, the table and the lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._measure import Row

__all__ = ["COLUMNS", "UsageError", "parse_names", "parse_sizes", "perf", "rows"]

OPS = ("write", "read", "inject_write", "fetch_add", "batch")
PATHS = ("direct", "foreign", "ring")
SIZES = "8,64,4K,64K,1M"
SIZES_QUICK = "8,4K,64K,1M"
SIZE_MAX = 1 << 30
# Seconds for all rows together, shared out evenly; and rounds of limit, latency and rate in each.
SECONDS, ROUNDS = 60.0, 12
SECONDS_QUICK, ROUNDS_QUICK = 8.0, 5
ROW_SECONDS_MAX = 2.0

_PATHS_SAY = {
    "direct": "memory that Weft allocated; the peer maps it: a key check and a copy",
    "foreign": "memory that NumPy allocated, reached by process_vm_writev and _readv",
    "ring": "nothing is shared (WEFT_ISOLATION=strict at the target): the owner's engine copies",
}

COLUMNS = """\
latency    from the call to its completion, read by the caller: median; p99 is the 99th
           percentile; over samples of about 2 us.
           inject_write reports no completion: half a round trip to a peer that polls its
           memory and writes back. batch: a descriptor's part of one call with up to 256.
rate       operations (batch: descriptors) a second, 64 posted before completions are read.
bandwidth  rate times size.
limit      the least that this machine must do for it, measured in the same seconds, in ns up to
           4 KiB and GB/s above: memcpy between the same buffers; a bare process_vm_writev or
           _readv of the same bytes; a bare atomic add to the same word; one cache line passed
           between the same two processes by plain stores, once, or there and back (x 2).
           The two processes are kept on different cores where there are two.
of it      the share of the limit that was reached; 100 % is all that the machine can do."""


class UsageError(ValueError):
    """An option that cannot be meant. The message says which values there are."""


def parse_names(option: str, text: str, known: Sequence[str]) -> list[str]:
    """A comma-separated choice, in the order of `known`; "all" for all."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["all"]:
        return list(known)
    for word in words:
        if word not in known:
            raise UsageError(
                f"{option}: {word!r} is unknown\n  known: {', '.join(known)}; several joined by ','; or all"
            )
    if not words:
        raise UsageError(f"{option} is empty\n  known: {', '.join(known)}; several joined by ','; or all")
    return [name for name in known if name in words]


def parse_sizes(text: str) -> list[int]:
    """ "8,4K,1MiB" in bytes, ascending, each once. K, M and G are powers of 1024."""
    found = set()
    for word in text.split(","):
        word = word.strip()
        number = word.upper().removesuffix("B").removesuffix("I")
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(number[-1:], 1)
        digits = number[:-1] if scale > 1 else number
        if not (digits.isascii() and digits.isdigit()):
            raise UsageError(
                f"--sizes: {word!r} is no size\n  try: bytes such as 8 or 4096, or 4K, 64K, 1M; joined by ','"
            )
        size = int(digits) * scale
        if not 1 <= size <= SIZE_MAX:
            raise UsageError(f"--sizes: {word!r} is {size} bytes; a size is from 1 to {SIZE_MAX} (1G)")
        found.add(size)
    return sorted(found)


def format_size(size: int) -> str:
    """4096 as "4 KiB"."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def rows(
    ops: Sequence[str],
    paths: Sequence[str],
    sizes: Sequence[int],
    *,
    quick: bool = False,
    seconds: float | None = None,
    note: Callable[[str], None] = lambda text: None,
    begin: Callable[[int], None] = lambda total: None,
) -> Iterator[Row]:
    """Start the second process, measure, yield each row as it is there. All that was opened is closed at the end.

    The calling thread stays on one core meanwhile, the second process off it.

    seconds   for all rows together.
    note      told what is out of the ordinary: a path that this machine does not have.
    begin     told the number of rows.

    Raises TargetError when the second process dies or hangs.
    """
    from ._measure import Bench, bytes_needed, plan
    from ._pair import Side, Target

    nbytes = max(bytes_needed(size) for size in (*sizes, 8))
    with contextlib.ExitStack() as stack:
        # Both are started before either is waited for: most of a start is imports.
        targets: dict[bool, Target] = {}
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            # Two processes that poll for each other end up on one core often enough (the scheduler takes them for a
            # pipeline), and then every figure is a time slice.
            stack.callback(os.sched_setaffinity, 0, cores)
            os.sched_setaffinity(0, cores[:1])
        for ring in sorted({path == "ring" for path in paths}):
            env = {"WEFT_ISOLATION": "strict" if ring else "shared", "WEFT_CMA": "1"}
            targets[ring] = stack.enter_context(Target(nbytes, env, cores[1:]))
        side = stack.enter_context(Side(nbytes))
        benches = {}
        for ring, target in targets.items():
            target.greet()
            benches[ring] = Bench(side, target, ring)
        work = [
            (benches[path == "ring"], *step)
            for path in paths
            for step in plan(benches[path == "ring"], path, list(ops), list(sizes))
        ]
        begin(len(work))
        for path in paths:
            bench = benches[path == "ring"]
            way = bench.way(path)
            if way != path:
                note(_why_another_way(path, way, bench.why_not_foreign()))
        total = seconds if seconds is not None else SECONDS_QUICK if quick else SECONDS
        each = min(total / max(len(work), 1), ROW_SECONDS_MAX / (4 if quick else 1))
        for bench, op, path, size in work:
            yield bench.row(op, path, size, each, ROUNDS_QUICK if quick else ROUNDS)


def _why_another_way(path: str, way: str, reason: str) -> str:
    if os.environ.get("WEFT_ISOLATION") == "strict":
        return f"{path}: the rows went through the {way}: WEFT_ISOLATION=strict is set; unset it to measure {path}"
    if path == "foreign":
        if os.environ.get("WEFT_CMA") == "0":
            return f"foreign: the rows went through the {way}: WEFT_CMA=0 is set; unset it to measure process_vm_writev"
        return f"foreign: the rows went through the {way}: process_vm_writev is not possible here ({reason})"
    return f"{path}: the rows went through the {way}"


# ---- what people see -----------------------------------------------------------------------------------------------


def perf(ops: str, path: str, sizes: str | None, quick: bool, as_json: bool) -> int:
    """The command; its exit status."""
    from ._pair import TargetError

    wanted_ops = parse_names("--ops", ops, OPS)
    wanted_paths = parse_names("--path", path, PATHS)
    wanted_sizes = parse_sizes(sizes if sizes is not None else SIZES_QUICK if quick else SIZES)
    notes: list[str] = []
    try:
        if as_json:
            for row in rows(wanted_ops, wanted_paths, wanted_sizes, quick=quick, note=_say_note):
                print(json.dumps(row.json()), flush=True)
        else:
            _table(
                lambda begin: rows(wanted_ops, wanted_paths, wanted_sizes, quick=quick, note=notes.append, begin=begin),
                notes,
            )
    except TargetError as e:
        print(f"weft perf: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("weft perf: interrupted; both processes have ended", file=sys.stderr)
        return 130
    return 0


def _say_note(text: str) -> None:
    print(f"weft perf: {text}", file=sys.stderr, flush=True)


def _table(measure: Callable[[Callable[[int], None]], Iterator[Row]], notes: list[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=112)  # a file or a pipe has no width of its own
    wide = console.width >= 96
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    found: list[Row] = []
    try:
        with progress:
            task = progress.add_task("starting the second process", total=None)
            for row in measure(lambda total: progress.update(task, total=total)):
                found.append(row)
                progress.update(task, advance=1, description=f"{row.op} {row.path} {format_size(row.size)}")
    finally:  # also what there is when it ends early
        for path in dict.fromkeys(row.path for row in found):
            table = Table(
                title=f"{path}: {_PATHS_SAY[path]}",
                title_justify="left",
                title_style="bold",
                box=SIMPLE_HEAD,
                padding=(0, 1, 0, 0),
            )
            table.add_column("", no_wrap=True)
            for name in ("size", "latency", "p99", "rate", "bandwidth", "limit", "of it"):
                table.add_column(name, justify="right", no_wrap=True)
            if wide:
                table.add_column("the limit is", no_wrap=True)
            last = ""
            for row in found:
                if row.path == path:
                    cells = _cells(row)
                    table.add_row("" if row.op == last else row.op, *cells, *([row.limit_name or ""] if wide else []))
                    last = row.op
            console.print(table)
    for text in notes:
        console.print(f"note: {text}", style="yellow", highlight=False)
    console.print(COLUMNS, style="dim", highlight=False, markup=False)


def _cells(row: Row) -> list[str]:
    limit = ""
    if row.limit_value is not None:
        from ._measure import SMALL_MAX

        limit = format_time(row.limit_value) if row.size <= SMALL_MAX else f"{row.limit_value:.1f} GB/s"
    return [
        format_size(row.size),
        format_time(row.latency_ns_median),
        format_time(row.latency_ns_p99),
        format_rate(row.rate_per_s),
        format_bandwidth(row.bandwidth_GBps),
        limit,
        f"{row.limit_share * 100:.0f} %" if row.limit_share is not None else "",
    ]


def format_time(ns: float | None) -> str:
    """Nanoseconds with three digits and a unit."""
    if ns is None:
        return ""
    for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns >= scale:
            return f"{ns / scale:.3g} {unit}"
    return f"{ns:.3g} ns"


def format_rate(rate: float | None) -> str:
    """Operations a second."""
    if rate is None:
        return ""
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= scale:
            return f"{rate / scale:.3g} {unit}/s"
    return f"{rate:.3g} /s"


def format_bandwidth(gbps: float | None) -> str:
    """GB/s, or MB/s below 0.1 of them."""
    if gbps is None:
        return ""
    return f"{gbps:.3g} GB/s" if gbps >= 0.1 else f"{gbps * 1e3:.3g} MB/s"
