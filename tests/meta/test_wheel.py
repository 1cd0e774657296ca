"""The wheel, built as `pip install .` builds it and used outside the tree.

The build folder is kept (build/wheel), so that only the first run compiles everything.
"""

from __future__ import annotations

import email
import fcntl
import os
import sys
import zipfile
from pathlib import Path

import pytest
from tests import patience

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.wheel, pytest.mark.sweep, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("scikit_build_core", reason="a build requirement: absent outside the development environment")
    out = tmp_path_factory.mktemp("wheel")
    environment = dict(os.environ, CMAKE_BUILD_PARALLEL_LEVEL=os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2"))
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / "wheel.lock").open("w") as lock:  # another worker may have other tests of this file
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = patience.run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
            + [f"-Cbuild-dir={ROOT}/build/wheel", "-w", str(out), str(ROOT)],
            1500,
            env=environment,
        )
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


def test_wheel_has_one_extension(names: list[str]) -> None:
    (extension,) = (name for name in names if ".so" in Path(name).suffixes and name.count("/") == 1)
    assert extension.startswith("weft/_nic.")


def test_wheel_has_the_providers_for_c_programs_in_a_few_megabytes(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as whole:
        found = {Path(one.filename).name: one.file_size for one in whole.infolist() if "/libfabric/" in one.filename}
    assert set(found) == {"libcxi-fi.so", "libweft-fi.so", "libweft_provider.so"}
    assert sum(found.values()) < 4 << 20


def test_wheel_is_typed(names: list[str]) -> None:
    assert {"weft/py.typed", "weft/_nic.pyi"} <= set(names)


def test_wheel_has_the_package_and_nothing_else(names: list[str]) -> None:
    strangers = [name for name in names if not name.startswith(("weft/", "weft_fabric-0."))]
    assert not strangers
    leftovers = (".cpp", ".hpp", ".h", ".inl", ".a", ".o", ".md", ".cmake", ".ninja", ".orig", ".rej")
    assert not [name for name in names if name.endswith(leftovers) or "__pycache__" in name]
    kinds = {Path(name).suffix for name in names if name.startswith("weft/")}
    assert kinds == {".py", ".pyi", ".so", ".html", ".typed", ".txt"}
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "weft").rglob("*.py")}
    assert sources <= set(names)


def test_wheel_has_the_captured_hints_of_c_programs(names: list[str]) -> None:
    folder = ROOT / "src" / "weft" / "policyhost" / "hints"
    there = {path.relative_to(ROOT / "src").as_posix() for path in folder.iterdir()}
    assert {name for name in names if name.endswith(".txt") and name.startswith("weft/")} == there


def test_wheel_has_the_page_of_the_fabric_manager(names: list[str]) -> None:
    assert "weft/fm/page.html" in names


def test_wheel_has_licence_script_and_pytest_plugin(wheel: Path, names: list[str]) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in names)
    (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
    said = zipfile.ZipFile(wheel).read(entry_points).decode().replace(" ", "")
    assert "weft=weft.tools.cli:main" in said
    assert "[pytest11]\nweft.testing=weft.testing" in said


def test_wheel_describes_itself(wheel: Path, names: list[str]) -> None:
    (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    said = email.message_from_bytes(zipfile.ZipFile(wheel).read(metadata))
    assert {url.partition(",")[0] for url in said.get_all("Project-URL", [])} >= {"Documentation", "Issues", "Source"}
    assert "Programming Language :: Python :: 3.14" in said.get_all("Classifier", [])
    assert said["Description-Content-Type"].startswith("text/markdown")
    assert str(said.get_payload()).startswith("# Weft\n\nWeft lets Python processes read, write")  # README.md


def test_wheel_is_a_command_by_python_m(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    environment = dict(os.environ, PYTHONPATH=str(tmp_path))
    result = patience.run([sys.executable, "-m", "weft", "-V"], 100, cwd=tmp_path, env=environment)
    assert result.stdout.startswith("weft 0."), result.stderr


def test_wheel_works_outside_the_tree(wheel: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, imported by an interpreter that cannot see the tree."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = (
        f"import sys; sys.path[:] = [p for p in sys.path if not p.startswith({str(ROOT / 'src')!r})];"
        f"sys.path.insert(0, {str(tmp_path)!r}); import weft, weft.fi;"
        "print(weft.__file__, weft._nic.__file__, sep='\\n')"
    )
    result = patience.run(
        [sys.executable, "-P" if sys.version_info >= (3, 11) else "-B", "-c", program],
        100, cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    for line in result.stdout.splitlines():
        assert line.startswith(str(tmp_path))
