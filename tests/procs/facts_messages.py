"""Facts about messages: fi_msg(3) and fi_tagged(3) between two endpoints on any path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.procs import peer
from tests.procs.children import CALL_S
from tests.procs.pairs import Pair, events, fact
from tests.procs.peer import World

from weft import fi

LENGTHS = [0, 1, 8, 152, 153, 1000, 16384, 16385, 65536, 65537, 3 << 20]
TAG = 77


def bytes_of(count: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def part(pair: Pair, count: int, seed: int = 1) -> Any:
    """`count` random bytes at this side; there may be none."""
    return pair.local(count + 1, seed)[:count]


# ---- at the other side -----------------------------------------------------------------------------------------------


def post(
    world: World, number: int, nbytes: int, foreign: bool, tag: int | None, ignore: int = 0, flags: int = 0
) -> None:
    """A receive of `nbytes`, whose context is its number."""
    room = peer.memory(world.side, nbytes, foreign, 0xEE)
    world.arrays[number] = room
    if tag is None:
        world.side.ep.recvmsg(fi.Msg([room], context=number), flags | int(fi.COMPLETION))
    else:
        msg = fi.MsgTagged([room], tag=tag, ignore=ignore, context=number)
        world.side.ep.trecvmsg(msg, flags | int(fi.COMPLETION))


def took(world: World, number: int) -> bytes:
    """The bytes of a receive, which has ended."""
    return bytes(world.arrays.pop(number))


def tell(world: World, sizes: list[int], tag: int) -> None:
    """Send messages of these sizes to the initiator."""
    for i, nbytes in enumerate(sizes):
        world.side.ep.tsend(bytes_of(nbytes, i), None, world.more["initiator"], tag, i)


def settled(world: World, count: int) -> list[Any]:
    return [tuple(entry) for entry in world.side.done(count)]


def peek_error(world: World) -> int:
    world.side.ep.trecvmsg(fi.MsgTagged(tag=TAG), int(fi.PEEK | fi.COMPLETION))
    return int(world.side.failed().err)


def cut_receive(world: World) -> tuple[int, int, int]:
    entry = world.side.failed()
    return int(entry.err), entry.len, entry.olen


# ---- facts -----------------------------------------------------------------------------------------------------------


def _moves(pair: Pair, nbytes: int, tag: int | None, receive_first: bool) -> None:
    payload = part(pair, nbytes, seed=nbytes + 1)
    if receive_first:
        pair.there(post, 1, nbytes + 8, pair.foreign, tag)
    if tag is None:
        pair.me.ep.senddata(payload, None, 5, pair.peer, "s")
    else:
        pair.me.ep.tsenddata(payload, None, 5, pair.peer, tag, "s")
    if not receive_first:
        pair.there(post, 1, nbytes + 8, pair.foreign, tag)
    (((context, flags, length, _, data), _),) = pair.there(events, 1)
    kind = fi.MSG if tag is None else fi.TAGGED
    assert (context, flags, length, data) == (1, kind | fi.RECV | fi.REMOTE_CQ_DATA, nbytes, 5), nbytes
    assert pair.there(took, 1) == bytes(payload) + b"\xee" * 8
    (sent,) = pair.me.done()
    assert (sent.op_context, sent.flags, sent.len) == ("s", kind | fi.SEND, nbytes)


@fact()
def messages_of_every_length_arrive(pair: Pair) -> None:
    for nbytes in LENGTHS:
        for receive_first in (True, False):
            _moves(pair, nbytes, None, receive_first)
            _moves(pair, nbytes, TAG, receive_first)


@fact()
def messages_keep_their_order_whatever_their_lengths(pair: Pair) -> None:
    sizes = [8, 40_000, 0, 160, 17_000, 8, 200_000, 8, 1000, 64, 90_000, 4] * 4
    payloads = [part(pair, n, seed=i) for i, n in enumerate(sizes)]
    for i in range(0, len(sizes), 3):
        pair.there(post, i // 3, 200_000, pair.foreign, TAG)
    for payload in payloads:
        pair.me.ep.tsend(payload, None, pair.peer, TAG)
    for i in range((len(sizes) + 2) // 3, len(sizes)):
        pair.there(post, i, 200_000, pair.foreign, TAG)
    lengths = {event[0]: event[2] for event, _ in pair.there(events, len(sizes))}
    assert lengths == dict(enumerate(sizes))
    for i, payload in enumerate(payloads):
        assert pair.there(took, i)[: len(payload)] == bytes(payload), i
    pair.me.done(len(sizes))


@fact()
def messages_are_answered(pair: Pair) -> None:
    """Both sides send, in turn."""
    sizes = [8, 100, 20_000, 100_000]
    for nbytes in sizes:
        pair.there(post, 1, nbytes, pair.foreign, TAG)
        pair.me.ep.tsend(pair.local(nbytes), None, pair.peer, TAG)
        assert pair.there(events, 1)[0][0][2] == nbytes
        pair.there(took, 1)
    pair.me.done(len(sizes))
    rooms = [pair.local(nbytes, seed=9) for nbytes in sizes]
    for room in rooms:
        pair.me.ep.trecv(room, tag=TAG)
    pair.there(tell, sizes, TAG)
    entries = pair.me.done(len(sizes))
    assert sorted(entry.len for entry in entries) == sizes
    for i, room in enumerate(rooms):
        assert np.array_equal(room, bytes_of(len(room), i))
    pair.there(settled, len(sizes))


@fact()
def many_short_messages_arrive_each_once(pair: Pair) -> None:
    """More than there are credits, and more than the transmit queue holds: the sender is told to retry."""
    rounds, each = 20, 150
    for start in range(0, rounds * each, each):
        for i in range(each):
            while True:
                try:
                    pair.me.ep.tinjectdata(b"12345678", start + i, pair.peer, TAG)
                    break
                except fi.Again:
                    peer.progress()
                    pair.me.cq.read()
        for i in range(each):
            pair.there(post, i, 8, pair.foreign, TAG)
        found = pair.there(events, each)
        assert [event[4] for event, _ in found] == list(range(start, start + each))
        for i in range(each):
            assert pair.there(took, i) == b"12345678"


@fact()
def tags_choose_the_receive(pair: Pair) -> None:
    pair.there(post, 1, 8, pair.foreign, 0x10, 0x0F)
    pair.there(post, 2, 8, pair.foreign, 0x21)
    pair.there(post, 3, 8, pair.foreign, None)
    for tag in (0x21, 0x1C):
        pair.me.ep.tinject(tag.to_bytes(8, "little"), pair.peer, tag)
    pair.me.ep.inject(b"untagged", pair.peer)
    assert [event[0] for event, _ in pair.there(events, 3)] == [2, 1, 3]
    assert pair.there(took, 1)[0] == 0x1C
    assert pair.there(took, 2)[0] == 0x21
    assert pair.there(took, 3) == b"untagged"


@fact()
def message_longer_than_its_receive_is_cut(pair: Pair) -> None:
    for nbytes in (100, 5000, 100_000):
        for receive_first in (True, False):
            payload = pair.local(nbytes)
            if receive_first:
                pair.there(post, 1, 60, pair.foreign, TAG)
            pair.me.ep.tsend(payload, None, pair.peer, TAG, "s")
            if not receive_first:
                pair.there(post, 1, 60, pair.foreign, TAG)
            assert pair.there(cut_receive) == (fi.ETRUNC, 60, nbytes - 60)
            assert pair.there(took, 1) == bytes(payload[:60])
            assert pair.me.done()[0].op_context == "s"


@fact()
def one_buffer_takes_several_messages(pair: Pair) -> None:
    payload = pair.local(120_000)
    pair.there(post, 1, 120_000, pair.foreign, None, 0, int(fi.MULTI_RECV))
    for start, stop in ((0, 100), (100, 60_100), (60_100, 60_108), (60_108, 120_000)):
        pair.me.ep.send(payload[start:stop], None, pair.peer)
    found = [event for event, _ in pair.there(events, 4)]
    assert sorted(event[2] for event in found) == [8, 100, 59_892, 60_000]
    assert [bool(event[1] & fi.MULTI_RECV) for event in found] == [False] * 3 + [True]
    assert pair.there(took, 1) == bytes(payload)
    pair.me.done(4)


@fact()
def peek_that_finds_nothing_says_so(pair: Pair) -> None:
    assert pair.there(peek_error) == fi.ENOMSG


@fact()
def match_complete_waits_for_the_receive(pair: Pair) -> None:
    pair.me.ep.tsendmsg(fi.MsgTagged([b"12345678"], None, pair.peer, TAG, 0, "matched"), int(fi.MATCH_COMPLETE))
    pair.me.ep.tsend(b"abcdefgh", None, pair.peer, TAG + 1, "sent")
    assert pair.me.done()[0].op_context == "sent"
    assert pair.me.silent()
    pair.there(post, 1, 8, pair.foreign, TAG)
    assert pair.me.done()[0].op_context == "matched"
    pair.there(post, 2, 8, pair.foreign, TAG + 1)
    assert len(pair.there(events, 2)) == 2
    pair.there(took, 1)
    pair.there(took, 2)


@fact()
def writes_and_messages_share_the_way(pair: Pair) -> None:
    region = pair.expose(4096)
    data = pair.local(4096)
    for i in range(50):
        pair.there(post, i, 8, pair.foreign, TAG)
        pair.me.ep.write(data, dest_addr=pair.peer, addr=0, key=region.key)
        pair.me.ep.tinject(i.to_bytes(8, "little"), pair.peer, TAG)
    pair.me.done(50)
    assert [event[0] for event, _ in pair.there(events, 50)] == list(range(50))
    assert region.bytes() == bytes(data)
    for i in range(50):
        assert pair.there(took, i) == i.to_bytes(8, "little")
    region.close()


@fact()
def message_comes_after_the_writes_before_it(pair: Pair) -> None:
    """fi_endpoint(3) FI_ORDER_SAW: bytes written before a send are there when the message is received."""
    assert pair.me.info.tx_attr.msg_order & fi.ORDER_SAW
    region = pair.expose(200_000)
    for i in range(20):
        data = part(pair, 200_000, seed=i)
        pair.there(post, i, 8, pair.foreign, TAG)
        pair.me.ep.write(data, dest_addr=pair.peer, addr=0, key=region.key)
        pair.me.ep.tinject(b"12345678", pair.peer, TAG)
        pair.there(events, 1)
        assert region.bytes() == bytes(data)
        pair.there(took, i)
        pair.me.done()
    region.close()


@fact()
def receive_that_waits_sleeps_until_its_message_comes(pair: Pair) -> None:
    """fi_cq_sread of a receive: the message comes while the reader sleeps."""
    room = pair.local(8)
    pair.me.ep.trecv(room, tag=TAG, context="r")
    with pytest.raises(fi.Again):
        pair.me.cq.sread(timeout=0.01)
    pair.there(tell, [8], TAG)
    (entry,) = pair.me.done(timeout=CALL_S / 2)
    assert (entry.op_context, entry.len) == ("r", 8)
    pair.there(settled, 1)
