"""Endpoints that are not enabled, or lack an object: refusals where the library would end the process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.ofi.support import CAPS, offer

from weft import fi


class Parts:
    """A domain with one of each object, and nothing bound."""

    def __init__(self, provider: str, caps: int = CAPS) -> None:
        self.info = offer(provider, caps)
        self.fabric = fi.Fabric(self.info.fabric_attr)
        self.domain = self.fabric.domain(self.info)
        self.cq, self.cntr, self.av = self.domain.cq_open(), self.domain.cntr_open(), self.domain.av_open()
        self.ep = self.domain.endpoint(self.info)

    def close(self) -> None:
        for one in (self.ep, self.cq, self.cntr, self.av, self.domain, self.fabric):
            one.close()


@pytest.fixture
def parts(provider: str) -> Iterator[Parts]:
    found = Parts(provider)
    yield found
    found.close()


READS: list[Callable[[Parts], Any]] = [
    lambda p: p.cq.read(1),
    lambda p: p.cq.readfrom(1),
    lambda p: p.cq.sread(1, None, 0.1),
    lambda p: p.cntr.read(),
    lambda p: p.cntr.readerr(),
    lambda p: p.cntr.wait(1, 0.1),
]


@pytest.mark.parametrize("read", READS)
def test_queue_of_an_endpoint_that_is_not_enabled_is_not_read(parts: Parts, read: Callable[[Parts], Any]) -> None:
    parts.ep.bind(parts.cq, fi.TRANSMIT | fi.RECV)
    parts.ep.bind(parts.cntr, fi.WRITE)
    with pytest.raises(fi.BadState, match=r"not enabled.*\n  try: ep.enable\(\) first"):
        read(parts)
    assert "not to be read" in repr(parts.cntr)
    parts.ep.bind(parts.av)
    parts.ep.enable()
    assert parts.cq.read(1) == []
    assert parts.cntr.read() == 0
    assert "0, errors 0" in repr(parts.cntr)


@pytest.mark.parametrize("read", READS)
def test_queue_can_be_read_when_the_endpoint_that_was_not_enabled_is_closed(
    parts: Parts, read: Callable[[Parts], Any]
) -> None:
    parts.ep.bind(parts.cq, fi.TRANSMIT)
    parts.ep.bind(parts.cq, fi.RECV)
    parts.ep.bind(parts.cntr, fi.WRITE)
    parts.ep.close()
    with contextlib.suppress(fi.Again, fi.TimedOut):  # of the two waiting queues
        read(parts)


@pytest.mark.parametrize("caps", [fi.RMA, fi.MSG | fi.SEND, fi.TAGGED | fi.SEND, fi.RMA | fi.WRITE])
@pytest.mark.parametrize("flags", [fi.TRANSMIT, fi.RECV, 0])
def test_endpoint_without_a_queue_for_each_side_is_enocq(provider: str, caps: int, flags: int) -> None:
    parts = Parts(provider, caps)
    parts.ep.bind(parts.av)
    if flags:
        parts.ep.bind(parts.cq, flags)
    with pytest.raises(fi.NoCq, match=r"try: ep\.bind"):
        parts.ep.enable()
    parts.close()


def test_endpoint_without_an_address_vector_is_enoav(parts: Parts) -> None:
    parts.ep.bind(parts.cq, fi.TRANSMIT | fi.RECV)
    with pytest.raises(fi.NoAv, match=r"try: ep\.bind"):
        parts.ep.enable()


@pytest.mark.parametrize("event", [fi.CONNREQ, fi.CONNECTED, fi.SHUTDOWN, 77])
def test_written_event_has_any_number_also_of_a_connection(parts: Parts, event: int) -> None:
    with parts.fabric.eq_open(flags=fi.WRITE) as eq:
        for entry in ("first", None):
            eq.write(event, entry)
        assert eq.read(fi.PEEK) == (event, "first")
        assert [eq.read(), eq.sread(timeout=30)] == [(event, "first"), (event, None)]
        with pytest.raises(fi.Again):
            eq.sread(timeout=0.01)  # the default wait object: its limit holds


@pytest.mark.parametrize("event", [1 << 32, (1 << 64) - 1])
def test_written_event_of_more_than_32_bits_is_refused_by_its_number(parts: Parts, event: int) -> None:
    with parts.fabric.eq_open(flags=fi.WRITE) as eq:
        with pytest.raises(fi.InvalidArgument, match=rf"event is {event}; .*32 bits"):
            eq.write(event, "mine")
        assert eq.read() is None
        eq.write((1 << 32) - 1, "mine")
        assert eq.read() == ((1 << 32) - 1, "mine")
