"""When a completion queue counts as saturated. Source: fi_cxi(7) FI_CXI_CQ_FILL_PERCENT, "Completion Queue Size"."""

from __future__ import annotations

import pytest
from tests.cxi.support import BOTH, opened, register
from tests.fi.msg_support import TAG, data_of, kinds, recv, send
from tests.fi.support import Node

from weft import fi

KEY = 200


def unread(node: Node, cq: fi.CompletionQueue | None = None) -> int:
    """How many completions can be left unread until a call ends with EAGAIN."""
    if not node.domain.regions():
        register(node, bytearray(8), KEY)
    ep, queue = node.ep, node.cq
    if cq is not None:
        queue, ep = cq, node.keep(node.domain.endpoint(node.info))
        ep.bind(cq, BOTH)
        ep.bind(node.av)
        ep.enable()
    peer = node.av.insert(node.ep.getname())
    done = 0
    while post(ep, peer):
        done += 1
    assert len(queue.read(done)) == done
    assert post(ep, peer)  # reading the queue ends it
    assert len(queue.sread(1, timeout=30)) == 1
    return done


def post(ep: fi.Endpoint, peer: int) -> bool:
    """Whether a write is taken."""
    try:
        ep.write(b"x", dest_addr=peer, addr=0, key=KEY)
    except fi.Again:
        return False
    return True


def sizes(tx: int, rx: int) -> object:
    def edit(info: fi.Info) -> None:
        info.tx_attr.size, info.rx_attr.size = tx, rx

    return edit


@pytest.mark.clause("cxi.env.cq-fill-percent", "cxi.env.cq-saturated-eagain", "cxi.guide.fc-cq-fill-percent")
@pytest.mark.parametrize(("percent", "entries"), [(None, 1024), ("25", 512), ("100", 2048), ("0", 1024), ("x", 1024)])
def test_saturated_queue_takes_no_operations(
    percent: str | None, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if percent is not None:
        monkeypatch.setenv("FI_CXI_CQ_FILL_PERCENT", percent)
    with opened() as node:
        assert unread(node) == entries


@pytest.mark.clause(
    "cxi.guide.tx-size",
    "cxi.guide.tx-eagain",
    "cxi.guide.tx-eagain-read",
    "cxi.guide.rx-size",
    "cxi.guide.rx-eagain",
    "cxi.guide.rx-eagain-read",
    "cxi.guide.cq-eagain",
    "cxi.guide.cq-eagain-read",
)
@pytest.mark.parametrize(("tx", "rx", "entries"), [(64, 64, 64), (192, 64, 128), (64, 192, 128), (300, 300, 300)])
def test_event_queue_is_as_large_as_both_queues_of_the_endpoint(
    tx: int, rx: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FI_CXI_DEFAULT_CQ_SIZE", "16")
    with opened(edit=sizes(tx, rx)) as node:
        assert unread(node) == entries


@pytest.mark.clause("cxi.env.default-cq-size", "cxi.guide.size-attributes")
@pytest.mark.parametrize(
    ("variable", "text", "entries"),
    [
        ("FI_CXI_DEFAULT_CQ_SIZE", "6000", 3000),
        ("FI_CXI_DEFAULT_CQ_SIZE", "0", 1024),
        ("FI_CXI_DEFAULT_TX_SIZE", "2000", 1512),
        ("FI_CXI_DEFAULT_RX_SIZE", "2000", 1512),
    ],
)
def test_event_queue_default_size_comes_from_the_environment(
    variable: str, text: str, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    with opened() as node:
        assert unread(node) == entries


@pytest.mark.clause("cxi.guide.cq-hw-static")
def test_event_queue_stays_as_large_as_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_EQ_ACK_BATCH_SIZE", "1")
    with opened() as node:
        for _ in range(3):
            assert unread(node) == 1024
            monkeypatch.setenv("FI_CXI_DEFAULT_CQ_SIZE", "100000")
            monkeypatch.setenv("FI_CXI_CQ_FILL_PERCENT", "100")


@pytest.mark.clause("cxi.guide.fc-eq-default-size", "cxi.guide.fc-cq-size-override", "cxi.guide.cq-size")
def test_event_queue_size_is_the_endpoint_s_or_a_larger_cq_s() -> None:
    with opened(edit=sizes(1024, 2048)) as node:
        assert unread(node) == 1536
        with node.domain.cq_open(size=8) as small:
            assert unread(node, small) == 1536
            node.extra.pop().close()
        with node.domain.cq_open(size=6000) as large:
            assert unread(node, large) == 3000
            node.extra.pop().close()


@pytest.mark.clause("cxi.guide.cq-sw-grows")
@kinds
@pytest.mark.parametrize("tx", [40, 300, 600])
def test_messages_under_way_take_no_room_of_the_queue(tx: int, tagged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rendezvous messages wait as the transmit queue holds, and as there are IDs (256 without tags), not half
    of both queues' entries: an event takes its room when it is there."""
    monkeypatch.setenv("FI_CXI_DEFAULT_CQ_SIZE", "16")
    caps, ids = int(fi.MSG | fi.TAGGED), tx if tagged else 256
    with opened(caps) as receiver, opened(caps, edit=sizes(tx, 16)) as sender:
        peer, payload = sender.av.insert(receiver.name), data_of(5000)
        count = min(tx, ids)
        for number in range(count):
            send(sender, tagged, payload, peer, number)
        with pytest.raises(fi.Again):
            send(sender, tagged, payload, peer)
        for _ in range(count):
            recv(receiver, tagged, bytearray(5000))
        receiver.wait(count)
        while sender.ep.statistics().tx_pending:
            assert not receiver.cq.read()
            sender.cq.trywait()
        assert sender.cq.pending() == count
        if count > (tx + 16) // 2:  # more entries came than may be unread
            with pytest.raises(fi.Again, match="completion queue full"):
                sender.ep.tsend(b"1", None, peer, TAG)
        entries = sender.cq.read(count)  # in any order: the bytes of each are pulled, and comp_order is FI_ORDER_NONE
        assert sorted(entry.op_context for entry in entries) == list(range(count))
        sender.ep.tsend(b"1", None, peer, TAG)
