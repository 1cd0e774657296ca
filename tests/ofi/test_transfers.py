"""Messages, tags, remote memory and atomics through a real libfabric, in one process."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import numpy as np
import pytest
from tests.ofi.support import CAPS, RW, drain, finish, offer, open_node, pair, post, until

from weft import fi


def test_message_and_context_arrive(provider: str) -> None:
    with pair(provider) as (a, b):
        room, data = np.zeros(8, np.uint8), np.arange(8, dtype=np.uint8)
        got, sent = object(), {"any": "object"}
        b.ep.recv(room, desc=b.register(room, fi.RECV), context=got)
        to = a.to(b)
        post(lambda: a.ep.send(data, a.register(data, fi.SEND), to, sent), a, b)
        (entry,), (done,) = finish(b, 1, a), finish(a, 1, b)
        assert (room == data).all()
        assert entry.op_context is got
        assert done.op_context is sent
        assert entry.len == 8
        assert entry.flags & fi.RECV
        assert done.flags & fi.TRANSMIT


def test_tags_match(provider: str) -> None:
    with pair(provider) as (a, b):
        low, high = bytearray(4), bytearray(4)
        b.ep.trecv(high, tag=0x20, ignore=0x0F, context="high")
        b.ep.trecv(low, tag=1, context="low")
        to = a.to(b)
        for tag, text in ((1, b"low!"), (0x2A, b"high")):
            post(lambda tag=tag, text=text: a.ep.tsend(text, dest_addr=to, tag=tag), a, b)
        entries = {entry.op_context for entry in finish(b, 2, a)}
        assert entries == {"low", "high"}
        assert low == b"low!"
        assert high == b"high"


def test_vectors_and_structs(provider: str) -> None:
    with pair(provider) as (a, b):
        to = a.to(b)
        left, right = bytearray(2), bytearray(3)
        b.ep.recvv([left, right], context="v")
        post(lambda: a.ep.sendv([b"ab", b"cde"], dest_addr=to), a, b)
        assert finish(b, 1, a)[0].op_context == "v"
        assert left + right == b"abcde"
        room = bytearray(4)
        b.ep.trecvmsg(fi.MsgTagged((room,), tag=9, context="m"))
        post(lambda: a.ep.tsendmsg(fi.MsgTagged((b"wxyz",), tag=9, addr=to, context="s"), fi.COMPLETION), a, b)
        assert finish(b, 1, a)[0].op_context == "m"
        assert room == b"wxyz"


def test_remote_data_arrives(provider: str) -> None:
    with pair(provider) as (a, b):
        to, room = a.to(b), bytearray(4)
        b.ep.recv(room)
        post(lambda: a.ep.senddata(b"data", data=0x1234, dest_addr=to), a, b)
        (entry,) = finish(b, 1, a)
        assert entry.data == 0x1234
        assert entry.flags & fi.REMOTE_CQ_DATA
        assert room == b"data"


def test_inject_leaves_the_buffer_free(provider: str) -> None:
    with pair(provider) as (a, b):
        to, room, data = a.to(b), bytearray(4), bytearray(b"this")
        b.ep.recv(room)

        def call() -> None:
            a.ep.inject(data, to)
            data[:] = b"gone"

        post(call, a, b)
        finish(b, 1, a)
        assert room == b"this"
        assert a.seen == []


def test_write_read_and_inject_write(provider: str) -> None:
    with pair(provider) as (a, b):
        target, source, back = np.zeros(64, np.uint8), np.arange(64, dtype=np.uint8), np.zeros(16, np.uint8)
        mr = b.register(target)
        to, where = a.to(b), b.place(mr)
        post(lambda: a.ep.write(source, a.register(source, fi.WRITE), to, where, mr.key, "w"), a, b)
        assert finish(a, 1, b)[0].op_context == "w"
        until(lambda: bool((target == source).all()), a, b)
        post(lambda: a.ep.read(back, a.register(back, fi.READ), to, where + 8, mr.key, "r"), a, b)
        assert finish(a, 1, b)[0].flags & fi.READ
        assert (back == source[8:24]).all()
        post(lambda: a.ep.inject_write(b"\xff", to, where, mr.key), a, b)
        until(lambda: target[0] == 0xFF, a, b)


def test_rma_lists(provider: str) -> None:
    with pair(provider) as (a, b):
        target = np.zeros(32, np.uint8)
        mr = b.register(target)
        to = a.to(b)
        pieces = [np.full(4, 1, np.uint8), np.full(4, 2, np.uint8)]
        described = [a.register(one, fi.WRITE) for one in pieces]
        post(lambda: a.ep.writev(pieces, described, to, b.place(mr), mr.key), a, b)
        msg = fi.MsgRma(pieces, [fi.RmaIov(b.place(mr, 16), 8, mr.key)], to, described, "msg")
        post(lambda: a.ep.writemsg(msg, fi.COMPLETION), a, b)
        assert finish(a, 2, b)[1].op_context == "msg"
        until(lambda: target.tolist()[:8] == [1] * 4 + [2] * 4 and target.tolist()[16:24] == [1] * 4 + [2] * 4, a, b)


def test_large_messages(provider: str) -> None:
    with pair(provider) as (a, b):
        data, room = np.random.default_rng(1).integers(0, 255, 3 << 20, np.uint8), np.zeros(3 << 20, np.uint8)
        b.ep.trecv(room, b.register(room, fi.RECV), tag=1)
        to = a.to(b)
        post(lambda: a.ep.tsend(data, a.register(data, fi.SEND), to, 1), a, b)
        finish(b, 1, a)
        finish(a, 1, b)
        assert (room == data).all()


@pytest.mark.parametrize("op", ["SUM", "ATOMIC_WRITE"])
def test_atomics(op: str) -> None:
    with pair("ofi:shm", CAPS | fi.ATOMIC) as (a, b):
        target = np.full(4, 5, np.int64)
        mr = b.register(target)
        to, where, code = a.to(b), b.place(mr), getattr(fi, op)
        operand, result = np.full(2, 3, np.int64), np.zeros(2, np.int64)
        post(lambda: a.ep.fetch_atomic(operand, None, result, None, to, where, mr.key, fi.INT64, code, "f"), a, b)
        assert finish(a, 1, b)[0].op_context == "f"
        until(lambda: target[0] == (8 if op == "SUM" else 3), a, b)
        assert result.tolist() == [5, 5]
        assert target[3] == 5
        assert a.ep.atomicvalid(fi.INT64, code) >= 2


def test_compare_atomic_and_pairs_that_do_not_exist() -> None:
    with pair("ofi:shm", CAPS | fi.ATOMIC) as (a, b):
        target = np.full(1, 5, np.uint64)
        mr = b.register(target)
        to = a.to(b)
        new, old, result = np.full(1, 9, np.uint64), np.full(1, 5, np.uint64), np.zeros(1, np.uint64)
        args: Any = (new, None, old, None, result, None, to, b.place(mr), mr.key, fi.UINT64, fi.CSWAP)
        post(lambda: a.ep.compare_atomic(*args), a, b)
        finish(a, 1, b)
        until(lambda: target[0] == 9, a, b)
        assert result[0] == 5
        with pytest.raises(fi.NotSupported):
            a.ep.atomicvalid(fi.FLOAT, fi.BXOR)
        assert a.domain.query_atomic(fi.UINT64, fi.SUM).size == 8


def test_buffers_are_held_until_the_completion(provider: str) -> None:
    class Array(np.ndarray):
        """An array with weak references."""

    with pair(provider) as (a, b):
        room = np.zeros(8, np.uint8).view(Array)
        alive = weakref.ref(room)
        context = [1, 2, 3]
        before = sys.getrefcount(context)
        b.ep.trecv(room, tag=1, context=context)
        del room
        gc.collect()
        assert alive() is not None
        assert sys.getrefcount(context) == before + 1
        assert b.ep.outstanding() == 1
        to = a.to(b)
        post(lambda: a.ep.tsend(b"12345678", dest_addr=to, tag=1), a, b)
        (entry,) = finish(b, 1, a)
        assert entry.op_context is context
        assert b.ep.outstanding() == 0
        del entry
        gc.collect()
        assert alive() is None
        assert sys.getrefcount(context) == before


def test_closing_an_endpoint_gives_back_its_receives(provider: str) -> None:
    class Array(np.ndarray):
        """An array with weak references."""

    node = open_node(offer(provider))
    room = np.zeros(8, np.uint8).view(Array)
    alive, context = weakref.ref(room), ["context"]
    before = sys.getrefcount(context)
    for _ in range(300):
        node.ep.trecv(room, tag=1, context=context)
    del room
    node.close()
    gc.collect()
    assert alive() is None
    assert sys.getrefcount(context) == before


def test_selective_completion(provider: str) -> None:
    with pair(provider, flags=fi.SELECTIVE_COMPLETION) as (a, b):
        to = a.to(b)
        target = np.zeros(8, np.uint8)
        mr = b.register(target)
        data = np.ones(1, np.uint8)
        desc = a.register(data, fi.WRITE)
        for _ in range(500):  # without entries; their buffers are given back although nobody reads the queue
            post(lambda: a.ep.write(data, desc, to, b.place(mr), mr.key), a, b)
            drain(b)
        assert a.ep.outstanding() < 500
        msg = fi.MsgRma([data], [fi.RmaIov(b.place(mr), 1, mr.key)], to, [desc], "seen")
        post(lambda: a.ep.writemsg(msg, fi.COMPLETION), a, b)
        assert finish(a, 1, b)[0].op_context == "seen"
        until(lambda: a.ep.outstanding() == 0, a, b)
        assert a.seen == []


def test_cancelled_receive_completes_as_canceled(provider: str) -> None:
    node = open_node(offer(provider))
    room, context = bytearray(8), object()
    node.ep.trecv(room, tag=5, context=context)
    node.ep.cancel(context)
    (entry,) = finish(node, 1)
    assert entry.err == fi.ECANCELED
    assert entry.op_context is context
    assert node.ep.outstanding() == 0
    assert isinstance(entry.exception(), fi.Canceled)
    with pytest.raises(fi.NotFound):
        node.ep.cancel(context)
    node.close()


def test_truncated_message_is_an_error_entry(provider: str) -> None:
    with pair(provider) as (a, b):
        room = bytearray(4)
        b.ep.trecv(room, tag=1, context="short")
        to = a.to(b)
        post(lambda: a.ep.tsend(b"too long", dest_addr=to, tag=1), a, b)
        (entry,) = finish(b, 1, a)
        assert entry.err == fi.ETRUNC
        assert entry.op_context == "short"
        assert isinstance(entry.exception(), fi.Truncated)


def test_counters() -> None:
    counters = []

    def count(node: Any) -> None:
        counters.append(node.domain.cntr_open())
        node.ep.bind(counters[-1], fi.WRITE)
        node.extra.append(counters[-1])

    with pair("ofi:shm", before=count) as (a, b):
        target, data = np.zeros(8, np.uint8), np.ones(8, np.uint8)
        mr = b.register(target)
        to = a.to(b)
        for _ in range(3):
            post(lambda: a.ep.write(data, a.register(data, fi.WRITE), to, b.place(mr), mr.key), a, b)
        finish(a, 3, b)
        counters[0].wait(3, timeout=10)
        assert counters[0].read() == 3
        assert counters[0].readerr() == 0
        with pytest.raises(fi.TimedOut):
            counters[0].wait(4, timeout=0.01)
        counters[0].set(7)
        counters[0].add(1)
        assert counters[0].read() == 8


def test_region_as_buffer_and_slices(provider: str) -> None:
    with pair(provider) as (a, b):
        room, data = bytearray(16), bytearray(b"0123456789abcdef")
        mr, out = b.register(room, fi.RECV), a.register(data, fi.SEND)
        b.ep.recv(mr[4:8], mr)
        to = a.to(b)
        post(lambda: a.ep.send(out[8:12], out, to), a, b)
        finish(b, 1, a)
        assert bytes(room[4:8]) == b"89ab"
        assert mr.length == 16
        assert not mr.closed
        assert RW
        assert isinstance(mr, fi.MemoryRegion)
