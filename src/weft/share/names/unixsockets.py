"""The Unix sockets with abstract names in this network namespace, and the users that own them.

The kernel reports them by sock_diag(7), with each socket's user (Linux 5.3), or in /proc/net/unix, without the user.
"""

from __future__ import annotations

import socket
import struct

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
# States: bound (TCP_CLOSE) and listening; not those of accepted connections, which carry the name as well.
_BOUND, _LISTENING = 1 << 7, 1 << 10
_ACCEPTS = 0x10000  # __SO_ACCEPTCON, the flag of a listening socket in /proc/net/unix
_SHOW = 0x01 | 0x40  # UDIAG_SHOW_NAME | UDIAG_SHOW_UID
_NAME, _UID = 0, 7  # UNIX_DIAG_NAME, UNIX_DIAG_UID
_MESSAGE = struct.Struct("=IHHII")  # struct nlmsghdr
_ASK = struct.Struct("=BBHIIIII")  # struct unix_diag_req
_TOLD_BYTES = 16  # struct unix_diag_msg
_ATTRIBUTE = struct.Struct("=HH")
_ANSWER_BYTES_MAX = 1 << 17
_TIMEOUT_S = 5.0
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


def credentials(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the other side of a Unix socket."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def bound(prefix: str, listening: bool = False) -> list[tuple[str, int | None]]:
    """(abstract name, uid of the socket's user) of each bound or listening socket whose name starts with `prefix`.

    Args:
        listening: Only sockets that one can connect to now: a name is bound a moment before its process listens.

    The uid is None if the kernel does not report it. The result is empty if the kernel answers no queries.
    """
    try:
        return _by_diag(prefix, _LISTENING if listening else _BOUND | _LISTENING)
    except (OSError, struct.error):
        return _by_proc(prefix, listening)


def _by_diag(prefix: str, states: int) -> list[tuple[str, int | None]]:
    wanted = b"\0" + prefix.encode()
    found: list[tuple[str, int | None]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        ask = _ASK.pack(socket.AF_UNIX, 0, 0, states, 0, _SHOW, 0, 0)
        kernel.send(_MESSAGE.pack(_MESSAGE.size + len(ask), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0) + ask)
        while True:
            data = kernel.recv(_ANSWER_BYTES_MAX)
            at = 0
            while at < len(data):
                length, kind, _, _, _ = _MESSAGE.unpack_from(data, at)
                if kind == _NLMSG_DONE:
                    return found
                if kind == _NLMSG_ERROR or length < _MESSAGE.size:
                    raise OSError("sock_diag refused")
                # The kernel tells of every socket of the namespace, and few are wanted.
                if data.find(wanted, at, at + length) >= 0:
                    name, uid = _attributes(data, at + _MESSAGE.size + _TOLD_BYTES, at + length)
                    if name.startswith(wanted):
                        found.append((name[1:].decode(errors="replace"), uid))
                at += (length + 3) & ~3


def _attributes(data: bytes, at: int, end: int) -> tuple[bytes, int | None]:
    name, uid = b"", None
    while at + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            raise OSError("sock_diag: an attribute without a length")
        if kind == _NAME:
            name = data[at + _ATTRIBUTE.size : at + length]
        elif kind == _UID:
            uid = int.from_bytes(data[at + _ATTRIBUTE.size : at + _ATTRIBUTE.size + 4], "little")
        at += (length + 3) & ~3
    return name, uid


def _by_proc(prefix: str, listening: bool) -> list[tuple[str, int | None]]:
    found: list[tuple[str, int | None]] = []
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            for line in file:
                path = line.rstrip("\n").split(" ")[-1]
                if path.startswith("@" + prefix) and (not listening or int(line.split()[3], 16) & _ACCEPTS):
                    found.append((path[1:], None))
    except OSError:
        pass
    return found
