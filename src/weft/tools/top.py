"""`weft top`: NICs, endpoints, queues, counters, retries and flow control of this user's processes. Opens no NIC.

Processes answer when they are asked (weft.observe); the counts of a CXI device are those of its page, which all
processes of the registry share (providers/cxi/telemetry.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .. import fi  # noqa: F401  # first: it registers the provider, and the modules import each other
from ..observe import Process, Rates, View, Viewer, rates
from ..observe.views import EndpointView
from ..providers.cxi import device, registry, telemetry
from ._text import UsageError, console, format_rate, plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

INTERVAL_S_MIN = 0.1
ONCE_S = 0.5  # between the two answers of --once


@dataclass(frozen=True)
class Nic:
    """A CXI device: its packets so far, and a second."""

    name: str
    up: bool
    sent: int
    received: int
    sent_rate: float | None = None
    received_rate: float | None = None


@dataclass
class Look:
    """What all processes said at one time."""

    time_s: float
    processes: list[Process]
    nics: list[Nic]
    names: dict[int, str]  # number of a CXI device's NIC -> the device's name
    rates: dict[str, Rates] = field(default_factory=dict)  # by name of the process


def top(once: bool, as_json: bool, interval_s: float, pids: Sequence[int]) -> int:
    """The command; its exit status. Raises UsageError."""
    if not interval_s >= INTERVAL_S_MIN:  # also nan
        raise UsageError(f"--interval: {interval_s:g} s is too short\n  rule: at least {INTERVAL_S_MIN:g} s")
    looks = _looks(Viewer(set(pids) if pids else None), min(interval_s, ONCE_S) if once else interval_s)
    if once:
        next(looks)
        look = next(looks)
        print(json.dumps(_json(look))) if as_json else _print(look)
        return 0
    if as_json or not sys.stdout.isatty():
        next(looks)
        for look in looks:
            print(json.dumps(_json(look)), flush=True) if as_json else _print(look)
        return 0
    from rich.live import Live

    with contextlib.suppress(KeyboardInterrupt), Live(console=console(), screen=True, auto_refresh=False) as live:
        for look in looks:
            live.update(_page(look), refresh=True)
    return 0


# ---- looking ---------------------------------------------------------------------------------------------------------


def _looks(viewer: Viewer, interval_s: float) -> Iterator[Look]:
    """A look at once, and then one in each interval."""
    before: Look | None = None
    with viewer:
        while True:
            begun = time.monotonic()
            nics, names = _devices()
            look = Look(begun, viewer.look(), nics, names)
            if before is not None:
                _rate(before, look)
            yield look
            before = look
            time.sleep(max(begun + interval_s - time.monotonic(), 0))


def _rate(before: Look, look: Look) -> None:
    earlier = {one.name: one for one in before.processes}
    for one in look.processes:
        if one.name in earlier and one.view is not None and one.state == "live":
            look.rates[one.name] = rates(earlier[one.name].view, one.view)
    seconds = look.time_s - before.time_s
    old = {one.name: one for one in before.nics}
    for at, nic in enumerate(look.nics):
        if nic.name in old:
            sent, received = nic.sent - old[nic.name].sent, nic.received - old[nic.name].received
            look.nics[at] = Nic(nic.name, nic.up, nic.sent, nic.received, sent / seconds, received / seconds)


def _devices() -> tuple[list[Nic], dict[int, str]]:
    """The devices of the registry, if there is one: looking makes none."""
    nics: list[Nic] = []
    names: dict[int, str] = {}
    with contextlib.suppress(OSError):
        if registry.folder().is_dir():
            for one in device.devices():
                counts = telemetry.counts(one.name)
                sent = sum(count for name, count in counts.items() if name.startswith("HNI_PKTS_SENT_BY_TC_"))
                received = counts["IXE_RX_PTL_RESTRICTED_PKT"] + counts["IXE_RX_PTL_UNRESTRICTED_PKT"]
                nics.append(Nic(one.name, one.up, sent, received))
                names[one.engine_nic()] = one.name
    return nics, names


# ---- tables ----------------------------------------------------------------------------------------------------------


def _print(look: Look) -> None:
    for part in _parts(look):
        console().print(part)


def _page(look: Look) -> RenderableType:
    from rich.console import Group

    return Group(f"weft top   {time.strftime('%H:%M:%S')}   Ctrl-C ends it", *_parts(look))


def _parts(look: Look) -> Iterator[RenderableType]:
    if look.processes:
        yield _processes(look, console().width)
    else:
        yield "No process of this user on this host uses Weft."
    if look.nics:
        table = plain_table("NICs (CXI devices)", "device", "link", "sent", "received", "sent/s", "received/s")
        for nic in look.nics:
            table.add_row(
                nic.name, "up" if nic.up else "down", f"{nic.sent} packets", f"{nic.received} packets",
                _rate_text(nic.sent_rate), _rate_text(nic.received_rate),
            )  # fmt: skip
        yield table
    for make in (_endpoints, _receives, _queues, _counters):
        table = make(look)
        if table.row_count:
            yield table


def _views(look: Look) -> Iterator[tuple[Process, View, Rates]]:
    for process in look.processes:
        if process.view is not None:
            yield process, process.view, look.rates.get(process.name, Rates())


# Columns of processes, and the columns that a narrow terminal leaves out, in this order.
_COLUMNS = (
    "pid", "command", "state", "progress", "peers", "regions", "registered", "allocated", "failed", "ops/s", "bytes/s"
)  # fmt: skip
_LEFT_OUT = ("progress", "regions", "failed", "peers", "allocated", "registered", "bytes/s", "state")
_COMMAND_MIN = 16


def _processes(look: Look, width: int) -> Table:
    """One line for each process: a narrow terminal gets shorter commands, then fewer columns."""
    rows = [dict(zip(_COLUMNS, _row(look, process), strict=True)) for process in look.processes]
    columns = list(_COLUMNS)

    def left_for_command() -> int:
        others = [max(len(name), *(len(row[name]) for row in rows)) for name in columns if name != "command"]
        return width - sum(others) - 2 * len(columns) - 1  # a blank beside each column, and the edges

    for name in _LEFT_OUT:
        if left_for_command() >= _COMMAND_MIN:
            break
        columns.remove(name)
    room = max(left_for_command(), 1)
    table = plain_table("processes", *columns)
    for column in table.columns:
        column.no_wrap = True
        column.overflow = "ellipsis"
    for row in rows:
        table.add_row(*(_short(row[name], room) if name == "command" else row[name] for name in columns))
    return table


def _row(look: Look, process: Process) -> list[str]:
    view = process.view
    if view is None:
        return [str(process.pid), _command(process), _state(process), *[""] * (len(_COLUMNS) - 3)]
    rate = look.rates.get(process.name, Rates())
    measured = rate.seconds > 0
    return [
        str(process.pid), _command(process), _state(process), "engine" if view.engine else "manual",
        str(len(view.peers)), str(view.regions), _bytes(view.registered_bytes),
        _bytes(view.allocated_bytes), str(sum(one.failed for one in view.domains)),
        _rate_text(sum(rate.operations.values()) if measured else None),
        _bytes(sum(rate.bytes.values())) + "/s" if measured else "",
    ]  # fmt: skip


def _endpoints(look: Look) -> Table:
    table = plain_table(
        "endpoints, sending (operations of the endpoint's domain; refused: calls with FI_EAGAIN)",
        "pid", "endpoint", "peers", "ops", "ops/s", "under way", "waiting", "refused", "sent again", "flow control",
    )  # fmt: skip
    for process, view, rate in _views(look):
        domains = {one.domain: one for one in view.domains}
        for ep in view.endpoints:
            of = domains.get(ep.domain)
            table.add_row(
                str(process.pid), _name(look, ep), str(ep.flows), str(of.operations) if of else "",
                _rate_text(rate.operations.get(ep.domain)), f"{ep.outstanding} of {ep.tx_size}", str(ep.waiting),
                str(ep.again), str(ep.retries), _sending(ep),
            )  # fmt: skip
    return table


def _sending(ep: EndpointView) -> str:
    said = []
    if ep.stopped:
        said.append(f"{ep.stopped} peers take no messages, for {ep.stopped_ns / 1e9:.1f} s")
    if ep.tagged_ids or ep.untagged_ids:
        said.append(f"{ep.tagged_ids + ep.untagged_ids} to be pulled")
    if ep.no_id:
        said.append(f"no ID: {ep.no_id}")
    return ", ".join(said) or "-"


def _receives(look: Look) -> Table:
    table = plain_table(
        "endpoints, receiving",
        "pid", "endpoint", "messages", "messages/s", "posted", "unexpected", "refused", "matching", "flow control",
    )  # fmt: skip
    for process, view, rate in _views(look):
        for ep in view.endpoints:
            rx = ep.receive
            if rx is None:
                continue
            counts = (("flow control", rx.flow_controls), ("to software", rx.changes), ("pauses", rx.pauses))
            told = [f"{name}: {count}" for name, count in (*counts, ("no entry", rx.no_entries)) if count]
            table.add_row(
                str(process.pid), _name(look, ep), str(rx.messages), _rate_text(rate.received.get(ep.index)),
                str(rx.posted), str(rx.unexpected), str(rx.refused),
                rx.state if rx.mode in ("unlimited", rx.state) else f"{rx.state} ({rx.mode})", ", ".join(told) or "-",
            )  # fmt: skip
    return table


def _queues(look: Look) -> Table:
    table = plain_table("completion queues", "pid", "queue", "endpoints", "unread", "reserved", "state")
    for process, view, _ in _views(look):
        for at, queue in enumerate(view.queues):
            users = [_name(look, ep) for ep in view.endpoints if queue.queue in (ep.tx_cq, ep.rx_cq)]
            full = queue.unread >= queue.capacity
            table.add_row(
                str(process.pid), str(at), _short(", ".join(users), 40), f"{queue.unread} of {queue.capacity}",
                str(queue.reserved), "overrun" if queue.overrun else "full" if full else "-",
            )  # fmt: skip
    return table


def _counters(look: Look) -> Table:
    table = plain_table("counters", "pid", "endpoint", "counter", "value", "errors", "growth")
    for process, view, rate in _views(look):
        for ep in view.endpoints:
            for name, counter in ep.counters.items():
                table.add_row(
                    str(process.pid), _name(look, ep), name, str(counter.value), str(counter.errors),
                    _rate_text(rate.counters.get((ep.index, name))),
                )  # fmt: skip
    return table


# ---- texts -----------------------------------------------------------------------------------------------------------


def _state(process: Process) -> str:
    if process.state == "live":
        return "live"
    if process.view is None and process.state == "stale":
        return f"no answer for {process.age_s:.0f} s"
    return f"{process.state}, {process.age_s:.0f} s old"


def _name(look: Look, ep: EndpointView) -> str:
    name = look.names.get(ep.nic)
    return ep.address if name is None else f"{name} pid {ep.pid} vni {ep.vni}"


def _command(process: Process) -> str:
    program, _, arguments = process.command.partition(" ")
    return _short(f"{os.path.basename(program)} {arguments}".strip())


def _short(text: str, length: int = 36) -> str:
    return text if len(text) <= length else text[: length - 1] + "\u2026"


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:.0f} {unit}"


def _rate_text(rate: float | None) -> str:
    return "" if rate is None else format_rate(rate)


def _json(look: Look) -> dict[str, Any]:
    said = []
    for process in look.processes:
        rate = look.rates.get(process.name, Rates())
        counters = [{"endpoint": at, "counter": name, "rate": each} for (at, name), each in rate.counters.items()]
        said.append({**asdict(process), "rates": {**asdict(rate), "counters": counters}})
    return {"time": time.time(), "nics": [asdict(nic) for nic in look.nics], "processes": said}
