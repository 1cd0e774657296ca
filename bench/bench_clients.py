"""Unmodified clients over Weft, beside libfabric's own providers in the same run: windows of MPI programs, and NIXL.

Windows: put, get and accumulate of 8 B, each completed by a flush, of Intel MPI, MPICH and Open MPI (a program of ours,
peers/mpi_windows.c), and of Intel MPI's own benchmark (IMB-RMA), over weft and cxi, and over libfabric's shm. NIXL's
reads and writes over cxi and over its own libfabric's tcp. Beside them are the bare calls of the kernel, between the
same two processes: the memory is the C library's or NumPy's, not Weft's. A client that is not installed (`make
clients`) has no rows.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import places
from bench_provider import ROUNDS, Mpi, best_of, mpi_program, mpis, two_ranks
from common import HERE, Row, publish

sys.path.insert(0, str(HERE.parent))  # the tests know how each client is started
from tests import patience
from tests.provider import clients, test_nixl

LIMIT_S = 60.0
ALONE = 1  # bytes of a transfer that is NIXL's own work
SIZES = (4 << 10, 64 << 10, 1 << 20)
WINDOWS = {"Unidir_put": "put", "Unidir_get": "get", "Accumulate": "accumulate"}
WINDOWS_LONG = "0.3"  # of mpi_windows.c's second for each figure
KERNEL = {"put": "kernel_write", "get": "kernel_read"}
WINDOWS_TIMES, NIXL_TIMES = 3.0, 5.0


def of_libfabric(env: Mapping[str, str], provider: str) -> dict[str, str]:
    """The environment with libfabric's own provider in place of Weft's."""
    return {name: value for name, value in env.items() if not name.startswith("FI_")} | {"FI_PROVIDER": provider}


def windows(folder: Path, provider: str) -> dict[str, float]:
    """Nanoseconds of each operation of 8 B; none if Intel MPI does not run over the provider here."""
    mpi = clients.INTEL_MPI
    lengths = folder / "lengths"
    lengths.write_text("8\n")
    env = mpi.environment("weft", I_MPI_PIN="1")  # ranks on one processor would measure the scheduler
    if provider != "weft":
        env = of_libfabric(env, provider) | {"I_MPI_OFI_PROVIDER": provider}
    command = [mpi.prefix / mpi.launcher[0], "-n", "2", mpi.prefix / "bin" / "IMB-RMA", *WINDOWS]
    done = patience.run(
        [*map(str, command), "-npmin", "2", "-iter", "1000", "-msglen", str(lengths)], LIMIT_S, env=env,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != 0:
        print(f"IMB-RMA over {provider}: {done.stderr.strip()[:200] or done.returncode}", file=sys.stderr)
        return {}
    found = {}
    for part in done.stdout.split("# Benchmarking ")[1:]:
        figure = re.search(r"^ +8 +\d+ +([\d.]+)", part, re.MULTILINE)
        if figure is not None and "NON-AGGREGATE" in part:
            found[part.split()[0]] = float(figure[1]) * 1e3
    return found


def transfers(folder: Path, provider: str, progress: str) -> dict[str, float]:
    """Nanoseconds of NIXL's transfers by name; none if it does not run over the provider here."""
    folder.mkdir()
    env = test_nixl.environment(folder, **test_nixl.WITH_DATA)
    if provider != "cxi":
        env = of_libfabric(env, provider)
    program = [sys.executable, str(HERE / "peers" / "nixl_transfers.py")]
    more = [str(folder), progress, ",".join(map(str, (ALONE, *SIZES)))]
    with (folder / "said").open("w") as said:
        target = subprocess.Popen([*program, "target", *more], env=env, stdout=said, stderr=said)
        try:
            done = patience.run([*program, "initiator", *more], LIMIT_S, env=env)
        finally:
            target.kill()
            target.wait()
    if done.returncode != 0:
        print(f"NIXL over {provider}: {done.stderr.strip()[-200:]}", file=sys.stderr)
        return {}
    told = [line.split() for line in done.stdout.splitlines() if "_ns " in line]
    return {name: float(median if progress == "caller" else mean) for name, median, mean in told}


def main() -> None:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place:
        for of in (window_rows, nixl_rows):
            try:
                rows += of(Path(place))
            except pytest.skip.Exception as why:
                print(f"clients: {why}: its rows are missing")
    publish("clients", rows)


def intel() -> list[Mpi]:
    """Intel MPI, whose ABI is MPICH's, and so are the headers; none where it is not installed."""
    one = clients.INTEL_MPI
    try:
        one.need()
    except pytest.skip.Exception as why:
        print(f"clients: {why}: its rows are missing")
        return []
    return [Mpi(one.name, one.prefix, one.library, one.launcher, dict(one.more), headers=clients.MPICH.prefix)]


def windows_of(mpi: Mpi, program: Path, provider: str) -> dict[str, float]:
    return two_ranks(mpi, program, provider, (*WINDOWS.values(), "kernel_"), WINDOWS_LONG)


def window_rows(folder: Path) -> list[Row]:
    rows: list[Row] = []
    there_and_back = 2 * places.floor_ns()
    for mpi in [*intel(), *mpis()]:
        peer = "its own sm" if mpi.own else "libfabric shm"
        program = mpi_program(mpi, "mpi_windows", folder)
        least = best_of(("weft", "cxi", "shm"), lambda name, of=mpi, run=program: windows_of(of, run, name))
        for provider in ("weft", "cxi"):
            for what in WINDOWS.values():
                path = f"{mpi.name} over {provider}: {what} of 8 B, flushed"
                rows += window_row(path, what, least[provider], least["shm"], there_and_back, peer)
        if mpi.name == clients.INTEL_MPI.name:
            named = best_of(("weft", "shm"), lambda name: windows(folder, name))
            means = {one: {f"{WINDOWS[n]}_ns": ns for n, ns in found.items()} for one, found in named.items()}
            for what in WINDOWS.values():
                path, ours = f"Intel MPI over weft, IMB-RMA: {what} of 8 B", least["weft"] | means["weft"]
                rows += window_row(path, what, ours, means["shm"], there_and_back, peer)
    return rows


def window_row(
    path: str, what: str, ours: Mapping[str, float], shm: Mapping[str, float], there_and_back: float, peer: str
) -> list[Row]:
    """A put and a get are a call of the kernel; an accumulate is the target's work, and an answer."""
    value, theirs = ours.get(f"{what}_ns"), shm.get(f"{what}_ns")
    if value is None:
        return []
    by_kernel = what in KERNEL
    limit = ours.get(f"{KERNEL[what]}_ns") if by_kernel else there_and_back
    met = None if theirs is None else value * WINDOWS_TIMES <= theirs
    why = ""
    if met is False and theirs is not None and limit is not None and limit * WINDOWS_TIMES > theirs:
        why = "the limit alone is slower than the goal"
    return [
        Row(path, f"{WINDOWS_TIMES:g} x faster than shm", value, "ns", met, limit=limit,
            limit_is="a bare call of the kernel: the window is not Weft's memory" if by_kernel
            else "a bare cache line, there and back", why=why, peers={peer: theirs},
            median=ours.get(f"{what}_median_ns") if "IMB" not in path else None)
    ]  # fmt: skip


def nixl_rows(folder: Path) -> list[Row]:
    """Medians where the initiator's calls make its progress; means where NIXL's thread does.

    A median of that thread's transfers would hide the time slices in which nothing moves: with two agents' threads and
    the program more threads poll than two processors have, and over tcp most transfers come in bursts between slices.
    """
    clients.nixl()
    number = iter(range(4 * ROUNDS))
    rows = []
    for progress, how in (("caller", ""), ("thread", ", NIXL's progress threads, mean")):
        least = best_of(("cxi", "tcp"), lambda name, p=progress: transfers(folder / f"{name} {next(number)}", name, p))
        for size in (ALONE, *SIZES):
            for kind in ("write", "read"):
                ours, theirs = (least[name].get(f"{kind}_{size}_ns") for name in ("cxi", "tcp"))
                if ours is None:
                    continue
                limit = least["cxi"].get(f"kernel_{kind}_{size}_ns")
                own = least["cxi"][f"{kind}_{ALONE}_ns"] if progress == "thread" else None
                what = f"{size >> 10} KiB" if size != ALONE else f"{size} B"
                rows.append(nixl_row(f"NIXL over cxi: {kind} of {what}{how}", size, ours, theirs, limit, own))
    return rows


def nixl_row(path: str, size: int, ours: float, theirs: float | None, limit: float | None, own: float | None) -> Row:
    """own: what a byte takes where NIXL's thread makes the progress."""
    met = None if theirs is None or size == ALONE else ours * NIXL_TIMES <= theirs
    why = ""
    if met is False and theirs is not None and limit is not None:
        if limit * NIXL_TIMES > theirs:
            why = "the limit alone is slower than the goal"
        elif own is not None and own * NIXL_TIMES > theirs:
            why = f"NIXL's own work, {own:.0f} ns, is slower than the goal"
    return Row(
        path, "-" if size == ALONE else f"{NIXL_TIMES:g} x faster than tcp", ours, "ns", met, limit=limit, why=why,
        limit_is="a bare call of the kernel, from Python", peers={"libfabric tcp": theirs},
    )  # fmt: skip


if __name__ == "__main__":
    main()
