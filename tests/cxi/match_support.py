"""Shared by the tests of match modes: a service with few list entries, endpoints of it, and floods of messages."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tests.cxi.support import opened
from tests.fi.support import Node
from tests.patience import Patience

from weft import cxi, fi
from weft.providers.cxi import resources, service

CAPS = int(fi.MSG | fi.TAGGED)
OFLOW = 3  # overflow buffers that are posted by default, each with a list entry
REQUESTS = 4  # request buffers
WAIT_S = 30.0


def service_with(les: int, **more: Any) -> cxi.AuthKey:
    """The authorization key of a new service with this number of list entries."""
    made = service.create(limits={"les": les}, **more)
    return cxi.AuthKey(made.id, 10)


def in_use(key: cxi.AuthKey) -> int:
    """List entries of the service that its processes have."""
    return resources.usage("cxi0").get(key.svc_id, {}).get("les", 0)


@contextlib.contextmanager
def of_service(key: cxi.AuthKey, *, rx_size: int = 0, caps: int = CAPS, **more: Any) -> Iterator[Node]:
    """An endpoint of the service."""

    def edit(info: fi.Info) -> None:
        if rx_size:
            info.rx_attr.size = rx_size

    with opened(caps, edit=edit, auth_key=key, **more) as node:
        yield node


@contextlib.contextmanager
def talkers(les: int, *, rx_size: int = 0, caps: int = CAPS, **more: Any) -> Iterator[tuple[Node, Node, int]]:
    """(sender, receiver, fi_addr of the receiver); the receiver's service has `les` list entries."""
    with (
        of_service(service_with(les), rx_size=rx_size, caps=caps, **more) as receiver,
        of_service(service_with(1000), caps=caps, **more) as sender,
    ):
        yield sender, receiver, sender.av.insert(receiver.name)


def payload(number: int, length: int = 1000) -> bytes:
    """A message that is longer than a sender may send without an answer."""
    return number.to_bytes(8, "little") + bytes(length - 8)


def until(done: Callable[[], bool], *nodes: Node) -> None:
    """Reads the queues of the nodes, which must be empty, until something is true."""
    patience = Patience(WAIT_S)
    while not done():
        for node in nodes:
            assert not node.cq.read()
        assert not patience.over


def flood(
    sender: Node,
    receiver: Node,
    peer: int,
    count: int,
    *,
    length: int = 1000,
    first: int = 0,
    room: int = -1,
) -> int:
    """Sends `count` tagged messages without a receive, until all have arrived; returns how many were posted.

    room: the number that the receiver takes before it stops the sender for good; -1: all.
    """
    patience, sent, ended = Patience(WAIT_S), 0, 0
    while ended < count and not patience.over:
        if sent < count:
            with contextlib.suppress(fi.Again):
                sender.ep.tsend(payload(first + sent, length), None, peer, first + sent)
                sent += 1
        ended += len(sender.cq.read())
        assert not receiver.cq.read()
        if ended == room and sender.ep.message_statistics().stopped:
            break
    return sent


def receive_all(sender: Node, receiver: Node, count: int, *, length: int = 1000, first: int = 0) -> None:
    """Receives `count` messages with any tag, and checks their order and bytes."""
    room, patience = np.zeros(length, np.uint8), Patience(WAIT_S)
    for number in range(first, first + count):
        while True:
            try:
                receiver.ep.trecv(room, tag=0, ignore=(1 << 48) - 1)
                break
            except fi.Again:
                sender.cq.read()
                assert not receiver.cq.read()
                assert not patience.over
        while not (entries := receiver.cq.read()):
            sender.cq.read()
            assert not patience.over
        assert (entries[0].tag, entries[0].len) == (number, length)
        assert int(room[:8].view(np.uint64)[0]) == number


def state(node: Node) -> str:
    return node.ep.message_statistics().state
