"""kill -9 during one large copy by either process: the other survives and nothing stays locked.

The survivor kills once it sees bytes of a copy. A round whose copy had ended by then shows nothing and is repeated
with a new victim.
"""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from tests.patience import Patience
from tests.procs import peer
from tests.procs.children import CALL_S, Child
from tests.procs.peer import World

from weft import fi

pytestmark = [pytest.mark.kill, pytest.mark.procs, pytest.mark.sweep]

NBYTES = 1 << 26
KEY, SMALL = 3, 4
MIDDLE = NBYTES // 2  # the byte to watch: some memcpy() go from the end to the start
ROUNDS_MAX = 20
PATHS = {
    "direct": {},
    "foreign": {},
    "ring": {"WEFT_CMA": "0"},
    "strict": {"WEFT_ISOLATION": "strict"},
    "tcp": {"WEFT_SHM": "0", "WEFT_LISTEN": "tcp://127.0.0.1:0", "WEFT_SECRET": "of the tests, killed in a copy"},
}


def expose(world: World, foreign: bool) -> str:
    """A region of zeros to copy to and from, and a small one; the endpoint's name."""
    peer.open_side(world)
    peer.expose(world, "large", NBYTES, KEY, foreign)
    peer.expose(world, "small", 8, SMALL, foreign)
    return world.side.name


def prepare(world: World, name: str, foreign: bool) -> None:
    """Connect, and have a buffer of ones."""
    peer.open_side(world)
    world.arrays["buffer"] = peer.memory(world.side, NBYTES, foreign, 1)
    world.more["to"] = world.side.av.insert(name)
    world.side.ep.write(b"x", dest_addr=world.more["to"], addr=0, key=SMALL)
    world.side.done()


def write_all(world: World) -> None:
    world.side.ep.write(world.arrays["buffer"], dest_addr=world.more["to"], addr=0, key=KEY)
    world.side.done()


def write_until_killed(world: World) -> None:
    """Copy ones, then twos, then ones ... until killed: a kill then falls into a copy, not beside it."""
    buffers = world.arrays["buffer"], peer.memory(world.side, NBYTES, False, 2)
    while True:
        for buffer in buffers:
            world.side.ep.write(buffer, dest_addr=world.more["to"], addr=0, key=KEY)
            world.side.done()


def kill_when_written(world: World, pid: int) -> None:
    """Kill the initiator once bytes arrive."""
    large = world.arrays["large"]
    deadline = Patience(CALL_S / 2)
    while not large[MIDDLE]:
        assert not deadline.over, "nothing arrives"
    os.kill(pid, signal.SIGKILL)


def settle(world: World) -> list[int]:
    """Close the large region, which waits for peers that copy; returns its bytes. Then open it again."""
    peer.withdraw(world, "large")
    large = world.arrays["large"]
    found = np.flatnonzero(np.bincount(large, minlength=256)).tolist()
    large[:] = 0
    world.mrs["large"] = world.side.region(large, KEY)
    return found


def kill_when_read(world: World, pid: int) -> tuple[int, int]:
    """Read the large region, kill its owner once bytes come; (error, bytes that came before the end)."""
    side, buffer = world.side, world.arrays["buffer"]
    deadline = Patience(CALL_S / 2)
    side.ep.read(buffer, src_addr=world.more["to"], addr=0, key=KEY)
    while buffer[MIDDLE]:
        peer.progress()
        assert not deadline.over, "nothing arrives"
    os.kill(pid, signal.SIGKILL)
    error = int(getattr(side.outcome(), "err", 0))
    return error, NBYTES - int(np.count_nonzero(buffer))


@pytest.mark.parametrize("path", PATHS)
def test_initiator_killed_in_a_copy_leaves_its_target_whole(path: str) -> None:
    """The region closes, opens again, and serves the next initiator; what arrived is old bytes or new ones."""
    settings = {"WEFT_ENGINE": "thread", **PATHS[path]}
    foreign = path != "direct"
    with Child(**settings) as owner:
        name = owner.call(expose, foreign)
        for _ in range(ROUNDS_MAX):
            with Child(**settings) as initiator:
                initiator.call(prepare, name, foreign)
                write = initiator.start(write_all)
                owner.call(kill_when_written, initiator.pid)
                assert initiator.wait() == -signal.SIGKILL
                del write
                initiator.destroy()
            arrived = owner.call(settle)
            assert set(arrived) <= {0, 1, 2}
            if len(arrived) > 1:
                break
        else:
            pytest.fail(f"{ROUNDS_MAX} kills fell between two copies")
        with Child(**settings) as initiator:
            initiator.call(prepare, name, foreign)
            initiator.call(write_all)
        assert owner.call(settle) == [1]


@pytest.mark.parametrize("path", ["ring", "strict", "tcp"])
def test_owner_killed_in_a_copy_ends_the_read_of_its_peer(path: str) -> None:
    """The owner's engine copies: the read ends with ECONNRESET, and the initiator still works."""
    settings = {"WEFT_ENGINE": "thread", **PATHS[path]}
    with Child(**settings) as initiator:
        for number in range(ROUNDS_MAX):
            with Child(**settings) as owner:
                name = owner.call(expose, True)
                initiator.call(prepare if number == 0 else connect_again, name, True)
                error, came = initiator.call(kill_when_read, owner.pid)
                assert owner.wait() == -signal.SIGKILL
                owner.destroy()
            if error:
                break
            assert came == NBYTES
        else:
            pytest.fail(f"{ROUNDS_MAX} copies had ended before the kill")
        assert error == fi.ECONNRESET
        assert came < NBYTES
        with Child(**settings) as owner:
            initiator.call(connect_again, owner.call(expose, True), True)
            initiator.call(write_all)
            assert owner.call(settle) == [1]


def connect_again(world: World, name: str, foreign: bool) -> None:
    """As `prepare`, with the side and the buffer of before."""
    world.arrays["buffer"][:] = 1
    world.more["to"] = world.side.av.insert(name)
    world.side.ep.write(b"x", dest_addr=world.more["to"], addr=0, key=SMALL)
    world.side.done()
