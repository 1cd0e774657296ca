"""The clause lists, and who shows each clause: plain data, no pytest.

load()        tests/spec/*.toml -> {id: Clause}
scan_docs()   <!-- clause: id, id --> in our documentation -> where each id is written
nearest()     what somebody probably meant by an id that does not exist
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

_COMMENT = re.compile(r"<!--\s*clauses?:(.*?)-->", re.DOTALL)
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
    """A place in our documentation that carries a clause id: the file, and the heading that it stands under."""

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


def scan_docs(root: Path, patterns: Iterable[str], known: Mapping[str, Clause]) -> dict[str, list[DocSection]]:
    """Find `<!-- clause: id, id -->` in the files that match. An id nobody lists raises ClauseError.

    Comments inside code fences are text about the convention, not the convention.
    """
    found: dict[str, list[DocSection]] = {}
    faults: list[str] = []
    for path in sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()}):
        name = path.relative_to(root).as_posix()
        # Fences are blanked rather than removed, so that line numbers stay true.
        text = _FENCE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), path.read_text(encoding="utf-8"))
        headings = [(match.start(), match.group(1)) for match in _HEADING.finditer(text)]
        for comment in _COMMENT.finditer(text):
            line = text.count("\n", 0, comment.start()) + 1
            heading = next((title for start, title in reversed(headings) if start < comment.start()), "")
            for clause_id in filter(None, re.split(r"[\s,]+", comment.group(1))):
                if clause_id not in known:
                    faults.append(unknown_message(clause_id, f"{name}:{line}", known))
                    continue
                section = DocSection(name, heading)
                if section not in found.setdefault(clause_id, []):
                    found[clause_id].append(section)
    if faults:
        raise ClauseError("\n".join(faults))
    return found
