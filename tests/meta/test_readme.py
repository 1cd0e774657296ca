"""The front page: its commands work, and the things that it names exist."""

from __future__ import annotations

import re

import pytest
from tests.meta import pages

README = pages.ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
LINES_MAX = 155


@pytest.mark.procs
def test_readme_shows_the_real_output() -> None:
    assert pages.run(README) >= 5


def test_readme_runs_each_of_its_python_blocks() -> None:
    assert TEXT.count("```python") == len([block for block in pages.blocks(TEXT) if block.kind != "shell"])


def test_readme_is_one_read() -> None:
    assert TEXT.count("\n") <= LINES_MAX


def test_readme_begins_with_arrays_and_says_once_where_weft_runs() -> None:
    headings = re.findall(r"^## (.*)", TEXT, re.M)
    assert headings[0] == "You have big arrays in several processes"
    assert TEXT.index("processes of one user") < TEXT.index("## ")
    assert TEXT.count("Linux") == 1


def test_readme_names_targets_and_commands_that_exist() -> None:
    from weft.tools.commands import app

    makefile = (pages.ROOT / "Makefile").read_text()
    targets = set(re.findall(r"\bmake ([a-z][-a-z0-9]*)", TEXT))
    assert targets
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.M)] == []
    known = {one.name or one.callback.__name__ for one in app.registered_commands if one.callback}
    known |= {one.name for one in app.registered_groups}
    named = set(re.findall(r"^weft ([a-z]+)", TEXT, re.M)) | set(re.findall(r"; weft ([a-z]+)", TEXT))
    assert named
    assert named <= known
