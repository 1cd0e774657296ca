"""`weft perf` in two terminals of a host: `--server` starts the second processes that `--connect NAME` asks for.

A server holds an abstract Unix socket, so its name ends with the server. A client sends one message: the process that
it needs (JSON), and the descriptor of the scratch memory. The server then starts the process, which uses the connection
as stdin and stdout, runs `_pair.serve`, and ends with the connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence

from ..share.names.server import check_name
from ._pair import DEADLINE_S, ServedTarget, command, environment, provider_of
from ._text import UsageError

NAME = "perf"
"""The default name of a server."""

_REQUEST_BYTES_MAX = 4096
_ISOLATION = ("shared", "strict")


def _prefix() -> str:
    return f"weft-perf-{os.geteuid()}-"


def servers() -> list[str]:
    """Names of this user's servers on this host, sorted."""
    start = "@" + _prefix()
    with contextlib.suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="replace") as table:
        paths = {line.rstrip("\n").split(" ")[-1] for line in table}
        return sorted(path.removeprefix(start) for path in paths if path.startswith(start))
    return []


# ---- the terminal with --connect -----------------------------------------------------------------------------------


class RemoteTarget(ServedTarget):
    """A second process, started by the server `name`; otherwise like `Target`.

    Raises UsageError if no server has that name.
    """

    def __init__(
        self, name: str, nbytes: int, env: Mapping[str, str], cores: Sequence[int], provider: str | None = None
    ) -> None:
        self._server = check_name(name, "--connect")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect("\0" + _prefix() + name)
        except ConnectionRefusedError:
            self._socket.close()
            here = servers()
            raise UsageError(
                f"--connect: no server has the name {name!r} on this host\n"
                f"  servers here: {', '.join(here) or 'none'}\n"
                f"  try: weft perf --server{'' if name == NAME else ' --name ' + name} in another terminal"
            ) from None
        self._make_scratch(nbytes)
        request = {"nbytes": nbytes, "isolation": env["WEFT_ISOLATION"], "cores": list(cores), "provider": provider}
        socket.send_fds(self._socket, [json.dumps(request).encode()], [self._scratch_fd])
        self._to = self._socket.makefile("wb")
        self._from = self._socket.makefile("rb")

    def __str__(self) -> str:
        return f"the process of the server {self._server!r}" + (f" (pid {self.pid})" if self.pid else "")


# ---- the terminal with --server ------------------------------------------------------------------------------------


def serve(name: str, say: Callable[[str], None]) -> None:
    """Start a process for each client, until interrupted; then end them.

    Raises UsageError if the name is taken.
    """
    check_name(name, "--server")
    running: dict[subprocess.Popen[bytes], int] = {}  # and the process id of the client
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind("\0" + _prefix() + name)
        except OSError:
            raise UsageError(
                f"--server: another server has the name {name!r}\n  try: weft perf --server --name {name}2"
            ) from None
        listener.listen()
        listener.settimeout(0.2)  # the interval of checks for processes that have ended
        say(f"serving as {name!r}; in another terminal: weft perf --connect {name}; Ctrl-C ends it")
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    with connection:  # the process has its own copies, which must be the only ones
                        pid = _start(connection, running)
                    if pid and list(running.values()).count(pid) == 1:
                        say(f"process {pid} measures")
                for process in [p for p in running if p.poll() is not None]:
                    pid = running.pop(process)
                    if pid not in running.values():
                        say(f"process {pid} is done")
        finally:
            for process in running:
                process.kill()
                process.wait()


def _start(connection: socket.socket, running: dict[subprocess.Popen[bytes], int]) -> int:
    """Start the process for one client; returns the client's process id, or 0 if nothing was started."""
    connection.settimeout(DEADLINE_S)
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int
    pid, uid, _ = struct.unpack("3i", credentials)
    if uid != os.geteuid():
        return 0
    fds: list[int] = []
    try:
        data, fds, _, _ = socket.recv_fds(connection, _REQUEST_BYTES_MAX, 1)
        request = json.loads(data)
        nbytes, isolation = int(request["nbytes"]), request["isolation"]
        if isolation not in _ISOLATION or not fds or os.fstat(fds[0]).st_size < nbytes:
            raise ValueError("the request is invalid")
        connection.settimeout(None)
        # Leave the client's first core to the client, and use the other cores, if any.
        cores = sorted(os.sched_getaffinity(0) & {int(core) for core in request["cores"]})
        process = subprocess.Popen(
            command(nbytes, fds[0], cores, provider_of(request)),
            stdin=connection.fileno(),
            stdout=connection.fileno(),
            pass_fds=fds,
            env=environment({"WEFT_ISOLATION": isolation, "WEFT_CMA": "1"}),
            start_new_session=True,  # Ctrl-C must reach only the server, which ends the process
        )
    except (OSError, ValueError, KeyError, TypeError) as e:
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps({"error": f"the server could not start the process: {e}"}).encode() + b"\n")
        return 0
    finally:
        for fd in fds:
            os.close(fd)
    running[process] = pid
    return pid
