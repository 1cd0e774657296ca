"""A real libfabric between two processes, a peer that dies, forks, and the end of a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.ofi.support import WATCHDOG_S, drain, finish, offer, open_node, post, run_program, until
from tests.patience import Patience

from weft import fi

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.procs


class Side:
    """A child process of side.py."""

    def __init__(self, provider: str, what: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("side.py")), provider, what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.kill()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(WATCHDOG_S)


@pytest.fixture
def side(provider: str) -> Iterator[Side]:
    made = Side(provider, "serve")
    yield made
    made.end()


def told(side: Side) -> tuple[Any, int, int]:
    """(address, place, key) of a side that serves."""
    what = json.loads(side.line())
    return what["address"] if what["text"] else bytes.fromhex(what["address"]), what["place"], what["key"]


def test_two_processes(provider: str, side: Side) -> None:
    address, place, key = told(side)
    node = open_node(offer(provider))
    to = node.av.insert(address)
    post(lambda: node.ep.tsend(b"hello there", dest_addr=to, tag=1), node)
    finish(node, 1)
    assert side.line() == "hello there"
    back = np.zeros(16, np.uint8)
    post(lambda: node.ep.read(back, node.register(back, fi.READ), to, place + 100, key, "read"), node)
    assert finish(node, 1)[0].op_context == "read"
    assert back.tolist() == list(range(100, 116))
    data = np.full(16, 7, np.uint8)
    post(lambda: node.ep.write(data, node.register(data, fi.WRITE), to, place + 100, key, "write"), node)
    assert finish(node, 1)[0].op_context == "write"
    node.seen.clear()
    post(lambda: node.ep.read(back, node.extra[0], to, place + 100, key, "again"), node)
    finish(node, 1)
    until(lambda: back.tolist() == [7] * 16, node)
    node.close()
    assert side.process.stdin is not None
    side.process.stdin.write("end\n")
    side.process.stdin.flush()
    assert side.line() == "closed"


def test_killed_peer_fails_operations(side: Side) -> None:
    """Over tcp the kernel tells of the death: operations end with errors, or calls raise; nothing hangs or crashes."""
    if "tcp" not in " ".join(side.process.args):  # type: ignore[arg-type]
        pytest.skip("shm of libfabric does not notice the death of a peer")
    address, place, key = told(side)
    node = open_node(offer("ofi:tcp"))
    to = node.av.insert(address)
    data = np.ones(1 << 16, np.uint8)
    mr = node.register(data, fi.WRITE | fi.READ)
    post(lambda: node.ep.write(data[:1024], mr, to, place, key, "first"), node)
    finish(node, 1)
    side.process.send_signal(signal.SIGKILL)
    side.process.wait(WATCHDOG_S)
    failed: list[Any] = []
    end = Patience(WATCHDOG_S)
    while not failed and not end.over:
        try:
            node.ep.read(data[:1024], mr, to, place, key, "late")
        except fi.Again:
            pass
        except fi.FabricError as reason:
            failed.append(reason)
        drain(node)
        failed += [entry for entry in node.seen if getattr(entry, "err", 0)]
        node.seen.clear()
    assert failed
    for one in failed:
        error = one if isinstance(one, fi.FabricError) else one.exception()
        assert str(error)
    node.close()


def test_process_leaves_without_closing(provider: str) -> None:
    side = Side(provider, "leave")
    assert side.line() == "leaving"
    assert side.process.wait(WATCHDOG_S) == 0
    side.end()


FORK = """
import os
from tests.ofi.support import offer, open_node
from weft import fi

node = open_node(offer({provider!r}))
pid = os.fork()
if pid == 0:
    try:
        node.cq.read()
    except fi.BadState as reason:
        os._exit(0 if "forked" in str(reason) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_forked_child_of_a_program_without_wefts_own_nic_is_refused(provider: str) -> None:
    done = run_program(FORK.format(provider=provider))
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr


def test_forked_child_is_refused(provider: str) -> None:
    node = open_node(offer(provider))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = []
        for call in (
            lambda: node.ep.send(b"x"),
            lambda: node.cq.read(),
            lambda: node.av.insert(b""),
            lambda: node.domain.cq_open(),
            lambda: node.fabric.eq_open(),
            lambda: node.ep.getname(),
        ):
            try:
                call()
                said.append("done")
            except fi.BadState as reason:
                said.append("refused" if "forked" in str(reason) else str(reason))
            except BaseException as reason:  # the parent reports it
                said.append(repr(reason))
        os.write(write, json.dumps(said).encode())
        os._exit(0)
    os.close(write)
    assert os.waitpid(pid, 0)[1] == 0
    with os.fdopen(read) as answer:
        assert set(json.loads(answer.read())) == {"refused"}
    node.close()
