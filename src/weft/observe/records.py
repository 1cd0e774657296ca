"""The file that a traced process records into, read as values. The process may be running, or killed.

The layout is that of cpp/nic/trace.hpp: a head, then a ring of records. A record that was being written when its thread
stopped, and one that a newer record has replaced, are left out; `Recording.lost` counts them.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"WEFTTRC\0"
VERSION = 1
HEAD_BYTES = 64 * 1024
THREADS_AT, THREADS = 136, 64
ENDPOINTS_AT, ENDPOINTS = THREADS_AT + THREADS * 32, 960
NO_ENDPOINT = 2**16 - 1

_HEAD = struct.Struct("=8sIIQQQQQQII64s")
_THREAD = struct.Struct("=II24s")
_ENDPOINT = struct.Struct("=IIIHH48s")
_SLOT = struct.Struct("=QQQQQQIIHBBi")
assert _SLOT.size == 64

KINDS = (
    "", "call", "begin", "end", "failed", "post", "matched", "received", "kept", "stall", "go_on", "stopped", "resumed",
    "retry", "match_mode", "served", "triggered", "peer_lost",
)  # fmt: skip
"""Names of TraceKind, by number."""


@dataclass(frozen=True)
class EndpointName:
    """An endpoint that was enabled while the process was traced."""

    nic: int
    pid: int
    vni: int
    domain: int
    text: str


@dataclass(frozen=True)
class Record:
    """One record: what happened, and when. The fields are those of TraceRecord."""

    number: int
    kind: str
    t_ns: int
    duration_ns: int
    id: int
    bytes: int
    arg: int
    thread: int
    endpoint: int
    peer: int
    what: int
    status: int


@dataclass(frozen=True)
class Recording:
    """A process's trace.

    Attributes:
        started_ns: Start of the trace, by the clock of the records.
        started_at: Start of the trace, in nanoseconds since 1970.
        added: Records so far.
        lost: Records that are no longer in `records`.
        threads: Names of threads, by number.
        endpoints: Names of endpoints, by the number in records; None: the name was being written.
    """

    pid: int
    command: str
    started_ns: int
    started_at: int
    added: int
    threads: dict[int, str]
    endpoints: list[EndpointName | None]
    records: list[Record]

    @property
    def lost(self) -> int:
        """Records that newer ones have replaced, and those that were dropped or not finished."""
        return self.added - len(self.records)


def read(path: Path | str) -> Recording:
    """The trace in a file. Raises OSError, and ValueError for a file that is none (or whose process was killed while it
    made the file).
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < HEAD_BYTES:
            raise ValueError(f"{path}: no trace: {size} B")
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as memory:
            return _read(path, memory, size)


def _read(path: Path | str, memory: mmap.mmap, size: int) -> Recording:
    magic, version, slot_bytes, slots, pid, started_ns, started_at, added, _, eps, threads, command = _HEAD.unpack_from(
        memory, 0
    )
    if magic != MAGIC or version != VERSION or slot_bytes != _SLOT.size or slots & (slots - 1) or not slots:
        raise ValueError(f"{path}: no trace of this version: {magic!r}, version {version}")
    if size < HEAD_BYTES + slots * _SLOT.size:
        raise ValueError(f"{path}: a trace of {slots} records has {size} B only")
    names: list[EndpointName | None] = []
    for at in range(min(eps, ENDPOINTS)):
        used, nic, number, vni, domain, text = _ENDPOINT.unpack_from(memory, ENDPOINTS_AT + at * _ENDPOINT.size)
        names.append(EndpointName(nic, number, vni, domain, _text(text)) if used else None)
    thread_names = {}
    for at in range(min(threads, THREADS)):
        used, thread, name = _THREAD.unpack_from(memory, THREADS_AT + at * _THREAD.size)
        if used:
            thread_names[thread] = _text(name)
    records = []
    for at, slot in enumerate(_SLOT.iter_unpack(memory[HEAD_BYTES : HEAD_BYTES + slots * _SLOT.size])):
        state, t_ns, duration_ns, id_, bytes_, arg, thread, peer, endpoint, kind, what, status = slot
        number = state // 2 - 1
        if state == 0 or state & 1 or number & (slots - 1) != at or not 0 < kind < len(KINDS):
            continue
        records.append(
            Record(number, KINDS[kind], t_ns, duration_ns, id_, bytes_, arg, thread, endpoint, peer, what, status)
        )
    records.sort(key=lambda one: one.number)
    # A living process may have written records after `added` was read.
    return Recording(
        pid, _text(command), started_ns, started_at, max(added, len(records)), thread_names, names, records
    )


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode(errors="replace")
