"""What must be true between two endpoints on every path: the facts that test_two_processes.py checks.

A fact is a function of a `Pair`: this side, the peer's fi_addr, and `there()`, which runs a function at the other side.
It runs in the initiator's process; an AssertionError travels back to pytest. Every fact is written so that it fails
where the behaviour it names is missing: memory holds a pattern before and is compared as a whole after.
"""

from __future__ import annotations

import itertools
import os
import select
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tests.procs import peer
from tests.procs.children import CALL_S, Child
from tests.procs.peer import RW, Side, World

from weft import _process, fi

LARGE = 64 << 20
U64_SUM: dict[str, Any] = {"datatype": fi.UINT64, "op": fi.SUM}
FACTS: dict[str, Callable[[Pair], None]] = {}
CLAUSES: dict[str, tuple[str, ...]] = {}
_keys = itertools.count(1000)


def fact(*clauses: str) -> Callable[[Callable[[Pair], None]], Callable[[Pair], None]]:
    def keep(function: Callable[[Pair], None]) -> Callable[[Pair], None]:
        FACTS[function.__name__] = function
        CLAUSES[function.__name__] = clauses
        return function

    return keep


def cases(facts: Iterable[str], clauses: Mapping[str, tuple[str, ...]]) -> list[Any]:
    """A case for each fact, with its clauses and its name, for `parametrize`."""
    return [
        pytest.param(
            name, marks=[pytest.mark.fact(name), *([pytest.mark.clause(*clauses[name])] if clauses[name] else [])]
        )
        for name in facts
    ]


class Pair:
    """This side and a peer, in another process or (path self) at another endpoint of this one."""

    def __init__(self, path: str, inside: Sequence[str] = ()) -> None:
        self.path = path
        self.foreign = path in ("foreign", "ring")
        self.target: Child | None = None
        self.other = World()
        if path != "self":
            settings = {k: v for k, v in os.environ.items() if k.startswith("WEFT_")}
            self.target = Child(inside, **settings)
            self.target.progress = peer.progress
        self.me = Side(counters=(fi.READ, fi.WRITE), wait_obj=fi.WAIT_FD)
        # Two remote counters, so that the target counts; a second endpoint without them is `quiet`.
        keywords = {"counters": (fi.REMOTE_READ, fi.REMOTE_WRITE)}
        self.name = self.there(peer.open_side, keywords)
        self.peer = self.me.av.insert(self.name)
        self.there(meet, self.me.name)

    def there(self, function: Callable[..., Any], *args: Any) -> Any:
        if self.target is None:
            return function(self.other, *args)
        return self.target.call(function, *args)

    def expose(self, nbytes: int, fill: int = 0xEE, access: int = RW, flags: int = 0) -> Remote:
        key = next(_keys)
        self.there(peer.expose, key, nbytes, key, self.foreign, fill, access, flags)
        return Remote(self, key, nbytes)

    def local(self, nbytes: int, seed: int = 1) -> Any:
        """Random bytes at this side, in Weft's memory or NumPy's as on the other side."""
        array = peer.memory(self.me, nbytes, self.foreign)
        array[:] = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
        return array

    def close(self) -> None:
        if self.target is None:
            peer.close_side(self.other)
        else:
            code = self.target.close()
            assert code == 0, code
        self.me.close()


class Remote:
    """A region at the other side."""

    def __init__(self, pair: Pair, key: int, nbytes: int) -> None:
        self.pair, self.key, self.nbytes = pair, key, nbytes

    def bytes(self, start: int = 0, stop: int | None = None) -> bytes:
        found: bytes = self.pair.there(peer.contents, self.key, start, stop)
        return found

    def wait(self, expected: bytes, start: int = 0) -> None:
        """Until the region holds these bytes: for operations that say nothing at this side."""
        deadline = time.monotonic() + CALL_S / 2
        while self.bytes(start, start + len(expected)) != expected:
            assert time.monotonic() < deadline, "the bytes did not arrive"
            peer.progress()

    def close(self) -> None:
        self.pair.there(peer.withdraw, self.key)


# ---- at the other side -----------------------------------------------------------------------------------------------


def meet(world: World, name: str) -> int:
    world.more["initiator"] = world.side.av.insert(name)
    return int(world.more["initiator"])


def events(world: World, count: int) -> list[tuple[Any, int]]:
    """`count` completions of the other side, with their sources."""
    found: list[tuple[Any, int]] = []
    while len(found) < count:
        found += [(tuple(e), source) for e, source in world.side.cq.sreadfrom(count - len(found), timeout=CALL_S / 2)]
    return found


def no_events(world: World) -> bool:
    return world.side.silent()


def count(world: World, flag: int) -> int:
    return int(world.side.counters[flag].read())


def wait_count(world: World, flag: int, value: int) -> int:
    world.side.counters[flag].wait(value, timeout=CALL_S / 2)
    return int(world.side.counters[flag].read())


def expose_vector(world: World, key: int, sizes: list[int], foreign: bool) -> None:
    parts = [peer.memory(world.side, n, foreign, 0xEE) for n in sizes]
    world.arrays[key] = parts
    mr = world.side.domain.mr_regv(parts, RW, requested_key=key)
    world.mrs[key] = mr
    world.side.regions.append(mr)


def vector(world: World, key: int) -> bytes:
    return b"".join(bytes(part) for part in world.arrays[key])


def counted_region(world: World, key: int, nbytes: int, foreign: bool) -> None:
    array = peer.memory(world.side, nbytes, foreign, 0)
    mr = world.side.domain.mr_reg(array, RW, requested_key=key)
    counter = world.side.domain.cntr_open()
    mr.bind(counter, fi.REMOTE_WRITE)
    mr.enable()
    world.more[f"counter {key}"] = (mr, counter, array)


def region_count(world: World, key: int, value: int) -> int:
    """What the counter says once it has reached `value`."""
    counter = world.more[f"counter {key}"][1]
    counter.wait(value, timeout=CALL_S / 2)
    return int(counter.read())


def drop_counted(world: World, key: int) -> None:
    mr, counter, _ = world.more.pop(f"counter {key}")
    counter.close()
    mr.close()


def state(world: World, key: int) -> str:
    return str(world.mrs[key].state)


def works(world: World) -> bool:
    """The other side's endpoint can still do its work: it writes to itself."""
    side = world.side
    mine = side.domain.alloc(8, np.uint8)
    mine[:] = 0
    with side.domain.mr_reg(mine, RW, requested_key=999_999):
        side.ep.write(b"12345678", dest_addr=side.av.insert(side.name), addr=0, key=999_999)
        side.done()
    return bytes(mine) == b"12345678"


def serve_a_while(world: World) -> None:
    for _ in range(200):
        peer.progress()
        time.sleep(0.0005)


# ---- the calls of fi_rma(3) ------------------------------------------------------------------------------------------


@fact(
    "rma.write.transfers",
    "rma.arg.buf-write",
    "rma.arg.len",
    "rma.arg.key",
    "rma.arg.dest-addr",
    "rma.addr.scalable",
    "rma.general.byte-level",
    "rma.completion.queue",
    "rma.completion.context",
    "rma.arg.context",
    "rma.arg.ep",
    "mr.default.byte-offset",
    "mr.default.base-zero",
    "mr.default.app-key",
    "mr.default.rma-unregistered",
    "mr.local.unset-null-desc",
    "mr.access.remote-write-rma",
    "mr.general.rma-target",
    "mr.key.usable-at-peer",
)
def write_moves_bytes_and_nothing_else(pair: Pair) -> None:
    region = pair.expose(5000)
    expected = bytearray(region.bytes())
    context = object()
    for offset, length in ((0, 1), (1, 7), (8, 8), (21, 300), (333, 4096), (4999, 1)):
        data = pair.local(length + 5, seed=offset)
        pair.me.ep.write(data, dest_addr=pair.peer, addr=offset, key=region.key, context=context, len=length)
        (entry,) = pair.me.done()
        assert entry.op_context is context
        assert entry.flags & (fi.RMA | fi.WRITE) == fi.RMA | fi.WRITE
        expected[offset : offset + length] = bytes(data[:length])
        assert region.bytes() == bytes(expected)
    region.close()


@fact(
    "rma.read.transfers",
    "rma.arg.buf-read",
    "rma.arg.src-addr",
    "mr.access.remote-read",
    "mr.access.remote-read-unmodified",
    "mr.default.rma-read-source",
)
def read_moves_bytes_and_nothing_else(pair: Pair) -> None:
    region = pair.expose(5000)
    data = pair.local(5000)
    pair.me.ep.write(data, dest_addr=pair.peer, addr=0, key=region.key)
    pair.me.done()
    for offset, length in ((0, 1), (3, 8), (100, 4096), (4999, 1), (0, 5000)):
        into = pair.local(length + 16, seed=7)
        before = bytes(into)
        context = ("read", offset)
        pair.me.ep.read(into[8:], src_addr=pair.peer, addr=offset, key=region.key, context=context, len=length)
        (entry,) = pair.me.done()
        assert entry.op_context is context
        assert entry.flags & (fi.RMA | fi.READ) == fi.RMA | fi.READ
        assert bytes(into) == before[:8] + bytes(data[offset : offset + length]) + before[8 + length :]
    assert region.bytes() == bytes(data)
    region.close()


@fact("rma.writev.transfers", "rma.arg.iov", "rma.arg.count", "rma.general.no-boundaries")
def writev_gathers(pair: Pair) -> None:
    region = pair.expose(1000)
    parts = [pair.local(n, seed=n) for n in (1, 0, 200, 77, 13)]
    joined = b"".join(map(bytes, parts))
    pair.me.ep.writev(parts, dest_addr=pair.peer, addr=5, key=region.key, context="v")
    assert pair.me.done()[0].op_context == "v"
    assert region.bytes() == b"\xee" * 5 + joined + b"\xee" * (995 - len(joined))
    pair.me.ep.writev(parts, dest_addr=pair.peer, addr=500, key=region.key, count=1)
    pair.me.done()
    assert region.bytes(500, 503) == bytes(parts[0]) + b"\xee\xee"
    region.close()


@fact("rma.readv.transfers", "rma.arg.iov", "rma.arg.count")
def readv_scatters(pair: Pair) -> None:
    region = pair.expose(1000)
    data = pair.local(1000)
    pair.me.ep.write(data, dest_addr=pair.peer, addr=0, key=region.key)
    pair.me.done()
    parts = [pair.local(n, seed=3) for n in (9, 100, 1)]
    pair.me.ep.readv(parts, src_addr=pair.peer, addr=17, key=region.key)
    pair.me.done()
    assert b"".join(map(bytes, parts)) == bytes(data[17 : 17 + 110])
    parts = [pair.local(n, seed=3) for n in (4, 4)]
    before = bytes(parts[1])
    pair.me.ep.readv(parts, src_addr=pair.peer, addr=0, key=region.key, count=1)
    pair.me.done()
    assert (bytes(parts[0]), bytes(parts[1])) == (bytes(data[:4]), before)
    region.close()


@fact(
    "rma.arg.msg",
    "rma.msg.msg-iov",
    "rma.msg.iov-count",
    "rma.msg.addr",
    "rma.msg.rma-iov",
    "rma.msg.rma-iov-count",
    "rma.msg.context",
    "rma.iov.addr",
    "rma.iov.len",
    "rma.iov.key",
)
def writemsg_and_readmsg_move_lists_to_lists(pair: Pair) -> None:
    first, second = pair.expose(300), pair.expose(300)
    data = [pair.local(n, seed=n) for n in (100, 60, 40)]
    joined = b"".join(map(bytes, data))
    message = fi.MsgRma(
        msg_iov=data,
        rma_iov=[fi.RmaIov(10, 150, first.key), fi.RmaIov(200, 50, second.key)],
        addr=pair.peer,
        context="message",
    )
    pair.me.ep.writemsg(message)
    assert pair.me.done()[0].op_context == "message"
    assert first.bytes() == b"\xee" * 10 + joined[:150] + b"\xee" * 140
    assert second.bytes() == b"\xee" * 200 + joined[150:] + b"\xee" * 50
    into = [np.zeros(n, np.uint8) for n in (30, 170, 99)]
    message.msg_iov, message.iov_count = into, 2
    pair.me.ep.readmsg(message)
    pair.me.done()
    assert bytes(into[0]) + bytes(into[1]) == joined
    assert not into[2].any()
    message.msg_iov, message.iov_count, message.rma_iov_count = into, 1, 1
    message.rma_iov = [fi.RmaIov(10, 30, first.key), fi.RmaIov(0, 1, 12345)]
    into[0][:] = 0
    pair.me.ep.readmsg(message)
    pair.me.done()
    assert bytes(into[0]) == joined[:30]
    first.close()
    second.close()


@fact("rma.write.family")
def the_write_calls_leave_equal_bytes(pair: Pair) -> None:
    data = pair.local(100)
    ep, peer_, found = pair.me.ep, pair.peer, []
    calls: list[tuple[Callable[[int], None], int]] = [
        (lambda key: ep.write(data, dest_addr=peer_, addr=3, key=key), 1),
        (lambda key: ep.writev([data[:60], data[60:]], dest_addr=peer_, addr=3, key=key), 1),
        (lambda key: ep.writemsg(fi.MsgRma([data], [fi.RmaIov(3, 100, key)], peer_)), 1),
        (lambda key: ep.inject_write(data, dest_addr=peer_, addr=3, key=key), 0),
        (lambda key: ep.writedata(data, data=1, dest_addr=peer_, addr=3, key=key), 1),
        (lambda key: ep.inject_writedata(data, data=1, dest_addr=peer_, addr=3, key=key), 0),
    ]
    for call, completions in calls:
        region = pair.expose(120)
        call(region.key)
        pair.me.done(completions)
        region.wait(bytes(data), 3)
        found.append(region.bytes())
        region.close()
    assert set(found) == {b"\xee" * 3 + bytes(data) + b"\xee" * 17}
    pair.there(events, 2)


@fact("rma.inject-write.completion", "rma.flag.inject")
def inject_returns_the_buffer_at_once(pair: Pair) -> None:
    region = pair.expose(256 * 64)
    expected = b""
    buffer = np.empty(256, np.uint8)
    for i in range(64):
        buffer[:] = i
        if i % 2:
            pair.me.ep.inject_write(buffer, dest_addr=pair.peer, addr=256 * i, key=region.key)
        else:
            message = fi.MsgRma([buffer[:255]], [fi.RmaIov(256 * i, 255, region.key)], pair.peer)
            pair.me.ep.writemsg(message, fi.INJECT)
        expected += bytes(buffer[:255]) + (bytes([i]) if i % 2 else b"\xee")
        buffer[:] = 0xAA  # the call returned: the buffer is ours again
    region.wait(expected)
    # The injected messages with completions report; inject_write reports nothing but failures.
    assert len(pair.me.done(32)) == 32
    assert pair.me.silent()
    pair.me.ep.inject_write(buffer, dest_addr=pair.peer, addr=0, key=987_654_321)
    assert pair.me.failed().err == fi.EKEYREJECTED
    region.close()


@fact("rma.flag.inject-size")
def inject_refuses_what_is_longer_than_inject_size(pair: Pair) -> None:
    region = pair.expose(1024)
    limit = pair.me.ep.info.tx_attr.inject_size
    data = pair.local(limit + 1)
    for call in (
        lambda: pair.me.ep.inject_write(data, dest_addr=pair.peer, addr=0, key=region.key),
        lambda: pair.me.ep.writemsg(fi.MsgRma([data], [fi.RmaIov(0, limit + 1, region.key)], pair.peer), fi.INJECT),
    ):
        with pytest.raises(fi.MessageTooLong):
            call()
    assert pair.me.silent()
    assert region.bytes() == b"\xee" * 1024
    region.close()


@fact(
    "rma.writedata.data",
    "rma.inject-writedata.data",
    "rma.arg.data",
    "rma.msg.data",
    "rma.remote.data-completion",
    "rma.flag.cq-data",
    "rma.flag.cq-data-writedata",
)
def immediate_data_arrives_with_its_source_after_the_bytes(pair: Pair) -> None:
    region = pair.expose(64)
    data = pair.local(8)
    values = [0, 1, 2**32 + 5, 2**64 - 1]
    pair.me.ep.writedata(data, data=values[0], dest_addr=pair.peer, addr=0, key=region.key)
    pair.me.ep.writemsg(fi.MsgRma([data], [fi.RmaIov(8, 8, region.key)], pair.peer, data=values[1]), fi.REMOTE_CQ_DATA)
    pair.me.ep.inject_writedata(data, data=values[2], dest_addr=pair.peer, addr=16, key=region.key)
    pair.me.ep.writedata(b"", data=values[3], dest_addr=pair.peer, addr=24, key=region.key)
    pair.me.done(3)
    came = pair.there(events, 4)
    assert region.bytes() == bytes(data) * 3 + b"\xee" * 40
    initiator = pair.there(meet, pair.me.name)
    assert [entry[4] for entry, _ in came] == values
    assert all(source == initiator for _, source in came)
    assert all(entry[1] & fi.REMOTE_CQ_DATA and entry[1] & fi.REMOTE_WRITE and entry[1] & fi.RMA for entry, _ in came)
    # The flag decides: data in the message alone says nothing.
    pair.me.ep.writemsg(fi.MsgRma([data], [fi.RmaIov(8, 8, region.key)], pair.peer, data=77))
    pair.me.done()
    assert pair.there(no_events)
    region.close()


@fact("rma.remote.read-silent", "rma.remote.write-silent")
def plain_reads_and_writes_are_silent_at_the_target(pair: Pair) -> None:
    region = pair.expose(64)
    data = pair.local(64)
    pair.me.ep.write(data, dest_addr=pair.peer, addr=0, key=region.key)
    pair.me.ep.read(data, src_addr=pair.peer, addr=0, key=region.key)
    pair.me.done(2)
    assert pair.there(no_events)
    region.close()


@fact("rma.len.zero")
def zero_bytes_are_a_transfer(pair: Pair) -> None:
    region = pair.expose(16)
    for addr in (0, 7, 16):
        pair.me.ep.write(b"", dest_addr=pair.peer, addr=addr, key=region.key, context="w")
        pair.me.ep.read(np.empty(0, np.uint8), src_addr=pair.peer, addr=addr, key=region.key, context="r")
        assert [e.op_context for e in pair.me.done(2)] == ["w", "r"]
    pair.me.ep.write(b"", dest_addr=pair.peer, addr=17, key=region.key)
    assert pair.me.failed().err == fi.EACCES
    pair.me.ep.write(b"", dest_addr=pair.peer, addr=0, key=4242_4242)
    assert pair.me.failed().err == fi.EKEYREJECTED
    assert region.bytes() == b"\xee" * 16
    region.close()


@fact()
def large_transfers_arrive_whole(pair: Pair) -> None:
    region = pair.expose(LARGE + 16)
    data = pair.local(LARGE)
    pair.me.ep.write(data, dest_addr=pair.peer, addr=7, key=region.key, context="out")
    assert pair.me.done()[0].op_context == "out"
    back = peer.memory(pair.me, LARGE, pair.foreign)
    pair.me.ep.read(back, src_addr=pair.peer, addr=7, key=region.key, context="back")
    assert pair.me.done()[0].op_context == "back"
    assert np.array_equal(back, data)
    assert region.bytes(0, 7) == b"\xee" * 7
    assert region.bytes(LARGE + 7) == b"\xee" * 9
    region.close()


@fact("rma.len.max")
def longer_than_max_msg_size_is_refused(pair: Pair) -> None:
    region = pair.expose(64)
    limit = pair.me.ep.info.ep_attr.max_msg_size
    with pytest.raises(fi.MessageTooLong):
        pair.me.ep.write((int(np.zeros(1).ctypes.data), limit + 1), dest_addr=pair.peer, addr=0, key=region.key)
    assert pair.me.silent()
    region.close()


# ---- errors touch nothing --------------------------------------------------------------------------------------------


@fact("mr.reg.key-required", "rma.ret.errno-header")
def a_wrong_key_touches_nothing(pair: Pair) -> None:
    region = pair.expose(64)
    data = pair.local(64)
    before = bytes(data)
    for key in (region.key + 500_000, 0, 2**64 - 2, 2**63):
        pair.me.ep.write(data, dest_addr=pair.peer, addr=0, key=key, context=("w", key))
        entry = pair.me.failed()
        assert (entry.err, entry.op_context) == (fi.EKEYREJECTED, ("w", key))
        assert isinstance(entry.exception(), fi.KeyRejected)
        pair.me.ep.read(data, src_addr=pair.peer, addr=0, key=key)
        assert pair.me.failed().err == fi.EKEYREJECTED
        pair.me.ep.fetch_atomic(np.ones(1, np.uint64), result=data[:8], dest_addr=pair.peer, addr=0, key=key, **U64_SUM)
        assert pair.me.failed().err == fi.EKEYREJECTED
    assert bytes(data) == before
    assert region.bytes() == b"\xee" * 64
    region.close()


@fact()
def wrong_bounds_touch_nothing(pair: Pair) -> None:
    region = pair.expose(64)
    data = pair.local(65)
    before = bytes(data)
    for addr, length in ((0, 65), (64, 1), (60, 5), (2**64 - 8, 16), (2**63, 1), (65, 0)):
        pair.me.ep.write(data, dest_addr=pair.peer, addr=addr, key=region.key, len=length)
        entry = pair.me.failed()
        assert entry.err == fi.EACCES, entry
        assert b"end of the region" in entry.err_data or pair.path != "direct"
        pair.me.ep.read(data, src_addr=pair.peer, addr=addr, key=region.key, len=length)
        assert pair.me.failed().err == fi.EACCES
    pair.me.ep.atomic(np.ones(2, np.uint64), dest_addr=pair.peer, addr=56, key=region.key, **U64_SUM)
    assert pair.me.failed().err == fi.EACCES
    # A list is checked as a whole before its first piece moves.
    message = fi.MsgRma([data[:16]], [fi.RmaIov(0, 8, region.key), fi.RmaIov(60, 8, region.key)], pair.peer)
    pair.me.ep.writemsg(message)
    assert pair.me.failed().err == fi.EACCES
    pair.me.ep.readmsg(message)
    assert pair.me.failed().err == fi.EACCES
    assert bytes(data) == before
    assert region.bytes() == b"\xee" * 64
    region.close()


@fact("mr.arg.access", "mr.general.permissions", "mr.access.combination")
def wrong_access_touches_nothing(pair: Pair) -> None:
    readable, writable = pair.expose(64, access=fi.REMOTE_READ), pair.expose(64, access=fi.REMOTE_WRITE)
    data = pair.local(64)
    before = bytes(data)
    one, result = np.ones(1, np.uint64), np.zeros(1, np.uint64)
    pair.me.ep.write(data, dest_addr=pair.peer, addr=0, key=readable.key)
    assert pair.me.failed().err == fi.EACCES
    pair.me.ep.atomic(one, dest_addr=pair.peer, addr=0, key=readable.key, **U64_SUM)
    assert pair.me.failed().err == fi.EACCES
    pair.me.ep.read(data, src_addr=pair.peer, addr=0, key=writable.key)
    assert pair.me.failed().err == fi.EACCES
    for region in (readable, writable):  # a fetching atomic reads and writes
        pair.me.ep.fetch_atomic(one, result=result, dest_addr=pair.peer, addr=0, key=region.key, **U64_SUM)
        assert pair.me.failed().err == fi.EACCES
    assert result[0] == 0
    assert bytes(data) == before
    assert readable.bytes() == writable.bytes() == b"\xee" * 64
    pair.me.ep.read(data, src_addr=pair.peer, addr=0, key=readable.key)
    pair.me.ep.write(data, dest_addr=pair.peer, addr=0, key=writable.key)
    pair.me.done(2)
    readable.close()
    writable.close()


@fact("mr.close.remote-error", "mr.close.local-ep-unaffected")
def a_closed_region_is_an_error_here_and_nothing_there(pair: Pair) -> None:
    region = pair.expose(64)
    data = pair.local(64)
    pair.me.ep.write(data, dest_addr=pair.peer, addr=0, key=region.key)
    pair.me.done()
    array = pair.there(keep_array, region.key)
    region.close()
    for _ in range(3):
        pair.me.ep.write(np.zeros(64, np.uint8), dest_addr=pair.peer, addr=0, key=region.key)
        entry = pair.me.failed()
        assert entry.err == fi.EKEYREJECTED, entry
        pair.me.ep.read(np.zeros(64, np.uint8), src_addr=pair.peer, addr=0, key=region.key)
        assert pair.me.failed().err == fi.EKEYREJECTED
    assert pair.there(kept_array, array) == bytes(data)
    assert pair.there(works)
    # The key is free again, for other memory.
    pair.there(peer.expose, region.key, 32, region.key, pair.foreign, 1)
    pair.me.ep.write(b"again", dest_addr=pair.peer, addr=2, key=region.key)
    pair.me.done()
    assert region.bytes(0, 8) == b"\x01\x01again\x01"
    region.close()


def keep_array(world: World, key: int) -> str:
    world.arrays[f"kept {key}"] = world.arrays[key]
    return f"kept {key}"


def kept_array(world: World, name: str) -> bytes:
    return bytes(world.arrays.pop(name))


@fact("rma.ret.negative", "rma.ret.success")
def a_call_returns_or_raises_an_errno(pair: Pair) -> None:
    region = pair.expose(8)
    assert pair.me.ep.write(b"x", dest_addr=pair.peer, addr=0, key=region.key) is None
    pair.me.done()
    with pytest.raises(fi.FabricError) as raised:
        pair.me.ep.write(b"x", dest_addr=pair.peer + 1000, addr=0, key=region.key)  # an fi_addr that nobody inserted
    assert raised.value.errno == fi.EINVAL
    region.close()


@fact()
def nobody_at_the_address_is_an_error_completion(pair: Pair) -> None:
    nobody = pair.me.av.insert(f"weft://0/1/{0x30000000 + os.getpid()}")
    for _ in range(3):
        pair.me.ep.write(b"x", dest_addr=nobody, addr=0, key=1, context="nobody")
        entry = pair.me.failed()
        assert (entry.err, entry.op_context) == (fi.ECONNREFUSED, "nobody")
    pair.me.av.remove(nobody)


# ---- vectors of calls, order, completions ----------------------------------------------------------------------------


@fact()
def a_batch_reports_every_descriptor(pair: Pair) -> None:
    count = 300
    region = pair.expose(count * 16)
    data = pair.local(count * 16)
    descs = np.zeros(count, fi.RMA_DESC)
    descs["local_offset"] = np.arange(count) * 16
    descs["length"] = 16
    descs["dest_addr"] = pair.peer
    descs["remote_addr"] = np.arange(count)[::-1] * 16
    descs["key"] = region.key
    descs["status"] = -1
    pair.me.ep.write_batch(data, descs, context="all")
    (entry,) = pair.me.done()
    assert entry.op_context == "all"
    assert not descs["status"].any()
    assert region.bytes() == data.reshape(count, 16)[::-1].tobytes()
    back = np.zeros(count * 16, np.uint8)
    pair.me.ep.read_batch(back, descs)
    pair.me.done()
    assert np.array_equal(back, data)
    # Bad ones among good ones: each says so, the others are done, the completion is a failure.
    descs["key"][5] += 700_000
    descs["remote_addr"][9] = count * 16 - 8
    descs["local_offset"][11] = count * 16
    data[:] = 0x55
    before = region.bytes()
    pair.me.ep.write_batch(data, descs, context="some")
    entry = pair.me.failed()
    assert entry.op_context == "some"
    status = list(descs["status"])
    assert [i for i, s in enumerate(status) if s] == [5, 9, 11]
    assert [int(status[i]) for i in (5, 9, 11)] == [fi.EKEYREJECTED, fi.EACCES, fi.EINVAL], status
    expected = np.full(count * 16, 0x55, np.uint8).reshape(count, 16)
    for i in (5, 9, 11):
        expected[count - 1 - i] = np.frombuffer(before, np.uint8).reshape(count, 16)[count - 1 - i]
    assert region.bytes() == expected.tobytes()
    pair.me.ep.write_batch(data, descs[:0], context="none")
    assert pair.me.done()[0].op_context == "none"
    region.close()


@fact("rma.flag.fence-scope", "rma.flag.fence-defers", "rma.flag.fence-later", "rma.flag.fence-results")
def a_fence_waits_for_what_came_before(pair: Pair) -> None:
    """On an endpoint that keeps no order of its own. Where the first region takes frames and the second does not (path
    ring), an operation on the second would overtake one on the first: the fence is what holds it back."""
    nbytes = 1 << 20
    slow, quick = pair.expose(nbytes), pair.expose(64)
    quick_key = next(_keys)
    pair.there(peer.expose, quick_key, 64, quick_key, False, 0)
    side = Side(msg_order=0)
    to = side.av.insert(pair.name)
    big, back, word = np.empty(nbytes, np.uint8), np.empty(nbytes, np.uint8), np.empty(8, np.uint8)
    for round_ in range(6):
        big[:], word[:] = round_, round_
        side.ep.write(big, dest_addr=to, addr=0, key=slow.key, context="before")
        fenced = fi.MsgRma([word], [fi.RmaIov(0, 8, quick_key)], to, context="fenced")
        side.ep.writemsg(fenced, fi.FENCE)
        side.ep.write(word, dest_addr=to, addr=8, key=quick_key, context="later")
        contexts = [e.op_context for e in side.done(3)]
        assert contexts[0] == "before", contexts
        side.ep.write(big, dest_addr=to, addr=0, key=slow.key)
        read = fi.MsgRma([back], [fi.RmaIov(0, nbytes, slow.key)], to)
        side.ep.readmsg(read, fi.FENCE)
        side.done(2)
        assert (back == round_).all()
    side.close()
    pair.there(peer.withdraw, quick_key)
    slow.close()
    quick.close()


@fact()
def operations_keep_their_order(pair: Pair) -> None:
    """msg_order promises it: reads see what was written before, and not what is written after."""
    nbytes = 3 << 20
    region = pair.expose(nbytes)
    old, new = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    for value in range(1, 7):
        into = np.zeros(nbytes, np.uint8)
        old[:], new[:] = value, value + 100
        pair.me.ep.write(old, dest_addr=pair.peer, addr=0, key=region.key)
        pair.me.ep.read(into, src_addr=pair.peer, addr=0, key=region.key)
        pair.me.ep.write(new, dest_addr=pair.peer, addr=0, key=region.key)
        pair.me.done(3)
        assert (into == value).all(), (value, np.unique(into))
        assert region.bytes() == bytes(new)
    region.close()


@fact()
def many_reads_before_a_write_do_not_see_it(pair: Pair) -> None:
    """More answers under way than the target has room for: what must wait keeps its place in the order."""
    nbytes, reads = 8 << 20, 6
    region = pair.expose(nbytes, fill=1)
    into = [np.zeros(nbytes, np.uint8) for _ in range(reads)]
    new = np.full(nbytes, 2, np.uint8)
    for buffer in into:
        pair.me.ep.read(buffer, src_addr=pair.peer, addr=0, key=region.key)
    pair.me.ep.write(new, dest_addr=pair.peer, addr=0, key=region.key)
    if pair.target is not None:  # without an engine nobody takes answers here now: the target runs out of room for them
        pair.target.progress = None
        pair.there(serve_a_while)
        pair.target.progress = peer.progress
    pair.me.done(reads + 1)
    assert [int((buffer != 1).sum()) for buffer in into] == [0] * reads
    assert region.bytes() == bytes(new)
    region.close()


@fact("rma.flag.completion", "rma.writemsg.flags", "rma.readmsg.flags", "rma.flags.override", "rma.arg.context-ignored")
def selective_completion_reports_what_asks(pair: Pair) -> None:
    region = pair.expose(64)
    for op_flags in (0, fi.COMPLETION):
        side = Side(
            bind=fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION, op_flags=op_flags, counters=(fi.WRITE, fi.READ)
        )
        target = side.av.insert(pair.name)
        piece = np.zeros(8, np.uint8)
        message = fi.MsgRma([piece], [fi.RmaIov(0, 8, region.key)], target, context="message")
        side.ep.write(piece, dest_addr=target, addr=0, key=region.key, context="plain")
        side.ep.writemsg(message)
        side.ep.writemsg(message, fi.COMPLETION)
        side.ep.readmsg(message)
        side.ep.readmsg(message, fi.COMPLETION)
        side.counters[fi.WRITE].wait(3, timeout=CALL_S / 2)
        side.counters[fi.READ].wait(2, timeout=CALL_S / 2)
        expected = (["plain"] if op_flags else []) + ["message"] * 2
        assert [e.op_context for e in side.done(len(expected))] == expected
        assert side.silent()
        side.ep.write(piece, dest_addr=target, addr=0, key=123_456_789, context="failure")  # failures always report
        assert side.failed().op_context == "failure"
        side.close()
    region.close()


@fact("rma.flag.completion-ignored")
def completion_and_more_change_nothing_without_selective_completion(pair: Pair) -> None:
    region = pair.expose(64)
    piece = np.full(8, 9, np.uint8)
    for flags in (0, fi.COMPLETION, fi.MORE, fi.MORE | fi.COMPLETION):
        pair.me.ep.writemsg(fi.MsgRma([piece], [fi.RmaIov(0, 8, region.key)], pair.peer, context=flags), flags)
    assert [e.op_context for e in pair.me.done(4)] == [0, fi.COMPLETION, fi.MORE, fi.MORE | fi.COMPLETION]
    assert pair.me.silent()
    region.close()


@fact("rma.flag.delivery-complete")
def every_completion_level_is_reached(pair: Pair) -> None:
    """DELIVERY_COMPLETE: the bytes are there when the completion is; the weaker levels promise no more than that."""
    region = pair.expose(1 << 16)
    for i, flags in enumerate((fi.INJECT_COMPLETE, fi.TRANSMIT_COMPLETE, fi.DELIVERY_COMPLETE)):
        data = np.full(1 << 16, i, np.uint8)
        pair.me.ep.writemsg(fi.MsgRma([data], [fi.RmaIov(0, 1 << 16, region.key)], pair.peer, context=flags), flags)
        assert pair.me.done()[0].op_context == flags
        data[:] = 0xAA  # reusable at each level
        if flags == fi.DELIVERY_COMPLETE:
            assert region.bytes() == bytes([i]) * (1 << 16)
    region.close()


@fact("rma.err.eagain")
def a_full_queue_says_again_and_nothing_is_lost(pair: Pair) -> None:
    region = pair.expose(8 * 64)
    side = Side(size=8)
    target = side.av.insert(pair.name)
    posted, refused, contexts = 0, 0, []
    while posted < 64:
        try:
            side.ep.write(
                posted.to_bytes(8, "little"), dest_addr=target, addr=8 * posted, key=region.key, context=posted
            )
            posted += 1
        except fi.Again:
            refused += 1
            contexts += [e.op_context for e in side.done(1)]
    contexts += [e.op_context for e in side.done(64 - len(contexts))]
    assert refused
    assert contexts == list(range(64))
    assert region.bytes() == np.arange(64, dtype="<u8").tobytes()
    side.close()
    region.close()


# ---- waiting ---------------------------------------------------------------------------------------------------------


@fact()
def waiting_finds_what_arrives(pair: Pair) -> None:
    region = pair.expose(64)
    with pytest.raises(fi.Again):
        pair.me.cq.sread(1, timeout=0.01)
    before = pair.me.counters[fi.WRITE].read()
    pair.me.ep.write(b"x", dest_addr=pair.peer, addr=0, key=region.key)
    pair.me.counters[fi.WRITE].wait(before + 1, timeout=CALL_S / 2)
    assert len(pair.me.cq.sread(1, timeout=CALL_S / 2)) == 1
    with pytest.raises(fi.TimedOut):
        pair.me.counters[fi.WRITE].wait(before + 2, timeout=0.01)
    # The other side sleeps in sread until immediate data wakes it.
    if pair.target is not None:
        call = pair.target.start(events, 1)
        time.sleep(0.1)
        pair.me.ep.writedata(b"x", data=5, dest_addr=pair.peer, addr=0, key=region.key)
        pair.me.done()
        deadline = time.monotonic() + CALL_S / 2
        while not call.done():
            assert time.monotonic() < deadline
            peer.progress()
        assert call.result()[0][0][4] == 5
    region.close()


@fact()
def the_descriptor_wakes_select(pair: Pair) -> None:
    region = pair.expose(1 << 20)
    data = np.zeros(1 << 20, np.uint8)
    for _ in range(20):
        assert not pair.me.cq.read()
        pair.me.ep.write(data, dest_addr=pair.peer, addr=0, key=region.key)
        deadline = time.monotonic() + CALL_S / 2
        while True:
            try:
                pair.me.fabric.trywait([pair.me.cq])
            except fi.Again:
                break
            slice_ = 0.001 if _process.nic().engine == "manual" else CALL_S / 2
            if select.select([pair.me.cq.fd], [], [], slice_)[0]:
                break
            peer.progress()
            assert time.monotonic() < deadline
        assert len(pair.me.cq.read()) == 1
        assert not select.select([pair.me.cq.fd], [], [], 0)[0], "readable, and nothing to read"
    region.close()


# ---- counters --------------------------------------------------------------------------------------------------------


@fact()
def counters_count_both_sides(pair: Pair) -> None:
    region = pair.expose(64)
    local = {flag: c.read() for flag, c in pair.me.counters.items()}
    remote = {flag: pair.there(count, flag) for flag in (fi.REMOTE_READ, fi.REMOTE_WRITE)}
    errors = {flag: c.readerr() for flag, c in pair.me.counters.items()}
    piece = np.zeros(8, np.uint8)
    for i in range(10):
        pair.me.ep.write(piece, dest_addr=pair.peer, addr=0, key=region.key)
        if i < 4:
            pair.me.ep.read(piece, src_addr=pair.peer, addr=0, key=region.key)
    pair.me.ep.inject_write(piece, dest_addr=pair.peer, addr=0, key=region.key)
    pair.me.ep.atomic(np.ones(1, np.uint64), dest_addr=pair.peer, addr=0, key=region.key, **U64_SUM)
    pair.me.done(15)
    pair.me.counters[fi.WRITE].wait(local[fi.WRITE] + 12, timeout=CALL_S / 2)
    assert pair.me.counters[fi.READ].read() == local[fi.READ] + 4
    assert pair.there(wait_count, fi.REMOTE_WRITE, remote[fi.REMOTE_WRITE] + 12) == remote[fi.REMOTE_WRITE] + 12
    assert pair.there(wait_count, fi.REMOTE_READ, remote[fi.REMOTE_READ] + 4) == remote[fi.REMOTE_READ] + 4
    pair.me.ep.write(piece, dest_addr=pair.peer, addr=60, key=region.key)
    pair.me.failed()
    assert pair.me.counters[fi.WRITE].readerr() == errors[fi.WRITE] + 1
    assert pair.me.counters[fi.READ].readerr() == errors[fi.READ]
    region.close()


@fact(
    "mr.bind.counter",
    "mr.bind.counter-flags",
    "mr.bind.remote-write-rma",
    "mr.bind.remote-write-atomic",
)
def a_region_counts_what_modifies_it(pair: Pair) -> None:
    key = next(_keys)
    pair.there(counted_region, key, 64, pair.foreign)
    piece = np.zeros(8, np.uint8)
    for _ in range(3):
        pair.me.ep.write(piece, dest_addr=pair.peer, addr=0, key=key)
        pair.me.ep.read(piece, src_addr=pair.peer, addr=0, key=key)
    pair.me.ep.atomic(np.ones(1, np.uint64), dest_addr=pair.peer, addr=0, key=key, **U64_SUM)
    pair.me.done(7)
    assert pair.there(region_count, key, 4) == 4
    pair.me.ep.write(piece, dest_addr=pair.peer, addr=60, key=key)
    pair.me.failed()
    pair.me.ep.write(piece, dest_addr=pair.peer, addr=0, key=key)
    pair.me.done()
    # The target counts in order: neither the reads nor the refused write came in between.
    assert pair.there(region_count, key, 5) == 5
    pair.there(drop_counted, key)


# ---- regions of several buffers, slices ------------------------------------------------------------------------------


@fact("mr.regv.single-region", "mr.arg.iov", "mr.attr.mr-iov")
def a_region_of_several_buffers_is_one(pair: Pair) -> None:
    key = next(_keys)
    pair.there(expose_vector, key, [100, 1, 900, 24], pair.foreign)
    data = pair.local(1025)
    pair.me.ep.write(data, dest_addr=pair.peer, addr=0, key=key, len=1025)
    pair.me.done()
    assert pair.there(vector, key) == bytes(data)
    back = np.zeros(950, np.uint8)
    pair.me.ep.read(back, src_addr=pair.peer, addr=60, key=key)
    pair.me.done()
    assert bytes(back) == bytes(data[60:1010])
    pair.me.ep.write(data, dest_addr=pair.peer, addr=1, key=key)
    assert pair.me.failed().err == fi.EACCES
    pair.there(peer.withdraw, key)


@fact("mr.local.unset-valid-desc", "rma.arg.desc", "rma.msg.desc", "mr.access.write-rma", "mr.access.read-rma")
def registered_buffers_and_descriptors_serve(pair: Pair) -> None:
    region = pair.expose(4096)
    data = pair.local(4096)
    with pair.me.domain.mr_reg(data, fi.READ | fi.WRITE) as mr:
        pair.me.ep.write(mr[100:200], dest_addr=pair.peer, addr=50, key=region.key)
        pair.me.ep.write(data[200:300], mr.desc, dest_addr=pair.peer, addr=150, key=region.key)
        message = fi.MsgRma([data[300:310]], [fi.RmaIov(250, 10, region.key)], pair.peer, desc=[mr.desc])
        pair.me.ep.writemsg(message)
        pair.me.done(3)
        assert region.bytes(50, 260) == bytes(data[100:310])
        data[:] = 0
        pair.me.ep.read(mr[0:210], src_addr=pair.peer, addr=50, key=region.key)
        pair.me.done()
        assert bytes(data[:210]) == region.bytes(50, 260)
    region.close()


# ---- atomics ---------------------------------------------------------------------------------------------------------


@fact("mr.general.atomic-target", "mr.access.remote-write-atomic", "mr.default.atomic-unregistered")
def atomics_change_fetch_and_compare(pair: Pair) -> None:
    region = pair.expose(64, fill=0)
    ep, to = pair.me.ep, pair.peer
    one, result = np.array([7, 9], np.uint64), np.zeros(2, np.uint64)
    ep.atomic(one, dest_addr=to, addr=8, key=region.key, datatype=fi.UINT64, op=fi.SUM)
    ep.inject_atomic(one, dest_addr=to, addr=8, key=region.key, datatype=fi.UINT64, op=fi.SUM)
    ep.fetch_atomic(one, result=result, dest_addr=to, addr=8, key=region.key, datatype=fi.UINT64, op=fi.SUM)
    pair.me.done(2)
    assert list(result) == [14, 18]
    assert np.frombuffer(region.bytes(), np.uint64).tolist() == [0, 21, 27, 0, 0, 0, 0, 0]
    ep.fetch_atomic(None, result=result, dest_addr=to, addr=8, key=region.key, datatype=fi.UINT64, op=fi.ATOMIC_READ)
    pair.me.done()
    assert list(result) == [21, 27]
    new, expect = np.array([100, 200], np.uint64), np.array([21, 28], np.uint64)
    ep.compare_atomic(
        new, compare=expect, result=result, dest_addr=to, addr=8, key=region.key, datatype=fi.UINT64, op=fi.CSWAP
    )
    pair.me.done()
    assert list(result) == [21, 27]
    assert np.frombuffer(region.bytes(8, 24), np.uint64).tolist() == [100, 27]
    ep.atomicv([new[:1], new[1:]], dest_addr=to, addr=32, key=region.key, datatype=fi.UINT64, op=fi.ATOMIC_WRITE)
    message = fi.MsgAtomic([new], [fi.RmaIoc(48, 2, region.key)], to, fi.UINT64, fi.SUM, context="m")
    ep.fetch_atomicmsg(message, [result])
    pair.me.done(2)
    assert list(result) == [0, 0]
    assert np.frombuffer(region.bytes(32), np.uint64).tolist() == [100, 200, 100, 200]
    ep.atomic(one, dest_addr=to, addr=4, key=region.key, **U64_SUM)
    assert pair.me.failed().err == fi.EINVAL  # not a multiple of eight
    region.close()


@fact()
def atomics_of_all_widths_agree_with_a_model(pair: Pair) -> None:
    region = pair.expose(256, fill=0)
    rng = np.random.default_rng(4)
    for datatype, dtype in (
        (fi.INT8, "i1"),
        (fi.UINT16, "u2"),
        (fi.INT32, "i4"),
        (fi.INT64, "i8"),
        (fi.FLOAT, "f4"),
        (fi.DOUBLE, "f8"),
        (fi.DOUBLE_COMPLEX, "c16"),
    ):
        model = np.zeros(16, dtype)
        pair.me.ep.write(model, dest_addr=pair.peer, addr=0, key=region.key)
        pair.me.done()
        for op in (fi.SUM, fi.PROD, fi.MIN, fi.MAX, fi.ATOMIC_WRITE):
            if dtype == "c16" and op in (fi.MIN, fi.MAX):
                continue
            operand = rng.integers(1, 5, 16).astype(dtype)
            result = np.zeros(16, dtype)
            pair.me.ep.fetch_atomic(
                operand, result=result, dest_addr=pair.peer, addr=0, key=region.key, datatype=datatype, op=op
            )
            pair.me.done()
            assert np.array_equal(result, model), (dtype, op)
            with np.errstate(all="ignore"):
                model = {
                    fi.SUM: model + operand,
                    fi.PROD: model * operand,
                    fi.MIN: np.minimum(model, operand) if dtype != "c16" else model,
                    fi.MAX: np.maximum(model, operand) if dtype != "c16" else model,
                    fi.ATOMIC_WRITE: operand,
                }[op].astype(dtype)
        assert region.bytes(0, model.nbytes) == model.tobytes(), dtype
    region.close()


def add_many(world: World, address: str, key: int, count: int) -> None:
    side = Side()
    to = side.av.insert(address)
    one = np.ones(1, np.uint64)
    for i in range(count):
        side.ep.atomic(one, dest_addr=to, addr=0, key=key, **U64_SUM)
        if i % 64 == 63:
            side.done(64)
    side.done(count % 64)
    side.close()


@fact()
def atomics_from_two_sides_lose_nothing(pair: Pair) -> None:
    if pair.target is None:
        return
    region = pair.expose(8, fill=0)
    call = pair.target.start(add_many, pair.name, region.key, 1000)
    one, result = np.ones(1, np.uint64), np.zeros(1, np.uint64)
    seen = []
    for _ in range(1000):
        pair.me.ep.fetch_atomic(one, result=result, dest_addr=pair.peer, addr=0, key=region.key, **U64_SUM)
        pair.me.done()
        seen.append(int(result[0]))
    call.result()
    assert seen == sorted(set(seen))
    assert np.frombuffer(region.bytes(), np.uint64)[0] == 2000
    region.close()


# ---- registration modes ----------------------------------------------------------------------------------------------


def open_mode(world: World, name: str, mode: int, foreign: bool, fill: int) -> tuple[str, int, int]:
    side = world.sides[name] = Side(mr_mode=mode)
    array = peer.memory(side, 128, foreign, fill)
    world.arrays[name] = array
    mr = side.region(array, key=77)
    return side.name, mr.key, mr.address


def close_mode(world: World, name: str) -> bytes:
    found = bytes(world.arrays.pop(name))
    world.sides.pop(name).close()
    return found


@fact(
    "rma.addr.basic",
    "mr.virt-addr.base",
    "mr.virt-addr.offset",
    "mr.prov-key.via-mr-key",
    "mr.prov-key.no-app-keys",
    "mr.arg.requested-key-ignored",
    "mr.basic.virt-addr",
    "mr.basic.prov-key",
)
def registration_modes_decide_address_and_key(pair: Pair) -> None:
    virt, prov, basic = int(fi.MR_VIRT_ADDR), int(fi.MR_PROV_KEY), int(fi.MR_BASIC)
    for mode in (virt, prov, virt | prov, basic):
        address, key, base = pair.there(open_mode, f"mode {mode}", mode, pair.foreign, 0xEE)
        side = Side(mr_mode=mode)
        to = side.av.insert(address)
        by_address = mode != prov
        start = base if by_address else 0
        side.ep.write(b"first", dest_addr=to, addr=start, key=key)
        side.ep.write(b"later", dest_addr=to, addr=start + 20, key=key)
        side.done(2)
        if by_address:  # an offset is no address
            side.ep.write(b"wrong", dest_addr=to, addr=40, key=key)
            assert side.failed().err == fi.EACCES
        if mode != virt:
            side.ep.write(b"wrong", dest_addr=to, addr=start, key=77)  # what was requested
            assert side.failed().err == fi.EKEYREJECTED
        else:
            assert key == 77
        side.close()
        found = pair.there(close_mode, f"mode {mode}")
        assert found == b"first" + b"\xee" * 15 + b"later" + b"\xee" * 103


def bound_region(world: World, key: int, foreign: bool) -> tuple[str, str]:
    """Two endpoints of a domain with MR_ENDPOINT, and a region bound to the first of them, not enabled yet."""
    first = world.sides["bound"] = Side(mr_mode=int(fi.MR_ENDPOINT))
    second = first.domain.endpoint(first.info)
    second.bind(first.cq, fi.TRANSMIT | fi.RECV)
    second.bind(first.av)
    second.enable()
    array = peer.memory(first, 64, foreign, 0)
    mr = first.domain.mr_reg(array, RW, requested_key=key)
    world.more["bound"] = (second, mr, array)
    return first.name, str(second.getname())


def enable_bound(world: World) -> None:
    mr = world.more["bound"][1]
    mr.bind(world.sides["bound"].ep)
    mr.enable()


def close_bound(world: World) -> bytes:
    second, mr, array = world.more.pop("bound")
    with pytest.raises(fi.Busy):
        mr.close()
    second.close()
    side = world.sides.pop("bound")
    side.ep.close()
    mr.close()
    side.close()
    return bytes(array)


@fact(
    "mr.endpoint.association",
    "mr.endpoint.created-disabled",
    "mr.endpoint.enable-call",
    "mr.bind.endpoint",
    "mr.bind.endpoint-flags",
    "mr.close.busy-endpoint",
    "mr.enable.disabled-regions",
)
def a_region_of_an_endpoint_is_reached_through_it_alone(pair: Pair) -> None:
    key = next(_keys)
    right, wrong = (pair.me.av.insert(name) for name in pair.there(bound_region, key, pair.foreign))
    pair.me.ep.write(b"disabled", dest_addr=right, addr=0, key=key)
    assert pair.me.failed().err == fi.EACCES
    pair.there(enable_bound)
    pair.me.ep.write(b"enabled", dest_addr=right, addr=10, key=key)
    pair.me.done()
    pair.me.ep.write(b"through another", dest_addr=wrong, addr=20, key=key)
    assert pair.me.failed().err == fi.EACCES
    assert pair.there(close_bound) == b"\0" * 10 + b"enabled" + b"\0" * 47
    pair.me.av.remove([right, wrong])


@fact("mr.flag.single-use", "mr.flag.single-use-invalid")
def single_use_region_serves_one_operation(pair: Pair) -> None:
    """Small and in many fragments, every kind: afterwards the key is refused, and the memory stays as it is."""
    size = 200_000
    data = pair.local(size)
    ep, to = pair.me.ep, pair.peer
    word, old = np.ones(1, np.uint64), np.zeros(1, np.uint64)
    calls: list[Callable[[int], Any]] = [
        lambda key: ep.write(data, dest_addr=to, addr=0, key=key),
        lambda key: ep.write(data[:8], dest_addr=to, addr=0, key=key),
        lambda key: ep.read(np.zeros(size, np.uint8), src_addr=to, addr=0, key=key),
        lambda key: ep.read(np.zeros(8, np.uint8), src_addr=to, addr=0, key=key),
        lambda key: ep.fetch_atomic(word, result=old, dest_addr=to, addr=0, key=key, **U64_SUM),
        lambda key: ep.writemsg(
            fi.MsgRma([data[:64]], [fi.RmaIov(0, 32, key), fi.RmaIov(size - 32, 32, key)], to), fi.COMPLETION
        ),
    ]
    for call in calls:
        region = pair.expose(size, flags=int(fi.MR_SINGLE_USE))
        # What is refused does not use it up.
        ep.write(data[:8], dest_addr=to, addr=size - 4, key=region.key)
        assert pair.me.failed().err == fi.EACCES
        call(region.key)
        pair.me.done()
        after = region.bytes()
        for again in calls:
            again(region.key)
            assert pair.me.failed().err == fi.EKEYREJECTED
        assert region.bytes() == after
        assert pair.there(state, region.key) == "used up"
        region.close()


@fact("mr.flag.single-use-invalid")
def single_use_region_that_was_never_used_is_closed(pair: Pair) -> None:
    region = pair.expose(64, flags=int(fi.MR_SINGLE_USE))
    assert pair.there(state, region.key) == "enabled"
    region.close()
    pair.me.ep.write(pair.local(8), dest_addr=pair.peer, addr=0, key=region.key)
    assert pair.me.failed().err == fi.EKEYREJECTED


def map_file(world: World, key: int, path: str, nbytes: int, flags: int) -> None:
    with open(path, "wb") as file:
        file.truncate(nbytes)
    array = np.memmap(path, np.uint8, "r+")
    world.arrays[key] = array
    world.mrs[key] = world.side.region(array, key, RW, flags=flags)


def dirty_bytes(world: World, path: str) -> int:
    """Bytes of this process's mapping of a file that are not on the disk yet."""
    found, ours = 0, False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            if "-" in line.split()[0]:
                ours = line.rstrip().endswith(path)
            elif ours and line.startswith(("Shared_Dirty:", "Private_Dirty:")):
                found += int(line.split()[1]) << 10
    return found


@fact("rma.flag.commit-complete", "mr.flag.rma-pmem", "mr.flag.rma-pmem-required")
def commit_complete_comes_when_the_file_has_it(pair: Pair) -> None:
    size = 300_000
    path = f"{tempfile.gettempdir()}/commit-test-{os.getpid()}-{next(_keys)}"
    data = pair.local(size)
    ep, to = pair.me.ep, pair.peer
    word, old = np.ones(1, np.uint64), np.zeros(1, np.uint64)
    plain, pmem = next(_keys), next(_keys)
    try:
        pair.there(map_file, pmem, path, size, int(fi.RMA_PMEM))

        def write(key: int, flags: int) -> None:
            ep.writemsg(fi.MsgRma([data], [fi.RmaIov(0, size, key)], to), flags | fi.COMPLETION)

        write(pmem, 0)
        pair.me.done()
        can_see = pair.there(dirty_bytes, path) > 0  # not so on tmpfs and the like
        write(pmem, fi.COMMIT_COMPLETE)
        pair.me.done()
        assert pair.there(dirty_bytes, path) == 0 or not can_see
        with open(path, "rb") as file:
            assert file.read() == bytes(data)
        message = fi.MsgAtomic([word], [fi.RmaIoc(0, 1, pmem)], to, fi.UINT64, fi.SUM)
        ep.atomicmsg(message, fi.COMMIT_COMPLETE | fi.COMPLETION)
        pair.me.done()
        assert pair.there(dirty_bytes, path) == 0 or not can_see
        with open(path, "rb") as file:
            assert int.from_bytes(file.read(8), "little") == int(data[:8].view(np.uint64)[0]) + 1
        ep.fetch_atomicmsg(message, [old])
        pair.me.done()
        pair.there(peer.withdraw, pmem)
        # Not registered as persistent: nothing durable can be promised, and nothing is written.
        pair.there(map_file, plain, path, size, 0)
        write(plain, fi.COMMIT_COMPLETE)
        failed = pair.me.failed()
        assert failed.err == fi.EOPNOTSUPP
        assert b"RMA_PMEM" in failed.err_data
        with open(path, "rb") as file:
            assert not any(file.read())
        pair.there(peer.withdraw, plain)
    finally:
        os.unlink(path)
