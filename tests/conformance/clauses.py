"""The clause lists, and the evidence for each clause: plain data, no pytest.

load()          tests/spec/*.toml -> {id: Clause}
find_words()    tests/conformance/words.toml -> where our documentation says what the clause says
nearest()       what somebody probably meant by an id that does not exist
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# A list's file name -> the document it lists. fi_cxi(7) is long and came in two halves.
DOCUMENTS = {
    "fi_mr": "fi_mr(3)",
    "fi_rma": "fi_rma(3)",
    "fi_cxi_1": "fi_cxi(7)",
    "fi_cxi_2": "fi_cxi(7)",
    "ucp_memory": "UCP memory routines",
}

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
WORDS_MIN = 4  # fewer are found anywhere
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$", re.MULTILINE)
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


class ClauseError(Exception):
    """A clause list or a reference to one is wrong; the message lists every fault found."""


@dataclass(frozen=True)
class Clause:
    id: str
    document: str
    kind: str
    section: str
    text: str
    observable: str  # api counter config tool doc; doc is shown by our documentation, the others by tests

    @property
    def by_documentation(self) -> bool:
        return self.observable == "doc"


@dataclass(frozen=True)
class DocSection:
    """A place in our documentation that says what a clause says: the file, and the heading that it stands under."""

    path: str
    heading: str

    def __str__(self) -> str:
        return f"{self.path}: {self.heading}" if self.heading else self.path


def load(directory: Path) -> dict[str, Clause]:
    """Read every list in `directory`. Raises ClauseError on an id listed twice or a clause that lacks a field."""
    clauses: dict[str, Clause] = {}
    faults: list[str] = []
    for path in sorted(directory.glob("*.toml")):
        document = DOCUMENTS.get(path.stem, path.stem)
        for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("clause", []):
            try:
                clause = Clause(document=document, **entry)
            except TypeError as error:
                faults.append(f"{path.name}: clause {entry.get('id', '?')}: {error}")
                continue
            if clause.id in clauses:
                faults.append(f"{path.name}: clause {clause.id} is listed twice")
            clauses[clause.id] = clause
    if faults:
        raise ClauseError("\n".join(faults))
    if not clauses:
        raise ClauseError(f"no clause lists in {directory}")
    return clauses


def nearest(unknown: str, known: Iterable[str], count: int = 3) -> list[str]:
    return difflib.get_close_matches(unknown, list(known), n=count, cutoff=0.5)


def unknown_message(unknown: str, where: str, known: Iterable[str]) -> str:
    close = nearest(unknown, known)
    hint = f"nearest known: {', '.join(close)}" if close else "nothing like it is listed"
    return f"{where}: unknown clause {unknown!r}; {hint}"


def find_words(words: Path, root: Path, known: Mapping[str, Clause]) -> tuple[dict[str, list[DocSection]], list[str]]:
    """Look for what our documentation is said to say: a table for each page (path from `root`), clause id = its words.

    Returns the places found, and a line for each quotation that its page does not have. Words in comments and in code
    fences do not count, line breaks and runs of blanks do not matter. ClauseError: an id that nobody lists, a
    quotation of fewer than WORDS_MIN words.
    """
    found: dict[str, list[DocSection]] = {}
    missing: list[str] = []
    faults: list[str] = []
    for name, quotations in tomllib.loads(words.read_text(encoding="utf-8")).items():
        page = root / name
        text = page.read_text(encoding="utf-8") if page.is_file() else ""
        text = _FENCE.sub("", _COMMENT.sub("", text))
        sections = re.split(r"^(?=#{1,6}\s)", text, flags=re.MULTILINE)
        for clause_id, quotation in quotations.items():
            if clause_id not in known:
                faults.append(unknown_message(clause_id, words.name, known))
                continue
            if len(quotation.split()) < WORDS_MIN:
                faults.append(f"{words.name}: {clause_id}: fewer than {WORDS_MIN} words: {quotation!r}")
                continue
            places = [section for section in sections if _folded(quotation) in _folded(section)]
            if not places:
                missing.append(f"{name} does not say what shows {clause_id}: {quotation!r}")
            for section in places[:1]:
                heading = _HEADING.match(section)
                found.setdefault(clause_id, []).append(DocSection(name, heading.group(1) if heading else ""))
    if faults:
        raise ClauseError("\n".join(faults))
    return found, missing


def _folded(text: str) -> str:
    return " ".join(text.split())
