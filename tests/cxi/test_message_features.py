"""Features of messages that fi_cxi(7) names: order, sources, several messages in a buffer, remote data, truncation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import hints, opened
from tests.fi.msg_support import TAG, check_truncation, data_of, kinds, of_kind, recv, recvmsg, send, sendmsg
from tests.fi.support import WATCHDOG_S, Node

from weft import fi

CAPS = int(fi.MSG | fi.TAGGED)
EAGER_MAX = 2048 + 2049
# Of each protocol: credited, eager, rendezvous.
LENGTHS = [8, 1000, EAGER_MAX, EAGER_MAX + 1, 100_000]


@contextlib.contextmanager
def talkers(caps: int = 0, **more: Any) -> Iterator[tuple[Node, Node, int]]:
    """(sender, receiver, fi_addr of the receiver)."""
    with opened(CAPS | int(caps), **more) as receiver, opened(CAPS | int(caps), **more) as sender:
        yield sender, receiver, sender.av.insert(receiver.name)


# ---- order -----------------------------------------------------------------------------------------------------------


def mixed(count: int, seed: int) -> list[int]:
    """Lengths of messages of all protocols in random order; short ones are the most."""
    return [int(n) for n in np.random.default_rng(seed).choice([8, 8, 8, 100, *LENGTHS], count)]


def numbered(length: int, number: int) -> np.ndarray[Any, Any]:
    payload = data_of(length, seed=number)
    payload[:4].view(np.uint32)[0] = number
    return payload


@pytest.mark.clause("cxi.order.sends")
@kinds
@pytest.mark.parametrize("posted", ["before", "after", "half"])
@pytest.mark.parametrize("seed", range(3))
def test_messages_match_in_order_without_an_order_flag(seed: int, posted: str, tagged: bool) -> None:
    """fi_cxi(7) "Message Ordering": the hints ask for no order, and the n-th receive takes the n-th message."""

    def deep(info: fi.Info) -> None:
        info.tx_attr.size = info.rx_attr.size = 1024

    count = 300
    lengths = mixed(count, seed)
    with talkers(edit=deep) as (sender, receiver, peer):
        assert sender.info.tx_attr.msg_order == 0
        rooms = [np.zeros(100_000, np.uint8) for _ in range(count)]
        early = {"before": count, "after": 0, "half": count // 2}[posted]
        for i in range(early):
            recv(receiver, tagged, rooms[i], i)
        sent: list[Any] = []
        payloads = [numbered(length, i) for i, length in enumerate(lengths)]
        for i, payload in enumerate(payloads):
            while True:
                with contextlib.suppress(fi.Again):
                    send(sender, tagged, payload, peer, i)
                    break
                sent += sender.cq.read()
        for i in range(early, count):
            recv(receiver, tagged, rooms[i], i)
        ended = {entry.op_context: entry.len for entry in receiver.wait(count)}
        assert [ended[i] for i in range(count)] == lengths
        for room, payload in zip(rooms, payloads, strict=True):
            assert np.array_equal(room[: len(payload)], payload)
        sender.wait(count - len(sent))


@pytest.mark.clause("cxi.pcie.msg-order")
@kinds
def test_completions_tell_the_order_and_that_bytes_are_there(tagged: bool) -> None:
    """fi_cxi(7) "PCIe Ordering": at its event a receive has its bytes; eager messages have their events in order.

    A rendezvous among them is later than messages behind it: the events tell that, too.
    """
    with talkers() as (sender, receiver, peer):
        for seed in range(20):
            lengths = mixed(30, 1000 + seed)
            rooms = [np.zeros(100_000, np.uint8) for _ in lengths]
            payloads = [numbered(length, i) for i, length in enumerate(lengths)]
            for i, room in enumerate(rooms):
                recv(receiver, tagged, room, i)
            for i, payload in enumerate(payloads):
                send(sender, tagged, payload, peer, i)
            order = []
            while len(order) < len(lengths):
                (entry,) = receiver.cq.sread(1, timeout=WATCHDOG_S)
                i = entry.op_context
                assert np.array_equal(rooms[i][: entry.len], payloads[i])
                order.append(i)
            eager = [i for i in order if lengths[i] <= EAGER_MAX]
            assert eager == sorted(eager)
            sender.wait(len(lengths))


# ---- several messages in a buffer ------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.extra.multi-recv")
@pytest.mark.parametrize("first", ["receive", "message"])
def test_buffer_takes_messages_of_all_protocols_one_behind_the_other(first: str) -> None:
    """fi_cxi(7) "Additional Features" FI_MULTI_RECV."""
    with talkers(fi.MULTI_RECV) as (sender, receiver, peer):
        assert receiver.info.caps & fi.MULTI_RECV
        room = np.zeros(sum(LENGTHS) + 63, np.uint8)
        payloads = [data_of(length, seed=length) for length in LENGTHS]

        def post() -> None:
            recvmsg(receiver, False, room, int(fi.MULTI_RECV | fi.COMPLETION), "m")

        def send_all() -> None:
            for payload in payloads:
                send(sender, False, payload, peer)

        steps = [post, send_all]
        for step in steps if first == "receive" else reversed(steps):
            step()
        entries = receiver.wait(len(LENGTHS))
        assert [bool(entry.flags & fi.MULTI_RECV) for entry in entries] == [False] * (len(LENGTHS) - 1) + [True]
        assert {entry.op_context for entry in entries} == {"m"}
        assert {(entry.buf - room.ctypes.data, entry.len) for entry in entries} == {
            (sum(LENGTHS[:i]), length) for i, length in enumerate(LENGTHS)
        }
        assert bytes(room[: sum(LENGTHS)]) == b"".join(map(bytes, payloads))
        sender.wait(len(LENGTHS))


# ---- sources ---------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.extra.source")
@kinds
@pytest.mark.parametrize("length", LENGTHS)
def test_completion_of_a_receive_tells_the_fi_addr_of_the_sender(length: int, tagged: bool) -> None:
    """fi_cxi(7) "Additional Features" FI_SOURCE: of each of several senders, the index in the receiver's vector."""
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(opened(CAPS | int(fi.SOURCE)))
        senders = [stack.enter_context(opened(CAPS)) for _ in range(3)]
        receiver.av.insert(receiver.name)  # an index that is no sender's
        known = [receiver.av.insert(sender.name) for sender in reversed(senders)][::-1]
        assert sorted(known) == [1, 2, 3]
        for i in (0, 1, 2, 1, 0):
            recv(receiver, tagged, np.zeros(length, np.uint8), "r")
            send(senders[i], tagged, data_of(length), senders[i].av.insert(receiver.name))
            while not (found := receiver.cq.readfrom(1)):
                senders[i].cq.read()
            ((entry, source),) = found
            assert (entry.op_context, source) == ("r", known[i])


@kinds
def test_completion_tells_no_source_without_the_capability_or_of_a_stranger(tagged: bool) -> None:
    for caps in (0, int(fi.SOURCE)):
        with talkers(caps) as (sender, receiver, peer):
            if not caps:
                receiver.av.insert(sender.name)
            recv(receiver, tagged, bytearray(8), "r")
            send(sender, tagged, b"12345678", peer)
            while not (found := receiver.cq.readfrom(1)):
                pass
            assert found[0][1] == fi.ADDR_NOTAVAIL


# ---- remote data -----------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.op.remote-cq-data")
@kinds
@pytest.mark.parametrize("length", [0, *LENGTHS])
@pytest.mark.parametrize("how", ["call", "message"])
def test_eight_bytes_of_data_go_with_a_message(how: str, length: int, tagged: bool) -> None:
    """fi_cxi(7) "Operation flags" FI_REMOTE_CQ_DATA."""
    with talkers() as (sender, receiver, peer):
        recv(receiver, tagged, np.zeros(length, np.uint8), "r")
        data, payload = 0x0123456789ABCDEF, data_of(length)
        if how == "message":
            sendmsg(sender, tagged, payload, peer, int(fi.REMOTE_CQ_DATA | fi.COMPLETION), "s", data=data)
        elif tagged:
            sender.ep.tsenddata(payload, None, data, peer, TAG, "s")
        else:
            sender.ep.senddata(payload, None, data, peer, "s")
        (entry,) = receiver.wait()
        assert (entry.data, entry.len) == (data, length)
        assert entry.flags == of_kind(tagged) | fi.RECV | fi.REMOTE_CQ_DATA
        sender.wait()


@pytest.mark.clause("cxi.op.remote-cq-data")
def test_remote_data_is_among_the_operation_flags_that_are_offered_and_accepted() -> None:
    (offered, *_) = fi.getinfo(hints=fi.Info(fabric_attr=fi.FabricAttr(prov_name="cxi")))
    assert offered.domain_attr.cq_data_size == 8
    asked = hints(CAPS)
    asked.tx_attr.op_flags = fi.REMOTE_CQ_DATA
    (found,) = fi.getinfo(hints=asked)
    assert found.tx_attr.op_flags & fi.REMOTE_CQ_DATA


# ---- truncation ------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.guide.err-etrunc")
@kinds
@pytest.mark.parametrize("length", [100, *LENGTHS[1:]])
@pytest.mark.parametrize("first", ["receive", "message"])
def test_receive_of_a_longer_message_ends_with_etrunc(first: str, length: int, tagged: bool) -> None:
    """fi_cxi(7) "CQ Error Event Errno" FI_ETRUNC; the send succeeds."""
    with talkers() as duo:
        check_truncation(duo, tagged, first, length)
