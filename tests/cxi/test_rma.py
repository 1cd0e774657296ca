"""Reads and writes of the CXI provider: which are refused, and how they complete. fi_cxi(7) "Operation flags"."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cxi.support import CAPS, opened, register
from tests.fi.support import Node

from weft import cxi, fi

KEYS = {"optimized": 7, "standard": 300}


def msg(node: Node, buf: Any, key: int = 300, addr: int = 0, length: int = 0) -> fi.MsgRma:
    return fi.MsgRma([buf], [fi.RmaIov(addr, length, key)], node.me, context="c")


@pytest.mark.clause("cxi.xfer.rma")
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_bytes_are_written_and_read(node: Node, key: int) -> None:
    memory = np.zeros(4096, np.uint8)
    register(node, memory, key)
    data = np.arange(4096).astype(np.uint8)
    back = np.zeros(4096, np.uint8)
    node.ep.write(data, None, node.me, 0, key)
    node.wait()
    node.ep.read(back, None, node.me, 0, key)
    node.wait()
    assert (memory == data).all()
    assert (back == data).all()


@pytest.mark.parametrize(
    ("flags", "call"),
    [
        (fi.REMOTE_CQ_DATA, "writemsg"),
        (fi.COMMIT_COMPLETE, "writemsg"),
        (fi.PEEK, "writemsg"),
        (cxi.UNRELIABLE, "writemsg"),
        (fi.INJECT, "readmsg"),
        (fi.REMOTE_CQ_DATA, "readmsg"),
        (cxi.HRP, "readmsg"),
        (cxi.WEAK_FENCE, "readmsg"),
    ],
)
def test_flag_that_a_call_does_not_take_is_refused(node: Node, flags: int, call: str) -> None:
    register(node, np.zeros(1, "u8"), 300)
    with pytest.raises(fi.BadFlags):
        getattr(node.ep, call)(msg(node, np.zeros(1, "u8")), int(flags))


@pytest.mark.parametrize(
    ("buffers", "flags", "refused"),
    [
        (2, fi.PEEK, fi.InvalidArgument),  # the count before the flags
        (1, fi.PEEK | fi.FENCE, fi.BadFlags),  # the flags before the right to fence
        (1, fi.FENCE | fi.INJECT, fi.InvalidArgument),  # the right to fence before the length
        (1, fi.INJECT, fi.MessageTooLong),
    ],
)
def test_checks_of_a_write_have_the_order_of_the_real_provider(
    node: Node, buffers: int, flags: int, refused: type[fi.FabricError]
) -> None:
    wrong = fi.MsgRma([np.zeros(100, "u8")] * buffers, [fi.RmaIov(0, 0, 1 << 40)], node.me)
    with pytest.raises(refused):
        node.ep.writemsg(wrong, int(flags))


@pytest.mark.clause("cxi.op.transmit-complete", "cxi.op.delivery-complete", "cxi.op.inject", "cxi.op.completion")
@pytest.mark.parametrize(
    "flags",
    [
        fi.COMPLETION,
        fi.COMPLETION | fi.INJECT,
        fi.COMPLETION | fi.INJECT_COMPLETE,
        fi.COMPLETION | fi.TRANSMIT_COMPLETE,
        fi.COMPLETION | fi.DELIVERY_COMPLETE,
        fi.COMPLETION | fi.MATCH_COMPLETE,
        fi.COMPLETION | cxi.HRP,
        fi.COMPLETION | cxi.WEAK_FENCE,
    ],
    ids=str,
)
def test_flag_of_a_write_is_taken_and_the_data_is_there(node: Node, flags: int) -> None:
    memory = np.zeros(1, "u8")
    register(node, memory, 300)
    node.ep.writemsg(msg(node, np.full(1, 7, "u8")), int(flags))
    (entry,) = node.wait()
    assert (entry.op_context, entry.flags) == ("c", fi.RMA | fi.WRITE)
    assert memory[0] == 7


@pytest.mark.clause("cxi.op.fence")
def test_fence_needs_its_capability(node: Node) -> None:
    with pytest.raises(fi.InvalidArgument):
        node.ep.writemsg(msg(node, np.zeros(1, "u8")), int(fi.FENCE))
    with opened(CAPS | fi.FENCE) as fenced:
        memory = np.zeros(1, "u8")
        register(fenced, memory, 300)
        fenced.ep.writemsg(msg(fenced, np.full(1, 7, "u8")), int(fi.FENCE | fi.COMPLETION))
        fenced.wait()
        assert memory[0] == 7


def test_lists_have_one_entry(node: Node) -> None:
    word = np.zeros(1, "u8")
    two = fi.MsgRma([word, word], [fi.RmaIov(0, 16, 300)], node.me)
    for call in (
        lambda: node.ep.writev([word, word], None, node.me, 0, 300),
        lambda: node.ep.readv([word, word], None, node.me, 0, 300),
        lambda: node.ep.writemsg(two),
        lambda: node.ep.writemsg(fi.MsgRma([word], [fi.RmaIov(0, 4, 300), fi.RmaIov(4, 4, 300)], node.me)),
        lambda: node.ep.writemsg(fi.MsgRma([word], [], node.me)),
        lambda: node.ep.readmsg(fi.MsgRma([word], [], node.me)),
    ):
        with pytest.raises(fi.InvalidArgument):
            call()


def test_length_is_that_of_the_local_buffer(node: Node) -> None:
    memory = np.zeros(2, "u8")
    register(node, memory, 300)
    node.ep.writemsg(msg(node, np.full(1, 7, "u8"), length=12345), fi.COMPLETION)
    node.wait()
    assert memory.tolist() == [7, 0]


def test_injected_data_has_a_limit_and_its_buffer_is_free_at_once(node: Node) -> None:
    memory = np.zeros(256, np.uint8)
    register(node, memory, 300)
    data = bytearray(b"\7" * 192)
    node.ep.inject_write(data, node.me, 0, 300)
    data[:] = bytes(192)
    node.ep.writemsg(msg(node, bytes(8), addr=200), int(fi.COMPLETION | fi.FENCE & 0))
    node.wait()
    assert (memory[:192] == 7).all()
    with pytest.raises(fi.MessageTooLong):
        node.ep.inject_write(bytes(193), node.me, 0, 300)
    with pytest.raises(fi.MessageTooLong):
        node.ep.writemsg(msg(node, bytes(193)), int(fi.INJECT))


def test_longest_message_is_of_four_gigabytes(node: Node) -> None:
    assert node.ep.max_msg_size == 4294967295
    with pytest.raises(fi.MessageTooLong):
        node.ep.write((0x10000, 1 << 32), None, node.me, 0, 300)


def test_transfer_of_nothing_completes(node: Node) -> None:
    register(node, np.zeros(1, "u8"), 300)
    node.ep.write(b"", None, node.me, 0, 300)
    node.ep.read(bytearray(0), None, node.me, 0, 300)
    assert len(node.wait(2)) == 2


@pytest.mark.clause("cxi.ext.dom.hybrid-desc-optional")
@pytest.mark.parametrize("hybrid", [False, True])
def test_descriptor_may_be_given_and_needs_not(node: Node, hybrid: bool) -> None:
    node.domain.open_ops(cxi.DOM_OPS_3).enable_hybrid_mr_desc(node.domain, hybrid)
    with node.domain.endpoint(node.info) as ep:
        ep.bind(node.cq, fi.TRANSMIT | fi.RECV)
        ep.bind(node.av)
        ep.enable()
        memory = np.zeros(2, "u8")
        register(node, memory, 300)
        given, missing = np.array([3], "u8"), np.array([4], "u8")
        ep.write(given, node.reg(given, int(fi.WRITE)).desc, node.me, 0, 300)
        ep.write(missing, None, node.me, 8, 300)
        node.wait(2)
        assert memory.tolist() == [3, 4]


def test_descriptor_of_other_memory_is_not_looked_at(node: Node) -> None:
    register(node, np.zeros(1, "u8"), 300)
    node.ep.write(np.zeros(1, "u8"), node.reg(np.zeros(1, "u8"), int(fi.READ)).desc, node.me, 0, 300)
    node.wait()


def test_failure_of_an_injected_write_is_reported_and_counted(node: Node) -> None:
    with opened() as counted:
        ep = counted.keep(counted.domain.endpoint(counted.info))
        cntr = counted.keep(counted.domain.cntr_open())
        ep.bind(counted.cq, fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION)
        ep.bind(counted.av)
        ep.bind(cntr, fi.WRITE)
        ep.enable()
        ep.inject_write(bytes(8), counted.me, 0, 300)
        with pytest.raises(fi.Available):
            counted.wait()
        assert counted.cq.readerr().err == fi.EIO
        assert (cntr.read(), cntr.readerr()) == (0, 1)


@pytest.mark.parametrize("release", ["doc", "current"])
def test_write_to_nobody_is_an_error(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", release)
    with opened() as node:
        nobody = node.av.insert(cxi.Address(cxi.Address.from_bytes(node.name).nic, 510))
        node.ep.write(bytes(8), None, nobody, 0, 300)
        with pytest.raises(fi.Available):
            node.wait()
        entry = node.cq.readerr()
        assert (entry.err, entry.prov_errno) == (fi.EIO, cxi.C_RC_PTLTE_NOT_FOUND)
