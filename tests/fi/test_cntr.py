"""fi_cntr(3): counters."""

from __future__ import annotations

import select
import threading
from typing import Any

import pytest
from tests.fi.support import Node, opened, pair

from weft import fi

KEY = 4


def test_cntr_values_are_set_and_added(node: Node) -> None:
    with node.domain.cntr_open() as cntr:
        assert (cntr.read(), cntr.readerr()) == (0, 0)
        cntr.add(5)
        cntr.adderr(2)
        assert (cntr.read(), cntr.readerr()) == (5, 2)
        cntr.set(100)
        cntr.seterr(7)
        assert (cntr.read(), cntr.readerr()) == (100, 7)
        cntr.wait(100, timeout=30)
        assert repr(cntr) == "<Counter COMP 100, errors 7>"


def test_cntr_counts_operations_of_this_side() -> None:
    counters: dict[int, Any] = {fi.WRITE: None, fi.READ: None}
    with opened() as target, opened(counters=counters) as initiator:
        target.reg(bytearray(64), requested_key=KEY)
        peer = initiator.av.insert(target.name)
        for _ in range(5):
            initiator.ep.write(b"abc", dest_addr=peer, addr=0, key=KEY)
        for _ in range(3):
            initiator.ep.read(bytearray(2), src_addr=peer, addr=0, key=KEY)
        initiator.ep.inject_write(b"x", peer, 0, KEY)  # no completion entry, but it counts
        counters[fi.WRITE].wait(6, timeout=30)
        counters[fi.READ].wait(3, timeout=30)
        assert (counters[fi.WRITE].read(), counters[fi.READ].read()) == (6, 3)


def test_cntr_counts_operations_of_peers() -> None:
    """fi_endpoint(3): FI_REMOTE_WRITE and FI_REMOTE_READ count what targets this endpoint."""
    counters: dict[int, Any] = {fi.REMOTE_WRITE: None, fi.REMOTE_READ: None}
    with opened(counters=counters) as target, opened() as initiator:
        target.reg(bytearray(64), requested_key=KEY)
        peer = initiator.av.insert(target.name)
        for _ in range(4):
            initiator.ep.write(b"abc", dest_addr=peer, addr=0, key=KEY)
        initiator.ep.read(bytearray(2), src_addr=peer, addr=0, key=KEY)
        initiator.wait(5)
        counters[fi.REMOTE_WRITE].wait(4, timeout=30)
        counters[fi.REMOTE_READ].wait(1, timeout=30)
        assert (counters[fi.REMOTE_WRITE].read(), counters[fi.REMOTE_READ].read()) == (4, 1)


def test_cntr_of_bytes_counts_bytes_and_failures_by_one() -> None:
    """fi_cntr(3) FI_CNTR_EVENTS_BYTES: the transfer size; on error the error value grows by 1."""
    with pair() as (_, target, _peer), opened(enable=False) as initiator:
        target.reg(bytearray(64), requested_key=KEY)
        cntr = initiator.domain.cntr_open(events=fi.CNTR_EVENTS_BYTES)
        initiator.extra.append(cntr)
        initiator.ep.bind(cntr, fi.WRITE)
        initiator.ep.enable()
        peer = initiator.av.insert(target.name)
        initiator.ep.write(b"12345", dest_addr=peer, addr=0, key=KEY)
        initiator.ep.write(b"1234567", dest_addr=peer, addr=0, key=KEY)
        initiator.wait(2)
        assert cntr.read() == 12
        initiator.ep.write(b"123", dest_addr=peer, addr=0, key=KEY + 1)
        initiator.wait_error()
        assert (cntr.read(), cntr.readerr()) == (12, 1)


def test_cntr_failure_counts_as_error_and_wakes_waiters() -> None:
    """fi_cntr(3): any change in a counter's error value unblocks fi_cntr_wait."""
    counters: dict[int, Any] = {fi.WRITE: None}
    with opened() as target, opened(counters=counters) as initiator:
        peer = initiator.av.insert(target.name)
        cntr = counters[fi.WRITE]
        raised: list[BaseException] = []
        started = threading.Event()

        def wait() -> None:
            started.set()
            try:
                cntr.wait(1, timeout=60)
            except fi.FabricError as e:
                raised.append(e)

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert started.wait(30)
        while waiter.is_alive():  # the wait may begin after a failure; then the next one ends it
            initiator.ep.write(b"x", dest_addr=peer, addr=0, key=KEY)
            initiator.wait_error()
            waiter.join(0.05)
        assert [type(e) for e in raised] == [fi.Available]
        assert cntr.readerr() >= 1
        assert cntr.read() == 0


def test_cntr_wait_times_out(node: Node) -> None:
    with node.domain.cntr_open() as cntr:
        cntr.add(1)
        with pytest.raises(fi.TimedOut) as caught:
            cntr.wait(2, timeout=0.01)
        assert caught.value.errno == fi.ETIMEDOUT
        assert isinstance(caught.value, TimeoutError)


def test_cntr_wait_is_woken_by_add(node: Node) -> None:
    with node.domain.cntr_open() as cntr:
        waiter = threading.Thread(target=lambda: cntr.wait(3, timeout=60))
        waiter.start()
        for _ in range(3):
            cntr.add(1)
        waiter.join(60)
        assert not waiter.is_alive()


def test_cntr_wait_none_may_not_be_waited_on(node: Node) -> None:
    with node.domain.cntr_open(wait_obj=fi.WAIT_NONE) as cntr:
        with pytest.raises(fi.InvalidArgument, match="WAIT_NONE"):
            cntr.wait(1)
        cntr.add(1)
        assert cntr.read() == 1


def test_cntr_fd_is_readable_after_a_change(node: Node) -> None:
    with node.domain.cntr_open(wait_obj=fi.WAIT_FD) as cntr:
        assert cntr.fd >= 0
        poll = select.poll()
        poll.register(cntr.fd, select.POLLIN)
        assert not poll.poll(0)
        node.fabric.trywait([cntr])
        cntr.add(1)
        assert poll.poll(30_000)
        assert cntr.read() == 1
        assert not poll.poll(0)


def test_cntr_fd_asked_for_late_is_readable_after_a_change(node: Node) -> None:
    with node.domain.cntr_open(wait_obj=fi.WAIT_FD) as cntr:
        cntr.add(1)
        poll = select.poll()
        poll.register(cntr.fd, select.POLLIN)
        assert poll.poll(30_000)
        assert cntr.read() == 1
        assert not poll.poll(0)


def test_cntr_wait_yield_is_a_way_to_wait(node: Node) -> None:
    with node.domain.cntr_open(wait_obj=fi.WAIT_YIELD) as cntr:
        cntr.add(1)
        cntr.wait(1, timeout=30)


def test_cntr_open_refuses_unsupported_attributes(node: Node) -> None:
    with pytest.raises(fi.BadFlags):
        node.domain.cntr_open(flags=1)
    with pytest.raises(fi.InvalidArgument):
        node.domain.cntr_open(events=5)
    with pytest.raises(fi.NoSys):
        node.domain.cntr_open(wait_obj=fi.WAIT_SET)


def test_cntr_close_with_bound_endpoint_is_busy() -> None:
    counters: dict[int, Any] = {fi.WRITE: None}
    with opened(counters=counters) as node:
        with pytest.raises(fi.Busy, match="Endpoint"):
            counters[fi.WRITE].close()
        node.ep.close()
        counters[fi.WRITE].close()


def test_cntr_use_after_close_is_badstate(node: Node) -> None:
    cntr = node.domain.cntr_open()
    cntr.close()
    cntr.close()
    for call in (cntr.read, cntr.readerr, lambda: cntr.add(1), lambda: cntr.wait(0)):
        with pytest.raises(fi.BadState):
            call()
    assert repr(cntr) == "<Counter COMP closed>"
