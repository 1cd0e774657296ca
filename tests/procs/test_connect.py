"""Finding each other: at the same instant, and again after one side is another process."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.procs import peer
from tests.procs.children import Child
from tests.procs.peer import World

from weft import fi

pytestmark = pytest.mark.procs


def write_at(world: World, name: str, key: int, instant: float, pause: float) -> list[int]:
    """Post a write at an instant; look at the network only `pause` later. Then three more. The errors of all."""
    to = world.side.av.insert(name)
    while time.monotonic() < instant:
        time.sleep(0)
    world.side.ep.write(b"hello 0", dest_addr=to, addr=0, key=key)
    time.sleep(pause)
    errors = [getattr(world.side.outcome(), "err", 0)]
    for i in range(1, 4):
        world.side.ep.write(b"hello %d" % i, dest_addr=to, addr=0, key=key)
        errors.append(getattr(world.side.outcome(), "err", 0))
    return errors


@pytest.mark.parametrize("engine", ["thread", "manual"])
@pytest.mark.parametrize("pause", [0.0, 0.2])
def test_connect_of_two_to_each_other_at_once_works(engine: str, pause: float) -> None:
    """Both greetings are under way before either is answered (with manual progress and a pause: always)."""
    with Child(WEFT_ENGINE=engine) as a, Child(WEFT_ENGINE=engine) as b:
        names = [child.call(peer.open_side) for child in (a, b)]
        keys = [child.call(peer.expose, "memory", 64, 5, False)[0] for child in (a, b)]
        instant = time.monotonic() + 0.1
        calls = [child.start(write_at, names[1 - i], keys[1 - i], instant, pause) for i, child in enumerate((a, b))]
        outcomes = [call.result() for call in calls]
        time.sleep(0.05)  # a connection that is one too many has gone by now
        instant = time.monotonic()
        outcomes += [child.call(write_at, names[1 - i], keys[1 - i], instant, 0.0) for i, child in enumerate((a, b))]
        assert outcomes == [[fi.SUCCESS] * 4] * 4
        assert [child.call(peer.contents, "memory", 0, 7) for child in (a, b)] == [b"hello 3"] * 2


def endpoints(world: World, count: int) -> list[str]:
    """More endpoints of the domain."""
    side = world.side
    made: list[Any] = []
    for _ in range(count):
        ep = side.domain.endpoint(side.info)
        ep.bind(side.cq, fi.TRANSMIT | fi.RECV)
        ep.bind(side.av)
        ep.enable()
        made.append(ep)
    world.more["endpoints"] = made
    return [str(ep.getname()) for ep in made]


def close_endpoints(world: World) -> None:
    for ep in world.more.pop("endpoints"):
        ep.close()


def write_to_all(world: World, names: list[str], key: int) -> int:
    for name in names:
        world.side.ep.write(b"x", dest_addr=world.side.av.insert(name), addr=0, key=key)
    return len(world.side.done(len(names)))


@pytest.mark.parametrize("engine", ["thread", "manual"])
def test_connect_to_many_endpoints_of_one_process_at_once(engine: str) -> None:
    """Greetings to all of them are under way together; one connection is enough in the end, and stays."""
    with Child(WEFT_ENGINE=engine) as a, Child(WEFT_ENGINE=engine) as b:
        for child in (a, b):
            child.call(peer.open_side)
            child.call(peer.expose, "memory", 64, 5, False)
        names = [child.call(endpoints, 12) for child in (a, b)]
        for _ in range(3):
            calls = [child.start(write_to_all, names[1 - i], 5) for i, child in enumerate((a, b))]
            assert [call.result() for call in calls] == [12, 12]
        for child in (a, b):
            child.call(close_endpoints)
