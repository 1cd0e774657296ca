"""The commands on our pages work, and show the output that the pages say."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.meta import notebooks, pages

DOCS = pages.ROOT / "docs"
RUNNABLE = sorted(path for path in DOCS.rglob("*.md") if path != DOCS / "README.md" and "<!-- run:" in path.read_text())


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[Path, Future[int]]]:
    """The wanted pages, two at a time: most of a page's time is the start of its processes.

    Pages share names and addresses that people can read, so two runs on one host take turns. The kernel drops this lock
    with the process.
    """
    wanted = [
        item.callspec.params["page"]
        for item in request.session.items
        if hasattr(item, "callspec") and item.path == request.path and "page" in item.callspec.params
    ]
    deadline = time.monotonic() + 100
    with socket.socket(socket.AF_UNIX) as lock:
        while True:
            try:
                lock.bind(f"\0weft-test-pages-{os.geteuid()}")
                break
            except OSError:
                if time.monotonic() > deadline:
                    pytest.fail("another run of these tests does not come to an end")
                time.sleep(0.1)
        with ThreadPoolExecutor(2) as pool:
            yield {page: pool.submit(pages.run, page) for page in wanted}


@pytest.mark.procs
@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_page_shows_the_real_output(page: Path, outcomes: dict[Path, Future[int]]) -> None:
    """Each block that a page marks is run in a process of its own; see tests/meta/pages.py."""
    if outcomes[page].result() == 0:
        pytest.skip("every block needs a package that is not installed")


def test_tutorials_are_run_from_end_to_end() -> None:
    """Every Python block of a tutorial has a run comment."""
    for page in (DOCS / "tutorial").glob("*.md"):
        text = page.read_text()
        assert text.count("```python") == len([b for b in pages.blocks(text) if b.kind != "shell"]), page.name


def test_page_that_shows_something_else_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# P\n\n<!-- run: session -->\n```python\n>>> 1 + 1\n3\n```\n")
    with pytest.raises(pages.Mismatch, match=r"page.md:5: 1 \+ 1"):
        pages.run(page)


def test_error_that_is_not_shown_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- run: session -->\n```python\n>>> x = 1 / 0\n```\n")
    with pytest.raises(pages.Mismatch, match="ZeroDivisionError"):
        pages.run(page)


def test_two_terminals_are_two_processes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    block = "<!-- run: {} -->\n```python\n>>> import os\n>>> open('{}', 'w').write(str(os.getpid())) > 0\nTrue\n```\n\n"
    check = "<!-- run: shell -->\n```console\n$ cmp -s one two || echo different\ndifferent\n```\n"
    page.write_text(block.format("terminal 1", "one") + block.format("terminal 2", "two") + check)
    assert pages.run(page) == 3


@pytest.mark.parametrize("comment", ["<!-- run: what=this -->\n```python\n1\n```\n", "<!-- run: session -->\ntext\n"])
def test_run_comment_that_is_not_understood_is_refused(comment: str) -> None:
    with pytest.raises(ValueError, match="run"):
        pages.blocks(comment)


# ---- notebooks -------------------------------------------------------------------------------------------------------
@pytest.mark.procs
@pytest.mark.parametrize("notebook", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_draws(notebook: Path) -> None:
    """Every code cell, in order; each figure has axes, and each of its axes shows something."""
    pytest.importorskip("matplotlib", reason="the notebooks draw with it")
    figures = notebooks.run(notebook)
    assert figures
    assert all(axes and all(axes) for axes in figures), figures


@pytest.mark.parametrize("notebook", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_output(notebook: Path) -> None:
    """The pages are made by running it: stored output would grow stale, and make each change unreadable."""
    for cell in notebooks.cells(notebook):
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


def test_notebooks_are_in_the_pages() -> None:
    assert len(notebooks.NOTEBOOKS) >= 2
    text = (DOCS / "notebooks" / "index.md").read_text()
    for notebook in notebooks.NOTEBOOKS:
        assert f"({notebook.name})" in text
        assert f"\n{notebook.stem}\n" in text
    conf = (DOCS / "conf.py").read_text()
    assert 'nb_execution_mode = "force"' in conf
    assert "nb_execution_raise_on_error = True" in conf
