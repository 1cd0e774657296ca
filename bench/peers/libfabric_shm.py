"""libfabric's own shm provider between two processes by fi_pingpong, as JSON: tagged messages from C, without Python.

message_N   half a round trip of N bytes: the least over several runs; message_N_median: of the same runs. A run prints
            the mean of all its round trips, the first of which connects: a run of one round trip is subtracted.

Needs fi_pingpong (Debian: libfabric-bin). It has no message rate and no matching depth.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time

FIRST_RUNS = 3
SIZES = ((8, 1000, 10), (1 << 20, 50, 6))  # round trips of a run, runs: short, so that some run is not interrupted
LIMIT_S = 20.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def run(program: str, size: int, rounds: int) -> float:
    """Nanoseconds of all round trips of a run. Each process is bound to its own core."""
    cores = sorted(os.sched_getaffinity(0))
    options = ["-p", "shm", "-e", "rdm", "-m", "tagged", "-S", str(size), "-I", str(rounds)]
    port = free_port()

    def start(core: int, *more: str) -> subprocess.Popen[str]:
        os.sched_setaffinity(0, {cores[core % len(cores)]})  # the child inherits it
        try:
            return subprocess.Popen(
                [program, *options, *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        finally:
            os.sched_setaffinity(0, cores)

    with start(0, "-B", str(port)) as server:
        try:
            deadline = time.monotonic() + LIMIT_S
            while time.monotonic() < deadline:
                with start(1, "-P", str(port), "127.0.0.1") as client:
                    out, _ = client.communicate(timeout=LIMIT_S)
                if client.returncode == 0:
                    # bytes, #sent, #ack, total, time, MB/sec, usec/xfer, Mxfers/sec
                    return float(out.splitlines()[-1].split()[6]) * 1e3 * 2 * rounds
                time.sleep(0.05)  # the server does not listen yet
            raise SystemExit("fi_pingpong's client found no server")
        finally:
            server.kill()


def main() -> None:
    program = shutil.which("fi_pingpong")
    if program is None:
        raise SystemExit("no fi_pingpong (Debian: libfabric-bin)")
    version = subprocess.run([shutil.which("fi_info") or "fi_info", "--version"], capture_output=True, text=True)
    named = [line.split()[-1] for line in version.stdout.splitlines() if line.startswith("libfabric:")]
    found: dict[str, float | str] = {"library": f"libfabric {named[0] if named else ''} (shm)"}
    for size, rounds, runs in SIZES:
        first = min(run(program, size, 1) for _ in range(FIRST_RUNS))
        means = [(run(program, size, rounds) - first) / (2 * (rounds - 1)) for _ in range(runs)]
        found[f"message_{size}"] = min(means)
        found[f"message_{size}_median"] = statistics.median(means)
    print(json.dumps(found))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
