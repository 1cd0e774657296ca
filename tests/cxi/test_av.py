"""Address vectors of the CXI provider. fi_cxi(7) "Address Vectors"."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cxi.support import CAPS, opened
from tests.fi.support import Node

from weft import cxi, fi


def somebody(node: Node, pid: int) -> cxi.Address:
    return cxi.Address(cxi.Address.from_bytes(node.name).nic, pid)


@pytest.mark.clause("cxi.av.table", "cxi.av.map", "cxi.av.same-impl")
@pytest.mark.parametrize("type", [fi.AV_TABLE, fi.AV_MAP, fi.AV_UNSPEC])
def test_both_types_are_tables(node: Node, type: int) -> None:
    with node.domain.av_open(type) as av:
        assert [av.insert(somebody(node, pid)) for pid in (5, 6, 7)] == [0, 1, 2]
        assert av.lookup(1) == somebody(node, 6)
        assert av.type == (type or fi.AV_TABLE)


@pytest.mark.clause("cxi.av.rx-ctx-bits", "cxi.av.no-read", "cxi.av.no-event", "cxi.av.no-shared")
@pytest.mark.parametrize(
    "attr",
    [{"rx_ctx_bits": 1}, {"name": "shared"}, {"flags": int(fi.READ)}, {"flags": int(fi.EVENT)}, {"type": 9}],
    ids=["rx_ctx_bits", "name", "READ", "EVENT", "type"],
)
def test_attribute_that_is_not_supported_is_refused(node: Node, attr: dict[str, Any]) -> None:
    with pytest.raises(fi.InvalidArgument):
        node.domain.av_open(**attr)


@pytest.mark.clause("cxi.av.symmetric")
def test_symmetric_vector_is_opened(node: Node) -> None:
    with node.domain.av_open(fi.AV_TABLE, flags=int(fi.SYMMETRIC)) as av:
        assert av.insert(somebody(node, 5)) == 0


@pytest.mark.clause("cxi.av.no-sync-err")
@pytest.mark.parametrize("flags", [fi.SYNC_ERR, fi.EVENT, fi.READ])
def test_flag_of_insert_that_is_not_supported_is_refused(node: Node, flags: int) -> None:
    with pytest.raises(fi.InvalidArgument):
        node.av.insert(somebody(node, 5), flags=int(flags), context=[])
    assert node.av.insert(somebody(node, 5), flags=int(fi.MORE)) == 0


def test_address_inserted_again_has_to_be_removed_as_often(node: Node) -> None:
    first = node.av.insert(somebody(node, 5))
    assert node.av.insert(somebody(node, 5)) == first
    node.av.remove(first)
    assert node.av.lookup(first) == somebody(node, 5)
    node.av.remove(first)
    with pytest.raises(fi.InvalidArgument):
        node.av.lookup(first)
    node.av.remove(first)  # nothing there any more: ignored
    node.av.remove(77)


@pytest.mark.clause("cxi.av.user-id")
def test_user_id_is_given_at_insertion(node: Node) -> None:
    index = node.av.insert(somebody(node, 5), flags=int(fi.AV_USER_ID), fi_addr=4711)
    several = node.av.insert([somebody(node, 6), somebody(node, 7)], flags=int(fi.AV_USER_ID), fi_addr=[8, 9])
    assert node.av.user_id(index) == 4711
    assert [node.av.user_id(one) for one in several] == [8, 9]
    assert node.av.user_id(node.me) == node.me
    with pytest.raises(fi.InvalidArgument, match="1 user ids"):
        node.av.insert([somebody(node, 8), somebody(node, 9)], flags=int(fi.AV_USER_ID), fi_addr=[1])


def test_user_id_is_refused_where_it_makes_no_sense(node: Node) -> None:
    flags = int(fi.AV_USER_ID)
    with pytest.raises(fi.InvalidArgument, match="ids"):
        node.av.insert(somebody(node, 5), flags=flags)
    with pytest.raises(fi.InvalidArgument, match="AUTH_KEY"):
        node.av.insert(somebody(node, 5), flags=flags | int(fi.AUTH_KEY), fi_addr=1)
    with node.domain.av_open(flags=int(fi.SYMMETRIC)) as av, pytest.raises(fi.InvalidArgument, match="symmetric"):
        av.insert(somebody(node, 5), flags=flags, fi_addr=1)
    with pytest.raises(fi.InvalidArgument, match="not opened with AV_USER_ID"):
        node.av.set_user_id(node.me, 5)


def test_vector_of_user_ids_has_them_set_afterwards() -> None:
    with opened(CAPS, domain_caps=int(fi.AV_USER_ID)) as node, node.domain.av_open(flags=int(fi.AV_USER_ID)) as av:
        index = av.insert(somebody(node, 5))
        av.set_user_id(index, 12)
        assert av.user_id(index) == 12
        with pytest.raises(fi.InvalidArgument, match="set_user_id"):
            av.insert(somebody(node, 6), flags=int(fi.AV_USER_ID), fi_addr=1)
        with pytest.raises(fi.InvalidArgument):
            av.set_user_id(77, 1)


def test_address_by_name_needs_node_and_service(node: Node) -> None:
    nic = cxi.Address.from_bytes(node.name).nic
    assert node.av.lookup(node.av.insertsvc(hex(nic), "9")) == somebody(node, 9)
    for name, service in ((None, "9"), ("0x5", None), (None, None)):
        with pytest.raises(fi.InvalidArgument):
            node.av.insertsvc(name, service)
    for name, service in (("nowhere", "9"), ("0x5", "nothing"), ("0x5", "511")):
        with pytest.raises(fi.NoData):
            node.av.insertsvc(name, service)
    with pytest.raises(fi.NoSys):
        node.av.insertsym("0x5", 2, "9", 2)


def test_name_of_a_device_is_no_name_of_a_peer(node: Node) -> None:
    with pytest.raises(fi.NoData, match=r"^ENODATA: av\.insertsvc: node 'cxi0' is no NIC\n  rule: an Ethernet address"):
        node.av.insertsvc("cxi0", "9")
    with pytest.raises(fi.NoData, match=r"^ENODATA: av\.insertsvc: service '511'"):
        node.av.insertsvc("0x5", "511")


def test_vector_reports_to_no_event_queue(node: Node) -> None:
    with node.fabric.eq_open() as eq, pytest.raises(fi.NoSys):
        node.av.bind(eq)
    for call in (lambda: node.av.control(fi.ENABLE), lambda: node.av.open_ops("any")):
        with pytest.raises(fi.NoSys):
            call()


def test_lookup_of_an_unknown_index_is_refused(node: Node) -> None:
    with pytest.raises(fi.InvalidArgument):
        node.av.lookup(77)
    assert "pid" in node.av.straddr(somebody(node, 3))


def test_call_to_an_unknown_index_is_refused(node: Node) -> None:
    with pytest.raises(fi.InvalidArgument):
        node.ep.write(b"12345678", None, 77, 0, 1)


def test_flags_of_remove_are_refused(node: Node) -> None:
    with pytest.raises(fi.InvalidArgument):
        node.av.remove(0, flags=int(fi.MORE))


# ---- authorization keys ----------------------------------------------------------------------------------------------


def test_limit_of_keys_comes_before_everything() -> None:
    with opened(CAPS, auth_key_size=fi.AV_AUTH_KEY, max_ep_auth_key=1, enable=False) as node:
        key = node.av.insert_auth_key(cxi.AuthKey(1, 40))
        with pytest.raises(fi.NoSpace):
            node.av.insert_auth_key(cxi.AuthKey(1, 40))
        with pytest.raises(fi.NoSpace):
            node.av.insert_auth_key(cxi.AuthKey(77, 40))  # no such service
        assert cxi.AuthKey.from_bytes(node.av.lookup_auth_key(key)) == cxi.AuthKey(0, 40)


def test_key_inserted_again_has_one_use_more() -> None:
    with opened(CAPS, auth_key_size=fi.AV_AUTH_KEY, max_ep_auth_key=4, enable=False) as node:
        first = node.av.insert_auth_key(cxi.AuthKey(1, 40))
        assert node.av.insert_auth_key(cxi.AuthKey(0, 40)) == first, "service 0 is the domain's"
        node.av.remove(first, flags=int(fi.AUTH_KEY))
        assert node.av.vnis == [40]
        node.av.remove(first, flags=int(fi.AUTH_KEY))
        assert node.av.vnis == []
        with pytest.raises(fi.InvalidArgument, match="authorization key"):
            node.ep.enable()
        with pytest.raises(fi.InvalidArgument, match=r"^EINVAL: authorization key cxi\.AuthKey\(svc_id=77"):
            node.av.insert_auth_key(cxi.AuthKey(77, 40))
        node.av.insert_auth_key(cxi.AuthKey(1, 40))
        node.ep.enable()
        node.av.insert_auth_key(cxi.AuthKey(1, 41))  # the endpoint has it not
        with pytest.raises(fi.Busy):
            node.av.remove(first, flags=int(fi.AUTH_KEY))
        with pytest.raises(fi.InvalidArgument):
            node.av.insert(somebody(node, 4))


def test_keys_need_a_domain_that_was_opened_for_them(node: Node) -> None:
    with pytest.raises(fi.InvalidArgument):
        node.av.insert_auth_key(cxi.AuthKey(1, 40))
    with pytest.raises(fi.InvalidArgument):
        node.av.lookup_auth_key(0)
