"""Local descriptors: when a transfer needs one, and which are valid (fi_mr(3) FI_MR_LOCAL, access)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi.support import KEY, RW, Node, opened, pair

from weft import fi

U64: dict[str, Any] = {"datatype": fi.UINT64}


class Local:
    """One endpoint that reaches its own region, under FI_MR_LOCAL, and buffers with their regions.

    source, result   8 words each, registered for WRITE and for READ.
    other            a region of other memory, with both rights.
    """

    def __init__(self, node: Node) -> None:
        self.node, self.ep, self.me = node, node.ep, node.me
        self.memory = np.zeros(8, np.uint64)
        node.reg(self.memory, RW, requested_key=KEY)
        self.source, self.result = np.arange(1, 9, dtype=np.uint64), np.zeros(8, np.uint64)
        self.readable = node.reg(self.source, fi.WRITE)
        self.writable = node.reg(self.result, fi.READ)
        self.unrelated = np.zeros(8, np.uint64)
        self.other = node.reg(self.unrelated, fi.READ | fi.WRITE)
        self.to: dict[str, Any] = {"dest_addr": self.me, "addr": 0, "key": KEY}

    def message(self, buffers: list[Any], desc: Any) -> fi.MsgRma:
        return fi.MsgRma(buffers, [fi.RmaIov(0, sum(b.nbytes for b in buffers), KEY)], self.me, desc=desc)

    def atomic_message(self, buffers: list[Any], desc: Any, op: int = fi.SUM) -> fi.MsgAtomic:
        count = sum(len(b) for b in buffers)
        return fi.MsgAtomic(buffers, desc=desc, addr=self.me, rma_iov=[fi.RmaIoc(0, count, KEY)], op=op, **U64)


@pytest.fixture
def local() -> Iterator[Local]:
    with opened(mr_mode=int(fi.MR_LOCAL)) as node:
        yield Local(node)


Call = Callable[[Local, Any], None]
# Each gives the desc to one buffer that the NIC reads ...
SOURCES: dict[str, Call] = {
    "write": lambda t, d: t.ep.write(t.source, d, t.me, 0, KEY),
    "writev": lambda t, d: t.ep.writev([t.source], [d], t.me, 0, KEY),
    "writemsg": lambda t, d: t.ep.writemsg(t.message([t.source], [d])),
    "writedata": lambda t, d: t.ep.writedata(t.source, d, 7, t.me, 0, KEY),
    "atomic": lambda t, d: t.ep.atomic(t.source, d, op=fi.SUM, **t.to, **U64),
    "atomicv": lambda t, d: t.ep.atomicv([t.source], [d], op=fi.SUM, **t.to, **U64),
    "atomicmsg": lambda t, d: t.ep.atomicmsg(t.atomic_message([t.source], [d])),
    "fetch_atomic": lambda t, d: t.ep.fetch_atomic(t.source, d, t.result, t.writable.desc, op=fi.SUM, **t.to, **U64),
    "compare_atomic": lambda t, d: t.ep.compare_atomic(
        t.source, t.readable.desc, t.source, d, t.result, t.writable.desc, op=fi.CSWAP, **t.to, **U64
    ),
}
# ... or writes.
RESULTS: dict[str, Call] = {
    "read": lambda t, d: t.ep.read(t.result, d, t.me, 0, KEY),
    "readv": lambda t, d: t.ep.readv([t.result], [d], t.me, 0, KEY),
    "readmsg": lambda t, d: t.ep.readmsg(t.message([t.result], [d])),
    "fetch_atomic": lambda t, d: t.ep.fetch_atomic(t.source, t.readable.desc, t.result, d, op=fi.SUM, **t.to, **U64),
    "fetch_atomicv": lambda t, d: t.ep.fetch_atomicv(
        [t.source], [t.readable.desc], [t.result], [d], op=fi.SUM, **t.to, **U64
    ),
    "fetch_atomicmsg": lambda t, d: t.ep.fetch_atomicmsg(
        t.atomic_message([t.source], [t.readable.desc]), [t.result], [d]
    ),
    "compare_atomic": lambda t, d: t.ep.compare_atomic(
        t.source, t.readable.desc, t.source, t.readable.desc, t.result, d, op=fi.CSWAP, **t.to, **U64
    ),
}
CALLS = [("source", name) for name in SOURCES] + [("result", name) for name in RESULTS]
every_call = pytest.mark.parametrize(("use", "name"), CALLS)


def call_of(use: str, name: str) -> Call:
    return SOURCES[name] if use == "source" else RESULTS[name]


@pytest.mark.clause("mr.local.set-register", "mr.local.set-desc", "rma.arg.desc", "rma.msg.desc")
@every_call
def test_desc_is_needed_by_every_transfer_under_mr_local(local: Local, use: str, name: str) -> None:
    """fi_mr(3) FI_MR_LOCAL: every buffer is registered, and a valid desc given; without one nothing is done."""
    call = call_of(use, name)
    with pytest.raises(fi.InvalidArgument, match="MR_LOCAL and no desc"):
        call(local, None)
    assert not local.memory.any()
    assert not local.result.any()
    call(local, (local.readable if use == "source" else local.writable).desc)
    local.node.wait()


@pytest.mark.clause("rma.arg.desc", "rma.msg.desc")
@every_call
def test_desc_of_other_memory_is_refused(local: Local, use: str, name: str) -> None:
    with pytest.raises(fi.InvalidArgument, match="desc does not cover the buffer: 64 B"):
        call_of(use, name)(local, local.other.desc)
    assert not local.memory.any()
    assert not local.result.any()


@pytest.mark.clause("mr.access.write-rma", "mr.access.write-atomic")
@pytest.mark.parametrize("name", SOURCES)
def test_desc_of_a_source_needs_write(local: Local, name: str) -> None:
    """fi_mr(3) access: FI_WRITE is for the source of a write or an atomic; FI_READ is not enough."""
    call = SOURCES[name]
    with (
        local.node.domain.mr_reg(local.source, fi.READ) as readable,
        pytest.raises(fi.InvalidArgument, match=r"FI_WRITE for the source"),
    ):
        call(local, readable.desc)
    assert not local.memory.any()
    with local.node.domain.mr_reg(local.source, fi.WRITE) as writable:
        call(local, writable.desc)
        local.node.wait()


@pytest.mark.clause("mr.access.read-rma", "mr.access.read-atomic")
@pytest.mark.parametrize("name", RESULTS)
def test_desc_of_a_result_needs_read(local: Local, name: str) -> None:
    """fi_mr(3) access: FI_READ is for the result of a read or an atomic; FI_WRITE is not enough."""
    call = RESULTS[name]
    with (
        local.node.domain.mr_reg(local.result, fi.WRITE) as writable,
        pytest.raises(fi.InvalidArgument, match=r"FI_READ for the result"),
    ):
        call(local, writable.desc)
    assert not local.result.any()
    with local.node.domain.mr_reg(local.result, fi.READ) as readable:
        call(local, readable.desc)
        local.node.wait()


@pytest.mark.clause("mr.access.relaxed")
def test_desc_with_send_or_recv_serves_rma_in_its_direction(local: Local) -> None:
    """fi_mr(3) access: enforcement may be relaxed. A region that the NIC may read, by SEND, is a write's source."""
    domain = local.node.domain
    with domain.mr_reg(local.source, fi.SEND) as sent, domain.mr_reg(local.result, fi.RECV) as received:
        SOURCES["write"](local, sent.desc)
        RESULTS["read"](local, received.desc)
        local.node.wait(2)
        assert local.result.tolist() == local.source.tolist()
    with domain.mr_reg(local.source, fi.RECV) as wrong, pytest.raises(fi.InvalidArgument, match="FI_WRITE"):
        SOURCES["write"](local, wrong.desc)


@pytest.mark.clause("mr.access.collective-paired")
def test_desc_with_collective_needs_its_pair_to_be_read(local: Local) -> None:
    """fi_mr(3) access: FI_COLLECTIVE is paired with FI_SEND or FI_RECV; alone it lets the NIC do nothing."""
    domain = local.node.domain
    with domain.mr_reg(local.source, fi.COLLECTIVE) as alone, pytest.raises(fi.InvalidArgument, match="FI_WRITE"):
        SOURCES["write"](local, alone.desc)
    with domain.mr_reg(local.source, fi.COLLECTIVE | fi.SEND) as paired:
        SOURCES["write"](local, paired.desc)
        local.node.wait()


@pytest.mark.general("several buffers a call")
@pytest.mark.clause("rma.msg.desc")
def test_desc_list_is_checked_entry_by_entry(local: Local) -> None:
    first, second = local.source[:4], local.unrelated[:4]
    ok, other = local.readable.desc, local.other.desc
    for call in (
        lambda descs: local.ep.writev([first, second], descs, local.me, 0, KEY),
        lambda descs: local.ep.writemsg(local.message([first, second], descs)),
        lambda descs: local.ep.atomicv([first, second], descs, op=fi.SUM, **local.to, **U64),
    ):
        with pytest.raises(fi.InvalidArgument, match="does not cover"):
            call([other, ok])
        with pytest.raises(fi.InvalidArgument, match="desc has 1 entries for 2 buffers"):
            call([ok])
        with pytest.raises(fi.InvalidArgument, match="no desc was given"):
            call([ok, None])
        call([ok, other])
        local.node.wait()


@pytest.mark.general("several buffers a call")
@pytest.mark.clause("rma.readv.signature")
def test_desc_of_each_buffer_of_a_readv_is_at_its_place(local: Local) -> None:
    """fi_readv returns 0, in Python None, and takes the descs in the order of the buffers."""
    local.memory[:] = range(1, 9)
    parts = [local.result[:3], local.unrelated[:5]]
    with pytest.raises(fi.InvalidArgument, match="does not cover"):
        local.ep.readv(parts, [local.other.desc, local.writable.desc], local.me, 0, KEY)
    assert local.ep.readv(parts, [local.writable.desc, local.other.desc], local.me, 0, KEY, "read") is None
    assert local.node.wait()[0].op_context == "read"
    assert [*local.result[:3], *local.unrelated[:5]] == list(range(1, 9))


@pytest.mark.general("several buffers a call")
def test_desc_of_one_region_covers_all_buffers_of_a_list(local: Local) -> None:
    local.ep.writev([local.source[4:], local.source[:4]], local.readable.desc, local.me, 0, KEY)
    local.node.wait()
    assert local.memory.tolist() == [5, 6, 7, 8, 1, 2, 3, 4]


@pytest.mark.general("several buffers a call")
def test_desc_of_several_buffers_covers_across_their_border(local: Local) -> None:
    whole = np.arange(1, 9, dtype=np.uint64)
    with local.node.domain.mr_regv([whole[4:], whole[:4]], fi.WRITE) as mr:
        local.ep.write(whole[2:6], mr.desc, local.me, 0, KEY)
        local.node.wait()
        assert local.memory[:4].tolist() == [3, 4, 5, 6]
        with pytest.raises(fi.InvalidArgument, match="and further buffers"):
            local.ep.write((whole.ctypes.data, 65), mr.desc, local.me, 0, KEY)


@pytest.mark.general("several buffers a call")
def test_desc_is_not_needed_for_no_bytes_and_no_operand(local: Local) -> None:
    local.ep.write(b"", None, local.me, 0, KEY)
    local.ep.read(bytearray(), None, local.me, 0, KEY)
    local.ep.writev([local.source[:0], local.source], [None, local.readable.desc], local.me, 0, KEY)
    local.node.wait(3)
    where = local.to
    local.ep.fetch_atomic(None, None, local.result, local.writable.desc, op=fi.ATOMIC_READ, **where, **U64)
    local.ep.fetch_atomic(
        np.zeros(8, np.uint64), None, local.result, local.writable.desc, op=fi.ATOMIC_READ, **where, **U64
    )
    local.ep.fetch_atomicv(None, None, [local.result], [local.writable.desc], op=fi.ATOMIC_READ, **where, **U64)
    local.node.wait(3)
    assert local.result.tolist() == local.source.tolist()


def test_desc_of_a_slice_is_its_region_s(local: Local) -> None:
    """A slice, (region, offset) and a region are local buffers with the rights of the region."""
    local.ep.write(local.readable[:8], None, local.me, 0, KEY)
    local.ep.write((local.readable, 8), None, local.me, 8, KEY, len=8)
    local.ep.write(local.readable, None, local.me, 0, KEY)
    local.node.wait(3)
    for buffer in (local.writable[:8], (local.writable, 8), local.writable):
        with pytest.raises(fi.InvalidArgument, match="FI_WRITE"):
            local.ep.write(buffer, None, local.me, 0, KEY)
    with pytest.raises(fi.InvalidArgument, match="FI_READ"):
        local.ep.read_batch(local.readable[:8], np.zeros(1, fi.RMA_DESC))
    with opened(mr_mode=int(fi.MR_LOCAL)) as stranger:
        foreign = stranger.reg(np.zeros(8, np.uint8), fi.WRITE)
        with pytest.raises(fi.InvalidArgument, match="another domain"):
            local.ep.write(foreign[:8], None, local.me, 0, KEY)


@pytest.mark.clause("mr.local.desc-valid-or-null", "rma.arg.desc")
def test_desc_that_is_given_is_valid_without_mr_local() -> None:
    """fi_mr(3), since 1.22: desc is valid or NULL, also where none is required."""
    with pair() as (initiator, target, peer):
        memory = np.zeros(8, np.uint8)
        target.reg(memory, requested_key=KEY)
        source, other = np.ones(8, np.uint8), np.ones(8, np.uint8)
        wrong, right = initiator.reg(other, fi.WRITE), initiator.reg(source, fi.WRITE)
        with pytest.raises(fi.InvalidArgument, match="does not cover"):
            initiator.ep.write(source, wrong.desc, peer, 0, KEY)
        assert not memory.any()
        initiator.ep.write(source, right.desc, peer, 0, KEY)
        initiator.wait()
        assert memory.all()


def test_desc_is_needed_where_fi_local_mr_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """fi_mr(3): before interface 1.5 the mode bit FI_LOCAL_MR says what FI_MR_LOCAL says since."""
    monkeypatch.setenv("WEFT_MR_MODE", "local")

    def old(info: fi.Info) -> None:
        assert info.mode & fi.LOCAL_MR

    asked = fi.Info(caps=fi.RMA, mode=fi.LOCAL_MR, domain_attr=fi.DomainAttr(mr_mode=fi.MR_SCALABLE))
    info = fi.getinfo(fi.VERSION(1, 4), hints=asked)[0]
    old(info)
    with (
        fi.Fabric(info.fabric_attr) as fabric,
        fabric.domain(info) as domain,
        domain.cq_open() as cq,
        domain.av_open() as av,
        domain.endpoint(info) as ep,
    ):
        ep.bind(cq, fi.TRANSMIT | fi.RECV)
        ep.bind(av)
        ep.enable()
        me = av.insert(ep.getname())
        source = np.ones(8, np.uint8)
        with pytest.raises(fi.InvalidArgument, match="MR_LOCAL and no desc"):
            ep.write(source, None, me, 0, KEY)
