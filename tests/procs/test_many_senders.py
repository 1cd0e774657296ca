"""Two hundred endpoints of four processes send to one receiver: nothing is lost, doubled or out of order."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cxi.match_support import service_with
from tests.patience import Patience
from tests.procs.children import CALL_S, Child
from tests.procs.peer import World
from tests.procs.test_two_processes import PATHS

from weft import fi

pytestmark = pytest.mark.procs

PROCESSES, ENDPOINTS, MESSAGES = 4, 50, 60
LENGTHS = (8, 8, 8, 8, 100, 152, 153, 1000, 4000, 20_000)  # the last is a rendezvous of both providers
LONGEST = max(LENGTHS)
DEPTH = 64  # receives at a time
_BYTES = np.random.default_rng(1).integers(0, 256, LONGEST + 1024, np.uint8)


def payload(sender: int, number: int) -> np.ndarray[Any, Any]:
    """The message of a sender with this number; its first 8 bytes name both."""
    length = LENGTHS[hash((sender, number)) % len(LENGTHS)]
    start = (31 * sender + number) % 1024
    data = _BYTES[start : start + length].copy()
    data[:8].view(np.uint32)[:] = sender, number
    return data


class Ends:
    """A domain, a queue, a vector, and enabled endpoints of a provider."""

    def __init__(self, provider: str, count: int, caps: int = int(fi.MSG | fi.TAGGED), key: Any = None) -> None:
        mode = fi.MR_ENDPOINT | fi.MR_ALLOCATED if provider == "cxi" else 0
        asked = fi.Info(
            caps=caps, domain_attr=fi.DomainAttr(mr_mode=mode), fabric_attr=fi.FabricAttr(prov_name=provider)
        )
        asked.domain_attr.auth_key = key
        info = fi.getinfo(hints=asked)[0]
        self.fabric = fi.Fabric(info.fabric_attr)
        self.domain = self.fabric.domain(info)
        self.cq = self.domain.cq_open(format=fi.CQ_FORMAT_TAGGED, size=1 << 16)
        self.av = self.domain.av_open()
        self.eps = []
        for _ in range(count):
            ep = self.domain.endpoint(info)
            ep.bind(self.cq, fi.TRANSMIT | fi.RECV)
            ep.bind(self.av)
            ep.enable()
            self.eps.append(ep)

    def close(self) -> None:
        for one in (*self.eps, self.cq, self.av, self.domain, self.fabric):
            one.close()


def send_all(world: World, provider: str, receiver: Any, first: int, tagged: bool) -> int:
    """Every endpoint sends its messages, in turn. Returns how many completed."""
    ends = Ends(provider, ENDPOINTS)
    peer = ends.av.insert(receiver)
    done = 0
    deadline = Patience(CALL_S)
    for number in range(MESSAGES):
        for i, ep in enumerate(ends.eps):
            data = payload(first + i, number)
            while True:
                assert not deadline.over, f"{done} of {number * ENDPOINTS + i} completed"
                with contextlib.suppress(fi.Again):
                    if tagged:
                        ep.tsend(data, None, peer, first + i)
                    else:
                        ep.send(data, None, peer)
                    break
                done += len(ends.cq.read())
                os.sched_yield()
    while done < MESSAGES * ENDPOINTS:
        done += len(ends.cq.sread(timeout=CALL_S / 2))
    assert not ends.cq.read()
    ends.close()
    return done


class Receiver:
    """Takes any message. receives: of each, in the order of posting, (sender, number)."""

    def __init__(self, ends: Ends, tagged: bool) -> None:
        self.ends, self.ep, self.tagged = ends, ends.eps[0], tagged
        self.rooms = [np.zeros(LONGEST, np.uint8) for _ in range(DEPTH)]
        self.receives: list[tuple[int, int] | None] = []
        self.free = list(range(DEPTH))

    def post(self) -> bool:
        """False: not now, because list entries are short or matching moves to software."""
        room = self.free[-1]
        context = (len(self.receives), room)
        try:
            if self.tagged:
                self.ep.trecv(self.rooms[room], tag=0, ignore=(1 << 40) - 1, context=context)
            else:
                self.ep.recv(self.rooms[room], context=context)
        except fi.Again:
            return False
        self.free.pop()
        self.receives.append(None)
        return True

    def take(self) -> int:
        """Completions so far are looked at; their number."""
        entries = self.ends.cq.read()
        for entry in entries:
            index, room = entry.op_context
            data = self.rooms[room]
            sender, number = (int(part) for part in data[:8].view(np.uint32))
            assert np.array_equal(data[: entry.len], payload(sender, number)), (sender, number)
            assert entry.tag == (sender if self.tagged else 0)
            self.receives[index] = (sender, number)
            self.free.append(room)
        return len(entries)


SWEEP = pytest.mark.sweep
FLOW_CONTROL = pytest.mark.clause("cxi.msg.flow-control", "cxi.msg.flow-control-recovery")
# Provider, path, whether tagged, match mode, list entries of the receiver's service (0: as many as usual).
CASES = [
    ("weft", "direct", False, "", 0),
    ("weft", "tcp", True, "", 0),
    ("cxi", "direct", True, "hardware", 0),
    ("cxi", "direct", False, "hybrid", 120),
    pytest.param("weft", "ring", True, "", 0, marks=SWEEP),
    pytest.param("weft", "strict", False, "", 0, marks=SWEEP),
    pytest.param("cxi", "strict", False, "hardware", 0, marks=SWEEP),
    pytest.param("cxi", "strict", True, "hybrid", 120, marks=SWEEP),
    pytest.param("cxi", "direct", True, "software", 120, marks=SWEEP),
    pytest.param("cxi", "direct", True, "hardware", 200, marks=[SWEEP, FLOW_CONTROL]),
]


@pytest.mark.parametrize(("provider", "path", "tagged", "mode", "entries"), CASES)
def test_messages_of_200_senders_arrive_once_and_in_order(
    provider: str, path: str, tagged: bool, mode: str, entries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th receive that takes a message of a sender takes the sender's n-th message."""
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    if mode:
        monkeypatch.setenv("FI_CXI_RX_MATCH_MODE", mode)
    with Child(**PATHS[path]) as child:
        found = child.call(receive_all, provider, path, tagged, entries, timeout=2 * CALL_S)
    if mode == "hybrid":
        assert (found.changes, found.state) == (1, "software")
    if mode == "hardware" and entries:
        assert found.flow_controls > 0
        assert found.refused > 0
    shutil.rmtree(tmp_path / "cxi", ignore_errors=True)  # a user has 1023 registries at most


def receive_all(world: World, provider: str, path: str, tagged: bool, entries: int) -> Any:
    """Receives everything; the statistics of the receiver."""
    ends = Ends(provider, 1, key=service_with(entries) if entries else None)
    receiver = Receiver(ends, tagged)
    total = PROCESSES * ENDPOINTS * MESSAGES
    deadline = Patience(CALL_S)
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(**PATHS[path])) for _ in range(PROCESSES)]
        name = ends.eps[0].getname()
        calls = [child.start(send_all, provider, name, ENDPOINTS * i, tagged) for i, child in enumerate(children)]
        if entries:  # a flood before the first receive
            while ends.eps[0].message_statistics().unexpected < entries // 2:
                assert not ends.cq.read()
        taken = 0
        while taken < total:
            assert not deadline.over, f"{taken} of {total}: {ends.eps[0].message_statistics()}"
            while receiver.free and len(receiver.receives) < total and receiver.post():
                pass
            found = receiver.take()
            taken += found
            if not found:
                os.sched_yield()
        assert [call.result() for call in calls] == [ENDPOINTS * MESSAGES] * PROCESSES
        assert receiver.post()  # finds nothing
        assert not ends.cq.read()
    orders: dict[int, list[int]] = {}
    for came in receiver.receives[:-1]:
        assert came is not None
        orders.setdefault(came[0], []).append(came[1])
    assert orders == {sender: list(range(MESSAGES)) for sender in range(PROCESSES * ENDPOINTS)}
    statistics = ends.eps[0].message_statistics()
    ends.close()
    return statistics
