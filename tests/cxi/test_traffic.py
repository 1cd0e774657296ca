"""How operations travel, as the telemetry of the NICs shows it; operations that FI_MORE holds; PCIe atomics.

Source: fi_cxi(7) "Optimized RMA", "Unreliable AMOs", "High Rate Put", "PCIe Atomics", "Operation flags".
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests import patience
from tests.cxi.support import CAPS, opened, register
from tests.fi.support import Node

from weft import cxi, fi
from weft.providers.cxi import device, telemetry
from weft.providers.cxi.names import OpFlag

OPTIMIZED, STANDARD = 7, 200
RESTRICTED, UNRESTRICTED = "IXE_RX_PTL_RESTRICTED_PKT", "IXE_RX_PTL_UNRESTRICTED_PKT"
HITS, FLUSHES, ACKS = "LPE_PLEC_HITS", "IXE_DMAWR_FLUSH_REQS", "HNI_HRP_ACK"
CPU_AMOS = "IXE_DMAWR_CPU_FTCH_AMO_REQS"


class Two(NamedTuple):
    """An initiator, and a target with 64 bytes under an optimized key and under a standard one."""

    initiator: Node
    target: Node
    peer: int
    memory: Any

    def count(self, name: str) -> int:
        """The counter of the NIC, which is the same for both."""
        device = self.target.domain.policy.device
        telemetry.publish(device)
        return telemetry.read(device.name, name).value

    def write(self, key: int = OPTIMIZED, flags: int = 0, data: bytes = b"12345678", addr: int = 0) -> None:
        msg = fi.MsgRma(msg_iov=[data], addr=self.peer, rma_iov=[fi.RmaIov(addr, len(data), key)])
        self.initiator.ep.writemsg(msg, flags | fi.COMPLETION)

    def add(self, key: int = OPTIMIZED, flags: int = 0, fetch: bool = False, op: int = fi.SUM) -> None:
        ioc = np.ones(1, np.uint64)
        msg = fi.MsgAtomic(msg_iov=[ioc], addr=self.peer, rma_iov=[fi.RmaIoc(0, 1, key)], datatype=fi.UINT64, op=op)
        if fetch:
            self.initiator.ep.fetch_atomicmsg(msg, [np.zeros(1, np.uint64)], flags=flags | fi.COMPLETION)
        else:
            self.initiator.ep.atomicmsg(msg, flags | fi.COMPLETION)


def two(caps: int = CAPS, order: int = 0, **more: Any) -> Iterator[Two]:
    def unordered(info: fi.Info) -> None:
        info.tx_attr.msg_order = fi.Order(order)

    with opened(caps) as target, opened(caps, edit=unordered, **more) as initiator:
        memory = np.zeros(8, np.uint64)
        register(target, memory, OPTIMIZED)
        register(target, memory, STANDARD)
        yield Two(initiator, target, initiator.av.insert(target.ep.getname()), memory)


@pytest.fixture
def pair() -> Iterator[Two]:
    yield from two()


@pytest.mark.clause("cxi.opt.restricted-all-met", "cxi.opt.ctr-restricted", "cxi.opt.ctr-plec-hits")
def test_unordered_write_to_optimized_region_is_restricted(pair: Two) -> None:
    for _ in range(5):
        pair.write()
    pair.initiator.wait(5)
    assert pair.count(RESTRICTED) == 5
    assert pair.count(UNRESTRICTED) == 0
    assert pair.count(HITS) == 5
    assert pair.count("LPE_SUCCESS_CNTR") == 5


@pytest.mark.clause("cxi.opt.restricted-needs-optimized", "cxi.opt.ctr-unrestricted")
def test_writes_to_a_standard_region_are_other_packets(pair: Two) -> None:
    pair.write(STANDARD)
    pair.initiator.wait(1)
    assert (pair.count(RESTRICTED), pair.count(UNRESTRICTED), pair.count(HITS)) == (0, 1, 0)


@pytest.mark.clause("cxi.opt.restricted-no-waw")
@pytest.mark.parametrize("order", [fi.ORDER_WAW, fi.ORDER_RMA_WAW])
def test_writes_in_order_are_other_packets_and_reads_are_not(order: int) -> None:
    for pair in two(order=order):
        pair.write()
        pair.initiator.wait(1)
        assert (pair.count(RESTRICTED), pair.count(UNRESTRICTED)) == (0, 1)
        pair.initiator.ep.read(bytearray(8), src_addr=pair.peer, addr=0, key=OPTIMIZED)
        pair.initiator.wait(1)
        assert pair.count(RESTRICTED) == 1


@pytest.mark.clause("cxi.opt.restricted-no-waw", "cxi.alias.msg-order")
@pytest.mark.parametrize("order", [fi.ORDER_WAW, fi.ORDER_RMA_WAW])
def test_order_of_an_alias_decides_for_its_writes(order: int) -> None:
    for pair, of_endpoint in ((one, of_ep) for of_ep in (0, int(order)) for one in two(order=of_ep)):
        with pair.initiator.ep.alias(fi.TRANSMIT) as alias:
            alias.set_val(cxi.OPT_CXI_SET_MSG_ORDER, 0 if of_endpoint else int(order))
            for ep, restricted in ((alias, of_endpoint != 0), (pair.initiator.ep, of_endpoint == 0)):
                before = pair.count(RESTRICTED), pair.count(UNRESTRICTED)
                ep.write(b"12345678", None, pair.peer, 0, OPTIMIZED)
                pair.initiator.wait(1)
                grew = pair.count(RESTRICTED) - before[0], pair.count(UNRESTRICTED) - before[1]
                assert grew == ((1, 0) if restricted else (0, 1))


@pytest.mark.clause("cxi.opt.restricted-no-rma-event")
def test_initiator_with_rma_event_assumes_events_of_client_keys() -> None:
    for pair in two(CAPS | fi.RMA_EVENT):
        pair.write()
        pair.initiator.wait(1)
        assert (pair.count(RESTRICTED), pair.count(UNRESTRICTED), pair.count(HITS)) == (0, 1, 0)


@pytest.mark.clause("cxi.opt.disabled-standard")
def test_without_optimized_regions_no_packet_is_restricted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_OPTIMIZED_MRS", "0")
    for pair in two():
        pair.write()
        pair.initiator.wait(1)
        assert (pair.count(RESTRICTED), pair.count(UNRESTRICTED)) == (0, 1)


@pytest.mark.clause("cxi.op.delivery-flush", "cxi.op.delivery-unconditional")
def test_each_delivery_complete_write_is_one_flush(pair: Two) -> None:
    pair.write()
    pair.initiator.wait(1)
    assert pair.count(FLUSHES) == 0
    for level in (fi.DELIVERY_COMPLETE, fi.DELIVERY_COMPLETE, fi.MATCH_COMPLETE):
        pair.write(STANDARD, level)
    pair.initiator.wait(3)
    assert pair.count(FLUSHES) == 3


@pytest.mark.clause("cxi.hrp.flag-rma", "cxi.hrp.ctr-ack")
def test_each_high_rate_put_is_one_acknowledgement_of_the_fabric(pair: Two) -> None:
    pair.write()
    pair.write(flags=OpFlag.HRP)
    pair.write(flags=OpFlag.HRP)
    pair.write(STANDARD, OpFlag.HRP)  # no effect there, and no error
    pair.initiator.wait(4)
    assert pair.count(ACKS) == 2


@pytest.mark.clause("cxi.hrp.flag-amo", "cxi.amo.flag-unreliable")
def test_unreliable_atomics_are_restricted_packets(pair: Two) -> None:
    pair.add()
    pair.initiator.wait(1)
    assert (pair.count(RESTRICTED), pair.count(UNRESTRICTED)) == (0, 1)
    pair.add(flags=OpFlag.UNRELIABLE)
    pair.add(flags=OpFlag.UNRELIABLE | OpFlag.HRP)
    pair.initiator.wait(2)
    assert (pair.count(RESTRICTED), pair.count(ACKS)) == (2, 1)
    assert pair.memory[0] == 3


@pytest.mark.clause("cxi.pcie.issue", "cxi.pcie.flag")
def test_pcie_atomics_are_counted_as_such(pair: Two) -> None:
    pair.add(fetch=True)
    pair.initiator.wait(1)
    assert pair.count(CPU_AMOS) == 0
    pair.add(flags=OpFlag.PCIE_AMO, fetch=True)
    pair.initiator.wait(1)
    assert pair.count(CPU_AMOS) == 1
    assert pair.memory[0] == 2


# ---- what flags of atomics exclude -----------------------------------------------------------------------------------


def compare(pair: Two, flags: int, key: int = OPTIMIZED) -> None:
    one = np.ones(1, np.uint64)
    msg = fi.MsgAtomic(msg_iov=[one], addr=pair.peer, rma_iov=[fi.RmaIoc(0, 1, key)], datatype=fi.UINT64, op=fi.CSWAP)
    pair.initiator.ep.compare_atomicmsg(msg, [np.zeros(1, np.uint64)], None, [one.copy()], flags=flags | fi.COMPLETION)


@pytest.mark.clause("cxi.errata.fetch-delivery", "cxi.errata.compare-delivery")
@pytest.mark.parametrize("level", [fi.DELIVERY_COMPLETE, fi.MATCH_COMPLETE])
def test_fetching_atomics_with_delivery_complete_exclude_events(pair: Two, level: int) -> None:
    pair.add(STANDARD, level, fetch=True)
    compare(pair, level, STANDARD)
    pair.initiator.wait(2)
    for events in two(CAPS | fi.RMA_EVENT):
        for key in (OPTIMIZED, STANDARD):
            with pytest.raises(fi.InvalidArgument, match="RMA_EVENT"):
                events.add(key, level, fetch=True)
            with pytest.raises(fi.InvalidArgument, match="RMA_EVENT"):
                compare(events, level, key)
            events.add(key, level)
            events.add(key, fetch=True)
        events.initiator.wait(4)


@pytest.mark.clause("cxi.amo.no-remote-event", "cxi.hrp.amo-needs-unreliable")
def test_unreliable_atomic_excludes_events_and_is_needed_for_hrp(pair: Two) -> None:
    with pytest.raises(fi.InvalidArgument, match="UNRELIABLE"):
        pair.add(flags=OpFlag.HRP)
    pair.add(STANDARD, OpFlag.HRP)  # flags without a meaning there
    pair.add(STANDARD, OpFlag.UNRELIABLE)
    pair.initiator.wait(2)
    for events in two(CAPS | fi.RMA_EVENT):
        with pytest.raises(fi.InvalidArgument, match="RMA_EVENT"):
            events.add(flags=OpFlag.UNRELIABLE)
        events.add(STANDARD, OpFlag.UNRELIABLE)
        events.initiator.wait(1)


@pytest.mark.clause("cxi.pcie.types", "cxi.pcie.not-all")
def test_pcie_atomics_are_fetching_sums_of_integers(pair: Two) -> None:
    with pytest.raises(fi.NotSupported):
        pair.add(flags=OpFlag.PCIE_AMO, fetch=True, op=fi.MIN)
    with pytest.raises(fi.BadFlags):
        pair.add(flags=OpFlag.PCIE_AMO)
    with pytest.raises(fi.BadFlags):
        compare(pair, OpFlag.PCIE_AMO)
    msg = fi.MsgAtomic(
        msg_iov=[np.ones(1)], addr=pair.peer, rma_iov=[fi.RmaIoc(0, 1, 7)], datatype=fi.DOUBLE, op=fi.SUM
    )
    with pytest.raises(fi.NotSupported):
        pair.initiator.ep.fetch_atomicmsg(msg, [np.zeros(1)], flags=OpFlag.PCIE_AMO | fi.COMPLETION)
    assert not pair.memory.any()


LOST = {0: "MIN", 1: "MAX", 2: "SUM", 4: "LOR", 5: "LAND", 6: "BOR", 7: "BAND", 8: "LXOR", 9: "BXOR", 10: "", -1: ""}


@pytest.mark.clause(
    "cxi.pcie.param",
    "cxi.pcie.driver",
    "cxi.pcie.lost-amo",
    "cxi.pcie.value-minus-1",
    *(f"cxi.pcie.value-{value}" for value in LOST if value >= 0),
)
@pytest.mark.parametrize("value", LOST)
def test_amo_remap_parameter_disables_one_other_atomic(value: int) -> None:
    device.set_values("cxi0", amo_remap_to_pcie_fadd=value)
    for pair in two():
        if value < 0:
            with pytest.raises(fi.NotSupported):
                pair.add(flags=OpFlag.PCIE_AMO, fetch=True)
        else:
            pair.add(flags=OpFlag.PCIE_AMO, fetch=True)
            pair.initiator.wait(1)
        for name in filter(None, LOST.values()):
            op = getattr(fi, name)
            if name == LOST[value]:
                for fetch in (False, True):
                    with pytest.raises(fi.NotSupported):
                        pair.add(op=op, fetch=fetch)
            else:
                pair.add(op=op)
                pair.initiator.wait(1)


_INITIATOR = """
import sys
from tests.cxi.support import opened
from weft import fi

def unordered(info):
    info.tx_attr.msg_order = fi.Order(0)

with opened(edit=unordered) as node:
    peer = node.av.insert(bytes.fromhex(sys.argv[1]))
    for _ in range(4):
        node.ep.write(b"from afar", dest_addr=peer, addr=0, key=7)
    node.wait(4)
"""


@pytest.mark.clause("cxi.env.telemetry-scope")
def test_device_counts_what_other_processes_do_there(pair: Two) -> None:
    name = bytes(pair.target.ep.getname()).hex()
    patience.run([sys.executable, "-c", _INITIATOR, name], check=True, timeout=60)
    assert pair.memory.tobytes()[:9] == b"from afar"
    assert pair.count(RESTRICTED) == 4


@pytest.mark.clause("cxi.amo.no-fetching")
def test_atomics_that_return_a_value_are_never_unreliable(pair: Two) -> None:
    with pytest.raises(fi.BadFlags):
        pair.add(flags=OpFlag.UNRELIABLE, fetch=True)
    with pytest.raises(fi.BadFlags):
        compare(pair, int(OpFlag.UNRELIABLE))
    pair.add(fetch=True)
    compare(pair, 0)
    pair.initiator.wait(2)


def test_later_releases_take_unreliable_for_every_atomic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    for pair in two():
        pair.add(flags=OpFlag.UNRELIABLE, fetch=True)
        compare(pair, int(OpFlag.UNRELIABLE))
        pair.initiator.wait(2)
        assert pair.count(RESTRICTED) == 2


# ---- FI_MORE ---------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.op.more-defer", "cxi.op.more-hold", "cxi.extra.more")
def test_operations_with_more_wait_for_one_without_it(pair: Two) -> None:
    pair.write(flags=fi.MORE, data=b"1" * 8)
    pair.write(flags=fi.MORE, data=b"2" * 8, addr=8)
    for _ in range(100):
        assert pair.initiator.cq.read() == []  # nor does progress begin them
    assert not pair.memory.any()
    assert pair.count(RESTRICTED) == 0
    pair.write(data=b"3" * 8, addr=16)
    pair.initiator.wait(3)
    assert pair.memory.tobytes()[:24] == b"1" * 8 + b"2" * 8 + b"3" * 8
    assert pair.count(RESTRICTED) == 3


@pytest.mark.clause("cxi.op.more-batch")
def test_operation_without_more_hands_all_held_ones_over_at_once(pair: Two) -> None:
    ep = pair.initiator.ep
    pair.write()
    pair.initiator.wait()
    assert ep.statistics().batches == 0, "nothing was held"
    for _ in range(2):
        before = ep.statistics().batches
        for i in range(5):
            pair.write(flags=fi.MORE, addr=8 * i)
            assert ep.statistics().batches == before
        pair.write()
        pair.initiator.wait(6)
        assert ep.statistics().batches == before + 1


def test_operations_with_more_begin_when_the_queue_is_full() -> None:
    def small(info: fi.Info) -> None:
        info.tx_attr.size = 16

    for pair in two():
        with opened(edit=small) as node:
            peer = node.av.insert(pair.target.ep.getname())
            msg = fi.MsgRma(msg_iov=[b"x"], addr=peer, rma_iov=[fi.RmaIov(0, 1, OPTIMIZED)])
            for _ in range(16):
                node.ep.writemsg(msg, fi.MORE | fi.COMPLETION)
            node.wait(16)


@pytest.mark.clause("cxi.env.rdzv-proto")
@pytest.mark.parametrize("protocol", ["default", "alt_read"])
def test_messages_are_fetched_by_restricted_packets_under_alt_read_alone(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packets reach the device of the sender, which has the rest of the message."""
    device.add("cxi1")
    device.set_values("cxi0", rdzv_get_en=int(protocol == "default"))
    monkeypatch.setenv("FI_CXI_RDZV_PROTO", protocol)
    caps = int(fi.MSG | fi.TAGGED)
    with opened(caps, name="cxi0") as receiver, opened(caps, name="cxi1") as sender:
        peer, there = sender.av.insert(receiver.name), sender.domain.policy.device
        for _ in range(2):
            receiver.ep.trecv(bytearray(100_000), tag=1)
            sender.ep.tsend(bytes(100_000), None, peer, 1)
            receiver.wait()
            sender.wait()
        for one in (there, receiver.domain.policy.device):
            telemetry.publish(one)
        packets = 2 * -(-(100_000 - 2048) // 2048)  # the message brings 2048 bytes along
        found = [telemetry.read("cxi1", name).value for name in (RESTRICTED, UNRESTRICTED)]
        assert found == ([packets, 0] if protocol == "alt_read" else [0, packets])
        assert telemetry.read("cxi0", RESTRICTED).value == 0
