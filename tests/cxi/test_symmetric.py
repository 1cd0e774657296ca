"""FI_SYMMETRIC: the address vectors of all processes have the same entries. fi_cxi(7) "Address Vectors"."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import opened
from tests.fi.msg_support import data_of, kinds, recv, send
from tests.fi.support import Node
from tests.patience import Patience

from weft import fi

CAPS = int(fi.MSG | fi.TAGGED | fi.SOURCE)
SYMMETRIC = int(fi.SYMMETRIC)
LENGTHS = [8, 1000, 100_000]


@contextlib.contextmanager
def nodes(count: int, flags: int = SYMMETRIC, **more: Any) -> Iterator[list[Node]]:
    """Endpoints whose vectors hold nothing yet."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(opened(CAPS, av_flags=flags, **more)) for _ in range(count)]


@contextlib.contextmanager
def community(count: int, flags: int = SYMMETRIC, **more: Any) -> Iterator[list[Node]]:
    """Endpoints whose vectors all hold all of them, in the same order."""
    with nodes(count, flags, **more) as all_nodes:
        for node in all_nodes:
            assert [node.av.insert(peer.name) for peer in all_nodes] == list(range(count))
        yield all_nodes


def source_of(sender: Node, receiver: Node, peer: int, length: int = 8, tagged: bool = True) -> int:
    """The fi_addr that the completion of a receive reports."""
    room, payload = np.zeros(length, np.uint8), data_of(length)
    recv(receiver, tagged, room, "r")
    send(sender, tagged, payload, peer, "s")
    patience = Patience(30.0)
    while not (found := receiver.cq.readfrom(1)):
        sender.cq.read()
        assert not patience.over
    assert np.array_equal(room, payload)
    return int(found[0][1])


@pytest.mark.clause("cxi.av.symmetric-id", "cxi.av.symmetric-source")
@kinds
def test_senders_are_named_by_index_and_found_without_a_look_up(tagged: bool) -> None:
    with community(4) as (receiver, *senders):
        for length in LENGTHS:
            for index, sender in enumerate(senders, 1):
                assert source_of(sender, receiver, 0, length, tagged) == index
        assert receiver.ep.message_statistics().flows_by_index == 3
        assert receiver.av.reverse_lookups == 0


@pytest.mark.clause("cxi.av.symmetric-id", "cxi.av.symmetric-source")
@pytest.mark.parametrize(
    ("flags", "type"), [(0, fi.AV_TABLE), (SYMMETRIC, fi.AV_MAP)], ids=["no FI_SYMMETRIC", "FI_AV_MAP"]
)
def test_other_vectors_name_senders_by_address_and_look_them_up(flags: int, type: int) -> None:
    with community(2, flags, av_type=type) as (receiver, sender):
        for _ in range(5):
            assert source_of(sender, receiver, 0) == 1
        assert receiver.ep.message_statistics().flows_by_index == 0
        assert receiver.av.reverse_lookups == 5


def test_unexpected_message_keeps_the_index_of_its_sender() -> None:
    with community(2) as (receiver, sender):
        sender.ep.tsend(b"12345678", None, 0, 7, "s")
        sender.wait()
        receiver.ep.trecv(bytearray(8), tag=7)
        patience = Patience(30.0)
        while not (found := receiver.cq.readfrom(1)):
            assert not patience.over
        assert found[0][1] == 1
        assert receiver.av.reverse_lookups == 0


def test_tables_that_differ_still_tell_the_right_sender() -> None:
    """The promise is broken: the index names another peer, or nobody, and the address decides."""
    with nodes(3) as (receiver, first, second):
        assert [receiver.av.insert(node.name) for node in (receiver, first, second)] == [0, 1, 2]
        for sender, order in ((first, (second, receiver, first)), (second, (first, second, receiver))):
            for node in order:
                sender.av.insert(node.name)
        assert source_of(first, receiver, 1) == 1  # it names itself 2
        assert source_of(second, receiver, 2) == 2  # it names itself 1
        assert receiver.ep.message_statistics().flows_by_index == 2
        assert receiver.av.reverse_lookups == 2


def test_sender_outside_its_own_table_is_found_by_its_address() -> None:
    with nodes(2) as (receiver, sender):
        known = [receiver.av.insert(node.name) for node in (receiver, sender)]
        peer = sender.av.insert(receiver.name)
        assert source_of(sender, receiver, peer) == known[1]
        assert receiver.ep.message_statistics().flows_by_index == 0


def test_entry_that_was_removed_is_no_source() -> None:
    with community(3) as (receiver, sender, other):
        assert source_of(sender, receiver, 0) == 1
        receiver.av.remove(1)
        assert source_of(sender, receiver, 0) == fi.ADDR_NOTAVAIL
        receiver.av.remove(2)
        assert receiver.av.insert(other.name) == 1  # the sender's old place
        assert source_of(sender, receiver, 0) == fi.ADDR_NOTAVAIL
        assert source_of(other, receiver, 0) == 1
