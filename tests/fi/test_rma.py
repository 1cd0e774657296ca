"""fi_rma(3): the eleven calls over one endpoint pair, and lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.fi.rma_support import KEY, WRITES, Duo, flush, pattern, region, write_calls
from tests.fi.support import pair

from weft import fi

# ---- writes ----------------------------------------------------------------------------------------------------------


@pytest.mark.general("several buffers a call")
@pytest.mark.clause("rma.write.family", "rma.ret.success", "rma.general.byte-level", "rma.addr.scalable")
@write_calls
def test_rma_write_calls_leave_equal_bytes(duo: Duo, name: str, call: Any, completes: bool) -> None:
    """fi_rma(3): the write calls differ in parameters, not in effect; addr is the offset into the region."""
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
    """One bad descriptor fails the call's completion and itself; the other descriptors are done."""
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
    """Bytes written in three pieces are read in two."""
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
