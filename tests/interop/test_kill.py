"""A rank is killed at a random instant of attach_all: the other ranks end, attached or with an error that names it.

A quarter of WEFT_KILL_ROUNDS is the number of rounds, which take seconds (default 3); WEFT_SEED sets the instants.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from tests.interop import ranks

from weft.interop.store import FileStore

pytestmark = [pytest.mark.procs, pytest.mark.kill, pytest.mark.timeout(3000)]

PROGRAM = """
meet("ready")
try:
    peers = attach_all({"a": weft.zeros(1000), "b": weft.zeros(10)}, timeout=3)
except OSError as reason:
    say(type(reason).__name__, str(reason))
else:
    say("attached")
    peers.close(3)
    say("closed")
"""


def test_rank_killed_at_any_instant_ends_no_other_and_is_named(rng: random.Random, tmp_path: Path) -> None:
    """The other ranks: TimedOut (it did not come), ConnectionReset (it came and died), or attached, and then closed."""
    for number in range(max(int(os.environ.get("WEFT_KILL_ROUNDS") or 0) // 4, 3)):
        folder = tmp_path / str(number)
        store = FileStore(folder)
        processes = [ranks.start(PROGRAM, rank, 3, folder) for rank in range(3)]
        try:
            store.wait([f"ready.{rank}" for rank in range(3)], 60.0)
            time.sleep(rng.uniform(0.0, 0.5))  # the instant; nothing depends on it
            processes[1].kill()
        finally:
            ended = ranks.finish(processes)
        for rank in (0, 2):
            said = ended[rank].said
            assert ended[rank].status == 0, ended[rank].err
            if said[0] == ["attached"]:
                assert said[1:] == [["closed"]]
            else:
                kind, text = said[0]
                assert kind in ("TimedOut", "ConnectionReset"), text
                assert "ranks 1" in text or "rank 1 " in text or "in time: 1" in text, text
