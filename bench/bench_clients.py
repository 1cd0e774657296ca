"""Unmodified clients over Weft, beside libfabric's own providers in the same run: Intel's IMB-RMA, and NIXL.

Windows of Intel MPI's own benchmark (IMB-RMA, 8 B, each operation completed) over weft and over libfabric's shm; NIXL's
reads and writes over cxi and over its own libfabric's tcp. A client that is not installed (`make clients`) has no rows.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from common import HERE, Row, publish

sys.path.insert(0, str(HERE.parent))  # the tests know how each client is started
from tests import patience
from tests.provider import clients, test_nixl

LIMIT_S = 60.0
ROUNDS = 3
SIZES = (4 << 10, 64 << 10, 1 << 20)
WINDOWS = {"Unidir_put": "put", "Unidir_get": "get", "Accumulate": "accumulate"}
WINDOWS_TIMES, NIXL_TIMES = 3.0, 5.0


def of_libfabric(env: Mapping[str, str], provider: str) -> dict[str, str]:
    """The environment with libfabric's own provider in place of Weft's."""
    return {name: value for name, value in env.items() if not name.startswith("FI_")} | {"FI_PROVIDER": provider}


def windows(folder: Path, provider: str) -> dict[str, float]:
    """Nanoseconds of each operation of 8 B; none if Intel MPI does not run over the provider here."""
    mpi = clients.INTEL_MPI
    lengths = folder / "lengths"
    lengths.write_text("8\n")
    env = mpi.environment("weft")
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


def transfers(folder: Path, provider: str) -> dict[str, float]:
    """Nanoseconds of NIXL's transfers by name; none if it does not run over the provider here."""
    folder.mkdir()
    env = test_nixl.environment(folder, **test_nixl.WITH_DATA)
    if provider != "cxi":
        env = of_libfabric(env, provider)
    program = [sys.executable, str(HERE / "peers" / "nixl_transfers.py")]
    more = [str(folder), ",".join(map(str, SIZES))]
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
    return {name: float(ns) for name, ns in (line.split() for line in done.stdout.splitlines() if "_ns " in line)}


def main() -> None:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place:
        for of in (window_rows, nixl_rows):
            try:
                rows += of(Path(place))
            except pytest.skip.Exception as why:
                print(f"clients: {why}: its rows are missing")
    publish("clients", rows)


def window_rows(folder: Path) -> list[Row]:
    clients.INTEL_MPI.need()
    least = best({name: [windows(folder, name) for _ in range(ROUNDS)] for name in ("weft", "shm")})
    rows = []
    for name, what in WINDOWS.items():
        ours, theirs = least["weft"].get(name), least["shm"].get(name)
        if ours is None:
            continue
        path, budget = f"Intel MPI over weft, IMB-RMA: {what} of 8 B", f"{WINDOWS_TIMES:g} x faster than shm"
        met = None if theirs is None else ours * WINDOWS_TIMES <= theirs
        why = "the window is not Weft's memory: a put or get is a system call" if met is False else ""
        rows.append(Row(path, budget, ours, "ns", met, why=why, peers={"libfabric shm": theirs}))
    return rows


def nixl_rows(folder: Path) -> list[Row]:
    clients.nixl()
    tried = {name: [transfers(folder / f"{name} {i}", name) for i in range(ROUNDS)] for name in ("cxi", "tcp")}
    least = best(tried)
    rows = []
    for size in SIZES:
        for kind in ("write", "read"):
            ours, theirs = (least[name].get(f"{kind}_{size}_ns") for name in ("cxi", "tcp"))
            if ours is None:
                continue
            path, budget = f"NIXL over cxi: {kind} of {size >> 10} KiB", f"{NIXL_TIMES:g} x faster than tcp"
            met = None if theirs is None else ours * NIXL_TIMES <= theirs
            rows.append(Row(path, budget, ours, "ns", met, peers={"libfabric tcp": theirs}))
    return rows


def best(tried: Mapping[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """The least of each figure over the runs."""
    return {
        name: {figure: min(run[figure] for run in runs if figure in run) for figure in {f for run in runs for f in run}}
        for name, runs in tried.items()
    }


if __name__ == "__main__":
    main()
