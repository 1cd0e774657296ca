"""`weft perf --plot`: latency and bandwidth over size, for each operation and its limit.

Needs matplotlib (weft-fabric[plot]), and imports it only to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ._text import UsageError, format_size

if TYPE_CHECKING:
    from ._measure import Row

SUFFIXES = (".png", ".svg")
_STYLES = {"direct": "-", "foreign": "--", "ring": ":", "tcp": "-."}
_OTHER = (0, (6, 1, 1, 1, 1, 1))  # a provider of a real libfabric


def check(option: str, file: Path) -> None:
    """Raise UsageError, before the measurement, if `draw` could not write this file."""
    if file.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"{option}: {file.name!r} ends in neither .png nor .svg\n  try: {option} {file.stem or 'plot'}.png"
        )
    if not file.parent.is_dir():
        raise UsageError(f"{option}: there is no folder {str(file.parent)!r}\n  try: make it first")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(
            f"{option} draws with matplotlib, which is not installed\n"
            "  try: pip install 'weft-fabric[plot]', or use --json and another tool"
        ) from None


def draw(rows: Sequence[Row], file: Path) -> None:
    """Two charts side by side: latency (band: up to the 99th percentile) and bandwidth, limits as thin grey lines.

    Raises UsageError if the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from ._measure import SMALL_MAX

    figure = Figure(figsize=(12, 5), layout="constrained")
    FigureCanvasAgg(figure)  # no window, under every setting of the user's matplotlib
    latency, bandwidth = figure.subplots(1, 2)
    rows = [row for row in rows if row.depth is None]  # a match has a depth and no bandwidth
    ops = list(dict.fromkeys(row.op for row in rows))
    for op, path in dict.fromkeys((row.op, row.path) for row in rows):
        of = sorted((row for row in rows if (row.op, row.path) == (op, path)), key=lambda row: row.size)
        sizes = [row.size for row in of]
        look = {"color": f"C{ops.index(op)}", "linestyle": _STYLES.get(path, _OTHER), "marker": "o", "markersize": 4}
        middle = [row.latency_ns_median or 0.0 for row in of]
        latency.plot(sizes, middle, label=f"{op}, {path}", **look)
        latency.fill_between(sizes, middle, [row.latency_ns_p99 or 0.0 for row in of], color=look["color"], alpha=0.1)
        bandwidth.plot(sizes, [row.bandwidth_GBps or 0.0 for row in of], **look)
        # A limit is in ns up to SMALL_MAX, and in GB/s (bytes a ns) above.
        grey = {"color": "grey", "linewidth": 0.8, "linestyle": _STYLES.get(path, _OTHER)}
        limited = [(row.size, row.limit_value) for row in of if row.limit_value]
        latency.plot(
            [size for size, _ in limited], [v if size <= SMALL_MAX else size / v for size, v in limited], **grey
        )
        large = [(size, v) for size, v in limited if size > SMALL_MAX]
        bandwidth.plot([size for size, _ in large], [v for _, v in large], **grey)
    for axes, what, unit in ((latency, "latency: median, and up to p99", "ns"), (bandwidth, "bandwidth", "GB/s")):
        axes.set(xscale="log", yscale="log", xlabel="size", ylabel=unit, title=what)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: format_size(int(value)))
        axes.tick_params(axis="x", labelrotation=45)
        axes.grid(alpha=0.3)
    bandwidth.plot([], [], color="grey", linewidth=0.8, label="limit in the same run")
    figure.legend(loc="outside right center", fontsize="small")
    try:
        figure.savefig(file)
    except OSError as e:
        raise UsageError(f"--plot: cannot write {str(file)!r}: {e.strerror}") from None
