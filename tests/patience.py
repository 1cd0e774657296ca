"""Watchdogs that adapt to the load: a limit grows while other processes need the processors.

`Patience(seconds)` is used up after so many seconds of a machine that is not overloaded. While more threads are ready
to run than there are processors, each of its seconds takes as many times longer (the load average of the kernel).
A run under a sanitizer has three times as much.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STRETCH_MAX = 20.0  # a hang must end on any machine
LOOK_S = 0.05
SANITIZED = 3.0 if os.environ.get("WEFT_SANITIZED") else 1.0


def slowness() -> float:
    """How many times longer work takes than on an idle machine: 1, or more where more threads run than processors."""
    try:
        load = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    except OSError:
        load = 1.0
    return SANITIZED * min(max(load, 1.0), STRETCH_MAX)


class Patience:
    """A limit of `seconds` on a machine that has time for us."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left = seconds
        self._seen = time.monotonic()

    def left(self) -> float:
        """Seconds of the clock that the rest would take as things are; 0: it is used up. Ask now and then."""
        now, slow = time.monotonic(), slowness()
        self._left -= (now - self._seen) / slow
        self._seen = now
        return max(self._left, 0.0) * slow

    @property
    def over(self) -> bool:
        if time.monotonic() - self._seen < min(self._left, LOOK_S):  # however fast time passes; loops ask at every turn
            return False
        return self.left() == 0.0


def is_alive(pid: int) -> bool:
    """False for a zombie whose other threads, and so its sockets, are gone: in a container nobody may collect it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" or int(fields[17]) > 1


def wait_for_end(*pids: int, seconds: float = 60) -> None:
    """Wait for processes that need not be our children. Raises AssertionError once the patience is used up."""
    patience = Patience(seconds)
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert not patience.over, f"processes {alive} do not end"
        time.sleep(0.002)


def communicate(process: subprocess.Popen[Any], seconds: float, input: str | None = None) -> tuple[str, str]:
    """As Popen.communicate. Raises TimeoutExpired once the patience is used up."""
    patience = Patience(seconds)
    while True:
        try:
            return process.communicate(input, timeout=min(max(patience.left(), 0.01), 5.0))
        except subprocess.TimeoutExpired:
            input = None  # Popen has it
            if patience.over:
                raise


def wait(process: subprocess.Popen[Any], seconds: float) -> int:
    """As Popen.wait. Raises TimeoutExpired once the patience is used up."""
    patience = Patience(seconds)
    while True:
        try:
            return process.wait(timeout=min(max(patience.left(), 0.01), 5.0))
        except subprocess.TimeoutExpired:
            if patience.over:
                raise


def run(
    command: Sequence[str] | str, timeout: float, *, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run(capture_output=True, text=True); a program that takes too long is killed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **{**pipes, **more}) as process:
        try:
            out, err = communicate(process, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check and done.returncode:
        raise AssertionError(f"{command} ended with status {done.returncode}\n{out}\n{err}")
    return done
