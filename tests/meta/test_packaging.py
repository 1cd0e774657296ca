"""Before the first import: the README on PyPI, the metadata, the source archive, a missing compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests import patience

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]


# ---- metadata --------------------------------------------------------------------------------------------------------
def links(markdown: str) -> list[str]:
    """Targets of inline links and of definitions, without those in code."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", markdown, flags=re.S)
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.M)


def test_readme_links_work_outside_the_tree() -> None:
    """PyPI shows the README alone, so links to files of the tree lead to the repository."""
    base = PROJECT["project"]["urls"]["Source"] + "/blob/main/"
    found = links((ROOT / "README.md").read_text())
    assert found
    assert [link for link in found if not link.startswith("https://")] == []
    missing = [link for link in found if link.startswith(base) and not (ROOT / link.removeprefix(base)).exists()]
    assert missing == []


def test_readme_defines_each_reference_that_it_uses() -> None:
    text = (ROOT / "README.md").read_text()
    defined = set(re.findall(r"^\[([^\]]+)\]: ", text, re.M))
    body = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)
    body = re.sub(r"^\[[^\]]+\]: .*$", "", body, flags=re.M)
    used = {second or first for first, second in re.findall(r"\[([^\]]+)\](?:\[([^\]]+)\])?(?!\()", body)}
    assert used == defined


def test_urls_are_those_of_one_repository() -> None:
    urls = PROJECT["project"]["urls"]
    assert {"Homepage", "Documentation", "Changelog", "Issues", "Source"} <= set(urls)
    assert all(url.startswith(urls["Source"]) for url in urls.values())


def test_classifiers_name_the_pythons_that_wheels_are_built_for() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    named = [c.rpartition(" ")[2] for c in classifiers if re.search(r"Python :: 3\.\d+$", c)]
    assert named == PYTHONS
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    built = [one for one in PROJECT["tool"]["cibuildwheel"]["build"] if not one.endswith("t-*")]
    assert built == [f"cp{version.replace('.', '')}-*" for version in PYTHONS]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_cibuildwheel_builds_a_manylinux_wheel_for_each_python(machine: str) -> None:
    pytest.importorskip("cibuildwheel", reason="pip install cibuildwheel; not part of the development environment")
    result = patience.run(
        [sys.executable, "-m", "cibuildwheel", "--platform", "linux", "--archs", machine, "--print-build-identifiers"],
        100,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stderr
    wanted = [f"cp{version.replace('.', '')}-manylinux_{machine}" for version in PYTHONS]
    assert result.stdout.split() == [*wanted, f"cp314t-manylinux_{machine}"]


# ---- the compiler ----------------------------------------------------------------------------------------------------
def configured(folder: Path, source: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """CMake's first step, without Python, in an empty folder."""
    tools = Path(sys.executable).parent
    if not (tools / "cmake").exists() or not (tools / "ninja").exists():
        pytest.skip("CMake and Ninja are not installed in this environment")
    return patience.run(
        [str(tools / "cmake"), "-S", str(source), "-B", str(folder), "-G", "Ninja", "-DWEFT_PYTHON=OFF"]
        + [f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"],
        300,
        env={**os.environ, **environment},
    )


def test_without_a_compiler_the_build_says_what_to_install(tmp_path: Path) -> None:
    result = configured(tmp_path / "build", CXX="", PATH=str(tmp_path))
    assert result.returncode != 0
    said = " ".join(result.stderr.split())
    assert "Weft is compiled from C++20, and there is no C++ compiler here." in said
    assert "apt install g++" in said
    assert "--only-binary weft" in said


def test_compiler_without_cpp20_is_named_with_what_to_install(tmp_path: Path) -> None:
    real = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
    if real is None:
        pytest.skip("no compiler here")
    old = tmp_path / "old-g++"
    old.write_text(
        '#!/bin/sh\nfor word in "$@"; do\n'
        '  case "$word" in -std=*20|-std=*2a) echo "unknown $word" >&2; exit 1;; esac\ndone\n'
        f'exec {real} "$@"\n'
    )
    old.chmod(0o755)
    result = configured(tmp_path / "build", CXX=str(old))
    assert result.returncode != 0
    said = " ".join(result.stderr.split())
    assert "Weft is compiled from C++20, which" in said
    assert "old-g++" in said.replace(" ", "")
    assert "apt install g++" in said


# ---- the source archive ----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive that `python -m build --sdist` makes: by the project's build backend."""
    pytest.importorskip("scikit_build_core", reason="a build requirement: absent outside the development environment")
    out = tmp_path_factory.mktemp("sdist")
    program = f"from scikit_build_core.build import build_sdist; print(build_sdist({str(out)!r}))"
    result = patience.run([sys.executable, "-c", program], 300, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = out.glob("*.tar.gz")
    return path


def test_sdist_has_the_sources_and_no_leftovers(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "PKG-INFO"} <= set(names)
    assert {"cpp/bind/module.cpp", "src/weft/__init__.py", "src/weft/fm/page.html"} <= set(names)
    leftovers = [
        name
        for name in names
        if name.endswith((".so", ".o", ".a", ".pyc")) or name.startswith(("build/", ".venv/", "dist/", ".git/"))
    ]
    assert leftovers == []


def test_sdist_has_all_that_make_docs_reads(sdist: Path) -> None:
    """A page that is missing is a link to nothing, which ends the build of the pages."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    read = [ROOT / "CHANGELOG.md", *(path for name in ("docs", "examples") for path in (ROOT / name).rglob("*"))]
    wanted = {path.relative_to(ROOT).as_posix() for path in read if path.is_file() and path.suffix != ".pyc"}
    assert wanted - names == set()


def test_sdist_can_be_configured(sdist: Path, tmp_path: Path) -> None:
    """What CMake reads is in the archive: each room's sources are found there."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if sys.version_info >= (3, 12) else {}))
    (source,) = tmp_path.iterdir()
    result = configured(tmp_path / "build", source)
    assert result.returncode == 0, result.stderr
    assert {path.name for path in (source / "cpp").iterdir() if path.is_dir()} == {
        path.name for path in (ROOT / "cpp").iterdir() if path.is_dir()
    }
