"""Runs a list of operations on a pair of endpoints against a model, in a child process.

The model is a dictionary of byte arrays that does each operation when it is posted: endpoints keep the order of their
operations, so the model's bytes have to come out, whatever is under way. An operation under way when its region or
endpoint was closed may end either way; its bytes went to memory that nobody looks at any more.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tests.patience import Patience
from tests.procs import facts, peer
from tests.procs.children import CALL_S
from tests.procs.peer import World

from weft import fi

Step = tuple[Any, ...]
ACCESS = (fi.REMOTE_READ | fi.REMOTE_WRITE, fi.REMOTE_READ, fi.REMOTE_WRITE)
EITHER = -1
BARRIER = 1000  # a key that no step names


class Model:
    """Ten lines: the effect of every operation, at once."""

    def __init__(self) -> None:
        self.regions: dict[int, tuple[bytearray, int]] = {}

    def access(self, key: int, addr: int, length: int, want: int) -> int:
        if key not in self.regions:
            return int(fi.EKEYREJECTED)
        memory, access = self.regions[key]
        return 0 if addr + length <= len(memory) and access & want == want else int(fi.EACCES)

    def write(self, key: int, addr: int, data: bytes) -> int:
        err = self.access(key, addr, len(data), fi.REMOTE_WRITE)
        if not err:
            self.regions[key][0][addr : addr + len(data)] = data
        return err

    def read(self, key: int, addr: int, length: int) -> bytes | int:
        err = self.access(key, addr, length, fi.REMOTE_READ)
        return err or bytes(self.regions[key][0][addr : addr + length])

    def add(self, key: int, addr: int, value: int) -> bytes | int:
        err = self.access(key, addr, 8, fi.REMOTE_READ | fi.REMOTE_WRITE)
        if err:
            return err
        old = self.regions[key][0][addr : addr + 8]
        total = (int.from_bytes(old, "little") + value) % 2**64
        self.regions[key][0][addr : addr + 8] = total.to_bytes(8, "little")
        return bytes(old)


@dataclass
class Posted:
    """An operation under way and its required result."""

    err: int
    keys: set[int]
    buffer: Any = None
    expected: bytes | None = None  # of buffer, when it succeeds
    descs: Any = None
    statuses: list[int] = field(default_factory=list)


class Run:
    def __init__(self, pair: facts.Pair, steps: list[Step]) -> None:
        self.pair, self.steps, self.model = pair, steps, Model()
        self.out: dict[int, Posted] = {}
        self.data_sent: list[int] = []
        self.number = 0
        side = pair.me
        self.ep, self.cq = side.ep, side.cq

    def post(self, call: Any, posted: Posted) -> None:
        self.number += 1
        while True:
            try:
                call(self.number)
                break
            except fi.Again:
                self.poll(0.01)
        self.out[self.number] = posted

    def poll(self, timeout: float = 0.0) -> None:
        try:
            for entry in self.cq.sread(8, timeout=timeout) if timeout else self.cq.read(8):
                self.ended(entry.op_context, 0)
        except fi.Available:
            entry = self.cq.readerr()
            self.ended(entry.op_context, entry.err)
        except fi.Again:
            pass

    def ended(self, number: int, err: int) -> None:
        posted = self.out.pop(number)
        if posted.descs is not None and err != fi.ECANCELED:
            for i, (found, wanted) in enumerate(zip(posted.descs["status"], posted.statuses, strict=True)):
                assert wanted in (EITHER, found), f"operation {number}, descriptor {i}: {found}, expected {wanted}"
        if posted.err == EITHER:
            assert err in (0, fi.EKEYREJECTED, fi.EACCES, fi.ECANCELED), (number, err)
            return
        assert err == posted.err, f"operation {number} ended with {err}, expected {posted.err}"
        if not err and posted.expected is not None:
            assert bytes(posted.buffer) == posted.expected, f"operation {number} brought other bytes"

    def drain(self) -> None:
        deadline = Patience(CALL_S / 2)
        while self.out:
            assert not deadline.over, f"never ended: {self.out}; {self.pair.me}"
            self.poll(0.05)

    def check(self) -> None:
        self.drain()
        for key, (memory, _) in self.model.regions.items():
            found = self.pair.there(peer.contents, key)
            assert found == bytes(memory), f"region {key} differs from the model"

    def collect_data(self) -> None:
        if self.data_sent:
            came = self.pair.there(facts.events, len(self.data_sent))
            assert [entry[4] for entry, _ in came] == self.data_sent, "immediate data in another order"
            self.data_sent = []

    # ---- steps -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            for step in self.steps:
                getattr(self, "do_" + step[0])(*step[1:])
            self.check()
            self.collect_data()
            assert self.pair.there(facts.no_events)
        finally:
            with contextlib.suppress(AssertionError):
                self.drain()
            for key in self.model.regions:
                self.pair.there(peer.withdraw, key)

    def do_register(self, key: int, nbytes: int, access: int) -> None:
        if key in self.model.regions:
            self.pair.there(in_use, key)
            return
        self.pair.there(peer.expose, key, nbytes, key, self.pair.foreign, 0, ACCESS[access])
        # An operation under way with a key that no region had may find the new region.
        self.unsure({key})
        self.model.regions[key] = (bytearray(nbytes), ACCESS[access])
        if any(key in posted.keys for posted in self.out.values()):
            self.drain()
            self.model.regions[key][0][:] = self.pair.there(peer.contents, key)

    def do_close(self, key: int) -> None:
        if key in self.model.regions:
            self.unsure({key})
            self.pair.there(peer.withdraw, key)
            del self.model.regions[key]

    def unsure(self, keys: set[int]) -> None:
        for posted in self.out.values():
            if posted.keys & keys:
                posted.err = EITHER
                if posted.descs is not None:
                    touched = [i for i, key in enumerate(posted.descs["key"]) if int(key) in keys]
                    for i in touched:
                        posted.statuses[i] = EITHER

    def do_write(self, key: int, addr: int, length: int, value: int, how: int) -> None:
        data = np.full(length, value, np.uint8)
        err = self.model.write(key, addr, bytes(data))
        to = self.pair.peer

        def call(number: int) -> None:
            if how == 0:
                self.ep.write(data, dest_addr=to, addr=addr, key=key, context=number)
            elif how == 1:
                self.ep.writev(
                    [data[: length // 2], data[length // 2 :]], dest_addr=to, addr=addr, key=key, context=number
                )
            elif how == 2:
                message = fi.MsgRma([data], [fi.RmaIov(addr, length, key)], to, context=number)
                self.ep.writemsg(message, fi.FENCE)
            else:
                self.ep.writedata(data, data=number, dest_addr=to, addr=addr, key=key, context=number)

        self.post(call, Posted(err, {key}))
        if how == 3:
            self.drain()  # the region may be closed next, or opened: then nobody knows whether the data arrived
            if not err:
                self.data_sent.append(self.number)

    def do_read(self, key: int, addr: int, length: int) -> None:
        into = np.zeros(length, np.uint8)
        found = self.model.read(key, addr, length)
        err, expected = (found, None) if isinstance(found, int) else (0, found)
        self.post(
            lambda number: self.ep.read(into, src_addr=self.pair.peer, addr=addr, key=key, context=number),
            Posted(err, {key}, into, expected),
        )

    def do_add(self, key: int, addr: int, value: int) -> None:
        addr &= ~7
        operand, result = np.array([value], np.uint64), np.zeros(1, np.uint64)
        found = self.model.add(key, addr, value)
        err, expected = (found, None) if isinstance(found, int) else (0, found)
        where: dict[str, Any] = {"dest_addr": self.pair.peer, "addr": addr, "key": key, **facts.U64_SUM}
        self.post(
            lambda number: self.ep.fetch_atomic(operand, result=result, context=number, **where),
            Posted(err, {key}, result, expected),
        )

    def do_batch(self, pieces: list[tuple[int, int, int]], value: int) -> None:
        data = np.full(4096, value, np.uint8)
        descs = np.zeros(len(pieces), fi.RMA_DESC)
        statuses = []
        for i, (key, addr, length) in enumerate(pieces):
            descs[i] = (0, length, self.pair.peer, addr, key, -7, 0)
            statuses.append(self.model.write(key, addr, bytes(data[:length])))
        err = next((s for s in statuses if s), 0)
        # Which failure is told first depends on which descriptors go directly.
        several = len({s for s in statuses if s}) > 1
        self.post(
            lambda number: self.ep.write_batch(data, descs, context=number),
            Posted(EITHER if several else err, {p[0] for p in pieces}, descs=descs, statuses=statuses),
        )

    def do_poll(self) -> None:
        self.poll()

    def do_wait(self) -> None:
        self.poll(0.002)

    def do_check(self) -> None:
        self.check()

    def do_reopen(self) -> None:
        """Close this side's endpoint with whatever is under way, and open another."""
        keys = set().union(*(posted.keys for posted in self.out.values()))
        self.unsure(keys)
        for posted in self.out.values():
            posted.err = EITHER
            posted.statuses = [EITHER] * len(posted.statuses)
        side = self.pair.me
        side.ep.close()
        with contextlib.suppress(fi.Available, fi.Again):
            self.drain()
        old = side.ep
        try:
            old.write(b"x", dest_addr=self.pair.peer, addr=0, key=1)
        except fi.BadState:
            pass
        else:
            raise AssertionError("a closed endpoint took an operation")
        side.ep = side.domain.endpoint(side.info)
        side.ep.bind(side.cq, fi.TRANSMIT | fi.RECV)
        side.ep.bind(side.av)
        for flags, counter in side.counters.items():
            side.ep.bind(counter, flags)
        side.ep.enable()
        self.ep = side.ep
        if keys:
            self.settle(keys)

    def settle(self, keys: set[int]) -> None:
        """Take over what the target really holds, once nothing that was canceled can still be served there.

        Keys that no region has yet count, too: a canceled operation would find a region that is registered later.
        """
        # Frames arrive in order, and immediate data goes by frame: once it is there, all before it were served.
        self.pair.there(peer.expose, BARRIER, 8, BARRIER, self.pair.foreign)
        self.post(
            lambda number: self.ep.writedata(
                b"", data=number, dest_addr=self.pair.peer, addr=0, key=BARRIER, context=number
            ),
            Posted(0, {BARRIER}),
        )
        self.data_sent.append(self.number)
        self.drain()
        self.collect_data()
        self.pair.there(peer.withdraw, BARRIER)
        for key in keys & set(self.model.regions):
            memory, access = self.model.regions[key]
            if access & fi.REMOTE_WRITE:
                memory[:] = self.pair.there(peer.contents, key)

    def do_reopen_there(self) -> None:
        """The target's endpoint is closed and another opened at its address: after a refusal, operations work again."""
        self.drain()
        self.collect_data()  # messages that an endpoint has not taken at its close are never taken
        self.pair.there(reopen)
        to = self.pair.peer
        for _ in range(50):
            self.ep.write(b"", dest_addr=to, addr=0, key=10**6, context="probe")
            try:
                self.cq.sread(1, timeout=CALL_S / 2)
                raise AssertionError("a key that nobody registered was accepted")
            except fi.Available:
                err = self.cq.readerr().err
            if err == fi.EKEYREJECTED:
                return
            assert err == fi.ECONNREFUSED, err
        raise AssertionError("the new endpoint was never reached")


def in_use(world: World, key: int) -> None:
    side = world.side
    try:
        side.domain.mr_reg(np.zeros(8, np.uint8), fi.REMOTE_READ, requested_key=key)
    except fi.NoKey:
        return
    raise AssertionError(f"key {key} was given twice")


def reopen(world: World) -> None:
    side = world.side
    name = side.name
    side.ep.close()
    side.ep = side.domain.endpoint(side.info)
    side.ep.bind(side.cq, fi.TRANSMIT | fi.RECV)
    side.ep.bind(side.av)
    for flags, counter in side.counters.items():
        side.ep.bind(counter, flags)
    side.ep.setname(name)
    side.ep.enable()


def run(world: World, steps: list[Step]) -> None:
    """In the child: run the steps on its pair; a failure leaves a pair that nobody should use again."""
    Run(world.more["pair"], steps).run()
