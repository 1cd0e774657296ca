"""A cached translation is never stale while memory changes concurrently, with each monitor in turn.

Threads unmap, replace, move and drop memory with libc's own functions, search for it and register it. The truth is the
memory itself, or /proc/self/maps. The application's duties under fi_mr(3) are kept: nobody searches for a page while it
is just being changed, which a lock for each slot sees to; everything else is concurrent.

Each run is a process of its own, because the monitor is chosen once a process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import patience

ROOT = Path(__file__).parents[2]
WATCHDOG_S = 120


def fire(seed: int, monitor: str, program: str, **more: int) -> dict[str, Any]:
    from weft import _nic

    works, why = _nic.probe_monitor(monitor)[1:]
    if not works:
        pytest.skip(why)
    done = patience.run(
        [sys.executable, "-m", "tests.memory.fire", program, json.dumps({"seed": seed, **more})],
        env={**os.environ, "FI_MR_CACHE_MONITOR": monitor, "PYTHONFAULTHANDLER": "1"},
        timeout=WATCHDOG_S,
        cwd=ROOT,
    )
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}\n{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("monitor", ["memhooks", "userfaultfd"])
def test_fire_no_hit_contradicts_the_system(monitor: str, seed: int) -> None:
    """Each hit agrees with a fresh look into /proc/self/maps."""
    found = fire(seed, monitor, "maps", threads=3, steps=400)
    assert found["contradictions"] == []
    assert found["hits"] > 0
    assert found["invalidations"] > 0


@pytest.mark.parametrize("monitor", ["memhooks", "userfaultfd"])
def test_fire_no_hit_contradicts_the_memory(monitor: str, seed: int) -> None:
    """Each hit agrees with the page it describes; small limits evict all the time."""
    found = fire(seed, monitor, "contents", threads=3, steps=3000, count_max=16)
    assert found["contradictions"] == []
    assert found["hits"] > 0
    assert found["invalidations"] > 0


@pytest.mark.parametrize("monitor", ["memhooks", "userfaultfd"])
def test_fire_puts_land_in_the_memory_that_is_there(monitor: str, seed: int) -> None:
    """Another process writes to the memory registered after a change: Weft's pages, or pages mapped over them."""
    found = fire(seed, monitor, "puts", steps=150)
    assert found["contradictions"] == []
    assert found["direct"] > 0
    assert found["foreign"] > 0
