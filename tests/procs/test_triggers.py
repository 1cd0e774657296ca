"""Deferred work in processes that make no call meanwhile, or die.

The NIC starts the work: its engine thread needs neither the application nor the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import signal
from pathlib import Path

import numpy as np
import pytest
from tests.patience import Patience
from tests.procs import peer
from tests.procs.children import CALL_S, Child
from tests.procs.peer import Side, World

from weft import fi

pytestmark = pytest.mark.procs

LINKS, KEY, HOME = 50, 7, 8
PATHS = [{}, {"WEFT_ISOLATION": "strict"}]


def open_answering(world: World, home: str) -> str:
    """A chain: the first write of a peer makes the NIC write 1, 2 ... LINKS to the peer's words, in order."""
    name = peer.open_side(world, {"counters": (fi.REMOTE_WRITE,)})
    peer.expose(world, "region", 64, KEY, foreign=False)
    side = world.side
    to = side.av.insert(home)
    values = world.arrays["values"] = np.arange(1, LINKS + 1, dtype="u8")
    links = [side.counters[fi.REMOTE_WRITE], *(side.domain.cntr_open() for _ in range(LINKS))]
    world.more["links"] = links
    for i in range(LINKS):
        msg = fi.MsgRma([values[i : i + 1]], [fi.RmaIov(8 * i, 8, HOME)], to)
        work = fi.DeferredWork(1, links[i], links[i + 1], fi.OP_WRITE, fi.OpRma(side.ep, msg))
        side.domain.control(fi.QUEUE_WORK, work)
    return name


def compute(world: World, hold_gil: bool, begun: str) -> int:
    """The process's own code, without a call of Weft, until the next command. Makes the file `begun`."""
    Path(begun).touch()
    held = ctypes.PyDLL(None)  # its calls keep the interpreter's lock
    rounds = 0
    while not world.asked():
        rounds += 1
        if hold_gil:
            held.usleep(2000)
        else:
            sum(range(1000))
    return rounds


def counts(world: World) -> list[int]:
    return [link.read() for link in world.more["links"]]


def close_links(world: World) -> None:
    for link in world.more["links"][1:]:
        link.close()


class Asker:
    """This process: a region for the answers, and a write that asks for them."""

    def __init__(self) -> None:
        self.side = Side(counters=(fi.REMOTE_WRITE,))
        self.words = self.side.domain.alloc(LINKS, "u8")
        self.words[:] = 0
        self.side.region(self.words, HOME)

    def ask(self, name: str) -> None:
        self.side.ep.write(b"question", dest_addr=self.side.av.insert(name), addr=0, key=KEY)

    def wait(self) -> None:
        self.side.counters[fi.REMOTE_WRITE].wait(LINKS, timeout=CALL_S / 2)
        assert list(self.words) == list(range(1, LINKS + 1))


@pytest.mark.parametrize("settings", PATHS, ids=["shared", "strict"])
@pytest.mark.parametrize("doing", ["asleep", "computing", "holding the GIL"])
def test_chain_runs_while_its_process_makes_no_call(settings: dict[str, str], doing: str, tmp_path: Path) -> None:
    asker, begun = Asker(), tmp_path / "begun"
    with Child(**settings) as child:
        name = child.call(open_answering, asker.side.name)
        call = child.start(compute, doing != "computing", str(begun)) if doing != "asleep" else None
        patience = Patience(CALL_S / 2)
        while call is not None and not begun.exists():
            assert not patience.over
        asker.ask(name)
        asker.wait()
        if call is not None:
            assert not call.done(), "it computes until it is asked for something else"
        asker.side.done()
        counted = child.start(counts)
        if call is not None:
            call.result()
        assert counted.result() == [1] * (LINKS + 1)
        child.call(close_links)
    asker.side.close()


@pytest.mark.kill
def test_work_to_a_peer_that_died_fails_and_ends_its_chain() -> None:
    side = Side()
    with Child() as child:
        name = child.call(peer.open_side)
        child.call(peer.expose, "region", 64, KEY, False)
        trigger, first, second = (side.domain.cntr_open() for _ in range(3))
        to = side.av.insert(name)
        side.ep.write(b"hello", dest_addr=to, addr=0, key=KEY)
        side.done()
        for before, after in ((trigger, first), (first, second)):
            msg = fi.MsgRma([b"12345678"], [fi.RmaIov(0, 8, KEY)], to, context="w")
            work = fi.DeferredWork(1, before, after, fi.OP_WRITE, fi.OpRma(side.ep, msg))
            side.domain.control(fi.QUEUE_WORK, work)
        child.kill(signal.SIGKILL)
        child.wait()
        patience = Patience(CALL_S / 2)
        while not _lost(side, to):
            assert not patience.over
        trigger.add(1)
        entry = side.failed()
        assert entry.op_context == "w"
        assert (first.read(), first.readerr(), second.read()) == (0, 1, 0)
        child.destroy()
    for counter in (trigger, first, second):
        counter.close()
    side.close()


def _lost(side: Side, to: int) -> bool:
    """A write to the peer fails."""
    side.ep.write(b"hello", dest_addr=to, addr=0, key=KEY)
    return isinstance(side.outcome(), fi.CqErrEntry)


@pytest.mark.kill
def test_process_killed_with_work_leaves_nothing_behind() -> None:
    """Its work is gone; a writer there learns of the death as always, and another process answers."""
    asker = Asker()
    with Child() as victim, Child() as heir:
        first = victim.call(open_answering, asker.side.name)
        victim.kill(signal.SIGKILL)
        victim.wait()
        asker.ask(first)
        assert isinstance(asker.side.outcome(), fi.CqErrEntry)
        assert not asker.words.any()
        asker.ask(heir.call(open_answering, asker.side.name))
        asker.wait()
        victim.destroy()
        heir.kill(signal.SIGKILL)
        heir.wait()
        heir.destroy()
    asker.side.close()
