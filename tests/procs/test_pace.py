"""A poll yields the core from time to time, but not while it serves its peers.

The target has no engine thread, and under strict isolation each write reaches it as a frame, which a poll serves.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.procs import peer
from tests.procs.children import Child
from tests.procs.peer import World
from tests.procs.test_idle_target import NBYTES, Two

from weft import fi, ucp

pytestmark = pytest.mark.procs

ROUNDS, POLLS = 100, 40  # fewer polls than a core that nobody else wants gets between two yields
YIELDS = "int yields; int sched_yield(void) { ++yields; return 0; }"


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for LD_PRELOAD that counts yields."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    out = tmp_path_factory.mktemp("yields") / "libyields.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", out, "-xc", "-"], input=YIELDS.encode(), check=True)
    return out


def open_target(world: World) -> str:
    world.idle = True
    name = peer.open_side(world, {"counters": (fi.READ,)})
    peer.expose(world, "region", NBYTES, 7, foreign=False, fill=0xEE)
    world.more["worker"] = ucp.Context().worker_create()
    return name


def yields_of_polls(world: World, what: str) -> int:
    """Poll in vain POLLS times; returns how often that yielded."""
    yields = ctypes.c_int.in_dll(ctypes.CDLL(None), "yields")
    before = yields.value
    counter = next(iter(world.side.counters.values()))
    poll = {"cq": world.side.cq.read, "cntr": counter.read, "ucp": world.more["worker"].progress}[what]
    for _ in range(POLLS):
        with contextlib.suppress(fi.Again):
            poll()
    return yields.value - before


@pytest.mark.parametrize("what", ["cq", "cntr", "ucp"])
def test_poll_that_serves_a_peer_does_not_yield(preloaded: Path, what: str) -> None:
    settings = {"WEFT_ENGINE": "manual", "WEFT_ISOLATION": "strict"}
    with Child(**settings, LD_PRELOAD=str(preloaded)) as target, Child(**settings) as me:
        two = Two(me, target, target.call(open_target))
        me.call(peer.open_side)
        two.meet()
        in_vain = sum(target.call(yields_of_polls, what) for _ in range(ROUNDS))
        serving = 0
        for i in range(ROUNDS):
            two.post(("write", {"name": f"w{i}", "size": 8}))
            serving += target.call(yields_of_polls, what)
        assert in_vain >= ROUNDS * POLLS // 64
        assert serving < in_vain // 4  # a few: a yield that took long makes the next ones come sooner
        assert two.target_bytes()[:8] == b"\x11" * 8
