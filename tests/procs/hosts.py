"""Two hosts: network namespaces joined by a wire that can be slow, lossy and cut.

Made with ip(8), which needs root and a kernel that permits it; `Wire` skips the test where that is missing. The wire is
a veth pair under tc-netem(8) where the kernel has it, otherwise a process that carries packets (relay.py). Everything
is gone when it is closed: deleting a namespace deletes its interfaces.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
from types import TracebackType
from typing import ClassVar

import pytest
from tests import patience
from tests.procs.children import ROOT

__all__ = ["PATIENT", "Wire"]

PATIENT = {"WEFT_TCP_TIMEOUT": "60"}
"""A busy machine loses no host: the variable of tests that are not about a loss."""
_ids = iter(range(1 << 16))


def _run(command: str) -> str:
    """Run a command; returns its stderr, or "" if it succeeded."""
    done = patience.run(command.split(), timeout=20)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit status {done.returncode}"


def _must(command: str) -> None:
    failed = _run(command)
    if failed:
        raise RuntimeError(f"{command}: {failed}")


class Wire:
    """Hosts "a" and "b": 10.77.0.1 and .2, fd77::1 and fd77::2.

    inside(host)   the command that starts a program on a host.
    """

    ip: ClassVar = {"a": "10.77.0.1", "b": "10.77.0.2"}
    ip6: ClassVar = {"a": "fd77::1", "b": "fd77::2"}

    def __init__(self, seed: int = 0) -> None:
        if shutil.which("ip") is None:
            pytest.skip("no ip here (package iproute2): network namespaces cannot be made")
        if os.geteuid() != 0:
            pytest.skip("network namespaces are made by root only")
        number = next(_ids)
        self._name = {h: f"weft-{os.getpid()}-{number}-{h}" for h in "ab"}
        self._closed = False
        self._relay: subprocess.Popen[str] | None = None
        for h in "ab":
            failed = _run(f"ip netns add {self._name[h]}")
            if failed:
                self.close()
                pytest.skip(f"the kernel permits no network namespace: {failed}")
        try:
            if _run(f"tc -n {self._name['a']} qdisc add dev lo root netem delay 0ms"):
                self._start_relay(seed)
            else:
                _must(f"tc -n {self._name['a']} qdisc del dev lo root")
                _must(f"ip link add eth0 netns {self._name['a']} type veth peer name eth0 netns {self._name['b']}")
            for h in "ab":
                n = self._name[h]
                _must(f"ip -n {n} addr add {self.ip[h]}/24 dev eth0")
                _must(f"ip -n {n} -6 addr add {self.ip6[h]}/64 dev eth0 nodad")
                _must(f"ip -n {n} link set lo up")
                _must(f"ip -n {n} link set eth0 up")
        except BaseException:
            self.close()
            raise

    def _start_relay(self, seed: int) -> None:
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            pytest.skip("the kernel has neither netem nor /dev/net/tun: no wire that delays and loses can be made")
        self._relay = subprocess.Popen(
            [sys.executable, "-m", "tests.procs.relay", self._name["a"], self._name["b"], str(seed)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._hear("ready")

    def _hear(self, expected: str) -> None:
        assert self._relay is not None
        assert self._relay.stdout is not None
        assert select.select([self._relay.stdout], [], [], 20)[0], "the relay says nothing"
        assert self._relay.stdout.readline().strip() == expected

    def inside(self, host: str) -> list[str]:
        return ["ip", "netns", "exec", self._name[host]]

    def run(self, host: str, code: str, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        """A Python program on a host, with pipes."""
        return subprocess.Popen(
            [*self.inside(host), sys.executable, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **settings},
        )

    def behave(self, *, delay_ms: float = 0, jitter_ms: float = 0, loss: float = 0) -> None:
        """Both directions from here on; loss 1 is a partition: both interfaces stay up."""
        if self._relay is not None:
            assert self._relay.stdin is not None
            self._relay.stdin.write(f"{delay_ms} {jitter_ms} {loss}\n")
            self._relay.stdin.flush()
            self._hear("ok")
            return
        for h in "ab":
            _run(f"tc -n {self._name[h]} qdisc del dev eth0 root")
            if delay_ms or jitter_ms or loss:
                _must(
                    f"tc -n {self._name[h]} qdisc add dev eth0 root netem "
                    f"delay {delay_ms}ms {jitter_ms}ms loss {100 * loss}%"
                )

    def link(self, host: str, up: bool) -> None:
        """Take an interface down, as if the cable were pulled at that host, or up again."""
        _must(f"ip -n {self._name[host]} link set eth0 {'up' if up else 'down'}")
        if up:
            _run(f"ip -n {self._name[host]} -6 addr add {self.ip6[host]}/64 dev eth0 nodad")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._relay is not None:
                self._relay.kill()
                self._relay.communicate()
            for name in self._name.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    _run(f"ip netns del {name}")

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
