"""From clauses and outcomes to docs/conformance.md and build/conformance.json. Same run, same bytes: no dates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.clauses import Clause, DocSection

SHOWN, NOT_YET = "shown", "not yet"


@dataclass
class Evidence:
    """What was found for one clause in one run."""

    passed: list[str] = field(default_factory=list)  # node ids of marked tests that ran and passed
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # skipped and expected failures: neither shows anything
    sections: list[DocSection] = field(default_factory=list)


def status(clause: Clause, evidence: Evidence) -> str:
    """A doc clause is shown by a section of ours, any other by at least one marked test that ran and passed."""
    shown = evidence.sections if clause.by_documentation else evidence.passed
    return SHOWN if shown else NOT_YET


def test_function(node_id: str) -> str:
    """`tests/fi/test_mr.py::test_key[7]` -> `tests/fi/test_mr.py::test_key`: a function is named once."""
    return node_id.split("[", 1)[0]


test_function.__test__ = False  # type: ignore[attr-defined]  # the name is not pytest's to collect


def as_json(clauses: Mapping[str, Clause], evidence: Mapping[str, Evidence]) -> str:
    rows: dict[str, dict[str, Any]] = {}
    for clause in clauses.values():
        found = evidence.get(clause.id, Evidence())
        rows[clause.id] = {
            "document": clause.document,
            "status": status(clause, found),
            "tests": sorted({test_function(node_id) for node_id in found.passed}),
        }
        if clause.by_documentation:
            rows[clause.id]["sections"] = [str(section) for section in found.sections]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _shown_by(clause: Clause, found: Evidence) -> str:
    if clause.by_documentation:
        return "<br>".join(_cell(str(section)) for section in found.sections) or NOT_YET
    tests = sorted({test_function(node_id) for node_id in found.passed})
    text = "<br>".join(f"`{test}`" for test in tests) or NOT_YET
    failed = sorted({test_function(node_id) for node_id in found.failed})
    if failed:
        text += "<br>fails: " + ", ".join(f"`{test}`" for test in failed)
    return text


def as_markdown(clauses: Mapping[str, Clause], evidence: Mapping[str, Evidence]) -> str:
    documents: dict[str, list[Clause]] = {}
    for clause in clauses.values():
        documents.setdefault(clause.document, []).append(clause)

    def shown_count(listed: Sequence[Clause]) -> int:
        return sum(status(clause, evidence.get(clause.id, Evidence())) == SHOWN for clause in listed)

    lines = [
        "# Conformance",
        "",
        "Written by `make conformance`; do not edit. Each clause of the four documents, and the test that shows it.",
        "A clause is shown when at least one test that carries its id ran and passed; a clause that only gives advice",
        "is shown by the section of our documentation that carries its id.",
        "",
        "| document | clauses | shown | not yet |",
        "| --- | ---: | ---: | ---: |",
    ]
    for document, listed in documents.items():
        shown = shown_count(listed)
        lines.append(f"| {document} | {len(listed)} | {shown} | {len(listed) - shown} |")
    total = shown_count(list(clauses.values()))
    lines.append(f"| all | {len(clauses)} | {total} | {len(clauses) - total} |")

    for document, listed in documents.items():
        lines += ["", f"## {document}"]
        section = None
        for clause in listed:
            if clause.section != section:
                section = clause.section
                lines += ["", f"### {section}", "", "| clause | says | shown by |", "| --- | --- | --- |"]
            shown_by = _shown_by(clause, evidence.get(clause.id, Evidence()))
            lines.append(f"| `{clause.id}` | {_cell(clause.text)} | {shown_by} |")
    return "\n".join(lines) + "\n"
