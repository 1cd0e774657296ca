"""The harness: a stop command reaches a child that runs until it is stopped, however late the child starts."""

from __future__ import annotations

import signal

import pytest
from tests.procs.children import Child
from tests.procs.peer import World

pytestmark = pytest.mark.procs


def run_until_told(world: World) -> bool:
    while not world.asked():
        pass
    return True


def told(world: World) -> None:
    pass


def test_child_that_reads_two_commands_at_once_was_told() -> None:
    with Child() as child:
        child.call(told)
        child.kill(signal.SIGSTOP)
        running = child.start(run_until_told)
        child.start(told)
        child.kill(signal.SIGCONT)
        assert running.result(timeout=20)
        child.receive("told", 20)
