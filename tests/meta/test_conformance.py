"""The clause plugin, run by pytester over small projects of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conformance import clauses, report

ROOT = Path(__file__).parents[2]

SPEC = """
[[clause]]
id = "mr.reg.key-in-use"
kind = "error"
section = "fi_mr_reg"
text = "A key in use is refused | with FI_ENOKEY."
observable = "api"

[[clause]]
id = "mr.reg.flags"
kind = "flag"
section = "fi_mr_reg"
text = "Unknown flags are refused."
observable = "api"

[[clause]]
id = "mr.notes.advice"
kind = "doc"
section = "NOTES"
text = "Register large regions."
observable = "doc"
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.mkdir("spec")
    pytester.path.joinpath("spec", "fi_mr.toml").write_text(SPEC)
    pytester.makeini("[pytest]\nclause_spec_dir = spec\nclause_docs = README.md docs/**/*.md\nstrict_markers = true\n")
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> tuple[pytest.RunResult, dict[str, dict[str, object]]]:
    result = project.runpytest_inprocess(
        "-p", "tests.conformance.plugin", "-p", "no:cacheprovider", "--conformance-md=out/c.md",
        "--conformance-json=out/c.json", *arguments,
    )  # fmt: skip
    written = project.path / "out" / "c.json"
    return result, json.loads(written.read_text()) if written.exists() else {}


def test_clause_with_passing_test_is_shown(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_mr="""
        import pytest
        @pytest.mark.clause("mr.reg.key-in-use")
        @pytest.mark.parametrize("key", [1, 2])
        def test_key(key): pass
        """
    )
    result, rows = run(project)
    assert result.ret == 0
    assert rows["mr.reg.key-in-use"] == {
        "document": "fi_mr(3)",
        "status": "shown",
        "tests": ["test_mr.py::test_key"],
    }
    assert rows["mr.reg.flags"] == {"document": "fi_mr(3)", "status": "not yet", "tests": []}
    table = (project.path / "out" / "c.md").read_text()
    assert "| fi_mr(3) | 3 | 1 | 2 |" in table
    assert "| `mr.reg.key-in-use` | A key in use is refused \\| with FI_ENOKEY. | `test_mr.py::test_key` |" in table
    assert "| `mr.reg.flags` | Unknown flags are refused. | not yet |" in table


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("fails", "def test_x(): assert 0"),
        ("skips", "def test_x(): pytest.skip('no')"),
        ("is_marked_skip", "@pytest.mark.skip\n        def test_x(): pass"),
        ("xfails", "@pytest.mark.xfail\n        def test_x(): assert 0"),
        ("xpasses", "@pytest.mark.xfail\n        def test_x(): pass"),
        ("fails_in_set_up", "def test_x(broken): pass"),
        ("fails_in_tear_down", "def test_x(leaky): pass"),
    ],
)
def test_clause_whose_test_does_not_pass_is_not_shown(project: pytest.Pytester, name: str, body: str) -> None:
    project.makepyfile(
        f"""
        import pytest
        @pytest.fixture
        def broken(): assert 0
        @pytest.fixture
        def leaky():
            yield
            assert 0
        @pytest.mark.clause("mr.reg.flags")
        {body}
        """
    )
    _, rows = run(project)
    assert rows["mr.reg.flags"] == {"document": "fi_mr(3)", "status": "not yet", "tests": []}, name


def test_clause_with_one_passing_and_one_failing_test_lists_both(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.clause("mr.reg.flags")
        def test_good(): pass
        def test_bad(): assert 0
        """
    )
    result, rows = run(project)
    assert result.ret == 1
    assert rows["mr.reg.flags"]["tests"] == [
        "test_clause_with_one_passing_and_one_failing_test_lists_both.py::test_good"
    ]
    assert "fails: `test_clause" in (project.path / "out" / "c.md").read_text()


def test_clause_deselected_is_not_shown(project: pytest.Pytester) -> None:
    project.makepyfile('import pytest\n@pytest.mark.clause("mr.reg.flags")\ndef test_x(): pass\ndef test_y(): pass')
    _, rows = run(project, "-k", "test_y")
    assert rows["mr.reg.flags"]["status"] == "not yet"


def test_clause_unknown_fails_the_run_and_names_the_nearest(project: pytest.Pytester) -> None:
    project.makepyfile('import pytest\n@pytest.mark.clause("mr.reg.key-in-used")\ndef test_x(): pass')
    result, rows = run(project, "-k", "nothing")  # even where the test would not run
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_x: unknown clause 'mr.reg.key-in-used'; nearest known: mr.reg.key-in-use*"])
    assert not rows


@pytest.mark.parametrize("mark", ["clause()", 'clause(id="mr.reg.flags")', "clause(7)", "clause"])
def test_clause_without_ids_fails_the_run(project: pytest.Pytester, mark: str) -> None:
    project.makepyfile(f"import pytest\n@pytest.mark.{mark}\ndef test_x(): pass")
    result, _ = run(project)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*clause takes one or more ids as strings*"])


def test_doc_clause_is_shown_by_its_section_and_not_by_a_test(project: pytest.Pytester) -> None:
    project.makepyfile('import pytest\n@pytest.mark.clause("mr.notes.advice")\ndef test_x(): pass')
    _, rows = run(project)
    assert rows["mr.notes.advice"]["status"] == "not yet"
    project.mkdir("docs")
    project.path.joinpath("docs", "memory.md").write_text(
        "# Memory\n\n## Large regions\n\n<!-- clause: mr.notes.advice,\n mr.reg.flags -->\nRegister large ones.\n"
    )
    _, rows = run(project)
    assert rows["mr.notes.advice"]["status"] == "shown"
    assert rows["mr.notes.advice"]["sections"] == ["docs/memory.md: Large regions"]
    assert rows["mr.reg.flags"]["status"] == "not yet"  # a comment never shows what a test must


def test_doc_comment_unknown_fails_the_run(project: pytest.Pytester) -> None:
    project.makepyfile("def test_x(): pass")
    project.path.joinpath("README.md").write_text("one\n<!-- clause: mr.notes.advise -->\n")
    result, _ = run(project)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*README.md:2: unknown clause 'mr.notes.advise'; nearest known: mr.notes.advice*"])


def test_doc_comment_in_a_code_fence_does_not_count(tmp_path: Path) -> None:
    known = {"a.b": clauses.Clause("a.b", "d", "doc", "s", "t", "doc")}
    (tmp_path / "x.md").write_text("```html\n<!-- clause: a.b, no.such -->\n```\n")
    assert clauses.scan_docs(tmp_path, ["*.md"], known) == {}


def test_clause_listed_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fi_mr.toml").write_text(SPEC)
    (tmp_path / "fi_rma.toml").write_text(SPEC)
    with pytest.raises(clauses.ClauseError, match=r"fi_rma.toml: clause mr.reg.flags is listed twice"):
        clauses.load(tmp_path)


def test_lists_of_this_project_are_complete() -> None:
    listed = clauses.load(ROOT / "tests" / "spec")
    count: dict[str, int] = {}
    for clause in listed.values():
        assert clause.observable in {"api", "counter", "config", "tool", "doc"}, clause
        count[clause.document] = count.get(clause.document, 0) + 1
    assert count == {"fi_cxi(7)": 791, "fi_mr(3)": 385, "fi_rma(3)": 90, "UCP memory routines": 187}
    assert report.as_json(listed, {}).count("not yet") == len(listed)
