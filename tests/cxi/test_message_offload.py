"""The NIC matches, fetches and counts while neither program calls the provider (fi_cxi(7) "Messaging", "Counters").

The receiver is another process. Between its last call and the end of the test it looks only at its memory.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.cxi.support import opened
from tests.cxi.test_counting_alone import N, Watched
from tests.fi.msg_support import data_of, send
from tests.fi.support import Node
from tests.patience import Patience
from tests.procs.children import CALL_S, Child
from tests.procs.peer import World
from tests.share.owner import stop

from weft import cxi, fi
from weft.providers.cxi import device

CAPS = int(fi.MSG | fi.TAGGED)
LONG = 200_000


# ---- the other process -----------------------------------------------------------------------------------------------


def open_node(world: World, rdzv_get_en: int = 1) -> bytes:
    device.set_values("cxi0", rdzv_get_en=rdzv_get_en)
    world.more["opened"] = opened(CAPS)
    world.more["node"] = world.more["opened"].__enter__()
    return bytes(world.more["node"].name)


def close_node(world: World) -> None:
    world.more.pop("opened").__exit__(None, None, None)


def open_counted(world: World, length: int, count: int) -> bytes:
    """An endpoint with a counter of receives, `count` receives with tags from 0, and a watch for N of them."""
    world.more["opened"] = opened(CAPS, enable=False)
    node: Node = world.more["opened"].__enter__()
    world.more["node"] = node
    counter = node.keep(node.domain.cntr_open())
    node.ep.bind(counter, fi.RECV)
    node.ep.enable()
    post(world, length, list(range(count)))
    world.more["watched"], world.more["counter"] = Watched(counter), counter
    return bytes(node.name)


def progressed(world: World, how: str) -> tuple[int, int]:
    """What the NIC has told of the counter before the program makes progress, and after."""
    node, word = world.more["node"], world.more["watched"].word
    before = cxi.cntr_wb_read(word)
    node.cq.read(1) if how == "queue" else world.more["counter"].read()
    return before, cxi.cntr_wb_read(word)


def post(world: World, length: int, tags: list[int]) -> None:
    """A receive for each tag; a negative one is a receive without a tag."""
    node: Node = world.more["node"]
    rooms = world.more["rooms"] = [np.zeros(length, np.uint8) for _ in tags]
    for tag, room in zip(tags, rooms, strict=True):
        if tag < 0:
            node.ep.recv(room)
        else:
            node.ep.trecv(room, tag=tag)


def pulls(world: World, count: int, reads: bool) -> tuple[int, int]:
    """Messages whose rest the NIC has fetched, and the program's reads, at the end of `count` receives.

    reads   nothing is fetched before the program makes progress.
    """
    node: Node = world.more["node"]
    patience = Patience(CALL_S)
    while node.ep.message_statistics().matched < count:
        assert not patience.over
    if reads:
        found = node.ep.message_statistics()
        assert (found.gets, found.reads) == (0, 0)
        assert not any(room[-1000:].any() for room in world.more["rooms"])
    node.wait(count)
    found = node.ep.message_statistics()
    return found.gets, found.reads


def look(world: World, wanted: list[bytes]) -> bool:
    """Whether the receives come to have these bytes. No call of Weft's objects."""
    deadline = time.monotonic() + CALL_S / 2
    for room, payload in zip(world.more["rooms"], wanted, strict=True):
        while bytes(room) != payload:
            if time.monotonic() > deadline:
                return False
            os.sched_yield()
    return True


def send_all(world: World, name: bytes, lengths: list[int]) -> None:
    """Messages of this process, all of which have left it at the end."""
    node: Node = world.more["node"]
    peer = node.av.insert(cxi.Address.from_bytes(name))
    for i, length in enumerate(lengths):
        node.ep.tsend(data_of(length, seed=i), None, peer, i)
    node.wait(len(lengths))


def begin_all(world: World, name: bytes, length: int, count: int) -> None:
    """Messages with tags from 0; their ends are not waited for."""
    node: Node = world.more["node"]
    peer = node.av.insert(cxi.Address.from_bytes(name))
    for i in range(count):
        node.ep.tsend(data_of(length, seed=i), None, peer, i)


# ---- this process ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["shared", "strict"])
def target(request: pytest.FixtureRequest, registry: Path) -> Iterator[Child]:
    """A receiver: its memory is mapped by the sender, or only its NIC reaches it."""
    with Child(WEFT_ISOLATION=request.param) as child:
        yield child


@pytest.mark.clause("cxi.overview.match-offload", "cxi.msg.hw-matching")
@pytest.mark.parametrize("length", [8, 1000])
def test_messages_are_matched_while_the_target_calls_nothing(target: Child, length: int) -> None:
    """Each goes to the receive with its tag, or to one without, whatever the order of posting."""
    with opened(CAPS) as sender:
        peer = sender.av.insert(cxi.Address.from_bytes(target.call(open_node)))
        tags = [3, -1, 1, 2, -1]
        target.call(post, length, tags)
        payloads = [data_of(length, seed=i) for i in range(len(tags))]
        watching = target.start(look, [bytes(payload) for payload in payloads])
        for i in (2, 3, 0, 1, 4):
            send(sender, tags[i] >= 0, payloads[i], peer, tag=tags[i])
        assert watching.result()
        sender.wait(5)
        target.call(close_node)


@pytest.mark.clause("cxi.msg.rdzv-hw-get", "cxi.env.rdzv-rdma")
@pytest.mark.parametrize("protocol", ["default", "alt_read"])
def test_rest_of_a_message_is_fetched_while_neither_side_calls_anything(
    monkeypatch: pytest.MonkeyPatch, registry: Path, protocol: str
) -> None:
    """fi_cxi(7): the Get is the NIC's, and ends the operation. Its bytes go into the buffer of the receive."""
    monkeypatch.setenv("FI_CXI_RDZV_PROTO", protocol)
    with Child() as target, opened(CAPS) as sender:
        peer = sender.av.insert(cxi.Address.from_bytes(target.call(open_node)))
        target.call(post, LONG, [-1, 1, 2])
        payloads = [data_of(LONG, seed=i) for i in range(3)]
        watching = target.start(look, [bytes(payload) for payload in payloads])
        for payload, tag in zip(payloads, (-1, 1, 2), strict=True):
            send(sender, tag >= 0, payload, peer, tag=tag)
        assert watching.result()
        sender.wait(3)
        target.call(close_node)


@pytest.mark.clause("cxi.env.rdzv-proto", "cxi.env.rdzv-proto-driver", "cxi.env.rdzv-rdma")
@pytest.mark.parametrize(("protocol", "rdzv_get_en", "reads"), [
    ("default", 1, 0), ("default", 0, 0), ("alt_read", 1, 0), ("alt_read", 0, 3),
])  # fmt: skip
def test_alternate_protocol_reads_when_the_receivers_program_makes_progress(
    monkeypatch: pytest.MonkeyPatch, registry: Path, protocol: str, rdzv_get_en: int, reads: int
) -> None:
    """FI_CXI_RDZV_PROTO: alt_read needs the driver's rdzv_get_en=0; the sender's program takes no part in either."""
    monkeypatch.setenv("FI_CXI_RDZV_PROTO", protocol)
    with Child() as target, opened(CAPS) as sender:
        peer = sender.av.insert(cxi.Address.from_bytes(target.call(open_node, rdzv_get_en)))
        target.call(post, LONG, [-1, 1, 2])
        payloads = [data_of(LONG, seed=i) for i in range(3)]
        for payload, tag in zip(payloads, (-1, 1, 2), strict=True):
            send(sender, tag >= 0, payload, peer, tag=tag)
        assert target.call(pulls, 3, reads != 0) == (3 - reads, reads)
        assert target.call(look, [bytes(payload) for payload in payloads])
        sender.wait(3)
        target.call(close_node)


@pytest.mark.clause("cxi.env.sw-rx-tx-init-max")
@pytest.mark.parametrize(("limit", "most"), [(None, 200), ("100", 100), ("64", 64), ("3", 64)])
def test_variable_limits_the_reads_that_software_starts(
    monkeypatch: pytest.MonkeyPatch, registry: Path, limit: str | None, most: int
) -> None:
    """FI_CXI_SW_RX_TX_INIT_MAX, 1024 by default and 64 at least: at a time, of the alternate rendezvous protocol."""
    monkeypatch.setenv("FI_CXI_RDZV_PROTO", "alt_read")
    if limit is not None:
        monkeypatch.setenv("FI_CXI_SW_RX_TX_INIT_MAX", limit)
    device.set_values("cxi0", rdzv_get_en=0)
    count, length = 200, 5000
    with Child() as sender, opened(CAPS) as receiver:
        sender.call(open_node, 0)
        sender.call(begin_all, bytes(receiver.name), length, count)
        patience = Patience(CALL_S)
        while receiver.ep.message_statistics().unexpected < count:
            assert not patience.over
        stop(sender.pid)  # reads that have begun do not end
        rooms = [np.zeros(length, np.uint8) for _ in range(count)]
        for i, room in enumerate(rooms):
            receiver.ep.trecv(room, tag=i)
        assert receiver.ep.message_statistics().reads == 0
        for _ in range(100):
            assert not receiver.cq.read()
        found = receiver.ep.message_statistics()
        assert (found.reads, found.reads_most) == (most, most)
        os.kill(sender.pid, signal.SIGCONT)
        receiver.wait(count)
        found = receiver.ep.message_statistics()
        assert (found.gets, found.reads, found.reads_most) == (0, count, most)
        assert all(np.array_equal(room, data_of(length, seed=i)) for i, room in enumerate(rooms))
        sender.call(close_node)


@pytest.mark.clause("cxi.cntr.send-small")
@pytest.mark.parametrize("length", [8, 192, 2047])
@pytest.mark.parametrize("expected", [True, False])
def test_counter_of_sends_advances_without_progress_of_either_side(target: Child, expected: bool, length: int) -> None:
    """fi_cxi(7) "Counters": of messages that are smaller than the rendezvous threshold."""
    with opened(CAPS, enable=False) as sender:
        counter = sender.keep(sender.domain.cntr_open())
        sender.ep.bind(counter, fi.SEND)
        sender.ep.enable()
        peer = sender.av.insert(cxi.Address.from_bytes(target.call(open_node)))
        target.call(post, length, [1] * N if expected else [])
        watched = Watched(counter)
        payload = data_of(length)
        for _ in range(N):
            sender.ep.tsend(payload, None, peer, 1)
        assert watched.reaches() == N
        sender.wait(N)
        target.call(close_node)


@pytest.mark.clause("cxi.cntr.recv-never", "cxi.cntr.software-progress")
@pytest.mark.parametrize("how", ["queue", "counter"])
@pytest.mark.parametrize("length", [8, 1000, 20_000])
def test_counter_of_receives_waits_for_progress_of_the_program(target: Child, length: int, how: str) -> None:
    """fi_cxi(7) "Counters": the NIC has matched and stored N + 1 messages, and the counter is told of none."""
    with opened(CAPS) as sender:
        peer = sender.av.insert(cxi.Address.from_bytes(target.call(open_counted, length, N + 1)))
        payloads = [data_of(length, seed=i) for i in range(N + 1)]
        watching = target.start(look, [bytes(payload) for payload in payloads])
        for i, payload in enumerate(payloads):
            sender.ep.tsend(payload, None, peer, i)
        assert watching.result()
        sender.wait(N + 1)
        before, after = target.call(progressed, how)
        assert before == 0
        assert after >= N
        target.call(close_node)


@pytest.mark.clause("cxi.cntr.software-progress")
@pytest.mark.parametrize(("length", "flags"), [(LONG, 0), (8, int(fi.MATCH_COMPLETE))], ids=["long", "match-complete"])
def test_counter_of_other_sends_waits_for_progress_of_the_program(target: Child, length: int, flags: int) -> None:
    """fi_cxi(7) "Counters": of messages that are pulled, or end with their match."""
    with opened(CAPS, enable=False) as sender:
        counter = sender.keep(sender.domain.cntr_open())
        sender.ep.bind(counter, fi.SEND)
        sender.ep.enable()
        peer = sender.av.insert(cxi.Address.from_bytes(target.call(open_node)))
        target.call(post, length, [1] * N)
        watched = Watched(counter)
        payload = data_of(length)
        for _ in range(N):
            sender.ep.tsendmsg(fi.MsgTagged([payload], None, peer, 1), flags | int(fi.COMPLETION))
        patience = Patience(CALL_S)
        while sender.ep.statistics().tx_pending:  # no progress of the program
            assert not patience.over
        sender.ep.message_statistics()  # takes the lock under which the last message ended
        assert cxi.cntr_wb_read(watched.word) == 0
        assert sender.wait(N)
        assert cxi.cntr_wb_read(watched.word) == N
        target.call(close_node)


@pytest.mark.clause("cxi.msg.unexpected-buffers")
def test_unexpected_messages_outlive_their_sender(registry: Path) -> None:
    """fi_cxi(7) "Unexpected Messages": the bytes are in buffers of the provider, which nobody else has."""
    lengths = [0, 8, 192, 1000, 4097]
    with opened(CAPS) as receiver:
        with Child() as sender:
            sender.call(open_node)
            sender.call(send_all, bytes(receiver.name), lengths)
            sender.call(close_node)
        for i, length in enumerate(lengths):
            room = np.zeros(length, np.uint8)
            receiver.ep.trecv(room, tag=i)
            receiver.wait()
            assert np.array_equal(room, data_of(length, seed=i))
