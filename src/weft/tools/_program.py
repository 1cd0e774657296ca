"""Programs that a command runs to their end: `weft run --explain`, `weft trace`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

NOT_EXECUTABLE, NOT_FOUND = 126, 127


def run_to_end(command: Sequence[str], environ: Mapping[str, str], *, close_fds: bool = True) -> int:
    """Run a program to its end; its exit status as a shell has it. Signals that end a hanging program are passed on."""
    running: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and sys.stdin.isatty():
            return  # the terminal sends Ctrl-C to the program, too
        if running:
            running[0].send_signal(number)
        else:
            early.append(number)

    before = {
        number: signal.signal(number, pass_on)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup: the program ignores the signal, too
    }
    try:
        running.append(subprocess.Popen(list(command), env=environ, close_fds=close_fds))
        for number in early:
            running[0].send_signal(number)
        status = running[0].wait()
    except OSError as reason:
        return not_started(command[0], reason)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    return status if status >= 0 else 128 - status


def not_started(program: str, reason: OSError) -> int:
    """Say why a program was not started; the exit status that a shell has then."""
    print(f"weft: {program}: {reason.strerror}", file=sys.stderr)
    return NOT_FOUND if isinstance(reason, FileNotFoundError) else NOT_EXECUTABLE
