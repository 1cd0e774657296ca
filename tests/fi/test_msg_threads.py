"""Threads share endpoints (fi_domain(3) FI_THREAD_SAFE): each message arrives once, in the order of its thread."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.cxi.support import opened as opened_cxi
from tests.fi.support import WATCHDOG_S, Node, opened
from tests.patience import Patience

from weft import fi

pytestmark = pytest.mark.general("messages")

Pair = tuple[Node, Node]
CAPS = int(fi.MSG | fi.TAGGED)
SENDERS, RECEIVERS, COUNT = 4, 2, 2000
ELSE = 1 << 30  # a tag that no receive names
LENGTHS = (8, 8, 8, 100, 1000, 5000, 20_000)


@pytest.fixture(params=["general", "cxi"])
def ends(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """(sender, receiver)."""
    monkeypatch.setenv("WEFT_CXI_REGISTRY", str(tmp_path / "cxi"))
    make: Callable[[int], contextlib.AbstractContextManager[Node]] = opened_cxi if request.param == "cxi" else opened
    with make(CAPS) as receiver, make(CAPS) as sender:
        yield sender, receiver
    shutil.rmtree(tmp_path / "cxi", ignore_errors=True)  # a user has 1023 registries at most


def length_of(thread: int, number: int) -> int:
    return LENGTHS[hash((thread, number)) % len(LENGTHS)]


def run_all(works: list[Callable[[], None]]) -> None:
    """Each in a thread of its own; the first failure is raised here."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WATCHDOG_S)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads)


def test_threads_send_and_receive_on_two_endpoints(ends: Pair) -> None:
    """Each sending thread has a tag; the receiving threads post for every tag and read one queue."""
    sender, receiver = ends
    peer = sender.av.insert(receiver.name)
    total = SENDERS * COUNT
    lock = threading.Lock()
    sent, taken = [0], [0]
    found: dict[int, dict[int, int]] = {tag: {} for tag in range(SENDERS)}  # number of the receive -> of the message
    posted = [0] * SENDERS
    deadline = Patience(WATCHDOG_S)

    def read_sends() -> None:
        done = len(sender.cq.read())
        with lock:
            sent[0] += done

    def send_all(tag: int) -> None:
        for number in range(COUNT):
            data = np.full(length_of(tag, number), number % 251, np.uint8)
            data[:4].view(np.uint32)[0] = number
            while True:
                assert not deadline.over
                with contextlib.suppress(fi.Again):
                    sender.ep.tsend(data, None, peer, tag)
                    break
                read_sends()
        while sent[0] < total:
            read_sends()
            assert not deadline.over, sent

    def receive_all() -> None:
        while taken[0] < total:
            assert not deadline.over, taken
            with lock:  # the receives of one tag are numbered in the order of posting
                for tag in range(SENDERS):
                    if posted[tag] < COUNT and posted[tag] - len(found[tag]) < 16:
                        room = np.zeros(max(LENGTHS), np.uint8)
                        receiver.ep.trecv(room, tag=tag, context=(tag, posted[tag], room))
                        posted[tag] += 1
            for entry in receiver.cq.read(8):
                tag, receive, room = entry.op_context
                number = int(room[:4].view(np.uint32)[0])
                assert entry.len == length_of(tag, number)
                assert (room[4 : entry.len] == number % 251).all()
                with lock:
                    found[tag][receive] = number
                    taken[0] += 1

    run_all([lambda tag=tag: send_all(tag) for tag in range(SENDERS)] + [receive_all] * RECEIVERS)  # type: ignore[misc]
    assert found == {tag: {number: number for number in range(COUNT)} for tag in range(SENDERS)}
    assert not sender.cq.read()
    assert not receiver.cq.read()


def test_endpoints_and_domains_close_while_messages_of_others_flow(ends: Pair) -> None:
    """A thread makes endpoints in domains of their own, sends from them and closes them; another's messages arrive."""
    sender, receiver = ends
    make = opened_cxi if sender.domain.provider.name == "cxi" else opened
    peer = sender.av.insert(receiver.name)
    data = np.arange(20_000, dtype=np.uint8)
    gone = threading.Event()
    deadline = Patience(WATCHDOG_S)

    def come_and_go() -> None:
        try:
            for number in range(40):
                with make(CAPS) as passing:
                    to = passing.av.insert(receiver.name)
                    passing.ep.tsend(data[:8], None, to, ELSE)
                    passing.ep.tsend(data, None, to, ELSE)  # nobody receives it: it ends with its endpoint
                    for _ in range(number % 8):
                        passing.cq.read()
        finally:
            gone.set()

    def talk() -> None:
        number = 0
        while not gone.is_set() or number < 20:
            length = LENGTHS[number % len(LENGTHS)]
            room = np.zeros(length, np.uint8)
            receiver.ep.trecv(room, tag=number)
            sender.ep.tsend(data[:length], None, peer, number)
            received = sent = 0
            while not (received and sent):
                assert not deadline.over, number
                received += len(receiver.cq.read())
                sent += len(sender.cq.read())
            assert (received, sent) == (1, 1)
            assert (room == data[:length]).all()
            number += 1

    run_all([come_and_go, talk])
