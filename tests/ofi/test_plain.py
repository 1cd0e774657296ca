"""Calls with one buffer: plain arguments, which are read in place, and all others do the same and are checked alike."""

from __future__ import annotations

import contextlib
import enum
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.ofi.support import Node, finish, pair, post, until

from weft import fi

TEXT = bytes(range(8))


class Rows(np.ndarray):
    """A subclass of NumPy's array."""


class Number(enum.IntEnum):
    TAG = 7


def array(shape: Any) -> np.ndarray:
    return np.frombuffer(TEXT, np.uint8).copy().reshape(shape)


@pytest.mark.parametrize(
    "data",
    [
        array(8),
        array((2, 2, 2)),
        array(8).view(np.float64),
        array(8).view(np.complex64).reshape(()),
        array(8).view("datetime64[s]"),
        array(8).view([("a", "u4"), ("b", "u4")]),
        array(8).view(Rows),
        TEXT,
        bytearray(TEXT),
        memoryview(TEXT),
    ],
    ids=lambda data: f"{type(data).__name__}-{getattr(data, 'dtype', '')}-{getattr(data, 'ndim', '')}",
)
def test_every_kind_of_buffer_is_sent_whole(provider: str, data: Any) -> None:
    with pair(provider) as (a, b):
        to, room, small = a.to(b), np.zeros(16, np.uint8), np.zeros(16, np.uint8)
        for one in (room, small):
            b.ep.trecv(one, b.register(one, fi.RECV), fi.ADDR_UNSPEC, 7)
        desc = a.register(data, fi.SEND)
        post(lambda: a.ep.tsend(data, desc, to, 7), a, b)
        assert finish(b, 1, a)[0].len == 8
        post(lambda: a.ep.tinject(data, to, 7), a, b)
        assert finish(b, 1, a)[0].len == 8
        assert bytes(room[:8]) == bytes(small[:8]) == TEXT


@pytest.mark.parametrize("data", [np.zeros(0, np.uint8), np.zeros((3, 0, 2)), b"", None], ids=repr)
def test_buffers_of_no_bytes_are_sent(provider: str, data: Any) -> None:
    with pair(provider) as (a, b):
        to, room = a.to(b), np.zeros(8, np.uint8)
        b.ep.trecv(room, b.register(room, fi.RECV), fi.ADDR_UNSPEC, 7)
        post(lambda: a.ep.tsend(data, None, to, 7), a, b)
        assert finish(b, 1, a)[0].len == 0


@pytest.mark.parametrize(
    "tag",
    [0, 1, 2**30 - 1, 2**30, 2**31, 2**60 - 1, 2**60, 2**63, 2**64 - 1, np.uint64(2**40), Number.TAG],
)
def test_numbers_arrive_unchanged(provider: str, tag: Any) -> None:
    with pair(provider, cq={"format": fi.CQ_FORMAT_TAGGED}) as (a, b):
        to, room = a.to(b), np.zeros(8, np.uint8)
        desc = b.register(room, fi.RECV)
        for call in (
            lambda: a.ep.tinject(TEXT, to, tag),
            lambda: a.ep.tinject(TEXT, tag=tag, dest_addr=to),
        ):
            b.ep.trecv(room, desc, fi.ADDR_UNSPEC, 0, 2**64 - 1)
            post(call, a, b)
            assert finish(b, 1, a)[0].tag == tag


Call = Callable[[Node, Any, int, int, int], Any]
CALLS: list[Call] = [
    lambda a, buf, to, at, key: a.ep.tsend(buf, None, to, 7),
    lambda a, buf, to, at, key: a.ep.tinject(buf, to, 7),
    lambda a, buf, to, at, key: a.ep.write(buf, None, to, at, key),
    lambda a, buf, to, at, key: a.ep.inject_write(buf, to, at, key),
    lambda a, buf, to, at, key: a.ep.trecv(buf, None, to, 7),
    lambda a, buf, to, at, key: a.ep.read(buf, None, to, at, key),
]


@pytest.mark.parametrize("call", CALLS)
def test_wrong_arguments_are_refused(call: Call) -> None:
    """For each call: objects that are no buffers or numbers, or that the call cannot use; nothing stays under way."""
    with pair("ofi:shm") as (a, b):
        room, to = np.zeros(64, np.uint8), a.to(b)
        mr = b.register(room)
        at, key = b.place(mr), mr.key
        good = np.zeros(8, np.uint8)
        for buf in (np.zeros((4, 4))[:, 1], np.array([object()]), "text", 5, object()):
            with pytest.raises((TypeError, fi.FabricError)):
                call(a, buf, to, at, key)
        for number in (-1, 2**64, 2**200, "0", None, 1.0, object()):
            with pytest.raises((TypeError, fi.InvalidArgument)):
                call(a, good, number, at, key)
        for peer in (to + 1, 2**31, 2**62):
            with pytest.raises(fi.InvalidArgument, match="is not in the address vector of the endpoint"):
                call(a, good, peer, at, key)
        assert a.ep.outstanding() == 0


@pytest.mark.parametrize("buf", [b"bytes", np.frombuffer(TEXT, np.uint8)])
def test_read_only_memory_is_not_received_to(provider: str, buf: Any) -> None:
    with pair(provider) as (a, b):
        to = a.to(b)
        for call in (
            lambda: a.ep.recv(buf),
            lambda: a.ep.trecv(buf, None, fi.ADDR_UNSPEC, 1),
            lambda: a.ep.read(buf, None, to, 0, 1),
        ):
            with pytest.raises(fi.AccessDenied, match="read-only"):
                call()


def test_closed_descriptor_is_refused(provider: str) -> None:
    with pair(provider) as (a, b):
        data, to = np.zeros(8, np.uint8), a.to(b)
        mr = a.domain.mr_reg(data, fi.SEND, requested_key=99)
        mr.close()
        with pytest.raises(fi.BadState, match="desc is closed"):
            a.ep.tsend(data, mr, to, 1)


@pytest.mark.parametrize("call", CALLS)
def test_endpoint_closed_by_an_argument_is_refused(call: Call) -> None:
    """Reading an argument runs the application's code, which closes the endpoint."""

    class Closes:
        def __init__(self, node: Node) -> None:
            self.node = node

        def __index__(self) -> int:
            self.node.ep.close()
            return 0

    with pair("ofi:shm") as (a, b):
        a.to(b)
        with pytest.raises(fi.BadState, match="closed"):
            call(a, np.zeros(8, np.uint8), Closes(a), 0, 1)  # type: ignore[arg-type]


def test_buffers_and_contexts_are_held_until_the_completion() -> None:
    class Context:
        pass

    with pair("ofi:shm") as (a, b):
        to = a.to(b)

        def posted() -> list[weakref.ref[Any]]:
            data, room, sends, receives = np.zeros(8, np.uint8), np.zeros(8, np.uint8), Context(), Context()
            b.ep.trecv(room, None, fi.ADDR_UNSPEC, 7, 0, receives)
            post(lambda: a.ep.tsend(data, None, to, 7, sends), a, b)
            return [weakref.ref(one) for one in (room, receives, data, sends)]

        kept = posted()
        gc.collect()
        assert all(ref() is not None for ref in kept[:2])
        until(lambda: bool(a.seen and b.seen), a, b)
        assert [type(node.seen[0].op_context) for node in (a, b)] == [Context, Context]
        a.seen.clear()
        b.seen.clear()
        gc.collect()
        assert all(ref() is None for ref in kept)


def test_refused_operations_hold_nothing() -> None:
    """Where the provider has no room (Again), neither the buffer nor the context is kept, nor the operation counted."""
    with pair("ofi:shm") as (a, b):
        to, data = a.to(b), np.zeros(8, np.uint8)
        post(lambda: a.ep.tinject(TEXT, to, 1), a, b)

        def fill() -> None:
            for _ in range(1 << 16):
                a.ep.tsend(data, None, to, 2)

        with pytest.raises(fi.Again, match="operations of the queue are under way"):
            fill()
        before, context = a.ep.outstanding(), object()
        references = sys.getrefcount(context), sys.getrefcount(data)
        with pytest.raises(fi.Again):
            a.ep.tsend(data, None, to, 2, context)
        assert a.ep.outstanding() == before
        assert (sys.getrefcount(context), sys.getrefcount(data)) == references


def test_owner_that_uses_the_queue_when_it_goes() -> None:
    """Ending an operation drops its buffer, and so runs the application's code, which may read the queue and post."""
    with pair("ofi:shm") as (a, b):
        to, room = a.to(b), np.zeros(8, np.uint8)
        gone = []

        class Owner(np.ndarray):
            def __del__(self) -> None:
                gone.append(a.cq.read(1))
                with contextlib.suppress(fi.Again):
                    a.ep.tinject(TEXT, to, 9)

        for _ in range(4):
            b.ep.trecv(room, None, fi.ADDR_UNSPEC, 7)
            post(lambda: a.ep.tsend(np.zeros(8, np.uint8).view(Owner), None, to, 7), a, b)
        until(lambda: len(b.seen) == 4 and a.ep.outstanding() == 0, a, b)
        assert len(gone) >= 4
