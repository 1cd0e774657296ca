"""fi_eq(3): event queues."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fi.support import Node

from weft import fi


@pytest.fixture
def eq(node: Node) -> Iterator[fi.EventQueue]:
    with node.fabric.eq_open(flags=fi.WRITE, wait_obj=fi.WAIT_FD) as found:
        yield found


def test_eq_write_then_read_in_order(eq: fi.EventQueue) -> None:
    assert eq.read() is None
    for i in range(3):
        eq.write(fi.NOTIFY, fi.EqEntry(eq, f"context {i}", i))
    for i in range(3):
        event, entry = eq.sread(timeout=30)
        assert (event, entry.fid, entry.context, entry.data) == (fi.NOTIFY, eq, f"context {i}", i)
    assert eq.read() is None


def test_eq_peek_leaves_the_event(eq: fi.EventQueue) -> None:
    eq.write(7, "mine")
    assert eq.read(fi.PEEK) == (7, "mine")
    assert eq.read() == (7, "mine")


def test_eq_write_without_its_flag_is_invalid(node: Node) -> None:
    """fi_eq(3): without FI_WRITE at open, the application may not call fi_eq_write."""
    with node.fabric.eq_open() as eq, pytest.raises(fi.InvalidArgument, match=r"fi\.WRITE"):
        eq.write(fi.NOTIFY, fi.EqEntry(eq))


def test_eq_sread_times_out_and_wakes(eq: fi.EventQueue) -> None:
    with pytest.raises(fi.Again):
        eq.sread(timeout=0.01)
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(eq.sread(timeout=60)))
    waiter.start()
    eq.write(1, "woken")
    waiter.join(60)
    assert found == [(1, "woken")]


def test_eq_wait_none_may_not_be_waited_on(node: Node) -> None:
    with node.fabric.eq_open(wait_obj=fi.WAIT_NONE) as eq:
        assert eq.fd == -1
        with pytest.raises(fi.InvalidArgument, match="WAIT_NONE"):
            eq.sread(timeout=1)


def test_eq_error_is_read_with_readerr(eq: fi.EventQueue) -> None:
    with pytest.raises(fi.Again):
        eq.readerr()
    eq.write(1, "event")
    eq.post_error(fi.EqErrEntry(eq, "ctx", 2, fi.EINVAL, 4))
    with pytest.raises(fi.Available):
        eq.read()
    with pytest.raises(fi.Available):
        eq.sread(timeout=1)
    assert eq.readerr(fi.PEEK).context == "ctx"
    error = eq.readerr()
    assert (error.fid, error.data, error.err) == (eq, 2, fi.EINVAL)
    assert eq.strerror(error.prov_errno)
    assert eq.read() == (1, "event")


def test_eq_fd_is_readable_while_events_wait(eq: fi.EventQueue, node: Node) -> None:
    poll = select.poll()
    poll.register(eq.fd, select.POLLIN)
    assert not poll.poll(0)
    node.fabric.trywait([eq])
    eq.write(1, None)
    eq.write(2, None)
    assert poll.poll(0)
    with pytest.raises(fi.Again):
        node.fabric.trywait([eq])
    eq.read()
    assert poll.poll(0)
    eq.read()
    assert not poll.poll(0)


def test_eq_close_ends_a_waiting_sread(node: Node) -> None:
    eq = node.fabric.eq_open()
    raised: list[BaseException] = []
    started = threading.Event()

    def wait() -> None:
        started.set()
        try:
            eq.sread(timeout=60)
        except fi.FabricError as e:
            raised.append(e)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert started.wait(30)
    eq.close()
    waiter.join(60)
    (error,) = raised
    assert isinstance(error, fi.Canceled | fi.BadState)  # it waited, or had not begun to


def test_eq_flags_are_checked(node: Node, eq: fi.EventQueue) -> None:
    for call in (
        lambda: node.fabric.eq_open(flags=fi.FENCE),
        lambda: eq.read(fi.MORE),
        lambda: eq.write(1, None, fi.MORE),
    ):
        with pytest.raises(fi.BadFlags):
            call()
    with pytest.raises(fi.NoSys):
        node.fabric.eq_open(wait_obj=fi.WAIT_SET)


def test_eq_use_after_close_is_badstate(node: Node) -> None:
    eq = node.fabric.eq_open(flags=fi.WRITE)
    eq.close()
    eq.close()
    for call in (eq.read, eq.sread, eq.readerr, lambda: eq.write(1, None)):
        with pytest.raises(fi.BadState, match="closed"):
            call()
