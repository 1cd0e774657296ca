"""The models of the parts between a program and the NIC: event queues, command queues, page requests.

Source: fi_cxi(7) FI_CXI_EQ_ACK_BATCH_SIZE, FI_CXI_CQ_POLICY, FI_CXI_LLRING_MODE, "ODP Support and Fork".
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import opened, register
from tests.fi.support import Node

from weft import cxi, fi

KEY = 200
WORD = np.ones(1, "u8")


def sizes(tx: int, rx: int) -> Any:
    def edit(info: fi.Info) -> None:
        info.tx_attr.size, info.rx_attr.size = tx, rx

    return edit


def post(node: Node) -> bool:
    """Whether a write is taken."""
    try:
        node.ep.write(WORD, dest_addr=node.me, addr=0, key=KEY)
    except fi.Again:
        return False
    return True


def post_all(node: Node) -> int:
    """How many writes are taken until one is refused."""
    done = 0
    while post(node):
        done += 1
    return done


# ---- acknowledgements of events --------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.env.eq-ack-batch")
@pytest.mark.parametrize(("batch", "read_until_free"), [("1", 1), ("8", 8), ("32", 32), (None, 32), ("0", 1)])
def test_slots_of_a_full_queue_return_in_batches(
    batch: str | None, read_until_free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FI_CXI_DEFAULT_CQ_SIZE", "16")
    if batch is not None:
        monkeypatch.setenv("FI_CXI_EQ_ACK_BATCH_SIZE", batch)
    with opened(edit=sizes(64, 64)) as node:
        register(node, bytearray(8), KEY)
        assert post_all(node) == 64
        for _ in range(read_until_free - 1):
            assert len(node.cq.read(1)) == 1
            assert not post(node)
        assert len(node.cq.read(1)) == 1
        assert post_all(node) == read_until_free
        assert node.cq.acknowledgements == (0 if read_until_free == 1 else 1)


@pytest.mark.clause("cxi.env.eq-ack-batch")
def test_acknowledgements_are_one_for_a_batch_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_EQ_ACK_BATCH_SIZE", "10")
    with opened() as node:
        register(node, bytearray(8), KEY)
        for _ in range(95):
            assert post(node)
            assert len(node.cq.read(1)) == 1
        assert node.cq.acknowledgements == 9


def test_queue_smaller_than_a_batch_is_acknowledged_when_all_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_DEFAULT_CQ_SIZE", "16")
    monkeypatch.setenv("FI_CXI_EQ_ACK_BATCH_SIZE", "1000")
    with opened(edit=sizes(16, 16)) as node:
        register(node, bytearray(8), KEY)
        for _ in range(3):
            assert post_all(node) == 16
            assert len(node.cq.read()) == 16


def test_error_entry_counts_as_an_event_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_EQ_ACK_BATCH_SIZE", "2")
    with opened() as node:
        for _ in range(4):
            node.ep.write(WORD, dest_addr=node.me, addr=0, key=4711)
            with pytest.raises(fi.Available):
                node.cq.read()
            node.cq.readerr()
        assert node.cq.acknowledgements == 2


# ---- the command queue -----------------------------------------------------------------------------------------------


def more(node: Node, count: int) -> None:
    """Post `count` writes with FI_MORE, then one without."""
    msg = fi.MsgRma([WORD], [fi.RmaIov(0, 8, KEY)], node.me)
    for _ in range(count):
        node.ep.writemsg(msg, fi.MORE)
    node.ep.writemsg(msg, 0)


def commands(node: Node) -> dict[str, int]:
    found = node.ep.statistics()
    return {
        "commands": found.commands,
        "low_latency": found.low_latency_commands,
        "doorbells": found.doorbells,
        "write_backs": found.write_backs,
    }


@pytest.mark.clause("cxi.env.cq-policy", "cxi.env.cq-policy-frequency", "cxi.env.cq-policy-empty")
@pytest.mark.parametrize(
    ("policy", "apart", "batched"),
    [
        ("always", 64, 64),  # after each command
        ("high_empty", 64, 17),  # after 1/16 of the 64 slots, and at the empty queue
        ("low_empty", 64, 5),  # after 1/4 of the slots, and at the empty queue
        ("low", 4, 4),  # after 1/4 of the slots alone
    ],
)
def test_write_backs_follow_the_policy(policy: str, apart: int, batched: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_CQ_POLICY", policy)
    with opened(edit=sizes(64, 64)) as node:
        register(node, bytearray(8), KEY)
        for _ in range(64):  # one after the other: each leaves the queue empty
            node.ep.write(WORD, dest_addr=node.me, addr=0, key=KEY)
            node.wait()
        assert commands(node)["write_backs"] == apart
    with opened(edit=sizes(64, 64)) as node:
        register(node, bytearray(8), KEY)
        more(node, 63)  # the NIC reads 63 at the doorbell, then the last
        node.wait(64)
        found = commands(node)
        assert found["commands"] == 64
        assert found["write_backs"] == batched


@pytest.mark.clause("cxi.env.cq-policy-empty", "cxi.env.cq-policy")
@pytest.mark.parametrize(("policy", "free"), [("low_empty", 64), ("low", 54)])
def test_program_learns_of_free_slots_at_write_backs(policy: str, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_CQ_POLICY", policy)
    with opened(edit=sizes(64, 64)) as node:
        register(node, bytearray(8), KEY)
        for _ in range(10):
            node.ep.write(WORD, dest_addr=node.me, addr=0, key=KEY)
            node.wait()
        assert node.ep.statistics().free_commands == free
        msg = fi.MsgRma([WORD], [fi.RmaIov(0, 8, KEY)], node.me)
        taken = 0
        while node.ep.statistics().tx_pending == taken and taken < 64:
            try:
                node.ep.writemsg(msg, fi.MORE)
            except fi.Again:
                break
            taken += 1
        assert taken == free


@pytest.mark.clause("cxi.env.llring-mode")
@pytest.mark.parametrize(("mode", "apart", "in_a_batch"), [("idle", 10, 0), ("always", 10, 1), ("never", 0, 0)])
def test_low_latency_ring_is_used_as_its_mode_says(
    mode: str, apart: int, in_a_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FI_CXI_LLRING_MODE", mode)
    with opened() as node:
        register(node, bytearray(8), KEY)
        for _ in range(10):
            node.ep.write(WORD, dest_addr=node.me, addr=0, key=KEY)
            node.wait()
        assert commands(node)["low_latency"] == apart
        assert commands(node)["doorbells"] == 10 - apart
        before = commands(node)
        more(node, 4)
        node.wait(5)
        after = commands(node)
        assert after["low_latency"] - before["low_latency"] == in_a_batch


def test_fetching_atomics_and_reads_are_commands_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_LLRING_MODE", "never")
    with opened() as node:
        register(node, np.zeros(1, "u8"), KEY)
        node.ep.read(np.zeros(1, "u8"), None, node.me, 0, KEY)
        node.ep.fetch_atomic(WORD, None, np.zeros(1, "u8"), None, node.me, 0, KEY, fi.UINT64, fi.SUM)
        node.wait(2)
        assert commands(node) == {"commands": 2, "low_latency": 0, "doorbells": 2, "write_backs": 2}


def test_command_queue_is_modelled_only_on_request() -> None:
    with opened() as node:
        register(node, bytearray(8), KEY)
        node.ep.write(WORD, dest_addr=node.me, addr=0, key=KEY)
        node.wait()
        assert not any(commands(node).values())


# ---- responses of High Rate Puts -------------------------------------------------------------------------------------


def hrp_counts() -> tuple[int, int]:
    """(High Rate Puts, responses to them) of cxi0."""
    from weft.providers.cxi import device, telemetry

    found = device.by_name("cxi0")
    assert found is not None
    telemetry.publish(found)
    return telemetry.read("cxi0", "HNI_HRP_ACK").value, telemetry.read("cxi0", "PCT_HRP_RESPONSES_RECEIVED").value


def unordered(info: fi.Info) -> None:
    info.tx_attr.msg_order = 0


@pytest.mark.clause("cxi.hrp.coalesced")
def test_responses_of_high_rate_puts_of_a_batch_are_merged() -> None:
    with opened(edit=unordered) as node:
        register(node, bytearray(8), 7)  # optimized
        msg = fi.MsgRma([WORD], [fi.RmaIov(0, 8, 7)], node.me)
        for _ in range(10):
            node.ep.writemsg(msg, cxi.HRP | fi.COMPLETION)
            node.wait()
        assert hrp_counts() == (10, 10)  # one at a time: there is nothing to merge
        for _ in range(7):
            node.ep.writemsg(msg, cxi.HRP | fi.MORE | fi.COMPLETION)
        node.ep.writemsg(msg, cxi.HRP | fi.COMPLETION)
        node.wait(8)
        puts, responses = hrp_counts()
        assert puts == 18
        assert responses == 12  # one for the seven, one for the last


def test_responses_of_other_writes_are_no_responses_of_high_rate_puts() -> None:
    with opened(edit=unordered) as node:
        register(node, bytearray(8), 7)
        node.ep.write(WORD, dest_addr=node.me, addr=0, key=7)
        node.wait()
        assert hrp_counts() == (0, 0)


# ---- on-demand paging ------------------------------------------------------------------------------------------------

PAGES = 16


def odp(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_ODP", "1")
    monkeypatch.setenv("FI_CXI_FORCE_ODP", "1")
    if limit:
        monkeypatch.setenv("WEFT_CXI_ODP_REQUESTS", str(limit))


@pytest.mark.clause("cxi.fork.odp-timeout", "cxi.fork.odp-timeout-fails")
def test_transfer_with_too_many_missing_pages_ends_in_an_odp_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    odp(6, monkeypatch)
    with opened() as node, mmap.mmap(-1, PAGES * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        mr = register(node, memory, KEY)
        source = bytes(range(256)) * (PAGES * mmap.PAGESIZE // 256)
        for served in (6, 12):  # each failed attempt brings some of the pages
            node.ep.write(source, dest_addr=node.me, addr=0, key=KEY)
            with pytest.raises(fi.Available):
                node.cq.read()
            error = node.cq.readerr()
            assert (error.err, error.prov_errno) == (fi.EIO, cxi.ReturnCode.C_RC_PAGE_REQ_ERROR)
            assert b"ODP time-out" in error.err_data
            assert node.ep.statistics().page_requests == served
        node.ep.write(source, dest_addr=node.me, addr=0, key=KEY)
        assert len(node.wait()) == 1
        assert memory[:] == source
        assert (node.ep.statistics().page_requests, node.ep.statistics().page_timeouts) == (16, 2)
        memory.madvise(mmap.MADV_DONTNEED)  # an invalidation: the NIC has to request the pages again
        node.ep.read(bytearray(len(source)), src_addr=node.me, addr=0, key=KEY)
        with pytest.raises(fi.Available):
            node.cq.read()
        assert node.cq.readerr().prov_errno == cxi.ReturnCode.C_RC_PAGE_REQ_ERROR
        mr.close()


def test_page_requests_are_not_limited_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    odp(0, monkeypatch)
    with opened() as node, mmap.mmap(-1, PAGES * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        mr = register(node, memory, KEY)
        node.ep.write(b"x" * len(memory), dest_addr=node.me, addr=0, key=KEY)
        assert len(node.wait()) == 1
        assert node.ep.statistics().page_timeouts == 0
        mr.close()


def test_limit_of_page_requests_is_for_on_demand_paging_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_ODP_REQUESTS", "1")
    with opened() as node, mmap.mmap(-1, PAGES * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        mr = register(node, memory, KEY)
        node.ep.write(b"x" * len(memory), dest_addr=node.me, addr=0, key=KEY)
        assert len(node.wait()) == 1
        mr.close()
