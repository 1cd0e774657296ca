"""Completion queues and event queues of the CXI provider. fi_cxi(7) "Completion events", "Wait Objects"."""

from __future__ import annotations

import os
import select
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import opened, register
from tests.fi.support import WATCHDOG_S, Node

from weft import fi

FORMATS = {
    fi.CQ_FORMAT_CONTEXT: fi.CqEntry,
    fi.CQ_FORMAT_MSG: fi.CqMsgEntry,
    fi.CQ_FORMAT_DATA: fi.CqDataEntry,
    fi.CQ_FORMAT_TAGGED: fi.CqTaggedEntry,
}


@pytest.mark.clause("cxi.cq.format-context", "cxi.cq.format-msg", "cxi.cq.format-data", "cxi.cq.format-tagged")
@pytest.mark.parametrize("format", FORMATS)
def test_entry_has_the_format_of_its_queue(format: Any) -> None:
    with opened(format=format) as node:
        memory = np.zeros(1, "u8")
        key = register(node, memory, 200).key
        node.ep.write(np.full(1, 7, "u8"), None, node.me, 0, key, "mine")
        (entry,) = node.wait()
        assert type(entry) is FORMATS[format]
        assert entry.op_context == "mine"


def test_entry_of_an_own_operation_has_context_and_flags_alone(node: Node) -> None:
    key = register(node, np.zeros(4, "u8"), 200).key
    for begin, flags in (
        (lambda: node.ep.write(np.ones(4, "u8"), None, node.me, 0, key), fi.RMA | fi.WRITE),
        (lambda: node.ep.read(np.ones(4, "u8"), None, node.me, 0, key), fi.RMA | fi.READ),
        (lambda: node.ep.atomic(np.ones(1, "u8"), None, node.me, 0, key, fi.UINT64, fi.SUM), fi.ATOMIC | fi.WRITE),
    ):
        begin()
        (entry,) = node.wait()
        assert entry == fi.CqTaggedEntry(None, flags, 0, 0, 0, 0)


def test_cq_default_has_context_format_and_a_descriptor(node: Node) -> None:
    with node.domain.cq_open() as cq:
        assert (cq.format, cq.wait_obj, cq.capacity >= 1024) == (fi.CQ_FORMAT_CONTEXT, fi.WAIT_FD, True)
        assert cq.fd >= 0


@pytest.mark.clause("cxi.wait.unspec", "cxi.wait.fd")
@pytest.mark.parametrize("wait_obj", [fi.WAIT_UNSPEC, fi.WAIT_FD])
def test_descriptor_is_readable_when_an_entry_arrives(wait_obj: int) -> None:
    with opened(wait_obj=wait_obj) as node:
        fd = node.cq.control(fi.GETWAIT)
        fi.trywait(node.fabric, [node.cq])
        assert select.select([fd], [], [], 0)[0] == []
        key = register(node, np.zeros(1, "u8"), 200).key
        node.ep.write(np.full(1, 7, "u8"), None, node.me, 0, key)
        assert select.select([fd], [], [], WATCHDOG_S)[0] == [fd]
        with pytest.raises(fi.Again):
            fi.trywait(node.fabric, [node.cq])
        assert len(node.wait()) == 1


@pytest.mark.clause("cxi.wait.pollfd")
def test_descriptors_to_poll_are_given_out() -> None:
    with opened(wait_obj=fi.WAIT_POLLFD) as node:
        (fd,) = node.cq.control(fi.GETWAIT)
        key = register(node, np.zeros(1, "u8"), 200).key
        node.ep.write(np.full(1, 7, "u8"), None, node.me, 0, key)
        assert select.select([fd], [], [], WATCHDOG_S)[0] == [fd]
        assert node.cq.wait_obj == fi.WAIT_POLLFD


@pytest.mark.clause("cxi.wait.none-cost")
def test_cq_without_wait_object_has_no_descriptor(node: Node) -> None:
    def descriptors(wait_obj: int) -> int:
        before = len(os.listdir("/proc/self/fd"))
        with node.domain.cq_open(wait_obj=wait_obj):
            return len(os.listdir("/proc/self/fd")) - before

    assert descriptors(fi.WAIT_FD) > 0
    assert descriptors(fi.WAIT_NONE) == 0


def test_queue_without_a_wait_object_is_not_waited_for() -> None:
    with opened(wait_obj=fi.WAIT_NONE) as node:
        with pytest.raises(fi.InvalidArgument):
            node.cq.sread(1, timeout=0)
        with pytest.raises(fi.NoData):
            node.cq.control(fi.GETWAIT)
        with pytest.raises(fi.InvalidArgument):
            fi.trywait(node.fabric, [node.cq])
        with pytest.raises(fi.NoSys):
            node.cq.signal()


@pytest.mark.parametrize("wait_obj", [fi.WAIT_SET, fi.WAIT_MUTEX_COND, fi.WAIT_YIELD, 77])
def test_other_wait_objects_are_not_there(node: Node, wait_obj: int) -> None:
    with pytest.raises(fi.NoSys):
        node.domain.cq_open(wait_obj=wait_obj)


def test_cq_open_checks_format_before_wait_object_and_flags(node: Node) -> None:
    with pytest.raises(fi.NoSys):
        node.domain.cq_open(format=77, flags=int(fi.RMA))
    with pytest.raises(fi.NoSys):
        node.domain.cq_open(wait_obj=fi.WAIT_SET, flags=int(fi.RMA))
    with pytest.raises(fi.InvalidArgument):
        node.domain.cq_open(flags=int(fi.RMA))


@pytest.mark.parametrize(
    "more",
    [
        {"flags": int(fi.AFFINITY), "signaling_vector": 9},
        {"signaling_vector": -1},
        {"wait_cond": 99},
        {"size": 1 << 40},
    ],
)
def test_queue_with_hints_that_mean_nothing_works(node: Node, more: dict[str, int]) -> None:
    with node.domain.cq_open(**more) as cq, node.domain.endpoint(node.info) as ep:
        ep.bind(cq, fi.TRANSMIT | fi.RECV)
        ep.bind(node.av)
        ep.enable()
        register(node, np.zeros(1, "u8"), 300)
        ep.write(np.ones(1, "u8"), None, node.me, 0, 300, "context")
        assert cq.sread(1, timeout=10.0)[0].op_context == "context"


def test_queues_of_peers_come_later(node: Node) -> None:
    with pytest.raises(fi.NoSys, match="later version"):
        node.domain.cq_open(flags=int(fi.PEER), wait_obj=fi.WAIT_NONE)


def test_reading_nothing_only_progresses(node: Node) -> None:
    assert node.cq.read(0) == []
    with pytest.raises(fi.Again):
        node.cq.readerr()
    with pytest.raises(fi.Again):
        node.cq.sread(1, timeout=0)
    with pytest.raises(fi.NoSys):
        node.cq.signal()


@pytest.mark.parametrize("command", [fi.GETWAITOBJ, fi.ENABLE, 4711])
def test_other_commands_of_a_queue_are_not_there(node: Node, command: int) -> None:
    with pytest.raises(fi.NoSys):
        node.cq.control(command)


# ---- entries ---------------------------------------------------------------------------------------------------------


def test_entry_of_a_transfer_has_its_kind_and_nothing_else(node: Node) -> None:
    memory, word = np.zeros(2, "u8"), np.ones(1, "u8")
    key = register(node, memory, 200).key
    calls = {
        fi.RMA | fi.WRITE: lambda: node.ep.write(word, None, node.me, 0, key, "c"),
        fi.RMA | fi.READ: lambda: node.ep.read(np.zeros(1, "u8"), None, node.me, 0, key, "c"),
        fi.ATOMIC | fi.WRITE: lambda: node.ep.atomic(word, None, node.me, 0, key, fi.UINT64, fi.SUM, "c"),
        fi.ATOMIC | fi.READ: lambda: node.ep.fetch_atomic(
            word, None, np.zeros(1, "u8"), None, node.me, 0, key, fi.UINT64, fi.SUM, "c"
        ),
    }
    for flags, call in calls.items():
        call()
        (entry,) = node.wait()
        assert (entry.op_context, entry.flags) == ("c", flags)
        assert (entry.buf, entry.data, entry.tag) == (0, 0, 0)


def test_completions_are_selected() -> None:
    with opened(cq_flags=int(fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION)) as node:
        word = np.ones(1, "u8")
        key = register(node, np.zeros(2, "u8"), 200).key
        msg = fi.MsgRma([word], [fi.RmaIov(0, 8, key)], node.me, context="quiet")
        node.ep.write(word, None, node.me, 0, key, "quiet")
        node.ep.writemsg(msg, 0)
        node.ep.inject_write(word, node.me, 0, key)
        msg.context = "loud"
        node.ep.writemsg(msg, fi.COMPLETION)
        assert [entry.op_context for entry in node.wait()] == ["loud"]
        assert node.cq.read() == []


# ---- event queues ----------------------------------------------------------------------------------------------------


def test_event_queue_yields_while_it_waits(node: Node) -> None:
    with node.fabric.eq_open(flags=fi.WRITE) as eq:
        with pytest.raises(fi.Again):
            eq.sread(timeout=0.01)
        eq.write(fi.NOTIFY, fi.EqEntry(node.ep, "c"))
        assert eq.sread(timeout=WATCHDOG_S) == (fi.NOTIFY, fi.EqEntry(node.ep, "c"))
        with pytest.raises(fi.NoSys):
            eq.control(fi.GETWAIT)
        assert eq.control(fi.GETWAITOBJ) in (fi.WAIT_UNSPEC, fi.WAIT_YIELD)
        with pytest.raises(fi.NoSys, match=r"\n  try: completion queues alone"):
            fi.trywait(node.fabric, [eq])


@pytest.mark.parametrize("wait_obj", [fi.WAIT_FD, fi.WAIT_SET, fi.WAIT_MUTEX_COND, fi.WAIT_POLLFD])
def test_other_event_queues_are_not_there(node: Node, wait_obj: int) -> None:
    with pytest.raises(fi.NoSys):
        node.fabric.eq_open(wait_obj=wait_obj)


def test_event_queue_without_a_wait_object_is_not_waited_for(node: Node) -> None:
    with node.fabric.eq_open(wait_obj=fi.WAIT_NONE) as eq, pytest.raises(fi.NoSys):
        eq.sread(timeout=0)


def test_domain_reports_to_one_event_queue(node: Node) -> None:
    with node.fabric.eq_open() as eq, node.fabric.eq_open() as second, opened() as other:
        del other
        info = node.info
        with node.fabric.domain(info) as domain:
            domain.bind(eq)
            with pytest.raises(fi.InvalidArgument):
                domain.bind(second)


def test_queue_has_at_most_2_24_entries(node: Node) -> None:
    """A larger size is shortened: fi_cq(3) lets the provider choose."""
    for size in ((1 << 24) - 1, 1 << 24, (1 << 24) + 1):
        with node.domain.cq_open(size=size) as cq:
            assert cq.capacity == min(size, 1 << 24)
