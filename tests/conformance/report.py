"""From clauses and outcomes to docs/conformance.md and build/conformance.json. Same run, same bytes: no dates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.clauses import Clause, DocSection

SHOWN, CONTRADICTED, NOT_YET = "shown", "contradicted", "not yet"


@dataclass
class Evidence:
    """The evidence for one clause in one run. Tests by label: see label()."""

    passed: list[str] = field(default_factory=list)  # marked tests that ran and passed
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # skipped and expected failures: neither shows anything
    sections: list[DocSection] = field(default_factory=list)


def status(clause: Clause, evidence: Evidence) -> str:
    """A doc clause is shown by a quotation; any other by marked tests, if one ran and passed and none failed."""
    if clause.by_documentation:
        return SHOWN if evidence.sections else NOT_YET
    if evidence.failed:
        return CONTRADICTED
    return SHOWN if evidence.passed else NOT_YET


def label(node_id: str, fact: str | None = None) -> str:
    """`tests/fi/test_mr.py::test_key[7]` -> `tests/fi/test_mr.py::test_key`: a function is named once.

    A test of many facts is named once for each fact: `tests/procs/test_two_processes.py::test_two_endpoints[fact]`.
    """
    function = node_id.split("[", 1)[0]
    return f"{function}[{fact}]" if fact else function


def as_json(clauses: Mapping[str, Clause], evidence: Mapping[str, Evidence]) -> str:
    rows: dict[str, dict[str, Any]] = {}
    for clause in clauses.values():
        found = evidence.get(clause.id, Evidence())
        rows[clause.id] = {
            "document": clause.document,
            "status": status(clause, found),
            "tests": sorted(set(found.passed)),
        }
        if found.failed:
            rows[clause.id]["failed"] = sorted(set(found.failed))
        if clause.by_documentation:
            rows[clause.id]["sections"] = [str(section) for section in found.sections]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _shown_by(clause: Clause, found: Evidence) -> str:
    if clause.by_documentation:
        return "<br>".join(_cell(str(section)) for section in found.sections) or NOT_YET
    if found.failed:
        return f"{CONTRADICTED} by " + "<br>".join(f"`{test}`" for test in sorted(set(found.failed)))
    return "<br>".join(f"`{test}`" for test in sorted(set(found.passed))) or NOT_YET


def as_markdown(clauses: Mapping[str, Clause], evidence: Mapping[str, Evidence]) -> str:
    documents: dict[str, list[Clause]] = {}
    for clause in clauses.values():
        documents.setdefault(clause.document, []).append(clause)

    def counts(listed: Sequence[Clause]) -> str:
        found = [status(clause, evidence.get(clause.id, Evidence())) for clause in listed]
        return f"{len(listed)} | {found.count(SHOWN)} | {found.count(CONTRADICTED)} | {found.count(NOT_YET)}"

    lines = [
        "# Conformance",
        "",
        "Written by `make conformance`; do not edit. Each clause of the four documents, and the test that shows it.",
        "A clause is shown when at least one test that carries its id ran and passed, and none of them failed; it is",
        "contradicted when one failed. `test[fact]` is a test that carries many facts: this one was checked, on every",
        "path that the test is about. A clause that only gives advice is shown by words of our documentation",
        "(`tests/conformance/words.toml`): the section that has them is named.",
        "",
        "| document | clauses | shown | contradicted | not yet |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [f"| {document} | {counts(listed)} |" for document, listed in documents.items()]
    lines.append(f"| all | {counts(list(clauses.values()))} |")

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
