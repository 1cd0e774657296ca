"""Part of `weft doctor`: the launcher that started this process, as rows of a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..launch import Launch, Launcher

_HOSTS_SHOWN = 6


@dataclass(frozen=True)
class Row:
    """A line of the table. state: "ok", or "note" for what is inconsistent."""

    name: str
    state: str
    found: str


def as_dict(found: Launch) -> dict[str, Any]:
    """For --json: the fields of `Launch`, and those of the innermost launcher at the top."""
    inner = {name: getattr(found, name) for name in ("name", "rank", "size", "local_rank", "local_size")}
    return {**inner, **asdict(found)}


def rows(found: Launch, settings: Mapping[str, tuple[Any, Any, Any]]) -> Iterator[Row]:
    """The lines; `settings` as in `weft info --env`, of which the hosts' line uses WEFT_LISTEN."""
    if not found.launchers:
        yield Row("launcher", "ok", "none is recognised: this process was started by hand, or by another program")
    for at, one in enumerate(found.launchers):
        yield Row("launcher" if not at else "around it", "ok", _told(one))
    if found.allocation:
        yield Row("allocation", "ok", found.allocation)
    if found.hosts:
        more = len(found.hosts) - _HOSTS_SHOWN
        shown = ", ".join(found.hosts[:_HOSTS_SHOWN]) + (f" and {more} more" if more > 0 else "")
        yield Row("hosts", "ok", f"{len(found.hosts)}, from {found.hosts_from}: {shown}")
    if found.pmi:
        yield Row("process manager", "ok", f"{found.pmi}: an MPI library can meet by it; Weft does not use it")
    net = found.slingshot
    if net is not None:
        parts = (("VNIs", net.vnis), ("devices", net.devices), ("services", net.services), ("classes", net.tcs))
        shown = "; ".join(f"{what} {', '.join(map(str, values))}" for what, values in parts if values)
        yield Row("Slingshot", "ok", shown or "nothing that can be read")
    for problem in found.problems:
        yield Row("inconsistent", "note", problem)
    for note in found.notes:
        yield Row("", "ok", note)
    if len(found.hosts) > 1 and not settings["WEFT_LISTEN"][0]:
        yield Row(
            "other hosts",
            "note",
            f"the job has {len(found.hosts)} hosts, and WEFT_LISTEN is not set: arrays are for processes of this host, "
            "unless the program says weft.open(listen=..., secret=...)",
        )


def _told(one: Launcher) -> str:
    text = f"{one.name}: rank {_or(one.rank)} of {_or(one.size)}"
    if one.local_rank is not None or one.local_size is not None:
        text += f"; on this host {_or(one.local_rank)} of {_or(one.local_size)}"
    if one.node is not None:
        text += f"; host number {one.node}"
    if one.job:
        text += f"; job {one.job}"
    return text + (f"; rank 0 is met at {one.address}" if one.address else "")


def _or(value: int | None) -> str:
    return "?" if value is None else str(value)
