"""`weft info --for CLIENT`: the hints that a C program asks getinfo for, and what Weft's providers answer to each set.

The hints are captured from the running programs (policyhost/captured.py). Providers answer as to the C program itself,
in this environment.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .. import errors, fi
from ..fi.offer import Explanation, Rejection
from ..policyhost import captured
from ..policyhost.answers import offers
from ._fields import field_of, named_value, shown_value
from ._table import Printer, Table
from ._text import UsageError


@dataclass
class Answer:
    """A provider's answer to a set of hints.

    Attributes:
        offers: The offers, as "domain, type".
        rejections: Without offers: each once.
        why: Without offers and rejections: the refusal's text.
    """

    provider: str
    offers: list[str] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    why: str = ""


@dataclass
class Set:
    """The hints of a call, and the answers; hints: None: a call without hints, which asks for every offer."""

    use: str
    version: str
    hints: fi.Info | None
    answers: list[Answer]

    @property
    def answered(self) -> bool:
        """True if a provider has an offer."""
        return any(one.offers for one in self.answers)


def client_of(option: str, name: str) -> captured.Client:
    """The client of a word. Raises UsageError."""
    found = captured.CLIENTS.get(name)
    if found is None:
        raise UsageError(f"{option}: {name!r} is unknown\n  known: {', '.join(captured.CLIENTS)}")
    return found


def sets(client: captured.Client) -> Iterator[Set]:
    """Each set of hints that the client asks with, once, with the answers of the providers that libfabric asks."""
    for file, use in client.files.items():
        before: Set | None = None
        for call in captured.calls(file):
            version, hints = f"{fi.MAJOR(call.version)}.{fi.MINOR(call.version)}", _hints(client, call)
            if before is None or (before.version, before.hints) != (version, hints):
                if before is not None:
                    yield before
                before = Set(use, version, hints, [])
            if all(one.provider != call.provider for one in before.answers):
                before.answers.append(_answer(call, hints))
        if before is not None:
            yield before


def _hints(client: captured.Client, call: captured.Call) -> fi.Info | None:
    """The hints of a call, as the client asks here: some come from an offer that it has got before."""
    hints = call.hints
    if hints is not None and any(getattr(hints, name) for name in client.taken_over):
        with contextlib.suppress(errors.FabricError):  # no offer: the first call has said why
            first = offers(call.provider, call.version, None)[0]
            if "caps" in client.taken_over:
                hints.caps = fi.Flag(hints.caps & first.caps)
            if "addr_format" in client.taken_over:
                hints.addr_format = first.addr_format
    return hints


def _answer(call: captured.Call, hints: fi.Info | None) -> Answer:
    answer = Answer(call.provider)
    try:
        found = offers(call.provider, call.version, copy.deepcopy(hints))
        answer.offers = [f"{one.domain_attr.name}, {one.ep_attr.type!s}" for one in found]
    except errors.FabricError as refused:
        explained: Explanation | None = getattr(refused, "explanation", None)
        looked = [] if explained is None else [one.rejections for one, _ in explained.folded]
        # Offers of another type of endpoint would say no more than that.
        near = [one for one in looked if all(each.hint != "ep_attr.type" for each in one)] or looked
        answer.rejections = list(dict.fromkeys(each for one in near for each in one))
        if not answer.rejections:
            answer.why = refused.message
    return answer


def info_for(name: str, as_json: bool) -> int:
    """The command; its exit status: 1 if no provider answers a set. Raises UsageError."""
    client = client_of("--for", name)
    found = list(sets(client))
    if as_json:
        print(json.dumps({"client": client.name, "sets": [_json(one) for one in found]}, indent=1))
    else:
        _print(client, found)
    return 0 if all(one.answered for one in found) else 1


def _json(one: Set) -> dict[str, Any]:
    hints = None if one.hints is None else {path: named_value(value, kind) for path, value, kind in _asked(one.hints)}
    answers = [{**vars(each), "rejections": [row._asdict() for row in each.rejections]} for each in one.answers]
    return {"use": one.use, "version": one.version, "hints": hints, "answered": one.answered, "answers": answers}


def _asked(hints: fi.Info) -> Iterator[tuple[str, Any, Any]]:
    """(path, value, kind) of each field that is set."""
    for part in ("", "ep_attr", "tx_attr", "rx_attr", "domain_attr", "fabric_attr"):
        of = getattr(hints, part) if part else hints
        for one in dataclasses.fields(of):
            path = f"{part}.{one.name}" if part else one.name
            value = getattr(of, one.name)
            if value and not dataclasses.is_dataclass(value):
                yield path, *field_of(hints, path)


def _print(client: captured.Client, found: list[Set]) -> None:
    out = Printer()
    for at, one in enumerate(found, 1):
        table = Table(f"{client.name}, set {at} of {len(found)}: {one.use}; interface {one.version}", "", "", "")
        if one.hints is None:
            table.add_row("asks", "no hints", "every offer")
        else:
            for row, (path, value, kind) in enumerate(_asked(one.hints)):
                table.add_row("" if row else "asks", path, _text(path, value, kind))
        table.add_section()
        for row, answer in enumerate(one.answers):
            for cells in _rows(answer):
                table.add_row("" if row else "answers", *cells)
                row = 1
        out.table(table)
    missing = [str(at) for at, one in enumerate(found, 1) if not one.answered]
    if missing:
        out.note(f"no provider of Weft has an offer for set {', '.join(missing)}")


def _rows(answer: Answer) -> Iterator[tuple[str, str]]:
    if answer.offers:
        count = len(answer.offers)
        yield answer.provider, f"{count} offer{'s' if count > 1 else ''}; the first: {answer.offers[0]}"
        return
    if answer.why:
        yield answer.provider, "none: " + " ".join(answer.why.split())
    for n, one in enumerate(answer.rejections):
        yield ("" if n else answer.provider), ("" if n else "none: ") + str(one).replace("|", " | ")


def _text(path: str, value: Any, kind: Any) -> str:
    """The value; flags without a name as one number."""
    if path.endswith("mem_tag_format"):
        return hex(value)
    words = shown_value(value, kind).split(" ")
    unnamed = [word for word in words if word.startswith("0x")]
    if len(unnamed) < 2:
        return " ".join(words)
    return " ".join([*(word for word in words if word not in unnamed), hex(sum(int(word, 16) for word in unnamed))])
