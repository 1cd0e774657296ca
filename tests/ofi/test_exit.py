"""The end of an interpreter whose libfabric objects are open, with operations under way: it ends as it was asked to."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests import patience
from tests.ofi.support import WATCHDOG_S

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.procs

BUSY = """
import atexit, gc, sys, threading
import numpy as np
from tests.ofi.support import offer, open_node, pair, post
from weft import fi

class Context:
    def __del__(self):
        self.node.cq.outstanding()  # the queue is still an object, open or closed

def busy(node):
    '''Receives, messages and remote writes to the node itself, that nobody has waited for.'''
    me, memory = node.to(node), np.zeros(1 << 16, np.uint8)
    mr = node.register(memory)
    for i in range(20):
        context = Context()
        context.node = node
        node.ep.trecv(memory[:64], mr, fi.ADDR_UNSPEC, 1, 0, context)
        post(lambda: node.ep.tsend(memory[64:128], mr, me, 2, context), node)
        post(lambda: node.ep.write(memory[:4096], mr, me, node.place(mr), mr.key, context), node)
    assert node.ep.outstanding() >= 20
    return node

node = busy(open_node(offer(sys.argv[1])))
print("busy", flush=True)
"""

WAITS = """
waiting = open_node(offer(sys.argv[1]), cq={"wait_obj": fi.WAIT_UNSPEC})
started = threading.Event()

def wait():
    started.set()
    while True:
        waiting.cq.sread(1, timeout=None)

threading.Thread(target=wait, daemon=True).start()
started.wait()
"""

POSTS = """
def posts():
    while True:
        try:
            node.ep.trecv(bytearray(8), tag=5)
        except fi.FabricError:
            node.cq.read()

if not node.domain.mr_mode & fi.MR_LOCAL:
    for _ in range(3):
        threading.Thread(target=posts, daemon=True).start()
"""

ENDS = {
    "returns": ("", 0),
    "exits": ("sys.exit(3)", 3),
    "raises": ("raise KeyboardInterrupt", -signal.SIGINT),
    "in_a_cycle": ("cycle = [node]; cycle.append(cycle); del node, cycle", 0),
    "objects_of_their_own": ("ep, cq = node.ep, node.cq; del node; gc.collect()", 0),
    "at_exit": ("atexit.register(lambda: busy(open_node(offer(sys.argv[1]))))", 0),
    "closes_at_exit": ("atexit.register(node.close)", 0),
    "queue_waits_in_a_thread": (WAITS, 0),
    "threads_post": (POSTS, 0),
}


@pytest.mark.parametrize("end", ENDS)
def test_process_ends_with_operations_under_way(provider: str, end: str) -> None:
    code, expected = ENDS[end]
    done = patience.run(
        [sys.executable, "-X", "faulthandler", "-c", BUSY + code, provider],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT)])},
        cwd=ROOT,
        timeout=WATCHDOG_S,
    )
    assert done.stdout == "busy\n", done.stderr
    assert done.returncode == expected, done.stderr
    assert "Fatal" not in done.stderr
    assert "Segmentation" not in done.stderr
