"""Closing things under traffic: from another process, and from other threads of this one.

Never a crash, always a documented error, and memory that was given back is never written by a late peer.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.patience import Patience
from tests.procs import peer
from tests.procs.children import CALL_S, Child, run
from tests.procs.peer import RW, Side, World

from weft import fi

pytestmark = pytest.mark.procs

NBYTES = 1 << 20
MET, LEAST = 6, 100
PATHS = {
    "direct": {},
    "foreign": {},
    "ring": {"WEFT_CMA": "0"},
    "strict": {"WEFT_ISOLATION": "strict"},
}


def stop(world: World) -> None:
    pass


def hammer(world: World, name: str, key: int) -> dict[int, int]:
    """Write 0xBB to a region until the stop command; returns how the operations ended."""
    side = world.side
    to = side.av.insert(name)
    data = np.full(NBYTES, 0xBB, np.uint8)
    rng = random.Random(3)
    endings: dict[int, int] = {}
    out = 0

    def collect(timeout: float) -> None:
        nonlocal out
        with contextlib.suppress(fi.Again):
            try:
                found = side.cq.sread(64, timeout=timeout) if timeout else side.cq.read()
                endings[0] = endings.get(0, 0) + len(found)
                out -= len(found)
            except fi.Available:
                err = side.cq.readerr().err
                endings[err] = endings.get(err, 0) + 1
                out -= 1

    while not world.asked():
        n = rng.choice((8, 4096, 100_000, NBYTES))
        with contextlib.suppress(fi.Again):
            if rng.random() < 0.1:
                side.ep.atomic(
                    data[:8].view(np.uint64), dest_addr=to, addr=0, key=key, datatype=fi.UINT64, op=fi.ATOMIC_WRITE
                )
            else:
                side.ep.write(data, dest_addr=to, addr=rng.randrange(NBYTES - n + 1), key=key, len=n)
            out += 1
        collect(0.05 if out >= 8 else 0)
    deadline = Patience(CALL_S / 2)
    while out:
        assert not deadline.over, f"{out} operations never ended: {side}"
        collect(0.05)
    return endings


def close_and_reuse(world: World, rounds: int, foreign: bool, seed: int) -> int:
    """Open a region, let the peer write for a random while, close it, use the memory for something else, look at it.

    More rounds than that, until the peer has written in `MET` of them: on a busy machine it seldom comes to write.
    """
    side = world.side
    rng = random.Random(seed)
    memory = peer.memory(side, NBYTES, foreign)
    number, written, limit = 0, 0, Patience(CALL_S / 2)
    while number < rounds or (written < MET and not limit.over):
        memory[:] = 0
        mr = side.domain.mr_reg(memory, RW, requested_key=4)
        end = time.monotonic() + rng.uniform(0, 0.01)
        while time.monotonic() < end:
            peer.progress()
        mr.close()
        written += bool(memory.any())
        pattern = number % 0xBB
        memory[:] = pattern
        end = time.monotonic() + rng.uniform(0, 0.006)
        while time.monotonic() < end:
            peer.progress()
            time.sleep(0.0002)
        assert (memory == pattern).all(), f"round {number}: written after close, {int((memory != pattern).sum())} B"
        number += 1
    return written


@pytest.mark.clause("mr.close.active-ops", "mr.close.remote-error")
@pytest.mark.parametrize("engine", ["thread", "manual"])
@pytest.mark.parametrize("path", PATHS)
def test_mr_close_under_traffic_keeps_late_writes_out(path: str, engine: str, rng: random.Random) -> None:
    """fi_mr(3) fi_close: later writes fail, and the memory belongs to its owner again."""
    with Child(WEFT_ENGINE=engine, **PATHS[path]) as owner, Child(WEFT_ENGINE=engine, **PATHS[path]) as writer:
        name = owner.call(peer.open_side)
        writer.call(peer.open_side)
        call = writer.start(hammer, name, 4)
        written = owner.call(close_and_reuse, 60, path in ("foreign", "ring"), rng.getrandbits(32))
        writer.start(stop)
        endings = call.result()
        writer.receive("stop", CALL_S)
    print(f"{path} {engine}: {endings}, the peer came through in {written} rounds")
    assert set(endings) <= {0, fi.EKEYREJECTED, fi.EACCES}, endings
    assert endings.get(fi.EKEYREJECTED)
    assert written >= MET, "the traffic never met an open region: nothing was tested"


def churn(world: World, what: str, count: int, seed: int, address: str) -> None:
    """Close and reopen the objects that the peer uses: the endpoint, or everything down to the fabric."""
    rng = random.Random(seed)
    for _ in range(count):
        end = time.monotonic() + rng.uniform(0, 0.02)
        while time.monotonic() < end:
            peer.progress()
            time.sleep(0.0005)
        side = world.side
        if what == "domain":
            side.close()
            world.side = Side(address=address)
            world.side.region(np.zeros(NBYTES, np.uint8), 4)
            continue
        side.ep.close()
        if what == "queue":  # and the queue that immediate data goes to
            side.cq.close()
            side.cq = side.domain.cq_open()
        side.ep = side.domain.endpoint(side.info)
        side.ep.bind(side.cq, fi.TRANSMIT | fi.RECV)
        side.ep.bind(side.av)
        side.ep.setname(address)
        side.ep.enable()


@pytest.mark.parametrize("engine", ["thread", "manual"])
@pytest.mark.parametrize("what", ["endpoint", "queue", "domain"])
def test_close_under_traffic_of_a_peer_is_an_error_there(what: str, engine: str, rng: random.Random) -> None:
    """The owner closes and opens again at the same address: the writer sees errors, then it works again."""
    with Child(WEFT_ENGINE=engine) as owner, Child(WEFT_ENGINE=engine) as writer:
        name = owner.call(peer.open_side)
        owner.call(peer.expose, "memory", NBYTES, 4, False)
        writer.call(peer.open_side)
        call = writer.start(hammer, name, 4)
        owner.call(churn, what, 25, rng.getrandbits(32), name)
        time.sleep(0.05)
        writer.start(stop)
        endings = call.result()
        writer.receive("stop", CALL_S)
        print(f"{what} {engine}: {endings}")
        assert set(endings) <= {0, fi.ECONNREFUSED, fi.EKEYREJECTED}, endings  # nobody died
        assert endings.get(0)
        assert writer.call(writes_again, name)


def writes_again(world: World, name: str) -> bool:
    to = world.side.av.insert(name)
    for _ in range(20):  # at first it may hear of the endpoint that is gone
        world.side.ep.write(b"again", dest_addr=to, addr=0, key=4)
        if not isinstance(world.side.outcome(), fi.CqErrEntry):
            return True
    return False


# ---- threads ---------------------------------------------------------------------------------------------------------


def in_threads(world: World, seed: int, seconds: float) -> dict[str, int]:
    """Threads that transfer, poll, wait, register and close on the same objects, which others close under them."""
    rng = random.Random(seed)
    allowed = (fi.Again, fi.Available, fi.BadState, fi.Busy, fi.Canceled, fi.NoKey, fi.KeyRejected, fi.TimedOut)
    outcomes: dict[str, int] = {}
    wrong: list[BaseException] = []
    over = threading.Event()
    current: dict[str, Any] = {}
    lock = threading.Lock()

    def open_all() -> None:
        side = Side(counters=(fi.WRITE,))
        memory = side.domain.alloc(NBYTES, np.uint8)
        current.update(side=side, memory=memory, mr=side.region(memory, 4), to=side.av.insert(side.name))

    def worker(step: Callable[[random.Random], None], mine: random.Random) -> None:
        while not over.is_set():
            try:
                step(mine)
                key = "ok"
            except allowed as error:
                key = type(error).__name__
            except BaseException as error:
                wrong.append(error)
                return
            with lock:
                outcomes[key] = outcomes.get(key, 0) + 1
            time.sleep(mine.random() * 0.0004)

    def transfer(mine: random.Random) -> None:
        side, n = current["side"], mine.choice((8, 4096, 200_000))
        data = np.zeros(n, np.uint8)
        match mine.randrange(4):
            case 0:
                side.ep.write(data, dest_addr=current["to"], addr=0, key=4)
            case 1:
                side.ep.read(data, src_addr=current["to"], addr=0, key=4)
            case 2:
                side.ep.writedata(data, data=9, dest_addr=current["to"], addr=0, key=4)
            case 3:
                descs = np.zeros(300, fi.RMA_DESC)
                descs["length"], descs["dest_addr"], descs["key"] = 8, current["to"], 4
                side.ep.write_batch(data, descs)

    def poll(mine: random.Random) -> None:
        cq = current["side"].cq
        try:
            cq.read()
        except fi.Available:
            with contextlib.suppress(fi.Again):
                cq.readerr()

    def wait(mine: random.Random) -> None:
        side = current["side"]
        if mine.random() < 0.5:
            side.cq.sread(timeout=mine.choice((0.001, 0.01)))
        else:
            side.counters[fi.WRITE].wait(1 << 40, timeout=0.005)

    def reregister(mine: random.Random) -> None:
        side = current["side"]
        current["mr"].close()
        current["mr"] = side.region(current["memory"], 4)

    def close_all(mine: random.Random) -> None:
        time.sleep(mine.uniform(0.01, 0.05))
        old = current["side"]
        closers = [old.ep.close, old.counters[fi.WRITE].close, old.cq.close, old.av.close]
        closers += [mr.close for mr in old.regions] + [old.domain.close, old.fabric.close]
        mine.shuffle(closers)
        for _ in range(3):  # in any order: an object still in use says so
            for close in closers:
                with contextlib.suppress(fi.Busy):
                    close()
        open_all()
        with contextlib.suppress(fi.FabricError):
            for mr in old.regions:
                mr.close()
            old.domain.close()
            old.fabric.close()

    open_all()
    steps = [transfer, transfer, poll, wait, reregister, close_all]
    threads = [threading.Thread(target=worker, args=(s, random.Random(rng.getrandbits(32)))) for s in steps]
    for thread in threads:
        thread.start()
    over.wait(seconds)
    limit = Patience(CALL_S / 2)  # a busy machine comes to less in that time
    while not wrong and not limit.over and (outcomes.get("ok", 0) <= LEAST or not outcomes.get("BadState")):
        over.wait(0.05)
    over.set()
    for thread in threads:
        thread.join(CALL_S / 2)
        assert not thread.is_alive(), "a thread hangs"
    if wrong:
        raise wrong[0]
    return outcomes


@pytest.mark.parametrize("settings", [{}, {"WEFT_ENGINE": "manual"}], ids=["thread", "manual"])
def test_close_under_threads_never_crashes(settings: dict[str, str], rng: random.Random) -> None:
    with Child(**settings) as child:
        outcomes = child.call(in_threads, rng.getrandbits(32), 4.0)
    print(outcomes)
    assert outcomes["ok"] > LEAST
    assert outcomes.get("BadState"), "nothing was ever used after it was closed: nothing was tested"


WAITING_ON_CLOSED = """
import threading, time
from tests.procs.peer import Side
from weft import fi
side = Side(counters=(fi.WRITE,))
found = []
def wait(call):
    try:
        call()
    except BaseException as e:
        found.append(e)
waits = [
    threading.Thread(target=wait, args=(lambda: side.cq.sread(timeout=None),), daemon=True),
    threading.Thread(target=wait, args=(lambda: side.counters[fi.WRITE].wait(5),), daemon=True),
]
for t in waits:
    t.start()
time.sleep(0.2)
side.close()
for t in waits:
    t.join(20)
    assert not t.is_alive(), "still waits on what was closed"
assert [type(e) for e in found] == [fi.BadState] * 2, found
"""


@pytest.mark.parametrize("engine", ["thread", "manual"])
def test_close_ends_the_waits_of_other_threads(engine: str) -> None:
    """A queue or counter closed under a waiting thread: the wait ends with an error."""
    done = run(WAITING_ON_CLOSED, WEFT_ENGINE=engine, timeout=CALL_S)
    assert done.returncode == 0, done.stderr
