"""Other processes for tests: started with exec (never fork), controlled over pipes, watched.

    with Child(WEFT_ENGINE="manual") as child:
        child.call(function, 1, 2)            # function(world, 1, 2) runs there; its result or exception comes back
        call = child.start(function)          # the same, without waiting
        call.result(timeout=5)

`function` is a module-level function of a module under tests/; `world` is the child's `peer.World`. A call that does
not end in time is a failure that shows what every process of the test was doing: the stacks of all its threads, the
statistics of its NIC, what the kernel has it waiting for. Nothing here imports weft.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests import patience
from tests.patience import Patience, communicate

ROOT = Path(__file__).resolve().parents[2]
# The watchdog of one call: nothing takes a tenth of it on an idle machine, and it stretches on a busy one.
CALL_S = 60.0

# The parts of the environment that decide what a NIC is: a child gets only the parts that the test names.
SETTINGS = ("WEFT_ENGINE", "WEFT_ISOLATION", "WEFT_CMA", "WEFT_MR_MODE")

_living: set[Child] = set()


class Hung(AssertionError):
    """A watchdog fired. The message says what the processes were doing."""


class RemoteError(AssertionError):
    """A call in the child raised an exception that cannot be sent to this process."""


def environment(**settings: str) -> dict[str, str]:
    """This process's environment with the NIC's settings replaced."""
    env = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    env.update(settings)
    return env


def run(
    code: str, *, timeout: float = CALL_S, flags: tuple[str, ...] = (), **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in a fresh interpreter; a hang is a failure with the stacks of its threads."""
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", *flags, "-c", code],
        cwd=ROOT,
        env=environment(**settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = communicate(process, timeout)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # -X faulthandler prints the stacks
        try:
            out, err = patience.communicate(process, 5)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        raise Hung(f"the program did not end within {timeout} s\n{code}\n-- stdout\n{out}\n-- stderr\n{err}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class Call:
    """A call under way in a child."""

    def __init__(self, child: Child, what: str) -> None:
        self.child = child
        self.what = what
        self._found: tuple[str, Any] | None = None

    def done(self) -> bool:
        return self._found is not None or self.child.readable(0)

    def result(self, timeout: float = CALL_S) -> Any:
        if self._found is None:
            self._found = self.child.receive(self.what, timeout)
        kind, value = self._found
        if kind == "value":
            return value
        raise value


class Child:
    """A process that executes functions on request (tests/procs/peer.py).

    inside    command that it is started by, for example the one of a network namespace (tests/procs/hosts.py).
    """

    def __init__(self, inside: Sequence[str] = (), **settings: str) -> None:
        self.settings = settings
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
        to_child, self._in = os.pipe()
        self._out, from_child = os.pipe()
        watch, self._watch = os.pipe()
        with contextlib.ExitStack() as theirs:
            for fd in (to_child, from_child, watch):
                theirs.callback(os.close, fd)
            self.process = subprocess.Popen(
                [
                    *inside,
                    sys.executable,
                    "-X",
                    "faulthandler",
                    "-m",
                    "tests.procs.peer",
                    str(to_child),
                    str(from_child),
                    str(watch),
                ],
                cwd=ROOT,
                env=environment(**settings),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(to_child, from_child, watch),
            )
        self.pid = self.process.pid
        self.progress: Callable[[], object] | None = None  # what this process must do while it waits (manual progress)
        _living.add(self)

    # ---- calls -------------------------------------------------------------------------------------------------------

    def start(self, function: Callable[..., Any], *args: Any) -> Call:
        data = pickle.dumps((function, args))
        view = memoryview(len(data).to_bytes(8, "little") + data)
        while view:
            view = view[os.write(self._in, view) :]
        return Call(self, getattr(function, "__name__", str(function)))

    def call(self, function: Callable[..., Any], *args: Any, timeout: float = CALL_S) -> Any:
        return self.start(function, *args).result(timeout)

    def readable(self, timeout: float) -> bool:
        return bool(select.select([self._out], [], [], timeout)[0])

    def receive(self, what: str, timeout: float) -> tuple[str, Any]:
        patience = Patience(timeout)
        header = self._read(8, what, patience)
        return pickle.loads(self._read(int.from_bytes(header, "little"), what, patience))  # type: ignore[no-any-return]

    def _read(self, count: int, what: str, patience: Patience) -> bytes:
        data = b""
        while len(data) < count:
            left = min(patience.left(), 5.0)
            if left <= 0:
                raise Hung(f"{what}: no answer from process {self.pid} in time\n{dump()}")
            if self.progress is not None:
                self.progress()
                left = min(left, 0.001)
            if not self.readable(left):
                continue
            piece = os.read(self._out, count - len(data))
            if not piece:
                code = self.process.wait(10)
                raise RemoteError(f"{what}: process {self.pid} ended with {code}\n{self.log()}")
            data += piece
        return data

    # ---- life --------------------------------------------------------------------------------------------------------

    def log(self) -> str:
        """The child's stdout and stderr."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), min(size, 1 << 16), max(0, size - (1 << 16))).decode("utf-8", "replace")

    def kill(self, sig: int = signal.SIGKILL) -> None:
        self.process.send_signal(sig)

    def wait(self, timeout: float = CALL_S) -> int:
        patience = Patience(timeout)
        while True:
            try:
                return self.process.wait(min(max(patience.left(), 0.01), 5.0))
            except subprocess.TimeoutExpired:
                if patience.over:
                    raise Hung(f"process {self.pid} did not end\n{dump()}") from None

    def close(self, timeout: float = CALL_S) -> int:
        """Let the child close its objects and end; returns its exit status."""
        if self not in _living:
            return int(self.process.returncode or 0)
        os.close(self._in)
        self._in = -1
        try:
            return self.wait(timeout)
        finally:
            self._forget()

    def destroy(self) -> None:
        """Kill the child at once."""
        if self in _living:
            self.process.kill()
            self.process.wait()
            self._forget()

    def _forget(self) -> None:
        _living.discard(self)
        for fd in (self._in, self._out, self._watch):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._log.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None and self.process.poll() is None:
            code = self.close()
            assert code == 0, f"process {self.pid} ended with {code}"
        self.destroy()

    # ---- the watchdog's picture --------------------------------------------------------------------------------------

    def state(self) -> str:
        """The child's state: statistics of its NIC, stacks of its threads, their waits in the kernel."""
        if self.process.poll() is not None:
            return f"process {self.pid}: ended with {self.process.returncode}\n{self.log()}"
        with contextlib.suppress(OSError):
            os.write(self._watch, b"!")
            self.process.send_signal(signal.SIGUSR1)
        time.sleep(0.7)
        lines = [f"process {self.pid}: {self.settings}"]
        for task in sorted(Path(f"/proc/{self.pid}/task").glob("*")):
            with contextlib.suppress(OSError):
                lines.append(
                    f"  thread {task.name} {(task / 'comm').read_text().strip()}: {(task / 'wchan').read_text()}"
                )
        lines.append(self.log())
        return "\n".join(lines)


def dump() -> str:
    """The state of every child of this process."""
    return "\n".join(child.state() for child in sorted(_living, key=lambda c: c.pid))
