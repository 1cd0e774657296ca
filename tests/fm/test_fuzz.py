"""Made-up answers of a manager, and made-up requests to one: errors of the documented kinds, and nothing else."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fm.conftest import TOKEN, Manager, parsed
from tests.fm.scripted import Scripted

from weft.fm import ManagerError, create_multicast, delete_multicast, server
from weft.fm.addresses import NIC_MAX, nic_of_mac

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES") or 60)
NUMBERS = {2048, 2049, 2050, 2051, 2052, 2054}

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
documents = st.recursive(
    scalars, lambda of: st.lists(of, max_size=4) | st.dictionaries(st.text(max_size=8), of, max_size=4)
)
macs = st.from_regex(r"\A([0-9a-fA-F]{1,2}:?){0,8}\Z")
answers = st.fixed_dictionaries(
    {},
    optional={
        "mcastID": st.integers(-2, 8193) | documents,
        "hwRoot": macs | documents,
        "message": st.sampled_from(["01: a", "02:", "03: x", "99: y", "no"]) | documents,
    },
)


class Told:
    """The manager's next bytes."""

    data = b""


@pytest.fixture(scope="module")
def told() -> Iterator[tuple[Told, str]]:
    next_one = Told()

    def send(peer: socket.socket) -> None:
        peer.sendall(next_one.data)

    manager = Scripted([send])
    yield next_one, manager.url
    manager.close()


@settings(max_examples=EXAMPLES)
@given(status=st.integers(0, 999), body=answers | documents, cut=st.integers(0, 400), whole=st.booleans())
def test_client_makes_of_any_answer_a_group_or_a_documented_error(
    told: tuple[Told, str], status: int, body: Any, cut: int, whole: bool
) -> None:
    data = json.dumps(body).encode()
    answer = f"HTTP/1.1 {status:03} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
    told[0].data = answer if whole else answer[:cut]
    if status == 409 or 100 <= status < 200:
        return  # repeated without end; the head of another answer
    members = [0x840, 0]
    try:
        made = create_multicast(told[1], "t", members, 1, 1, "j")
    except ManagerError as reason:
        number = reason.prov_errno
    else:
        assert 0 <= made.mcast_id <= 8191
        assert made.hw_root in members
        assert status in (200, 201)
        number = 2048
    assert number in NUMBERS
    try:
        delete_multicast(told[1], "t", 1)
    except ManagerError as reason:
        number = reason.prov_errno
    else:
        assert status in (200, 201)
        number = 2052
    assert number == 2052


@settings(max_examples=EXAMPLES)
@given(data=st.binary(max_size=200))
def test_client_survives_any_bytes(told: tuple[Told, str], data: bytes) -> None:
    told[0].data = data
    with pytest.raises(ManagerError) as found:
        create_multicast(told[1], "t", [1], 1, 1, "j")
    assert found.value.prov_errno in NUMBERS


@settings(max_examples=EXAMPLES)
@given(text=macs | st.text(max_size=30))
def test_any_text_is_an_address_of_20_bits_or_none(text: str) -> None:
    found = nic_of_mac(text)
    assert found is None or 0 <= found <= NIC_MAX


fields = st.fixed_dictionaries(
    {},
    optional={
        "macs": st.lists(st.from_regex(r"\A[0-9a-f]:[0-9a-f]{2}:[0-9a-f]{2}\Z") | documents, max_size=4) | documents,
        "vni": st.integers(-1, 65536) | documents,
        "timeout": st.integers(-1, 20_000_001) | documents,
        "jobID": st.text(max_size=5) | documents,
        "jobStepID": st.text(max_size=5) | documents,
        "mcastLimit": st.integers(-1, 8193) | documents,
        "jobSteps": st.dictionaries(st.text(max_size=3), st.none()) | documents,
        "return_code": st.integers(-1, 1000) | documents,
    },
)
PATHS = [
    server.MULTICAST,
    "/fabric/collectives/jobs",
    "/fabric/collectives/jobs/j",
    "/fabric/nics/02:00:00:00:00:01",
    "/test",
]


@settings(max_examples=EXAMPLES)
@given(
    method=st.sampled_from(["POST", "PATCH", "PUT", "DELETE", "GET"]),
    path=st.sampled_from(PATHS),
    body=fields | documents,
)
def test_manager_answers_any_json_with_a_status_of_its_own(lasting: Manager, method: str, path: str, body: Any) -> None:
    """Never 500, but where the echo was asked for it."""
    data = json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    status, found = parsed(lasting.send(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data))
    assert path == "/test" or status in (200, 201, 400, 404, 405, 409, 507), found
    assert found is not None
