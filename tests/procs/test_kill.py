"""kill -9 at random instants: of initiators, of targets, of both, on every path.

Three processes: a victim, killed and started again at the same address, round after round; a survivor that the victim
uses and that uses the victim; a third one whose traffic with the survivor is checked byte by byte all the while.
Victims are forked from a process that never opened a NIC (a start takes milliseconds, so that kills also fall into the
first greeting). WEFT_KILL_ROUNDS sets the number of rounds over all paths, WEFT_SEED what happens in them.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.patience import Patience
from tests.ports import free_port
from tests.procs import leftovers, peer
from tests.procs.children import CALL_S, Child
from tests.procs.peer import Side, World
from tests.procs.victims import fork_victim

from weft import fi

pytestmark = [pytest.mark.kill, pytest.mark.procs, pytest.mark.sweep]

TCP = {"WEFT_SHM": "0", "WEFT_SECRET": "of the tests, for processes that are killed"}
PATHS = {
    "direct-thread": {"WEFT_ENGINE": "thread"},
    "foreign-thread": {"WEFT_ENGINE": "thread"},
    "ring-thread": {"WEFT_ENGINE": "thread", "WEFT_CMA": "0"},
    "strict-thread": {"WEFT_ENGINE": "thread", "WEFT_ISOLATION": "strict"},
    "direct-manual": {"WEFT_ENGINE": "manual"},
    "ring-manual": {"WEFT_ENGINE": "manual", "WEFT_CMA": "0"},
    "tcp-thread": {"WEFT_ENGINE": "thread", **TCP},
    "tcp-manual": {"WEFT_ENGINE": "manual", **TCP},
}
NBYTES = 1 << 20
SURVIVOR_KEY, THIRD_KEY, VICTIM_KEY = 11, 22, 33
# The results that an operation on a killed peer may have: it was alive, it has died, nobody is there.
ENDINGS = {0, fi.ECONNRESET, fi.ECONNREFUSED}


# ---- traffic ---------------------------------------------------------------------------------------------------------


class Traffic:
    """Random operations on a peer's region, at most `depth` under way."""

    def __init__(self, side: Side, to: int, key: int, seed: int, foreign: bool, depth: int = 16) -> None:
        self.side, self.to, self.key, self.depth = side, to, key, depth
        self.rng = random.Random(seed)
        self.buffer = peer.memory(side, NBYTES, foreign, 1)
        self.posted = self.ended = 0
        self.endings: dict[int, int] = {}

    def post(self) -> None:
        rng, ep = self.rng, self.side.ep
        n = rng.choice((1, 8, 300, 5000, 70_000, NBYTES))
        at = rng.randrange(NBYTES - n + 1) if n % 8 else 8 * rng.randrange((NBYTES - n) // 8 + 1)
        piece = self.buffer[at : at + n]
        word = self.buffer[:8].view(np.uint64)
        old = self.buffer[8:16].view(np.uint64)
        where: dict[str, Any] = {"dest_addr": self.to, "addr": at, "key": self.key, "context": "traffic"}
        kind = rng.randrange(11)
        if kind == 0:
            ep.read(piece, src_addr=self.to, addr=at, key=self.key, context="traffic")
        elif kind == 1:
            where["addr"] = at & ~7 if n >= 8 else 0
            ep.fetch_atomic(word, result=old, datatype=fi.UINT64, op=fi.SUM, **where)
        elif kind == 2:
            ep.writedata(piece, data=rng.getrandbits(64), **where)
        elif kind == 3:
            descs = np.zeros(20, fi.RMA_DESC)
            descs["length"], descs["dest_addr"], descs["key"] = 64, self.to, self.key
            descs["remote_addr"] = np.arange(20) * 64
            (ep.write_batch if rng.random() < 0.5 else ep.read_batch)(self.buffer, descs, context="traffic")
        elif kind == 4:
            message = fi.MsgRma([piece], [fi.RmaIov(at, n, self.key)], self.to, context="traffic")
            ep.writemsg(message, fi.FENCE | fi.DELIVERY_COMPLETE)
        elif kind == 5:
            where["addr"] = at & ~7 if n >= 8 else 0
            ep.atomic(word, datatype=fi.UINT64, op=fi.BXOR, **where)
        elif kind == 6:
            where["addr"] = at & ~7 if n >= 8 else 0
            ep.compare_atomic(word, compare=word, result=old, datatype=fi.UINT64, op=fi.CSWAP, **where)
        elif kind in (7, 8) and n > 1:  # two buffers
            parts = [piece[: n // 3], piece[n // 3 :]]
            if kind == 7:
                ep.writev(parts, **where)
            else:
                ep.readv(parts, src_addr=self.to, addr=at, key=self.key, context="traffic")
        else:
            ep.write(piece, **where)
        self.posted += 1

    def collect(self, timeout: float = 0.0) -> None:
        cq = self.side.cq
        try:
            found = cq.sread(64, timeout=timeout) if timeout else cq.read()
        except fi.Available:
            error = cq.readerr()
            assert error.op_context == "traffic", error
            self.endings[error.err] = self.endings.get(error.err, 0) + 1
            self.ended += 1
            return
        except fi.Again:
            return
        for entry in found:
            if entry.op_context == "traffic":
                self.endings[0] = self.endings.get(0, 0) + 1
                self.ended += 1

    def step(self) -> None:
        if self.posted - self.ended < self.depth:
            with contextlib.suppress(fi.Again):
                self.post()
            self.collect()
        else:
            self.collect(0.005)

    def finish(self, timeout: float = CALL_S / 2) -> None:
        deadline = Patience(timeout)
        while self.ended < self.posted:
            assert not deadline.over, f"{self.posted - self.ended} operations never ended: {self.side}"
            self.collect(0.05)


# ---- the third process -----------------------------------------------------------------------------------------------


def chat(world: World, survivor: str, foreign: bool) -> dict[str, int]:
    """Write blocks into the survivor's second region, read them back, compare; count with atomics; until stopped."""
    side = world.side
    to = side.av.insert(survivor)
    rng = np.random.default_rng(5)
    out, back = peer.memory(side, 1 << 16, foreign), peer.memory(side, 1 << 16, foreign)
    one, seen = np.ones(1, np.uint64), np.zeros(1, np.uint64)
    turns = 0
    while not world.asked():
        n = int(rng.integers(1, 1 << 16))
        out[:n] = rng.integers(0, 256, n, np.uint8)
        crc = zlib.crc32(out[:n])
        side.ep.write(out, dest_addr=to, addr=64, key=THIRD_KEY, len=n)
        side.ep.read(back, src_addr=to, addr=64, key=THIRD_KEY, len=n)
        side.ep.fetch_atomic(one, result=seen, dest_addr=to, addr=0, key=THIRD_KEY, datatype=fi.UINT64, op=fi.SUM)
        side.done(3)
        assert zlib.crc32(back[:n]) == crc, "bytes of the third process were damaged"
        assert int(seen[0]) == turns, "an atomic of the third process was lost or done twice"
        turns += 1
        time.sleep(0.001)
    return {"turns": turns}


def stop(world: World) -> None:
    """The command that ends a function which runs until it is stopped."""


# ---- the victim ------------------------------------------------------------------------------------------------------


def spawn(world: World, address: str, survivor: str, seed: int, foreign: bool, role: str) -> int:
    """Fork a victim; returns its pid once its endpoint is open."""
    pid, ready = fork_victim(lambda told: victim(address, survivor, seed, foreign, role, told))
    came = os.read(ready, 1)
    os.close(ready)
    assert came, f"the victim could not start: {os.waitpid(pid, 0)}"
    return pid


def victim(address: str, survivor: str, seed: int, foreign: bool, role: str, told: int) -> None:
    side = Side(address=address, counters=(fi.REMOTE_WRITE,))
    side.region(peer.memory(side, NBYTES, foreign, 7), VICTIM_KEY)
    os.write(told, b"!")
    traffic = Traffic(side, side.av.insert(survivor), SURVIVOR_KEY, seed, foreign)
    while True:
        if role == "target":
            with contextlib.suppress(fi.Again):
                side.cq.sread(timeout=0.01)
        else:
            traffic.step()
            assert set(traffic.endings) <= {0}, traffic.endings  # the survivor is alive


def reap(world: World, pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ---- the survivor ----------------------------------------------------------------------------------------------------


def survive(world: World, address: str, seed: int, foreign: bool, role: str) -> dict[int, int]:
    """Use the victim until the stop command, then wait for all operations; returns how they ended."""
    side = world.side
    if role == "initiator":
        while not world.asked():
            with contextlib.suppress(fi.Again):
                side.cq.sread(timeout=0.002)  # immediate data of the victim
        return {}
    to = side.av.insert(address)
    traffic = Traffic(side, to, VICTIM_KEY, seed, foreign)
    while not world.asked():
        traffic.step()
    traffic.finish()
    side.av.remove(to)
    return traffic.endings


def renew(world: World, foreign: bool) -> bool:
    """Close the region that the victim wrote to and use its memory for something else: no write arrives any more."""
    peer.withdraw(world, "survivor")
    memory = world.arrays["survivor"]
    memory[:] = 0x5A
    for _ in range(20):
        peer.progress()
        time.sleep(0.0005)
    untouched = bool((memory == 0x5A).all())
    peer.expose(world, "survivor", NBYTES, SURVIVOR_KEY, foreign)
    return untouched


def greet(world: World, address: str) -> None:
    """The process that has the victim's address now is reached: at the latest after the old process's end was seen."""
    side = world.side
    to = side.av.insert(address)
    deadline = Patience(CALL_S / 2)
    while True:
        with contextlib.suppress(fi.Again):
            side.cq.read()
        probe = np.zeros(8, np.uint8)
        side.ep.read(probe, src_addr=to, addr=NBYTES - 8, key=VICTIM_KEY, context="probe")
        while True:
            entry = side.outcome()
            if entry.op_context == "probe":
                break
        if not isinstance(entry, fi.CqErrEntry) and bytes(probe) == b"\x07" * 8:
            break
        assert isinstance(entry, fi.CqErrEntry), "the new process's memory holds the old one's bytes"
        assert entry.err in ENDINGS, entry
        assert not deadline.over, f"the new process was never reached: {entry}"
    side.av.remove(to)


@pytest.mark.parametrize("path", PATHS)
def test_kill_leaves_the_others_unharmed(path: str, kill_rounds: int, rng: random.Random, tmp_path: Path) -> None:
    """The survivor's operations end, no process hangs, the third process is not affected, nothing is left behind."""
    folders = leftovers.Folders(tmp_path)
    settings = {**PATHS[path], **folders.settings}
    listening = {"WEFT_LISTEN": "tcp://127.0.0.1:0"} if path.startswith("tcp") else {}
    port = free_port(rng) if listening else 0
    there = {"WEFT_LISTEN": f"tcp://127.0.0.1:{port}"} if listening else {}
    foreign = not path.startswith(("direct", "strict"))
    rounds = -(-kill_rounds // len(PATHS))
    endings: dict[int, int] = {}
    with (
        Child(**settings, **listening) as survivor,
        Child(**settings, **listening) as third,
        Child(**settings, **there) as zygote,
    ):
        name = survivor.call(peer.open_side, {"size": 4096})
        survivor.call(peer.expose, "survivor", NBYTES, SURVIVOR_KEY, foreign)
        survivor.call(peer.expose, "third", (1 << 16) + 64, THIRD_KEY, foreign)
        third_name = third.call(peer.open_side)
        chatting = third.start(chat, name, foreign)
        address = f"weft://0/1/{rng.randrange(1, 1 << 29)}"
        # Its name for other processes.
        known_as = address.replace("//", f"//127.0.0.1:{port}/") if port else address
        before: dict[str, int] = {}
        for number in range(rounds):
            role = rng.choice(("initiator", "target", "both"))
            seed = rng.getrandbits(32)
            pid = zygote.call(spawn, address, name, seed, foreign, role)
            if role != "target" or rng.random() < 0.5:
                surviving = survivor.start(survive, known_as, seed, foreign, role)
            else:  # first make sure that the victim, in the place of an earlier one, is really reached
                survivor.call(greet, known_as)
                surviving = survivor.start(survive, known_as, seed, foreign, role)
            time.sleep(rng.choice((rng.uniform(0, 0.003), rng.uniform(0, 0.12))))
            os.kill(pid, signal.SIGKILL)
            code = zygote.call(reap, pid)
            assert code == -signal.SIGKILL, f"round {number} {role}: the victim ended by itself: {code}\n{zygote.log()}"
            if role != "target":
                assert not leftovers.sockets(address, port) or role == "both"
            survivor.start(stop)
            for err, count in surviving.result().items():
                endings[err] = endings.get(err, 0) + count
            survivor.receive("stop", CALL_S)
            assert survivor.call(renew, foreign), f"round {number} {role}: written after the region was closed"
            assert not chatting.done(), chatting.result()
            assert not leftovers.sockets(address, port)
            if number == 1:
                before = survivor.call(peer.resources)
        # The address serves once more, and the survivor's state of dead processes is gone.
        pid = zygote.call(spawn, address, name, 1, foreign, "target")
        survivor.call(greet, known_as)
        os.kill(pid, signal.SIGKILL)
        zygote.call(reap, pid)
        third.start(stop)
        turns = chatting.result()["turns"]
        third.receive("stop", CALL_S)
        assert not leftovers.named_memory(survivor.pid) + leftovers.named_memory(zygote.pid)
        if rounds > 2:
            after = survivor.call(peer.resources)
            assert after["fds"] <= before["fds"] + 4, (before, after)
            assert after["maps"] <= before["maps"] + 8, (before, after)
            assert after["threads"] <= before["threads"], (before, after)
    print(f"{path}: {rounds} kills; operations of the survivor ended with {endings}; third process: {turns} turns")
    assert set(endings) <= ENDINGS, endings
    assert turns > 0
    assert not leftovers.sockets(name) + leftovers.sockets(third_name)
    assert not folders.files()
