"""`weft pingpong`: messages back and forth between two processes or hosts, as libfabric's fi_pingpong does.

    weft pingpong                 the server
    weft pingpong SERVER          the client, with the server's host name or IP address

Options and columns are those of fi_pingpong(1). `_pingpong.py` has the two sides.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from ._text import UsageError, parse_number

if TYPE_CHECKING:
    from ._pingpong import Result

EP_TYPES = ("rdm", "msg", "dgram")
MODES = ("msg", "tagged")
SIZES = (64, 256, 1024, 4096, 65536, 1 << 20)
"""Sizes without -S, in bytes. Source: fi_pingpong(1) "Defaults"."""
ITERATIONS = 10

_SIZE_MAX = 1 << 30
_ALL_MAX = 6 << 20


def all_sizes() -> list[int]:
    """Sizes of `-S all`, in bytes: none, and powers of two and one and a half of them."""
    found = {0, 1}
    size = 2
    while size <= _ALL_MAX:
        found |= {size, min(size + size // 2, _ALL_MAX)}
        size *= 2
    return sorted(found)


def _sizes(text: str | None) -> list[int]:
    if text is None:
        return list(SIZES)
    if text == "all":
        return all_sizes()
    size = parse_number("-S", text)
    if size > _SIZE_MAX:
        raise UsageError(f"-S: {size} bytes; a message of the test has at most {_SIZE_MAX}")
    return [size]


def _port(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    port = parse_number(option, text)
    if not 0 < port < 1 << 16:
        raise UsageError(f"{option}: {text} is not a port\n  try: a number from 1 to 65535")
    return port


def _one_of(option: str, text: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise UsageError(f"{option}: {text!r} is unknown\n  known: {', '.join(known)}")
    return text


def _bytes(size: int) -> str:
    """1536 as "1.5k", as fi_pingpong writes it: cut, with one digit below ten."""
    for unit, letter in ((1 << 30, "g"), (1 << 20, "m"), (1 << 10, "k")):
        if size >= unit:
            whole, tenth = size // unit, size * 10 // unit % 10
            return f"{whole}.{tenth}{letter}" if whole < 10 and tenth else f"{whole}{letter}"
    return str(size)


def _count(count: int) -> str:
    for unit, letter in ((10**9, "b"), (10**6, "m"), (10**3, "k")):
        if count >= unit:
            return f"{count // unit}{letter}"
    return str(count)


def _head() -> str:
    return (
        f"{'bytes':<8}{'#sent':<8}{'#ack':<9}{'total':<8}{'time':>8} {'MB/sec':>10}{'usec/xfer':>13}{'Mxfers/sec':>13}"
    )


def line(result: Result) -> str:
    """A row of the table: total is the bytes of both directions; a transfer is a message, there or back."""
    total, transfers = 2 * result.size * result.sent, 2 * result.sent
    acks = "=" + _count(result.acks) if result.acks == result.sent else _count(result.acks)
    each = result.seconds / transfers
    return (
        f"{_bytes(result.size):<8}{_count(result.sent):<8}{acks:<9}{_bytes(total):<8}{result.seconds:>8.2f}s"
        f"{total / result.seconds / 1e6:>10.2f}{each * 1e6:>11.2f}{1e-6 / each:>11.2f}"
    )


def pingpong(
    server: str | None,
    *,
    source_port: str | None = None,
    dest_port: str | None = None,
    domain: str | None = None,
    provider: str | None = None,
    ep_type: str = "rdm",
    iterations: int = ITERATIONS,
    size: str | None = None,
    mode: str = "msg",
    check: bool = False,
    verbose: bool = False,
    ipv6: bool = False,
) -> int:
    """One side: the server without a server's name, the client with one. Returns the exit status. Raises UsageError."""
    own, there = _port("-B", source_port), _port("-P", dest_port)
    _one_of("-e", ep_type, EP_TYPES)
    _one_of("-m", mode, MODES)
    sizes = _sizes(size)
    from . import _pingpong as sides

    debug: Callable[[str], None] = sides.say_debug if verbose else lambda text: None
    plan = sides.Plan(provider, ep_type, mode, tuple(sizes), iterations, check)
    sides.check(plan, domain)
    family = socket.AF_INET6 if ipv6 else socket.AF_INET
    if server is None:
        connection = sides.wait_for_client(own or sides.PORT, family, debug)
    else:
        connection = sides.call(server, there or sides.PORT, own, family)
    try:
        for n, result in enumerate(sides.run(plan, domain, connection, server is not None, debug)):
            if n == 0:
                print(_head())
            print(line(result), flush=True)
    except sides.PeerGone as reason:
        sides.say_debug(str(reason))
        return 1
    return 0
