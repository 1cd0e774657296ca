"""`weft perf` on two hosts: `--server --listen tcp://host:port` starts the second processes for `--connect host:port`.

Both sides prove that they know WEFT_SECRET (by its slow hash, as on the tcp link). Then the client sends the size of
the memory. The process that the server starts for the client uses the connection as stdin and stdout.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from .. import _sodium, settings
from ._pair import DEADLINE_S, LINE_BYTES, ServedTarget, command, environment, provider_of
from ._text import PLACE, UsageError

_LINE_BYTES_MAX = 4096
_NBYTES_MAX = 1 << 32


def _place(option: str, text: str) -> tuple[str, int]:
    found = PLACE.match(text)
    if found is None or int(found[2]) >= 1 << 16:
        raise UsageError(f"{option}: {text!r} is not tcp://host:port\n  try: {option} tcp://0.0.0.0:7000")
    return found[1].strip("[]"), int(found[2])


def need_secret(option: str) -> bytes:
    """The secret. Raises UsageError if none is set."""
    secret = settings.secret(settings.load())
    if secret is None:
        raise UsageError(
            f"{option}: two hosts need a common secret\n"
            "  try: the same WEFT_SECRET, or WEFT_SECRET_FILE, on both; this command makes one:\n"
            "       python -c 'import secrets; print(secrets.token_hex(32))'"
        )
    return secret


def _proof(secret: bytes, who: str, nonces: Sequence[str]) -> str:
    return hmac.new(_sodium.key_of(secret), f"weft perf {who} {' '.join(nonces)}".encode(), hashlib.sha256).hexdigest()


class _Lines:
    """Lines of JSON over a socket, of limited length; reading a line reads no bytes that follow it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def say(self, **what: Any) -> None:
        self._connection.sendall(json.dumps(what).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        line = b""
        while not line.endswith(b"\n"):
            byte = self._connection.recv(1)
            if not byte or len(line) > _LINE_BYTES_MAX:
                raise ValueError("no line arrived")
            line += byte
        said = json.loads(line)
        if not isinstance(said, dict):
            raise ValueError("the line is not a request")
        return said


def _careful(connection: socket.socket) -> None:
    """Enable keepalives, so that the loss of the host is noticed."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(DEADLINE_S * 1000))


# ---- the host with --connect ---------------------------------------------------------------------------------------


class HostTarget(ServedTarget):
    """A second process on another host; otherwise like `Target`.

    Attributes:
        here: This host's address on the route to that host, at which this process's NIC must listen.

    Raises:
        UsageError: No server listens there, or the secrets differ.
    """

    def __init__(self, place: str, nbytes: int, provider: str | None = None) -> None:
        self._place = place
        secret = need_secret("--connect")
        try:
            self._socket = socket.create_connection(_place("--connect", place), DEADLINE_S)
        except OSError as reason:
            raise UsageError(
                f"--connect: no server listens at {place}: {reason.strerror or reason}\n"
                "  try: weft perf --server --listen tcp://0.0.0.0:7000 on that host"
            ) from None
        try:
            self._agree(secret)
            self._socket.settimeout(None)
            self.here = str(self._socket.getsockname()[0])
            _Lines(self._socket).say(nbytes=nbytes, provider=provider)
            self._make_scratch(nbytes)
        except BaseException:
            self._socket.close()
            raise
        self._to = self._socket.makefile("wb")
        self._from = self._socket.makefile("rb")

    def _agree(self, secret: bytes) -> None:
        """Each side proves that it knows the secret."""
        place = self._place
        _careful(self._socket)
        lines = _Lines(self._socket)
        try:
            nonces = [str(lines.hear()["nonce"]), secrets.token_hex(16)]
            lines.say(nonce=nonces[1], proof=_proof(secret, "client", nonces))
            answer = lines.hear()
            if "error" in answer:
                raise UsageError(f"--connect: {place} refused: {answer['error']}")
            if not hmac.compare_digest(str(answer["proof"]), _proof(secret, "server", nonces)):
                raise UsageError(
                    f"--connect: the server at {place} has a different WEFT_SECRET\n"
                    "  try: the same WEFT_SECRET in both terminals"
                )
        except UsageError:
            raise
        except (OSError, ValueError, KeyError) as reason:
            raise UsageError(
                f"--connect: the program that listens at {place} is not weft perf --server: {reason}"
            ) from None

    def __str__(self) -> str:
        return f"the process of the server at {self._place}" + (f" (pid {self.pid} there)" if self.pid else "")


# ---- the host with --server ----------------------------------------------------------------------------------------


def serve(listen: str, say: Callable[[str], None]) -> None:
    """Start a process for each client that knows the secret, until interrupted; then end them.

    Raises UsageError (no secret, an invalid address, the port is taken).
    """
    secret = need_secret("--listen")
    host, port = _place("--listen", listen)
    running: list[subprocess.Popen[bytes]] = []
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except OSError as reason:
        raise UsageError(f"--listen: {listen}: {reason.strerror or reason}\n  try: another port, or 0") from None
    with listener:
        listener.settimeout(0.2)  # the interval of checks for processes that have ended
        at = listener.getsockname()
        say(f"serving at {at[0]} port {at[1]}; on the other host: weft perf --connect HOST:{at[1]}; Ctrl-C ends it")
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    connection, caller = listener.accept()
                    with connection:  # the process has its own copy, which must be the only one
                        process = _admit(connection, caller[0], secret, say)
                    if process is not None:
                        running.append(process)
                for process in [p for p in running if p.poll() is not None]:
                    running.remove(process)
                    say("a measurement is done")
        finally:
            for process in running:
                process.kill()
                process.wait()


def _admit(
    connection: socket.socket, caller: str, secret: bytes, say: Callable[[str], None]
) -> subprocess.Popen[bytes] | None:
    """Start the process for a caller; None if the caller is refused."""
    connection.settimeout(DEADLINE_S)
    lines = _Lines(connection)
    scratch = -1
    try:
        _careful(connection)
        nonces = [secrets.token_hex(16)]
        lines.say(nonce=nonces[0])
        answer = lines.hear()
        nonces.append(str(answer["nonce"]))
        if not hmac.compare_digest(str(answer["proof"]), _proof(secret, "client", nonces)):
            say(f"{caller} was refused: its WEFT_SECRET differs\n  try: the same WEFT_SECRET in both terminals")
            lines.say(error="the secrets differ: give both the same WEFT_SECRET")
            return None
        lines.say(proof=_proof(secret, "server", nonces))
        asked = lines.hear()
        nbytes, provider = int(asked["nbytes"]), provider_of(asked)
        if not 0 < nbytes <= _NBYTES_MAX:
            raise ValueError(f"{nbytes} bytes of memory are not possible")
        scratch = os.memfd_create("weft-perf")
        os.ftruncate(scratch, LINE_BYTES + nbytes)
        connection.settimeout(None)
        here = connection.getsockname()[0]
        with tempfile.NamedTemporaryFile("wb", prefix="weft-perf-") as file:  # mode 0600; deleted after it was read
            file.write(secret)
            file.flush()
            more = {
                "WEFT_LISTEN": f"tcp://[{here}]:0" if ":" in here else f"tcp://{here}:0",
                "WEFT_ADVERTISE": "",
                "WEFT_SECRET": "",
                "WEFT_SECRET_FILE": f"/proc/self/fd/{file.fileno()}",
                "WEFT_SHM": "0",
            }
            process = subprocess.Popen(
                command(nbytes, scratch, None, provider),
                stdin=connection.fileno(),
                stdout=connection.fileno(),
                pass_fds=[scratch, file.fileno()],
                env=environment(more),
                start_new_session=True,  # Ctrl-C must reach only the server, which ends the process
            )
        say(f"{caller} measures")
        return process
    except (OSError, ValueError, KeyError, TypeError) as reason:
        say(f"{caller} was refused: {reason}")
        with contextlib.suppress(OSError):
            lines.say(error=f"the server could not start the process: {reason}")
        return None
    finally:
        if scratch >= 0:
            os.close(scratch)
