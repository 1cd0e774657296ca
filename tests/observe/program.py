"""The functions of the observed processes (tests/procs/children.py)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
from tests.patience import Patience
from tests.procs.peer import Side, World

from weft import _process, cxi, fi

BYTES = 8
CALL_S = 60.0


class Talker:
    """An endpoint that sends to itself."""

    def __init__(self, provider: str = "weft", les: int = 0, cq_size: int = 0) -> None:
        hints = fi.Info(caps=fi.RMA | fi.MSG, fabric_attr=fi.FabricAttr(prov_name=provider))
        if les:
            from weft.providers.cxi import service

            hints.domain_attr.auth_key = cxi.AuthKey(service.create(limits={"les": les}).id, 10)
        info = fi.getinfo(hints=hints)[0]
        self.domain = fi.Fabric(info.fabric_attr).domain(info)
        self.cq, self.av, self.cntr = self.domain.cq_open(size=cq_size), self.domain.av_open(), self.domain.cntr_open()
        self.ep = self.domain.endpoint(info)
        self.ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
        self.ep.bind(self.av)
        self.ep.bind(self.cntr, fi.SEND)
        self.ep.enable()
        self.me = self.av.insert(self.ep.getname())

    def close(self) -> None:
        for one in (self.ep, self.cq, self.cntr, self.av, self.domain):
            one.close()

    def send(self, count: int) -> None:
        """Send messages that report no completion, and wait until all have left."""
        before, patience = self.cntr.read(), Patience(CALL_S)
        for _ in range(count):
            while True:
                with contextlib.suppress(fi.Again):
                    self.ep.inject(bytes(BYTES), dest_addr=self.me)
                    break
                self.cq.read()
                assert not patience.over
        while self.cntr.read() < before + count:
            self.cq.read()
            assert not patience.over


def talk(world: World, *args: Any) -> None:
    """Open a talker."""
    world.more["talker"] = Talker(*args)


def send(world: World, count: int) -> None:
    world.more["talker"].send(count)


def receive(world: World, count: int) -> None:
    """Post receives."""
    world.more["rooms"] = [bytearray(BYTES) for _ in range(count)]
    for room in world.more["rooms"]:
        world.more["talker"].ep.recv(room)


def refused(world: World, count: int) -> int:
    """Send until calls have been refused `count` times; the messages that were sent."""
    talker, sent, times = world.more["talker"], 0, 0
    while times < count:
        try:
            talker.ep.send(bytes(BYTES), dest_addr=talker.me)
            sent += 1
        except fi.Again:
            times += 1
    return sent


def flood(world: World, times: int) -> None:
    """Send until flow control has begun so many times at the receive side."""
    talker, patience = world.more["talker"], Patience(CALL_S)
    while talker.ep.message_statistics().flow_controls < times:
        with contextlib.suppress(fi.Again):
            talker.ep.send(bytes(BYTES), dest_addr=talker.me)
        talker.cq.read()
        assert not patience.over


def fork_talker(world: World) -> int:
    """Fork a child, which opens a talker of its own and waits until it is killed; its pid."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            world.more["talker"] = Talker()
            os.write(w, b"1")
            os.close(r)
            while True:
                _process.nic().progress()
        finally:
            os._exit(1)
    os.close(w)
    assert os.read(r, 1) == b"1"
    return pid


def fork_idle(world: World) -> int:
    """Fork a child that uses no NIC, and waits until it is killed; its pid, once it runs."""
    import time

    runs, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(told, b".")
        while True:
            time.sleep(3600)
    os.read(runs, 1)
    os.close(runs)
    os.close(told)
    return pid


def make_progress(world: World) -> None:
    _process.nic().progress()


def write_to(world: World, name: str, key: int) -> None:
    """Write into a region of another process."""
    side = world.side
    side.ep.write(bytes(BYTES), dest_addr=side.av.insert(name), addr=0, key=key)
    side.done()


# ---- traced programs: `python -m tests.observe.program NAME` ---------------------------------------------------------


def _messages() -> None:
    """Three messages that wait for their receives, two receives that wait for their messages."""
    talker = Talker()
    talker.send(3)
    rooms = [bytearray(BYTES) for _ in range(5)]
    for room in rooms:
        talker.ep.recv(room)
    talker.send(2)
    done, patience = 0, Patience(CALL_S)
    while done < 5:
        done += len(talker.cq.read(8))
        assert not patience.over


def _rma() -> None:
    """Writes and a read that load and store do; a write with a bad key, which fails."""
    side = Side()
    side.region(side.domain.alloc(4096, "uint8"), key=1)
    me = side.av.insert(side.name)
    for _ in range(4):
        side.ep.write(bytes(64), dest_addr=me, addr=0, key=1)
    side.ep.read(bytearray(32), src_addr=me, addr=0, key=1)
    side.ep.atomic(np.ones(1, "uint64"), dest_addr=me, addr=0, key=1, datatype=fi.UINT64, op=fi.SUM)
    side.done(6)
    side.ep.write(bytes(64), dest_addr=me, addr=0, key=99)
    side.failed()


def _stall() -> None:
    """Calls that a full completion queue refuses, and one more that it does not; prints the number of refused calls."""
    talker, times, patience = Talker("weft", 0, 4), 0, Patience(CALL_S)
    while True:
        assert not patience.over
        try:
            talker.ep.send(bytes(BYTES), dest_addr=talker.me)
            if times:
                break
        except fi.Again:
            times += 1
            if times >= 20:
                talker.cq.read(8)
    print(times)


def _flow_control() -> None:
    """Flow control that begins twice and has ended twice."""
    world, patience = World(), Patience(CALL_S)
    talk(world, "cxi", 20)
    flood(world, 2)
    while world.more["talker"].ep.message_statistics().state == "changing":
        make_progress(world)
        assert not patience.over


def _trigger() -> None:
    """A write that a counter triggers at 3."""
    side, patience = Side(caps=fi.RMA | fi.TRIGGER), Patience(CALL_S)
    side.region(side.domain.alloc(64, "uint8"), key=1)
    me = side.av.insert(side.name)
    trigger, done = side.domain.cntr_open(), side.domain.cntr_open()
    msg = fi.MsgRma([bytes(BYTES)], [fi.RmaIov(0, BYTES, 1)], me)
    side.domain.control(fi.QUEUE_WORK, fi.DeferredWork(3, trigger, done, fi.OP_WRITE, fi.OpRma(side.ep, msg, 0)))
    for _ in range(3):
        trigger.add(1)
    while not done.read():
        assert not patience.over


def _many() -> None:
    Talker().send(2000)


def _children() -> None:
    """A forked child, and a child started with exec; each uses Weft."""
    Talker().send(1)
    pid = os.fork()
    if pid == 0:
        Talker().send(1)
        os._exit(0)
    os.waitpid(pid, 0)
    subprocess.run([sys.executable, "-m", "tests.observe.program", "messages"], check=True)


def _killed() -> None:
    """Killed with SIGKILL in the middle: an operation is under way, for which nobody answers."""
    _rma()
    talker = Talker()
    talker.ep.send(bytes(1 << 20), dest_addr=talker.me)
    os.kill(os.getpid(), signal.SIGKILL)


def _exit() -> None:
    sys.exit(7)


def _nothing() -> None:
    pass


if __name__ == "__main__":
    globals()[f"_{sys.argv[1]}"]()
