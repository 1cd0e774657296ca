"""C programs on Weft's NIC: what libfabric's calls cost over `weft` and `cxi`, beside libfabric's own shm and tcp.

One program (peers/provider_calls.c, compiled here), one libfabric, two processes: the providers take turns, and each
figure is the least of its batches. The memory is the C library's: peers reach it by the kernel (process_vm_writev): a
write of 8 B costs a system call here, while shm passes it to the target's thread, which has to poll.
Without a C compiler, libfabric and its headers there are no rows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from common import HERE, Row, publish
from weft.tools import run
from weft.tools._text import UsageError

ROUNDS = 3
LIMIT_S = 120
OURS = ("weft", "cxi")
OTHERS = ("shm", "tcp")
READ_NS = 15.0
SIZES = (64 << 10, 1 << 20, 4 << 20)


def compiled(folder: str) -> Path:
    """The program. Raises RuntimeError where it cannot be made."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    places = [Path(sys.prefix) / "lib" / "mpich", *map(Path, ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"))]
    library = next((one / "libfabric.so.1" for one in places if (one / "libfabric.so.1").exists()), None)
    if compiler is None or library is None or not Path("/usr/include/rdma/fabric.h").exists():
        raise RuntimeError("no C compiler, or no libfabric with headers, here")
    made = Path(folder) / "provider_calls"
    source = HERE / "peers" / "provider_calls.c"
    subprocess.run(
        [compiler, "-std=gnu11", "-O2", "-o", made, source, library, f"-Wl,-rpath,{library.parent}"], check=True
    )
    return made


def figures(program: Path, provider: str) -> dict[str, float]:
    """One run's figures by name; none if libfabric has no such provider."""
    env = os.environ | (run.environment(provider) if provider in OURS else {"FI_PROVIDER": provider})
    done = subprocess.run([program, provider], env=env, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        print(f"{provider}: {done.stderr.strip() or done.returncode}", file=sys.stderr)
        return {}
    return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            program = compiled(folder)
            run.folder()
        except (RuntimeError, UsageError) as reason:
            print(f"provider: {reason}: no rows")
            publish("provider", [])
            return
        least: dict[str, dict[str, float]] = {name: {} for name in (*OURS, *OTHERS)}
        for _ in range(ROUNDS):
            for name, best in least.items():
                for figure, value in figures(program, name).items():
                    best[figure] = min(value, best.get(figure, value))
    publish("provider", [row for name in OURS for row in rows(name, least)])


def rows(name: str, least: dict[str, dict[str, float]]) -> list[Row]:
    """The rows of one of our providers."""
    ours = least[name]

    def of(figure: str, scale: float = 0.0) -> dict[str, float | None]:
        found = {f"libfabric {one}": least[one].get(figure) for one in OTHERS}
        return {one: value if not scale or value is None else scale / value for one, value in found.items()}

    if not ours:
        return []
    shm = least["shm"]
    trip = ours["half_8_ns"]
    table = [
        Row(f"{name}, C: fi_cq_read of an empty queue", "<= 15 ns", ours["read_ns"], "ns", ours["read_ns"] <= READ_NS,
            peers=of("read_ns")),
        Row(f"{name}, C: fi_inject_write of 8 B", "", ours["inject_ns"], "ns", None, peers=of("inject_ns"),
            limit_is="a system call: the memory is not Weft's"),
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


if __name__ == "__main__":
    main()
