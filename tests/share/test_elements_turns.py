"""Updates of blocks by plain instructions beside atomic updates of elements, in several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from tests.frames import frames_of_weft
from tests.share.elements import NUMBERS, Array, mapped, same, values_of
from tests.share.owner import Owner

import weft

OPS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
BIG = 1 << 13  # elements: the arrays take turns


@pytest.mark.parametrize("dtype", [dtype for dtype in NUMBERS if dtype not in ("?", "g") and dtype[0] != ">"])
def test_blocks_of_every_dtype_are_numpys(home: weft.Node, dtype: str) -> None:
    """Whole arrays and parts that begin and end anywhere."""
    start = values_of("u1", (BIG,)).astype(dtype)
    block = (np.arange(BIG) % 7 + 1).astype(dtype)
    local, remote, share = mapped(home, start)
    with share:
        for op, function in OPS.items():
            if (dtype[0] == "c" and op in ("min", "max")) or (dtype[0] not in "iu" and op in ("and", "or", "xor")):
                continue
            local[...] = start
            expected = start.copy()
            with np.errstate(all="ignore"):
                expected[...] = function(expected, block)
                expected[3:5001] = function(expected[3:5001], block[1:4999])
            remote.add(block, op=op)
            remote.at[3:5001].add(block[1:4999], op=op)
            same(local, expected)
            assert remote.fetch_op(7, op, 2) == expected[7]
        assert frames_of_weft(lambda: remote.add(block)) == []


def _work(kind: str, whole: Any, part: Any, rounds: int, ready: Any) -> None:
    """Updates until each element of `whole` got the values that `expected` has; part is its first 64 elements."""
    if kind == "strict":
        os.environ["WEFT_ISOLATION"] = "strict"
    block = np.ones(BIG, "i8")
    rows = np.arange(0, BIG, 2)
    whole.fetch_add(0, 0)
    assert (whole.path == "engine") is (kind == "strict"), whole.why
    ready.wait()
    for i in range(rounds):
        if kind == "block":
            whole.add(block)
        elif kind == "rows":
            whole.add.at(rows, 1)
        elif kind == "part":  # a small region over the same memory
            for k in range(64):
                part.fetch_add(k, 1)
        else:
            for k in range(64):
                whole.fetch_add(k, 1)
                assert whole.compare_swap(BIG // 2, -1, i) != -1
            whole.fetch_add(slice(64, 128), 1)
            whole.add(slice(64, 128), 1)


KINDS = ["block", "block", "rows", "element", "part", "strict"]


def expected(rounds: int) -> Array:
    found = np.full(BIG, KINDS.count("block") * rounds)
    found[::2] += rounds
    found[:64] += 3 * rounds
    found[64:128] += 4 * rounds
    return found


@pytest.mark.procs
def test_updates_of_several_processes_are_not_lost(node: weft.Node) -> None:
    """Blocks, rows and elements, also of a second share of a part, and by the owner's engine."""
    local = weft.zeros(BIG, "i8")
    whole, part = node.share(local), node.share(local[:64])
    context = multiprocessing.get_context("spawn")
    rounds = 300
    ready = context.Barrier(len(KINDS))
    workers = [context.Process(target=_work, args=(kind, whole, part, rounds, ready)) for kind in KINDS]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
        assert worker.exitcode == 0
    assert np.array_equal(local, expected(rounds))


def test_updates_of_threads_with_nodes_of_their_own_are_not_lost(node: weft.Node) -> None:
    """In the owner's process."""
    local = weft.zeros(BIG, "i8")
    whole, part = node.share(local), node.share(local[:64])
    ready = threading.Barrier(4)
    nodes = [weft.open() for _ in range(4)]
    problems: list[BaseException] = []

    def work(mine: weft.Node, kind: str) -> None:
        try:
            a, b = mine.attach(whole), mine.attach(part)
            ready.wait()
            for _ in range(40):
                if kind == "block":
                    a.add(np.ones(BIG, "i8"))
                elif kind == "rows":
                    a.add.at(np.arange(0, BIG, 2), 1)
                else:
                    for k in range(64):
                        (b if kind == "part" else a).fetch_add(k, 1)
        except BaseException as reason:
            problems.append(reason)

    threads = [
        threading.Thread(target=work, args=(mine, kind))
        for mine, kind in zip(nodes, ["block", "rows", "part", "element"], strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    for mine in nodes:
        mine.close()
    assert problems == []
    wanted = np.full(BIG, 40)
    wanted[::2] += 40
    wanted[:64] += 80
    assert np.array_equal(local, wanted)


def test_more_updaters_than_slots(node: weft.Node, owner: Owner, name: Any) -> None:
    """The owner's engine updates for processes without a slot."""
    n = name("a")
    owner.tell(f"m = weft.zeros({BIG}, 'i8'); sm = node.share(m, {n!r})")
    nodes = [weft.open() for _ in range(70)]
    try:
        remotes = [mine.attach(n) for mine in nodes]
        for remote in remotes:
            remote.fetch_add(0)
            remote.add(np.ones(BIG, "i8"))
        assert remotes[0].read().tolist() == [140, *[70] * (BIG - 1)]
    finally:
        for mine in nodes:
            mine.close()
        owner.tell("sm.close()")


def _forever(shared: Any, ready: Any) -> None:
    block = np.ones(BIG, "i8")
    shared.add(block)
    ready.set()
    while True:
        shared.add(block)
        shared.fetch_add(0)


@pytest.mark.procs
@pytest.mark.parametrize("blocks", [True, False])
def test_others_go_on_after_a_kill(node: weft.Node, owner: Owner, name: Any, blocks: bool) -> None:
    """A process is killed anywhere inside its updates: the claim or the turn that it held is given back."""
    n = name("a")
    owner.tell(f"k = weft.zeros({BIG}, 'i8'); sk = node.share(k, {n!r})")
    remote = node.attach(n)
    context = multiprocessing.get_context("spawn")
    for _ in range(6):
        ready = context.Event()
        worker = context.Process(target=_forever, args=(remote, ready))
        worker.start()
        assert ready.wait(60)
        worker.kill()
        worker.join(60)
        before = int(remote[5])
        if blocks:
            remote.add(np.ones(BIG, "i8"))
        remote.add(5, 2)
        assert remote.fetch_add(5, 0) == before + 2 + blocks
    owner.tell("sk.close()")


def _until_told(shared: Any, ready: Any, stop: Any, answers: Any) -> None:
    block = np.ones(BIG, "i8")
    done = 0
    try:
        while not stop.is_set():
            shared.add(block)
            done += 1
            ready.set()
    except weft.FabricError as reason:
        answers.put((done, str(reason)))
    else:
        answers.put((done, ""))


@pytest.mark.procs
def test_others_go_on_beside_a_stopped_process(node: weft.Node, owner: Owner, name: Any) -> None:
    """A process is stopped anywhere inside its blocks. No update is lost, or the stopped process tells of it."""
    n = name("a")
    owner.tell(f"p = weft.zeros({BIG}, 'i8'); sp = node.share(p, {n!r})")
    remote = node.attach(n)
    context = multiprocessing.get_context("spawn")
    for _ in range(3):
        remote.fill(0)
        ready, stop, answers = context.Event(), context.Event(), context.Queue()
        worker = context.Process(target=_until_told, args=(remote, ready, stop, answers))
        worker.start()
        try:
            assert ready.wait(60)
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGSTOP)
            for _ in range(100):
                remote.add(5)
            remote.add(np.ones(BIG, "i8"))
            assert remote.fetch_add(6, 3) >= 1
            stop.set()
            os.kill(worker.pid, signal.SIGCONT)
            done, text = answers.get(timeout=100)
            worker.join(100)
        finally:
            worker.kill()
            worker.join()
        if text:
            assert "this process was stopped for seconds within the update" in text
        else:
            assert remote[[4, 5, 6, 7]].tolist() == [done + 1, done + 101, done + 4, done + 1]
    owner.tell("sp.close()")


@pytest.mark.procs
def test_updates_over_tcp_beside_blocks_are_not_lost(node: weft.Node) -> None:
    """The owner's engine takes turns for the processes that reach it by tcp."""
    rounds = 200
    tcp = {"WEFT_LISTEN": "tcp://127.0.0.1:0", "WEFT_SECRET": "of the tests, for turns"}
    with Owner("near-", **tcp) as near, Owner("far-", WEFT_SHM="0", **tcp) as far:
        near.tell(f"m = weft.zeros({BIG}, 'i8'); sm = node.share(m)")
        ticket = near.tell("str(sm.ticket)")
        far.tell(f"r = node.attach({ticket!r}); r.fetch_add(0, 0)")
        assert far.tell("r.path") == "tcp"
        remote = node.attach(ticket)
        remote.fetch_add(0, 0)
        assert remote.path == "load/store", remote.why
        there = threading.Thread(
            target=far.tell, args=(f"for i in range({rounds}): r.fetch_add(5, 1); r.add(slice(0, 8), 1)",)
        )
        there.start()
        blocks = 0
        while there.is_alive() or blocks < rounds:
            remote.add(np.ones(BIG, "i8"))
            remote.fetch_add(6, 1)
            blocks += 1
        there.join()
        expected = np.full(BIG, blocks)
        expected[:8] += rounds
        expected[5] += rounds
        expected[6] += blocks
        assert np.array_equal(remote.read(), expected)


def _until_refused(shared: Any, kind: str, ready: Any, answers: Any) -> None:
    block = np.ones(BIG, "i8")
    try:
        shared.fetch_add(0)
        ready.wait()
        while True:
            if kind == "block":
                shared.add(block)
            else:
                shared.fetch_add(0)
    except weft.FabricError as reason:
        answers.put((kind, type(reason).__name__))


@pytest.mark.procs
def test_owner_closes_the_share_under_blocks_and_elements(node: weft.Node) -> None:
    """Updates after the close are refused, and none changes the memory, which another array may use by then."""
    context = multiprocessing.get_context("spawn")
    local = weft.zeros(BIG, "i8")
    share = node.share(local)
    ready, answers = context.Barrier(4), context.Queue()
    kinds = ["block", "block", "element"]
    workers = [context.Process(target=_until_refused, args=(share, kind, ready, answers)) for kind in kinds]
    for worker in workers:
        worker.start()
    ready.wait(100)
    share.wait_until(0, lambda x: x > 1000, timeout=100)
    share.close()
    before = local.copy()
    for worker in workers:
        kind, _ = answers.get(timeout=100)
        assert kind in kinds
        worker.join(100)
        assert worker.exitcode == 0
    assert np.array_equal(local, before)
    again = node.share(local)
    again.remote.add(np.ones(BIG, "i8"))
    assert np.array_equal(local, before + 1)


def test_array_below_the_limit_takes_no_turns(home: weft.Node) -> None:
    """Small arrays, of counters and locks, are updated by atomic instructions alone; blocks too."""
    local, remote, _ = mapped(home, np.zeros(16, "i8"))
    block: Array = np.ones(16, "i8")
    remote.add(block)
    assert remote.fetch_add(3) == 1
    assert local.sum() == 17
