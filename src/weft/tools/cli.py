"""The command line: `weft`. Each command's module is imported when the command is called."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .. import __version__
from .perf import COLUMNS, OPS, PATHS, SIZES, SIZES_QUICK, UsageError

__all__ = ["app", "main"]

app = typer.Typer(
    name="weft",
    help="Weft: a memory fabric in software.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"weft {__version__}")
        raise typer.Exit


@app.callback()
def _weft(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


_PERF_HELP = f"""Measure one-sided operations between two processes, beside the limit of this machine.

Starts its own second process, and ends it. Prints a table, or with --json one object a line.

\b
{COLUMNS}
"""


@app.command(help=_PERF_HELP)
def perf(
    ops: Annotated[str, typer.Option(help=f"Operations: {','.join(OPS)}; or all.")] = "all",
    path: Annotated[str, typer.Option(help=f"Paths: {','.join(PATHS)}; or all.")] = "all",
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help=f"Bytes, with K, M, G as powers of 1024. [default: {SIZES}; with --quick {SIZES_QUICK}]. fetch_add is "
            "always 8 bytes, inject_write at most the endpoint's inject_size.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Done within 20 seconds.")] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object a line: op, path, size, latency_ns_median, latency_ns_p99, rate_per_s, "
            "bandwidth_GBps, limit_name, limit_value, limit_share; null where a field does not apply.",
        ),
    ] = False,
) -> None:
    from . import perf as command

    raise typer.Exit(command.perf(ops, path, sizes, quick, json))


def main() -> None:
    """The console script."""
    try:
        app()
    except UsageError as e:
        print(f"weft: {e}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
