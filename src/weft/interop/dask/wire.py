"""Bytes of a `weft://` control connection: a head, a body, and frames that follow in buffers of their own.

    HELLO     who sends: fabric, address, key of the greeting. Body: JSON.
    VERDICT   whether the sender can read the receiver's memory. Body: JSON.
    MESSAGE   a message of Dask: a table of its frames, then the small frames.
    ACK       all offered frames of a message have been read. Body: the message's number.
    BYE       the sender reads no further messages.

A frame of a message is in the body (INLINE), follows the body in the stream (APART), or stays in the sender's memory,
where the receiver reads it (OFFERED). Everything that a peer sends is checked here or by `Link`.

`Parser` takes bytes as they arrive and knows no socket: `get_buffer` says where the next bytes go, so that a frame
APART is received into its final buffer.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

HELLO, VERDICT, MESSAGE, ACK, BYE = range(1, 6)
INLINE, APART, OFFERED = range(3)

VERSION = 1
_MAGIC = b"weft"
_HEAD = struct.Struct("<4sBBHIQ")  # magic, version, kind, 0, rows of the table, bytes of the body
_ROW = struct.Struct("<BQQQ")  # how, bytes, key, address
_NUMBER = struct.Struct("<Q")

ROWS_MAX = 1 << 22
CONTROL_BYTES_MAX = 1 << 16  # bodies of all kinds but MESSAGE
SCRATCH_BYTES = 1 << 18
# A body or a frame that is longer than this is received into its own buffer, a shorter one by way of the scratch.
_DIRECT_BYTES = 1 << 16
# Frames of a body that is longer than this are copied, so that a frame that lives on does not hold the whole body.
_SPLIT_BYTES = 1 << 20


class Malformed(Exception):
    """The peer sent bytes that no Weft sends."""


class Row(NamedTuple):
    """One frame in the table of a message. key, addr: of an OFFERED frame."""

    how: int
    nbytes: int
    key: int = 0
    addr: int = 0


class Offered(NamedTuple):
    """A frame that is still in the sender's memory."""

    nbytes: int
    key: int
    addr: int


@dataclass(slots=True)
class Arrived:
    """A message as it arrived. frames: writable memory, or `Offered`. nbytes: what is in this process's memory. loaded:
    returns the object that a thread made of the frames, or raises its error; None: no thread did.
    """

    frames: list[Any]
    nbytes: int = 0
    offered: int = 0
    number: int = -1
    missing: list[int] = field(default_factory=list)
    loaded: Callable[[], Any] | None = None


def pack(kind: int, body: bytes = b"", rows: int = 0, more: int = 0) -> bytes:
    """A head and a body. more: bytes of the body that follow."""
    return _HEAD.pack(_MAGIC, VERSION, kind, 0, rows, len(body) + more) + body


def pack_json(kind: int, value: dict[str, Any]) -> bytes:
    """A HELLO or a VERDICT."""
    return pack(kind, json.dumps(value).encode())


def pack_ack(number: int) -> bytes:
    """An ACK."""
    return pack(ACK, _NUMBER.pack(number))


def pack_message(rows: list[Row], inline: list[Any]) -> bytes:
    """Head, table and small frames of a MESSAGE. The frames APART follow it in the stream."""
    table = b"".join(_ROW.pack(*row) for row in rows)
    size = sum(row.nbytes for row in rows if row.how == INLINE)
    return b"".join([pack(MESSAGE, table, len(rows), size), *inline])


def unpack_json(body: Any) -> dict[str, Any]:
    """Raises Malformed."""
    try:
        found = json.loads(bytes(body))
    except (ValueError, RecursionError) as reason:
        raise Malformed(f"a greeting that is not JSON: {reason}") from None
    if not isinstance(found, dict):
        raise Malformed("a greeting that is not an object of JSON")
    return found


class Parser:
    """Bytes in, messages out.

    Args:
        on_control: Called with (kind, body) for all kinds but MESSAGE.
        on_message: Called with `Arrived` once all frames but the offered ones are here.
        frame_max: Most bytes of one frame, and of the frames in one body.

    Both may raise Malformed, as `feed` does; the parser is of no use afterwards.
    """

    def __init__(
        self,
        on_control: Callable[[int, Any], None],
        on_message: Callable[[Arrived], None],
        frame_max: int,
        buffer: Callable[[int], memoryview],
    ) -> None:
        self._on_control = on_control
        self._on_message = on_message
        self._frame_max = frame_max
        self._buffer = buffer
        self._scratch = bytearray(SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._start = self._end = 0
        self._target: memoryview | None = None
        self._filled = 0
        self._need = _HEAD.size
        self._kind = 0  # of the body that is due; 0: a head or a frame APART is due
        self._rows = 0
        self._message: Arrived | None = None  # its frames APART are due
        self._offered_so_far = 0

    # ---- where bytes go --------------------------------------------------------------------------------------------

    def get_buffer(self) -> memoryview:
        """Memory for the next bytes; never empty."""
        if self._target is not None:
            return self._target[self._filled :]
        return self._view[self._end :]

    def feed(self, n: int) -> None:
        """The first n bytes of `get_buffer()` are here. Raises Malformed, MemoryError."""
        if self._target is not None:
            self._filled += n
            if self._filled < len(self._target):
                return
            whole, self._target = self._target, None
            self._take(whole)
        else:
            self._end += n
        while True:
            need, have = self._need, self._end - self._start
            if have < need:
                if need > _DIRECT_BYTES:
                    self._target = target = self._buffer(need)
                    target[:have] = self._view[self._start : self._end]
                    self._filled = have
                    self._start = self._end = 0
                elif self._start and self._start + need > SCRATCH_BYTES:
                    self._view[:have] = self._view[self._start : self._end]
                    self._start, self._end = 0, have
                elif not have:
                    self._start = self._end = 0
                return
            piece = memoryview(bytearray(self._view[self._start : self._start + need]))
            self._start += need
            self._take(piece)

    # ---- what the bytes are ----------------------------------------------------------------------------------------

    def _take(self, piece: memoryview) -> None:
        message = self._message
        if message is not None:
            message.frames[message.missing.pop()] = piece
            self._next_apart(message)
        elif self._kind:
            kind, self._kind, self._need = self._kind, 0, _HEAD.size
            if kind == MESSAGE:
                self._body(piece)
            else:
                self._on_control(kind, piece)
        else:
            self._head(piece)

    def _head(self, piece: memoryview) -> None:
        magic, version, kind, _, rows, size = _HEAD.unpack(piece)
        if magic != _MAGIC:
            raise Malformed(f"it does not speak weft://: its bytes begin with {bytes(piece[:16])!r}")
        if version != VERSION:
            raise Malformed(f"it speaks version {version} of weft://, this process version {VERSION}")
        if not HELLO <= kind <= BYE:
            raise Malformed(f"a message of the unknown kind {kind}")
        most = CONTROL_BYTES_MAX if kind != MESSAGE else rows * _ROW.size + self._frame_max
        if rows > ROWS_MAX or size > most or (kind == MESSAGE and size < rows * _ROW.size):
            raise Malformed(f"a message of {rows} frames and {size} B; at most {most} B are accepted")
        self._kind, self._rows, self._need = kind, rows, size

    def _body(self, body: memoryview) -> None:
        at, frames, message = self._rows * _ROW.size, [], Arrived([], body.nbytes)
        apart: list[int] = []
        split = body.nbytes > _SPLIT_BYTES
        for how, nbytes, key, addr in self._table(body):
            if nbytes > self._frame_max:
                raise Malformed(f"a frame of {nbytes} B; this process accepts {self._frame_max} B")
            if how == INLINE:
                if at + nbytes > body.nbytes:
                    raise Malformed("frames that are longer than their message")
                piece: Any = body[at : at + nbytes]
                frames.append(memoryview(bytearray(piece)) if split else piece)
                at += nbytes
            elif how == APART:
                apart.append(len(frames))
                frames.append(nbytes)
                message.nbytes += nbytes
            elif how == OFFERED:
                frames.append(Offered(nbytes, key, addr))
                message.offered += nbytes
                message.number = self._offered_so_far
            else:
                raise Malformed(f"a frame that is sent in the unknown way {how}")
        if at != body.nbytes:
            raise Malformed("a message that is longer than its frames")
        if message.number >= 0:
            self._offered_so_far += 1
        message.frames = frames
        message.missing = apart[::-1]
        self._next_apart(message)

    def _table(self, body: memoryview) -> Iterator[tuple[int, int, int, int]]:
        return _ROW.iter_unpack(body[: self._rows * _ROW.size])

    def _next_apart(self, message: Arrived) -> None:
        if message.missing:
            self._message, self._need = message, message.frames[message.missing[-1]]
        else:
            self._message, self._need = None, _HEAD.size
            self._on_message(message)


def unpack_number(body: Any) -> int:
    """Of an ACK. Raises Malformed."""
    if len(body) != _NUMBER.size:
        raise Malformed("an acknowledgement without a number")
    return int(_NUMBER.unpack(body)[0])
