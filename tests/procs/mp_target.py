"""For test_fork.py: a multiprocessing.Process that exchanges bytes with its parent, by every start method."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
from tests.procs import peer
from tests.procs.peer import Side


def exchange(pipe: Any, mine: Side, first: bool) -> None:
    memory = mine.domain.alloc(64, np.uint8)
    memory[:] = 0
    mine.region(memory, 3)
    pipe.send(mine.name)
    to = mine.av.insert(pipe.recv())
    text = b"from the parent" if first else b"from the child"
    mine.ep.write(text, dest_addr=to, addr=0, key=3)
    mine.done()
    pipe.send("written")
    while not pipe.poll(0.001):
        peer.progress()
    assert pipe.recv() == "written"
    expected = b"from the child" if first else b"from the parent"
    assert bytes(memory[: len(expected)]) == expected
    # Nobody goes before the other has looked.
    pipe.send("seen")
    while not pipe.poll(0.001):
        peer.progress()
    pipe.recv()


def child(pipe: Any) -> None:
    side = Side()
    exchange(pipe, side, first=False)
    side.close()


def main(method: str) -> None:
    context = multiprocessing.get_context(method)
    side = Side()  # the NIC is open before the child is started
    for _ in range(2):
        mine, theirs = context.Pipe()
        process = context.Process(target=child, args=(theirs,))
        process.start()
        theirs.close()
        while not mine.poll(0.001):
            peer.progress()
        exchange(mine, side, first=True)
        side.regions.pop().close()
        process.join(30)
        assert process.exitcode == 0, process.exitcode
    side.close()
