"""Starts a client of libfabric (an MPI library, NIXL) in a process of its own, and sees what it does.

The process loads the client's library and initializes it. Meanwhile this one looks at the process from outside, as
`weft top` does: endpoints of its NIC are there if, and only if, the client has chosen a provider of Weft.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..observe import Viewer
from .run import providers

DEADLINE_S = 60.0  # a busy machine takes long to start a policy helper
LOOK_S = 2.0
_MARK = "weft-doctor: "


class Kind(NamedTuple):
    """A client, and how it is found and asked.

    Attributes:
        library: The file's name.
        says: How MPI_Get_library_version begins.
        label: How effects of its variables begin in `weft run --show`.
        talk: Variables that make it print what it chooses.
        chosen: Finds that in its output.
        oldest: The oldest libfabric that it takes, and that Weft's providers work with.
        wheels: Distributions that bring it.
    """

    library: str
    says: str
    label: str
    talk: dict[str, str]
    chosen: str
    oldest: tuple[int, int]
    wheels: tuple[str, ...]


KINDS = {
    "mpich": Kind(
        "libmpi.so.12", "MPICH", "MPICH", {"MPIR_CVAR_DEBUG_SUMMARY": "1"},
        r"libfabric provider: ([^\s,]+)|==== (UCX) netmod", (1, 9), ("mpich",),
    ),
    "openmpi": Kind(
        "libmpi.so.40", "Open MPI", "Open MPI", {"OMPI_MCA_mtl_base_verbose": "10", "OMPI_MCA_pml_base_verbose": "10"},
        r"mtl:ofi:provider: (\S+)|select: component (\S+) selected", (1, 9), ("openmpi",),
    ),
    "nixl": Kind(
        "libplugin_LIBFABRIC.so", "NIXL", "NIXL", {"NIXL_LOG_LEVEL": "INFO"}, r"provider=(\S+)", (1, 20),
        ("nixl-cu12", "nixl-cu13", "nixl"),
    ),
    "impi": Kind(
        "libmpi.so.12", "Intel", "Intel MPI", {"I_MPI_DEBUG": "4"}, r"libfabric provider: (\S+)", (1, 9), ("impi-rt",),
    ),
}  # fmt: skip

# In the client's process: nothing of Weft is imported there. Lines with the mark are ours, the others the client's.
_MPI = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
text, size = ctypes.create_string_buffer(8192), ctypes.c_int()
library.MPI_Get_library_version(text, ctypes.byref(size))
tell("version " + " ".join(text.value.decode(errors="replace").split("\\n")[0].split()))
tell("library " + where(sys.argv[1].rpartition("/")[2]))
if len(sys.argv) > 2:
    if library.MPI_Init(None, None) != 0:
        sys.exit("MPI_Init failed")
    started()
    library.MPI_Finalize()
"""
_NIXL = """
import sys
try:
    import nixl_cu12._api as api
except ModuleNotFoundError:
    try:
        import nixl_cu13._api as api
    except ModuleNotFoundError:
        import nixl._api as api
try:
    agent = api.nixl_agent("weft-doctor", api.nixl_agent_config(backends=["LIBFABRIC"]))
except Exception:
    import ctypes
    ctypes.CDLL(sys.argv[1])  # the loader says what is missing
    raise
started()
del agent
"""
_COMMON = f"""
def tell(text):
    print("\\n{_MARK}" + text, flush=True)
def where(name):
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                path = line.rstrip("\\n").split(None, 5)[-1]  # it may have blanks
                if path.startswith("/") and path.rpartition("/")[2].startswith(name):
                    return path
    except OSError:
        pass
    return ""
def started():
    tell("libfabric " + where("libfabric.so"))
    tell("started")
    sys.stdin.read()
"""


@dataclass
class Trial:
    """What a started client did.

    Attributes:
        started: It has initialized itself.
        libfabric: The library that it loaded; "" if that was not seen.
        provider: The provider of Weft whose endpoints it has opened; "" for none.
        chosen: What it says that it has chosen; "" if it does not say.
        refused: What Weft refused, and why.
        output: The last lines that it printed.
    """

    started: bool = False
    libfabric: str = ""
    provider: str = ""
    chosen: str = ""
    refused: str = ""
    output: list[str] = field(default_factory=list)


def start(kind: Kind, library: str, env: Mapping[str, str]) -> Trial:
    """Start the client, look, and end it."""
    trial = Trial()
    begun = threading.Event()
    with tempfile.NamedTemporaryFile(prefix="weft-doctor-") as refusals:
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMON + (_NIXL if kind.says == "NIXL" else _MPI), library, "start"],
            env={**_alone(env), **kind.talk, "WEFT_TOP": "1", "WEFT_EXPLAIN": refusals.name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        reader = threading.Thread(target=_read, args=(process, trial, begun), daemon=True)
        reader.start()
        try:
            if not begun.wait(DEADLINE_S):
                trial.output.append(f"it was still starting after {DEADLINE_S:g} s")
            if trial.started:
                trial.provider = _provider_of(process.pid)
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(DEADLINE_S / 4)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reader.join(DEADLINE_S / 4)
        trial.refused = Path(refusals.name).read_text(encoding="utf-8", errors="replace").strip()
    words = [word for line in trial.output for one in re.finditer(kind.chosen, line) for word in one.groups() if word]
    trial.chosen = words[0] if words else ""
    if trial.started and trial.chosen in providers() and not os.path.exists("/proc/net/unix"):
        trial.provider = trial.chosen  # no process can be seen here: its own words must do
    return trial


def _alone(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without the marks of a launcher: the client is started as a job of one process."""
    marks = ("PMI_", "PMI2_", "PMIX_", "HYDI_", "HYDRA_", "OMPI_COMM_WORLD_", "PRTE_", "MPI_LOCALRANKID")
    return {name: value for name, value in env.items() if not name.startswith(marks)}


def _read(process: subprocess.Popen[bytes], trial: Trial, begun: threading.Event) -> None:
    assert process.stdout is not None
    for raw in process.stdout:
        line = raw.decode(errors="replace").rstrip()
        if line.startswith(_MARK):
            word, _, rest = line.removeprefix(_MARK).partition(" ")
            if word == "libfabric":
                trial.libfabric = rest
            elif word == "started":
                trial.started = True
                begun.set()
        elif line:
            trial.output.append(line)
    begun.set()


def _provider_of(pid: int) -> str:
    """The provider of Weft whose endpoints a process has, as seen from outside."""
    with Viewer({pid}) as viewer:
        views = [one.view for one in viewer.look(LOOK_S) if one.view is not None]
    addresses = [ep.address for view in views for ep in view.endpoints]
    if not addresses:
        return ""
    slingshot, *others = providers()
    return next((one for one in others if addresses[0].startswith(f"{one}://")), slingshot)


# ---- where the client is ---------------------------------------------------------------------------------------------


def find(kind: Kind) -> tuple[str, str, list[str]]:
    """(path, version, where was looked) of a client's library; ("", "", ...) if there is none."""
    looked: list[str] = []
    for path in dict.fromkeys(_candidates(kind)):
        if "/" in path and not os.path.exists(path):
            continue
        looked.append(path)
        if kind.says == "NIXL":
            return path, _version_of(kind), looked
        said = _ask(_COMMON + _MPI, os.environ, path).splitlines()
        lines = dict(line.removeprefix(_MARK).split(" ", 1) for line in said if line.startswith(_MARK) and " " in line)
        if lines.get("version", "").startswith(kind.says):
            return lines.get("library") or path, lines["version"].partition(",")[0], looked
    return "", "", looked


def _version_of(kind: Kind) -> str:
    for name in kind.wheels:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{kind.says} {importlib.metadata.version(name)}"
    return kind.says


def _candidates(kind: Kind) -> Iterator[str]:
    if kind.says == "NIXL":
        for name in ("nixl_cu12", "nixl_cu13", "nixl"):
            found = importlib.util.find_spec(name)
            for folder in (found.submodule_search_locations or []) if found else []:
                yield from sorted(
                    str(one) for one in Path(folder).parent.glob(f".{name}.mesonpy.libs/plugins/{kind.library}")
                )
                yield from sorted(str(one) for one in Path(folder).rglob(kind.library))
        return
    yield kind.library  # where the loader finds it: LD_LIBRARY_PATH, then its cache
    if kind.says == "MPICH":
        yield "libmpich.so.12"  # Debian's and Ubuntu's name
    root = os.environ.get("I_MPI_ROOT", "")
    if root and kind.says == "Intel":
        yield f"{root}/lib/{kind.library}"
    launcher = shutil.which("mpiexec")
    for prefix in (*([Path(launcher).resolve().parents[1]] if launcher else []), Path(sys.prefix)):
        yield str(prefix / "lib" / kind.library)
    for name in kind.wheels:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.files(name) or []:
                if file.name == kind.library:
                    yield os.path.normpath(str(file.locate()))


# ---- what its libfabric says -----------------------------------------------------------------------------------------


def _ask(code: str, env: Mapping[str, str], *arguments: str) -> str:
    """What a Python program prints; "" if it fails, or takes too long."""
    try:
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=DEADLINE_S, check=False, start_new_session=True,
        ).stdout.decode(errors="replace")  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""


def libfabric_version(path: str) -> tuple[int, int] | None:
    """The version that a libfabric says; None if it cannot be loaded."""
    said = _ask("import ctypes, sys\nprint(ctypes.CDLL(sys.argv[1]).fi_version())", os.environ, path).strip()
    return (int(said) >> 16, int(said) & 0xFFFF) if said.isdecimal() else None


_OFFERED = """
import json, sys
from weft import errors, fi
found = {}
for name in sys.argv[1:]:
    try:
        hints = fi.Info()
        hints.fabric_attr.prov_name = f"ofi:{name}"
        found[name] = fi.getinfo(hints=hints)[0].fabric_attr.prov_version
    except errors.FabricError:
        pass
print(json.dumps(found))
"""


def offered(libfabric: str, env: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Provider of the names of Weft's -> version, as a libfabric has them in an environment."""
    said = _ask(_OFFERED, {**env, "WEFT_LIBFABRIC": libfabric}, *providers()).strip()
    found: dict[str, int] = json.loads(said) if said.startswith("{") else {}
    return {name: (version >> 16, version & 0xFFFF) for name, version in found.items()}


_WITH_DATA = """
import sys
from weft import fi
hints = fi.Info(caps=fi.MSG | fi.RMA)
hints.fabric_attr.prov_name = sys.argv[1]
hints.domain_attr.mr_mode = fi.MR_ENDPOINT | fi.MR_ALLOCATED | fi.MR_PROV_KEY | fi.MR_LOCAL | fi.MR_VIRT_ADDR
info = fi.getinfo(hints=hints)[0]
with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain, domain.endpoint(info) as ep:
    print(bool(ep.policy.data_writes))
"""


def with_data(provider: str, env: Mapping[str, str]) -> bool:
    """Whether an endpoint of a provider takes writes with remote data in an environment."""
    return _ask(_WITH_DATA, env, provider).strip() == "True"
