"""A process that shares arrays and executes commands: `Owner` starts it with `python owner.py`.

Each line on its standard input is a Python expression or statement, run where `node`, `weft`, `np` and the arrays are;
the answer is one line on its standard output. Ends with its standard input, and after 100 s in any case.
"""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

WATCHDOG_S = 100


def stop(pid: int) -> None:
    """Stop a process; returns when all its threads are stopped."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + WATCHDOG_S
    while time.monotonic() < deadline:
        states = set()
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/stat", encoding="utf-8") as file:
                states.add(file.read().rpartition(")")[2].split()[0])
        if states == {"T"}:
            return
        time.sleep(0.001)
    raise AssertionError(f"process {pid} does not stop: {states}")


def until_its_end_is_known(remote: Any) -> None:
    """Read an array of a killed process until reads fail: until the engine of this process hears of the end, reads
    return the last contents of the mapping."""
    first = (0,) * remote.ndim  # read by a load, which learns of the end from the engine alone
    deadline = time.monotonic() + WATCHDOG_S
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionResetError):
            remote.read()
            time.sleep(0.001)
            continue
        with contextlib.suppress(ConnectionResetError):
            remote[first]
            time.sleep(0.001)
            continue
        return
    raise AssertionError(f"{remote!r} can still be read")


class Owner:
    """The process, from outside. A context manager."""

    def __init__(self, prefix: str, **environment: str) -> None:
        self.prefix = prefix
        self.process = subprocess.Popen(
            [sys.executable, __file__, prefix],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.pid = self.process.pid

    def tell(self, line: str) -> Any:
        """Run a line there; its value, where repr() shows it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line.replace("\n", "\\n") + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().rstrip("\n")
        kind, _, text = answer.partition(" ")
        if kind != "ok":
            raise AssertionError(f"owner: {answer or 'ended'}")
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text

    def stop(self) -> None:
        """SIGSTOP, and wait until it has stopped: a signal takes its time."""
        stop(self.pid)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(WATCHDOG_S)

    def __enter__(self) -> Owner:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(WATCHDOG_S)
        self.process.stdout.close()


def main() -> None:
    import numpy as np

    import weft

    watchdog = threading.Timer(WATCHDOG_S, os._exit, [3])
    watchdog.daemon = True
    watchdog.start()
    scope: dict[str, Any] = {"weft": weft, "np": np, "prefix": sys.argv[1], "node": weft.open(), "os": os}
    for line in sys.stdin:
        try:
            try:
                code = compile(line.strip(), "<told>", "eval")
            except SyntaxError:
                exec(line.replace("\\n", "\n"), scope)
                value = None
            else:
                value = eval(code, scope)
            answer = f"ok {value!r}"
        except Exception as error:
            answer = f"error {type(error).__name__}: {error}"
        print(answer.replace("\n", " | "), flush=True)


if __name__ == "__main__":
    main()
