"""`weft launch`: a job with its own VNIs and services. Source: fi_cxi(7) "Authorization Keys", launch workflow."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from ._text import UsageError, parse_number, plain_table


def launch(
    command: Sequence[str],
    size: int,
    vni: str,
    vnis: int,
    devices: Sequence[str],
    tclass: Sequence[str],
    limit: Sequence[str],
    grace_s: float,
    keep_going: bool,
    verbose: bool,
    addresses: int | None,
) -> int:
    """The command; its exit status is that of the first failed process. Raises UsageError and FabricError."""
    from .. import errors
    from ..providers.cxi import launch as launching
    from .service import limits_of

    if size < 1:
        raise UsageError(f"-n: {size} processes; at least 1 is needed")
    wanted: int | list[int] = vnis
    if vni != "auto":
        wanted = [parse_number("--vni", word) for word in vni.split(",")]
    job = launching.begin(
        vnis=wanted,
        on=[name for text in devices for name in text.split(",")] or None,
        tclasses=[word.upper() for text in tclass for word in text.split(",")] or None,
        limits=limits_of(list(limit)),
    )
    with job, contextlib.ExitStack() as stack:
        if addresses is not None:
            from . import _fm_job, fm

            stack.enter_context(_fm_job.collectives(job, addresses, fm.beside("fm.db"), fm.own_token()))
        if verbose:
            _tell(job, size)
        try:
            return launching.run(
                job,
                command,
                size,
                grace_s=grace_s,
                keep_going=keep_going,
                ended=_ended if verbose else _failed,
            )
        except errors.NotFound as reason:
            print(f"weft: {reason.message}", file=sys.stderr)
            return 127
        except errors.AccessDenied as reason:
            print(f"weft: {reason.message}", file=sys.stderr)
            return 126


def _tell(job: object, size: int) -> None:
    from rich.console import Console

    from ..providers.cxi.launch import Job

    assert isinstance(job, Job)
    table = plain_table(f"launch {job.id}: {size} processes", "variable", "value")
    variables = {n: v for n, v in os.environ.items() if n.startswith(("FI_CXI_COLL_", "FI_CXI_HWCOLL_"))}
    if "FI_CXI_COLL_MCAST_TOKEN" in variables:
        variables["FI_CXI_COLL_MCAST_TOKEN"] = "(secret)"
    for name, value in {**job.environment(0, size), **variables}.items():
        table.add_row(name, value)
    Console(stderr=True, highlight=False, markup=False, emoji=False).print(table)


def _ended(rank: int, status: int) -> None:
    print(f"weft launch: process {rank} ended with {status}", file=sys.stderr)


def _failed(rank: int, status: int) -> None:
    if status:
        _ended(rank, status)
