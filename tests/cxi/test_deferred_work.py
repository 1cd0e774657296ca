"""Deferred work of the CXI provider. fi_cxi(7) "Triggered Operation", "CXI Counter Writeback Flag"."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import opened, register
from tests.fi.support import WATCHDOG_S, Node
from tests.patience import Patience
from tests.procs.children import Child
from typer.testing import CliRunner

from weft import cxi, fi
from weft.providers.cxi import resources, service
from weft.tools import cli

CAPS = fi.MSG | fi.TAGGED | fi.RMA | fi.ATOMIC
KEY, TAG, VNI = 300, 5, 10
OWN = 8  # entries of a service for the provider itself

Duo = tuple[Node, Node, int]


@pytest.fixture
def duo() -> Iterator[Duo]:
    with opened(CAPS) as target, opened(CAPS) as initiator:
        yield initiator, target, initiator.av.insert(target.name)


def service_with(entries: int) -> cxi.AuthKey:
    """The key of a new service whose processes can queue this many operations."""
    return cxi.AuthKey(service.create(limits={"tles": (entries + OWN, entries + OWN)}).id, VNI)


@contextlib.contextmanager
def of_service(key: cxi.AuthKey, **more: Any) -> Iterator[Node]:
    with opened(CAPS, auth_key=bytes(key), **more) as node:
        yield node


def taken(key: cxi.AuthKey) -> int:
    """Entries that the processes of the service have."""
    return resources.usage("cxi0").get(key.svc_id, {}).get("tles", 0)


def depth(node: Node) -> int:
    return int(node.domain.open_ops(cxi.DOM_OPS_5).get_dwq_depth(node.domain))


def counter(node: Node) -> Any:
    return node.keep(node.domain.cntr_open())


def queue(node: Node, op_type: int, op: Any, trigger: Any, threshold: int = 1, done: Any = None) -> None:
    node.domain.control(fi.QUEUE_WORK, fi.DeferredWork(threshold, trigger, done, op_type, op))


def rma(node: Node, peer: int, buf: Any, flags: int = 0, context: Any = None) -> fi.OpRma:
    return fi.OpRma(node.ep, fi.MsgRma([buf], [fi.RmaIov(0, len(buf), KEY)], peer, context=context), flags)


def atomic(peer: int, operand: Any, op: int = fi.SUM) -> fi.MsgAtomic:
    return fi.MsgAtomic([operand], [fi.RmaIoc(0, 1, KEY)], peer, datatype=fi.UINT64, op=op)


def one(value: int) -> np.ndarray[Any, Any]:
    return np.array([value], "u8")


def pending(node: Node, count: int, trigger: Any = None) -> Any:
    """Queue this many operations, which start when the trigger, which is returned, is 1."""
    trigger = counter(node) if trigger is None else trigger
    target = counter(node)
    for _ in range(count):
        queue(node, fi.OP_CNTR_ADD, fi.OpCntr(target, 1), trigger)
    return trigger


# ---- operations ------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.trig.dwq", "cxi.trig.write", "cxi.trig.read")
def test_write_and_read_start_at_their_thresholds(duo: Duo) -> None:
    initiator, target, peer = duo
    memory, found = bytearray(8), bytearray(8)
    register(target, memory, KEY)
    trigger, done = counter(initiator), counter(initiator)
    queue(initiator, fi.OP_WRITE, rma(initiator, peer, b"12345678"), trigger, 2, done)
    queue(initiator, fi.OP_READ, rma(initiator, peer, found, fi.COMPLETION, "read"), trigger, 3, done)
    trigger.add(1)
    assert (memory, done.read()) == (bytes(8), 0)
    trigger.add(1)
    done.wait(1, timeout=WATCHDOG_S)
    assert (memory, found) == (b"12345678", bytes(8))
    trigger.add(1)
    assert initiator.wait()[0].op_context == "read"
    assert (found, done.read()) == (b"12345678", 2)


@pytest.mark.clause("cxi.trig.atomic", "cxi.trig.fetch-atomic", "cxi.trig.compare-atomic")
def test_atomics_start_at_their_thresholds(duo: Duo) -> None:
    initiator, target, peer = duo
    memory, old, found = one(10), one(0), one(0)
    register(target, memory, KEY)
    trigger, done = counter(initiator), counter(initiator)
    ep = initiator.ep
    queue(initiator, fi.OP_ATOMIC, fi.OpAtomic(ep, atomic(peer, one(5))), trigger, 1, done)
    queue(
        initiator, fi.OP_FETCH_ATOMIC, fi.OpFetchAtomic(ep, atomic(peer, one(2)), fi.MsgFetch([old])), trigger, 2, done
    )
    swap = fi.OpCompareAtomic(ep, atomic(peer, one(99), fi.CSWAP), fi.MsgFetch([found]), fi.MsgCompare([one(17)]))
    queue(initiator, fi.OP_COMPARE_ATOMIC, swap, trigger, 3, done)
    for step, value in ((1, 15), (2, 17), (3, 99)):
        assert memory[0] != value
        trigger.add(1)
        done.wait(step, timeout=WATCHDOG_S)
        assert memory[0] == value
    assert (old[0], found[0]) == (15, 17)


def message(node: Node, tagged: bool, buf: Any, peer: int = fi.ADDR_UNSPEC, flags: int = 0) -> Any:
    if tagged:
        return fi.OpTagged(node.ep, fi.MsgTagged([buf], None, peer, TAG), flags)
    return fi.OpMsg(node.ep, fi.Msg([buf], None, peer), flags)


@pytest.mark.parametrize(
    "tagged",
    [
        pytest.param(False, marks=pytest.mark.clause("cxi.trig.send", "cxi.trig.recv")),
        pytest.param(True, marks=pytest.mark.clause("cxi.trig.tsend", "cxi.trig.trecv")),
    ],
    ids=["msg", "tagged"],
)
@pytest.mark.parametrize("length", [8, 1000, 100_000])
def test_send_starts_at_its_threshold_and_a_receive_at_zero(duo: Duo, tagged: bool, length: int) -> None:
    sender, receiver, peer = duo
    trigger, sent, received = counter(sender), counter(sender), counter(receiver)
    data, room = os.urandom(length), bytearray(length)
    receives, sends = (fi.OP_TRECV, fi.OP_TSEND) if tagged else (fi.OP_RECV, fi.OP_SEND)
    queue(receiver, receives, message(receiver, tagged, room), counter(receiver), 0, received)
    queue(sender, sends, message(sender, tagged, data, peer), trigger, 4, sent)
    trigger.add(3)
    assert (received.read(), sent.read()) == (0, 0)
    trigger.add(1)
    received.wait(1, timeout=WATCHDOG_S)
    sent.wait(1, timeout=WATCHDOG_S)
    assert room == data
    assert receiver.cq.read() == sender.cq.read() == []


@pytest.mark.parametrize(
    "tagged",
    [
        pytest.param(False, marks=pytest.mark.clause("cxi.trig.recv-threshold")),
        pytest.param(True, marks=pytest.mark.clause("cxi.trig.trecv-threshold")),
    ],
    ids=["msg", "tagged"],
)
def test_receive_with_a_threshold_is_refused(duo: Duo, tagged: bool) -> None:
    _, receiver, _ = duo
    op = message(receiver, tagged, bytearray(8))
    with pytest.raises(fi.FabricError, match="threshold 1 of a receive") as caught:
        queue(receiver, fi.OP_TRECV if tagged else fi.OP_RECV, op, counter(receiver), 1)
    assert caught.value.errno == fi.EINVAL


def test_work_on_counters_runs_at_once(node: Node) -> None:
    trigger, target = counter(node), counter(node)
    queue(node, fi.OP_CNTR_SET, fi.OpCntr(target, 40), trigger, 0)
    queue(node, fi.OP_CNTR_ADD, fi.OpCntr(target, 2), trigger, 1)
    assert target.read() == 40
    trigger.add(1)
    assert target.read() == 42


def test_flush_drops_work_and_gives_its_entries_back() -> None:
    key = service_with(20)
    with of_service(key) as node:
        trigger = pending(node, 20)
        assert taken(key) == 20
        node.domain.control(fi.FLUSH_WORK)
        assert taken(key) == 0
        trigger.add(1)
        assert node.cq.read() == []


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_work_that_the_provider_refuses_is_invalid(duo: Duo) -> None:
    """The real provider's -FI_EINVAL."""
    initiator, target, peer = duo
    register(target, bytearray(16), KEY)
    trigger, done = counter(initiator), counter(initiator)
    ep, eight, ranges = initiator.ep, bytearray(8), [fi.RmaIov(0, 8, KEY)]
    good = fi.OpRma(ep, fi.MsgRma([eight], ranges, peer))
    bad: list[tuple[Any, Any, int, Any]] = [
        (None, done, fi.OP_WRITE, good),
        (trigger, done, 77, good),
        (trigger, done, fi.OP_WRITE, fi.OpRma(ep, fi.MsgRma([eight, eight], [fi.RmaIov(0, 16, KEY)], peer))),
        (trigger, done, fi.OP_WRITE, fi.OpRma(ep, fi.MsgRma([bytearray(16)], ranges * 2, peer))),
        (trigger, done, fi.OP_WRITE, fi.OpRma(ep, fi.MsgRma([eight], [], peer))),
        (trigger, done, fi.OP_READ, fi.OpRma(ep, fi.MsgRma(None, [fi.RmaIov(0, 0, KEY)], peer))),  # type: ignore[arg-type]
        (trigger, done, fi.OP_SEND, message(initiator, False, eight, peer, int(fi.INJECT))),
        (trigger, done, fi.OP_TSEND, message(initiator, True, eight, peer, int(fi.INJECT))),
        (trigger, done, fi.OP_CNTR_ADD, fi.OpCntr(done, 1)),
        (trigger, None, fi.OP_CNTR_SET, fi.OpCntr(None, 1)),  # type: ignore[arg-type]
        (trigger, None, fi.OP_CNTR_SET, fi.OpCntr(done, 1 << 48)),
    ]
    for flag in (fi.INJECT, fi.FENCE, fi.INJECT_COMPLETE, cxi.HRP):
        bad.append((trigger, done, fi.OP_WRITE, fi.OpRma(ep, good.msg, int(flag))))
    for first, second, kind, op in bad:
        with pytest.raises(fi.FabricError) as caught:
            initiator.domain.control(fi.QUEUE_WORK, fi.DeferredWork(1, first, second, kind, op))
        assert caught.value.errno == fi.EINVAL, caught.value
    for command, arg in ((fi.QUEUE_WORK, None), (fi.CANCEL_WORK, fi.DeferredWork())):
        with pytest.raises(fi.FabricError) as caught:
            initiator.domain.control(command, arg)
        assert caught.value.errno == fi.EINVAL
    trigger.add(1)
    assert (done.read(), done.readerr(), initiator.cq.read()) == (0, 0, [])


def test_flags_that_deferred_work_takes(duo: Duo) -> None:
    initiator, target, peer = duo
    register(target, bytearray(8), KEY)
    trigger, done = counter(initiator), counter(initiator)
    flags = fi.MORE | fi.COMPLETION | fi.TRANSMIT_COMPLETE | fi.DELIVERY_COMPLETE | fi.MATCH_COMPLETE
    queue(initiator, fi.OP_WRITE, rma(initiator, peer, b"12345678", int(flags), "w"), trigger, 1, done)
    odd = int(fi.FENCE | fi.REMOTE_CQ_DATA | fi.COMPLETION) | 1 << 61  # a send takes all but INJECT, unchecked
    queue(initiator, fi.OP_SEND, message(initiator, False, b"12345678", peer, odd & ~int(fi.FENCE)), trigger, 1, done)
    target.ep.recv(bytearray(8))
    trigger.add(1)
    assert {entry.op_context for entry in initiator.wait(2)} == {"w", None}
    assert done.read() == 2


def test_endpoint_of_another_traffic_class_is_refused(duo: Duo) -> None:
    initiator, target, peer = duo
    register(target, bytearray(8), KEY)
    info = fi.dupinfo(initiator.info)
    info.tx_attr.tclass = fi.TC_LOW_LATENCY
    with initiator.domain.endpoint(info) as other:
        other.bind(initiator.cq, fi.TRANSMIT | fi.RECV)
        other.bind(initiator.av)
        other.enable()
        op = fi.OpRma(other, fi.MsgRma([b"12345678"], [fi.RmaIov(0, 8, KEY)], peer))
        with pytest.raises(fi.FabricError, match="traffic class") as caught:
            queue(initiator, fi.OP_WRITE, op, counter(initiator))
        assert caught.value.errno == fi.EINVAL


# ---- write-back ------------------------------------------------------------------------------------------------------


@pytest.mark.clause("cxi.ext.wb.flag", "cxi.ext.wb.example-read")
def test_flag_writes_the_counter_back_when_the_read_completes(duo: Duo) -> None:
    initiator, target, peer = duo
    register(target, bytearray(b"ABCDEFGH"), KEY)
    trigger, word, found = counter(initiator), bytearray(8), bytearray(8)
    trigger.open_ops("cxi_counter_ops").set_wb_buffer(word)
    queue(initiator, fi.OP_READ, rma(initiator, peer, found), trigger, 1, trigger)
    trigger.add(1)
    trigger.wait(2, timeout=WATCHDOG_S)  # the wait's own write-back
    trigger.set(0)
    queue(initiator, fi.OP_READ, rma(initiator, peer, found, int(cxi.CNTR_WB)), trigger, 5, trigger)
    assert cxi.cntr_wb_read(word) == 0
    trigger.add(4)
    assert cxi.cntr_wb_read(word) == 0
    trigger.add(1)
    patience = Patience(WATCHDOG_S)
    while cxi.cntr_wb_read(word) != 6:  # no call on the counter
        assert not patience.over
    assert found == b"ABCDEFGH"


@pytest.mark.clause("cxi.trig.hw-resource")
def test_each_pending_operation_takes_an_entry_and_a_write_back_another(duo: Duo) -> None:
    key = service_with(20)
    with of_service(key) as target, of_service(key) as node:
        register(target, bytearray(8), KEY)
        peer = node.av.insert(target.name)
        trigger, done = counter(node), counter(node)
        for n in range(1, 4):
            queue(node, fi.OP_WRITE, rma(node, peer, b"12345678"), trigger, 1, done)
            assert taken(key) == n
        queue(node, fi.OP_WRITE, rma(node, peer, b"12345678", int(cxi.CNTR_WB)), trigger, 1, done)
        assert taken(key) == 5
        trigger.add(1)
        done.wait(4, timeout=WATCHDOG_S)
        assert taken(key) == 1  # the write-back waits for the next count
        trigger.add(1)
        assert taken(key) == 0


# ---- the limit -------------------------------------------------------------------------------------------------------


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FI_CXI_ENABLE_TRIG_OP_LIMIT", "1")


@pytest.mark.clause(
    "cxi.trig.limit-enospc",
    "cxi.env.trig-op-limit",
    "cxi.env.trig-op-limit-deadlock",
    "cxi.ext.dom.dwq-depth-meaning",
)
def test_work_beyond_the_depth_is_refused_under_the_limit(limited: None) -> None:
    key = service_with(12)
    with of_service(key) as node:
        assert depth(node) == 12
        trigger = pending(node, 12)
        with pytest.raises(fi.NoSpace) as caught:
            pending(node, 1, trigger)
        assert caught.value.errno == fi.ENOSPC
        assert "has 12" in str(caught.value)
        trigger.add(1)  # the work starts, and there is room again
        pending(node, 12)


@pytest.mark.parametrize(
    ("most", "reserved", "expected"), [(20, 0, 20 - OWN), (20, 12, 12 - OWN), (20, 20, 20 - OWN), (20, OWN, 0)]
)
def test_depth_is_what_the_service_reserves_or_may_have(limited: None, most: int, reserved: int, expected: int) -> None:
    key = cxi.AuthKey(service.create(limits={"tles": (most, reserved)}).id, VNI)
    with of_service(key) as node:
        assert depth(node) == expected
        trigger = pending(node, expected)
        with pytest.raises(fi.NoSpace):
            pending(node, 1, trigger)


def test_write_back_needs_two_entries_under_the_limit(limited: None, duo: Duo) -> None:
    key = service_with(4)
    with of_service(key) as target, of_service(key) as node:
        register(target, bytearray(8), KEY)
        peer, trigger = node.av.insert(target.name), counter(node)
        pending(node, 3)
        with pytest.raises(fi.NoSpace):
            queue(node, fi.OP_WRITE, rma(node, peer, b"12345678", int(cxi.CNTR_WB)), trigger)
        assert taken(key) == 3
        queue(node, fi.OP_WRITE, rma(node, peer, b"12345678"), trigger)


@pytest.mark.clause("cxi.trig.limit-threads")
def test_threads_share_the_depth_exactly(limited: None) -> None:
    key = service_with(50)
    with of_service(key) as node:
        trigger, target = counter(node), counter(node)
        queued = []

        def run() -> None:
            n = 0
            with contextlib.suppress(fi.NoSpace):
                while True:
                    queue(node, fi.OP_CNTR_ADD, fi.OpCntr(target, 1), trigger)
                    n += 1
            queued.append(n)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(queued) == 50
        trigger.add(1)
        assert target.read() == 50


_open = contextlib.ExitStack()
_held: list[Any] = []


def fill_in_child(world: object, registry: str, key: bytes, most: int, limit: str = "1") -> int:
    """Operations that could be queued; they stay."""
    os.environ["WEFT_CXI_REGISTRY"] = registry
    os.environ["FI_CXI_ENABLE_TRIG_OP_LIMIT"] = limit
    node = _open.enter_context(of_service(cxi.AuthKey.from_bytes(key)))
    trigger = counter(node)
    _held.append(trigger)
    for n in range(most):
        try:
            pending(node, 1, trigger)
        except fi.NoSpace:
            return n
    return most


def start_in_child(world: object) -> None:
    _held[0].add(1)


@pytest.mark.procs
@pytest.mark.clause("cxi.trig.limit-processes", "cxi.ext.dom.dwq-depth-shared")
def test_processes_of_a_service_share_the_depth_exactly(registry: Path, limited: None) -> None:
    key = service_with(40)
    with of_service(key) as node, Child() as first, Child() as second:
        assert depth(node) == 40
        calls = [child.start(fill_in_child, str(registry), bytes(key), 100) for child in (first, second)]
        assert sum(call.result() for call in calls) == 40
        with pytest.raises(fi.NoSpace, match="in use by"):
            pending(node, 1)
        first.call(start_in_child)
        second.call(start_in_child)
        pending(node, 40)


@pytest.mark.procs
@pytest.mark.kill
def test_entries_of_a_killed_process_are_free(registry: Path, limited: None) -> None:
    key = service_with(40)
    with of_service(key) as node:
        child = Child()
        assert child.call(fill_in_child, str(registry), bytes(key), 30) == 30
        child.kill(signal.SIGKILL)
        child.wait()
        pending(node, 40)
        child.destroy()
    assert taken(key) == 0


def hold_semaphore(world: object, registry: str, path: str) -> None:
    from weft.providers.cxi import work

    os.environ["WEFT_CXI_REGISTRY"] = registry
    _open.enter_context(work._held(Path(path)))


@pytest.mark.procs
@pytest.mark.kill
@pytest.mark.clause("cxi.trig.limit-named")
def test_semaphore_is_named_and_outlives_the_process_that_held_it(registry: Path, limited: None) -> None:
    from weft.providers.cxi import work

    key = service_with(4)
    with of_service(key) as node:
        child = Child()
        path = work.semaphore("cxi0", VNI, key.svc_id)
        child.call(hold_semaphore, str(registry), str(path))
        queued = threading.Event()

        def run() -> None:
            pending(node, 1)
            queued.set()

        thread = threading.Thread(target=run)
        thread.start()
        assert not queued.wait(0.2), "the semaphore is held by another process"
        child.kill(signal.SIGKILL)
        child.wait()
        assert path.exists()
        thread.join(WATCHDOG_S)
        assert queued.is_set()
        child.destroy()
    assert str(os.geteuid()) in path.name
    assert f"cxi0-{VNI}-{key.svc_id}" in path.name
    assert path.exists()


@pytest.mark.clause("cxi.trig.depth-no-semaphore")
def test_without_the_limit_no_semaphore_is_taken(node: Node, registry: Path) -> None:
    pending(node, 3).add(1)
    assert not list(registry.rglob("*trig*"))


# ---- too few entries -------------------------------------------------------------------------------------------------


def test_work_without_an_entry_waits_for_one_and_then_runs() -> None:
    key = service_with(10)
    with of_service(key) as node:
        trigger, late, target = counter(node), counter(node), counter(node)
        pending(node, 10, trigger)
        for _ in range(3):
            queue(node, fi.OP_CNTR_ADD, fi.OpCntr(target, 1), late)
        late.add(1)
        assert (target.read(), taken(key)) == (0, 10)
        trigger.add(1)
        target.wait(3, timeout=WATCHDOG_S)
        assert taken(key) == 0


@pytest.mark.procs
def test_work_waits_for_entries_of_another_process(registry: Path) -> None:
    key = service_with(10)
    with of_service(key) as node, Child() as child:
        assert child.call(fill_in_child, str(registry), bytes(key), 10, "0") == 10
        target = counter(node)
        queue(node, fi.OP_CNTR_ADD, fi.OpCntr(target, 1), counter(node), 0)
        assert target.read() == 0
        child.call(start_in_child)
        target.wait(1, timeout=WATCHDOG_S)


def test_program_that_would_deadlock_is_told_what_suffices(caplog: pytest.LogCaptureFixture) -> None:
    key = service_with(10)
    with of_service(key) as node:
        trigger, target = counter(node), counter(node)
        pending(node, 10, trigger)
        for _ in range(5):
            queue(node, fi.OP_CNTR_ADD, fi.OpCntr(target, 1), trigger)
        patience = Patience(WATCHDOG_S)
        while not (lines := [line for line in caplog.messages if "trigger entries" in line]):
            assert not patience.over
            assert node.cq.read() == []
        assert "5 deferred operations" in lines[0]
        assert "18 entries of the service, 8 of them the provider's own" in lines[0]
        assert "--limit tles=23:23" in lines[0]
        patience = Patience(WATCHDOG_S)
        while (shown := CliRunner().invoke(cli.app, ["doctor", "--watch", "--once", "--json"])).exit_code == 0:
            assert not patience.over
        (row,) = json.loads(shown.output)["stuck"]
        assert (row["resource"], row["wanted"]) == ("trigger entries", 15)
        trigger.add(1)
        target.wait(5, timeout=WATCHDOG_S)
    sufficient = cxi.AuthKey(service.create(limits={"tles": (23, 23)}).id, VNI)
    with of_service(sufficient) as node:
        pending(node, 15).add(1)
        assert taken(sufficient) == 0


def test_domain_that_closes_gives_the_entries_of_its_work_back() -> None:
    key = service_with(10)
    with of_service(key) as node:
        pending(node, 10)
        with of_service(key) as other:
            pending(other, 5)  # these wait
        assert taken(key) == 10
    assert taken(key) == 0
