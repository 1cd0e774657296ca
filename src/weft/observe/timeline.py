"""A timeline of traced processes, in the format that Perfetto (ui.perfetto.dev) and chrome://tracing open.

    with open("run.json", "w") as out:
        write(out, [records.read(path) for path in paths])

Tracks: the calls of each thread, and the frames that it served for peers; for each endpoint its operations from post to
completion, its stalls, and, as instants, what happened to messages and receives. All processes of a host have the same
clock, so their tracks can be compared.

Source: Trace Event Format (Chromium), "JSON Object Format": times are in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from .. import _nic
from .records import NO_ENDPOINT, Record, Recording

Event = dict[str, Any]

OPERATIONS = ("write", "read", "atomic", "vectored call", "connect", "send", "pull")
"""Names of OpKind, by number."""

FRAMES = (
    "", "write", "read", "atomic", "check", "answer", "notice", "connect", "message", "reply", "pull", "done", "ready",
    "leave",
)  # fmt: skip
"""Names of FrameKind, by number."""

MATCHING = ("hardware", "changing", "software")
"""Names of RxMode::State, by number."""

REFUSALS = tuple(one.name for one in _nic.Refusal)
STATUSES = tuple(one.name for one in _nic.Status)

_ENDPOINT_TRACK = 1 << 24  # thread numbers of endpoints' tracks: threads of Linux are below 1 << 22
_INSTANTS = {
    "failed": "failed",
    "post": "receive posted",
    "matched": "rendezvous matched",
    "received": "message received",
    "kept": "message kept",
    "retry": "sent again later",
    "match_mode": "match mode",
    "triggered": "triggered",
    "peer_lost": "peer lost",
}
"""Records of a moment -> what a viewer shows."""


def write(out: TextIO, recordings: Sequence[Recording]) -> int:
    """Write the timeline of these processes; returns the number of its events."""
    begun = min((one.started_ns for one in recordings), default=0)
    about = {
        "tool": "weft trace",
        "started_ns_since_1970": min((one.started_at for one in recordings), default=0),
        "records": {str(one.pid): len(one.records) for one in recordings},
        "records_lost": {str(one.pid): one.lost for one in recordings},
    }
    out.write('{"displayTimeUnit": "ns", "otherData": ' + json.dumps(about) + ', "traceEvents": [')
    count = 0
    for index, recording in enumerate(recordings):
        for event in events(recording, begun, index << 32):
            out.write((",\n" if count else "\n") + json.dumps(event, separators=(",", ":")))
            count += 1
    out.write("\n]}\n")
    return count


def events(recording: Recording, begun_ns: int, first_span: int = 0) -> Iterator[Event]:
    """The events of one process. Times count from begun_ns, numbers of spans from first_span."""
    return _Events(recording, begun_ns, first_span).all()


def _named(names: Sequence[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else str(number)


class _Events:
    def __init__(self, recording: Recording, begun_ns: int, first_span: int) -> None:
        self.recording, self.begun_ns, self.spans = recording, begun_ns, first_span
        # Spans that have begun and not ended: key -> the event that began the span.
        self.open: dict[tuple[Any, ...], Event] = {}

    def all(self) -> Iterator[Event]:
        yield from self._names()
        for record in sorted(self.recording.records, key=lambda one: one.t_ns):  # a call has the time of its begin
            yield from self._of(record)
        # Spans that the end of the recording cut off: a viewer draws them up to the end of the timeline.
        for begin in self.open.values():
            begin["args"]["unfinished"] = True
            yield begin

    # ---- names -------------------------------------------------------------------------------------------------------

    def _names(self) -> Iterator[Event]:
        process = self.recording
        yield self._name("process_name", 0, name=f"{process.command or 'process'} [{process.pid}]")
        used = {one.thread for one in process.records}
        for thread in sorted(used | process.threads.keys()):
            name = process.threads.get(thread, "")
            role = "main" if thread == process.pid else "thread"
            yield self._name("thread_name", thread, name=f"{role} {name}".strip())
        tracks = {self._track(one.endpoint): one.endpoint for one in process.records if one.kind in _INSTANTS}
        for track, number in sorted(tracks.items()):
            yield self._name("thread_name", track, name=f"endpoint {self._endpoint(number)}")
            yield self._name("thread_sort_index", track, sort_index=track)

    def _name(self, what: str, thread: int, **args: Any) -> Event:
        return {"ph": "M", "name": what, "pid": self.recording.pid, "tid": thread, "args": args}

    def _endpoint(self, number: int) -> str:
        if number == NO_ENDPOINT:
            return "NIC"
        known = self.recording.endpoints[number] if number < len(self.recording.endpoints) else None
        return known.text if known else f"#{number}"

    @staticmethod
    def _track(number: int) -> int:
        return _ENDPOINT_TRACK + (number + 1) % 2**16

    # ---- records -----------------------------------------------------------------------------------------------------

    def _of(self, record: Record) -> list[Event]:
        where = self._endpoint(record.endpoint)
        match record.kind:
            case "call":
                return self._call(record, where)
            case "served":
                name = f"serve {_named(FRAMES, record.what)}"
                return self._slice(name, record, {"bytes": record.bytes, "peer": record.peer})
            case "begin":
                name = f"{where}: {_named(OPERATIONS, record.what)}"
                args = {"id": record.id, "bytes": record.bytes, "peer": record.peer}
                return self._begin(("op", record.endpoint, record.id), name, record, args)
            case "end":
                key = "op", record.endpoint, record.id
                return self._end(key, record, {"status": _named(STATUSES, record.status), "bytes": record.bytes})
            case "stall":
                name = f"{where}: stalled, {_named(REFUSALS, record.what)}"
                return self._begin(("stall", record.endpoint), name, record, {})
            case "go_on":
                return self._end(("stall", record.endpoint), record, {"refused calls": record.id})
            case "stopped":
                name = f"{where}: flow control"
                return self._begin(("flow", record.endpoint, record.peer), name, record, {"peer": record.peer})
            case "resumed":
                return self._end(("flow", record.endpoint, record.peer), record, {})
        return self._instant(record)

    def _event(self, phase: str, name: str, record: Record, args: Event) -> Event:
        return {
            "ph": phase,
            "name": name,
            "cat": "weft",
            "pid": self.recording.pid,
            "tid": record.thread,
            "ts": (record.t_ns - self.begun_ns) / 1000,
            "args": args,
        }

    def _slice(self, name: str, record: Record, args: Event) -> list[Event]:
        """Something that a thread did from begin to end."""
        return [{**self._event("X", name, record, args), "dur": record.duration_ns / 1000}]

    def _begin(self, key: tuple[Any, ...], name: str, record: Record, args: Event) -> list[Event]:
        """Something that ends in another call, or in another thread."""
        event = self._event("b", name, record, args)
        event["id2"] = {"local": f"0x{self.spans:x}"}
        self.spans += 1
        cut_off = self.open.pop(key, None)  # its end was replaced by newer records
        self.open[key] = event
        return [cut_off] if cut_off else []

    def _end(self, key: tuple[Any, ...], record: Record, args: Event) -> list[Event]:
        begin = self.open.pop(key, None)
        if begin is None:  # its begin was replaced by newer records
            return []
        return [begin, {**self._event("e", begin["name"], record, args), "id2": begin["id2"]}]

    def _call(self, record: Record, where: str) -> list[Event]:
        name = _named(OPERATIONS, record.what)
        args: Event = {"endpoint": where, "bytes": record.bytes, "peer": record.peer}
        args["descriptors" if name == "vectored call" else "tag" if name == "send" else "key"] = _number(record, name)
        if record.id:
            args["id"] = record.id
        if record.status:
            args["refused"] = _named(REFUSALS, record.status)
        return self._slice(name if record.id == 0 else f"post {name}", record, args)

    def _instant(self, record: Record) -> list[Event]:
        args: Event = {"thread": record.thread}
        match record.kind:
            case "post" | "matched" | "received" | "kept" | "failed":
                number = "key" if record.kind == "failed" else "tag"
                args |= {"bytes": record.bytes, number: f"0x{record.arg:x}", "peer": record.peer}
                if record.status:
                    args["status"] = _named(STATUSES, record.status)
            case "retry":
                args |= {"id": record.id, "attempt": record.arg, "peer": record.peer}
            case "match_mode":
                args |= {"matching": _named(MATCHING, record.what)}
            case "triggered":
                args |= {"operation": _named(OPERATIONS, record.what), "threshold": record.arg, "id": record.id}
            case "peer_lost":
                args |= {"process": record.arg}
        event = self._event("i", _INSTANTS[record.kind], record, args)
        event.update(s="t", tid=self._track(record.endpoint))
        return [event]


def _number(record: Record, name: str) -> int | str:
    return record.arg if name == "vectored call" else f"0x{record.arg:x}"
