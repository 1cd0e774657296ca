"""The client of a Fabric Manager, as a join uses it: create a multicast address, delete it.

    mcast_id, hw_root = create_multicast(url, token, [0x840, 0x841], vni, 32000, "job-1", "0")
    delete_multicast(url, token, mcast_id)

Made of Python's own library, imported at the first call. Both functions block, at most 5 s for each exchange, and may
run in any thread. They follow no redirect and use no proxy.

Source: fi_cxi(7) FI_CXI_COLL_FABRIC_MGR_URL, FI_CXI_COLL_MCAST_TOKEN, FI_CXI_COLL_FABRIC_MGR_CACERT.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .addresses import NIC_MAX, nic_of_mac, nic_text
from .codes import (
    CREATED,
    CURL_FAILED,
    HWROOT_INVALID,
    MCAST_INVALID,
    MCAST_MAX,
    SERVER_ERR,
    ManagerError,
    create_error,
)

if TYPE_CHECKING:
    import socket
    import ssl

__all__ = ["LIMIT_S", "ManagerError", "Multicast", "create_multicast", "delete_multicast", "exchange"]

LIMIT_S = 5.0
"""Limit of one exchange: from the look-up of the host's name to the last byte of the answer."""
REPEAT_S = 0.1
"""Pause after an answer 409, before the request is repeated."""
ANSWER_MAX = 1 << 20  # bytes; no answer of a Fabric Manager is longer
_NO_STEP = "(null)"  # what the provider sends for a job without a step


class Multicast(NamedTuple):
    """A multicast address, and which member is its hardware root.

    Attributes:
        mcast_id: The address, 0 to 8191.
        hw_root: Address of a member's NIC, 20 bits; `macs.index(hw_root)` is its first member.
    """

    mcast_id: int
    hw_root: int


def create_multicast(
    url: str,
    token: str,
    macs: Sequence[int],
    vni: int,
    timeout_us: int,
    job_id: str,
    job_step_id: str | None = None,
    cacert: str | None = "no",
    *,
    stop: threading.Event | None = None,
) -> Multicast:
    """Ask the manager for a multicast address of a group (POST).

    Args:
        url: FI_CXI_COLL_FABRIC_MGR_URL, http:// or https://.
        token: FI_CXI_COLL_MCAST_TOKEN.
        macs: Addresses of the members' NICs (20 bits each), in the order of the set.
        timeout_us: Timeout of the reduction engine: FI_CXI_COLL_TIMEOUT_USEC.
        job_id: FI_CXI_COLL_JOB_ID.
        job_step_id: FI_CXI_COLL_JOB_STEP_ID, or None.
        cacert: FI_CXI_COLL_FABRIC_MGR_CACERT: "no" or None: certificates are not verified; "yes": by the system's
            authorities; otherwise a file or a folder of authorities.
        stop: Event that ends the repetition of a request that was answered with 409; None: repeat without end.

    Raises:
        ManagerError: .prov_errno is 2048 (a limit on addresses), 2049 (no hardware root is free, or status 400), 2050
            (no valid multicast address in the answer), 2051 (no member as hardware root in the answer), 2052 (`url`,
            `token` or `job_id` is missing or cannot be sent) or 2054 (another answer, or none).
    """
    import json

    needed = {"FI_CXI_COLL_FABRIC_MGR_URL": url, "FI_CXI_COLL_MCAST_TOKEN": token, "FI_CXI_COLL_JOB_ID": job_id}
    missing = [name for name, text in needed.items() if not text]
    if missing:
        raise ManagerError(
            f"create: {', '.join(missing)} must be set\n"
            "  rule: accelerated collectives need a Fabric Manager's address, its token and the job's id\n"
            "  try: `weft fm serve`, which prints the address and the token",
            prov_errno=CURL_FAILED,
        )
    if not macs or any(not 0 <= nic <= NIC_MAX for nic in macs):
        raise ManagerError(
            "create: `macs` must be addresses of NICs, 20 bits each, at least one", prov_errno=CURL_FAILED
        )
    body = json.dumps(
        {
            "macs": [nic_text(nic) for nic in macs],
            "vni": int(vni),
            "timeout": int(timeout_us),
            "jobID": str(job_id),
            "jobStepID": _NO_STEP if job_step_id is None else str(job_step_id),
        }
    ).encode()
    status, found = exchange("POST", url, token, body, cacert, SERVER_ERR, stop)
    if status not in CREATED:
        said = _message(found)
        raise ManagerError(
            f"create: the manager at {url} answered {status}{said}\n  {_advice(status)}",
            prov_errno=create_error(status, said),
            status=status,
        )
    mcast_id = found.get("mcastID")
    if type(mcast_id) is not int or not 0 <= mcast_id <= MCAST_MAX:
        raise ManagerError(
            f"create: the manager at {url} gave the multicast address {mcast_id!r}, which is not 0 to {MCAST_MAX}",
            prov_errno=MCAST_INVALID,
            status=status,
        )
    root = found.get("hwRoot")
    hw_root = nic_of_mac(root) if isinstance(root, str) else None
    if hw_root is None or hw_root not in macs:
        raise ManagerError(
            f"create: the manager at {url} gave the hardware root {root!r}, which is no member of the group",
            prov_errno=HWROOT_INVALID,
            status=status,
        )
    return Multicast(mcast_id, hw_root)


def delete_multicast(
    url: str, token: str, mcast_id: int, cacert: str | None = "no", *, stop: threading.Event | None = None
) -> None:
    """Give a multicast address back (DELETE {url}/{mcast_id}).

    Raises ManagerError with .prov_errno 2052. Afterwards the manager may still have the address; its administrator can
    free the addresses that a job has left.
    """
    where = f"{url}/{int(mcast_id)}"
    status, found = exchange("DELETE", where, token, b"", cacert, CURL_FAILED, stop)
    if status not in CREATED:
        raise ManagerError(
            f"delete: the manager answered {status} to DELETE {where}{_message(found)}",
            prov_errno=CURL_FAILED,
            status=status,
        )


def _message(found: dict[str, Any]) -> str:
    said = found.get("message")
    return f": {said[:400]}" if isinstance(said, str) and said else ""


def _advice(status: int) -> str:
    if status == 401:
        return "try: FI_CXI_COLL_MCAST_TOKEN, the token that the manager, or the job's launcher, has given"
    if status == 507:
        return "try: close groups, or `weft fm release JOB` for those that a job has left"
    return "try: look at FI_CXI_COLL_FABRIC_MGR_URL and at the manager's log"


# ---- one exchange ----------------------------------------------------------------------------------------------------


def exchange(
    method: str,
    url: str,
    token: str,
    body: bytes,
    cacert: str | None,
    no_answer: int,
    stop: threading.Event | None = None,
    repeat_s: float = float("inf"),
) -> tuple[int, dict[str, Any]]:
    """Status and JSON object of the answer; {} if the answer has no object.

    The request is repeated for `repeat_s` seconds while the answer is 409.

    Raises ManagerError: .prov_errno is `no_answer`, or 2052 for a request that cannot be sent.
    """
    import json

    secure, host, port, target = _parsed(url)
    head = _head(method, host, port, secure, target, token, len(body))
    end = time.monotonic() + repeat_s
    while True:
        if stop is not None and stop.is_set():
            raise ManagerError(f"{method} {url} was given up", prov_errno=no_answer)
        try:
            status, answer = _once(method, host, port, secure, cacert, head + body)
        except OSError as reason:  # ssl.SSLError and TimeoutError are OSErrors
            raise ManagerError(
                f"no answer from the Fabric Manager to {method} {url}: {str(reason) or type(reason).__name__}\n"
                "  try: `weft fm status`, which asks the manager at FI_CXI_COLL_FABRIC_MGR_URL",
                prov_errno=no_answer,
            ) from reason
        if status != 409 or time.monotonic() >= end:
            break
        if stop is None:
            time.sleep(REPEAT_S)
        else:
            stop.wait(REPEAT_S)
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        found = None
    return status, found if isinstance(found, dict) else {}


def _parsed(url: str) -> tuple[bool, str, int, str]:
    """(https, host, port, path with query) of an address."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https") or not url.isascii() or not url.isprintable():
        raise ManagerError(
            f"FI_CXI_COLL_FABRIC_MGR_URL={url!r} is no http:// or https:// address", prov_errno=CURL_FAILED
        )
    secure = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return secure, host, port or (443 if secure else 80), target.replace(" ", "%20")


def _head(method: str, host: str, port: int, secure: bool, target: str, token: str, length: int) -> bytes:
    """Request line and headers: the same, in the same order, as the provider's client sends."""
    if not token.isascii() or not token.isprintable():
        raise ManagerError("FI_CXI_COLL_MCAST_TOKEN has characters that no header may have", prov_errno=CURL_FAILED)
    shown = f"[{host}]" if ":" in host else host
    lines = [
        f"{method} {target} HTTP/1.1",
        f"Host: {shown}" + ("" if port == (443 if secure else 80) else f":{port}"),
        "Accept: application/json",
        "Content-Type: application/json",
        "charset: utf-8",
        "Authorization: Bearer " + token,  # not formatted: a weft.settings.Secret formats as "not shown"
        f"Content-Length: {length}",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


class _Deadline:
    """A socket for http.client, whose operations end at one instant."""

    def __init__(self, found: socket.socket, end: float) -> None:
        self.socket = found
        self._end = end

    def left(self) -> float:
        """Seconds left. Raises TimeoutError."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"timed out after {LIMIT_S:g} s")
        return left

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self.socket.settimeout(self.left())
            view = view[self.socket.send(view) :]

    def recv_into(self, into: memoryview) -> int:
        self.socket.settimeout(self.left())
        return self.socket.recv_into(into)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))


class _Reader(io.RawIOBase):
    def __init__(self, whole: _Deadline) -> None:
        self._whole = whole

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        return self._whole.recv_into(memoryview(into).cast("B"))


def _once(method: str, host: str, port: int, secure: bool, cacert: str | None, request: bytes) -> tuple[int, bytes]:
    """Send a request to the manager; status and body of the answer. Raises OSError."""
    import http.client

    end = time.monotonic() + LIMIT_S
    context = _tls(cacert) if secure else None
    found = _connected(host, port, end)
    try:
        if context is not None:
            found.settimeout(max(end - time.monotonic(), 0.001))
            found = context.wrap_socket(found, server_hostname=host)
        wire = _Deadline(found, end)
        try:
            wire.send(request)
        except (BrokenPipeError, ConnectionResetError):
            pass  # a manager that refuses a long request may answer before it has read everything
        answer = http.client.HTTPResponse(wire, method=method)  # type: ignore[arg-type]
        try:
            answer.begin()
            body = answer.read(ANSWER_MAX + 1)
        except (http.client.HTTPException, ValueError) as reason:
            raise OSError(f"the answer is no HTTP: {reason!r}") from None
        finally:
            answer.close()
        if len(body) > ANSWER_MAX:
            raise OSError(f"the answer is longer than {ANSWER_MAX} bytes")
        if answer.length:
            raise OSError(f"the answer ended {answer.length} bytes early")
        return answer.status, body
    finally:
        found.close()


def _connected(host: str, port: int, end: float) -> socket.socket:
    """A connection to the first address of the host that accepts one."""
    import socket

    last: OSError = OSError(f"no address of {host}")
    for family, kind, proto, _, address in _addresses(host, port, end):
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"timed out after {LIMIT_S:g} s")
        found = socket.socket(family, kind, proto)
        try:
            found.settimeout(left)
            found.connect(address)
        except OSError as reason:
            found.close()
            last = reason
            continue
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found
    raise last


def _addresses(host: str, port: int, end: float) -> list[Any]:
    """getaddrinfo, which has no limit of its own: names are looked up in a thread that may be left behind."""
    import socket

    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        pass
    found: list[Any] = []

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as reason:
            found.append(reason)

    thread = threading.Thread(target=look_up, name="weft-fm-name", daemon=True)
    thread.start()
    thread.join(max(end - time.monotonic(), 0))
    if not found:
        raise TimeoutError(f"the name {host} was not found within {LIMIT_S:g} s")
    if isinstance(found[0], OSError):
        raise found[0]
    if isinstance(found[0], Exception):
        raise OSError(f"{host} is no name of a host: {found[0]}")
    return list(found[0])


def _tls(cacert: str | None) -> ssl.SSLContext:
    """What FI_CXI_COLL_FABRIC_MGR_CACERT says. Raises OSError."""
    import os

    try:
        import ssl
    except ImportError as reason:
        raise OSError(
            f"https:// needs Python's module ssl, which this Python lacks ({reason})\n"
            "  try: a Python that was built with OpenSSL"
        ) from None
    if cacert is None or cacert in ("", "no"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    if cacert == "yes":
        return ssl.create_default_context()
    folder = os.path.isdir(cacert)
    try:
        return ssl.create_default_context(cafile=None if folder else cacert, capath=cacert if folder else None)
    except OSError as reason:
        raise OSError(f"FI_CXI_COLL_FABRIC_MGR_CACERT={cacert!r} cannot be used: {reason}") from None
