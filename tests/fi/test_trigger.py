"""fi_trigger(3): deferred work, which the NIC starts when a counter reaches a threshold."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi.support import KEY, WATCHDOG_S, Node, opened, pair

from weft import fi

pytestmark = pytest.mark.general("messages")

CAPS = fi.MSG | fi.TAGGED | fi.RMA | fi.ATOMIC | fi.RMA_EVENT
TAG = 0x77

Duo = tuple[Node, Node, int]


@pytest.fixture
def duo() -> Iterator[Duo]:
    with pair(CAPS) as found:
        yield found


def counters(node: Node, count: int) -> list[fi.Counter]:
    return [node.keep(node.domain.cntr_open()) for _ in range(count)]


def queue(node: Node, op_type: int, op: Any, trigger: fi.Counter, threshold: int = 1, done: Any = None) -> Any:
    work = fi.DeferredWork(threshold, trigger, done, op_type, op)
    node.domain.control(fi.QUEUE_WORK, work)
    return work


def write(node: Node, peer: int, data: bytes, addr: int = 0, flags: int = 0, context: Any = None) -> fi.OpRma:
    msg = fi.MsgRma([data], [fi.RmaIov(addr, len(data), KEY)], peer, context=context)
    return fi.OpRma(node.ep, msg, flags)


def read(node: Node, peer: int, into: Any, flags: int = 0, context: Any = None) -> fi.OpRma:
    return fi.OpRma(node.ep, fi.MsgRma([into], [fi.RmaIov(0, len(into), KEY)], peer, context=context), flags)


def atomic(peer: int, operand: Any, op: int = fi.SUM, context: Any = None) -> fi.MsgAtomic:
    return fi.MsgAtomic([operand], [fi.RmaIoc(0, 1, KEY)], peer, datatype=fi.UINT64, op=op, context=context)


def one(value: int) -> np.ndarray[Any, Any]:
    return np.array([value], "u8")


# ---- operations ------------------------------------------------------------------------------------------------------


def test_write_starts_at_its_threshold_and_not_before(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = bytearray(16)
    target.reg(memory, requested_key=KEY)
    trigger, done = counters(initiator, 2)
    queue(initiator, fi.OP_WRITE, write(initiator, peer, b"12345678", 8), trigger, 3, done)
    trigger.add(2)
    assert (done.read(), memory[8:]) == (0, bytes(8))
    trigger.add(1)
    done.wait(1, timeout=WATCHDOG_S)
    assert memory == bytes(8) + b"12345678"
    assert initiator.cq.read() == []  # the operation did not ask for an entry


def test_threshold_that_is_reached_starts_at_once(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = bytearray(8)
    target.reg(memory, requested_key=KEY)
    trigger, done = counters(initiator, 2)
    trigger.set(5)
    queue(initiator, fi.OP_WRITE, write(initiator, peer, b"1234"), trigger, 5, done)
    queue(initiator, fi.OP_WRITE, write(initiator, peer, b"5678", 4), trigger, 0, done)
    done.wait(2, timeout=WATCHDOG_S)
    assert memory == b"12345678"


def test_success_has_an_entry_with_completion_alone(duo: Duo) -> None:
    initiator, target, peer = duo
    target.reg(bytearray(b"ABCDEFGH"), requested_key=KEY)
    (trigger,) = counters(initiator, 1)
    context, quiet, told = object(), bytearray(8), bytearray(8)
    queue(initiator, fi.OP_READ, read(initiator, peer, quiet, context=context), trigger)
    queue(initiator, fi.OP_READ, read(initiator, peer, told, fi.COMPLETION, context), trigger)
    trigger.add(1)
    (entry,) = initiator.wait()
    assert entry.op_context is context
    assert (entry.flags, entry.len) == (fi.RMA | fi.READ, 8)
    assert (told, quiet) == (b"ABCDEFGH", b"ABCDEFGH")


def test_atomics_of_every_family_are_deferred(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = one(10)
    target.reg(memory, requested_key=KEY)
    trigger, done = counters(initiator, 2)
    old, found = one(0), one(0)
    queue(initiator, fi.OP_ATOMIC, fi.OpAtomic(initiator.ep, atomic(peer, one(5))), trigger, 1, done)
    fetch = fi.OpFetchAtomic(initiator.ep, atomic(peer, one(2)), fi.MsgFetch([old]))
    queue(initiator, fi.OP_FETCH_ATOMIC, fetch, trigger, 2, done)
    swap = fi.OpCompareAtomic(
        initiator.ep, atomic(peer, one(99), fi.CSWAP), fi.MsgFetch([found]), fi.MsgCompare([one(17)])
    )
    queue(initiator, fi.OP_COMPARE_ATOMIC, swap, trigger, 3, done)
    for step, value in ((1, 15), (2, 17), (3, 99)):
        trigger.add(1)
        done.wait(step, timeout=WATCHDOG_S)
        assert memory[0] == value
    assert (old[0], found[0]) == (15, 17)


@pytest.mark.parametrize("length", [0, 8, 5000, 300_000])
@pytest.mark.parametrize("tagged", [False, True], ids=["msg", "tagged"])
def test_send_is_deferred_and_matched(duo: Duo, tagged: bool, length: int) -> None:
    sender, receiver, peer = duo
    trigger, done = counters(sender, 2)
    data = np.random.default_rng(1).integers(0, 256, length, np.uint8)
    room = np.zeros(length, np.uint8)
    if tagged:
        receiver.ep.trecv(room, None, fi.ADDR_UNSPEC, TAG)
        op: Any = fi.OpTagged(sender.ep, fi.MsgTagged([data], None, peer, TAG))
    else:
        receiver.ep.recv(room)
        op = fi.OpMsg(sender.ep, fi.Msg([data], None, peer))
    queue(sender, fi.OP_TSEND if tagged else fi.OP_SEND, op, trigger, 1, done)
    assert receiver.cq.read() == []
    trigger.add(1)
    assert receiver.wait()[0].len == length
    done.wait(1, timeout=WATCHDOG_S)
    assert np.array_equal(room, data)


@pytest.mark.parametrize("threshold", [0, 2])
@pytest.mark.parametrize("tagged", [False, True], ids=["msg", "tagged"])
def test_receive_is_deferred_and_counted_by_its_counter(tagged: bool, threshold: int) -> None:
    own: dict[int, Any] = {fi.RECV: None}
    with opened(CAPS, counters=own) as receiver, opened(CAPS) as sender:
        peer = sender.av.insert(receiver.name)
        trigger, done = counters(receiver, 2)
        room = bytearray(8)
        if tagged:
            op: Any = fi.OpTagged(receiver.ep, fi.MsgTagged([room], tag=TAG))
            sender.ep.tsend(b"12345678", None, peer, TAG)
        else:
            op = fi.OpMsg(receiver.ep, fi.Msg([room]))
            sender.ep.send(b"12345678", None, peer)
        queue(receiver, fi.OP_TRECV if tagged else fi.OP_RECV, op, trigger, threshold, done)
        trigger.add(threshold)
        done.wait(1, timeout=WATCHDOG_S)
        assert (room, own[fi.RECV].read()) == (b"12345678", 0)
        assert receiver.cq.read() == []


def test_work_on_counters_sets_and_adds(node: Node) -> None:
    trigger, target = counters(node, 2)
    queue(node, fi.OP_CNTR_SET, fi.OpCntr(target, 40), trigger, 1)
    queue(node, fi.OP_CNTR_ADD, fi.OpCntr(target, 2), trigger, 2)
    trigger.add(1)
    assert target.read() == 40
    trigger.add(1)
    assert target.read() == 42


def test_inject_copies_the_data_of_a_write(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = bytearray(8)
    target.reg(memory, requested_key=KEY)
    trigger, done = counters(initiator, 2)
    data = bytearray(b"original")
    queue(initiator, fi.OP_WRITE, write(initiator, peer, data, flags=fi.INJECT), trigger, 1, done)  # type: ignore[arg-type]
    data[:] = b"changed!"
    trigger.add(1)
    done.wait(1, timeout=WATCHDOG_S)
    assert memory == b"original"


def test_data_is_read_when_the_work_starts(duo: Duo) -> None:
    """The work is copied at the call; its data buffer belongs to the NIC, and is read at the threshold."""
    initiator, target, peer = duo
    memory = bytearray(8)
    target.reg(memory, requested_key=KEY)
    trigger, done = counters(initiator, 2)
    data = bytearray(b"original")
    work = queue(initiator, fi.OP_WRITE, write(initiator, peer, data), trigger, 1, done)  # type: ignore[arg-type]
    work.op.msg.rma_iov[0].key = 999
    work.threshold = 999
    work.op = None
    data[:] = b"changed!"
    trigger.add(1)
    done.wait(1, timeout=WATCHDOG_S)
    assert memory == b"changed!"


# ---- counting --------------------------------------------------------------------------------------------------------


def test_completion_counter_counts_instead_of_the_endpoints() -> None:
    own: dict[int, Any] = {fi.WRITE: None}
    with opened(CAPS) as target, opened(CAPS, counters=own) as initiator:
        target.reg(bytearray(8), requested_key=KEY)
        peer = initiator.av.insert(target.name)
        trigger, done = counters(initiator, 2)
        queue(initiator, fi.OP_WRITE, write(initiator, peer, b"12345678"), trigger, 1, done)
        queue(initiator, fi.OP_WRITE, write(initiator, peer, b"12345678"), trigger, 2)
        trigger.add(1)
        done.wait(1, timeout=WATCHDOG_S)
        assert own[fi.WRITE].read() == 0
        trigger.add(1)
        own[fi.WRITE].wait(1, timeout=WATCHDOG_S)
        assert done.read() == 1


def test_failure_counts_as_failure_and_has_an_entry(duo: Duo) -> None:
    initiator, _, peer = duo
    trigger, done = counters(initiator, 2)
    queue(initiator, fi.OP_WRITE, write(initiator, peer, b"12345678", context="lost"), trigger, 1, done)
    trigger.add(1)
    entry = initiator.error(initiator.wait_error())
    assert (entry.op_context, entry.err) == ("lost", fi.EKEYREJECTED)
    assert (done.read(), done.readerr()) == (0, 1)


def test_chain_of_counters_and_writes_runs_by_itself(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = np.zeros(100, "u8")
    target.reg(memory, requested_key=KEY)
    links = counters(initiator, 101)
    values = np.arange(1, 101, dtype="u8")
    for i in range(100):
        op = fi.OpRma(initiator.ep, fi.MsgRma([values[i : i + 1]], [fi.RmaIov(8 * i, 8, KEY)], peer))
        queue(initiator, fi.OP_WRITE, op, links[i], 1, links[i + 1])
    links[0].add(1)
    links[100].wait(1, timeout=WATCHDOG_S)
    assert np.array_equal(memory, values)
    assert [link.read() for link in links] == [1] * 101


def test_peers_write_triggers_an_answer() -> None:
    arrived: dict[int, Any] = {fi.REMOTE_WRITE: None}
    with opened(CAPS, counters=arrived) as target, opened(CAPS) as initiator:
        target.reg(bytearray(8), requested_key=KEY)
        home = bytearray(8)
        initiator.reg(home, requested_key=KEY)
        peer, back = initiator.av.insert(target.name), target.av.insert(initiator.name)
        (done,) = counters(target, 1)
        queue(target, fi.OP_WRITE, write(target, back, b"answered"), arrived[fi.REMOTE_WRITE], 1, done)
        initiator.ep.write(b"question", None, peer, 0, KEY)
        initiator.wait()
        done.wait(1, timeout=WATCHDOG_S)
        assert home == b"answered"


def test_more_work_than_the_transmit_queue_takes_is_done_in_order() -> None:
    def small(info: fi.Info) -> None:
        info.tx_attr.size = 4

    with opened(CAPS) as target, opened(CAPS, edit=small) as initiator:
        memory = np.zeros(1, "u8")
        target.reg(memory, requested_key=KEY)
        peer = initiator.av.insert(target.name)
        trigger, done = counters(initiator, 2)
        for i in range(64):
            op = write(initiator, peer, (i + 1).to_bytes(8, "little"), 0, fi.COMPLETION, i)
            queue(initiator, fi.OP_WRITE, op, trigger, 1, done)
        trigger.add(1)
        assert [entry.op_context for entry in initiator.wait(64)] == list(range(64))
        assert (done.read(), memory[0]) == (64, 64)


# ---- dropped work ----------------------------------------------------------------------------------------------------


def flushed(node: Node, work: Any, trigger: fi.Counter) -> None:
    node.domain.control(fi.FLUSH_WORK)


def cancelled(node: Node, work: Any, trigger: fi.Counter) -> None:
    node.domain.control(fi.CANCEL_WORK, work)


def without_trigger(node: Node, work: Any, trigger: fi.Counter) -> None:
    trigger.close()


def without_endpoint(node: Node, work: Any, trigger: fi.Counter) -> None:
    node.ep.close()


@pytest.mark.parametrize("drop", [flushed, cancelled, without_trigger, without_endpoint])
def test_dropped_work_does_nothing_and_frees_its_buffer(duo: Duo, drop: Callable[..., None]) -> None:
    initiator, target, peer = duo
    memory = bytearray(8)
    target.reg(memory, requested_key=KEY)
    trigger, done = counters(initiator, 2)
    data = np.full(1, 7, "u8")
    gone = weakref.ref(data)
    msg = fi.MsgRma([data], [fi.RmaIov(0, 8, KEY)], peer)
    work = queue(initiator, fi.OP_WRITE, fi.OpRma(initiator.ep, msg, fi.COMPLETION), trigger, 1, done)
    del data, msg
    drop(initiator, work, trigger)
    del work
    if not trigger.closed:
        trigger.add(5)
    assert (done.read(), done.readerr(), initiator.cq.read(), memory) == (0, 0, [], bytes(8))
    gc.collect()
    assert gone() is None


def test_queued_work_keeps_its_buffers(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = bytearray(8)
    target.reg(memory, requested_key=KEY)
    trigger, done = counters(initiator, 2)
    queue(initiator, fi.OP_WRITE, write(initiator, peer, bytes(bytearray(b"abcdefgh"))), trigger, 1, done)
    gc.collect()
    trigger.add(1)
    done.wait(1, timeout=WATCHDOG_S)
    assert memory == b"abcdefgh"


def test_endpoint_with_work_is_collected_and_its_work_dropped(duo: Duo) -> None:
    initiator, target, peer = duo
    memory = bytearray(8)
    target.reg(memory, requested_key=KEY)
    trigger, done = counters(initiator, 2)
    ep = initiator.domain.endpoint(initiator.info)
    ep.bind(initiator.cq, fi.TRANSMIT | fi.RECV)
    ep.bind(initiator.av)
    ep.enable()
    op = fi.OpRma(ep, fi.MsgRma([b"12345678"], [fi.RmaIov(0, 8, KEY)], peer))
    queue(initiator, fi.OP_WRITE, op, trigger, 1, done)
    gone = weakref.ref(ep)
    del op
    owner = [ep]
    del ep
    with pytest.warns(ResourceWarning, match="was never closed"):
        owner.clear()
    gc.collect()
    assert gone() is None
    trigger.add(1)
    assert (done.read(), done.readerr(), memory) == (0, 0, bytes(8))


def test_cancel_of_work_that_does_not_wait_is_not_found(duo: Duo) -> None:
    initiator, target, peer = duo
    target.reg(bytearray(8), requested_key=KEY)
    (trigger,) = counters(initiator, 1)
    work = queue(initiator, fi.OP_WRITE, write(initiator, peer, b"12345678"), trigger, 0)
    for other in (work, fi.DeferredWork()):
        with pytest.raises(fi.NotFound):
            initiator.domain.control(fi.CANCEL_WORK, other)


def test_objects_close_while_work_waits(duo: Duo) -> None:
    """Work counts in a closed counter without effect, and does not start once its endpoint is closed."""
    initiator, target, peer = duo
    memory = bytearray(8)
    target.reg(memory, requested_key=KEY)
    trigger, done, later = counters(initiator, 3)
    for _ in range(3):
        queue(initiator, fi.OP_WRITE, write(initiator, peer, b"12345678"), trigger, 1, done)
        queue(initiator, fi.OP_CNTR_ADD, fi.OpCntr(done, 1), trigger, 1)
    queue(initiator, fi.OP_WRITE, write(initiator, peer, b"too late"), trigger, 2, later)
    done.close()
    trigger.add(1)
    initiator.ep.close()
    trigger.add(1)
    target.cq.read(0)  # progress
    assert later.read() == 0
    assert memory in (b"12345678", bytes(8))  # operations that had started are done, or were dropped by the close
    trigger.close()


# ---- refusals --------------------------------------------------------------------------------------------------------


def refused(node: Node, work: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        node.domain.control(fi.QUEUE_WORK, work)


def test_bad_work_is_refused(duo: Duo) -> None:
    initiator, target, peer = duo
    target.reg(bytearray(8), requested_key=KEY)
    trigger, done = counters(initiator, 2)
    good = write(initiator, peer, b"12345678")
    other = counters(target, 1)[0]
    domain_refuses: list[tuple[Any, type[Exception]]] = [
        (fi.DeferredWork(1, None, done, fi.OP_WRITE, good), fi.InvalidArgument),
        (fi.DeferredWork(1, other, done, fi.OP_WRITE, good), fi.InvalidArgument),
        (fi.DeferredWork(1, trigger, other, fi.OP_WRITE, good), fi.InvalidArgument),
        (fi.DeferredWork(1, trigger, done, 99, good), fi.InvalidArgument),
        (fi.DeferredWork(1, trigger, done, fi.OP_SEND, good), TypeError),
        (fi.DeferredWork(1, trigger, done, fi.OP_WRITE, None), TypeError),
        (fi.DeferredWork(-1, trigger, done, fi.OP_WRITE, good), fi.InvalidArgument),
        (fi.DeferredWork(1, "x", done, fi.OP_WRITE, good), TypeError),  # type: ignore[arg-type]
        (fi.DeferredWork(1, trigger, done, fi.OP_CNTR_ADD, fi.OpCntr(done, 1)), fi.InvalidArgument),
        (fi.DeferredWork(1, trigger, None, fi.OP_CNTR_ADD, fi.OpCntr(None, 1)), fi.InvalidArgument),  # type: ignore[arg-type]
        (fi.DeferredWork(1, trigger, None, fi.OP_WRITE, fi.OpRma(target.ep, good.msg)), fi.InvalidArgument),
        (fi.DeferredWork(1, trigger, None, fi.OP_WRITE, fi.OpRma("ep", good.msg)), TypeError),
        (fi.DeferredWork(1, trigger, None, fi.OP_WRITE, fi.OpRma(initiator.ep, None)), TypeError),  # type: ignore[arg-type]
        (fi.DeferredWork(1, trigger, None, fi.OP_WRITE, fi.OpRma(initiator.cq, good.msg)), TypeError),
        (None, fi.InvalidArgument),
        ("work", fi.InvalidArgument),
    ]
    for work, error in domain_refuses:
        refused(initiator, work, error)
    unknown = write(initiator, 12345, b"12345678")
    refused(initiator, fi.DeferredWork(1, trigger, done, fi.OP_WRITE, unknown), fi.InvalidArgument)
    flags = write(initiator, peer, b"12345678", flags=int(fi.PEEK))
    refused(initiator, fi.DeferredWork(1, trigger, done, fi.OP_WRITE, flags), fi.BadFlags)
    trigger.add(1)
    assert (done.read(), initiator.cq.read()) == (0, [])


def test_work_of_an_endpoint_of_another_domain_is_refused(duo: Duo) -> None:
    """Everything else of the work is right: its counter is the domain's, its peer the endpoint's."""
    initiator, target, _ = duo
    memory = bytearray(8)
    target.reg(memory, requested_key=KEY)
    (trigger,) = counters(initiator, 1)
    work = fi.DeferredWork(1, trigger, None, fi.OP_WRITE, write(target, target.me, b"12345678"))
    with pytest.raises(fi.InvalidArgument, match="is of another domain"):
        initiator.domain.control(fi.QUEUE_WORK, work)
    trigger.add(1)
    assert memory == bytes(8)


def test_closed_objects_are_refused(duo: Duo) -> None:
    initiator, target, peer = duo
    target.reg(bytearray(8), requested_key=KEY)
    trigger, done, gone = counters(initiator, 3)
    gone.close()
    good = write(initiator, peer, b"12345678")
    refused(initiator, fi.DeferredWork(1, gone, done, fi.OP_WRITE, good), fi.BadState)
    refused(initiator, fi.DeferredWork(1, trigger, gone, fi.OP_WRITE, good), fi.BadState)
    initiator.ep.close()
    refused(initiator, fi.DeferredWork(1, trigger, done, fi.OP_WRITE, good), fi.BadState)


def test_endpoint_that_is_not_enabled_is_refused() -> None:
    with opened(CAPS, enable=False) as node, contextlib.suppress(fi.BadState):
        (trigger,) = counters(node, 1)
        refused(node, fi.DeferredWork(1, trigger, None, fi.OP_WRITE, write(node, 0, b"12345678")), fi.BadState)


# ---- FI_TRIGGER ------------------------------------------------------------------------------------------------------


@pytest.fixture
def triggering() -> Iterator[Duo]:
    with opened(CAPS) as target, opened(CAPS | fi.TRIGGER) as initiator:
        yield initiator, target, initiator.av.insert(target.name)


def at(cntr: fi.Counter, threshold: int) -> fi.TriggeredContext:
    return fi.TriggeredContext(fi.TRIGGER_THRESHOLD, fi.TriggerThreshold(cntr, threshold))


def test_triggered_operations_start_by_threshold_then_in_order(triggering: Duo) -> None:
    """fi_trigger(3): even if the counter increments by more than 1."""
    initiator, target, peer = triggering
    target.reg(bytearray(64), requested_key=KEY)
    (cntr,) = counters(initiator, 1)
    contexts = [at(cntr, threshold) for threshold in (3, 1, 2, 1, 3, 9)]
    for context in contexts:
        msg = fi.MsgRma([b"12345678"], [fi.RmaIov(0, 8, KEY)], peer, context=context)
        initiator.ep.writemsg(msg, fi.TRIGGER)
    assert initiator.cq.read() == []
    cntr.add(3)
    assert [contexts.index(entry.op_context) for entry in initiator.wait(5)] == [1, 3, 2, 0, 4]


def test_every_message_call_takes_the_flag(triggering: Duo) -> None:
    initiator, target, peer = triggering
    memory = one(0)
    target.reg(memory, requested_key=KEY)
    home = one(0)
    (cntr,) = counters(initiator, 1)
    ep, back = initiator.ep, target.av.insert(initiator.name)
    old, found, room = one(0), one(0), bytearray(8)
    steps: list[tuple[Callable[[Any], None], int]] = [
        (lambda c: ep.writemsg(fi.MsgRma([one(5)], [fi.RmaIov(0, 8, KEY)], peer, context=c), fi.TRIGGER), 5),
        (lambda c: ep.readmsg(fi.MsgRma([home], [fi.RmaIov(0, 8, KEY)], peer, context=c), fi.TRIGGER), 5),
        (lambda c: ep.atomicmsg(atomic(peer, one(2), context=c), fi.TRIGGER), 7),
        (lambda c: ep.fetch_atomicmsg(atomic(peer, one(1), context=c), [old], None, fi.TRIGGER), 8),
        (
            lambda c: ep.compare_atomicmsg(
                atomic(peer, one(40), fi.CSWAP, c), [one(8)], None, [found], None, fi.TRIGGER
            ),
            40,
        ),
    ]
    for step, (call, value) in enumerate(steps, 1):
        context = at(cntr, step)
        call(context)
        cntr.add(1)
        assert initiator.wait()[0].op_context is context
        assert memory[0] == value
    assert (home[0], old[0], found[0]) == (5, 7, 8)
    target.ep.recv(bytearray(8))
    target.ep.trecv(bytearray(8), None, fi.ADDR_UNSPEC, TAG)
    ep.sendmsg(fi.Msg([b"12345678"], None, peer, at(cntr, 6)), fi.TRIGGER)
    ep.tsendmsg(fi.MsgTagged([b"12345678"], None, peer, TAG, context=at(cntr, 6)), fi.TRIGGER)
    ep.recvmsg(fi.Msg([room], context=at(cntr, 7)), fi.TRIGGER)
    ep.trecvmsg(fi.MsgTagged([bytearray(8)], tag=TAG, context=at(cntr, 7)), fi.TRIGGER)
    cntr.add(1)
    assert len(target.wait(2)) == len(initiator.wait(2)) == 2
    target.ep.send(b"ABCDEFGH", None, back)
    target.ep.tsend(b"ABCDEFGH", None, back, TAG)
    cntr.add(1)
    assert len(initiator.wait(2)) == 2
    assert room == b"ABCDEFGH"


def test_flag_without_a_triggered_context_is_refused(triggering: Duo) -> None:
    initiator, target, peer = triggering
    target.reg(bytearray(8), requested_key=KEY)
    (cntr,) = counters(initiator, 1)
    gone = counters(initiator, 1)[0]
    gone.close()
    for context, error in (
        (None, fi.InvalidArgument),
        ("context", fi.InvalidArgument),
        (fi.TriggeredContext(fi.TRIGGER_XPU, fi.TriggerThreshold(cntr, 1)), fi.NoSys),
        (fi.TriggeredContext(), TypeError),
        (at(gone, 1), fi.BadState),
    ):
        msg = fi.MsgRma([b"12345678"], [fi.RmaIov(0, 8, KEY)], peer, context=context)
        with pytest.raises(error):
            initiator.ep.writemsg(msg, fi.TRIGGER)
    with pytest.raises(TypeError):
        initiator.ep.writemsg(None, fi.TRIGGER)


def test_flag_without_the_capability_is_refused(duo: Duo) -> None:
    initiator, target, peer = duo
    target.reg(bytearray(8), requested_key=KEY)
    msg = fi.MsgRma([b"12345678"], [fi.RmaIov(0, 8, KEY)], peer, context=at(counters(initiator, 1)[0], 1))
    with pytest.raises(fi.BadFlags):
        initiator.ep.writemsg(msg, fi.TRIGGER)


def test_triggered_operations_of_an_alias_and_after_new_default_flags(triggering: Duo) -> None:
    initiator, target, peer = triggering
    memory = bytearray(16)
    target.reg(memory, requested_key=KEY)
    (cntr,) = counters(initiator, 1)
    initiator.ep.control(fi.SETOPSFLAG, fi.TRANSMIT | fi.DELIVERY_COMPLETE)
    with initiator.ep.alias(fi.TRANSMIT) as alias:
        for number, ep in enumerate((initiator.ep, alias)):
            ep.writemsg(
                fi.MsgRma([b"12345678"], [fi.RmaIov(8 * number, 8, KEY)], peer, context=at(cntr, 1)), fi.TRIGGER
            )
            ep.writemsg(fi.MsgRma([b"plain..."], [fi.RmaIov(8 * number, 8, KEY)], peer, context="plain"))
        assert [entry.op_context for entry in initiator.wait(2)] == ["plain", "plain"]
        cntr.add(1)
        initiator.wait(2)
        assert memory == b"12345678" * 2
