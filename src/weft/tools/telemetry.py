"""`weft telemetry`: the counters of a CXI device, once or repeatedly. Source: fi_cxi(7), FI_CXI_TELEMETRY."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._text import UsageError, console, plain_table

if TYPE_CHECKING:
    from ..providers.cxi.telemetry import Reading


def telemetry(name: str, counters: Sequence[str], watch: bool, seconds: float, times: int, as_json: bool) -> int:
    """The command; its exit status. Raises UsageError and FabricError."""
    from ..providers.cxi import device, telemetry

    found = device.by_name(name)
    if found is None:
        there = ", ".join(one.name for one in device.devices()) or "none"
        raise UsageError(f"there is no device {name!r}\n  devices: {there}")
    if seconds <= 0:
        raise UsageError(f"--seconds: {seconds:g} is not a valid time between two readings")

    def readings() -> dict[str, Reading]:
        telemetry.publish(found)
        everything = telemetry.read_all(name)
        return {each: telemetry.read(name, each) for each in counters} if counters else everything

    before = readings()
    if not watch:
        _print(name, before, {}, as_json)
        return 0
    done = 0
    while times == 0 or done < times:
        time.sleep(seconds)
        now = readings()
        _print(name, now, before, as_json)
        before, done = now, done + 1
    return 0


def _print(name: str, now: Mapping[str, Reading], before: Mapping[str, Reading], as_json: bool) -> None:
    if as_json:
        said: dict[str, Any] = {each: {"value": r.value, "time_ns": r.time_ns} for each, r in now.items()}
        for each, earlier in before.items():
            said[each]["grew"] = now[each].value - earlier.value
        print(json.dumps({"device": name, "counters": said}), flush=True)
        return
    table = plain_table(f"telemetry of {name}", "counter", "value", *(["growth"] if before else []))
    for each, r in now.items():
        table.add_row(each, str(r.value), *([f"{r.value - before[each].value:+d}"] if each in before else []))
    console().print(table)
