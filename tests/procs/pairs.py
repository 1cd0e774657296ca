"""Two endpoints on any path, the functions of facts at the other side, and the list of facts."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tests.patience import Patience
from tests.procs import peer
from tests.procs.children import CALL_S, Child
from tests.procs.peer import RW, Side, World

from weft import fi

LARGE = 64 << 20
U64_SUM: dict[str, Any] = {"datatype": fi.UINT64, "op": fi.SUM}
FACTS: dict[str, Callable[[Pair], None]] = {}
CLAUSES: dict[str, tuple[str, ...]] = {}
next_key = itertools.count(1000)


def fact(*clauses: str) -> Callable[[Callable[[Pair], None]], Callable[[Pair], None]]:
    def keep(function: Callable[[Pair], None]) -> Callable[[Pair], None]:
        FACTS[function.__name__] = function
        CLAUSES[function.__name__] = clauses
        return function

    return keep


def cases(facts: Iterable[str], clauses: Mapping[str, tuple[str, ...]]) -> list[Any]:
    """A case for each fact, with its clauses and its name, for `parametrize`."""
    return [
        pytest.param(
            name, marks=[pytest.mark.fact(name), *([pytest.mark.clause(*clauses[name])] if clauses[name] else [])]
        )
        for name in facts
    ]


class Pair:
    """This side and a peer, in another process or (path self) at another endpoint of this one."""

    def __init__(self, path: str, inside: Sequence[str] = ()) -> None:
        self.path = path
        self.foreign = path in ("foreign", "ring")
        self.target: Child | None = None
        self.other = World()
        if path != "self":
            settings = {k: v for k, v in os.environ.items() if k.startswith("WEFT_")}
            self.target = Child(inside, **settings)
            self.target.progress = peer.progress
        self.me = Side(counters=(fi.READ, fi.WRITE), wait_obj=fi.WAIT_FD)
        # Two remote counters, so that the target counts; a second endpoint without them is `quiet`.
        keywords = {"counters": (fi.REMOTE_READ, fi.REMOTE_WRITE)}
        self.name = self.there(peer.open_side, keywords)
        self.peer = self.me.av.insert(self.name)
        self.there(meet, self.me.name)

    def there(self, function: Callable[..., Any], *args: Any) -> Any:
        if self.target is None:
            return function(self.other, *args)
        return self.target.call(function, *args)

    def expose(self, nbytes: int, fill: int = 0xEE, access: int = RW, flags: int = 0) -> Remote:
        key = next(next_key)
        self.there(peer.expose, key, nbytes, key, self.foreign, fill, access, flags)
        return Remote(self, key, nbytes)

    def local(self, nbytes: int, seed: int = 1) -> Any:
        """Random bytes at this side, in Weft's memory or NumPy's as on the other side."""
        array = peer.memory(self.me, nbytes, self.foreign)
        array[:] = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
        return array

    def close(self) -> None:
        if self.target is None:
            peer.close_side(self.other)
        else:
            code = self.target.close()
            assert code == 0, code
        self.me.close()


class Remote:
    """A region at the other side."""

    def __init__(self, pair: Pair, key: int, nbytes: int) -> None:
        self.pair, self.key, self.nbytes = pair, key, nbytes

    def bytes(self, start: int = 0, stop: int | None = None) -> bytes:
        found: bytes = self.pair.there(peer.contents, self.key, start, stop)
        return found

    def wait(self, expected: bytes, start: int = 0) -> None:
        """Wait until the region holds these bytes, for operations without a completion at this side."""
        deadline = Patience(CALL_S / 2)
        while self.bytes(start, start + len(expected)) != expected:
            assert not deadline.over, "the bytes did not arrive"
            peer.progress()

    def close(self) -> None:
        self.pair.there(peer.withdraw, self.key)


# ---- at the other side -----------------------------------------------------------------------------------------------


def meet(world: World, name: str) -> int:
    world.more["initiator"] = world.side.av.insert(name)
    return int(world.more["initiator"])


def events(world: World, count: int) -> list[tuple[Any, int]]:
    """`count` completions of the other side, with their sources."""
    found: list[tuple[Any, int]] = []
    while len(found) < count:
        found += [(tuple(e), source) for e, source in world.side.cq.sreadfrom(count - len(found), timeout=CALL_S / 2)]
    return found


def no_events(world: World) -> bool:
    return world.side.silent()


def count(world: World, flag: int) -> int:
    return int(world.side.counters[flag].read())


def wait_count(world: World, flag: int, value: int) -> int:
    world.side.counters[flag].wait(value, timeout=CALL_S / 2)
    return int(world.side.counters[flag].read())


def expose_vector(world: World, key: int, sizes: list[int], foreign: bool) -> None:
    parts = [peer.memory(world.side, n, foreign, 0xEE) for n in sizes]
    world.arrays[key] = parts
    mr = world.side.domain.mr_regv(parts, RW, requested_key=key)
    world.mrs[key] = mr
    world.side.regions.append(mr)


def vector(world: World, key: int) -> bytes:
    return b"".join(bytes(part) for part in world.arrays[key])


def counted_region(world: World, key: int, nbytes: int, foreign: bool) -> None:
    array = peer.memory(world.side, nbytes, foreign, 0)
    mr = world.side.domain.mr_reg(array, RW, requested_key=key)
    counter = world.side.domain.cntr_open()
    mr.bind(counter, fi.REMOTE_WRITE)
    mr.enable()
    world.more[f"counter {key}"] = (mr, counter, array)


def region_count(world: World, key: int, value: int) -> int:
    """What the counter says once it has reached `value`."""
    counter = world.more[f"counter {key}"][1]
    counter.wait(value, timeout=CALL_S / 2)
    return int(counter.read())


def drop_counted(world: World, key: int) -> None:
    mr, counter, _ = world.more.pop(f"counter {key}")
    counter.close()
    mr.close()


def state(world: World, key: int) -> str:
    return str(world.mrs[key].state)


def works(world: World) -> bool:
    """Check that the other side's endpoint still works: it writes to itself."""
    side = world.side
    mine = side.domain.alloc(8, np.uint8)
    mine[:] = 0
    with side.domain.mr_reg(mine, RW, requested_key=999_999):
        side.ep.write(b"12345678", dest_addr=side.av.insert(side.name), addr=0, key=999_999)
        side.done()
    return bytes(mine) == b"12345678"


def serve_a_while(world: World) -> None:
    for _ in range(200):
        peer.progress()
        time.sleep(0.0005)
