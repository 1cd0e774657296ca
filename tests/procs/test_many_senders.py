"""Two hundred endpoints of four processes send to one receiver: nothing is lost, doubled or out of order."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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

    def __init__(self, provider: str, count: int, caps: int = int(fi.MSG | fi.TAGGED)) -> None:
        mode = fi.MR_ENDPOINT | fi.MR_ALLOCATED if provider == "cxi" else 0
        asked = fi.Info(
            caps=caps, domain_attr=fi.DomainAttr(mr_mode=mode), fabric_attr=fi.FabricAttr(prov_name=provider)
        )
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
    deadline = time.monotonic() + CALL_S
    for number in range(MESSAGES):
        for i, ep in enumerate(ends.eps):
            data = payload(first + i, number)
            while True:
                assert time.monotonic() < deadline, f"{done} of {number * ENDPOINTS + i} completed"
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

    def post(self) -> None:
        room = self.free.pop()
        context = (len(self.receives), room)
        if self.tagged:
            self.ep.trecv(self.rooms[room], tag=0, ignore=(1 << 40) - 1, context=context)
        else:
            self.ep.recv(self.rooms[room], context=context)
        self.receives.append(None)

    def take(self) -> int:
        """Completions so far are looked at; their number."""
        entries = self.ends.cq.sread(timeout=CALL_S / 2)
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
CASES = [
    ("weft", "direct", False),
    ("weft", "tcp", True),
    ("cxi", "direct", True),
    pytest.param("weft", "ring", True, marks=SWEEP),
    pytest.param("weft", "strict", False, marks=SWEEP),
    pytest.param("cxi", "strict", False, marks=SWEEP),
]


@pytest.mark.parametrize(("provider", "path", "tagged"), CASES)
def test_messages_of_200_senders_arrive_once_and_in_order(
    provider: str, path: str, tagged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th receive that takes a message of a sender takes the sender's n-th message."""
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    with Child(**PATHS[path]) as child:
        child.call(receive_all, provider, path, tagged, timeout=2 * CALL_S)
    shutil.rmtree(tmp_path / "cxi", ignore_errors=True)  # a user has 1023 registries at most


def receive_all(world: World, provider: str, path: str, tagged: bool) -> None:
    ends = Ends(provider, 1)
    receiver = Receiver(ends, tagged)
    total = PROCESSES * ENDPOINTS * MESSAGES
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child(**PATHS[path])) for _ in range(PROCESSES)]
        name = ends.eps[0].getname()
        calls = [child.start(send_all, provider, name, ENDPOINTS * i, tagged) for i, child in enumerate(children)]
        taken = 0
        while taken < total:
            while receiver.free and len(receiver.receives) < total:
                receiver.post()
            taken += receiver.take()
        assert [call.result() for call in calls] == [ENDPOINTS * MESSAGES] * PROCESSES
        receiver.post()  # finds nothing
        assert not ends.cq.read()
    orders: dict[int, list[int]] = {}
    for found in receiver.receives[:-1]:
        assert found is not None
        orders.setdefault(found[0], []).append(found[1])
    assert orders == {sender: list(range(MESSAGES)) for sender in range(PROCESSES * ENDPOINTS)}
    ends.close()
