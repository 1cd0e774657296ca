"""Connected endpoints of a real libfabric: listen, connect, accept, reject, transfer, shutdown."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from tests.ofi.support import CAPS, offer, pair
from tests.patience import Patience

from weft import fi

PROVIDER = "ofi:tcp"


def event(eq: Any, expected: int, *others: Any) -> Any:
    """The next event, while other queues make progress."""
    end = Patience(30)
    while not end.over:
        found = eq.read()
        if found is not None:
            assert found[0] == expected, found
            return found[1]
        for cq in others:
            cq.read()
    raise AssertionError(f"no event {expected}")


@contextlib.contextmanager
def listener() -> Iterator[tuple[Any, Any, Any, Any, Any]]:
    """(info, fabric, domain, event queue, passive endpoint that listens)."""
    info = offer(PROVIDER, CAPS & ~fi.TAGGED, fi.EP_MSG)
    with (
        fi.Fabric(info.fabric_attr) as fabric,
        fabric.domain(info) as domain,
        fabric.eq_open() as eq,
        fabric.passive_ep(info) as pep,
    ):
        pep.bind(eq)
        pep.listen()
        yield info, fabric, domain, eq, pep


def endpoint(domain: Any, eq: Any, info: Any, undo: contextlib.ExitStack) -> tuple[Any, Any]:
    cq = undo.enter_context(domain.cq_open())
    ep = undo.enter_context(domain.endpoint(info))
    ep.bind(cq, fi.TRANSMIT | fi.RECV)
    ep.bind(eq)
    return ep, cq


def test_connect_transfer_shutdown() -> None:
    with listener() as (info, _, domain, eq, pep), contextlib.ExitStack() as undo:
        assert isinstance(pep, fi.PassiveEndpoint)
        assert isinstance(eq, fi.EventQueue)
        mine, my_cq = endpoint(domain, eq, info, undo)
        mine.connect(pep.getname(), b"private")
        request = event(eq, fi.EqEvent.CONNREQ)
        assert request.fid is pep
        assert request.data[:7] == b"private"
        theirs, their_cq = endpoint(domain, eq, request.info, undo)
        theirs.accept(b"welcome")
        fids = {event(eq, fi.EqEvent.CONNECTED, my_cq, their_cq).fid for _ in range(2)}
        assert fids == {mine, theirs}
        room = bytearray(5)
        theirs.recv(room, context="got")
        mine.send(b"hello", context="sent")
        seen: list[Any] = []
        end = Patience(30)
        while len(seen) < 2 and not end.over:
            seen += [*my_cq.read(), *their_cq.read()]
        assert {entry.op_context for entry in seen} == {"got", "sent"}
        assert room == b"hello"
        assert mine.getpeer() == pep.getname()
        mine.shutdown()
        assert event(eq, fi.EqEvent.SHUTDOWN, my_cq, their_cq).fid in (mine, theirs)
        with pytest.raises(fi.InvalidArgument, match="unanswered"):
            theirs.accept()


def test_rejected_request_is_an_error_event() -> None:
    with listener() as (info, _, domain, eq, pep), contextlib.ExitStack() as undo:
        mine, cq = endpoint(domain, eq, info, undo)
        mine.connect(pep.getname())
        request = event(eq, fi.EqEvent.CONNREQ)
        pep.reject(request.info.handle, b"no")
        with pytest.raises(fi.Available):
            event(eq, -1, cq)
        failed = eq.readerr()
        assert failed.fid is mine
        assert failed.err == fi.ECONNREFUSED
        with pytest.raises(fi.InvalidArgument, match="answered already"):
            pep.reject(request.info.handle)


SENDING: dict[str, Any] = {
    "send": lambda ep: ep.send(b"x"),
    "inject": lambda ep: ep.inject(b"x"),
    "write": lambda ep: ep.write(b"x", addr=0, key=1),
    "inject_write": lambda ep: ep.inject_write(b"x", None, 0, 1),
    "read": lambda ep: ep.read(bytearray(1), addr=0, key=1),
    "sendmsg": lambda ep: ep.sendmsg(fi.Msg([b"x"])),
}


@pytest.mark.parametrize("call", SENDING)
def test_endpoint_that_is_not_connected_sends_nothing(call: str) -> None:
    """The library would end the process. Receives may be posted before."""
    with listener() as (info, _, domain, eq, pep), contextlib.ExitStack() as undo:
        mine, my_cq = endpoint(domain, eq, info, undo)
        with pytest.raises(fi.FabricError, match="not connected") as caught:
            SENDING[call](mine)
        assert caught.value.errno == fi.ENOTCONN
        room = bytearray(1)
        mine.connect(pep.getname())
        mine.recv(room, context="got")
        with pytest.raises(fi.FabricError, match="not connected"):
            SENDING[call](mine)
        theirs, their_cq = endpoint(domain, eq, event(eq, fi.EqEvent.CONNREQ).info, undo)
        theirs.accept()
        for _ in range(2):
            event(eq, fi.EqEvent.CONNECTED, my_cq, their_cq)
        theirs.send(b"!")
        seen: list[Any] = []
        end = Patience(30)
        while not seen and not end.over:
            their_cq.read()
            seen += my_cq.read()
        assert seen[0].op_context == "got"
        assert room == b"!"
    with pytest.raises(fi.BadState, match="closed"):
        SENDING[call](mine)


def test_request_has_one_endpoint() -> None:
    """fi_endpoint takes the library's handle of the request: a second use would be of freed memory."""
    with listener() as (info, _, domain, eq, pep), contextlib.ExitStack() as undo:
        mine, cq = endpoint(domain, eq, info, undo)
        mine.connect(pep.getname())
        request = event(eq, fi.EqEvent.CONNREQ).info
        theirs, _ = endpoint(domain, eq, request, undo)
        with pytest.raises(fi.InvalidArgument, match="has its endpoint"):
            domain.endpoint(request)
        with pytest.raises(fi.InvalidArgument, match="has an endpoint"):
            pep.reject(request.handle)
        theirs.accept()
        assert {event(eq, fi.EqEvent.CONNECTED, cq).fid for _ in range(2)} == {mine, theirs}


def test_request_that_was_rejected_has_no_endpoint() -> None:
    with listener() as (info, _, domain, eq, pep), contextlib.ExitStack() as undo:
        mine, _ = endpoint(domain, eq, info, undo)
        mine.connect(pep.getname())
        request = event(eq, fi.EqEvent.CONNREQ).info
        pep.reject(request.handle)
        with pytest.raises(fi.InvalidArgument, match="was rejected"):
            domain.endpoint(request)


def test_connectionless_endpoint_has_no_peer_and_no_end(provider: str) -> None:
    with pair(provider) as (a, _):
        for call in (a.ep.shutdown, a.ep.getpeer, a.ep.accept):
            with pytest.raises(fi.NotSupported, match="EP_MSG"):
                call()


def test_own_events_come_back() -> None:
    info = offer(PROVIDER)
    with fi.Fabric(info.fabric_attr) as fabric, fabric.eq_open(flags=fi.WRITE) as eq:
        entry = object()
        assert eq.read() is None
        with pytest.raises(fi.Again):
            eq.sread(timeout=0.01)
        eq.write(fi.EqEvent.NOTIFY, entry)
        event_number, found = eq.sread(timeout=10)
        assert event_number == fi.EqEvent.NOTIFY
        assert found is entry


def test_refused_event_leaves_its_entry_to_the_caller() -> None:
    """An event has 32 bits. Nobody reads the event, so nobody would take the entry back."""

    class Entry: ...

    def refused(eq: Any) -> weakref.ref[Any]:
        entry = Entry()
        with pytest.raises((TypeError, fi.InvalidArgument)):
            eq.write(1 << 32, entry)
        return weakref.ref(entry)

    with fi.Fabric(offer(PROVIDER).fabric_attr) as fabric, fabric.eq_open(flags=fi.WRITE) as eq:
        entry = refused(eq)
        gc.collect()
        assert entry() is None
        assert eq.read() is None
