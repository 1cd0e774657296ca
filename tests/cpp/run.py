"""Run each suite of a program of Boost tests in a process of its own, several at a time; the words of one that fails.

    python tests/cpp/run.py build/check/weft_cpp_tests [--jobs 4] [--prefix "setarch x86_64 -R"]

Most suites wait more than they compute, for the time limits and the death of peers, so there are more at a time than
processors. Suites that share no process share no memory of ThreadSanitizer's either, which keeps some for every thread
that ever ran: all suites in one process needed more than 20 GiB.
"""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LONGEST = ("tcp", "message_death", "nic_bounds", "match_model", "group", "replay")  # begin first


class Suites:
    def __init__(self, program: Path, prefix: list[str]) -> None:
        self._command = [*prefix, str(program.resolve())]
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._ended = False

    def names(self) -> list[str]:
        listed = subprocess.run([*self._command, "--list_content"], capture_output=True, text=True, check=True)
        # Boost lists on the standard error. A suite begins its line, a star says that it is enabled.
        names = re.findall(r"^(\w+)\*$", listed.stdout + listed.stderr, re.M)
        return sorted(names, key=lambda name: LONGEST.index(name) if name in LONGEST else len(LONGEST))

    def run(self, name: str) -> tuple[str, int, float, str]:
        """Its name, exit status, seconds and all that it said."""
        began = time.monotonic()
        with tempfile.TemporaryFile() as out:
            with self._lock:
                if self._ended:
                    return name, -signal.SIGTERM, 0.0, ""
                process = subprocess.Popen(
                    [*self._command, f"--run_test={name}", "--report_level=short"], stdout=out, stderr=out
                )
                self._running.add(process)
            status = process.wait()
            with self._lock:
                self._running.discard(process)
            out.seek(0)
            return name, status, time.monotonic() - began, out.read().decode(errors="replace")

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for process in self._running:
                process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the suites of a program of Boost tests.")
    parser.add_argument("program", type=Path)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--prefix", type=shlex.split, default=[], help="what the program is run under")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    suites = Suites(asked.program, asked.prefix)
    names = suites.names()
    if not names:
        sys.exit(f"{asked.program} lists no suite")
    failed, passed, slowest = [], 0, ("", 0.0)
    with ThreadPoolExecutor(asked.jobs) as pool:
        try:
            for name, status, seconds, said in pool.map(suites.run, names):
                ran = re.search(r"(\d+) test cases? out of (\d+) passed", said)
                # A suite without one passed case has not run.
                if status == 0 and ran and int(ran[1]) > 0:
                    passed += int(ran[1])
                else:
                    failed.append(name)
                    print(f"{said}\n{asked.program}: suite {name} ended with status {status}", flush=True)
                slowest = max(slowest, (name, seconds), key=lambda one: one[1])
        finally:
            suites.end()
    print(
        f"{asked.program}: {len(names) - len(failed)} of {len(names)} suites passed, with {passed} cases; "
        f"the slowest, {slowest[0]}, took {slowest[1]:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
