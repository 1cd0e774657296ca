"""C programs on Weft's NIC: what libfabric's calls cost over `weft` and `cxi`, beside libfabric's own shm and tcp.

One program (peers/provider_calls.c, compiled here), one libfabric, two processes: the providers take turns, and each
figure is the least of its batches. The memory is the C library's: peers reach it by the kernel (process_vm_writev): a
write of 8 B costs a system call here, while shm passes it to the target's thread, which has to poll. The cost of that
call alone is measured in the same run.

Then the ping-pong of MPI programs (peers/mpi_pingpong.c): the same library over weft, shm and tcp, in the environment
that `weft run` makes. Open MPI does not run over libfabric's shm: its own shared memory stands there. Without a C
compiler, libfabric and its headers there are no rows; without an MPI library none of that library.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from common import HERE, OPEN_MPI, Row, publish
from weft.tools import run
from weft.tools._text import UsageError

ROUNDS = 3
LIMIT_S = 120
OURS = ("weft", "cxi")
OTHERS = ("shm", "tcp")
READ_NS = 15.0
KERNEL_TIMES = 1.2
SIZES = (64 << 10, 1 << 20, 4 << 20)
MPI_TIMES, MPI_FASTER, MPI_MIB = 1.3, 5.0, 15.0
MPI_SIZES = (8, 64 << 10, 1 << 20)


def compiled(folder: str) -> Path:
    """The program. Raises RuntimeError where it cannot be made."""
    places = [Path(sys.prefix) / "lib" / "mpich", *map(Path, ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"))]
    library = next((one / "libfabric.so.1" for one in places if (one / "libfabric.so.1").exists()), None)
    if library is None or not Path("/usr/include/rdma/fabric.h").exists():
        raise RuntimeError("no libfabric with headers here")
    return build("provider_calls", Path(folder) / "provider_calls", library, f"-Wl,-rpath,{library.parent}")


def build(name: str, out: Path, *flags: str | Path) -> Path:
    """The program peers/NAME.c. Raises RuntimeError without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("no C compiler here")
    subprocess.run([compiler, "-std=gnu11", "-O2", "-o", out, HERE / "peers" / f"{name}.c", *flags], check=True)
    return out


def numbers(lines: Iterable[str]) -> dict[str, float]:
    """Figures by name: a line has one of each."""
    return {name: float(value) for name, value in map(str.split, lines)}


def figures(program: Path, provider: str) -> dict[str, float]:
    """One run's figures by name; none if libfabric has no such provider."""
    env = os.environ | (run.environment(provider) if provider in OURS else {"FI_PROVIDER": provider})
    done = subprocess.run([program, provider], env=env, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        print(f"{provider}: {done.stderr.strip() or done.returncode}", file=sys.stderr)
        return {}
    return numbers(done.stdout.splitlines())


def best_of(providers: Iterable[str], run_once: Callable[[str], dict[str, float]]) -> dict[str, dict[str, float]]:
    """The least figures of each provider; the providers take turns."""
    least: dict[str, dict[str, float]] = {name: {} for name in providers}
    for _ in range(ROUNDS):
        for name, best in least.items():
            for figure, value in run_once(name).items():
                best[figure] = min(value, best.get(figure, value))
    return least


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            program = compiled(folder)
            run.folder()
        except (RuntimeError, UsageError) as reason:
            print(f"provider: {reason}: no rows")
            publish("provider", [])
            return
        least = best_of((*OURS, *OTHERS), lambda name: figures(program, name))
        table = [row for name in OURS for row in rows(name, least)]
        for mpi in mpis():
            table += mpi_rows(mpi, folder)
    publish("provider", table)


def rows(name: str, least: dict[str, dict[str, float]]) -> list[Row]:
    """The rows of one of our providers."""
    ours = least[name]

    def of(figure: str, scale: float = 0.0) -> dict[str, float | None]:
        found = {f"libfabric {one}": least[one].get(figure) for one in OTHERS}
        return {one: value if not scale or value is None else scale / value for one, value in found.items()}

    if not ours:
        return []
    shm = least["shm"]
    trip, kernel = ours["half_8_ns"], ours.get("kernel_ns")
    table = [
        Row(f"{name}, C: fi_cq_read of an empty queue", "<= 15 ns", ours["read_ns"], "ns", ours["read_ns"] <= READ_NS,
            peers=of("read_ns")),
        Row(f"{name}, C: fi_inject_write of 8 B", f"<= {KERNEL_TIMES} x the limit", ours["inject_ns"], "ns",
            ours["inject_ns"] <= KERNEL_TIMES * kernel if kernel is not None else None, limit=kernel,
            limit_is="process_vm_writev: the memory is not Weft's", peers=of("inject_ns")),
        Row(f"{name}, C: tagged 8 B, half round trip", "<= shm", trip, "ns", trip <= shm["half_8_ns"] if shm else None,
            peers=of("half_8_ns")),
    ]  # fmt: skip
    for size in SIZES:
        value, figure = size / ours[f"half_{size}_ns"], f"half_{size}_ns"
        met = ours[figure] <= shm[figure] if shm else None
        table.append(
            Row(f"{name}, C: tagged {size >> 10} KiB", ">= shm", value, "GB/s", met, peers=of(figure, float(size)))
        )
    return table


# ---- MPI programs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mpi:
    """An MPI library, and how its programs are started.

    own: The variables by which the library uses shared memory of its own, where it does not run over libfabric's shm.
    headers: Where mpi.h is, if not with the library.
    """

    name: str
    prefix: Path
    library: str
    launcher: tuple[str, ...]
    more: dict[str, str] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    headers: Path | None = None


def mpis() -> list[Mpi]:
    """The MPI libraries that are installed here; prints which are not."""
    root = {f"{one}_ALLOW_RUN_AS_ROOT{end}": "1" for one in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    known = [
        Mpi("MPICH", Path(sys.prefix), "libmpi.so.12", ("bin/mpiexec.hydra",)),
        Mpi("Open MPI", OPEN_MPI, "libmpi.so.40", ("bin/prterun",),
            {"OPAL_PREFIX": str(OPEN_MPI), **(root if os.geteuid() == 0 else {})},
            # Its mtl asks for FI_REMOTE_COMM, which libfabric's shm does not have: fi_getinfo finds nothing.
            {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "sm,self"}),
    ]  # fmt: skip
    found = []
    for one in known:
        needed = (one.prefix / "lib" / one.library, one.prefix / one.launcher[0], one.prefix / "include" / "mpi.h")
        missing = [str(file) for file in needed if not file.exists()]
        if missing:
            print(f"{one.name}: no {missing[0]}: its rows are missing (`make clients` and `make bench` install it)")
        else:
            found.append(one)
    return found


def mpi_program(mpi: Mpi, name: str, folder: str | Path) -> Path:
    """The program peers/NAME.c for this library."""
    linked = [mpi.prefix / "lib" / mpi.library, f"-Wl,-rpath,{mpi.prefix / 'lib'}", "-Wl,--allow-shlib-undefined"]
    return build(name, Path(folder) / f"{name} {mpi.name}", f"-I{(mpi.headers or mpi.prefix) / 'include'}", *linked)


def ping_pong(mpi: Mpi, program: Path, provider: str) -> dict[str, float]:
    return two_ranks(mpi, program, provider, ("half_", "memory_"))


def two_ranks(mpi: Mpi, program: Path, provider: str, names: tuple[str, ...], *arguments: str) -> dict[str, float]:
    """One run's figures, whose names begin so; none if the library does not run over the provider here."""
    env = os.environ | run.environment(provider) | mpi.more | (mpi.own if provider == "shm" else {})
    env["LD_LIBRARY_PATH"] = str(mpi.prefix / "lib")
    command = [str(mpi.prefix / mpi.launcher[0]), *mpi.launcher[1:], "-n", "2", str(program), *arguments]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as launched:  # fmt: skip
        try:
            out, errors = launched.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(launched.pid, signal.SIGKILL)  # the ranks as well
            print(f"{mpi.name} over {provider} did not end within {LIMIT_S} s", file=sys.stderr)
            return {}
    lines = [line for line in out.splitlines() if line.startswith(names)]
    if launched.returncode != 0 or not lines:
        said = [line for line in (errors or out).splitlines() if any(map(str.isalnum, line))]  # no rules of dashes
        print(f"{mpi.name} over {provider}: {said[0] if said else launched.returncode}", file=sys.stderr)
        return {}
    return numbers(lines)


def mpi_rows(mpi: Mpi, folder: str) -> list[Row]:
    """The ping-pong of one library over weft, beside the same over libfabric's own providers."""
    program = mpi_program(mpi, "mpi_pingpong", folder)
    least = best_of(("weft", *OTHERS), lambda name: ping_pong(mpi, program, name))
    ours = least["weft"]
    if not ours:
        return []
    table = []
    for size in MPI_SIZES:
        figure = f"half_{size}_ns"
        shm, tcp = (least[name].get(figure) for name in OTHERS)
        limits: dict[str, float | None] = {}
        if not mpi.own:
            limits[f"<= {MPI_TIMES} x shm"] = MPI_TIMES * shm if shm is not None else None
        if size == min(MPI_SIZES):  # larger messages: shm itself is not so much faster
            limits[f"{MPI_FASTER:.0f} x faster than tcp"] = tcp / MPI_FASTER if tcp is not None else None
        known = [limit for limit in limits.values() if limit is not None]
        met = ours[figure] <= min(known) if known and len(known) == len(limits) else None
        what = f"{size} B" if size < 1 << 10 else f"{size >> 10} KiB"
        table.append(
            Row(f"{mpi.name} over weft: {what}, half round trip", ", ".join(limits) or "-", ours[figure], "ns", met,
                peers={"its own sm" if mpi.own else "libfabric shm": shm, "libfabric tcp": tcp})
        )  # fmt: skip
    memory = ours["memory_mib"]
    table.append(
        Row(f"{mpi.name} over weft: memory of a rank", f"<= {MPI_MIB:.0f} MiB", memory, "MiB", memory <= MPI_MIB,
            peers={"its own sm" if mpi.own else "libfabric shm": least["shm"].get("memory_mib"),
                   "libfabric tcp": least["tcp"].get("memory_mib")})
    )  # fmt: skip
    return table


if __name__ == "__main__":
    main()
