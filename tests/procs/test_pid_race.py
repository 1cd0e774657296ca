"""Several processes request one PID of a NIC and VNI: exactly one gets it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import Patience
from tests.procs import cxi_side
from tests.procs.children import Child
from tests.procs.cxi_side import BOTH, CxiSide
from tests.procs.peer import World
from tests.procs.victims import fork_victim

from weft import cxi, fi
from weft.providers.cxi import device

pytestmark = [pytest.mark.procs]

VNI = 700
ROUNDS = 40


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith(("FI_", "CXI", "SLINGSHOT_", "WEFT_CXI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    device.add("cxi1")
    yield
    shutil.rmtree(tmp_path / "cxi")


def ready(world: World, name: str, vni: int = VNI) -> None:
    """A domain of that device; its endpoint is not enabled."""
    world.more[name, vni] = CxiSide(name, None, cxi.AuthKey(1, vni), enable=False)


def claim(world: World, where: tuple[str, int], pid: int, at: float) -> bool:
    """Enable an endpoint with that PID at that time; whether the address was to be had. It stays."""
    side = world.more[where]
    ep = side.domain.endpoint(cxi_side.found(where[0], pid, cxi.AuthKey(1, where[1])))
    ep.bind(side.cq, BOTH)
    ep.bind(side.av)
    world.more["claimed"] = ep
    while time.monotonic() < at:
        pass
    try:
        ep.enable()
    except fi.NoSpace:
        return False
    return True


def wait_for_it(world: World, where: tuple[str, int], pid: int, limit_s: float) -> bool:
    """Try to enable until it works, or until the stop command."""
    deadline = Patience(limit_s)
    while not claim(world, where, pid, 0.0):
        world.more.pop("claimed").close()
        assert not deadline.over, "the PID of a process that was killed stays taken"
        if world.asked():
            return False
    return True


def drop(world: World) -> None:
    with contextlib.suppress(KeyError):
        world.more.pop("claimed").close()


@pytest.fixture
def racers() -> Iterator[list[Child]]:
    running = [Child() for _ in range(3)]
    try:
        yield running
        for child in running:
            child.close()
    finally:
        for child in running:
            child.destroy()


def race(racers: list[Child], places: list[tuple[str, int]], pid: int) -> list[bool]:
    """All claim the PID at the same instant; returns the winner."""
    at = time.monotonic() + 0.004
    calls = [child.start(claim, place, pid, at) for child, place in zip(racers, places, strict=True)]
    won = [call.result() for call in calls]
    for child in racers:
        child.call(drop)
    return won


@pytest.mark.clause("cxi.addr.conflict")
def test_one_of_three_gets_the_pid(racers: list[Child], rng: random.Random) -> None:
    for child in racers:
        child.call(ready, "cxi0")
    for _ in range(ROUNDS):
        assert sum(race(racers, 3 * [("cxi0", VNI)], rng.randrange(511))) == 1


def test_pids_of_another_nic_or_vni_are_others(racers: list[Child], rng: random.Random) -> None:
    """Two race for one place; the third has the same PID elsewhere, and always gets it."""
    for place in (("cxi1", VNI), ("cxi0", VNI + 1)):
        for child in racers:
            child.call(ready, "cxi0")
            child.call(ready, *place)
        for _ in range(ROUNDS // 2):
            won = race(racers, [("cxi0", VNI), place, ("cxi0", VNI)], rng.randrange(511))
            assert won[1]
            assert sum(won) == 2


@pytest.mark.kill
def test_one_gets_the_pid_of_a_process_that_is_being_killed(
    racers: list[Child], kill_rounds: int, rng: random.Random
) -> None:
    *racing, zygote = racers
    for child in racing:
        child.call(ready, "cxi0")
    for number in range(kill_rounds):
        pid = rng.randrange(511)
        holder = zygote.call(hold, pid)
        calls = [child.start(wait_for_it, ("cxi0", VNI), pid, 20.0) for child in racing]
        time.sleep(rng.uniform(0, 0.01))
        os.kill(holder, signal.SIGKILL)
        zygote.call(reap, holder)
        while not any(call.done() for call in calls):
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.005))
        for child in racing:
            child.start(cxi_side.stop)
        assert sorted(call.result() for call in calls) == [False, True], f"round {number}"
        for child in racing:
            child.receive("stop", 60)
            child.call(drop)


def hold(world: World, pid: int) -> int:
    """Fork a process that has the PID."""

    def victim(told: int) -> None:
        side = CxiSide("cxi0", pid, cxi.AuthKey(1, VNI))
        assert side.address.pid == pid
        os.write(told, b"!")
        signal.pause()

    child, told = fork_victim(victim)
    assert os.read(told, 1)
    os.close(told)
    return child


def reap(world: World, pid: int) -> None:
    os.waitpid(pid, 0)


def names() -> set[str]:
    with open("/proc/net/unix") as table:
        return {line.rstrip().partition("@")[2] for line in table if "@weft-" in line}


def test_pid_of_a_process_stopped_in_enable_is_taken() -> None:
    """Its socket has the name already and does not listen yet: it has the address, however long it takes."""
    before = names()
    side = CxiSide("cxi0", 77, None)
    (name,) = (one for one in names() - before if one.endswith("-77"))
    side.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stopped:
        stopped.bind("\0" + name)
        side = CxiSide("cxi0", 77, None, enable=False)
        with pytest.raises(fi.NoSpace):
            side.ep.enable()
    side.ep.enable()
    side.close()
