"""fi_rma(3): the eleven calls, over one endpoint pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.fi.support import RW, Node, opened, pair

from weft import fi

Duo = tuple[Node, Node, int]
KEY = 0x2A


def pattern(count: int, start: int = 1) -> np.ndarray[Any, Any]:
    return (np.arange(start, start + count) % 251).astype(np.uint8)


def region(target: Node, count: int = 256, key: int = KEY, access: int = RW) -> np.ndarray[Any, Any]:
    """Registered, zeroed memory of Weft's own."""
    memory = target.domain.alloc(count, np.uint8)
    memory.fill(0)
    target.reg(memory, access, requested_key=key)
    return memory


def message(local: Any, peer: int, addr: int, key: int, context: Any = None, **more: Any) -> fi.MsgRma:
    return fi.MsgRma(
        msg_iov=[local], rma_iov=[fi.RmaIov(addr, memoryview(local).nbytes, key)], addr=peer, context=context, **more
    )


def _writemsg(ep: fi.Endpoint, data: Any, peer: int, addr: int, key: int, context: Any) -> None:
    ep.writemsg(message(data, peer, addr, key, context))


def _writev(ep: fi.Endpoint, data: Any, peer: int, addr: int, key: int, context: Any) -> None:
    ep.writev([data[:3], data[3:]], None, peer, addr, key, context)


def _batch(ep: fi.Endpoint, data: Any, peer: int, addr: int, key: int, context: Any) -> None:
    descs = np.zeros(2, fi.RMA_DESC)
    descs["local_offset"] = [0, 5]
    descs["length"] = [5, len(data) - 5]
    descs["dest_addr"] = peer
    descs["remote_addr"] = [addr, addr + 5]
    descs["key"] = key
    ep.write_batch(data, descs, context)


# (name, call, whether it completes on the queue)
WRITES: list[tuple[str, Callable[..., None], bool]] = [
    ("write", lambda ep, d, p, a, k, c: ep.write(d, None, p, a, k, c), True),
    ("writev", _writev, True),
    ("writemsg", _writemsg, True),
    ("inject_write", lambda ep, d, p, a, k, c: ep.inject_write(d, p, a, k), False),
    ("writedata", lambda ep, d, p, a, k, c: ep.writedata(d, None, 7, p, a, k, c), True),
    ("inject_writedata", lambda ep, d, p, a, k, c: ep.inject_writedata(d, 7, p, a, k), False),
    ("write_batch", _batch, True),
]
write_calls = pytest.mark.parametrize(("name", "call", "completes"), WRITES, ids=[w[0] for w in WRITES])


def flush(initiator: Node, peer: int, key: int = KEY) -> None:
    """Everything this endpoint posted before has completed: a fenced read of no consequence came back."""
    initiator.ep.readmsg(message(np.zeros(1, np.uint8), peer, 0, key, "flush"), fi.FENCE | fi.COMPLETION)
    while initiator.wait()[0].op_context != "flush":
        pass


# ---- writes ----------------------------------------------------------------------------------------------------------


@pytest.mark.general("several buffers a call")
@pytest.mark.clause("rma.write.family", "rma.ret.success", "rma.general.byte-level", "rma.addr.scalable")
@write_calls
def test_rma_write_calls_leave_equal_bytes(duo: Duo, name: str, call: Any, completes: bool) -> None:
    """fi_rma(3): the write calls differ in parameters, not in what they do; addr is the offset into the region."""
    initiator, target, peer = duo
    memory = region(target)
    data = pattern(17)
    assert call(initiator.ep, data, peer, 5, KEY, "ctx") is None
    flush(initiator, peer) if not completes else initiator.wait()
    assert memory[5:22].tolist() == data.tolist()
    assert not memory[:5].any()
    assert not memory[22:].any()


@pytest.mark.general("several buffers a call")
@pytest.mark.clause("rma.completion.queue", "rma.completion.context", "rma.arg.context", "rma.arg.ep")
@pytest.mark.parametrize(("name", "call", "completes"), [w for w in WRITES if w[2]], ids=[w[0] for w in WRITES if w[2]])
def test_rma_write_completion_has_context_and_flags(duo: Duo, name: str, call: Any, completes: bool) -> None:
    initiator, target, peer = duo
    region(target)
    context = object()
    call(initiator.ep, pattern(9), peer, 0, KEY, context)
    (done,) = initiator.wait()
    assert done.op_context is context
    assert done.flags & (fi.RMA | fi.WRITE) == fi.RMA | fi.WRITE
    assert not done.flags & fi.READ
    assert initiator.cq.read() == []


@pytest.mark.clause("rma.write.signature", "rma.write.transfers", "rma.arg.buf-write", "rma.arg.key")
def test_rma_write_takes_c_s_arguments_in_order(duo: Duo) -> None:
    """fi_rma(3) fi_write(ep, buf, len, desc, dest_addr, addr, key, context)."""
    initiator, target, peer = duo
    memory = region(target)
    source = pattern(8)
    local = initiator.reg(source, fi.WRITE)
    assert initiator.ep.write(source, local.desc, peer, 4, KEY, "ctx", len=6) is None
    assert initiator.wait()[0].op_context == "ctx"
    assert memory[4:12].tolist() == [*range(1, 7), 0, 0]


@pytest.mark.clause("rma.arg.len")
def test_rma_write_len_limits_the_transfer(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = region(target)
    initiator.ep.write(pattern(100), dest_addr=peer, addr=0, key=KEY, len=3)
    initiator.wait()
    assert memory[:5].tolist() == [1, 2, 3, 0, 0]


def test_rma_write_len_beyond_the_buffer_is_refused(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = region(target)
    with pytest.raises(fi.InvalidArgument):
        initiator.ep.write(pattern(4), dest_addr=peer, addr=0, key=KEY, len=5)
    assert not memory.any()


@pytest.mark.general("several buffers a call")
@pytest.mark.clause("rma.writev.signature", "rma.writev.transfers", "rma.arg.iov", "rma.arg.count")
def test_rma_writev_gathers_count_buffers(duo: Duo) -> None:
    """fi_rma(3) fi_writev(ep, iov, desc, count, dest_addr, addr, key, context)."""
    initiator, target, peer = duo
    memory = region(target)
    iov = [bytes([1, 2]), bytearray([3]), pattern(3, 4), b"never"]
    initiator.ep.writev(iov, [None] * 4, peer, 10, KEY, "v", count=3)
    assert initiator.wait()[0].op_context == "v"
    assert memory[10:18].tolist() == [1, 2, 3, 4, 5, 6, 0, 0]


@pytest.mark.clause("rma.inject-write.signature", "rma.inject-write.completion", "rma.arg.context-ignored")
def test_rma_inject_write_frees_the_buffer_and_is_silent(duo: Duo) -> None:
    """fi_msg(3) fi_inject: the buffer is the caller's on return, and no completion is made."""
    initiator, target, peer = duo
    memory = region(target)
    data = pattern(64)
    assert initiator.ep.inject_write(data, peer, 3, KEY, len=32) is None
    data.fill(0xFF)
    flush(initiator, peer)
    assert memory[3:35].tolist() == pattern(32).tolist()
    assert initiator.cq.read() == []


def test_rma_inject_write_error_is_reported(duo: Duo) -> None:
    """Failures are reported whether or not successes are."""
    initiator, target, peer = duo
    region(target)
    initiator.ep.inject_write(b"x", peer, 0, KEY + 1)
    assert initiator.wait_error().err == fi.EKEYREJECTED


@pytest.mark.clause(
    "rma.writedata.signature",
    "rma.writedata.data",
    "rma.arg.data",
    "rma.remote.data-completion",
    "rma.flag.cq-data-writedata",
)
def test_rma_writedata_delivers_data_at_the_target(duo: Duo) -> None:
    """fi_rma(3) fi_writedata(ep, buf, len, desc, data, dest_addr, addr, key, context)."""
    initiator, target, peer = duo
    memory = region(target)
    data = (1 << 64) - 3
    initiator.ep.writedata(pattern(8), None, data, peer, 0, KEY, "wd", len=5)
    assert initiator.wait()[0].op_context == "wd"
    (event,) = target.wait()
    assert event.data == data
    assert event.flags & (fi.REMOTE_CQ_DATA | fi.REMOTE_WRITE | fi.RMA) == fi.REMOTE_CQ_DATA | fi.REMOTE_WRITE | fi.RMA
    assert memory[:6].tolist() == [1, 2, 3, 4, 5, 0]


@pytest.mark.clause("rma.inject-writedata.signature", "rma.inject-writedata.data")
def test_rma_inject_writedata_delivers_data_and_is_silent_here(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = region(target)
    initiator.ep.inject_writedata(pattern(8), 99, peer, 8, KEY, len=4)
    (event,) = target.wait()
    assert event.data == 99
    flush(initiator, peer)
    assert memory[8:13].tolist() == [1, 2, 3, 4, 0]
    assert initiator.cq.read() == []


def test_rma_remote_data_has_its_source(duo: Duo) -> None:
    """fi_cq(3) fi_cq_readfrom: the source's fi_addr, where it is in the receiver's address vector."""
    initiator, target, peer = duo
    region(target)
    back = target.av.insert(initiator.name)
    initiator.ep.writedata(b"x", data=1, dest_addr=peer, addr=0, key=KEY)
    initiator.wait()
    ((event, source),) = target.cq.sreadfrom(timeout=30)
    assert (event.data, source) == (1, back)


@pytest.mark.clause("rma.remote.write-silent", "rma.remote.read-silent")
def test_rma_target_sees_no_event_of_plain_accesses(duo: Duo) -> None:
    """fi_rma(3): by default nothing tells the remote endpoint of an access."""
    initiator, target, peer = duo
    region(target)
    initiator.ep.write(b"abc", dest_addr=peer, addr=0, key=KEY)
    initiator.ep.read(bytearray(3), src_addr=peer, addr=0, key=KEY)
    initiator.ep.writedata(b"d", data=5, dest_addr=peer, addr=0, key=KEY)  # told, and posted last
    initiator.wait(3)
    (event,) = target.wait()
    assert event.data == 5
    assert target.cq.read() == []


# ---- reads -----------------------------------------------------------------------------------------------------------


@pytest.mark.clause("rma.read.signature", "rma.read.transfers", "rma.arg.buf-read", "rma.arg.src-addr")
def test_rma_read_takes_c_s_arguments_in_order(duo: Duo) -> None:
    """fi_rma(3) fi_read(ep, buf, len, desc, src_addr, addr, key, context)."""
    initiator, target, peer = duo
    region(target)[:] = pattern(256)
    local = np.zeros(16, np.uint8)
    mr = initiator.reg(local, fi.READ)
    assert initiator.ep.read(local, mr.desc, peer, 7, KEY, "r", len=10) is None
    (done,) = initiator.wait()
    assert done.op_context == "r"
    assert done.flags & (fi.RMA | fi.READ) == fi.RMA | fi.READ
    assert local.tolist() == [*pattern(10, 8).tolist(), *[0] * 6]


@pytest.mark.general("several buffers a call")
@pytest.mark.clause("rma.readv.signature", "rma.readv.transfers")
def test_rma_readv_scatters(duo: Duo) -> None:
    initiator, target, peer = duo
    region(target)[:] = pattern(256)
    parts = [bytearray(3), np.zeros(4, np.uint8), bytearray(2), bytearray(b"no")]
    initiator.ep.readv(parts, [None] * 4, peer, 0, KEY, "rv", count=3)
    assert initiator.wait()[0].op_context == "rv"
    assert [list(p) for p in parts] == [[1, 2, 3], [4, 5, 6, 7], [8, 9], list(b"no")]


@pytest.mark.general("several buffers a call")
@pytest.mark.clause("rma.readmsg.signature", "rma.readmsg.flags")
def test_rma_readmsg_scatters_and_gathers(duo: Duo) -> None:
    initiator, target, peer = duo
    region(target, key=1)[:] = pattern(256)
    region(target, key=2)[:] = pattern(256, 100)
    out = [bytearray(4), bytearray(6)]
    msg = fi.MsgRma(msg_iov=out, rma_iov=[fi.RmaIov(0, 3, 1), fi.RmaIov(10, 7, 2)], addr=peer, context="m")
    assert initiator.ep.readmsg(msg, 0) is None
    assert initiator.wait()[0].op_context == "m"
    expected = [*pattern(3).tolist(), *pattern(7, 110).tolist()]
    assert [*out[0], *out[1]] == expected


def test_rma_read_into_read_only_memory_is_refused(duo: Duo) -> None:
    initiator, target, peer = duo
    region(target)
    with pytest.raises(fi.FabricError):
        initiator.ep.read(b"constant", src_addr=peer, addr=0, key=KEY)


def test_rma_read_batch_fills_each_piece(duo: Duo) -> None:
    initiator, target, peer = duo
    region(target)[:] = pattern(256)
    local = np.zeros(64, np.uint8)
    descs = np.zeros(4, fi.RMA_DESC)
    descs["local_offset"] = [0, 16, 32, 48]
    descs["length"] = [1, 2, 3, 4]
    descs["remote_addr"] = [100, 50, 25, 0]
    descs["dest_addr"], descs["key"], descs["status"] = peer, KEY, -1
    initiator.ep.read_batch(local, descs, "b")
    assert [e.op_context for e in initiator.wait()] == ["b"]
    assert descs["status"].tolist() == [0, 0, 0, 0]
    for at, (start, count) in zip((0, 16, 32, 48), ((101, 1), (51, 2), (26, 3), (1, 4)), strict=True):
        assert local[at : at + count].tolist() == pattern(count, start).tolist()
    assert np.count_nonzero(local) == 10


@pytest.mark.general("the man page's error number")
def test_rma_batch_reports_the_status_of_each(duo: Duo) -> None:
    """One bad descriptor fails the call's completion and itself; the others are done."""
    initiator, target, peer = duo
    memory = region(target)
    descs = np.zeros(3, fi.RMA_DESC)
    descs["length"], descs["dest_addr"] = 4, peer
    descs["remote_addr"] = [0, 8, 16]
    descs["key"] = [KEY, KEY + 1, KEY]
    initiator.ep.write_batch(pattern(4), descs, "b")
    failed = initiator.wait_error()
    assert (failed.op_context, failed.err) == ("b", fi.EKEYREJECTED)
    assert descs["status"].tolist() == [0, fi.EKEYREJECTED, 0]
    assert np.flatnonzero(memory).tolist() == [0, 1, 2, 3, 16, 17, 18, 19]


# ---- lengths ---------------------------------------------------------------------------------------------------------


@pytest.mark.clause("rma.len.zero")
def test_rma_zero_bytes_are_valid(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = region(target)
    initiator.ep.write(b"", dest_addr=peer, addr=0, key=KEY, context=1)
    initiator.ep.read(bytearray(), src_addr=peer, addr=256, key=KEY, context=2)
    initiator.ep.write(b"xyz", dest_addr=peer, addr=0, key=KEY, len=0, context=3)
    assert [e.op_context for e in initiator.wait(3)] == [1, 2, 3]
    assert not memory.any()


@pytest.mark.general("several buffers a call")
@pytest.mark.clause("rma.len.max")
def test_rma_longer_than_max_msg_size_is_refused() -> None:
    """fi_rma(3) len: up to the endpoint's max_msg_size."""

    def limit(info: fi.Info) -> None:
        info.ep_attr.max_msg_size = 100

    with pair(edit=limit) as (initiator, target, peer):
        memory = region(target)
        initiator.ep.write(pattern(100), dest_addr=peer, addr=0, key=KEY)
        initiator.wait()
        memory.fill(0)
        with pytest.raises(fi.MessageTooLong) as caught:
            initiator.ep.write(pattern(101), dest_addr=peer, addr=0, key=KEY)
        assert "100" in str(caught.value)
        with pytest.raises(fi.MessageTooLong):
            initiator.ep.writev([pattern(60), pattern(60)], None, peer, 0, KEY)
        assert not memory.any()


@pytest.mark.clause("rma.general.no-boundaries")
def test_rma_transfers_keep_no_boundaries(duo: Duo) -> None:
    """What was written in three pieces is read in two."""
    initiator, target, peer = duo
    region(target)
    for start, count in ((0, 3), (3, 10), (13, 7)):
        initiator.ep.write(pattern(count, 1 + start), dest_addr=peer, addr=start, key=KEY)
    initiator.wait(3)
    halves = [bytearray(11), bytearray(9)]
    initiator.ep.read(halves[0], src_addr=peer, addr=0, key=KEY)
    initiator.ep.read(halves[1], src_addr=peer, addr=11, key=KEY)
    initiator.wait(2)
    assert [*halves[0], *halves[1]] == pattern(20).tolist()


@pytest.mark.parametrize("nbytes", [1, 7, 8, 64, 255, 4096, 65537, 1 << 20, (5 << 20) + 3])
@pytest.mark.parametrize("kind", ["weft", "foreign"])
def test_rma_round_trip_of_every_size(duo: Duo, kind: str, nbytes: int) -> None:
    initiator, target, peer = duo
    make: Any = (
        (lambda: target.domain.alloc(nbytes, np.uint8)) if kind == "weft" else lambda: np.empty(nbytes, np.uint8)
    )
    memory = make()
    memory.fill(0)
    target.reg(memory, requested_key=KEY)
    data = pattern(nbytes)
    back = np.zeros_like(data)
    initiator.ep.write(data, dest_addr=peer, addr=0, key=KEY)
    initiator.wait()
    assert np.array_equal(memory, data)
    initiator.ep.read(back, src_addr=peer, addr=0, key=KEY)
    initiator.wait()
    assert np.array_equal(back, data)


def test_rma_registered_slice_is_a_local_buffer(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = region(target)
    local = initiator.domain.alloc(64, np.uint8)
    local[:] = pattern(64)
    mr = initiator.reg(local, fi.READ | fi.WRITE)
    initiator.ep.write(mr[8:24], dest_addr=peer, addr=0, key=KEY)
    initiator.wait()
    assert memory[:17].tolist() == [*pattern(16, 9).tolist(), 0]
    initiator.ep.read(mr[0:4], src_addr=peer, addr=12, key=KEY)
    initiator.wait()
    assert local[:4].tolist() == pattern(4, 21).tolist()


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
    data = pattern(200)
    initiator.ep.writemsg(message(data, peer, 0, KEY, "i"), fi.INJECT)
    data.fill(0xEE)
    assert initiator.wait()[0].op_context == "i"  # unlike inject_write, it completes
    assert memory[:200].tolist() == pattern(200).tolist()


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
def test_rma_fence_sees_what_was_posted_before(duo: Duo) -> None:
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


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.clause("rma.ret.negative", "mr.reg.key-required", "mr.general.rma-target")
@pytest.mark.parametrize("operation", ["write", "read"])
def test_rma_unknown_key_is_an_error_at_the_initiator(duo: Duo, operation: str) -> None:
    """fi_mr(3): a remote access has to give the key of a registered region."""
    initiator, target, peer = duo
    memory = region(target)
    local = bytearray(b"data")
    getattr(initiator.ep, operation)(local, None, peer, 0, KEY + 1, "op")
    failed = initiator.wait_error()
    assert (failed.op_context, failed.err) == ("op", fi.EKEYREJECTED)
    assert isinstance(failed.exception(), fi.KeyRejected)
    assert failed.exception().completion is failed
    assert not memory.any()
    assert local == b"data"


def test_rma_error_completion_says_what_was_asked_and_found(duo: Duo) -> None:
    initiator, target, peer = duo
    region(target, 100)
    initiator.ep.write(pattern(40), dest_addr=peer, addr=80, key=KEY)
    failed = initiator.wait_error()
    assert failed.err == fi.EACCES
    text = initiator.cq.strerror(failed.prov_errno, failed.err_data)
    assert text == failed.err_data.decode()
    for number in ("40 B", "0x50", "100 B"):  # asked for, at, found
        assert number in text
    assert initiator.cq.strerror(failed.prov_errno)  # the number alone has words too


@pytest.mark.parametrize(
    ("addr", "count"), [(0, 101), (100, 1), (99, 2), (1 << 40, 1), ((1 << 64) - 1, 1), ((1 << 64) - 1, 100), (50, 51)]
)
@pytest.mark.parametrize("operation", ["write", "read"])
def test_rma_outside_the_region_touches_nothing(duo: Duo, operation: str, addr: int, count: int) -> None:
    initiator, target, peer = duo
    memory = target.domain.alloc(300, np.uint8)
    memory.fill(7)
    target.reg(memory[100:200], requested_key=KEY)
    local = np.ones(count, np.uint8)
    getattr(initiator.ep, operation)(local, None, peer, addr, KEY, "out")
    failed = initiator.wait_error()
    assert (failed.err, failed.op_context) == (fi.EACCES, "out")
    assert (memory == 7).all()
    assert (local == 1).all()


@pytest.mark.clause("mr.access.remote-read", "mr.access.remote-write-rma", "mr.general.permissions")
def test_rma_access_is_what_was_granted(duo: Duo) -> None:
    initiator, target, peer = duo
    readable, writable = region(target, key=1, access=fi.REMOTE_READ), region(target, key=2, access=fi.REMOTE_WRITE)
    readable.fill(3)
    back = bytearray(4)
    initiator.ep.read(back, src_addr=peer, addr=0, key=1)
    initiator.ep.write(b"\x05", dest_addr=peer, addr=0, key=2)
    initiator.wait(2)
    assert back == b"\x03" * 4
    assert writable[0] == 5
    initiator.ep.write(b"\x09", dest_addr=peer, addr=0, key=1)
    assert initiator.wait_error().err == fi.EACCES
    initiator.ep.read(back, src_addr=peer, addr=0, key=2)
    assert initiator.wait_error().err == fi.EACCES
    assert (readable == 3).all()
    assert back == b"\x03" * 4


@pytest.mark.general("addresses as strings")
def test_rma_to_an_address_without_endpoint_is_refused(duo: Duo) -> None:
    initiator, _, _ = duo
    nobody = initiator.av.insert("weft://0/1/4000000000")
    initiator.ep.write(b"x", dest_addr=nobody, addr=0, key=KEY, context="nobody")
    failed = initiator.wait_error()
    assert (failed.err, failed.op_context) == (fi.ECONNREFUSED, "nobody")


@pytest.mark.parametrize("peer", [17, fi.ADDR_UNSPEC])
def test_rma_to_a_fi_addr_not_in_the_vector_is_invalid(duo: Duo, peer: int) -> None:
    initiator, _, _ = duo
    with pytest.raises(fi.InvalidArgument):
        initiator.ep.write(b"x", dest_addr=peer, addr=0, key=KEY)


def test_rma_before_enable_is_badstate() -> None:
    with opened(enable=False) as node, pytest.raises(fi.BadState):
        node.ep.write(b"x", dest_addr=0, addr=0, key=0)


def test_rma_after_close_is_badstate(duo: Duo) -> None:
    initiator, _, peer = duo
    initiator.ep.close()
    with pytest.raises(fi.BadState):
        initiator.ep.write(b"x", dest_addr=peer, addr=0, key=KEY)


@pytest.mark.clause("rma.err.eagain")
def test_rma_full_completion_queue_is_eagain_until_read() -> None:
    """fi_domain(3) FI_RM_ENABLED: no room for the completion is EAGAIN; once read, the call can be retried."""
    with pair(size=8) as (initiator, target, peer):
        memory = region(target)
        posted = 0

        def post() -> None:
            nonlocal posted
            while posted < 100_000:
                initiator.ep.write(bytes([posted % 250 + 1]), dest_addr=peer, addr=posted % 200, key=KEY)
                posted += 1

        with pytest.raises(fi.Again) as caught:
            post()
        assert "read" in str(caught.value)
        assert posted >= 8
        initiator.wait(posted)
        initiator.ep.write(b"\xff", dest_addr=peer, addr=255, key=KEY)
        initiator.wait()
        assert memory[255] == 255


def test_rma_capability_that_was_not_opened_is_refused() -> None:
    """An endpoint opened with FI_WRITE alone cannot read; one without FI_REMOTE_WRITE cannot be written."""
    with pair(caps=fi.RMA | fi.WRITE | fi.REMOTE_WRITE) as (initiator, target, peer):
        region(target)
        with pytest.raises(fi.NotSupported):
            initiator.ep.read(bytearray(1), src_addr=peer, addr=0, key=KEY)
        initiator.ep.write(b"x", dest_addr=peer, addr=0, key=KEY)
        initiator.wait()
    with opened(caps=fi.RMA | fi.READ | fi.REMOTE_READ) as target, opened() as initiator:
        memory = region(target)
        initiator.ep.write(b"x", dest_addr=initiator.av.insert(target.name), addr=0, key=KEY)
        assert initiator.wait_error().err == fi.EACCES
        assert not memory.any()


@pytest.mark.clause("rma.arg.dest-addr")
def test_rma_dest_addr_selects_the_peer() -> None:
    with opened() as one, opened() as two, opened() as initiator:
        memories = [region(one), region(two)]
        peers = initiator.av.insert([one.name, two.name])
        for value, peer in zip((b"\x01", b"\x02"), peers, strict=True):
            initiator.ep.write(value, dest_addr=peer, addr=0, key=KEY)
        initiator.wait(2)
        assert [m[0] for m in memories] == [1, 2]


@pytest.mark.clause("mr.local.unset-valid-desc", "mr.local.unset-null-desc", "mr.local.unset-no-register")
@pytest.mark.parametrize("desc", ["valid", "none"])
def test_rma_descriptor_is_optional(duo: Duo, desc: str) -> None:
    """fi_mr(3) FI_MR_LOCAL unset: local buffers need no registration; a valid desc or NULL works."""
    initiator, target, peer = duo
    memory = region(target)
    data = pattern(8)
    initiator.ep.write(data, initiator.reg(data, fi.WRITE).desc if desc == "valid" else None, peer, 0, KEY)
    initiator.wait()
    assert memory[:8].tolist() == data.tolist()


@pytest.mark.clause("mr.local.desc-valid-or-null")
def test_rma_descriptor_that_is_none_is_refused(duo: Duo) -> None:
    """fi_mr(3), since 1.22: desc is valid or NULL."""
    initiator, target, peer = duo
    memory = region(target)
    with pytest.raises((fi.InvalidArgument, TypeError)):
        initiator.ep.write(b"x", "no descriptor", peer, 0, KEY)
    assert not memory.any()
