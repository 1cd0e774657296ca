"""`weft info`: the offers of fi.getinfo for hints given as options, reasons of rejections, and settings in force.

Options have the names of fi_info's options, if it has them. Source: fi_info(1), fi_getinfo(3).
"""

from __future__ import annotations

import dataclasses
import enum
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import __version__, fi, memory, settings
from ..fi import registry
from ..fi.match import DOMAIN_CAPS, RX_CAPS, TX_CAPS
from ..memory import hmem
from ._fields import field_of, named_value, shown_value
from ._table import Printer, Table
from ._text import UsageError, known_words, parse_count, parse_enum, parse_flags

_CAPS = TX_CAPS | RX_CAPS | DOMAIN_CAPS

# Rows of an offer's table: the row's name, and its fields.
_SHOWN: dict[str, dict[str, str]] = {
    "what it is": {
        "fabric": "fabric_attr.name",
        "domain": "domain_attr.name",
        "type": "ep_attr.type",
        "protocol": "ep_attr.protocol",
        "address": "src_addr",
        "address format": "addr_format",
        "network": "nic.network_type",
        "NIC": "nic.prov_attr",
    },
    "capabilities": {"caps": "caps"},
    "duties of the application": {
        "mode": "mode",
        "mr_mode": "domain_attr.mr_mode",
        "threading": "domain_attr.threading",
        "control progress": "domain_attr.control_progress",
        "data progress": "domain_attr.data_progress",
        "resource management": "domain_attr.resource_mgmt",
    },
    "order": {"msg_order": "tx_attr.msg_order"},
    "limits": {
        "max_msg_size": "ep_attr.max_msg_size",
        "inject_size": "tx_attr.inject_size",
        "transmit queue": "tx_attr.size",
        "receive queue": "rx_attr.size",
        "iov_limit": "tx_attr.iov_limit",
        "rma_iov_limit": "tx_attr.rma_iov_limit",
        "mr_iov_limit": "domain_attr.mr_iov_limit",
        "mr_cnt": "domain_attr.mr_cnt",
        "mr_key_size": "domain_attr.mr_key_size",
        "cq_data_size": "domain_attr.cq_data_size",
        "ep_cnt": "domain_attr.ep_cnt",
        "cq_cnt": "domain_attr.cq_cnt",
        "cntr_cnt": "domain_attr.cntr_cnt",
        "max_ep_auth_key": "domain_attr.max_ep_auth_key",
    },
}
_OPTIONAL = {"nic.prov_attr"}


@dataclass
class Wishes:
    """The options that become hints, as typed; None for options that were not given."""

    node: str | None = None
    service: str | None = None
    provider: str | None = None
    fabric: str | None = None
    domain: str | None = None
    caps: str | None = None
    mode: str | None = None
    mr_mode: str | None = None
    ep_type: str | None = None
    addr_format: str | None = None
    threading: str | None = None
    progress: str | None = None
    msg_order: str | None = None
    inject_size: str | None = None
    max_msg_size: str | None = None

    def hints(self) -> fi.Info | None:
        """Hints for getinfo; None if no option was given. Raises UsageError for unknown words."""
        if all(value is None for name, value in vars(self).items() if name not in ("node", "service")):
            return None
        h = fi.Info()
        h.fabric_attr.prov_name, h.fabric_attr.name, h.domain_attr.name = self.provider, self.fabric, self.domain
        if self.caps is not None:
            h.caps = fi.Flag(parse_flags("--caps", self.caps, known_words(fi.Flag, mask=_CAPS)))
        if self.mode is not None:
            h.mode = fi.Mode(parse_flags("--mode", self.mode, known_words(fi.Mode)))
        if self.mr_mode is not None:
            known = known_words(fi.MrMode, "MR_")
            h.domain_attr.mr_mode = fi.MrMode(parse_flags("--mr-mode", self.mr_mode, known, "MR_"))
        if self.msg_order is not None:
            known = known_words(fi.Order, "ORDER_")
            h.tx_attr.msg_order = fi.Order(parse_flags("--msg-order", self.msg_order, known, "ORDER_"))
        kinds: tuple[tuple[str, str | None, type[enum.IntEnum], str, Any, tuple[str, ...]], ...] = (
            ("--ep-type", self.ep_type, fi.EpType, "EP_", h.ep_attr, ("type",)),
            ("--addr-format", self.addr_format, fi.AddrFormat, "", h, ("addr_format",)),
            ("--threading", self.threading, fi.Threading, "THREAD_", h.domain_attr, ("threading",)),
            (
                "--progress",
                self.progress,
                fi.Progress,
                "PROGRESS_",
                h.domain_attr,
                ("control_progress", "data_progress"),
            ),
        )
        for option, text, cls, prefix, part, fields in kinds:
            if text is not None:
                for field in fields:
                    setattr(part, field, cls(parse_enum(option, text, known_words(cls, prefix), prefix)))
        if self.inject_size is not None:
            h.tx_attr.inject_size = parse_count("--inject-size", self.inject_size)
        if self.max_msg_size is not None:
            h.ep_attr.max_msg_size = parse_count("--max-msg-size", self.max_msg_size)
        return h


_WISHES = {f.name for f in dataclasses.fields(Wishes)}


def run(given: Mapping[str, Any]) -> int:
    """Run the command with its options by name."""
    switches = {name: bool(given.get(name)) for name in ("why", "brief", "verbose", "env")}
    if (client := given.get("client")) is not None:
        return for_client(client, {name for name in given if name != "client"})
    wishes = Wishes(**{name: text for name, text in given.items() if name in _WISHES})
    return info(wishes, as_json=bool(given.get("json")), **switches)


def for_client(client: str, others: Collection[str]) -> int:
    """The command with --for; others: the other options, by name. Raises UsageError."""
    from ._info_for import info_for
    from ._quick import OPTIONS, SWITCHES

    if wrong := sorted(set(others) - {"json"}):
        raise UsageError(f"--for goes with --json alone, not with {(OPTIONS | SWITCHES)[wrong[0]][0]}")
    return info_for(client, "json" in others)


def info(wishes: Wishes, *, why: bool, as_json: bool, brief: bool, verbose: bool, env: bool) -> int:
    """The command; its exit status: 1 if nothing matches.

    Raises UsageError, and the errors of getinfo and of the settings.
    """
    found: fi.Explanation | None = None
    if not env:
        found = fi.getinfo(node=wishes.node, service=wishes.service, hints=wishes.hints(), explain=True)
    matches = found is None or bool(found.infos)
    if as_json:
        import json

        said = _as_json(found, why)
        if own := _own(wishes):
            said["environment"] = [dict(zip(_OWN, row, strict=True)) for row in own]
        print(json.dumps(said, indent=1))
    elif matches or why:
        out = Printer()
        if found is not None:
            _print_offers(out, found, why, brief, verbose)
        if not brief:
            out.table(_settings_table())
            if own := _own(wishes):
                out.heading("environment of the provider")
                for row in own:
                    print(_own_text(row))
            out.table(_registration_table())
            for text in _slips():
                out.note(text)
    if found is None or matches:
        return 0
    if not why:
        hints = dict.fromkeys(r.hint for c in found.rejected for r in c.rejections)
        print(
            f"weft info: nothing matches: {len(found.rejected)} offers rejected for {', '.join(hints)}\n"
            "  try: the same with --why",
            file=sys.stderr,
        )
    return 1


# ---- offers --------------------------------------------------------------------------------------------------------


def _print_offers(out: Printer, found: fi.Explanation, why: bool, brief: bool, verbose: bool) -> None:
    if why:
        out.table(_why_table(found))
        for note in found.notes:
            out.note(note)
    if brief:
        for head, count in Counter(map(_head, found.infos)).items():
            print(head if count == 1 else f"{head} ({count} offers)")
        return
    before: dict[str, fi.Info] = {}
    for one in found.infos:
        head = _head(one)
        if verbose:
            out.heading(head)
            print(repr(one))
            continue
        table = _info_table(head, one, before.get(head))
        if table.rows:  # no lines: every shown field equals the previous info's
            out.table(table)
        before[head] = one


def _head(one: fi.Info) -> str:
    attr = one.fabric_attr
    return f"{attr.prov_name} {_dotted(attr.prov_version)}: {one.domain_attr.name}, {one.ep_attr.type!s}"


def _info_table(head: str, one: fi.Info, before: fi.Info | None) -> Table:
    """The fields of an info; for an info with the same heading as `before`, only the fields that differ."""
    table = Table(f"{head}, as above except" if before is not None else head, "", "", "")
    for title, fields in _SHOWN.items():
        first = True
        for name, path in fields.items():
            shown = shown_value(*field_of(one, path))
            if before is not None and shown == shown_value(*field_of(before, path)):
                continue
            if not shown and path in _OPTIONAL:
                continue
            table.add_row(title if first else "", name, shown)
            first = False
        if not first:
            table.add_section()
    return table


def _why_table(found: fi.Explanation) -> Table:
    table = Table("offers held against the hints", "offer", "hint", "asked", "offered", "why not")
    for one, count in found.folded:
        name = f"{one.provider}: {one.domain}, {one.type}{'' if count == 1 else f' ({count} equal offers)'}"
        if one.accepted:
            table.add_row(name, "matches", "", "", "")
        for i, r in enumerate(one.rejections):
            table.add_row(
                "" if i else name, r.hint, *(text.replace("|", " | ") for text in (r.asked, r.offered)), r.reason
            )
        table.add_section()
    return table


def _dotted(version: int) -> str:
    return f"{fi.MAJOR(version)}.{fi.MINOR(version)}"


# ---- settings ------------------------------------------------------------------------------------------------------


def settings_in_force() -> dict[str, tuple[str, bool, str]]:
    """Variable -> (value, whether it comes from the environment, valid values). Raises InvalidArgument."""
    values = settings.load().values | settings.load_cache().values
    implied = {"FI_MR_CACHE_MAX_SIZE": "unlimited", "FI_MR_CACHE_MONITOR": memory.cache_state().monitor}
    return {
        v.name: (
            implied[v.name] if v.name in implied and values[v.name] in (None, "") else _word(values[v.name]),
            v.name in os.environ,
            v.values,
        )
        for v in settings.variables()
    }


def registration() -> dict[str, str]:
    """Facts about registration: modes in force, modes on request, the registration cache."""
    required = settings.load().WEFT_MR_MODE
    return {
        "modes required": _word(required),
        "modes on request": " ".join(str(mode) for mode in fi.MrMode if mode in settings.MR_MODES_ON_REQUEST),
        "registration cache": str(memory.cache_state()),
        "device memory": "; ".join(_interface(found) for found in hmem.interfaces() if found.iface),
    }


def _interface(found: hmem.Interface) -> str:
    name = found.iface.name.removeprefix("HMEM_")
    if found.ready:
        return f"{name}: {found.devices} device{'s' if found.devices != 1 else ''}"
    return f"{name}: no {found.library}" if "could not be loaded" in found.why else f"{name}: {found.why}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if type(value) is int:
        return str(value)
    return str(value) if value or not isinstance(value, enum.IntFlag) else "none"


def _slips() -> Iterator[str]:
    """Remarks on variables that Weft does not read, but whose names resemble variables that it reads."""
    import difflib

    known = list(settings_in_force())
    for name in sorted(os.environ):
        if (
            name.startswith(("WEFT_", "FI_MR_", "FI_HMEM_"))
            and name not in known
            and (close := difflib.get_close_matches(name, known, 1, 0.8))
        ):
            yield f"{name} is set, but Weft does not read it; did you mean {close[0]}?"


def _settings_table() -> Table:
    table = Table("settings (environment)", "variable", "value", "from", "values", "meaning")
    meaning = {v.name: v.meaning for v in settings.variables()}
    for name, (value, said, values) in settings_in_force().items():
        table.add_row(name, value, "environment" if said else "default", values, meaning[name])
    return table


_OWN = ("variable", "value", "from", "values", "meaning", "effect")


def _own(wishes: Wishes) -> Sequence[tuple[str, ...]]:
    """The provider's own environment variables, if a provider was requested."""
    provider = registry.find(wishes.provider)
    return () if provider is None else provider.environment()


def _own_text(row: tuple[str, ...]) -> str:
    """As fi_info -e: valid values and meaning, then the value in force."""
    name, value, origin, values, meaning, effect = row
    return f"# {name}: {values}\n# {meaning}\n# effect here: {effect}\n{name.split()[0]}={value} ({origin})\n"


def _registration_table() -> Table:
    table = Table("registration", "", "")
    for name, text in registration().items():
        table.add_row(name, text)
    return table


# ---- JSON ----------------------------------------------------------------------------------------------------------


def _as_json(found: fi.Explanation | None, why: bool) -> dict[str, Any]:
    import platform

    said: dict[str, Any] = {
        "weft": __version__,
        "libfabric": _dotted(fi.version()),
        "python": platform.python_version(),
        "settings": {
            name: {"value": value, "from": "environment" if said else "default"}
            for name, (value, said, _) in settings_in_force().items()
        },
        "registration": {**registration(), "cache": dataclasses.asdict(memory.cache_state())},
    }
    if found is not None:
        said["infos"] = [_plain(one) for one in found.infos]
        if why:
            said["candidates"] = [
                {
                    "provider": c.provider,
                    "domain": c.domain,
                    "type": str(c.type),
                    "accepted": c.accepted,
                    "rejections": [r._asdict() for r in c.rejections],
                }
                for c in found.candidates
            ]
            said["notes"] = found.notes
    return said


def _plain(part: Any) -> dict[str, Any]:
    return {
        f.name: _plain(value) if dataclasses.is_dataclass(value) else named_value(value, f.metadata.get("kind"))
        for f in dataclasses.fields(part)
        for value in (getattr(part, f.name),)
    }
