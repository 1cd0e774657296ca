"""Facts about transfers: the calls of fi_rma(3), and errors that touch nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from tests.procs import peer
from tests.procs.pairs import (
    LARGE,
    U64_SUM,
    Pair,
    events,
    fact,
    meet,
    no_events,
    works,
)
from tests.procs.peer import World

from weft import fi

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
        buffer[:] = 0xAA  # the call has returned, so the buffer may be reused
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
