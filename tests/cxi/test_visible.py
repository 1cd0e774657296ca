"""When data is in the target's memory: completion levels, PCIe ordering, High Rate Puts, and atomics that may be lost.

Under WEFT_CXI_REORDER a write may be complete for its initiator before its bytes are in memory. Source: fi_cxi(7)
"Operation flags", "PCIe Ordering", "High Rate Put", "Unreliable AMOs".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import opened, register
from tests.fi.support import Node
from tests.patience import Patience

from weft import cxi, fi

SEEDS, ROUNDS = range(8), 10
STANDARD, OPTIMIZED = 200, 7
PACKET = 2048


def seeds(monkeypatch: pytest.MonkeyPatch, order: int = 0) -> Iterator[tuple[Node, Any]]:
    """An endpoint for each seed, and 32 KiB of its own under both keys."""

    def ordered(info: fi.Info) -> None:
        info.tx_attr.msg_order = fi.Order(order)

    for number in SEEDS:
        monkeypatch.setenv("WEFT_CXI_REORDER", str(number))
        with opened(edit=ordered) as node:
            memory = np.zeros(1 << 15, np.uint8)
            register(node, memory, STANDARD)
            register(node, memory, OPTIMIZED)
            yield node, memory


def write(node: Node, data: Any, flags: int = 0, key: int = STANDARD, addr: int = 0, peer: int | None = None) -> None:
    """Write, and wait for the completion."""
    to = node.me if peer is None else peer
    node.ep.writemsg(fi.MsgRma([data], [fi.RmaIov(addr, len(data), key)], to), int(flags) | int(fi.COMPLETION))
    node.wait(1)


def fence(node: Node, peer: int | None = None) -> None:
    write(node, b"!", int(cxi.WEAK_FENCE), addr=(1 << 15) - 1, peer=peer)


# ---- completion levels -----------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.op.delivery-complete", "cxi.op.transmit-complete-default")
@pytest.mark.parametrize(
    ("level", "always"),
    [(0, False), (int(fi.TRANSMIT_COMPLETE), False), (int(fi.DELIVERY_COMPLETE), True), (int(fi.MATCH_COMPLETE), True)],
)
def test_only_delivery_complete_means_the_target_sees_the_data(
    monkeypatch: pytest.MonkeyPatch, level: int, always: bool
) -> None:
    seen = set()
    for node, memory in seeds(monkeypatch):
        for n in range(1, ROUNDS):
            write(node, bytes([n]) * 8, level)
            seen.add(int(memory[0]) == n)
            fence(node)
    assert seen == ({True} if always else {True, False})


@pytest.mark.clause("cxi.op.transmit-complete-ack", "cxi.op.transmit-complete-received")
def test_transmit_complete_write_precedes_later_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    for node, memory in seeds(monkeypatch):
        for n in range(1, ROUNDS):
            data = bytearray(bytes([n]) * 4096)
            write(node, data)
            data[:] = bytes(4096)  # the NIC has all of it
            got = bytearray(4096)
            node.ep.read(got, None, node.me, 0, STANDARD)
            node.wait(1)
            assert got == bytes([n]) * 4096
        write(node, b"\xff" * 8)
        deadline = Patience(30)
        while memory[0] != 255:  # without another call
            assert not deadline.over
            time.sleep(0.001)


def test_without_a_seed_completed_writes_are_in_memory(node: Node) -> None:
    memory = np.zeros(1 << 15, np.uint8)
    register(node, memory, STANDARD)
    for n in range(1, 200):
        write(node, bytes([n]) * 4096)
        assert memory[0] == memory[4095] == n


# ---- PCIe ordering ---------------------------------------------------------------------------------------------------


def landings(monkeypatch: pytest.MonkeyPatch, order: int) -> set[tuple[bool, ...]]:
    """Which packets of completed writes of eight packets were in memory, of the writes that had not wholly landed."""
    found = set()
    for node, memory in seeds(monkeypatch, order):
        for _ in range(ROUNDS):
            memory[:] = 0
            write(node, b"\x01" * (8 * PACKET))
            packets = memory[: 8 * PACKET].reshape(8, PACKET)
            assert all(packet.min() == packet.max() for packet in packets)
            found.add(tuple(bool(packet[0]) for packet in packets))
            fence(node)
            assert memory[: 8 * PACKET].all()
    found.discard((True,) * 8)
    return found


def in_sequence(landed: tuple[bool, ...]) -> bool:
    return list(landed) == sorted(landed, reverse=True)


@pytest.mark.clause("cxi.pcie.strict", "cxi.pcie.unordered-no-ro")
def test_packets_of_unordered_writes_come_into_memory_in_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    found = landings(monkeypatch, 0)
    assert len(found) > 2
    assert all(in_sequence(landed) for landed in found)


@pytest.mark.clause("cxi.pcie.ro-reorder", "cxi.pcie.body-ro", "cxi.pcie.last-no-ro", "cxi.pcie.ro-when-possible")
@pytest.mark.parametrize("order", [fi.ORDER_WAW, fi.ORDER_RMA_WAW])
def test_ordered_write_packets_do_not_pass_the_last_one(monkeypatch: pytest.MonkeyPatch, order: int) -> None:
    found = landings(monkeypatch, int(order))
    assert not any(landed[-1] for landed in found), "with the last packet all are there"
    assert not all(in_sequence(landed) for landed in found)
    assert {landed.index(False) for landed in found} > {0}, "any of the others may be late"


@pytest.mark.clause("cxi.pcie.msg-ro")
@pytest.mark.parametrize("threshold", [60_000, 2048], ids=["eager", "rendezvous"])
@pytest.mark.parametrize("expected", [True, False])
def test_packets_of_messages_come_into_memory_in_any_order(
    monkeypatch: pytest.MonkeyPatch, expected: bool, threshold: int
) -> None:
    """fi_cxi(7) "PCIe Ordering": any packet may be late, the last may be there first; the completion tells."""
    monkeypatch.setenv("FI_CXI_RDZV_THRESHOLD", str(threshold))
    found = set()
    payload, room = np.ones(8 * PACKET, np.uint8), np.zeros(8 * PACKET, np.uint8)
    for number in SEEDS:
        monkeypatch.setenv("WEFT_CXI_REORDER", str(number))
        with opened(int(fi.TAGGED)) as receiver, opened(int(fi.TAGGED)) as sender:
            peer = sender.av.insert(receiver.name)
            for _ in range(ROUNDS):
                room[:] = 0
                steps = [
                    lambda: receiver.ep.trecv(room, tag=1),
                    lambda: sender.ep.tsend(payload, None, peer, 1),  # noqa: B023
                ]
                for step in steps if expected else reversed(steps):
                    step()
                patience = Patience(0.005)
                while not room.any() and not patience.over:  # without a call of the receiver
                    sender.cq.read()
                found.add(tuple(bool(packet.all()) for packet in room.reshape(8, PACKET)))
                receiver.wait()
                assert room.all()
    found -= {(True,) * 8, (False,) * 8}
    assert not all(in_sequence(landed) for landed in found)
    assert {i for landed in found for i in range(8) if landed[i]} == set(range(8)), "any packet may be early"
    assert {i for landed in found for i in range(8) if not landed[i]} == set(range(8)), "any packet may be late"


def test_messages_of_all_kinds_arrive_whole_in_any_order_of_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_REORDER", "3")
    lengths = [0, 1, 8, 192, 2048, 2049, 4097, 4098, 100_000] * 4
    with opened(int(fi.MSG | fi.TAGGED | fi.MULTI_RECV)) as receiver, opened(int(fi.MSG | fi.TAGGED)) as sender:
        peer = sender.av.insert(receiver.name)
        rooms = [np.zeros(n, np.uint8) for n in lengths]
        for i, room in enumerate(rooms[::2]):
            receiver.ep.trecv(room, tag=2 * i)
        payloads = [np.full(n, i + 1, np.uint8) for i, n in enumerate(lengths)]
        for i, payload in enumerate(payloads):
            sender.ep.tsend(payload, None, peer, i)
        for i, room in enumerate(rooms[1::2]):
            receiver.ep.trecv(room, tag=2 * i + 1)
        receiver.wait(len(lengths)), sender.wait(len(lengths))
        assert all(np.array_equal(room, payload) for room, payload in zip(rooms, payloads, strict=True))
        buffer = np.zeros(sum(lengths), np.uint8)
        receiver.ep.recvmsg(fi.Msg([buffer]), int(fi.MULTI_RECV | fi.COMPLETION))
        for payload in payloads:
            sender.ep.send(payload, None, peer)
        receiver.wait(len(lengths)), sender.wait(len(lengths))
        assert bytes(buffer) == b"".join(map(bytes, payloads))
        receiver.ep.trecv(bytearray(100), tag=77)
        sender.ep.tsend(payloads[-1], None, peer, 77)
        assert receiver.wait_error().olen == 100_000 - 100


def test_endpoint_closes_while_packets_of_a_message_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_REORDER", "1")
    with opened(int(fi.TAGGED)) as sender:
        for length in (2000, 100_000):
            with opened(int(fi.TAGGED)) as receiver:
                peer = sender.av.insert(receiver.name)
                receiver.ep.trecv(bytearray(length), tag=1)
                sender.ep.tsend(bytes(length), None, peer, 1)
                patience = Patience(30.0)
                while not receiver.ep.message_statistics().matched:
                    sender.cq.read()
                    assert not patience.over


# ---- High Rate Put ---------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.hrp.completion-no-order", "cxi.hrp.gives-up-order", "cxi.hrp.egress-response")
def test_completed_high_rate_put_may_be_passed_by_a_later_put(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = {int(cxi.HRP): False, 0: False}
    for node, memory in seeds(monkeypatch):
        for flags in passed:
            for n in range(1, ROUNDS):
                write(node, bytes([n]) * 8, flags, OPTIMIZED)
                write(node, bytes([n]) * 8, int(fi.DELIVERY_COMPLETE), OPTIMIZED, 64)
                assert memory[64] == n
                passed[flags] = passed[flags] or int(memory[0]) != n
                fence(node)
    assert passed == {int(cxi.HRP): True, 0: False}


@pytest.mark.clause("cxi.hrp.fenced-put")
def test_fenced_put_after_a_high_rate_put_orders_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as other:
        there = np.zeros(1 << 15, np.uint8)
        register(other, there, STANDARD)
        for node, memory in seeds(monkeypatch):
            peer = node.av.insert(other.ep.getname())
            for n in range(1, ROUNDS):
                write(node, bytes([n]) * 8, int(cxi.HRP), OPTIMIZED)
                write(node, bytes([n]) * 8, int(cxi.WEAK_FENCE | fi.DELIVERY_COMPLETE), STANDARD, 0, peer)
                assert (there[0], memory[0]) == (n, n)


@pytest.mark.clause("cxi.hrp.completion-delivery")
def test_completed_high_rate_puts_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    for node, memory in seeds(monkeypatch):
        for n in range(64):
            write(node, bytes([n + 1]), int(cxi.HRP), OPTIMIZED, n)
        deadline = Patience(30)
        while not memory[:64].all():
            assert not deadline.over
            time.sleep(0.001)
        assert memory[:64].tolist() == list(range(1, 65))


# ---- unreliable atomics ----------------------------------------------------------------------------------------------


def adds(node: Node, flags: int, key: int, count: int) -> tuple[int, list[Any]]:
    """Add 1 that many times, one after the other. Returns how many succeeded, and the errors of the rest."""
    done, errors = 0, []
    for _ in range(count):
        one = np.ones(1, np.uint64)
        msg = fi.MsgAtomic([one], [fi.RmaIoc(0, 1, key)], node.me, fi.UINT64, fi.SUM, None, "add")
        node.ep.atomicmsg(msg, flags | int(fi.COMPLETION))
        try:
            done += len(node.cq.sread(timeout=10.0))
        except fi.Available:
            errors.append(node.cq.readerr())
    return done, errors


@pytest.mark.clause("cxi.amo.lost-fails", "cxi.amo.failure-reported", "cxi.amo.reliability-off")
def test_lost_unreliable_atomics_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = undone = 0
    for node, memory in seeds(monkeypatch):
        memory[:] = 0
        done, errors = adds(node, int(cxi.UNRELIABLE), OPTIMIZED, 40)
        assert done + len(errors) == 40
        assert {(e.err, e.prov_errno, e.op_context) for e in errors} <= {
            (fi.EHOSTUNREACH, cxi.C_RC_UNDELIVERABLE, "add")
        }
        fence(node)
        total = int(memory.view(np.uint64)[0])
        assert done <= total <= 40, "a lost answer leaves the atomic done, a lost request does not"
        lost += len(errors)
        undone += 40 - total
    assert 0 < undone < lost


@pytest.mark.clause("cxi.amo.reliable-default", "cxi.amo.needs-optimized")
@pytest.mark.parametrize(("flags", "key"), [(0, OPTIMIZED), (0, STANDARD), (int(cxi.UNRELIABLE), STANDARD)])
def test_other_atomics_are_never_lost(monkeypatch: pytest.MonkeyPatch, flags: int, key: int) -> None:
    for node, memory in seeds(monkeypatch):
        memory[:] = 0
        assert adds(node, flags, key, 40) == (40, [])
        assert int(memory.view(np.uint64)[0]) == 40


@pytest.mark.clause("cxi.amo.unordered")
def test_unreliable_atomics_are_not_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    last: dict[int, set[int]] = {0: set(), int(cxi.UNRELIABLE): set()}
    for node, memory in seeds(monkeypatch, int(fi.ORDER_ATOMIC_WAW)):
        for flags, seen in last.items():
            for _ in range(ROUNDS):
                for n in (1, 2):
                    value = np.array([n], np.uint64)
                    msg = fi.MsgAtomic([value], [fi.RmaIoc(0, 1, OPTIMIZED)], node.me, fi.UINT64, fi.ATOMIC_WRITE)
                    node.ep.atomicmsg(msg, flags)
                try:
                    fence(node)
                except fi.Available:  # one was lost
                    node.cq.readerr()
                    fence(node)
                seen.add(int(memory.view(np.uint64)[0]))
    assert last[0] == {2}
    assert last[int(cxi.UNRELIABLE)] == {1, 2}
