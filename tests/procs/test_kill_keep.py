"""kill -9 at random instants of processes that keep, replace, take over and forget arrays, and of their keeper.

Element 0 of an array is its number, and so are all others; its length is 1000 + number. A maker announces each step,
and then says that it is done: afterwards the name has the old or the new array, whole. WEFT_KILL_ROUNDS sets the number
of rounds, WEFT_SEED what happens in them.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests import patience
from tests.procs.victims import fork_victim
from tests.share import keepers

import weft
from weft import errors

pytestmark = [pytest.mark.kill, pytest.mark.procs]

NAME = f"kill-keep-{os.getpid()}"
GONE = 0  # the number of an array that does not exist


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "cxi"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_CXI_REGISTRY", str(folder))
        yield folder
        keepers.end()


class Maker:
    """Keeps arrays under one name until it is killed; `number` is the array that the name has."""

    def __init__(self, seed: int, number: int) -> None:
        self.rng, self.number, self.fd = random.Random(seed), number, -1

    def at(self, fd: int) -> None:
        """In the process that will be killed."""
        self.fd = fd
        with contextlib.suppress(errors.FabricError):  # the keeper was killed
            self.run()
        time.sleep(100)

    def say(self, word: str, number: int) -> None:
        os.write(self.fd, f"{word} {number}\n".encode())

    def run(self) -> None:
        node = weft.open()
        shared: weft.share.Shared | None = None
        while True:
            number = self.rng.randrange(1, 2000)
            if self.number == GONE:
                self.say("will", number)
                shared = node.share(self.made(number), NAME, keep=True)
            elif shared is None and self.rng.random() < 0.7:  # the place of the maker that was killed
                shared = node.kept(NAME)
                continue
            elif shared is None or self.rng.random() < 0.2:
                number = GONE
                self.say("will", number)
                weft.forget(NAME)
                shared = None
            else:
                self.say("will", number)
                shared.replace(self.made(number))
            self.number = number
            self.say("did", number)

    def made(self, number: int) -> np.ndarray:
        n = 1000 + number
        make = self.rng.choice((np.empty, weft.empty, lambda n, dtype: weft.empty(n, dtype, reserve=2 * n)))
        array: np.ndarray = make(n, "i8")
        array.fill(number)
        return array


def told(ready: int) -> list[tuple[str, int]]:
    """The output of an ended process."""
    with open(ready, "rb") as lines:
        words = [line.split() for line in lines.read().decode().splitlines()]
    return [(word, int(number)) for word, number in words]


def present(node: weft.Node) -> int:
    """The number of the array that the name has; each element is checked."""
    try:
        t = node.attach(NAME)
    except errors.NotFound:
        return GONE
    found = t.read()
    number = int(found[0])
    assert len(found) == 1000 + number
    assert (found == number).all()
    t[-1] = number  # the keeper serves it, also for writing
    return number


def test_killed_makers_leave_whole_arrays(registry: Path, rng: random.Random, kill_rounds: int) -> None:
    number = GONE
    for _ in range(kill_rounds):
        before = number
        pid, ready = fork_victim(Maker(rng.getrandbits(32), number).at)
        time.sleep(rng.uniform(0.0, 0.15))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        lines = told(ready)
        done = [n for word, n in lines if word == "did"]
        sure = done[-1] if done else before
        maybe = lines[-1][1] if lines and lines[-1][0] == "will" else sure
        with weft.open() as node:
            number = present(node)
        assert number in (sure, maybe), lines[-3:]


def test_killed_keepers_leave_no_names(registry: Path, rng: random.Random, kill_rounds: int) -> None:
    for _ in range(max(kill_rounds // 3, 1)):
        pid, ready = fork_victim(Maker(rng.getrandbits(32), GONE).at)
        time.sleep(rng.uniform(0.0, 0.1))
        keeper = None
        with contextlib.suppress(errors.FabricError):
            keeper = keepers.keeper_pid()
        if keeper is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGKILL)
        time.sleep(rng.uniform(0.0, 0.02))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        if keeper is not None:
            patience.wait_for_end(keeper)
        with weft.open() as node:
            number = present(node)  # of the next keeper, if the maker came so far: whole
            if number:
                weft.forget(NAME)
            node.share(np.arange(3), NAME, keep=True)  # a keeper starts beside the leftovers of the killed keeper
            assert node.attach(NAME)[:].tolist() == [0, 1, 2]
            weft.forget(NAME)
