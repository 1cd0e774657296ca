"""How messages fail that find no receiver, and from whom a message of an unknown sender came.

Source: fi_cxi(7) "CQ Error Event Errno"; fi_cq(3) FI_SOURCE_ERR.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cxi.support import opened
from tests.fi.msg_support import TAG, data_of, kinds, nothing, of_kind, recv, refused, send
from tests.fi.support import Node

from weft import cxi, fi
from weft.providers.cxi import device

CAPS = int(fi.MSG | fi.TAGGED)
NO_PID = (fi.EIO, cxi.C_RC_PTLTE_NOT_FOUND)
NO_VNI = (fi.ENOTCONN, cxi.C_RC_VNI_NOT_FOUND)
UNREACHABLE = (fi.EHOSTUNREACH, cxi.C_RC_UNDELIVERABLE)
lengths = pytest.mark.parametrize("length", [0, 8, 1000, 100_000])


def outcome(node: Node, peer: int, tagged: bool, length: int) -> tuple[int, int]:
    """(err, prov_errno) of a message; it fails once."""
    send(node, tagged, data_of(length), peer, "s")
    entry = refused(node)
    assert (entry.op_context, entry.flags) == ("s", of_kind(tagged) | fi.SEND)
    assert nothing(node)
    return entry.err, entry.prov_errno


@pytest.fixture
def counted() -> Iterator[tuple[Node, fi.Counter]]:
    """A sender, and the counter of its sends."""
    with opened(CAPS, enable=False) as node:
        counter = node.keep(node.domain.cntr_open())
        node.ep.bind(counter, fi.SEND)
        node.ep.enable()
        yield node, counter


@kinds
@lengths
def test_message_to_an_address_without_an_endpoint_fails(
    counted: tuple[Node, fi.Counter], length: int, tagged: bool
) -> None:
    node, counter = counted
    pid = (node.name.pid + 1) % 511
    assert outcome(node, node.av.insert(cxi.Address(node.name.nic, pid)), tagged, length) == NO_PID
    other = device.add("cxi1").nic
    assert outcome(node, node.av.insert(cxi.Address(other, 5)), tagged, length) == NO_VNI
    assert outcome(node, node.av.insert(cxi.Address(0xFFFFF, 5)), tagged, length) == UNREACHABLE
    assert (counter.read(), counter.readerr()) == (0, 3)


@kinds
def test_injected_message_that_fails_has_an_entry(counted: tuple[Node, fi.Counter], tagged: bool) -> None:
    node, counter = counted
    peer = node.av.insert(cxi.Address(node.name.nic, (node.name.pid + 1) % 511))
    if tagged:
        node.ep.tinject(b"12345678", peer, TAG)
    else:
        node.ep.inject(b"12345678", peer)
    entry = refused(node)
    assert (entry.err, entry.prov_errno) == NO_PID
    assert counter.readerr() == 1


@kinds
@lengths
def test_link_that_is_down_fails_messages_and_later_ones_arrive(length: int, tagged: bool) -> None:
    """Messages that fail leave no hole in the order of those behind them."""
    with opened(CAPS) as receiver, opened(CAPS) as sender:
        peer = sender.av.insert(receiver.name)
        for number in range(6):
            device.set_up("cxi0", number % 3 != 2)
            if number % 3 == 2:
                assert outcome(sender, peer, tagged, length) == UNREACHABLE
                continue
            room = bytearray(length)
            recv(receiver, tagged, room, number)
            send(sender, tagged, data_of(length, seed=number), peer)
            assert receiver.wait()[0].op_context == number
            assert room == bytes(data_of(length, seed=number))
            sender.wait()


@kinds
def test_endpoints_on_different_vnis_do_not_meet(tagged: bool) -> None:
    key = cxi.AuthKey(1, 99)
    with opened(CAPS, auth_key=key) as one, opened(CAPS, auth_key=key) as two, opened(CAPS) as sender:
        # One of the two has a PID that the sender does not have itself on its own VNI.
        receiver = next(node for node in (one, two) if node.name.pid != sender.name.pid)
        recv(receiver, tagged, bytearray(8), "r")
        name = receiver.name
        assert outcome(sender, sender.av.insert(cxi.Address(name.nic, name.pid)), tagged, 8) == NO_PID
        assert nothing(receiver)


@kinds
def test_unknown_sender_is_told_with_the_key_of_its_vni(tagged: bool) -> None:
    """fi_cq(3): on a domain of FI_AV_AUTH_KEY src_addr of the error is the key's fi_addr; err_data is the address."""
    caps = CAPS | int(fi.SOURCE | fi.SOURCE_ERR)
    with opened(caps, auth_key_size=fi.AV_AUTH_KEY, max_ep_auth_key=4, enable=False) as receiver:
        keys = {vni: receiver.av.insert_auth_key(cxi.AuthKey(1, vni)) for vni in (10, 99, 40)}
        receiver.ep.enable()
        for vni, key in keys.items():
            with opened(CAPS, auth_key=cxi.AuthKey(1, vni)) as sender:
                recv(receiver, tagged, bytearray(8), "r")
                send(sender, tagged, b"12345678", sender.av.insert(receiver.name))
                entry = refused(receiver)
                assert (entry.err, entry.src_addr) == (fi.EADDRNOTAVAIL, key)
                # Insert the sender by both, and the next message tells it.
                peer = receiver.av.insert(entry.err_data, flags=fi.AUTH_KEY, fi_addr=entry.src_addr)
                recv(receiver, tagged, bytearray(8), "r")
                send(sender, tagged, b"12345678", sender.av.insert(receiver.name))
                assert receiver.cq.sreadfrom(timeout=30)[0][1] == peer
