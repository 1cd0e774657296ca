"""Tags: which receive takes which message (fi_tagged(3))."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fi.msg_support import TAG, alone, data_of, talkers
from tests.fi.support import Node

from weft import fi

pytestmark = pytest.mark.general("messages")

ALL_TAGS = (1 << 64) - 1


def taken(node: Node, *tags: int) -> list[tuple[object, int]]:
    """(context of the receive, tag of the message) of the receives that messages with these tags end."""
    for tag in tags:
        node.ep.tinject(b"12345678", node.me, tag)
    return [(entry.op_context, entry.tag) for entry in node.wait(len(tags))]


def test_receive_takes_the_message_with_its_tag() -> None:
    with alone() as node:
        for tag in (1, 2, 3):
            node.ep.trecv(bytearray(8), tag=tag, context=f"for {tag}")
        assert taken(node, 3, 1, 2) == [("for 3", 3), ("for 1", 1), ("for 2", 2)]


def test_ignored_bits_of_the_tag_match_anything() -> None:
    """fi_tagged(3): a message matches if its tag equals the receive's in the bits that ignore does not have."""
    with alone() as node:
        node.ep.trecv(bytearray(8), tag=0xAB00, ignore=0x00FF, context="AB..")
        node.ep.trecv(bytearray(8), tag=0, ignore=ALL_TAGS, context="any")
        assert taken(node, 0xAC01, 0xAB55) == [("any", 0xAC01), ("AB..", 0xAB55)]


def test_bits_of_the_receive_tag_under_the_mask_do_not_matter() -> None:
    with alone() as node:
        node.ep.trecv(bytearray(8), tag=0xABCD, ignore=0x00FF, context="AB..")
        assert taken(node, 0xAB00) == [("AB..", 0xAB00)]


def test_oldest_matching_receive_takes_the_message() -> None:
    with alone() as node:
        node.ep.trecv(bytearray(8), tag=7, context="first")
        node.ep.trecv(bytearray(8), tag=0, ignore=ALL_TAGS, context="second")
        node.ep.trecv(bytearray(8), tag=7, context="third")
        assert taken(node, 7, 7, 7) == [("first", 7), ("second", 7), ("third", 7)]


def test_receive_takes_the_oldest_matching_message() -> None:
    with alone() as node:
        for i, tag in enumerate((5, 6, 5, 6)):
            node.ep.tinjectdata(b"12345678", i, node.me, tag)
        found = []
        for tag, ignore in ((6, 0), (0, ALL_TAGS), (5, 0), (6, 0)):
            node.ep.trecv(bytearray(8), tag=tag, ignore=ignore)
            found += [entry.data for entry in node.wait()]
        assert found == [1, 0, 2, 3]


def test_tagged_and_untagged_messages_never_match_each_other() -> None:
    with alone() as node:
        node.ep.recv(bytearray(8), context="untagged")
        node.ep.trecv(bytearray(8), tag=0, ignore=ALL_TAGS, context="tagged")
        node.ep.tinject(b"1", node.me, 0)
        node.ep.inject(b"2", node.me)
        entries = node.wait(2)
        assert [(e.op_context, e.flags) for e in entries] == [
            ("tagged", fi.TAGGED | fi.RECV),
            ("untagged", fi.MSG | fi.RECV),
        ]


@pytest.mark.parametrize("tag", [0, 1, 1 << 47, 1 << 63, ALL_TAGS])
def test_tags_have_64_bits(tag: int) -> None:
    with alone() as node:
        assert node.info.ep_attr.mem_tag_format == 0xAAAAAAAAAAAAAAAA
        node.ep.trecv(bytearray(8), tag=tag, context="r")
        assert taken(node, tag) == [("r", tag)]


def test_tag_of_a_long_message_is_told() -> None:
    with talkers() as (sender, receiver, peer):
        payload, room = data_of(200_000), np.zeros(200_000, np.uint8)
        sender.ep.tsenddata(payload, None, 1 << 63, peer, TAG)
        receiver.ep.trecv(room, tag=TAG & ~0xFF, ignore=0xFF)
        (entry,) = receiver.wait()
        assert (entry.tag, entry.data, entry.len) == (TAG, 1 << 63, 200_000)
        assert np.array_equal(room, payload)
        sender.wait()


def test_many_receives_are_matched_each_by_its_tag() -> None:
    with alone() as node:
        order = np.random.default_rng(3).permutation(800)
        rooms = np.zeros((800, 8), np.uint8)
        for tag in range(800):
            node.ep.trecv(rooms[tag], tag=tag, context=tag)
        for tag in map(int, order):
            node.ep.tinject(int(tag).to_bytes(8, "little"), node.me, tag)
        entries = node.wait(800)
        assert [e.op_context for e in entries] == order.tolist()
        assert rooms.view("<u8")[:, 0].tolist() == list(range(800))
