"""kill -9 at random instants of owners and of users of memory, with weft.ucp and with RemoteArray.

As test_kill.py, which speaks weft.fi: a victim is forked, killed and started again, round after round. As the owner it
is used by a survivor, whose operations all have to end, with success or with the loss of the peer and nothing else. As
the user it reads, writes and updates the survivor's memory, and its own operations succeed for as long as it lives;
afterwards the survivor's memory is whole and serves the next one. WEFT_KILL_ROUNDS sets the number of rounds.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.patience import Patience
from tests.procs import leftovers, peer
from tests.procs.children import CALL_S, Child
from tests.procs.peer import World
from tests.procs.victims import fork_victim

import weft
from weft import errors, ucp

pytestmark = [pytest.mark.kill, pytest.mark.procs, pytest.mark.sweep]

PATHS = {
    "direct-thread": {"WEFT_ENGINE": "thread"},
    "ring-thread": {"WEFT_ENGINE": "thread", "WEFT_CMA": "0"},
    "strict-manual": {"WEFT_ENGINE": "manual", "WEFT_ISOLATION": "strict"},
    "tcp-thread": {
        "WEFT_ENGINE": "thread",
        "WEFT_SHM": "0",
        "WEFT_SECRET": "of the tests, for processes that are killed",
    },
}
WORDS = 1 << 14
NBYTES = 8 * WORDS
GUARD = 0x5AFE_5AFE_5AFE_5AFE  # in the last word, which nobody writes


# ---- UCP -------------------------------------------------------------------------------------------------------------

LOST = {ucp.Status.ERR_CONNECTION_RESET, ucp.Status.ERR_UNREACHABLE, ucp.Status.ERR_ENDPOINT_TIMEOUT}


class UcpOwner:
    def __init__(self, foreign: bool) -> None:
        self.context = ucp.Context()
        self.worker = self.context.worker_create()
        if foreign:
            self.array = np.zeros(WORDS, np.uint64)
            self.memh = self.context.mem_map(self.array.view(np.uint8))
        else:
            self.memh = self.context.mem_map(length=NBYTES, allocate=True)
            self.array = self.memh.array()[:NBYTES].view(np.uint64)
        self.array[:] = 0
        self.array[-1] = GUARD

    def contact(self) -> bytes:
        return pickle.dumps((bytes(self.worker.address), bytes(self.memh.pack())))

    def serve(self) -> None:
        self.worker.progress()

    def close(self) -> None:
        self.memh.unmap()
        self.worker.close()
        self.context.close()


class UcpUser:
    """Random operations, at most 16 under way."""

    def __init__(self, contact: bytes, seed: int, owner: UcpOwner | None = None) -> None:
        self.rng = random.Random(seed)
        self.context = owner.context if owner else ucp.Context()
        self.worker = owner.worker if owner else self.context.worker_create()
        address, key = pickle.loads(contact)
        self.ep = self.worker.ep_create(address)
        self.key = self.ep.rkey_unpack(key)
        self.under_way: list[Any] = []
        self.endings: Counter[int] = Counter()
        self.buffers = [np.full(NBYTES, i, np.uint8) for i in range(4)]

    def step(self) -> bool:
        """False: the peer is lost, and operations on it are pointless."""
        self._collect()
        if len(self.under_way) >= 16:
            self.worker.progress()
            return True
        rng = self.rng
        n = rng.choice((1, 8, 300, 5000, 70_000))
        at = self.key.address + 8 * rng.randrange((NBYTES - 8 - n) // 8)
        buffer = rng.choice(self.buffers)
        reply = np.zeros(1, np.uint64)
        kind = rng.randrange(6)
        try:
            if kind == 0:
                request = self.ep.get_nbx(buffer[:n], at, self.key)
            elif kind == 1:
                request = self.ep.atomic_op_nbx(ucp.ATOMIC_OP_ADD, np.ones(1, np.uint64), at, self.key)
            elif kind == 2:
                request = self.ep.atomic_op_nbx(
                    ucp.ATOMIC_OP_ADD, np.ones(1, np.uint64), at, self.key, reply_buffer=reply
                )
            elif kind == 3:
                request = self.ep.atomic_op_nbx(
                    ucp.ATOMIC_OP_CSWAP, np.zeros(1, np.uint64), at, self.key, reply_buffer=reply
                )
            elif kind == 4:
                request = self.ep.flush_nbx()
            else:
                request = self.ep.put_nbx(buffer[:n], at, self.key)
        except ucp.UcsError as error:
            self.endings[int(error.status)] += 1
            return error.status not in LOST
        if request is None or not hasattr(request, "done"):
            self.endings[0] += 1
        else:
            self.under_way.append(request)
        return True

    def _collect(self) -> None:
        for request in [r for r in self.under_way if r.done]:
            self.endings[int(request.status)] += 1
            self.under_way.remove(request)

    def finish(self) -> dict[int, int]:
        """All operations end, whether the peer lives or not."""
        deadline = Patience(CALL_S / 2)
        while self.under_way:
            self.worker.progress()
            self._collect()
            assert not deadline.over, f"{len(self.under_way)} operations never ended"
        try:
            self.ep.close()
        except ucp.UcsError as error:  # of an operation whose failure was not told yet
            self.endings[int(error.status)] += 1
        return dict(self.endings)


# ---- RemoteArray -----------------------------------------------------------------------------------------------------


class ShareOwner:
    def __init__(self, foreign: bool) -> None:
        self.node = weft.open()
        self.array = np.zeros(WORDS, np.uint64) if foreign else weft.zeros(WORDS, np.uint64)
        self.array[-1] = GUARD
        self.share = self.node.share(self.array)

    def contact(self) -> bytes:
        return str(self.share.ticket).encode()

    def serve(self) -> None:
        peer.progress()

    def close(self) -> None:
        self.share.close()
        self.node.close()


class ShareUser:
    def __init__(self, contact: bytes, seed: int, owner: ShareOwner | None = None) -> None:
        self.rng = random.Random(seed)
        self.node = owner.node if owner else weft.open()
        self.endings: Counter[int] = Counter()
        self.lost = False
        try:
            self.remote = self.node.attach(contact.decode())
        except errors.ConnectionReset as error:  # killed before it could be attached
            self._lost(error)

    def step(self) -> bool:
        if self.lost:
            return False
        rng, remote = self.rng, self.remote
        n = rng.choice((1, 10, 500, 9000))
        at = rng.randrange(WORDS - 1 - n)
        some = np.unique(np.array([rng.randrange(WORDS - 1) for _ in range(20)]))
        kind = rng.randrange(9)
        try:
            if kind == 0:
                _ = remote[at]
            elif kind == 1:
                remote[at] = 7
            elif kind == 2:
                _ = remote[at : at + n]
            elif kind == 3:
                remote[at : at + n] = np.arange(n)
            elif kind == 4:
                remote.fetch_add(at, 1)
            elif kind == 5:
                remote.add(at, 1)
            elif kind == 6:
                remote.compare_swap(at, 0, 1)
            elif kind == 7:
                remote.take(some)
            else:
                remote.put(some, np.arange(len(some)))
        except errors.ConnectionReset as error:
            self._lost(error)
            return False
        self.endings[0] += 1
        return True

    def _lost(self, error: errors.FabricError) -> None:
        assert "is gone" in str(error) or "has closed" in str(error), error
        self.lost = True
        self.endings[int(error.errno or 0)] += 1

    def finish(self) -> dict[int, int]:
        return dict(self.endings)


DIALECTS: dict[str, tuple[Any, Any]] = {"ucp": (UcpOwner, UcpUser), "share": (ShareOwner, ShareUser)}
ALLOWED: dict[str, set[int]] = {"ucp": {0, *map(int, LOST)}, "share": {0, int(errors.ConnectionReset.code)}}


# ---- in the processes ------------------------------------------------------------------------------------------------


def own(world: World, dialect: str, foreign: bool) -> bytes:
    world.more["owner"] = DIALECTS[dialect][0](foreign)
    contact: bytes = world.more["owner"].contact()
    return contact


def disown(world: World) -> None:
    world.more.pop("owner").close()


def guard(world: World) -> int:
    return int(world.more["owner"].array[-1])


def spawn(world: World, dialect: str, foreign: bool, role: str, contact: bytes, seed: int) -> tuple[int, bytes]:
    """Fork a victim; its pid and, of an owner, how it is reached."""
    pid, ready = fork_victim(lambda told: victim(dialect, foreign, role, contact, seed, told))
    with os.fdopen(ready, "rb") as answer:
        length = int.from_bytes(answer.read(4), "little")
        found = answer.read(length)
    assert length, f"the victim could not start: {os.waitpid(pid, 0)}"
    return pid, found


def victim(dialect: str, foreign: bool, role: str, contact: bytes, seed: int, told: int) -> None:
    owner, user = DIALECTS[dialect]
    own = owner(foreign)
    found = own.contact()
    os.write(told, len(found).to_bytes(4, "little") + found)
    os.close(told)
    using = None if role == "owner" else user(contact, seed, own)
    while True:
        if using is None:
            own.serve()
            time.sleep(0.0002)
        else:
            using.step()
            assert set(using.endings) <= {0}, using.endings  # the survivor is alive


def reap(world: World, pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def survive(world: World, dialect: str, contact: bytes, seed: int) -> dict[int, int]:
    """Use the victim's memory until the stop command, or serve without a contact; returns how the operations ended."""
    if not contact:
        while not world.asked():
            world.more["owner"].serve()
            time.sleep(0.0002)
        return {}
    user = DIALECTS[dialect][1](contact, seed, world.more["owner"])
    while not world.asked():
        if not user.step():
            time.sleep(0.0005)
    endings: dict[int, int] = user.finish()
    return endings


def stop(world: World) -> None:
    """The command that ends a function which runs until it is stopped."""


# Arrays are shared only by processes with an engine thread.
CASES = [(dialect, path) for dialect in DIALECTS for path in PATHS if (dialect, path) != ("share", "strict-manual")]
CASES.append(("share", "strict-thread"))
PATHS["strict-thread"] = {"WEFT_ENGINE": "thread", "WEFT_ISOLATION": "strict"}


@pytest.mark.parametrize(("dialect", "path"), CASES)
def test_kill_of_owners_and_users_leaves_the_survivor_whole(
    dialect: str, path: str, kill_rounds: int, rng: random.Random, tmp_path: Path
) -> None:
    folders = leftovers.Folders(tmp_path)
    settings = {**PATHS[path], **folders.settings}
    if path.startswith("tcp"):
        settings["WEFT_LISTEN"] = "tcp://127.0.0.1:0"
    foreign = path.startswith("ring")
    rounds = -(-kill_rounds // len(CASES))
    endings: Counter[int] = Counter()
    with Child(**settings) as survivor, Child(**settings) as zygote:
        contact = survivor.call(own, dialect, foreign)
        before: dict[str, int] = {}
        for number in range(rounds):
            role = rng.choice(("owner", "user"))
            seed = rng.getrandbits(32)
            if role == "user":
                surviving = survivor.start(survive, dialect, b"", seed)
                pid, _ = zygote.call(spawn, dialect, foreign, role, contact, seed)
            else:
                pid, found = zygote.call(spawn, dialect, foreign, role, contact, seed)
                surviving = survivor.start(survive, dialect, found, seed)
            time.sleep(rng.choice((rng.uniform(0, 0.01), rng.uniform(0, 0.15))))
            os.kill(pid, signal.SIGKILL)
            code = zygote.call(reap, pid)
            assert code == -signal.SIGKILL, f"round {number} {role}: the victim ended by itself: {code}\n{zygote.log()}"
            survivor.start(stop)
            endings.update(surviving.result())
            survivor.receive("stop", CALL_S)
            assert survivor.call(guard) == GUARD, f"round {number} {role}: a word that nobody writes was written"
            if number == 1:
                before = survivor.call(peer.resources)
        if rounds > 3:
            after = survivor.call(peer.resources)
            assert after["fds"] <= before["fds"] + 4, (before, after)
            assert after["threads"] <= before["threads"], (before, after)
        assert not leftovers.named_memory(survivor.pid) + leftovers.named_memory(zygote.pid)
        survivor.call(disown)
    print(f"{dialect} {path}: {rounds} kills; operations of the survivor ended with {dict(endings)}")
    assert set(endings) <= ALLOWED[dialect], endings
    assert not folders.files()
