"""Bytes of weft://: packed bytes are parsed, however they are cut; bytes that no Weft sends are refused."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("distributed", reason="Dask's distributed is not installed: pip install 'weft-fabric[dask]'")

from weft.interop.dask import wire

FRAME_MAX = 1 << 24


class Inbox:
    """A parser, and its results."""

    def __init__(self) -> None:
        self.controls: list[tuple[int, bytes]] = []
        self.messages: list[wire.Arrived] = []
        self.parser = wire.Parser(
            lambda kind, body: self.controls.append((kind, bytes(body))),
            self.messages.append,
            FRAME_MAX,
            lambda n: memoryview(bytearray(n)),
        )

    def put(self, data: bytes, most: int = 1 << 30) -> None:
        at = 0
        while at < len(data):
            into = self.parser.get_buffer()
            assert len(into) > 0
            n = min(len(into), most, len(data) - at)
            into[:n] = data[at : at + n]
            self.parser.feed(n)
            at += n


frames = st.lists(
    st.tuples(
        st.sampled_from([wire.INLINE, wire.APART, wire.OFFERED]), st.sampled_from([0, 1, 7, 100, 70_000, 300_000])
    ),
    max_size=6,
)


def packed(rows: list[tuple[int, int]], seed: int) -> tuple[bytes, list[Any]]:
    """A message, and the frames that are to come out."""
    made, inline, apart, expected = [], [], [], []
    for i, (how, nbytes) in enumerate(rows):
        data = bytes([(seed + i) % 256]) * nbytes
        if how == wire.OFFERED:
            made.append(wire.Row(how, nbytes, key=i, addr=seed))
            expected.append(wire.Offered(nbytes, i, seed))
        else:
            made.append(wire.Row(how, nbytes))
            (inline if how == wire.INLINE else apart).append(data)
            expected.append(data)
    return wire.pack_message(made, inline) + b"".join(apart), expected


@given(st.lists(frames, max_size=4), st.sampled_from([1, 13, 1000, 65_536, 1 << 30]), st.integers(0, 255))
def test_messages_survive_every_way_of_cutting(messages: list[Any], most: int, seed: int) -> None:
    total = sum(n for rows in messages for _, n in rows)
    if most == 1 and total > 100_000:
        most = 977
    inbox, stream, expected = Inbox(), b"", []
    for rows in messages:
        data, found = packed(rows, seed)
        stream += data + wire.pack_ack(seed)
        expected.append(found)
    inbox.put(stream, most)
    assert [[f if isinstance(f, wire.Offered) else bytes(f) for f in m.frames] for m in inbox.messages] == expected
    assert [wire.unpack_number(body) for _, body in inbox.controls] == [seed] * len(messages)


def test_frames_that_arrive_are_writable() -> None:
    inbox = Inbox()
    for size in (10, 70_000, 2_000_000):
        inbox.put(packed([(wire.INLINE, size), (wire.APART, size)], 1)[0])
    assert all(not frame.readonly for message in inbox.messages for frame in message.frames)


def test_small_frames_of_a_long_body_do_not_hold_each_other() -> None:
    inbox = Inbox()
    inbox.put(packed([(wire.INLINE, 60_000)] * 30, 1)[0])
    assert len({id(frame.obj) for frame in inbox.messages[0].frames}) == 30


def test_offered_messages_are_numbered_as_the_sender_numbers_them() -> None:
    inbox = Inbox()
    for rows in ([(wire.OFFERED, 1)], [(wire.INLINE, 1)], [(wire.OFFERED, 1), (wire.OFFERED, 2)]):
        inbox.put(packed(rows, 0)[0])
    assert [message.number for message in inbox.messages] == [0, -1, 1]


HEAD = struct.Struct("<4sBBHIQ")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "does not speak weft://"),
        (HEAD.pack(b"weft", 9, wire.ACK, 0, 0, 8), "version 9"),
        (HEAD.pack(b"weft", 0, wire.ACK, 0, 0, 8), "version 0"),
        (HEAD.pack(b"weft", 1, 77, 0, 0, 8), "unknown kind 77"),
        (HEAD.pack(b"weft", 1, wire.HELLO, 0, 0, 1 << 40), "at most"),
        (HEAD.pack(b"weft", 1, wire.MESSAGE, 0, 1, 1 << 60), "at most"),
        (HEAD.pack(b"weft", 1, wire.MESSAGE, 0, (1 << 32) - 1, 1 << 36), "at most"),
        (HEAD.pack(b"weft", 1, wire.MESSAGE, 0, wire.ROWS_MAX + 1, 25 * (wire.ROWS_MAX + 1)), "at most"),
        (HEAD.pack(b"weft", 1, wire.MESSAGE, 0, wire.ROWS_MAX, 25 * wire.ROWS_MAX), None),
        (HEAD.pack(b"weft", 1, wire.MESSAGE, 0, 2, 25), "2 frames and 25 B"),
        (wire.pack_message([wire.Row(wire.INLINE, 5)], [b"1234"]) + b"", None),
        (wire.pack(wire.MESSAGE, struct.pack("<BQQQ", wire.INLINE, 5, 0, 0) + b"1234", 1), "longer than their message"),
        (wire.pack(wire.MESSAGE, struct.pack("<BQQQ", wire.INLINE, 3, 0, 0) + b"1234", 1), "longer than its frames"),
        (wire.pack(wire.MESSAGE, struct.pack("<BQQQ", wire.APART, 1 << 62, 0, 0), 1), "accepts"),
        (wire.pack(wire.MESSAGE, struct.pack("<BQQQ", wire.APART, FRAME_MAX + 1, 0, 0), 1), "accepts"),
        (wire.pack(wire.MESSAGE, struct.pack("<BQQQ", wire.APART, FRAME_MAX, 0, 0), 1), None),
        (wire.pack(wire.MESSAGE, struct.pack("<BQQQ", 9, 1, 0, 0), 1), "unknown way 9"),
    ],
)
def test_made_up_bytes_are_refused(data: bytes, said: str | None) -> None:
    inbox = Inbox()
    if said is None:  # a part of a message is not an error
        inbox.put(data)
        assert not inbox.messages
        return
    with pytest.raises(wire.Malformed, match=said):
        inbox.put(data)
    assert not inbox.messages


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_wait_for_more(data: bytes) -> None:
    inbox = Inbox()
    try:
        inbox.put(data)
    except wire.Malformed:
        pass
    assert not inbox.messages


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff", b"[" * 5000])
def test_greeting_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.unpack_json(body)


@pytest.mark.parametrize("size", [0, 7, 9, 16])
def test_acknowledgement_has_a_number_and_nothing_else(size: int) -> None:
    with pytest.raises(wire.Malformed, match="without a number"):
        wire.unpack_number(bytes(size))
    assert wire.unpack_number((5).to_bytes(8, "little")) == 5
