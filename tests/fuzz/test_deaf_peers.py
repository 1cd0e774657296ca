"""Peers that ask and never take the answers, on every path that needs answers: they make no progress.

The owner goes on serving other peers, keeps bounded memory for deaf peers, and answers them when they listen again.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.procs import peer
from tests.procs.children import Child
from tests.procs.peer import World

PATHS = {
    "ring": {"WEFT_ENGINE": "thread", "WEFT_CMA": "0"},
    "strict": {"WEFT_ENGINE": "thread", "WEFT_ISOLATION": "strict"},
    "tcp": {
        "WEFT_ENGINE": "thread",
        "WEFT_SHM": "0",
        "WEFT_SECRET": "of the tests, for peers that do not listen",
        "WEFT_LISTEN": "tcp://127.0.0.1:0",
    },
}
NBYTES, KEY, READS = 1 << 18, 7, 400
KEPT_KIB_MAX = 48 << 10  # by the owner, for two deaf peers that have asked for 200 MiB


def read_all(world: World, owner: str, count: int) -> None:
    """Post that many reads of the whole region without reading the completions."""
    world.idle = True
    side = world.side
    to = side.av.insert(owner)
    world.more["buffer"] = np.zeros(NBYTES, np.uint8)
    for _ in range(count):
        side.ep.read(world.more["buffer"], src_addr=to, addr=0, key=KEY)


def listen(world: World, count: int) -> tuple[int, bool]:
    return len(world.side.done(count)), bool((world.more["buffer"] == 0xEE).all())


def write_and_read(world: World, owner: str, rounds: int) -> bool:
    side = world.side
    to = side.av.insert(owner)
    for i in range(rounds):
        word, back = np.full(8, i % 251, np.uint8), np.zeros(8, np.uint8)
        side.ep.write(word, dest_addr=to, addr=NBYTES, key=KEY)
        side.done()
        side.ep.read(back, src_addr=to, addr=NBYTES, key=KEY)
        side.done()
        if bytes(word) != bytes(back):
            return False
    return True


def resident_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))


@pytest.mark.procs
@pytest.mark.parametrize("path", PATHS)
def test_peers_that_never_read_cost_the_owner_little(path: str) -> None:
    settings = PATHS[path]
    manual = {**settings, "WEFT_ENGINE": "manual"}
    with Child(**settings) as owner, Child(**manual) as one, Child(**manual) as two, Child(**settings) as other:
        name = owner.call(peer.open_side)
        owner.call(peer.expose, "r", NBYTES + 8, KEY, True, 0xEE)
        other.call(peer.open_side)
        assert other.call(write_and_read, name, 10)
        before = resident_kib(owner.pid)
        for deaf in (one, two):
            deaf.call(peer.open_side, {"tx_size": READS, "size": 2 * READS})
            assert deaf.call(write_and_read, name, 1)  # connected: a greeting has a deadline, answers have none
            deaf.call(read_all, name, READS)
        assert other.call(write_and_read, name, 300)
        grown = resident_kib(owner.pid) - before
        assert grown < KEPT_KIB_MAX, f"the owner keeps {grown} KiB for two peers that do not read"
        for deaf in (one, two):
            assert deaf.call(listen, READS) == (READS, True)
