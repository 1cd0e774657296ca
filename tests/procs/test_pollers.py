"""More polling processes than cores: everybody still makes progress."""

from __future__ import annotations

import time

import numpy as np
import pytest
from tests.procs import peer
from tests.procs.children import Child
from tests.procs.peer import World

from weft import fi

pytestmark = [pytest.mark.procs, pytest.mark.alone]

RATE_MIN = 200  # round trips a second: thousands are usual, a scheduler's time slice a turn would be some 60
SECONDS = 1.2


def bounce(world: World, name: str, first: bool, how: str, seconds: float) -> float:
    """Round trips a second with a peer that does the same. `how`: poll memory, or the completion queue."""
    side = world.side
    to = side.av.insert(name)
    memory = world.arrays["memory"]
    word = memory.view(np.uint64)
    out = np.zeros(1, np.uint64)
    turns = 0
    start = time.monotonic()
    deadline = start + 30  # generous: the first turn includes finding each other
    began = 0.0
    while True:
        if not first or turns:
            while True:
                found = side.cq.read()
                if how == "memory":
                    came = int(word[0]) == turns + 1 - (1 if first else 0)
                else:
                    came = any(e.flags & fi.REMOTE_CQ_DATA for e in found)
                if came:
                    break
                assert time.monotonic() < deadline, f"turn {turns} never came: {side}"
        if turns == 1:
            began = time.monotonic()
            deadline = began + seconds + 30
        last = first and turns > 1 and time.monotonic() > began + seconds
        out[0] = turns + 1
        if how == "memory":
            world.side.ep.inject_write(out, dest_addr=to, addr=8 if last else 0, key=5)
            if last:
                side.ep.inject_write(out, dest_addr=to, addr=0, key=5)
        else:
            side.ep.inject_writedata(out, data=int(last), dest_addr=to, addr=8 if last else 0, key=5)
        turns += 1
        if last or (not first and int(word[1])):
            break
    return (turns - 1) / (time.monotonic() - began)


@pytest.mark.parametrize("how", ["memory", "queue"])
def test_four_pollers_make_progress(how: str) -> None:
    """Two pairs exchange 8 bytes as quickly as they can, all four polling."""
    children = [Child() for _ in range(4)]
    try:
        names = []
        for child in children:
            names.append(child.call(peer.open_side))
            child.call(peer.expose, "memory", 64, 5, False)
        calls = [child.start(bounce, names[i ^ 1], i % 2 == 0, how, SECONDS) for i, child in enumerate(children)]
        rates = [call.result(90) for call in calls]
    finally:
        for child in children:
            child.destroy()
    print(f"{how}: " + ", ".join(f"{rate:,.0f}" for rate in rates[::2]) + " round trips a second, two pairs at once")
    assert min(rates[::2]) > RATE_MIN
