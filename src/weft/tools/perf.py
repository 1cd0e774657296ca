"""`weft perf`: one-sided operations and messages between two processes, with the physical limit of each figure.

It starts its own second process, or uses a server's (`--server`, `--connect`). `_pair.py` has the two processes,
`_server.py` the server, `_measure.py` the measurements, `_messages.py` those of messages, `_plot.py` the charts; this
file has the options, the sequence, the table and the lines of JSON.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._text import (
    UsageError,
    console,
    format_bandwidth,
    format_rate,
    format_size,
    format_time,
    parse_names,
    parse_sizes,
)

if TYPE_CHECKING:
    from ._measure import Row
    from ._pair import Target

OPS = ("write", "read", "inject_write", "fetch_add", "batch", "send", "tsend", "match_posted", "match_unexpected")
MATCHES = OPS[-2:]  # an endpoint with itself, on no path between processes
PATHS = ("direct", "foreign", "ring", "tcp")
LOCAL_PATHS = PATHS[:3]  # between processes of one host
OFI = "ofi"  # the path of a provider of a real libfabric; its rows have the provider's name
SIZES = "8,64,4K,64K,1M"
SIZES_QUICK = "8,4K,64K,1M"
# Seconds for all rows together, divided evenly; and rounds of limit, latency and rate in each row.
SECONDS, ROUNDS = 60.0, 12
SECONDS_QUICK, ROUNDS_QUICK = 8.0, 5
SECONDS_MAX = 3600.0
ROW_SECONDS_MAX = 2.0  # the maximum for a row if the user gave no time

_PATHS_SAY = {
    "direct": "memory that Weft allocated; the peer maps it: a key check and a copy",
    "foreign": "memory that NumPy allocated, reached by process_vm_writev and _readv",
    "ring": "nothing is shared (WEFT_ISOLATION=strict at the target): the owner's engine copies",
    "tcp": "as between hosts: a connection, the owner's engine or polls at its end",
    "self": "an endpoint that sends to itself: the time of a match",
}

COLUMNS = """\
latency    from the call to its completion, read by the caller: median; p99 is
           the 99th percentile; over samples of about 2 us.
           inject_write reports no completion: half a round trip to a peer
           that polls its memory and writes back. send, tsend: half a round
           trip to a peer that receives the message and sends one back. batch:
           a descriptor's part of one call with up to 256. match: a tinject to
           itself that takes one of many posted receives, or the trecv that
           takes one of many unexpected messages, at random, with its
           completion.
rate       operations (batch: descriptors) a second, 64 posted before
           completions are read. send, tsend: messages one way, to a peer with
           128 receives posted, until it has all.
bandwidth  rate times size.
limit      the least that this machine must do for it, measured in the same
           seconds, in ns up to 4 KiB and GB/s above: memcpy between the same
           buffers; a bare process_vm_writev or _readv of the same bytes; a
           bare atomic add to the same word; one cache line passed between the
           same two processes by plain stores, once, or there and back (x 2);
           for tcp a bare socket that both poll, once or there and back, or a
           stream over it; for a match, the same behind 64 entries.
           The two processes are kept on different cores where there are two.
           Of a real libfabric's providers: a cache line or memcpy, or a bare
           socket, as of ring and tcp.
of         it      the share of the limit that was reached; 100 % is all that
           the machine can do."""

ABOVE = (
    "above 100 %: the limit is a measurement, too, taken in turn with the row. It varies by some per cent, more on a "
    "busy machine, and a row with several operations under way at a time, or with its bytes in a cache, can pass it"
)
"""Printed if a row exceeds its limit."""


def rows(
    ops: Sequence[str],
    paths: Sequence[str],
    sizes: Sequence[int],
    *,
    quick: bool = False,
    seconds: float | None = None,
    connect: str | None = None,
    provider: str | None = None,
    note: Callable[[str], None] = lambda text: None,
    begin: Callable[[int], None] = lambda total: None,
) -> Iterator[Row]:
    """Start the second process, measure, and yield each finished row. All objects are closed at the end.

    The calling thread stays on one core, and the second process runs on the others.

    Args:
        seconds: Time for all rows together.
        connect: Name of the server that starts the second process, or host:port of a server on another host (then the
            path is tcp); None: this process starts it.
        provider: Name of the provider on both sides; None: the first one. Of a real libfabric ("ofi:..."): of the path
            "ofi"; the other paths are then those of Weft's first provider.
        note: Called with remarks: a path that this machine does not have.
        begin: Called with the number of rows.

    Raises:
        TargetError: The second process dies or hangs.
    """
    from . import _real
    from ._hosts import HostTarget
    from ._measure import Bench, bytes_needed, depths, match_row, plan
    from ._pair import Side, Target
    from ._server import RemoteTarget

    def kind_of(path: str) -> str:
        return path if path in ("ring", "tcp", OFI) else "shared"

    real: str | None = None
    if provider is not None and _real.is_real(provider):
        provider, real = None, provider

    matches = [op for op in ops if op in MATCHES]
    ops = [op for op in ops if op not in MATCHES]
    paths = paths if ops else ()
    nbytes = max(bytes_needed(size) for size in (*sizes, 8))
    with contextlib.ExitStack() as stack:
        # Start both before waiting for either, because imports take most of the time.
        targets: dict[str, Target] = {}
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            # The scheduler often puts two processes that poll for each other on one core, like a pipeline; each figure
            # would then be a time slice.
            stack.callback(os.sched_setaffinity, 0, cores)
            os.sched_setaffinity(0, cores[:1])
        for kind in sorted(map(kind_of, set(paths))):
            env = {"WEFT_ISOLATION": "strict" if kind == "ring" else "shared", "WEFT_CMA": "1", "WEFT_SHM": "1"}
            if kind in targets:
                continue
            if kind == OFI:
                targets[kind] = stack.enter_context(Target(nbytes, {}, cores[1:], real))
                continue
            if kind == "tcp" and connect is not None:
                there = HostTarget(connect, nbytes, provider)
                targets[kind] = stack.enter_context(there)
                _listen(there.here)
                continue
            if kind == "tcp":
                env = tcp_pair()
            start = Target if connect is None else functools.partial(RemoteTarget, connect)
            targets[kind] = stack.enter_context(start(nbytes, env, cores[1:], provider))
        if set(targets) - {OFI}:
            side = stack.enter_context(Side(nbytes, provider))
        benches = {}
        for kind, target in targets.items():
            target.greet()
            if kind == OFI and real is not None:
                benches[kind] = _real_bench(stack.enter_context(Side(nbytes, real)), target, real)
            else:
                benches[kind] = Bench(side, target, kind == "ring", kind == "tcp")
        rounds = ROUNDS_QUICK if quick else ROUNDS
        work: list[Callable[..., Row]] = [
            functools.partial(benches[kind_of(path)].row, op, path if path != OFI else real or OFI, size, rounds=rounds)
            for path in paths
            for op, _, size in plan(benches[kind_of(path)], path, list(ops), list(sizes))
        ]
        known = depths(provider) if matches else []
        work += [
            functools.partial(match_row, op, depth, rounds=rounds, provider=provider)
            for op in matches
            for depth in known
        ]
        begin(len(work))
        for path in paths:
            if path == OFI:
                if real is not None and (none := [op for op in ops if not benches[OFI].sizes(op, list(sizes))]):
                    note(f"{real}: no rows of {', '.join(none)}, which it does not have, or not of these sizes")
                continue
            bench = benches[kind_of(path)]
            way = bench.way(path)
            if way != path:
                note(why_another_way(path, way, bench.why_not_foreign()))
        each = (seconds or (SECONDS_QUICK if quick else SECONDS)) / max(len(work), 1)
        if seconds is None:
            each = min(each, ROW_SECONDS_MAX / (4 if quick else 1))
        for row in work:
            yield row(seconds=each)


def _real_bench(side: Any, target: Any, provider: str) -> Any:
    """The measurements through a provider of a real libfabric."""
    from ._measure_real import RealBench

    return RealBench(side, target, provider)


def tcp_pair() -> dict[str, str]:
    """The environment of a second process of this host that is reached by tcp; this process listens."""
    from .. import _process, settings

    secret = settings.secret(settings.load())
    if secret is None:
        made = secrets.token_hex(32)
        secret = made.encode()
        _process.use_secret(made)  # for this measurement only
    _listen("127.0.0.1")
    return {
        "WEFT_LISTEN": "tcp://127.0.0.1:0",
        "WEFT_ADVERTISE": "",
        "WEFT_SECRET": secret.decode(),
        "WEFT_SECRET_FILE": "",
        "WEFT_SHM": "0",
    }


def _listen(here: str) -> None:
    """Listen, so that the second process can write back."""
    from .. import _process

    if _process.nic().tcp_listening() is None:
        _process.listen(f"tcp://[{here}]:0" if ":" in here else f"tcp://{here}:0")


def why_another_way(path: str, way: str, reason: str) -> str:
    """A sentence on a path that this machine or its environment does not have; `reason` is the kernel's error."""
    said = f"{path}: the writes went through the {way}"
    if os.environ.get("WEFT_ISOLATION") == "strict":
        return f"{said}: WEFT_ISOLATION=strict is set; unset it for the {path} path"
    if path == "foreign" and os.environ.get("WEFT_CMA") == "0":
        return f"{said}: WEFT_CMA=0 is set; unset it for process_vm_writev"
    return f"{said}: process_vm_writev is not possible here ({reason})" if path == "foreign" else said


# ---- output --------------------------------------------------------------------------------------------------------


def perf(
    ops: str,
    path: str,
    sizes: str | None,
    quick: bool,
    as_json: bool,
    plot: Path | None = None,
    server: bool = False,
    name: str | None = None,
    connect: str | None = None,
    seconds: float | None = None,
    listen: str | None = None,
    provider: str | None = None,
) -> int:
    """The command; its exit status. Raises UsageError."""
    from ._text import is_place

    if listen is not None and (not server or name is not None):
        raise UsageError(
            "--listen is the address of a --server for other hosts\n  try: --server --listen tcp://0.0.0.0:7000"
        )
    if server or name is not None:
        asked = ops != "all" or path != "all" or sizes is not None or quick or as_json or plot or connect or seconds
        asked = asked or provider is not None
        if not server:
            raise UsageError("--name is the name of a --server\n  try: --server --name NAME, or --connect NAME")
        if asked:
            raise UsageError(
                "--server takes only --name: the client decides what is measured\n"
                "  try: weft perf --server here, and the other options with --connect in the other terminal"
            )
        return _serve(name, listen)
    if connect is not None and is_place(connect):
        if path not in ("all", "tcp"):
            raise UsageError(f"--path {path}: another host is reached only by tcp\n  try: --path tcp, or no --path")
        path = "tcp"
    elif connect is not None:
        if "tcp" in path.split(","):
            raise UsageError(
                "--path tcp: a server on this host is not reached by tcp\n"
                "  try: without --connect, or --connect HOST:PORT"
            )
        path = ",".join(LOCAL_PATHS) if path == "all" else path
    if provider is not None:
        path = _paths_of(provider, path, connect)
    real = provider is not None and provider.startswith(OFI + ":")
    wanted_ops = parse_names("--ops", ops, OPS)
    if real and ops == "all":
        wanted_ops = [op for op in wanted_ops if op not in MATCHES]
    wanted_paths = parse_names("--path", path, (*PATHS, OFI) if real else PATHS)
    wanted_sizes = parse_sizes(sizes if sizes is not None else SIZES_QUICK if quick else SIZES)
    if seconds is not None and not 0 < seconds <= SECONDS_MAX:
        raise UsageError(f"--seconds: {seconds:g} s is not a valid time\n  try: from 0.1 to {SECONDS_MAX:g}")
    if plot is not None:
        from . import _plot

        _plot.check("--plot", plot)
    found: list[Row] = []
    notes: list[str] = []
    try:
        from ._pair import TargetError

        try:
            measure = functools.partial(
                rows, wanted_ops, wanted_paths, wanted_sizes, quick=quick, connect=connect, seconds=seconds,
                provider=provider,
            )  # fmt: skip
            if as_json:
                for row in measure(note=_say):
                    found.append(row)
                    print(json.dumps(row.json()), flush=True)
            else:
                _table(lambda begin: measure(note=notes.append, begin=begin), found, notes)
        except TargetError as e:
            _say(str(e))
            return 1
        if plot is not None:
            _plot.draw(found, plot)
            _say(f"wrote {plot}")
    except KeyboardInterrupt:
        _say("interrupted; both processes have ended")
        return 130
    return 0


def _paths_of(provider: str, path: str, connect: str | None) -> str:
    """The paths on which a provider is measured. Raises UsageError: an unknown provider, or a path that it has not.

    A provider of a real libfabric has its own path, measured beside Weft's path that does the same work.
    """
    from .. import fi
    from . import _real

    if _real.is_real(provider):
        if connect is not None:
            raise UsageError(
                f"--provider {provider}: measured between two processes that it starts itself\n"
                f"  try: without --connect; between two hosts `weft pingpong -p {provider}`"
            )
        _real.check(provider)
        twin = "tcp" if _real.over_sockets(provider) else "direct"
        return f"{twin},{OFI}" if path == "all" else path
    known = list(dict.fromkeys(str(info.fabric_attr.prov_name) for info in fi.getinfo()))
    parse_names("--provider", provider, known)
    if provider == known[0]:
        return path
    if "tcp" in path.split(","):
        raise UsageError(
            f"--provider {provider}: the second process has the same device, which is reached by tcp only from others\n"
            f"  try: {'without --path tcp' if connect is None else f'weft pingpong -p {provider} on both hosts'}"
        )
    return ",".join(LOCAL_PATHS) if path == "all" else path


def _serve(name: str | None, listen: str | None) -> int:
    from . import _hosts
    from ._server import NAME, serve

    def say(text: str) -> None:
        print(f"weft perf: {text}", flush=True)

    try:
        if listen is not None:
            _hosts.serve(listen, say)
        serve(NAME if name is None else name, say)
    except KeyboardInterrupt:
        _say("the server has ended")
    return 0


def _say(text: str) -> None:
    print(f"weft perf: {text}", file=sys.stderr, flush=True)


def _table(measure: Callable[[Callable[[int], None]], Iterator[Row]], found: list[Row], notes: list[str]) -> None:
    """Measure with a progress bar, into `found`; print a table for each path, also if the measurement ends early."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    out = console()
    wide = out.width >= 96
    errors = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
    try:
        with progress:
            task = progress.add_task("starting the second process", total=None)
            for row in measure(lambda total: progress.update(task, total=total)):
                found.append(row)
                progress.update(task, advance=1, description=f"{row.op} {row.path} {_of(row)}")
    finally:
        for path in dict.fromkeys(row.path for row in found):
            table = Table(
                title=f"{path}: {_PATHS_SAY.get(path) or _library()}",
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
            out.print(table)
    for text in notes:
        out.print(f"note: {text}", style="yellow")
    if any((row.limit_share or 0) > 1.005 for row in found):
        out.print(f"note: {ABOVE}", style="yellow")
    out.print(COLUMNS, style="dim")


def _library() -> str:
    """What a path through a real libfabric is."""
    from ..providers.ofi import library

    return f"through {library.version_text()}; both processes poll their queues"


def _of(row: Row) -> str:
    """The size of a row, or the entries that its match is behind."""
    return format_size(row.size) if row.depth is None else f"{row.depth:,} entries"


def _cells(row: Row) -> list[str]:
    from ._measure import SMALL_MAX

    limit = ""
    if row.limit_value is not None:
        limit = format_time(row.limit_value) if row.size <= SMALL_MAX else f"{row.limit_value:.1f} GB/s"
    return [
        _of(row),
        format_time(row.latency_ns_median),
        format_time(row.latency_ns_p99),
        format_rate(row.rate_per_s),
        format_bandwidth(row.bandwidth_GBps),
        limit,
        f"{row.limit_share * 100:.0f} %" if row.limit_share is not None else "",
    ]
