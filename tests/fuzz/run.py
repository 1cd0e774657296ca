"""Run the fuzz targets of a build folder, each for a bounded time.

    python tests/fuzz/run.py build/fuzz [--seconds 60] [--seed N] [--jobs 1] [TARGET...]

A target starts from tests/fuzz/corpus/<target>, which is read and never written; new inputs are kept in
build/fuzz/corpus/<target>, so that a later run goes on from there. An input that crashes a target, hangs it or takes
too much memory is kept in build/fuzz/crashes, and the command that repeats the crash is printed; the exit status is 1.
`--minimise` writes the additions of build/fuzz/corpus into tests/fuzz/corpus: the fewest inputs that reach as much.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STORED = Path(__file__).parent / "corpus"
INPUT_BYTES_MAX = 512
INPUT_SECONDS_MAX = 60  # an input takes some milliseconds; a machine under load takes longer
MEMORY_MIB_MAX = 2048


def has_libfuzzer(program: Path) -> bool:
    return b"LLVMFuzzerCustomMutator" in program.read_bytes() or b"libFuzzer" in program.read_bytes()


def environment() -> dict[str, str]:
    """Sanitizers that tell where, and keep little freed memory: a run makes and frees some hundred MiB a second."""
    return {
        **os.environ,
        "ASAN_OPTIONS": "quarantine_size_mb=8:detect_leaks=1:" + os.environ.get("ASAN_OPTIONS", ""),
        "UBSAN_OPTIONS": "print_stacktrace=1:" + os.environ.get("UBSAN_OPTIONS", ""),
    }


def options(crashes: Path, target: str) -> list[str]:
    return [
        f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={INPUT_SECONDS_MAX}",
        f"-rss_limit_mb={MEMORY_MIB_MAX}",
        f"-artifact_prefix={crashes}/{target}-",
        "-len_control=0",
        "-print_final_stats=0",
        "-verbosity=1",
    ]


def run(program: Path, target: str, seconds: int, seed: int) -> bool:
    """Fuzz one target; True where nothing was found."""
    build = program.parent
    crashes, kept = build / "crashes", build / "corpus" / target
    crashes.mkdir(exist_ok=True)
    kept.mkdir(parents=True, exist_ok=True)
    (STORED / target).mkdir(parents=True, exist_ok=True)
    before = set(crashes.glob(f"{target}-*"))  # others run beside this one
    log = build / f"{target}.log"
    started = time.monotonic()
    with log.open("wb") as out:
        command = [str(program), *options(crashes, target), f"-max_total_time={seconds}", f"-seed={seed}"]
        code = subprocess.run(
            [*command, str(kept), str(STORED / target)], stdout=out, stderr=subprocess.STDOUT, env=environment()
        ).returncode
    text = log.read_text(errors="replace").splitlines()
    last = next((line for line in reversed(text) if "DONE" in line or "driver: " in line), "")
    print(f"  {target}: {time.monotonic() - started:.0f} s; {last.strip()}", flush=True)
    if code == 0:
        return True
    first = next(
        (i for i, line in enumerate(text) if "ERROR" in line or line.startswith("fuzz: ")), max(0, len(text) - 40)
    )
    print("\n".join([*text[first : first + 60], f"fuzz: {target} ended with status {code}; all that it said: {log}"]))
    for path in sorted(set(crashes.glob(f"{target}-*")) - before):
        print(f"fuzz: again: ASAN_OPTIONS=quarantine_size_mb=8 {program} {path}")
    return False


def minimise(program: Path, target: str) -> None:
    """Replace a stored corpus by the fewest of its inputs and of the runs' that reach as much."""
    stored, fresh = STORED / target, program.parent / "minimised" / target
    if not has_libfuzzer(program):
        sys.exit("fuzz: only libFuzzer minimises: build with Clang")
    fresh.mkdir(parents=True, exist_ok=True)
    for path in fresh.iterdir():
        path.unlink()
    kept = program.parent / "corpus" / target
    subprocess.run(
        [str(program), "-merge=1", "-use_counters=0", f"-max_len={INPUT_BYTES_MAX}"]
        + [str(folder) for folder in (fresh, stored, kept)],
        check=True, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    regressions = {path.name: path.read_bytes() for path in stored.glob("crash-*")}
    for path in stored.iterdir():
        path.unlink()
    for path in fresh.iterdir():
        (stored / path.name[:12]).write_bytes(path.read_bytes())
    for name, data in regressions.items():
        (stored / name).write_bytes(data)
    sizes = [path.stat().st_size for path in stored.iterdir()]
    print(f"  {target}: {len(sizes)} inputs, {sum(sizes)} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the fuzz targets of a build folder.")
    parser.add_argument("build", type=Path)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time (1)")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("--minimise", action="store_true", help="store what was found, instead of fuzzing")
    asked = parser.parse_intermixed_args()
    programs = {
        path.name.removeprefix("fuzz_"): path.resolve()
        for path in sorted(asked.build.glob("fuzz_*"))
        if path.is_file() and os.access(path, os.X_OK)
    }
    unknown = set(asked.targets) - set(programs)
    if unknown or not programs:
        parser.error(f"no such target in {asked.build}: {', '.join(unknown) or 'there is none'}")
    wanted = asked.targets or list(programs)
    if asked.minimise:
        for target in wanted:
            minimise(programs[target], target)
        return 0
    by = "libFuzzer" if has_libfuzzer(programs[wanted[0]]) else "tests/fuzz/driver.cpp (this compiler has no libFuzzer)"
    print(f"fuzz: {len(wanted)} targets, {asked.seconds} s each, by {by}", flush=True)
    with ThreadPoolExecutor(asked.jobs) as pool:
        clean = list(pool.map(lambda target: run(programs[target], target, asked.seconds, asked.seed), wanted))
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
