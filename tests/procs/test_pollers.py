"""More polling processes than cores: everybody still makes progress."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.patience import Patience
from tests.procs import peer
from tests.procs.children import Child
from tests.procs.peer import World

from weft import fi

pytestmark = [pytest.mark.procs, pytest.mark.alone]

RATE_MIN = 200  # round trips a second: thousands are usual, a scheduler's time slice a turn would be some 60
RATE_OF_CPU_MIN = 1000  # round trips a second of processor time: 20,000 and more are usual, with such slices some 130
SECONDS = 1.2
WINDOW_S = 0.1


@dataclass
class Bounced:
    """Of one side: its turns, the processor time of its process for them, round trips a second in each window."""

    turns: int
    cpu_s: float
    rates: list[float]


def bounce(world: World, name: str, first: bool, how: str, seconds: float) -> Bounced:
    """Exchange turns with a peer that does the same. `how`: poll memory, or the completion queue."""
    side = world.side
    to = side.av.insert(name)
    memory = world.arrays["memory"]
    word = memory.view(np.uint64)
    out = np.zeros(1, np.uint64)
    turns, window_turns = 0, 1
    patience = Patience(60)  # the first turn includes finding each other
    began = window = cpu = 0.0
    rates: list[float] = []
    while True:
        if not first or turns:
            looks = 0
            while True:
                found = side.cq.read()
                if how == "memory":
                    came = int(word[0]) == turns + 1 - (1 if first else 0)
                else:
                    came = any(e.flags & fi.REMOTE_CQ_DATA for e in found)
                if came:
                    break
                looks += 1
                assert looks % 1000 or not patience.over, f"turn {turns} never came: {side}"
        now = time.monotonic()
        if turns == 1:
            began = window = now
            cpu = time.process_time()
        elif turns and now > window + WINDOW_S:
            rates.append((turns - window_turns) / (now - window))
            window, window_turns = now, turns
        last = first and turns > 1 and now > began + seconds
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
    return Bounced(turns - 1, time.process_time() - cpu, rates)


def busy_s() -> float:
    """Processor time that all programs of the machine have had, and what other machines took from it."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("how", ["memory", "queue"])
def test_four_pollers_make_progress(how: str) -> None:
    """Two pairs exchange 8 bytes as quickly as they can, all four polling: no turn costs its pair a time slice.

    That is processor time, of which other programs take none. Where they leave the machine to the four, the clock
    counts too: nobody sleeps through its turn.
    """
    children = [Child() for _ in range(4)]
    try:
        names = []
        for child in children:
            names.append(child.call(peer.open_side))
            child.call(peer.expose, "memory", 64, 5, False)
        before, own, begun = busy_s(), os.times(), time.monotonic()
        calls = [child.start(bounce, names[i ^ 1], i % 2 == 0, how, SECONDS) for i, child in enumerate(children)]
        found = [call.result(90) for call in calls]
        took, now = time.monotonic() - begun, os.times()
        others = busy_s() - before - sum(one.cpu_s for one in found) - sum(now[:2]) + sum(own[:2])
    finally:
        for child in children:
            child.destroy()
    rates = [statistics.median(one.rates) for one in found[::2]]
    costs = [found[i].turns / (found[i].cpu_s + found[i + 1].cpu_s) for i in (0, 2)]
    share = others / took / len(os.sched_getaffinity(0))
    print(f"{how}: round trips a second of two pairs at once: by the clock {rates[0]:,.0f}, {rates[1]:,.0f}")
    print(f"of processor time {costs[0]:,.0f}, {costs[1]:,.0f}; other programs took {share:.0%} of the processors")
    assert min(costs) > RATE_OF_CPU_MIN
    if share < 0.1:
        assert min(rates) > RATE_MIN
