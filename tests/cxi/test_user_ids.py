"""FI_AV_USER_ID: completions report an application's number in place of the sender's fi_addr. Source: fi_av(3)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cxi.support import RW, opened
from tests.fi.msg_support import kinds, recv, refused, send
from tests.fi.support import Node

from weft import cxi, fi

CAPS = int(fi.MSG | fi.TAGGED | fi.SOURCE)
USER_ID = int(fi.AV_USER_ID)
IDS = [7, 0, (1 << 64) - 2]


@contextlib.contextmanager
def talkers(caps: int = CAPS, **receiver: Any) -> Iterator[tuple[Node, Node]]:
    """(sender, receiver); the sender's vector has the receiver as fi_addr 0."""
    with opened(caps, **receiver) as there, opened(CAPS) as here:
        here.av.insert(there.name)
        yield here, there


def source(sender: Node, receiver: Node, tagged: bool = True) -> int:
    """What the receiver's completion reports as the source of a message."""
    recv(receiver, tagged, bytearray(8))
    send(sender, tagged, b"12345678", 0)
    while True:
        for entry, found in receiver.cq.readfrom(1):
            if entry.flags & fi.RECV:
                return int(found)
        if sender is not receiver:
            sender.cq.read()


@pytest.mark.clause("cxi.av.user-id")
@kinds
@pytest.mark.parametrize("user_id", IDS)
def test_completion_reports_the_user_id_of_an_insertion(user_id: int, tagged: bool) -> None:
    """fi_av(3) FI_AV_USER_ID: the identifier is returned with any completion in place of the AV's address; data
    transfers take the fi_addr that the insertion returned."""
    with talkers(CAPS | int(fi.DIRECTED_RECV)) as (sender, receiver):
        index = receiver.av.insert(sender.name, flags=USER_ID, fi_addr=user_id)
        assert index == 0
        assert source(sender, receiver, tagged) == user_id
        receiver.ep.trecv(bytearray(8), None, index, 5)
        sender.ep.tinject(b"12345678", 0, 5)
        while not (found := receiver.cq.readfrom(1)):
            pass
        assert found[0][1] == user_id
        receiver.ep.tinject(b"12345678", index, 6)


def test_removed_address_has_its_user_id_no_more() -> None:
    with talkers() as (sender, receiver):
        index = receiver.av.insert(sender.name, flags=USER_ID, fi_addr=4711)
        receiver.av.remove(index)
        assert source(sender, receiver) == fi.ADDR_NOTAVAIL
        assert receiver.av.insert(sender.name) == index
        assert (source(sender, receiver), receiver.av.user_id(index)) == (index, index)


def test_vector_of_user_ids_reports_none_until_it_is_set() -> None:
    """fi_av(3): by default all fi_addr are assigned the user id FI_ADDR_NOTAVAIL."""
    with talkers(domain_caps=USER_ID, av_flags=USER_ID) as (sender, receiver):
        index = receiver.av.insert(sender.name)
        assert (source(sender, receiver), receiver.av.user_id(index)) == (fi.ADDR_NOTAVAIL, fi.ADDR_NOTAVAIL)
        for user_id in IDS:
            receiver.av.set_user_id(index, user_id)
            assert (source(sender, receiver), receiver.av.user_id(index)) == (user_id, user_id)


def test_symmetric_vector_of_user_ids_reports_them() -> None:
    flags = USER_ID | int(fi.SYMMETRIC)
    with opened(CAPS, domain_caps=USER_ID, av_flags=flags) as node:
        me = node.av.insert(node.name)
        node.av.set_user_id(me, 12)
        assert source(node, node) == 12


def test_sender_whose_user_id_is_not_set_is_no_unknown_sender() -> None:
    """FI_SOURCE_ERR is about addresses that are in no vector."""
    with talkers(CAPS | int(fi.SOURCE_ERR), domain_caps=USER_ID, av_flags=USER_ID) as (sender, receiver):
        index = receiver.av.insert(sender.name)
        assert source(sender, receiver) == fi.ADDR_NOTAVAIL
        receiver.av.remove(index)
        recv(receiver, True, bytearray(8))
        send(sender, True, b"12345678", 0)
        assert refused(receiver).err == fi.EADDRNOTAVAIL


def test_waiting_messages_are_listed_with_user_ids() -> None:
    with talkers() as (sender, receiver):
        receiver.av.insert(sender.name, flags=USER_ID, fi_addr=4711)
        send(sender, True, b"12345678", 0)
        ops, entries, sources = receiver.domain.open_ops(cxi.DOM_OPS_5), [], []
        while ops.ep_get_unexp_msgs(receiver.ep, entries, 1, sources) != (1, 1):
            receiver.cq.read()
        assert sources == [4711]


def test_entry_that_waits_has_its_user_id_after_the_endpoint_is_closed() -> None:
    """The vector may be closed before the entry is read, so the id is found when the endpoint is closed."""
    with talkers() as (sender, receiver):
        receiver.av.insert(sender.name, flags=USER_ID, fi_addr=4711)
        recv(receiver, True, bytearray(8))
        send(sender, True, b"12345678", 0)
        while not receiver.cq.pending():
            sender.cq.read()
        receiver.ep.close()
        receiver.av.close()
        ((_, found),) = receiver.cq.readfrom(1)
        assert found == 4711


def test_error_of_an_unknown_sender_reports_the_user_id_of_the_key() -> None:
    """fi_av(3) fi_av_insert_auth_key: FI_ADDR_NOTAVAIL until the user defines a user id for the key."""
    with opened(
        CAPS | int(fi.SOURCE_ERR),
        auth_key_size=fi.AV_AUTH_KEY,
        max_ep_auth_key=2,
        domain_caps=USER_ID,
        av_flags=USER_ID,
        enable=False,
    ) as receiver:
        key = receiver.av.insert_auth_key(cxi.AuthKey(1, 10))
        receiver.ep.enable()
        with opened(CAPS, auth_key=cxi.AuthKey(1, 10)) as sender:
            sender.av.insert(receiver.ep.getname())
            found = []
            for user_id in (None, 77):
                if user_id is not None:
                    receiver.av.set_user_id(key, user_id, int(fi.AUTH_KEY))
                recv(receiver, True, bytearray(8))
                send(sender, True, b"12345678", 0)
                found.append(refused(receiver).src_addr)
            assert found == [fi.ADDR_NOTAVAIL, 77]
        receiver.ep.close()
        receiver.av.remove(key, flags=int(fi.AUTH_KEY))
        assert receiver.av.insert_auth_key(cxi.AuthKey(1, 10)) == key
        assert receiver.av._key_with(10) == fi.ADDR_NOTAVAIL, "the id went with the key"
        with pytest.raises(fi.InvalidArgument):
            receiver.av.set_user_id(5, 1, int(fi.AUTH_KEY))
        with pytest.raises(fi.InvalidArgument):
            receiver.av.set_user_id(key, 1, int(fi.MORE))


def test_remote_write_with_data_reports_the_user_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    monkeypatch.setenv("FI_CXI_ENABLE_WRITEDATA", "1")
    caps = int(fi.RMA | fi.RMA_EVENT | fi.SOURCE)
    with opened(caps, prov_key=True) as target, opened(caps, prov_key=True) as initiator:
        mr = target.keep(target.domain.mr_reg(bytearray(8), RW, flags=int(fi.RMA_EVENT)))
        mr.bind(target.ep)
        mr.enable()
        target.av.insert(initiator.name, flags=USER_ID, fi_addr=4711)
        initiator.ep.writedata(b"12345678", None, 5, initiator.av.insert(target.name), 0, mr.key)
        while not (found := target.cq.readfrom(1)):
            initiator.cq.read()
        assert (found[0][0].data, found[0][1]) == (5, 4711)
