"""A checkout that was moved or copied builds its own sources, and not into its original."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests import patience

ROOT = Path(__file__).parents[2]
FOLDERS = (".venv", "build/release", "build/bench", "build/check", "build/address", "build/thread")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def made_in(checkout: Path, made: Path, *, marked: bool) -> None:
    """What make leaves behind: folders with absolute paths; without marks, as older Makefiles left them."""
    shutil.copy(ROOT / "Makefile", checkout / "Makefile")
    for folder in FOLDERS:
        (checkout / folder).mkdir(parents=True)
        (checkout / folder / "result").write_text("x")
        if marked:
            (checkout / folder / ".here").write_text(f"{made}\n")
    if not marked:
        (checkout / ".venv/bin").mkdir()
        (checkout / ".venv/bin/activate").write_text(f'VIRTUAL_ENV="{made}/.venv"\nexport VIRTUAL_ENV\n')
        for folder in FOLDERS[1:]:
            (checkout / folder / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={made}\n")
    (checkout / ".venv/.made").touch()


def look(checkout: Path) -> str:
    """Have make look at the marks, as it does before it builds anything."""
    done = patience.run(
        ["make", "--no-print-directory", *(f"{folder}/.here" for folder in FOLDERS)],
        cwd=checkout,
        check=True,
        timeout=100,
    )
    return done.stdout


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("how", ["moved", "copied"])
def test_moved_checkout_drops_its_build(tmp_path: Path, how: str, marked: bool) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    made_in(before, before, marked=marked)
    if how == "moved":
        before.rename(after)
    else:
        shutil.copytree(before, after)
    said = look(after)
    for folder in FOLDERS:
        assert not (after / folder / "result").exists()
        assert f"weft: {folder} is of the checkout in {before}" in said
        assert (after / folder / ".here").read_text().strip() == str(after)
    if how == "copied":
        assert all((before / folder / "result").exists() for folder in FOLDERS)


@pytest.mark.parametrize("marked", [True, False])
def test_unmoved_checkout_keeps_its_build(tmp_path: Path, marked: bool) -> None:
    """Under another name of its folder, too; and nothing is made anew because of a mark."""
    checkout, other_name = tmp_path / "checkout", tmp_path / "other"
    checkout.mkdir()
    other_name.symlink_to(checkout)
    made_in(checkout, checkout, marked=marked)
    assert look(other_name) == ""
    times = [(checkout / folder / ".here").stat().st_mtime_ns for folder in FOLDERS]
    assert look(checkout) == ""
    assert times == [(checkout / folder / ".here").stat().st_mtime_ns for folder in FOLDERS]
    assert all((checkout / folder / "result").exists() for folder in FOLDERS)
    assert (checkout / ".venv/.here").stat().st_mtime_ns <= (checkout / ".venv/.made").stat().st_mtime_ns


def test_build_asks_for_the_marks() -> None:
    """Every step that makes one of the folders comes after the look at its mark."""
    makefile = (ROOT / "Makefile").read_text()
    assert "$(VENV)/.made: $(VENV)/.here\n" in makefile
    for folder in FOLDERS[1:]:
        assert f"{folder}/.configured: CMakeLists.txt {folder}/.here" in makefile


def test_checkout_in_a_folder_with_a_blank_is_configured_with_whole_paths(tmp_path: Path) -> None:
    checkout = tmp_path / "a checkout"
    (checkout / ".venv/bin").mkdir(parents=True)
    for name in ("Makefile", "CMakeLists.txt"):
        shutil.copy(ROOT / name, checkout / name)
    for name, text in {"cmake": 'printf "%s\\n" "$@" > arguments', "python": "echo somewhere"}.items():
        (checkout / ".venv/bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (checkout / ".venv/bin" / name).chmod(0o755)
    patience.run(
        ["make", "-o", ".venv/.demo", "build/release/.configured", "CXX=g++"], cwd=checkout, check=True, timeout=100
    )
    arguments = (checkout / "arguments").read_text().splitlines()
    assert f"-DPython_EXECUTABLE={checkout}/.venv/bin/python" in arguments
    assert f"-DCMAKE_MAKE_PROGRAM={checkout}/.venv/bin/ninja" in arguments
    values = [one for one in arguments if not one.startswith("-")]
    assert values == [".", "build/release", "Ninja"]
