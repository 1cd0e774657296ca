"""Recordings as timelines: the event of each record, and files that are no recordings."""

from __future__ import annotations

import io
import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from weft import _nic
from weft.observe import records, timeline
from weft.observe.records import NO_ENDPOINT, EndpointName, Record, Recording

PID, THREAD = 100, 101


def record(number: int, kind: str, t_ns: int, **more: int) -> Record:
    values: dict[str, Any] = {
        "duration_ns": 0, "id": 0, "bytes": 0, "arg": 0, "thread": THREAD, "endpoint": 0, "peer": 0, "what": 0,
        "status": 0, **more,
    }  # fmt: skip
    return Record(number, kind, t_ns, **values)


def recording(*found: Record) -> Recording:
    eps: list[EndpointName | None] = [EndpointName(1, 7, 10, 0, "one"), None]
    return Recording(PID, "program", 1000, 0, len(found), {THREAD: "worker"}, eps, list(found))


def events(*found: Record) -> list[dict[str, Any]]:
    """The events besides names."""
    return [one for one in timeline.events(recording(*found), 1000) if one["ph"] != "M"]


# ---- records become events -------------------------------------------------------------------------------------------


def test_call_is_a_slice_of_its_thread() -> None:
    (one,) = events(record(0, "call", 3000, duration_ns=500, bytes=8, arg=0x2A, peer=9, what=0))
    assert one["ph"] == "X"
    assert (one["name"], one["pid"], one["tid"]) == ("write", PID, THREAD)
    assert (one["ts"], one["dur"]) == (2.0, 0.5)  # microseconds
    assert one["args"] == {"endpoint": "one", "bytes": 8, "peer": 9, "key": "0x2a"}


def test_operation_is_a_span_from_post_to_completion() -> None:
    begin, end = events(
        record(0, "begin", 2000, id=5, bytes=64, peer=9, what=5), record(1, "end", 9000, id=5, bytes=64, what=5)
    )
    assert (begin["ph"], end["ph"]) == ("b", "e")
    assert begin["name"] == end["name"] == "one: send"
    assert begin["id2"] == end["id2"]
    assert (begin["ts"], end["ts"]) == (1.0, 8.0)
    assert end["args"]["status"] == "ok"


def test_overlapping_operations_have_different_numbers() -> None:
    found = events(
        record(0, "begin", 2000, id=5), record(1, "begin", 3000, id=6),
        record(2, "end", 4000, id=5), record(3, "end", 5000, id=6),
    )  # fmt: skip
    numbers = {one["id2"]["local"] for one in found}
    assert len(numbers) == 2
    assert sorted(one["ts"] for one in found if one["id2"] == found[0]["id2"]) == [1.0, 3.0]


def test_operations_of_two_endpoints_with_one_number_end_apart() -> None:
    found = events(
        record(0, "begin", 2000, id=5, endpoint=0), record(1, "begin", 3000, id=5, endpoint=1),
        record(2, "end", 4000, id=5, endpoint=1), record(3, "end", 6000, id=5, endpoint=0),
    )  # fmt: skip
    assert sorted((one["ph"], one["ts"]) for one in found) == [("b", 1.0), ("b", 2.0), ("e", 3.0), ("e", 5.0)]
    assert len({one["id2"]["local"] for one in found}) == 2


def test_operation_that_did_not_end_is_unfinished() -> None:
    (one,) = events(record(0, "begin", 2000, id=5))
    assert one["ph"] == "b"
    assert one["args"]["unfinished"]


def test_begin_whose_end_was_replaced_is_shown_beside_the_next_one() -> None:
    """The number of an operation is used again: two begins, and the end belongs to the second."""
    first, begin, end = events(
        record(0, "begin", 2000, id=5, bytes=1), record(7, "begin", 6000, id=5, bytes=2), record(8, "end", 9000, id=5)
    )
    assert [(one["ph"], one["ts"]) for one in (first, begin, end)] == [("b", 1.0), ("b", 5.0), ("e", 8.0)]
    assert (first["args"]["bytes"], begin["args"]["bytes"]) == (1, 2)
    assert first["id2"] != begin["id2"] == end["id2"]


def test_end_whose_begin_was_replaced_is_left_out() -> None:
    assert events(record(40, "end", 2000, id=5)) == []


def test_stall_is_a_span_with_its_refused_calls() -> None:
    number = timeline.REFUSALS.index("tx_full")
    begin, end = events(record(0, "stall", 2000, what=number), record(1, "go_on", 5000, what=number, id=12))
    assert (begin["ph"], begin["name"]) == ("b", "one: stalled, tx_full")
    assert (end["ph"], end["args"]) == ("e", {"refused calls": 12})


def test_flow_control_is_a_span_of_each_peer() -> None:
    found = events(
        record(0, "stopped", 2000, peer=3), record(1, "stopped", 3000, peer=4),
        record(2, "resumed", 4000, peer=3), record(3, "resumed", 5000, peer=4),
    )  # fmt: skip
    assert {one["name"] for one in found} == {"one: flow control"}
    assert sorted((one["ph"], one["ts"]) for one in found) == [("b", 1.0), ("b", 2.0), ("e", 3.0), ("e", 4.0)]


@pytest.mark.parametrize(
    ("kind", "more", "name", "args"),
    [
        ("post", {"bytes": 8, "arg": 7}, "receive posted", {"bytes": 8, "tag": "0x7"}),
        ("kept", {"bytes": 8, "arg": 7, "peer": 2}, "message kept", {"tag": "0x7", "peer": 2}),
        ("received", {"status": 28}, "message received", {"status": "truncated"}),
        ("failed", {"arg": 3, "status": 1}, "failed", {"key": "0x3", "status": "no_key"}),
        ("retry", {"id": 4, "arg": 2}, "sent again later", {"id": 4, "attempt": 2}),
        ("match_mode", {"what": 2}, "match mode", {"matching": "software"}),
        ("triggered", {"what": 5, "arg": 40, "id": 9}, "triggered", {"operation": "send", "threshold": 40, "id": 9}),
        ("peer_lost", {"arg": 4711}, "peer lost", {"process": 4711}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_moments_are_on_the_track_of_their_endpoint(
    kind: str, more: dict[str, int], name: str, args: dict[str, Any]
) -> None:
    found = list(timeline.events(recording(record(0, kind, 2000, **more)), 1000))
    (one,) = [each for each in found if each["ph"] == "i"]
    assert (one["name"], one["s"]) == (name, "t")
    assert args.items() <= one["args"].items()
    assert one["args"]["thread"] == THREAD
    names = {each["tid"]: each["args"]["name"] for each in found if each["name"] == "thread_name"}
    assert names[one["tid"]] == "endpoint one"


def test_processes_and_threads_have_names() -> None:
    found = list(timeline.events(recording(record(0, "served", 2000, what=1, thread=PID)), 1000))
    names = {(each["name"], each["tid"]): each["args"]["name"] for each in found if each["ph"] == "M"}
    assert names == {
        ("process_name", 0): "program [100]", ("thread_name", PID): "main", ("thread_name", THREAD): "thread worker",
    }  # fmt: skip
    assert [each["name"] for each in found if each["ph"] == "X"] == ["serve write"]


@pytest.mark.parametrize(("number", "name"), [(1, "#1"), (2, "#2"), (NO_ENDPOINT, "NIC")])
def test_endpoint_without_a_name_has_its_number(number: int, name: str) -> None:
    (one,) = events(record(0, "call", 2000, endpoint=number))
    assert one["args"]["endpoint"] == name


@pytest.mark.parametrize("kind", [kind for kind in records.KINDS if kind])
def test_numbers_of_a_later_version_are_shown_as_numbers(kind: str) -> None:
    list(timeline.events(recording(record(0, kind, 2000, what=200, status=200, arg=2**64 - 1, endpoint=9)), 1000))


def test_timeline_counts_from_the_first_process() -> None:
    one = recording(record(0, "call", 5000))
    other = Recording(PID + 1, "", 3000, 0, 9, {}, [], [record(8, "call", 4000)])
    out = io.StringIO()
    count = timeline.write(out, [one, other])
    said = json.loads(out.getvalue())
    assert len(said["traceEvents"]) == count
    assert sorted(each["ts"] for each in said["traceEvents"] if each["ph"] == "X") == [3.0, 4.0]
    assert said["otherData"]["records_lost"] == {"100": 0, "101": 8}


def test_no_process_is_a_timeline_without_events() -> None:
    out = io.StringIO()
    assert timeline.write(out, []) == 0
    assert json.loads(out.getvalue())["traceEvents"] == []


# ---- names are those of the NIC --------------------------------------------------------------------------------------


def test_names_of_refusals_are_those_of_the_nic() -> None:
    members = {one.value: one.name for one in _nic.Refusal}
    assert list(timeline.REFUSALS[1:]) == [members[number] for number in range(1, len(timeline.REFUSALS))]


def test_names_of_statuses_are_those_of_the_nic() -> None:
    assert list(timeline.STATUSES) == [one.name for one in sorted(_nic.Status)]


# ---- files -----------------------------------------------------------------------------------------------------------

SLOTS = 4


def file_of(path: Path, *slots: bytes, magic: bytes = records.MAGIC, version: int = 1, slot_count: int = SLOTS) -> Path:
    head = struct.pack(
        "=8sIIQQQQQQII64s", magic, version, 64, slot_count, PID, 1000, 0, len(slots), 0, 0, 0, b"program\0"
    )
    data = head.ljust(records.HEAD_BYTES, b"\0") + b"".join(slots)
    path.write_bytes(data.ljust(records.HEAD_BYTES + 64 * SLOTS, b"\0"))
    return path


def slot(number: int, *, state: int | None = None, kind: int = 1) -> bytes:
    return struct.pack(
        "=QQQQQQIIHBBi", 2 * (number + 1) if state is None else state, 2000, 0, number, 0, 0, THREAD, 0, 0, kind, 0, 0
    )


def test_whole_records_are_read(tmp_path: Path) -> None:
    found = records.read(file_of(tmp_path / "x", slot(0), slot(1)))
    assert (found.pid, found.command, found.lost) == (PID, "program", 0)
    assert [(one.number, one.kind, one.id) for one in found.records] == [(0, "call", 0), (1, "call", 1)]


def test_newer_records_are_read_behind_older_ones(tmp_path: Path) -> None:
    found = records.read(file_of(tmp_path / "x", slot(4), slot(5), slot(2), slot(3)))
    assert [one.number for one in found.records] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    "bad",
    [
        slot(1, state=3), slot(1, state=5), slot(1, state=2), slot(1, kind=0), slot(1, kind=len(records.KINDS)),
        slot(1, kind=99), slot(2),
    ],
    ids=[
        "being written", "being written again", "of another place", "no kind", "first unknown kind",
        "unknown kind", "number of another place",
    ],
)  # fmt: skip
def test_record_that_is_not_whole_is_lost(tmp_path: Path, bad: bytes) -> None:
    found = records.read(file_of(tmp_path / "x", slot(0), bad))
    assert [one.number for one in found.records] == [0]
    assert found.lost == 1


def test_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    empty, short = tmp_path / "empty", tmp_path / "short"
    empty.touch()
    short.write_bytes(file_of(tmp_path / "x", slot(0)).read_bytes()[:-1])
    zeros = tmp_path / "zeros"  # of a process that was killed while it made the file
    zeros.write_bytes(bytes(records.HEAD_BYTES + 256))
    wrong = [
        empty, short, zeros, file_of(tmp_path / "a", magic=b"WEFTRRC\0"), file_of(tmp_path / "b", version=9),
        file_of(tmp_path / "c", slot_count=3), file_of(tmp_path / "d", slot_count=2**40),
        file_of(tmp_path / "e", slot_count=0),
    ]  # fmt: skip
    for path in wrong:
        with pytest.raises(ValueError, match=r"trace"):
            records.read(path)


def test_damaged_file_is_read_or_refused(tmp_path: Path, rng: random.Random) -> None:
    good = file_of(tmp_path / "x", slot(0), slot(1), slot(2), slot(3)).read_bytes()
    for round_ in range(200):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 30)):
            at = rng.choice(
                [rng.randrange(160), rng.randrange(len(data)), rng.randrange(records.HEAD_BYTES, len(data))]
            )
            data[at] = rng.randrange(256)
        path = tmp_path / str(round_)
        path.write_bytes(data)
        try:
            found = records.read(path)
        except ValueError:
            continue
        timeline.write(io.StringIO(), [found])
