"""What closing an endpoint does with operations that are under way. Source: fi_endpoint(3) fi_close: they are
"discarded ... silently dropped, with no completions reported"; earlier completions stay in the queue here."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from tests.cxi.support import CAPS as ONE_SIDED
from tests.cxi.support import opened, register
from tests.fi.msg_support import TAG, data_of, kinds, recv, send, sendmsg
from tests.fi.support import Node
from tests.patience import Patience

from weft import fi

CAPS = int(fi.MSG | fi.TAGGED)
KEY = 200


class Context:
    """An object that a weak reference can name."""


def rendezvous(node: Node, tagged: bool, peer: int, context: object) -> None:
    send(node, tagged, data_of(100_000), peer, context)


def match_complete(node: Node, tagged: bool, peer: int, context: object) -> None:
    sendmsg(node, tagged, data_of(8), peer, int(fi.COMPLETION | fi.MATCH_COMPLETE), context)


def held(node: Node, tagged: bool, peer: int, context: object) -> None:
    sendmsg(node, tagged, data_of(8), peer, int(fi.COMPLETION | fi.MORE), context)


Post = Callable[[Node, bool, int, object], None]


def counted(node: Node) -> fi.Counter:
    """A counter of sends of a new endpoint, which takes the place of the node's."""
    node.ep.close()
    counter = node.keep(node.domain.cntr_open())
    node.ep = node.domain.endpoint(node.info)
    node.ep.bind(node.cq, fi.TRANSMIT | fi.RECV)
    node.ep.bind(counter, fi.SEND)
    node.ep.bind(node.av)
    node.ep.enable()
    return counter


@kinds
@pytest.mark.parametrize("post", [rendezvous, match_complete, held])
def test_messages_under_way_end_without_entries_and_counts(post: Post, tagged: bool) -> None:
    with opened(CAPS) as receiver, opened(CAPS) as sender:
        counter = counted(sender)
        peer = sender.av.insert(receiver.name)
        contexts = [Context() for _ in range(3)]
        gone = [weakref.ref(one) for one in contexts]
        for context in contexts:
            post(sender, tagged, peer, context)
        del context, contexts
        assert not sender.cq.read()
        assert sender.ep.statistics().tx_pending == 3
        sender.ep.close()
        assert not sender.cq.read()  # an error entry would raise
        assert (sender.cq.pending(), counter.read(), counter.readerr()) == (0, 0, 0)
        gc.collect()
        assert [one() for one in gone] == [None] * 3


@pytest.mark.parametrize("call", ["write", "read", "atomic"])
def test_one_sided_operations_that_are_held_end_without_entries(call: str) -> None:
    with opened(ONE_SIDED) as node:
        memory = np.zeros(4, np.uint64)
        register(node, memory, KEY)
        if call == "atomic":
            msg = fi.MsgAtomic([np.ones(1, np.uint64)], addr=node.me, rma_iov=[fi.RmaIoc(0, 1, KEY)])
            msg.datatype, msg.op = fi.UINT64, fi.SUM
            node.ep.atomicmsg(msg, fi.COMPLETION | fi.MORE)
        else:
            one = fi.MsgRma([np.ones(1, np.uint64)], [fi.RmaIov(0, 8, KEY)], node.me)
            (node.ep.writemsg if call == "write" else node.ep.readmsg)(one, fi.COMPLETION | fi.MORE)
        for mr in node.domain.regions():
            mr.close()
        node.ep.close()
        assert not node.cq.read()
        assert not memory.any()


@kinds
def test_receives_and_entries_from_before_are_as_they_were(tagged: bool) -> None:
    with opened(CAPS) as receiver, opened(CAPS) as sender:
        peer = sender.av.insert(receiver.name)
        recv(receiver, tagged, bytearray(8), "r")
        send(sender, tagged, b"12345678", peer, "done")
        patience = Patience(30)
        while not (sender.cq.pending() and receiver.cq.pending()):
            assert not patience.over
        rendezvous(sender, tagged, peer, "dropped")
        recv(receiver, True, bytearray(8), "never", TAG + 1)
        receiver.ep.close()
        sender.ep.close()
        assert [entry.op_context for entry in sender.cq.read()] == ["done"]
        assert [entry.op_context for entry in receiver.cq.read()] == ["r"]


def test_another_endpoint_of_the_queue_has_its_entries() -> None:
    with opened(CAPS) as receiver, opened(CAPS) as sender:
        other = sender.keep(sender.domain.endpoint(sender.info))
        other.bind(sender.cq, fi.TRANSMIT | fi.RECV)
        other.bind(sender.av)
        other.enable()
        peer = sender.av.insert(receiver.name)
        other.tsend(data_of(100_000), None, peer, TAG, "other")
        rendezvous(sender, True, peer, "dropped")
        sender.ep.close()
        room = bytearray(100_000)
        recv(receiver, True, room)
        receiver.wait()
        assert [entry.op_context for entry in sender.wait()] == ["other"]
        assert room == data_of(100_000).tobytes()
