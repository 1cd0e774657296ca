"""The command line: `weft`. Each command's module is imported when the command is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ._text import UsageError
from .perf import COLUMNS, OPS, PATHS, SIZES, SIZES_QUICK

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


_Text = str | None  # typer reads annotations at run time


@app.command()
def info(
    provider: Annotated[_Text, typer.Option("--provider", "-p", metavar="NAME", help="Of this provider.")] = None,
    fabric: Annotated[_Text, typer.Option("--fabric", "-f", metavar="NAME", help="Of this fabric.")] = None,
    domain: Annotated[_Text, typer.Option("--domain", "-d", metavar="NAME", help="Of this domain.")] = None,
    caps: Annotated[_Text, typer.Option("--caps", "-c", metavar="CAP,...", help="Capabilities: rma,atomic ...")] = None,
    mode: Annotated[
        _Text, typer.Option("--mode", "-m", metavar="MODE,...", help="Modes that the application honours.")
    ] = None,
    mr_mode: Annotated[
        _Text,
        typer.Option("--mr-mode", "--mr_mode", metavar="MODE,...", help="Registration modes that it honours."),
    ] = None,
    ep_type: Annotated[
        _Text, typer.Option("--ep-type", "--ep_type", "-t", metavar="TYPE", help="Endpoint type: rdm, msg, dgram.")
    ] = None,
    addr_format: Annotated[
        _Text,
        typer.Option("--addr-format", "--addr_format", "-a", metavar="FORMAT", help="Address format: addr_str ..."),
    ] = None,
    threading: Annotated[_Text, typer.Option(metavar="LEVEL", help="Threading: safe, fid, domain ...")] = None,
    progress: Annotated[_Text, typer.Option(metavar="HOW", help="Progress: auto, manual.")] = None,
    msg_order: Annotated[
        _Text, typer.Option("--msg-order", "--msg_order", metavar="ORDER,...", help="Transmit order: rma_waw ...")
    ] = None,
    inject_size: Annotated[
        _Text, typer.Option("--inject-size", "--inject_size", metavar="BYTES", help="Injects at least these bytes.")
    ] = None,
    max_msg_size: Annotated[
        _Text, typer.Option("--max-msg-size", "--max_msg_size", metavar="BYTES", help="Transfers at least these bytes.")
    ] = None,
    node: Annotated[_Text, typer.Option("--node", "-n", metavar="NAME", help="To this node, or whole address.")] = None,
    service: Annotated[_Text, typer.Option("--service", "--port", "-P", metavar="N", help="To this endpoint.")] = None,
    why: Annotated[bool, typer.Option("--why", help="Show each offer, and which hint rejected it for what.")] = False,
    brief: Annotated[bool, typer.Option("--list", "-l", help="One line an offer.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Every field.")] = False,
    env: Annotated[bool, typer.Option("--env", "-e", help="Only the settings from the environment.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show what providers offer: capabilities, modes, limits, versions; and the settings in force.

    Options are hints, as fi_info's: each narrows what is shown. Names are the man pages', in any case, with or without
    FI_. Exits with 1 where nothing matches.
    """
    from . import info as command

    wishes = command.Wishes(
        node, service, provider, fabric, domain, caps, mode, mr_mode, ep_type, addr_format, threading, progress,
        msg_order, inject_size, max_msg_size,
    )  # fmt: skip
    raise typer.Exit(command.info(wishes, why=why, as_json=json, brief=brief, verbose=verbose, env=env))


@app.command()
def doctor(json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False) -> None:
    """Show what this machine allows, which paths data takes here, why not the others, and what to do.

    Tries each thing, with a second process. Exits with 0 where Weft works, even if not on every path.
    """
    from . import doctor as command

    raise typer.Exit(command.doctor(json))


_PERF_HELP = f"""Measure one-sided operations between two processes, beside the limit of this machine.

Starts its own second process, and ends it; or uses two terminals of a host: --server in one, --connect in the other;
or two hosts: --server --listen tcp://0.0.0.0:7000 on one, --connect HOST:7000 on the other.
Prints a table, or with --json one object a line.

\b
{COLUMNS}
"""


@app.command(help=_PERF_HELP)
def perf(
    ops: Annotated[str, typer.Option(help=f"Operations: {','.join(OPS)}; or all.")] = "all",
    path: Annotated[str, typer.Option(help=f"Paths: {','.join(PATHS)}; or all.")] = "all",
    sizes: Annotated[
        _Text,
        typer.Option(
            metavar="SIZES",
            help=f"Bytes, with K, M, G as powers of 1024. [default: {SIZES}; with --quick {SIZES_QUICK}]. fetch_add is "
            "always 8 bytes, inject_write at most the endpoint's inject_size.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Done within 20 seconds.")] = False,
    seconds: Annotated[
        float | None, typer.Option(metavar="S", help="For all rows together, besides what each needs to begin.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw latency and bandwidth as well: .png or .svg.")
    ] = None,
    server: Annotated[
        bool, typer.Option("--server", help="Start second processes for --connect, until Ctrl-C.")
    ] = False,
    name: Annotated[_Text, typer.Option(metavar="NAME", help="The server's. [default: perf]")] = None,
    listen: Annotated[
        _Text,
        typer.Option(metavar="tcp://HOST:PORT", help="The server is for other hosts; both need the same WEFT_SECRET."),
    ] = None,
    connect: Annotated[
        _Text, typer.Option(metavar="NAME|HOST:PORT", help="Measure against a process of this server.")
    ] = None,
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

    raise typer.Exit(command.perf(ops, path, sizes, quick, json, plot, server, name, connect, seconds, listen))


def main() -> None:
    """The console script."""
    try:
        app()
    except UsageError as e:
        print(f"weft: {e}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as e:
        # Only Weft's own refusals say what to do; for that their module need not be loaded beforehand.
        if "weft.errors" not in sys.modules or not isinstance(e, sys.modules["weft.errors"].FabricError):
            raise
        print(f"weft: {e}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
