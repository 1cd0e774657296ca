"""Tickets, packed keys and addresses that were cut, changed or made up: refused in words, or whole.

Hypothesis makes up cases beyond the examples below; WEFT_FUZZ_EXAMPLES is how many (`make fuzz`: 20,000).
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import pickle
import zlib
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.ucp import support as ucp_support

import weft
from weft import _keys, errors, fi, ucp
from weft.share.names.ticket import PREFIX, Ticket

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES") or 300)
fuzzed = settings(max_examples=EXAMPLES)

TICKET = Ticket("weights", "weft://0/1/77", 5, 0, (3, 4), "'<f4'", "rw", True, 77, 12345, "linux 0-0")
PLACES = [_keys.Place("", 0, 0, 1, 77), _keys.Place("10.0.0.1", 7007, 0, 1, 77), _keys.Place("fe80::1", 7007, 2, 3, 4)]
PACKED = [
    _keys.Packed(_keys.KEY, place, process=9, context=4, key=5, address=1 << 40, base=0, length=4096, prot=0x303)
    for place in PLACES
]


def changed(whole: bytes) -> st.SearchStrategy[bytes]:
    """`whole` with pieces cut out, put in, turned round or overwritten."""

    def change(steps: list[tuple[int, int, bytes]]) -> bytes:
        data = whole
        for at, length, piece in steps:
            at %= len(data) + 1
            data = data[:at] + piece + data[at + length :]
        return data

    step = st.tuples(st.integers(0, 4096), st.integers(0, 16), st.binary(max_size=12))
    return st.lists(step, max_size=4).map(change)


def sealed(body: bytes) -> bytes:
    """With the checksum that such a body has, as from an attacker rather than a bad line."""
    return body[:-4] + zlib.crc32(body[:-4]).to_bytes(4, "little") if len(body) >= 4 else body


def said(refusal: Exception, word: str) -> None:
    """The refusal names the refused object."""
    assert word in str(refusal)


# ---- packed keys and addresses ---------------------------------------------------------------------------------------


@fuzzed
@given(st.one_of([changed(p.pack()) for p in PACKED] + [changed(p.pack()).map(sealed) for p in PACKED] + [st.binary()]))
@example(b"")
@example(PACKED[0].pack()[:-1])
@example(PACKED[1].pack() + b"more")
@example(sealed(PACKED[0].pack().replace(b"WEFT\x01", b"WEFT\x02")))
def test_packed_key_of_any_bytes_is_refused_or_whole(data: bytes) -> None:
    try:
        found = _keys.Packed.parse(data)
    except ValueError as refusal:
        return said(refusal, "it ")
    again = found.pack() if found.place.host.isascii() else data
    assert data.startswith(again) or len(again) <= len(data)
    assert found.length >= 0
    assert found.key >= 0


@pytest.fixture(scope="module")
def endpoint() -> Any:
    with ucp_support.opened() as rig:
        yield rig.ep


@fuzzed
@given(data=st.one_of([changed(p.pack()).map(sealed) for p in PACKED] + [changed(PACKED[0].pack()), st.binary()]))
@example(data=b"")
@example(data=sealed(PACKED[1]._replace(place=_keys.Place("x" * 200, 1, 0, 0, 0)).pack()))
@example(data=PACKED[0]._replace(address=(1 << 64) - 1, length=(1 << 64) - 1).pack())
@example(data=PACKED[0]._replace(prot=0xFFFFFFFF, memory_type=255, flags=255).pack())
def test_rkey_unpack_of_any_bytes_is_a_key_or_an_error_of_ucp(endpoint: ucp.Endpoint, data: bytes) -> None:
    try:
        rkey = endpoint.rkey_unpack(data)
    except ucp.UcsError as refusal:
        return said(refusal, "rkey")
    repr(rkey)
    rkey.destroy()


# ---- tickets ---------------------------------------------------------------------------------------------------------

fields = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.lists(st.integers(), max_size=4)
)


def ticket_of(values: Any) -> str:
    return PREFIX + base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def body_of(ticket: Ticket) -> list[Any]:
    body = str(ticket)[len(PREFIX) :]
    found: list[Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return found


@st.composite
def tickets(draw: st.DrawFn) -> str:
    """A ticket with other values in some of its fields, or with other text in its place."""
    values = body_of(TICKET)
    for at in draw(st.lists(st.integers(0, len(values) - 1), max_size=3)):
        values[at] = draw(fields)
    if draw(st.integers(0, 9)) == 0:
        values = values[: draw(st.integers(0, len(values)))]
    return ticket_of(values)


texts = st.one_of(
    tickets(),
    changed(str(TICKET).encode()).map(lambda b: b.decode("utf-8", "replace")),
    st.text(max_size=60).map(lambda t: PREFIX + t),
    fields.map(ticket_of),
)
HOSTILE = [
    ticket_of([*body_of(TICKET)[:5], [-1], *body_of(TICKET)[6:]]),
    ticket_of([*body_of(TICKET)[:5], [1 << 70], *body_of(TICKET)[6:]]),
    ticket_of([*body_of(TICKET)[:6], "O", *body_of(TICKET)[7:]]),
    ticket_of([*body_of(TICKET)[:6], "ml:__import__('os')", *body_of(TICKET)[7:]]),
    ticket_of([*body_of(TICKET)[:6], "[('a', '<f4')]" * 200, *body_of(TICKET)[7:]]),
    ticket_of({"a": 1}),
    ticket_of([*body_of(TICKET)[:3], float("inf"), *body_of(TICKET)[4:]]),
    PREFIX,
    PREFIX + "=" * 7,
]


@fuzzed
@given(texts)
@example(HOSTILE[0])
@example(HOSTILE[5])
@example(HOSTILE[6])
@example(HOSTILE[7])
@example(HOSTILE[8])
def test_ticket_of_any_text_is_refused_or_whole(text: str) -> None:
    try:
        found = Ticket.parse(text)
    except errors.InvalidArgument as refusal:
        return said(refusal, "ticket")
    assert Ticket.parse(str(found)) == found
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.fixture(scope="module")
def node() -> Any:
    with weft.open() as opened:
        yield opened


@settings(max_examples=min(EXAMPLES, 300))
@given(text=texts)
@example(text=HOSTILE[0])
@example(text=HOSTILE[1])
@example(text=HOSTILE[2])
@example(text=HOSTILE[3])
@example(text=HOSTILE[4])
def test_attach_of_any_text_is_an_array_or_an_error_of_weft(node: weft.Node, text: str) -> None:
    """A ticket grants nothing by itself, so an invented ticket may attach; the owner's NIC then decides each access."""
    try:
        remote = node.attach(text)
    except errors.FabricError as refusal:
        return said(refusal, ":")
    repr(remote)
    remote.close()


@settings(max_examples=min(EXAMPLES, 300))
@given(access=st.sampled_from(["r", "w", "rw"]), shape=st.lists(st.integers(0, 5), max_size=3))
def test_ticket_of_a_share_comes_back_as_it_was(node: weft.Node, access: str, shape: list[int]) -> None:
    with node.share(weft.zeros(tuple(shape), "f4"), access=access) as share:
        assert Ticket.parse(str(share.ticket)) == share.ticket


# ---- addresses -------------------------------------------------------------------------------------------------------

pieces = st.sampled_from(
    ["weft://", "/", ":", "0", "1", "77", "[", "]", "::1", "10.0.0.1", "-1", "4294967296", "%eth0", "\0", "é", " "]
)


@fuzzed
@given(
    text=st.one_of(
        st.lists(pieces, max_size=9).map("".join),
        st.lists(pieces, max_size=9).map(lambda p: "weft://" + "".join(p)),
        st.text(max_size=30),
    )
)
@example(text="weft://0/1/4294967296")
@example(text="weft://[fe80::1%eth0]:7007/0/1/2")
@example(text="weft://0/1/²")
def test_address_of_any_text_is_inserted_or_refused(av: fi.AddressVector, text: str) -> None:
    try:
        at = av.insert(text)
    except errors.FabricError as refusal:
        return said(refusal, ":")
    assert av.lookup(at)
    av.remove(at)


@pytest.fixture(scope="module")
def av() -> Any:
    info = fi.getinfo(hints=fi.Info(caps=fi.RMA))[0]
    with fi.Fabric(info.fabric_attr) as fabric, fabric.domain(info) as domain, domain.av_open() as opened:
        yield opened


def test_examples_are_the_ticket_that_they_change() -> None:
    """The originals of the changes above are whole: else nothing but refusals would be tested."""
    assert Ticket.parse(str(TICKET)) == TICKET
    assert dataclasses.asdict(Ticket.parse(ticket_of(body_of(TICKET)))) == dataclasses.asdict(TICKET)
    assert all(_keys.Packed.parse(p.pack()) == p for p in PACKED)
    assert TICKET.numpy_dtype.itemsize == 4
