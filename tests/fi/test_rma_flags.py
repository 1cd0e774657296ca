"""fi_rma(3): fi_writemsg, fi_readmsg and the flags of one call."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fi.rma_support import KEY, Duo, flush, message, pattern, region
from tests.fi.support import opened, pair

from weft import fi

# ---- writemsg and its flags ------------------------------------------------------------------------------------------


@pytest.mark.general("several buffers a call")
@pytest.mark.clause(
    "rma.writemsg.signature",
    "rma.arg.msg",
    "rma.arg.flags",
    "rma.msg.msg-iov",
    "rma.msg.rma-iov",
    "rma.msg.context",
    "rma.iov.addr",
    "rma.iov.len",
    "rma.iov.key",
)
def test_rma_writemsg_gathers_and_scatters(duo: Duo) -> None:
    """fi_rma(3) fi_msg_rma, fi_rma_iov."""
    initiator, target, peer = duo
    one, two = region(target, key=1), region(target, key=2)
    msg = fi.MsgRma(
        msg_iov=[pattern(5), pattern(5, 6)],
        rma_iov=[fi.RmaIov(addr=2, len=3, key=1), fi.RmaIov(addr=100, len=7, key=2)],
        addr=peer,
        context="msg",
    )
    assert initiator.ep.writemsg(msg, 0) is None
    assert initiator.wait()[0].op_context == "msg"
    assert one[2:6].tolist() == [1, 2, 3, 0]
    assert two[100:108].tolist() == [4, 5, 6, 7, 8, 9, 10, 0]


@pytest.mark.clause("rma.msg.addr")
@pytest.mark.parametrize("call", ["writemsg", "readmsg"])
def test_rma_message_goes_to_the_peer_that_addr_names(call: str) -> None:
    """fi_rma(3) fi_msg_rma addr: the peer of this message; the other peer's memory is as it was."""
    with opened() as one, opened() as two, opened() as initiator:
        memories = [region(one), region(two)]
        memories[0][:] = 1
        memories[1][:] = 2
        peers = initiator.av.insert([one.name, two.name])
        for i, peer in enumerate(peers):
            local = np.full(4, 9, np.uint8)
            getattr(initiator.ep, call)(fi.MsgRma([local], [fi.RmaIov(0, 4, KEY)], addr=peer))
            initiator.wait()
            if call == "readmsg":
                assert local.tolist() == [i + 1] * 4
            else:
                assert memories[i][:4].tolist() == [9] * 4
                memories[i][:] = 0
                assert not memories[0][:4].any() or i == 1
        with pytest.raises(fi.InvalidArgument, match="no peer was given"):
            getattr(initiator.ep, call)(fi.MsgRma([np.zeros(4, np.uint8)], [fi.RmaIov(0, 4, KEY)]))


@pytest.mark.clause("rma.msg.iov-count", "rma.msg.rma-iov-count")
def test_rma_writemsg_counts_limit_the_lists(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = region(target)
    local = pattern(4)
    mr = initiator.reg(local, fi.WRITE)
    msg = fi.MsgRma(
        msg_iov=[local, b"unused"],
        rma_iov=[fi.RmaIov(0, 4, KEY), fi.RmaIov(0, 999, 999)],
        addr=peer,
        desc=[mr.desc, None],
        iov_count=1,
        rma_iov_count=1,
    )
    initiator.ep.writemsg(msg)
    initiator.wait()
    assert memory[:5].tolist() == [1, 2, 3, 4, 0]


@pytest.mark.general("it compares lengths")
def test_rma_writemsg_of_unequal_lengths_is_refused(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = region(target)
    msg = fi.MsgRma(msg_iov=[pattern(5)], rma_iov=[fi.RmaIov(0, 4, KEY)], addr=peer)
    with pytest.raises(fi.InvalidArgument):
        initiator.ep.writemsg(msg)
    assert not memory.any()


def test_rma_more_buffers_than_iov_limit_are_refused(duo: Duo) -> None:
    initiator, target, peer = duo
    region(target)
    limit = initiator.info.tx_attr.iov_limit
    initiator.ep.writev([b"x"] * limit, None, peer, 0, KEY)
    initiator.wait()
    with pytest.raises(fi.InvalidArgument):
        initiator.ep.writev([b"x"] * (limit + 1), None, peer, 0, KEY)
    with pytest.raises(fi.InvalidArgument):
        initiator.ep.writemsg(
            fi.MsgRma(msg_iov=[b"x" * 9], rma_iov=[fi.RmaIov(i, 1, KEY) for i in range(9)], addr=peer)
        )


@pytest.mark.clause("rma.flag.cq-data", "rma.msg.data", "rma.writemsg.flags")
def test_rma_writemsg_remote_cq_data_only_under_its_flag(duo: Duo) -> None:
    initiator, target, peer = duo
    region(target)
    initiator.ep.writemsg(message(b"a", peer, 0, KEY, data=1), 0)
    initiator.ep.writemsg(message(b"b", peer, 0, KEY, data=2), fi.REMOTE_CQ_DATA)
    initiator.wait(2)
    (event,) = target.wait()
    assert event.data == 2
    assert target.cq.read() == []


@pytest.mark.clause("rma.flag.completion")
def test_rma_completion_flag_makes_an_entry_on_a_selective_queue() -> None:
    with pair(cq_flags=fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION) as (initiator, target, peer):
        memory = region(target)
        initiator.ep.write(b"silent", dest_addr=peer, addr=0, key=KEY, context="no")
        initiator.ep.writemsg(message(b"silent", peer, 8, KEY, "no"), 0)
        initiator.ep.writemsg(message(b"told", peer, 16, KEY, "yes"), fi.COMPLETION)
        assert [e.op_context for e in initiator.wait()] == ["yes"]
        assert initiator.cq.read() == []
        assert bytes(memory[:20]) == b"silent\0\0silent\0\0told"


def test_rma_selective_queue_reports_failures_always() -> None:
    with pair(cq_flags=fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION) as (initiator, target, peer):
        region(target)
        initiator.ep.write(b"x", dest_addr=peer, addr=0, key=KEY + 1, context="bad")
        failed = initiator.wait_error()
        assert (failed.op_context, failed.err) == ("bad", fi.EKEYREJECTED)


@pytest.mark.clause("rma.flag.completion-ignored")
@pytest.mark.parametrize("flags", [0, fi.COMPLETION])
def test_rma_completion_flag_is_ignored_on_an_ordinary_queue(duo: Duo, flags: int) -> None:
    initiator, target, peer = duo
    region(target)
    initiator.ep.writemsg(message(b"x", peer, 0, KEY, "c"), flags)
    assert [e.op_context for e in initiator.wait()] == ["c"]
    assert initiator.cq.read() == []


@pytest.mark.clause("rma.flags.override")
def test_rma_message_flags_take_the_place_of_the_endpoint_s() -> None:
    """fi_endpoint(3): op_flags has COMPLETION, so write completes; writemsg with flags 0 does not."""
    with pair(cq_flags=fi.TRANSMIT | fi.RECV | fi.SELECTIVE_COMPLETION, op_flags=fi.COMPLETION) as (
        initiator,
        target,
        peer,
    ):
        region(target)
        initiator.ep.writemsg(message(b"x", peer, 0, KEY, "override"), 0)
        initiator.ep.write(b"x", dest_addr=peer, addr=0, key=KEY, context="default")
        assert [e.op_context for e in initiator.wait()] == ["default"]
        assert initiator.cq.read() == []


def test_rma_more_flag_announces_and_changes_nothing(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = region(target)
    for i in range(8):
        initiator.ep.writemsg(message(bytes([i + 1]), peer, i, KEY, i), fi.MORE if i < 7 else 0)
    assert [e.op_context for e in initiator.wait(8)] == list(range(8))
    assert memory[:9].tolist() == [*range(1, 9), 0]


@pytest.mark.general("its inject_size")
@pytest.mark.clause("rma.flag.inject")
def test_rma_inject_flag_frees_the_buffer_on_return(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = region(target)
    size = min(200, initiator.info.tx_attr.inject_size)
    data = pattern(size)
    initiator.ep.writemsg(message(data, peer, 0, KEY, "i"), fi.INJECT)
    data.fill(0xEE)
    assert initiator.wait()[0].op_context == "i"  # unlike inject_write, it completes
    assert memory[:size].tolist() == pattern(size).tolist()


@pytest.mark.general("its error number")
@pytest.mark.clause("rma.flag.inject-size")
@pytest.mark.parametrize("call", ["inject_write", "inject_writedata", "writemsg"])
def test_rma_inject_beyond_inject_size_is_refused(duo: Duo, call: str) -> None:
    initiator, target, peer = duo
    memory = region(target, 1024)
    big = pattern(initiator.info.tx_attr.inject_size + 1)
    calls = {
        "writemsg": lambda: initiator.ep.writemsg(message(big, peer, 0, KEY), fi.INJECT),
        "inject_write": lambda: initiator.ep.inject_write(big, peer, 0, KEY),
        "inject_writedata": lambda: initiator.ep.inject_writedata(big, 1, peer, 0, KEY),
    }
    with pytest.raises(fi.MessageTooLong) as caught:
        calls[call]()
    assert str(initiator.info.tx_attr.inject_size) in str(caught.value)
    assert not memory.any()


@pytest.mark.clause("rma.flag.delivery-complete")
@pytest.mark.parametrize("level", [fi.INJECT_COMPLETE, fi.TRANSMIT_COMPLETE, fi.DELIVERY_COMPLETE], ids=str)
def test_rma_completion_levels(duo: Duo, level: int) -> None:
    """Once complete, the source may be reused at every level; at DELIVERY_COMPLETE the target's memory has the data."""
    initiator, target, peer = duo
    memory = region(target, 4096)
    data = pattern(4096)
    initiator.ep.writemsg(message(data, peer, 0, KEY, "level"), level)
    assert initiator.wait()[0].op_context == "level"
    if level == fi.DELIVERY_COMPLETE:
        assert np.array_equal(memory, pattern(4096))
    data.fill(0)
    flush(initiator, peer)
    assert np.array_equal(memory, pattern(4096))


def test_rma_unknown_flag_is_badflags(duo: Duo) -> None:
    initiator, target, peer = duo
    region(target)
    with pytest.raises(fi.BadFlags):
        initiator.ep.writemsg(message(b"x", peer, 0, KEY), 1 << 60)
    with pytest.raises(fi.BadFlags):
        initiator.ep.readmsg(message(bytearray(1), peer, 0, KEY), fi.MULTI_RECV)


@pytest.mark.clause("rma.flag.fence-scope", "rma.flag.fence-results", "rma.flag.fence-later")
def test_rma_fence_waits_for_earlier_operations(duo: Duo) -> None:
    """fi_rma(3) FI_FENCE: operations after the fence see, or replace, the results of those before it."""
    initiator, target, peer = duo
    memory = np.zeros(1 << 20, np.uint8)  # foreign memory: not copied by a plain store
    target.reg(memory, requested_key=KEY)
    data = pattern(1 << 20)
    back = np.zeros(16, np.uint8)
    initiator.ep.write(data, dest_addr=peer, addr=0, key=KEY, context="before")
    initiator.ep.readmsg(message(back, peer, (1 << 20) - 16, KEY, "fenced"), fi.FENCE)
    initiator.ep.write(b"\xff", dest_addr=peer, addr=0, key=KEY, context="after")
    assert [e.op_context for e in initiator.wait(3)] == ["before", "fenced", "after"]
    assert back.tolist() == data[-16:].tolist()
    assert memory[0] == 0xFF
    assert np.array_equal(memory[1:], data[1:])


@pytest.mark.clause("rma.flag.fence-defers")
def test_rma_fenced_operation_completes_after_all_before_it(duo: Duo) -> None:
    initiator, target, peer = duo
    region(target, 1 << 16)
    for i in range(20):
        initiator.ep.write(pattern(1 << 12), dest_addr=peer, addr=0, key=KEY, context=i)
    initiator.ep.writemsg(message(b"f", peer, 0, KEY, "fenced"), fi.FENCE)
    contexts = [e.op_context for e in initiator.wait(21)]
    assert contexts[-1] == "fenced"
    assert sorted(contexts[:-1]) == list(range(20))


@pytest.mark.general("its msg_order")
@pytest.mark.clause("rma.order.between-fences")
def test_rma_writes_of_one_endpoint_arrive_in_order(duo: Duo) -> None:
    """The endpoint offers FI_ORDER_RMA_WAW and RAW: the last write wins, and a read sees it."""
    initiator, target, peer = duo
    region(target)
    assert initiator.info.tx_attr.msg_order & (fi.ORDER_RMA_WAW | fi.ORDER_RMA_RAW)
    back = bytearray(8)
    for i in range(100):
        initiator.ep.write(bytes([i]) * 8, dest_addr=peer, addr=0, key=KEY)
    initiator.ep.read(back, src_addr=peer, addr=0, key=KEY)
    initiator.wait(101)
    assert back == bytes([99]) * 8
