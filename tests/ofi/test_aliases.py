"""Aliases of endpoints of a real libfabric: fi_endpoint(3) fi_ep_alias. Of its providers here only sockets has them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from tests.ofi.support import PROVIDERS, Node, drain, finish, offer, open_node, pair, post, until

from weft import fi

Two = tuple[Node, Node]
QUIET = int(fi.SELECTIVE_COMPLETION)


@pytest.fixture
def two() -> Iterator[Two]:
    """Two nodes whose queues report only operations flagged COMPLETION."""
    try:
        info = offer("ofi:sockets")
    except fi.NoData:
        pytest.skip("this libfabric has no provider sockets, the only one here with aliases")
    a = open_node(info, flags=QUIET)
    b = open_node(info, flags=QUIET)
    yield a, b
    b.close()
    a.close()


def test_transfer_of_an_alias_has_the_flags_of_the_alias(two: Two) -> None:
    a, b = two
    memory = np.zeros(4, "u8")
    mr, to = b.register(memory), a.to(b)
    with a.ep.alias(fi.TRANSMIT | fi.COMPLETION) as loud:
        assert isinstance(loud, fi.EndpointAlias)
        assert not isinstance(loud, fi.Endpoint)
        for ep, value, context in ((loud, 1, "first"), (a.ep, 2, "silent"), (loud, 3, "last")):
            word = np.full(1, value, "u8")
            post(lambda ep=ep, word=word, c=context: ep.write(word, None, to, b.place(mr), mr.key, c), a, b)  # type: ignore[misc]
        assert [one.op_context for one in finish(a, 2, b)] == ["first", "last"]
        until(lambda: memory[0] == 3, a, b)


def test_messages_of_an_alias_come_from_its_original(two: Two) -> None:
    a, b = two
    to = a.to(b)
    room = bytearray(5)
    with a.ep.alias(fi.TRANSMIT | fi.COMPLETION) as alias, b.ep.alias(fi.RECV | fi.COMPLETION) as receiver:
        assert alias.getname() == a.ep.getname()
        receiver.trecv(room, tag=7, context="received")
        post(lambda: alias.tsend(b"hello", dest_addr=to, tag=7, context="sent"), a, b)
        until(lambda: len(a.seen) == len(b.seen) == 1, a, b)
        assert (a.seen[0].op_context, b.seen[0].op_context, bytes(room)) == ("sent", "received", b"hello")


def test_operation_of_a_closed_alias_goes_on(two: Two) -> None:
    a, b = two
    to = b.to(a)
    room = bytearray(5)
    alias = a.ep.alias(fi.RECV | fi.COMPLETION)
    alias.trecv(room, tag=1, context="kept")
    seen = weakref.ref(alias)
    alias.close()
    del alias
    gc.collect()
    assert seen() is None
    assert a.ep.outstanding() == 1
    post(lambda: b.ep.tsend(b"later", dest_addr=to, tag=1), a, b)
    assert [one.op_context for one in finish(a, 1, b)] == ["kept"]
    assert bytes(room) == b"later"


@pytest.mark.parametrize("by", ["alias", "endpoint"])
def test_receive_of_an_alias_is_cancelled_through_both(two: Two, by: str) -> None:
    a, b = two
    with a.ep.alias(fi.RECV | fi.COMPLETION) as alias:
        alias.trecv(bytearray(8), tag=1, context="gone")
        (alias if by == "alias" else a.ep).cancel("gone")
        entry = finish(a, 1, b)[0]
        assert (entry.op_context, entry.err) == ("gone", fi.ECANCELED)
        assert a.ep.outstanding() == alias.outstanding() == 0


def test_endpoint_is_busy_while_an_alias_is_open(two: Two) -> None:
    a, _ = two
    alias = a.ep.control(fi.ALIAS, int(fi.TRANSMIT))
    with pytest.raises(fi.Busy, match="EndpointAlias"):
        a.ep.close()
    second = alias.alias(fi.RECV)
    assert second.original is a.ep
    second.close()
    alias.close()
    alias.close()
    with pytest.raises(fi.BadState, match="closed"):
        alias.tsend(b"x", dest_addr=0, tag=1)
    with pytest.raises(fi.BadState, match="closed"):
        alias.alias(fi.TRANSMIT)


def test_alias_of_a_disabled_endpoint_is_enabled_with_it() -> None:
    try:
        info = offer("ofi:sockets")
    except fi.NoData:
        pytest.skip("this libfabric has no provider sockets, the only one here with aliases")
    made: list[fi.EndpointAlias] = []

    def before(node: Node) -> None:
        made.append(node.ep.alias(fi.TRANSMIT | fi.COMPLETION))
        with pytest.raises(fi.BadState):
            made[0].tsend(b"x", dest_addr=0, tag=1)

    node = open_node(info, flags=QUIET, before=before)
    room = bytearray(1)
    node.ep.trecv(room, tag=1)
    me = node.to(node)
    assert made[0].enabled
    post(lambda: made[0].tsend(b"x", dest_addr=me, tag=1, context="sent"), node)
    assert [one.op_context for one in finish(node, 1)] == ["sent"]
    until(lambda: bytes(room) == b"x", node)
    made[0].close()
    node.close()


def test_endpoint_and_alias_that_are_forgotten_are_closed() -> None:
    try:
        info = offer("ofi:sockets")
    except fi.NoData:
        pytest.skip("this libfabric has no provider sockets, the only one here with aliases")
    node = open_node(info)
    with pytest.warns(ResourceWarning, match=r"EndpointAlias(.|\n)*test_aliases"):
        node.ep.alias(fi.TRANSMIT)  # nothing refers to the alias
    node.close()


def test_operation_flags_are_read_and_set(two: Two) -> None:
    a, b = two
    memory = np.zeros(1, "u8")
    mr, to = b.register(memory), a.to(b)
    assert not a.ep.control(fi.GETOPSFLAG, fi.TRANSMIT) & fi.COMPLETION
    a.ep.control(fi.SETOPSFLAG, fi.TRANSMIT | fi.COMPLETION)
    assert a.ep.control(fi.GETOPSFLAG, fi.TRANSMIT) & fi.COMPLETION
    post(lambda: a.ep.write(np.ones(1, "u8"), None, to, b.place(mr), mr.key, "told"), a, b)
    assert [one.op_context for one in finish(a, 1, b)] == ["told"]


@pytest.mark.parametrize("flags", [0, int(fi.TRANSMIT | fi.RECV), int(fi.COMPLETION)])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_flags_name_one_side(provider: str, flags: int) -> None:
    with pair(provider) as (a, b):
        for call in (
            lambda: a.ep.alias(flags),
            lambda: a.ep.control(fi.GETOPSFLAG, flags),
            lambda: a.ep.control(fi.SETOPSFLAG, flags),
            lambda: a.ep.control(fi.ALIAS, flags),
        ):
            with pytest.raises(fi.InvalidArgument, match="exactly one of TRANSMIT and RECV"):
                call()
        drain(a, b)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_provider_without_aliases_refuses_them(provider: str) -> None:
    with pair(provider) as (a, _):
        with pytest.raises(fi.NotSupported, match="gives no alias with TRANSMIT"):
            a.ep.alias(fi.TRANSMIT)
        with pytest.raises((TypeError, fi.InvalidArgument)):
            a.ep.alias("TRANSMIT")
        with pytest.raises((TypeError, fi.InvalidArgument)):
            a.ep.control(fi.SETOPSFLAG, None)
