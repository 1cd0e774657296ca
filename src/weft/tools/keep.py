"""`weft ls`, `weft rm`, `weft keep`: named arrays, and the process that keeps arrays for others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from .. import errors
from ..share.arrays.show import human_bytes
from ..share.keeping import keeper
from ..share.keeping.client import forget
from ..share.names.listing import NameInfo, names
from ._text import console, plain_table


def ls(as_json: bool) -> int:
    """The command; its exit status."""
    found = names()
    if as_json:
        print(json.dumps({"names": [asdict(one) for one in found]}))
        return 0
    if not found:
        print("No array of this user has a name on this host.")
        return 0
    table = plain_table("named arrays", "name", "owner", "command", "shape", "dtype", "size", "access", "age", "kept")
    for one in found:
        if one.answers:
            table.add_row(
                one.name, str(one.pid), one.command, _shape(one), _dtype(one), human_bytes(one.nbytes or 0),
                one.access or "", _age(one.age_s), f"by {one.keeper}" if one.kept else "no",
            )  # fmt: skip
        else:
            table.add_row(one.name, str(one.pid or "?"), one.command, "no answer: stopped?", *[""] * 5)
    console().print(table)
    return 0


def rm(wanted: Sequence[str], as_json: bool) -> int:
    """The command; its exit status: 1 if a name could not be removed."""
    told = []
    for name in wanted:
        try:
            forget(name)
            told.append({"name": name, "removed": True, "error": None})
            if not as_json:
                print(f"{name} is forgotten")
        except (errors.FabricError, TypeError) as reason:
            text = reason.message if isinstance(reason, errors.FabricError) else str(reason)
            told.append({"name": name, "removed": False, "error": text})
            if not as_json:
                print(f"weft: {text}")
    if as_json:
        print(json.dumps({"names": told}))
    return 0 if all(one["removed"] for one in told) else 1


def keep(stay: bool) -> int:
    """The command; its exit status."""

    def ready(started: keeper.Keeper) -> None:
        print(f"keeping arrays, called by {started.folder}; Ctrl-C ends it, and them", flush=True)

    keeper.run(stay, ready)
    return 0


def _shape(one: NameInfo) -> str:
    if one.kind != "array":
        return one.kind
    return "x".join(str(n) for n in one.shape or ()) or "()"


def _dtype(one: NameInfo) -> str:
    return one.dtype or "" if one.kind == "array" else ""


def _age(age_s: float | None) -> str:
    """Seconds as people say them: 12 s, 3 min, 5 h, 2 d."""
    if age_s is None:
        return "?"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if age_s >= 2 * length:
            return f"{age_s / length:.0f} {unit}"
    return f"{age_s:.0f} s"
