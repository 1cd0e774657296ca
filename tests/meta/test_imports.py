"""The arrows between the rooms point downwards only: Python imports and C++ #includes, read without running anything.

The tables below are the whole law. A new room or a new arrow is a change here, with its reason in the commit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# ---- the law ----------------------------------------------------------------------------------------------------
CPP_BELOW: dict[str, set[str]] = {
    "base": set(),
    "wire": {"base"},
    "ring": {"base"},
    "sync": {"base"},  # locks and queues in shared memory: no link, no key
    "mem": {"base", "wire"},
    "link": {"base", "wire", "ring", "mem"},  # mem: a peer's memory view is made of mem's tables
    "nic": {"base", "wire", "ring", "sync", "mem", "link"},
    # The calls of an endpoint, checked by its provider's rules; sync: calls on objects that an owner's NIC does.
    "call": {"base", "wire", "sync", "mem", "nic"},
    "array": {"base", "nic"},  # what an index selects of another process's array, and copies of it
    "host": {"base", "wire", "ring", "sync", "mem", "link", "nic"},  # the composition root
    "ofi": set(),  # a real libfabric's structs, the library, and the contexts of its operations
    "ucp": {"base", "wire", "nic"},  # UCP's operations; worker.hpp and what it includes know base alone
    # Front files and library of the providers for C programs; of ofi the structs alone.
    "provider": {"base", "wire", "mem", "link", "nic", "call", "host", "ofi"},
    # Nothing includes bind or provider.
    "bind": {"base", "wire", "ring", "sync", "mem", "link", "nic", "call", "array", "host", "ucp", "ofi"},
}
# Only the seam knows Python; only the standard library and the system are known elsewhere.
BIND_ONLY = re.compile(r"^(Python\.h|structmember\.h|nanobind/|numpy/|pybind11/)")
FOREIGN = re.compile(r"^(boost/|fmt/|absl/|gtest/)")
# Time, randomness and the environment come from outside, so that one seed replays a whole fabric: only the composition
# root and the seam read them.
ROOTS = {"host", "bind", "provider"}
NEVER = re.compile(
    r"\b(clock_gettime|clock_getres|gettimeofday|timespec_get|(?:steady|system|high_resolution)_clock::now|__rdtscp?"
    r"|__builtin_ia32_rdtscp?|random_device|getrandom|getentropy|arc4random|drand48|rand_r|getenv|secure_getenv|environ"
    r"|nanosleep|clock_nanosleep|usleep|sleep_for|sleep_until)\b"
    r"|(?:std|(?<!\w))::(?:time|rand|random|clock|sleep)\(|\btime\((?:nullptr|NULL|0)\)|(?<![\w.>])rand\(\)"
    r"|/dev/u?random\b"
)
# The NIC opens no file besides.
NIC_NEVER = re.compile(r"\b(fopen|ifstream|ofstream)\b")
# Code that waits for a step of another thread may sleep, which tells it no time.
SLEEPS = ("base/backoff.hpp", "nanosleep")

_GROUND = {"_extras", "_nic", "errors", "flags", "buffers", "_process", "_keys", "_aio", "_files", "_meant", "_with"}
PY_BELOW: dict[str, set[str]] = {
    "_version": set(),
    "_nic": set(),
    "_signatures": set(),  # the signatures of the extension's functions, for inspect and errors
    "_extras": set(),  # which extra brings a package, for the error where the package is missing
    "_with": {"errors"},  # the base of handles that end with a block
    "_meant": set(),  # the names that a module has, and the advice for one that it has not
    "_aio": set(),  # a descriptor that an event loop watches
    "errors": {"_nic", "flags"},
    "_files": {"errors"},  # the registry's folder, and locks in it: of the CXI devices, and of the keeper of arrays
    "flags": {"_nic"},
    "buffers": {"_nic", "errors", "flags"},
    "settings": {"_files", "errors", "flags"},  # the environment
    "_sodium": {"_nic", "errors"},  # the cryptography of the tcp link
    # The process's one NIC, made from the settings, with our errors and buffers; fork; where it listens.
    "_huge": {"settings"},  # whether arrays get huge pages
    "_process": {"_huge", "_nic", "_sodium", "errors", "buffers", "settings"},
    "_keys": {"_nic", "errors", "flags", "_process"},  # descriptions of endpoints and regions, between processes
    "fi": _GROUND | {"memory"},  # and providers, from the package itself (REGISTERS); of memory the policies
    "providers": _GROUND | {"fi", "settings", "fm"},  # of fi its data types (FI_OBJECTS); of fm the client of joins
    "cxi": {"_meant", "fi", "providers"},  # the CXI provider's public names; fi first, which makes its providers known
    "ucp": _GROUND | {"memory"},  # of memory the HMEM layer
    "memory": _GROUND | {"settings"},  # the documented FI_HMEM_* and FI_MR_CACHE_* variables
    "share": _GROUND | {"fi", "memory"},
    "fm": {"_extras", "errors"},  # the Fabric Manager: no data path; the page's live data comes from tools
    "observe": {"_nic", "_with", "errors", "flags", "fi"},  # of _nic the names of numbers
    # The policies, for C programs; of _process on whose behalf it acts.
    "policyhost": {"_files", "_nic", "_process", "_sodium", "errors", "fi", "flags", "settings"},
    "testing": _GROUND | {"fi", "providers", "fm"},
    "launch": {"errors"},  # who started this process: for users and the doctor; nothing else asks
    # Of fi what Dask's frames need: regions without names and tickets.
    "interop": {"_extras", "_process", "errors", "fi", "memory", "share"},
    "tools": _GROUND
    | {
        "settings",
        "fi",
        "providers",
        "ucp",
        "memory",
        "share",
        "fm",
        "observe",
        "policyhost",  # the answers to C programs
        "testing",
        "interop",
        "launch",
        "_version",
    }
    | {"_huge", "_sodium"},
    # Type checkers see every room here; at run time each is imported when it is used (test_light_import.py).
    "__init__": {
        "_version",
        "buffers",
        "cxi",
        "errors",
        "fi",
        "flags",
        "fm",
        "interop",
        "launch",
        "memory",
        "observe",
        "providers",
        "settings",
        "share",
        "testing",
        "ucp",
    },
    "__main__": {"tools"},
}
# share's subpackages, and "" for its own modules: what each imports when it is loaded. What only type checkers see, and
# what a function imports when it runs (a node's first kept array), may point upwards.
SHARE_BELOW: dict[str, set[str]] = {
    "names": set(),  # tickets, names, processes: no arrays, no node
    "arrays": {"names"},
    "": {"names", "arrays"},
    "sync": {"names", "arrays", ""},
    "groups": {"names", "arrays", ""},
    "keeping": {"names", "arrays", ""},
}
# The package makes our own providers known, as its last import; no module of it knows a provider.
REGISTERS = "fi/__init__.py"
# Objects of fi are not for providers: policy is asked, and answers with data (Info, attributes, limits, flags).
FI_OBJECTS = {
    "domain",
    "endpoint",
    "av",
    "cq",
    "cntr",
    "eq",
    "mr",
    "mr_register",
    "mr_device",
    "rma",
    "atomic",
    "msg",
    "tagged",
    "trigger",
    "collective",
}
# The provider that brings its own objects, of a real libfabric, under the same interface.
OWN_OBJECTS = "providers/ofi/"
# Packages that only some rooms may import, and whether only inside functions.
PACKAGES: dict[str, tuple[set[str], bool]] = {
    "typer": ({"tools"}, False),
    "rich": ({"tools"}, False),
    "matplotlib": ({"tools"}, True),
    "nacl": ({"_sodium"}, True),
    "fastapi": ({"fm"}, False),  # the extra [fm]; models.py and server.py alone, which only the service imports
    "starlette": ({"fm"}, False),
    "pydantic": ({"fm"}, False),
    "uvicorn": ({"fm"}, False),
    "torch": ({"interop", "buffers", "testing"}, True),
    "dask": ({"interop"}, False),
    "distributed": ({"interop"}, False),
    "mpi4py": ({"interop"}, False),
    "cupy": ({"interop", "buffers", "testing"}, True),
}


# ---- C++ ----------------------------------------------------------------------------------------------------
_INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
_CPP_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def cpp_faults(cpp: Path) -> Iterator[str]:
    """Every wrong arrow under `cpp`, as sentences that name file, line and rule."""
    for path in sorted(path for suffix in ("hpp", "cpp", "inl", "h") for path in cpp.rglob(f"*.{suffix}")):
        room = path.relative_to(cpp).parts[0]
        text = path.read_text(encoding="utf-8")
        if room not in CPP_BELOW:
            yield f"{path.relative_to(cpp.parent)}: '{room}' is no room; known: {', '.join(CPP_BELOW)}"
            continue
        for match in _INCLUDE.finditer(text):
            line = text.count("\n", 0, match.end()) + 1
            where = f"{path.relative_to(cpp.parent)}:{line}"
            if match[1]:
                target, _, rest = match[1].partition("/")
                if not rest:
                    yield f'{where}: #include "{match[1]}": the include root is cpp/, write "<room>/{match[1]}"'
                elif target == room or target in CPP_BELOW[room]:
                    continue
                elif target in CPP_BELOW:
                    below = ", ".join(sorted(CPP_BELOW[room])) or "the standard library only"
                    yield f'{where}: {room} includes {target} ("{match[1]}"), but stands on {below}'
                elif room != "bind" or not BIND_ONLY.match(match[1]):
                    yield f'{where}: #include "{match[1]}" names no room; write <...> for what is not ours'
            elif BIND_ONLY.match(match[2]) and room != "bind":
                yield f"{where}: <{match[2]}> outside bind: the NIC knows nothing of Python"
            elif FOREIGN.match(match[2]):
                yield f"{where}: <{match[2]}>: the NIC stands on the standard library and the system alone"
        code = _CPP_COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
        never = [] if room in ROOTS else [*NEVER.finditer(code)]
        never += NIC_NEVER.finditer(code) if room == "nic" else []
        for match in never:
            if (path.relative_to(cpp).as_posix(), match.group()) == SLEEPS:
                continue
            line = code.count("\n", 0, match.start()) + 1
            where = f"{path.relative_to(cpp.parent)}:{line}"
            yield f"{where}: {match.group()} in {room}: take clock, random, link or the value as a parameter"


# ---- Python -------------------------------------------------------------------------------------------------
def _imports(tree: ast.Module, package: list[str]) -> Iterator[tuple[int, str, bool]]:
    """(line, dotted module, whether inside a function) of each import; `from weft import fi` counts as weft.fi."""

    def visit(node: ast.AST, inside: bool) -> Iterator[tuple[int, str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield child.lineno, alias.name, inside
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                module = ".".join([*base, *([child.module] if child.module else [])])
                for alias in child.names:
                    # Whether `a` of `from x import a` is a module or a name makes no difference to the arrow, except at
                    # the package's top, where it decides the room, and in fi, where it decides the object.
                    yield child.lineno, f"{module}.{alias.name}" if module in ("weft", "weft.fi") else module, inside
            else:
                lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                # Only type checkers see imports behind TYPE_CHECKING.
                lazy |= isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
                yield from visit(child, inside or lazy)

    yield from visit(tree, False)


def python_faults(weft: Path) -> Iterator[str]:
    """Every wrong arrow in the package at `weft`, as sentences that name file, line and rule."""
    for path in sorted([*weft.rglob("*.py"), *weft.rglob("*.pyi")]):
        relative = path.relative_to(weft)
        if relative.name == "_on_use.pyi":  # what the package itself imports, spelled out for type checkers
            relative = relative.with_name("__init__.py")
        room = relative.parts[0] if len(relative.parts) > 1 else relative.stem
        if room not in PY_BELOW:
            yield f"weft/{relative}: '{room}' is no room; known: {', '.join(PY_BELOW)}"
            continue
        package = ["weft", *relative.parts[:-1]]
        for line, module, inside in _imports(ast.parse(path.read_text(encoding="utf-8")), package):
            where = f"weft/{relative}:{line}"
            top, *rest = module.split(".")
            if top != "weft":
                if top in PACKAGES:
                    rooms, lazily = PACKAGES[top]
                    if room not in rooms:
                        yield f"{where}: {room} imports {top}, which is for {', '.join(sorted(rooms))}"
                    elif lazily and not inside:
                        yield f"{where}: {top} is imported where it is used, inside a function"
                continue
            target = rest[0] if rest else "__init__"
            if target in ("__version__", "__init__", "_on_use"):
                target = "_version"
            if target == room or (target == "_version" and room != "_nic"):
                if room == "share" and not inside and (wrong := _share_fault(relative.parts, rest)):
                    yield f"{where}: {wrong}"
                continue
            if target not in PY_BELOW:
                yield f"{where}: {module}: import it from the room that defines it"
            elif room == "fi" and target == "providers":
                if relative.as_posix() != REGISTERS:
                    yield f"{where}: a provider registers itself; only weft/{REGISTERS} imports our own"
            elif target not in PY_BELOW[room]:
                below = ", ".join(sorted(PY_BELOW[room])) or "nothing of weft"
                yield f"{where}: {room} imports {target} ({module}), but stands on {below}"
            elif relative.as_posix().startswith(OWN_OBJECTS):
                continue
            elif room == "providers" and target == "fi" and rest[1:] and rest[1] in FI_OBJECTS:
                yield f"{where}: {module}: a provider is policy, it knows fi's data types and not its objects"


def _share_fault(parts: tuple[str, ...], target: list[str]) -> str:
    """The fault of an import from share/... by one of its modules, `parts`; "" for none."""
    if parts[1:] == ("__init__.py",):
        return ""  # the public names, of every subpackage
    own = parts[1] if len(parts) > 2 else ""
    other = target[1] if len(target) > 1 and target[1] in SHARE_BELOW else ""
    if own not in SHARE_BELOW:
        return f"share/{own} is no subpackage; known: {', '.join(filter(None, SHARE_BELOW))}"
    if own == other or other in SHARE_BELOW[own]:
        return ""
    return (
        f"share/{own} imports {other or 'share itself'}, but stands on {', '.join(sorted(SHARE_BELOW[own])) or 'none'}"
    )


# ---- the tests ----------------------------------------------------------------------------------------------
def test_cpp_includes_point_downwards() -> None:
    assert not list(cpp_faults(ROOT / "cpp"))


def test_python_imports_point_downwards() -> None:
    assert not list(python_faults(ROOT / "src" / "weft"))


@pytest.mark.parametrize(
    ("file", "line", "expected"),
    [
        ("ring/mpsc.hpp", '#include "mem/table.hpp"', "ring includes mem"),
        ("base/span.hpp", '#include "wire/frame.hpp"', "base includes wire"),
        ("nic/nic.cpp", '#include "bind/module.hpp"', "nic includes bind"),
        ("nic/nic.cpp", "#include <Python.h>", "outside bind"),
        ("mem/table.cpp", "#include <nanobind/nanobind.h>", "outside bind"),
        ("call/rma.cpp", "#include <nanobind/nanobind.h>", "outside bind"),
        ("call/rma.cpp", '#include "bind/common.hpp"', "call includes bind"),
        ("mem/table.cpp", "#include <boost/intrusive/list.hpp>", "standard library"),
        ("mem/table.cpp", '#include "table.hpp"', "include root"),
        ("nic/nic.cpp", "auto t = std::chrono::steady_clock::now();", "take clock"),
        ("nic/nic.cpp", 'std::ifstream in("x");', "take clock"),
        ("base/slab.cpp", "::clock_gettime(CLOCK_MONOTONIC, &ts);", "clock_gettime in base: take clock"),
        ("base/spinlock.hpp", "nanosleep(&ts, nullptr);", "nanosleep in base"),
        ("ring/mpsc.cpp", "std::this_thread::sleep_for(1ms);", "sleep_for in ring"),
        ("mem/ledger.cpp", "const time_t t = time(nullptr);", "in mem: take clock"),
        ("link/shm.cpp", "std::random_device seed;", "random_device in link"),
        ("sync/barrier.cpp", "const int n = std::rand();", "in sync: take clock"),
        ("call/rma.cpp", 'const char* v = std::getenv("WEFT_X");', "getenv in call"),
        ("ucp/worker.cpp", "const auto t = __rdtsc();", "__rdtsc in ucp"),
        ("toys/x.hpp", "", "no room"),
    ],
)
def test_cpp_wrong_arrow_is_found(tmp_path: Path, file: str, line: str, expected: str) -> None:
    source = tmp_path / "cpp" / file
    source.parent.mkdir(parents=True)
    source.write_text(f"// first\n{line}\n")
    (fault,) = cpp_faults(tmp_path / "cpp")
    assert expected in fault
    assert fault.startswith(f"cpp/{file}")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("link/shm.cpp", '#include "mem/table.hpp"'),
        ("bind/module.cpp", "#include <nanobind/nanobind.h>"),
        ("nic/nic.cpp", "// steady_clock::now is what we must not call"),
        ("host/host.cpp", "::clock_gettime(CLOCK_MONOTONIC, &ts);"),
        ("base/backoff.hpp", "nanosleep(&ts, nullptr);"),
        ("nic/rx.cpp", "const uint64_t t = sink_->time(1) + run_time(2);"),
        ("mem/maps.cpp", 'std::ifstream in("/proc/self/maps");'),
        ("nic/nic.cpp", "#include <atomic>"),
    ],
)
def test_cpp_right_arrow_is_accepted(tmp_path: Path, file: str, line: str) -> None:
    source = tmp_path / "cpp" / file
    source.parent.mkdir(parents=True)
    source.write_text(line + "\n")
    assert not list(cpp_faults(tmp_path / "cpp"))


@pytest.mark.parametrize(
    ("file", "code", "expected"),
    [
        ("fi/mr.py", "import weft.ucp", "fi imports ucp"),
        ("ucp/mem.py", "from weft import fi", "ucp imports fi"),
        ("ucp/mem.py", "from ..fi.mr import MemoryRegion", "ucp imports fi"),
        ("fi/domain.py", "from weft.providers import general", "registers itself"),
        ("fi/registry.py", "def load():\n    from weft.providers import general", "registers itself"),
        ("providers/general.py", "from weft.fi.mr import MemoryRegion", "not its objects"),
        ("providers/general.py", "from weft.fi import endpoint", "not its objects"),
        ("share/node.py", "def f():\n    import weft.providers.cxi", "share imports providers"),
        ("errors.py", "from weft import fi", "errors imports fi"),
        ("fi/cq.py", "import rich", "fi imports rich"),
        ("tools/plot.py", "import matplotlib.pyplot as plt", "inside a function"),
        ("fi/mr.py", "from weft import empty", "room that defines it"),
        ("share/names/ticket.py", "from ..node import Node", "share/names imports share itself"),
        ("share/names/ticket.py", "from ... import share", "share/names imports share itself"),
        ("share/toys/x.py", "from ..node import Node", "no subpackage"),
        ("toys/x.py", "", "no room"),
    ],
)
def test_python_wrong_arrow_is_found(tmp_path: Path, file: str, code: str, expected: str) -> None:
    source = tmp_path / "weft" / file
    source.parent.mkdir(parents=True)
    source.write_text(code + "\n")
    (fault,) = python_faults(tmp_path / "weft")
    assert expected in fault
    assert fault.startswith(f"weft/{file}")


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("fi/__init__.py", "from ..providers import general"),
        ("fi/mr.py", "from weft._nic import MemoryRegionCore\nfrom weft.fi.attrs import Info\nfrom . import domain"),
        ("providers/general.py", "from weft.fi.attrs import Info"),
        ("tools/cli.py", "import typer\nfrom weft import fi, ucp, __version__"),
        ("fi/cq.py", "import numpy as np\nimport struct"),
        ("share/node.py", "from .names.ticket import Ticket"),
        ("share/_on_use.pyi", "from .sync.lock import Lock as Lock"),
        ("_on_use.pyi", "from . import ucp as ucp"),
        ("share/names/ticket.py", "if TYPE_CHECKING:\n    from ..node import Node"),
    ],
)
def test_python_right_arrow_is_accepted(tmp_path: Path, file: str, code: str) -> None:
    source = tmp_path / "weft" / file
    source.parent.mkdir(parents=True)
    source.write_text(code + "\n")
    assert not list(python_faults(tmp_path / "weft"))
