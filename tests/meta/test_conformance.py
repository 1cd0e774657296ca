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
    pytester.path.joinpath("words.toml").write_text(
        '["README.md"]\n"mr.notes.advice" = "Register large regions, not small ones"\n'
    )
    pytester.makeini("[pytest]\nclause_spec_dir = spec\nclause_words = words.toml\nstrict_markers = true\n")
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
    assert "| fi_mr(3) | 3 | 1 | 0 | 2 |" in table
    assert "| `mr.reg.key-in-use` | A key in use is refused \\| with FI_ENOKEY. | `test_mr.py::test_key` |" in table
    assert "| `mr.reg.flags` | Unknown flags are refused. | not yet |" in table


def test_parallel_run_writes_the_same_table(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    project.makepyfile(
        test_mr="""
        import pytest
        @pytest.mark.clause("mr.reg.key-in-use")
        @pytest.mark.parametrize("key", range(6))
        def test_key(key): pass
        @pytest.mark.clause("mr.reg.flags")
        @pytest.mark.parametrize("flag", range(6))
        def test_flags(flag): assert flag != 3
        """
    )
    result = project.runpytest_subprocess(
        "-p", "tests.conformance.plugin", "-n", "2", "--conformance-json=out/c.json", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=11, failed=1)
    rows = json.loads((project.path / "out" / "c.json").read_text())
    assert rows["mr.reg.key-in-use"] == {
        "document": "fi_mr(3)",
        "status": "shown",
        "tests": ["test_mr.py::test_key"],
    }
    assert rows["mr.reg.flags"]["status"] == "contradicted"


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("skips", "def test_x(): pytest.skip('no')"),
        ("is_marked_skip", "@pytest.mark.skip\n        def test_x(): pass"),
        ("xfails", "@pytest.mark.xfail\n        def test_x(): assert 0"),
        ("xpasses", "@pytest.mark.xfail\n        def test_x(): pass"),
    ],
)
def test_clause_whose_test_does_not_run_is_not_shown(project: pytest.Pytester, name: str, body: str) -> None:
    project.makepyfile(f'import pytest\n@pytest.mark.clause("mr.reg.flags")\n{body}')
    _, rows = run(project)
    assert rows["mr.reg.flags"] == {"document": "fi_mr(3)", "status": "not yet", "tests": []}, name


@pytest.mark.parametrize(
    "body", ["(): assert 0", "(broken): pass", "(leaky): pass"], ids=["call", "set-up", "tear-down"]
)
def test_clause_whose_test_fails_is_contradicted(project: pytest.Pytester, body: str) -> None:
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
        def test_x{body}
        """
    )
    _, rows = run(project)
    assert rows["mr.reg.flags"]["status"] == "contradicted"
    assert rows["mr.reg.flags"]["tests"] == []


def test_clause_with_a_passing_and_a_failing_test_is_contradicted(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_mr="""
        import pytest
        pytestmark = pytest.mark.clause("mr.reg.flags")
        def test_good(): pass
        def test_bad(): assert 0
        """
    )
    result, rows = run(project)
    assert result.ret == 1
    row = rows["mr.reg.flags"]
    assert (row["status"], row["failed"]) == ("contradicted", ["test_mr.py::test_bad"])
    table = (project.path / "out" / "c.md").read_text()
    assert "| fi_mr(3) | 3 | 0 | 1 | 2 |" in table
    assert "| contradicted by `test_mr.py::test_bad` |" in table
    result.stdout.fnmatch_lines(["0 of 3 clauses shown, 1 contradicted: *"])


def test_clause_of_one_failing_case_is_contradicted(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_mr="""
        import pytest
        @pytest.mark.clause("mr.reg.flags")
        @pytest.mark.parametrize("n", [1, 2, 3])
        def test_x(n): assert n != 2
        """
    )
    _, rows = run(project)
    assert rows["mr.reg.flags"]["status"] == "contradicted"


def test_fact_of_a_case_is_named_in_the_table(project: pytest.Pytester) -> None:
    """A test that carries many facts says which one a clause rests on; so does a clause marked at one case."""
    project.makepyfile(
        test_mr="""
        import pytest
        mark = pytest.mark
        @mark.parametrize("path", ["a", "b"])
        @mark.parametrize("fact", [
            pytest.param(1, marks=[mark.fact("keys_differ"), mark.clause("mr.reg.flags")]),
            pytest.param(2, marks=mark.fact("keys_agree")),
        ])
        def test_carrier(path, fact): pass
        @mark.parametrize("fact", [pytest.param(1, id="one", marks=mark.clause("mr.reg.key-in-use")), 2])
        def test_case(fact): pass
        """
    )
    _, rows = run(project)
    assert rows["mr.reg.flags"]["tests"] == ["test_mr.py::test_carrier[keys_differ]"]
    assert rows["mr.reg.key-in-use"]["tests"] == ["test_mr.py::test_case[one]"]


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


def test_doc_clause_is_shown_by_words_and_not_by_a_test(project: pytest.Pytester) -> None:
    project.makepyfile('import pytest\n@pytest.mark.clause("mr.notes.advice")\ndef test_x(): pass')
    result, rows = run(project)
    assert rows["mr.notes.advice"]["status"] == "not yet"
    result.stdout.fnmatch_lines(["README.md does not say what shows mr.notes.advice: 'Register large regions,*"])
    project.path.joinpath("README.md").write_text(
        "# A\n\n## Large ones\n\nRegister large\n regions,  not small\nones.\n"
    )
    _, rows = run(project)
    assert rows["mr.notes.advice"]["status"] == "shown"
    assert rows["mr.notes.advice"]["sections"] == ["README.md: Large ones"]


WORDS = '["x.md"]\n"mr.notes.advice" = "Register large regions, please"\n'


@pytest.mark.parametrize(
    "text", ["<!-- Register large regions, please -->", "```\nRegister large regions, please\n```", "Register large.\n"]
)
def test_words_in_comments_and_code_show_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "fi_mr.toml").write_text(SPEC)
    known = clauses.load(tmp_path)
    (tmp_path / "words.toml").write_text(WORDS)
    (tmp_path / "x.md").write_text(f"# Title\n\n{text}\n")
    found, missing = clauses.find_words(tmp_path / "words.toml", tmp_path, known)
    assert not found
    assert missing == ["x.md does not say what shows mr.notes.advice: 'Register large regions, please'"]


def test_words_of_an_unknown_clause_fail_the_run(project: pytest.Pytester) -> None:
    project.makepyfile("def test_x(): pass")
    project.path.joinpath("words.toml").write_text(
        '["README.md"]\n"mr.notes.advise" = "Register large regions, please"\n'
    )
    result, _ = run(project)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*words.toml: unknown clause 'mr.notes.advise'; nearest known: mr.notes.advice*"])


def test_words_too_few_are_refused(tmp_path: Path) -> None:
    (tmp_path / "fi_mr.toml").write_text(SPEC)
    (tmp_path / "words.toml").write_text('["x.md"]\n"mr.notes.advice" = "large regions"\n')
    with pytest.raises(clauses.ClauseError, match="fewer than 4 words: 'large regions'"):
        clauses.find_words(tmp_path / "words.toml", tmp_path, clauses.load(tmp_path))


def test_words_of_this_project_are_in_their_pages() -> None:
    """Our documentation says, in so many words, each clause that only advises and counts as shown."""
    listed = clauses.load(ROOT / "tests" / "spec")
    found, missing = clauses.find_words(ROOT / "tests" / "conformance" / "words.toml", ROOT, listed)
    assert not missing
    assert [i for i in found if not listed[i].by_documentation] == []


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
