"""Ports for servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket

import pytest

__all__ = ["free_port"]


def free_port(rng: random.Random | None = None) -> int:
    """A TCP port of 127.0.0.1 that is free, and outside the kernel's range for callers: no connection of another test
    takes it before the server listens there, or while the server is away."""
    draw = random.Random() if rng is None else rng
    with open("/proc/sys/net/ipv4/ip_local_port_range") as found:
        low, high = map(int, found.read().split())
    for _ in range(100):
        port = draw.randrange(1024, 65536)
        if low <= port <= high:
            continue
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    pytest.skip("no free port was found")
