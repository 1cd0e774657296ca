"""The program of children (tests/procs/children.py), and the stack of fabric objects of both sides of a test.

`python -m tests.procs.peer <commands fd> <answers fd> <watch fd>` reads pickled (function, args), calls
function(world, *args) and answers ("value", result) or ("error", exception). When the commands end it closes what is
open, in an order of its own, and leaves. With WEFT_ENGINE=manual it makes progress while it waits.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.patience import Patience
from tests.procs.children import CALL_S, RemoteError

from weft import _process, fi

RW = fi.REMOTE_READ | fi.REMOTE_WRITE
CAPS = fi.RMA | fi.ATOMIC | fi.MSG | fi.TAGGED | fi.RMA_EVENT | fi.SOURCE | fi.FENCE


def progress() -> None:
    """One round of progress, for a NIC without an engine thread."""
    nic = _process.nic_if_open()
    if nic is not None and nic.engine == "manual":
        nic.progress()


class Side:
    """Fabric, domain, queue, vector and an enabled endpoint.

    caps, mr_mode, address   of the endpoint.
    counters                 bind flags -> a counter is opened and bound.
    """

    def __init__(
        self,
        *,
        caps: int = CAPS,
        mr_mode: int = 0,
        address: str | None = None,
        format: int = fi.CQ_FORMAT_DATA,
        size: int = 0,
        wait_obj: int = fi.WAIT_UNSPEC,
        bind: int = fi.TRANSMIT | fi.RECV,
        counters: tuple[int, ...] = (),
        op_flags: int = 0,
        msg_order: int | None = None,
        tx_size: int = 0,
    ) -> None:
        hints = fi.Info(
            caps=caps,
            domain_attr=fi.DomainAttr(mr_mode=mr_mode),
            tx_attr=fi.TxAttr(op_flags=op_flags, size=tx_size),
            fabric_attr=fi.FabricAttr(prov_name="weft"),
        )
        self.info = fi.getinfo(hints=hints)[0]
        self.info.domain_attr.mr_mode |= mr_mode
        if msg_order is not None:
            self.info.tx_attr.msg_order = msg_order
        self.fabric = fi.Fabric(self.info.fabric_attr)
        self.domain = self.fabric.domain(self.info)
        self.cq = self.domain.cq_open(format=format, size=size, wait_obj=wait_obj)
        self.av = self.domain.av_open()
        self.ep = self.domain.endpoint(self.info)
        self.counters = {int(flags): self.domain.cntr_open() for flags in counters}
        self.regions: list[fi.MemoryRegion] = []
        self.ep.bind(self.cq, bind)
        self.ep.bind(self.av)
        for flags, counter in self.counters.items():
            self.ep.bind(counter, flags)
        if address is not None:
            self.ep.setname(address)
        self.ep.enable()
        self.name = str(self.ep.getname())

    def region(self, array: Any, key: int = 0, access: int = RW, **more: Any) -> fi.MemoryRegion:
        mr = self.domain.mr_reg(array, access, requested_key=key, **more)
        self.regions.append(mr)
        return mr

    def close(self) -> None:
        # The endpoint first: a region that is bound to it can be closed only then.
        self.ep.close()
        for counter in self.counters.values():
            counter.close()
        for mr in self.regions:
            mr.close()
        for obj in (self.cq, self.av, self.domain, self.fabric):
            obj.close()

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def done(self, count: int = 1, timeout: float = CALL_S / 2) -> list[Any]:
        """`count` successful completions."""
        found: list[Any] = []
        try:
            while len(found) < count:
                found += self.cq.sread(count - len(found), timeout=timeout)
        except fi.Available:
            raise AssertionError(f"a failure where success was expected: {self.cq.readerr()}") from None
        except fi.Again:
            raise AssertionError(f"{len(found)} of {count} completions came: {self}") from None
        return found

    def failed(self, timeout: float = CALL_S / 2) -> fi.CqErrEntry:
        """The next completion, which has to be an error."""
        try:
            found = self.cq.sread(1, timeout=timeout)
        except fi.Available:
            entry: fi.CqErrEntry = self.cq.readerr()
            return entry
        raise AssertionError(f"an error was expected, found {found}")

    def outcome(self, timeout: float = CALL_S / 2) -> Any:
        """The next completion, success or error."""
        try:
            return self.cq.sread(1, timeout=timeout)[0]
        except fi.Available:
            return self.cq.readerr()

    def silent(self) -> bool:
        """True if no completion has arrived, after enough time for all operations under way."""
        for _ in range(20):
            progress()
            if self.cq.read():
                return False
            time.sleep(0.001)
        return True

    def __repr__(self) -> str:
        return f"<Side {self.ep!r} {_process.nic().statistics()}>"


class World:
    """The state of a child between calls."""

    def __init__(self, commands: int = -1) -> None:
        self.side: Side = None  # type: ignore[assignment]
        self.sides: dict[str, Side] = {}
        self.arrays: dict[Any, Any] = {}
        self.mrs: dict[Any, fi.MemoryRegion] = {}
        self.more: dict[str, Any] = {}
        self.idle = False  # between commands the child does not poll, as it otherwise does under manual progress
        self._commands = commands
        self.was_asked = False  # the next command was read together with the current command

    def asked(self) -> bool:
        """True if the parent has sent a command or is gone: then a function that runs until stopped returns."""
        return self.was_asked or bool(select.select([self._commands], [], [], 0)[0])

    def until(self, ready: Any, what: str, timeout: float = CALL_S / 2) -> None:
        """Poll politely until ready()."""
        deadline = Patience(timeout)
        while not ready():
            assert not deadline.over, f"{what}: not in {timeout} s; {self.side}"
            progress()
            time.sleep(0.0005)


# ---- functions that many tests call ----------------------------------------------------------------------------------


def open_side(world: World, keywords: dict[str, Any] | None = None) -> str:
    """Open the child's side; its address."""
    world.side = Side(**(keywords or {}))
    return world.side.name


def memory(side: Side, nbytes: int, foreign: bool, fill: int = 0) -> Any:
    """An array, of Weft's memory or of NumPy's."""
    array = np.empty(nbytes, np.uint8) if foreign else side.domain.alloc(nbytes, np.uint8)
    array[:] = fill
    return array


def expose(
    world: World, name: Any, nbytes: int, key: int, foreign: bool, fill: int = 0, access: int = RW, flags: int = 0
) -> tuple[int, int]:
    """Register `nbytes` under a name; (key, address)."""
    array = memory(world.side, nbytes, foreign, fill)
    world.arrays[name] = array
    world.mrs[name] = world.side.region(array, key, access, flags=flags)
    return world.mrs[name].key, world.mrs[name].address


def withdraw(world: World, name: Any) -> None:
    """Close a region of `expose`."""
    mr = world.mrs.pop(name)
    mr.close()
    world.side.regions.remove(mr)


def contents(world: World, name: Any, start: int = 0, stop: int | None = None) -> bytes:
    return bytes(world.arrays[name][start:stop])


def close_side(world: World) -> None:
    if world.side is not None:
        world.side.close()
    world.side = None  # type: ignore[assignment]
    world.mrs.clear()
    world.arrays.clear()


def resources(world: World) -> dict[str, int]:
    """Counts that must not grow: descriptors, mappings, threads."""
    with open("/proc/self/maps") as maps:
        mappings = sum("weft-" in line for line in maps)
    return {"fds": len(os.listdir("/proc/self/fd")), "maps": mappings, "threads": len(os.listdir("/proc/self/task"))}


# ---- the child's main ------------------------------------------------------------------------------------------------


def _watch(fd: int, world: World) -> None:
    while os.read(fd, 1):
        nic = _process.nic_if_open()
        if nic is not None:
            print("statistics", nic.statistics(), "\npeers", nic.peers(), file=sys.stderr, flush=True)
        print(world.side, file=sys.stderr, flush=True)


def _bring(error: BaseException) -> BaseException:
    text = f"in process {os.getpid()}:\n{''.join(traceback.format_exception(error))}"
    return AssertionError(text) if isinstance(error, AssertionError) else RemoteError(text)


def main(commands: int, answers: int, watch: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nobody stays behind
    faulthandler.enable()
    world = World(commands)
    threading.Thread(target=_watch, args=(watch, world), daemon=True).start()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    for function, args in _commands(commands, world):
        try:
            answer = ("value", function(world, *args))
        except BaseException as error:
            answer = ("error", _bring(error))
        data = pickle.dumps(answer)
        view = memoryview(len(data).to_bytes(8, "little") + data)
        while view:
            view = view[os.write(answers, view) :]
    close_side(world)
    for side in world.sides.values():
        side.close()


def _commands(fd: int, world: World) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    data = b""
    while True:
        if len(data) >= 8 and len(data) >= 8 + int.from_bytes(data[:8], "little"):
            size = int.from_bytes(data[:8], "little")
            command, data = pickle.loads(data[8 : 8 + size]), data[8 + size :]
            world.was_asked = bool(data)
            yield command
            continue
        nic = _process.nic_if_open()
        manual = nic is not None and nic.engine == "manual" and not world.idle
        if manual:
            progress()
        if select.select([fd], [], [], 0.0005 if manual else None)[0]:
            piece = os.read(fd, 1 << 16)
            if not piece:
                return
            data += piece


if __name__ == "__main__":
    import tests.procs.peer as peer  # the functions of the module that others import, not of __main__

    peer.main(*map(int, sys.argv[1:4]))
