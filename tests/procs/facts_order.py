"""Facts about lists of calls, order, completions, waiting and counters."""

from __future__ import annotations

import select
import time

import numpy as np
import pytest
from tests.patience import Patience
from tests.procs import peer
from tests.procs.children import CALL_S
from tests.procs.pairs import (
    U64_SUM,
    Pair,
    count,
    counted_region,
    drop_counted,
    events,
    fact,
    next_key,
    region_count,
    serve_a_while,
    wait_count,
)
from tests.procs.peer import Side

from weft import _process, fi

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
    # Bad descriptors among good ones: each has its error, the others are done, the completion is a failure.
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
    quick_key = next(next_key)
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
    """As msg_order guarantees, reads see earlier writes, and do not see later writes."""
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
    """More answers under way than the target has room for: waiting answers keep their place in the order."""
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
    """DELIVERY_COMPLETE: the bytes are there when the completion is; the weaker levels promise no more."""
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
        deadline = Patience(CALL_S / 2)
        while not call.done():
            assert not deadline.over
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
        deadline = Patience(CALL_S / 2)
        while True:
            try:
                pair.me.fabric.trywait([pair.me.cq])
            except fi.Again:
                break
            slice_ = 0.001 if _process.nic().engine == "manual" else CALL_S / 2
            if select.select([pair.me.cq.fd], [], [], slice_)[0]:
                break
            peer.progress()
            assert not deadline.over
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
    key = next(next_key)
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
