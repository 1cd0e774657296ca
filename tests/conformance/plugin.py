"""pytest plugin: @pytest.mark.clause("mr.reg.key-in-use", ...) ties a test to the clauses it shows.

@pytest.mark.fact("name") says which of many facts a case of a parametrized test carries; the table names it beside the
test. Clauses that only advise are shown by words of our documentation: tests/conformance/words.toml.

Loaded by tests/conftest.py. At collection every id is checked, in marks and in that file; an unlisted id ends
the run before a test starts, because a typing error would otherwise always read as "not yet". With
--conformance-md or --conformance-json the outcomes are joined to the clauses and written at the end of the session.

Marks are read from every collected item before -m and -k deselect any, so a narrow run checks as much as a full one.
Under pytest-xdist the workers read them, and reports bring them to the process that writes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conformance import clauses as clause_lists
from tests.conformance import report as reports

PROPERTY = "weft-clauses"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("clause_spec_dir", "directory with the clause lists, from the root directory", default="tests/spec")
    parser.addini(
        "clause_words", "file that says where our documentation shows a clause, from the root directory", default=""
    )
    group = parser.getgroup("conformance")
    group.addoption("--conformance-md", metavar="PATH", help="write the table of clauses and the tests that show them")
    group.addoption("--conformance-json", metavar="PATH", help="write the same for programs")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "clause(*ids): the clauses of the specification lists that this test shows")
    config.addinivalue_line("markers", "fact(name): what this case of a parametrized test checks")
    config.pluginmanager.register(ClausePlugin(config), "weft-clauses")


def _fact(item: pytest.Item) -> str | None:
    """The name of a case of a parametrized test, if the case has the mark `fact`, or only the case has the clause."""
    named = item.get_closest_marker("fact")
    if named is not None:
        return str(named.args[0])
    call = getattr(item, "callspec", None)
    return call.id if call is not None and any(mark.name == "clause" for mark in call.marks) else None


class ClausePlugin:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.clauses: dict[str, clause_lists.Clause] = {}
        self.evidence: dict[str, reports.Evidence] = {}
        self.shows: dict[str, tuple[str, tuple[str, ...]]] = {}  # node id -> label of the test in the table, clause ids
        self.outcomes: dict[str, str] = {}  # node id -> the worst of its phases
        self.missing: list[str] = []  # quotations that their page does not contain

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        faults: list[str] = []
        try:
            self._load()
        except clause_lists.ClauseError as error:
            faults += str(error).splitlines()
        for item in items:
            call = getattr(item, "callspec", None)
            if call is not None and call.params.get("_provider"):
                continue  # over a real libfabric (tests/fi/real.py): it shows nothing of Weft's own provider
            ids: list[str] = []
            for mark in item.iter_markers("clause"):
                if mark.kwargs or not mark.args or not all(isinstance(arg, str) for arg in mark.args):
                    faults.append(f"{item.nodeid}: clause takes one or more ids as strings, found {mark}")
                    continue
                for clause_id in mark.args:
                    if self.clauses and clause_id not in self.clauses:
                        faults.append(clause_lists.unknown_message(clause_id, item.nodeid, self.clauses))
                ids += mark.args
            if ids:
                label = reports.label(item.nodeid, _fact(item))
                item.user_properties.append((PROPERTY, [label, list(dict.fromkeys(ids))]))
        if faults:
            self.clauses = {}  # the run does not start, so nothing is written at its end
            raise pytest.UsageError("\n".join(["clauses:", *dict.fromkeys(faults)]))

    def _load(self) -> None:
        root = self.config.rootpath
        self.clauses = clause_lists.load(root / self.config.getini("clause_spec_dir"))
        words = self.config.getini("clause_words")
        if words:
            sections, self.missing = clause_lists.find_words(root / words, root, self.clauses)
            for clause_id, found in sections.items():
                self._evidence(clause_id).sections = found

    def _evidence(self, clause_id: str) -> reports.Evidence:
        return self.evidence.setdefault(clause_id, reports.Evidence())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test passed if its call passed and neither set-up nor tear-down failed; xfail and xpass show nothing."""
        found = dict(report.user_properties).get(PROPERTY)
        if found is None:
            return
        self.shows[report.nodeid] = found[0], tuple(found[1])
        if report.failed:
            self.outcomes[report.nodeid] = "failed"
        elif report.skipped or hasattr(report, "wasxfail"):
            self.outcomes.setdefault(report.nodeid, "skipped")
        elif report.when == "call":
            self.outcomes.setdefault(report.nodeid, "passed")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workerinput"):
            return
        if not self.clauses and self.shows:  # the workers collected
            self._load()
        if not self.clauses:
            return
        for node_id, outcome in self.outcomes.items():
            label, clause_ids = self.shows[node_id]
            for clause_id in clause_ids:
                getattr(self._evidence(clause_id), outcome).append(label)
        for option, write in (("conformance_md", reports.as_markdown), ("conformance_json", reports.as_json)):
            path = self.config.getoption(option)
            if path:
                target = Path(self.config.invocation_params.dir, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(write(self.clauses, self.evidence), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        written = [path for path in map(self.config.getoption, ("conformance_md", "conformance_json")) if path]
        if written and self.clauses:
            found = [
                reports.status(clause, self.evidence.get(clause.id, reports.Evidence()))
                for clause in self.clauses.values()
            ]
            terminalreporter.write_line(
                f"{found.count(reports.SHOWN)} of {len(found)} clauses shown, "
                f"{found.count(reports.CONTRADICTED)} contradicted: {', '.join(written)}"
            )
            for line in self.missing:
                terminalreporter.write_line(line)
