"""Modules that `import weft` must not load; bench/bench_import.py measures the time."""

from __future__ import annotations

import sys

import pytest
from tests import patience
from tests.meta.test_packaging import PROJECT

from weft import _extras

# Used by the command line, plotting or logs, and loaded when those are.
NEVER = {
    "typer",
    "rich",
    "matplotlib",
    "click",
    "structlog",
    "nacl",
    "asyncio",
    "fastapi",
    "http",
    "pydantic",
    "sqlite3",
    "ssl",
    "uvicorn",
    "torch",
}


def loaded_after(statement: str) -> set[str]:
    """Top-level modules that `statement` loads in a fresh interpreter, beyond those it starts with."""
    program = f"import sys; before = set(sys.modules)\n{statement}\nprint(*(set(sys.modules) - before))"
    result = patience.run([sys.executable, "-c", program], check=True, timeout=100)
    return {name.partition(".")[0] for name in result.stdout.split()}


def test_import_weft_loads_only_weft() -> None:
    loaded = loaded_after("import weft")
    assert "weft" in loaded
    assert not loaded & (NEVER | {"numpy"})


def test_import_weft_loads_no_room() -> None:
    program = "import sys, weft; print(*(name for name in sys.modules if name.startswith('weft.')))"
    result = patience.run([sys.executable, "-c", program], check=True, timeout=100)
    assert result.stdout.split() == ["weft._version"]


# Loaded at the first use of their callers; each costs a node's first user some milliseconds.
LATER = {
    "concurrent",
    "difflib",
    "hashlib",
    "html",
    "http",
    "logging",
    "multiprocessing",
    "random",
    "urllib.request",
    "weft.fi.aio",
    "weft.fi.ep_statistics",
    "weft.fi.mr_cache",
    "weft.fi.trigger",
    "weft.providers.cxi",
    "weft.share.arrays.aio",
    "weft.share.groups.group",
    "weft.tools",
    "weft.ucp",
}


def test_open_loads_only_what_a_node_needs() -> None:
    program = (
        "import sys, numpy; before = set(sys.modules)\nimport weft\nnode = weft.open()\n"
        "print(*(set(sys.modules) - before))"
    )
    result = patience.run([sys.executable, "-c", program], check=True, timeout=100)
    loaded = set(result.stdout.split())
    assert "weft.share.node" in loaded
    assert not loaded & (LATER | NEVER)


def test_provider_that_nothing_asks_for_is_not_imported() -> None:
    program = (
        "import sys\nfrom weft import fi\nfi.Fabric(fi.FabricAttr(prov_name='weft')).close()\n"
        "assert 'weft.providers.cxi' not in sys.modules\n"
        "print(*dict.fromkeys(info.fabric_attr.prov_name for info in fi.getinfo(flags=fi.PROV_ATTR_ONLY)))"
    )
    result = patience.run([sys.executable, "-c", program], timeout=100)
    assert result.stdout.split() == ["weft", "cxi"], result.stderr


@pytest.mark.parametrize("room", ["fi", "errors", "buffers", "share", "fm"])
def test_import_room_loads_no_tools(room: str) -> None:
    assert not loaded_after(f"import weft.{room}") & NEVER


def test_unknown_name_is_attribute_error() -> None:
    import weft

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        weft.nonsense  # noqa: B018
    assert "fi" in dir(weft)


def test_dir_lists_all_names() -> None:
    import weft

    for name in dir(weft):
        getattr(weft, name)
    with pytest.raises(AttributeError, match="no attribute 'rooms'"):
        weft.rooms  # noqa: B018


@pytest.mark.parametrize("statement", ["import weft", "import weft.ucp", "from weft import fi", "import weft.share"])
def test_import_in_a_subinterpreter_is_refused(statement: str) -> None:
    program = f"""
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
found = interpreters.create()
program = '''
try:
    {statement}
    print("imported")
except ImportError as reason:
    print(str(reason).splitlines()[0])
'''
print(end="", flush=True)
(getattr(interpreters, "run_string", None) or interpreters.exec)(found, program)
"""
    result = patience.run([sys.executable, "-c", program], check=True, timeout=100)
    assert result.stdout.strip() == (
        "weft works in the main interpreter of a process alone, and this is a subinterpreter"
    ), result.stderr


# ---- without the extras ----------------------------------------------------------------------------------------------
_WITHOUT = """\
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{package!r}}", name=package)


sys.meta_path.insert(0, Absent())
"""


def without(packages: set[str], program: str) -> tuple[int, str, str]:
    """(exit status, output, errors) of `program` where these packages are not installed."""
    result = patience.run([sys.executable, "-c", _WITHOUT.format(packages=sorted(packages)) + program], 100)
    return result.returncode, result.stdout, result.stderr


def test_library_needs_numpy_alone() -> None:
    program = (
        "import weft, weft.fi, weft.ucp, weft.cxi, numpy\n"
        "with weft.open() as node:\n"
        "    array = weft.zeros(4)\n"
        "    there = node.attach(node.share(array).ticket)\n"
        "    there[2] = 1.5\n"
        "print(array[2], len(weft.fi.getinfo()) > 0)\n"
    )
    assert without(set(_extras.EXTRAS), program) == (0, "1.5 True\n", "")


@pytest.mark.parametrize(
    ("package", "program", "extra"),
    [
        ("typer", "sys.argv = ['weft', 'demo']; import weft.tools.cli as m; m.main()", "cli"),
        ("rich", "sys.argv = ['weft', 'doctor']; import weft.tools.cli as m; m.main()", "cli"),
        ("distributed", "import weft.interop.dask", "dask"),
        ("fastapi", "import weft.fm.server", "fm"),
        ("pytest", "import weft.testing", "testing"),
    ],
)
def test_missing_package_of_an_extra_names_the_extra(package: str, program: str, extra: str) -> None:
    code, out, said = without({package}, program)
    assert (code, out) == (1, "")
    assert f"needs {package}, which is not installed" in said
    assert f"try: pip install 'weft-fabric[{extra}]'" in said


def test_info_works_without_the_packages_of_the_command() -> None:
    code, out, said = without({"typer", "rich"}, "sys.argv = ['weft', 'info']; import weft.tools.cli as m; m.main()")
    assert (code, said) == (0, "")
    assert "cxi" in out


def test_error_of_another_missing_module_stays_as_it_is() -> None:
    code, _, said = without({"numpy"}, "import weft.interop.dask")
    assert code == 1
    assert "weft-fabric[" not in said


def test_each_extra_is_declared() -> None:
    declared = PROJECT["project"]["optional-dependencies"]
    assert set(_extras.EXTRAS.values()) <= set(declared)
    assert PROJECT["project"]["dependencies"] == ["numpy>=1.24"]
    for package in ("typer", "rich", "distributed", "fastapi", "pydantic", "uvicorn", "mpi4py", "matplotlib", "pytest"):
        assert any(line.startswith(package) for line in declared[_extras.EXTRAS[package]])
