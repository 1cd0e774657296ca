"""Parts for the tests of C programs: libfabrics, Weft's provider files, and programs compiled from tests/provider/c."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests import patience

HERE = Path(__file__).parent / "c"
LIBRARY = Path(__file__).parents[2] / "src" / "weft" / "policyhost" / "libfabric"
SYSTEM = "system"
MPICH = "MPICH's wheel"
PROGRAM_S = 30.0


def provider_files() -> Path:
    """The folder of Weft's provider files; skips where they are not built."""
    if not (LIBRARY / "libweft_provider.so").exists():
        pytest.skip("the providers for C programs are not built: make provider")
    return LIBRARY


@functools.cache
def libfabric(name: str) -> Path | None:
    """A libfabric of this machine."""
    if name == MPICH:
        found = Path(sys.prefix) / "lib" / "mpich" / "libfabric.so.1"
        return found if found.exists() else None
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"):
        found = Path(folder) / "libfabric.so.1"
        if found.exists():
            return found
    return None


def need_library(name: str) -> Path:
    """A libfabric; skips where there is none."""
    found = libfabric(name)
    if found is None:
        pytest.skip(f"no libfabric here: {name}")
    return found


def need_tool(name: str) -> str:
    """A program of libfabric's own (fi_info, fi_pingpong); skips where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: libfabric-bin)")
    return found


@functools.cache
def _compiled(name: str, folder: str, of: str | None) -> Path | str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    library = libfabric(of) if of is not None else libfabric(SYSTEM) or libfabric(MPICH)
    if compiler is None or library is None:
        return "no C compiler, or no libfabric"
    if not Path("/usr/include/rdma/fabric.h").exists():
        return "no headers of libfabric (Debian: libfabric-dev)"
    out = Path(folder) / name
    kind = ["-shared", "-fPIC"] if name.startswith("lib") else []
    files = ["-o", str(out), str(HERE / f"{name}.c"), str(library)]
    done = patience.run([compiler, "-std=gnu11", "-O1", "-g", "-Wall", *kind, *files], PROGRAM_S)
    assert done.returncode == 0, done.stderr
    return out


def compiled(name: str, folder: Path, library: str | None = None) -> Path:
    """The program tests/provider/c/NAME.c, or a library for LD_PRELOAD if its name begins with lib; skips where it
    cannot be compiled.

    Args:
        library: The libfabric whose interface it needs, where an old one will not do.
    """
    found = _compiled(name, str(folder), library)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def environment(provider: str | None, library: str = SYSTEM, **more: str) -> dict[str, str]:
    """The environment of a C program, as `weft run` makes it."""
    from weft.tools.run import environment as of_run

    provider_files()
    found = {name: value for name, value in os.environ.items() if not name.startswith(("FI_", "WEFT_LIBFABRIC"))}
    found |= of_run(provider or "")
    if provider is None:
        del found["FI_PROVIDER"]
    found["LD_LIBRARY_PATH"] = str(need_library(library).parent)
    return found | more


def run(
    program: str | Path, *arguments: str, env: Mapping[str, str], status: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; `status`: its required exit status; None: any."""
    done = patience.run([str(program), *arguments], PROGRAM_S, env=dict(env))
    assert status is None or done.returncode == status, done.stdout + done.stderr
    return done


def registry(folder: Path) -> dict[str, str]:
    """The variable of CXI devices of a test's own: a domain without a key would take any service that there is."""
    return {"WEFT_CXI_REGISTRY": str(folder / "registry")}


def service(env: Mapping[str, str], vni: int = 7, **limits: int) -> str:
    """The number of a new CXI service that allows a VNI, with these limits."""
    more = [word for name, most in limits.items() for word in ("--limit", f"{name}={most}")]
    command = [sys.executable, "-m", "weft", "service", "create", "--vni", str(vni), *more]
    return patience.run(command, PROGRAM_S, check=True, env=dict(env)).stdout.strip()


def of_service(env: Mapping[str, str], **limits: int) -> dict[str, str]:
    """The variables by which a program uses a new CXI service with these limits."""
    number = service(env, 1, **limits)
    return {"SLINGSHOT_VNIS": "1", "SLINGSHOT_DEVICES": "cxi0", "SLINGSHOT_SVC_IDS": number}


def helpers(run: Path) -> list[int]:
    """The processes of the policy helpers whose sockets are in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # the process has ended
            continue
        if b"weft.policyhost" in words and any(one.startswith(f"{run}/weft/".encode()) for one in words):
            found.append(int(path.parent.name))
    return found


End = tuple[Sequence[str], Sequence[str], Mapping[str, str]]
"""One end of fi_pingpong: the words before the program, its arguments, its environment."""


def pingpong(provider: str, kind: str, rounds: int, server: End, client: End) -> None:
    """Run fi_pingpong over a provider with endpoints of a kind ("rdm", "msg"): all sizes, the data checked."""
    tool = need_tool("fi_pingpong")
    common = [tool, "-p", provider, "-e", kind, "-c", "-I", str(rounds), "-S", "all"]
    before, arguments, env = server
    with subprocess.Popen([*before, *common, *arguments], env=env, stdout=subprocess.PIPE, text=True) as serving:
        before, arguments, env = client
        try:
            limit = patience.Patience(PROGRAM_S)
            while True:  # until the server listens
                done = patience.run([*before, *common, *arguments], PROGRAM_S, env=dict(env))
                if done.returncode == 0 or serving.poll() is not None or limit.over:
                    break
            out, _ = patience.communicate(serving, PROGRAM_S)
        finally:
            serving.kill()
    assert done.returncode == 0, done.stderr
    assert serving.returncode == 0
    assert {"64", "1k", "1m", "6m"} <= {line.split()[0] for line in out.splitlines() if line.split()}
