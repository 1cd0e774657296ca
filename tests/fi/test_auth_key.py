"""Authorization keys: of domains, endpoints and regions; and out of address vectors (FI_AV_AUTH_KEY)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.fi.support import ALL_CAPS, KEY, RW, Node, hints, outcome

from weft import fi

pytestmark = pytest.mark.general("authorization keys of two bytes")


def vni(number: int) -> bytes:
    """An authorization key of the general provider."""
    return number.to_bytes(2, "little")


@contextlib.contextmanager
def opened(
    edit: Any = None, *, ep_key: bytes | None = None, caps: int = ALL_CAPS, version: int | None = None
) -> Iterator[Node]:
    """A Node whose hints `edit` has changed; ep_key: of its endpoint."""
    asked = hints(caps)
    if edit is not None:
        edit(asked)
    info = fi.getinfo(version or fi.VERSION(2, 1), hints=asked)[0]
    info.ep_attr.auth_key = ep_key
    fabric = fi.Fabric(info.fabric_attr)
    domain = fabric.domain(info)
    node = Node(
        info, fabric, domain, domain.cq_open(format=fi.CQ_FORMAT_TAGGED), domain.av_open(), domain.endpoint(info)
    )
    node.ep.bind(node.cq, fi.TRANSMIT | fi.RECV)
    node.ep.bind(node.av)
    try:
        if info.domain_attr.auth_key_size != fi.AV_AUTH_KEY:
            node.ep.enable()
        yield node
    finally:
        node.close()


def with_key(number: int) -> Any:
    def edit(asked: fi.Info) -> None:
        asked.domain_attr.auth_key = vni(number)

    return edit


def by_av(asked: fi.Info) -> None:
    asked.domain_attr.auth_key_size = fi.AV_AUTH_KEY
    asked.domain_attr.max_ep_auth_key = 4


# ---- of domains and endpoints ----------------------------------------------------------------------------------------


def test_key_of_the_domain_decides_the_address() -> None:
    with opened(with_key(7)) as node:
        assert node.info.domain_attr.auth_key == vni(7)
        assert node.info.domain_attr.auth_key_size == 2
        assert "/7/" in node.name


def test_key_of_the_endpoint_is_the_domains_where_that_has_none() -> None:
    asked = hints()
    asked.ep_attr.auth_key = vni(9)
    info = fi.getinfo(hints=asked)[0]
    assert (info.domain_attr.auth_key, info.ep_attr.auth_key) == (vni(9), vni(9))


@pytest.mark.parametrize("key", [b"", b"x", b"abc", vni(0), 5, "ab"])
def test_bytes_that_are_no_key_find_nothing(key: Any) -> None:
    asked = hints()
    asked.domain_attr.auth_key = key
    with pytest.raises(fi.NoData, match=r"domain_attr.auth_key"):
        fi.getinfo(hints=asked)


def test_endpoints_of_different_keys_do_not_reach_each_other() -> None:
    with opened(with_key(7)) as target, opened(with_key(8)) as stranger, opened(with_key(7)) as friend:
        memory = np.zeros(8, np.uint8)
        target.reg(memory, requested_key=KEY)
        peer = stranger.av.insert(target.name)
        for _ in range(2):
            assert outcome(stranger, peer) == fi.EACCES
        assert not memory.any()
        assert outcome(friend, friend.av.insert(target.name)) == 0
        assert memory.all()


def test_refusal_names_both_keys() -> None:
    with opened(with_key(7)) as target, opened(with_key(8)) as stranger:
        stranger.ep.read(np.zeros(8, np.uint8), src_addr=stranger.av.insert(target.name), addr=0, key=KEY)
        failed = stranger.wait_error()
        text = stranger.cq.strerror(failed.prov_errno, failed.err_data)
        assert "VNI 8" in text
        assert "VNI 7" in text


@pytest.mark.parametrize("call", ["fetch_atomic", "write_batch", "writemsg"])
def test_no_kind_of_call_reaches_across_keys(call: str) -> None:
    with opened(with_key(7)) as target, opened(with_key(8)) as stranger:
        memory = np.zeros(1, np.uint64)
        target.reg(memory, requested_key=KEY)
        peer = stranger.av.insert(target.name)
        if call == "fetch_atomic":
            one, before = np.ones(1, np.uint64), np.zeros(1, np.uint64)
            stranger.ep.fetch_atomic(one, None, before, None, peer, 0, KEY, datatype=fi.UINT64, op=fi.SUM)
        elif call == "write_batch":
            descs = np.zeros(1, fi.RMA_DESC)
            descs[0] = (0, 8, peer, 0, KEY, 0, 0)
            stranger.ep.write_batch(np.ones(8, np.uint8), descs)
        else:
            stranger.ep.writemsg(fi.MsgRma([b"12345678"], rma_iov=[fi.RmaIov(0, 8, KEY)], addr=peer))
        assert stranger.wait_error().err == fi.EACCES
        assert not memory.any()


# ---- of regions ------------------------------------------------------------------------------------------------------


def attr(buffer: Any, key: Any = None, size: int | None = None, **more: Any) -> fi.MrAttr:
    if size is None:
        size = len(key) if isinstance(key, bytes) else 0
    return fi.MrAttr(mr_iov=[buffer], access=int(RW), requested_key=KEY, auth_key=key, auth_key_size=size, **more)


@contextlib.contextmanager
def two_keys() -> Iterator[tuple[Node, fi.Endpoint, Node, int, Node, int]]:
    """A domain of key 7 with an endpoint of key 7 and one of 9; an initiator of each, and the peers' fi_addrs."""
    with opened(with_key(7)) as target, opened(with_key(7)) as seven, opened(with_key(9)) as nine:
        info = fi.dupinfo(target.info)
        info.ep_attr.auth_key = vni(9)
        info.src_addr = None
        other = target.keep(target.domain.endpoint(info))
        other.bind(target.cq, fi.TRANSMIT | fi.RECV)
        other.bind(target.av)
        other.enable()
        yield target, other, seven, seven.av.insert(target.name), nine, nine.av.insert(other.getname())


@pytest.mark.clause("mr.attr.auth-key", "mr.attr.auth-key-limits", "mr.attr.auth-key-size")
def test_region_admits_peers_of_its_key_alone() -> None:
    with two_keys() as (target, _, seven, at_seven, nine, at_nine):
        memory = np.zeros(8, np.uint8)
        target.keep(target.domain.mr_regattr(attr(memory, vni(9))))
        for _ in range(3):
            assert outcome(seven, at_seven) == fi.EACCES
        assert not memory.any()
        for _ in range(3):
            assert outcome(nine, at_nine) == 0
        assert memory.all()
        assert outcome(seven, at_seven) == fi.EACCES


@pytest.mark.clause("mr.attr.auth-key-default")
def test_region_without_a_key_has_that_of_the_domain() -> None:
    with two_keys() as (target, _, seven, at_seven, nine, at_nine):
        memory = np.zeros(8, np.uint8)
        target.keep(target.domain.mr_regattr(attr(memory)))
        assert outcome(nine, at_nine) == fi.EACCES
        assert outcome(seven, at_seven) == 0
        assert outcome(nine, at_nine) == fi.EACCES


@pytest.mark.clause("mr.base-mr.own-keys")
def test_sub_mr_has_an_authorization_key_of_its_own() -> None:
    with two_keys() as (target, _, seven, at_seven, nine, at_nine):
        memory = np.zeros(64, np.uint8)
        base = target.keep(target.domain.mr_regattr(attr(memory)))
        sub = target.domain.mr_regattr(
            fi.MrAttr(
                mr_iov=[memory[8:16]], access=int(RW), requested_key=99, base_mr=base, auth_key=vni(9), auth_key_size=2
            )
        )
        with sub:
            assert outcome(nine, at_nine, 99) == 0
            assert outcome(seven, at_seven, 99) == fi.EACCES
            assert outcome(nine, at_nine) == fi.EACCES
            assert outcome(seven, at_seven) == 0


@pytest.mark.clause("mr.attr.auth-key-size")
@pytest.mark.parametrize(("key", "size"), [(None, 2), (vni(9), 3), (b"123", 3), (vni(0), 2), (17, 2)])
def test_key_and_size_that_do_not_fit_are_refused(key: Any, size: int) -> None:
    with opened() as node, pytest.raises(fi.InvalidArgument):
        node.domain.mr_regattr(attr(np.zeros(8, np.uint8), key, size))


@pytest.mark.clause("mr.attr.auth-key-default", "mr.attr.auth-key-size")
def test_key_of_size_0_is_the_domains_key() -> None:
    """fi_mr(3) auth_key: the domain's key is used if auth_key_size is 0, whatever stands in auth_key."""
    with opened() as target, opened() as initiator:
        memory = np.zeros(8, np.uint8)
        target.keep(target.domain.mr_regattr(attr(memory, vni(9), 0)))
        assert outcome(initiator, initiator.av.insert(target.name)) == 0
        assert memory.any()


def test_src_addr_and_auth_key_of_different_vnis_find_nothing() -> None:
    asked = fi.Info(caps=ALL_CAPS, src_addr="weft://0/9", domain_attr=fi.DomainAttr(auth_key=vni(7)))
    with pytest.raises(fi.NoData, match="auth_key and src_addr name different VNIs"):
        fi.getinfo(hints=asked)
    asked.src_addr = "weft://0/7"
    assert fi.getinfo(hints=asked)[0].src_addr == "weft://0/7"


@pytest.mark.clause("mr.attr.auth-key-api", "mr.attr.auth-key-size-api")
def test_before_interface_1_5_keys_are_ignored() -> None:
    with opened(version=fi.VERSION(1, 4)) as target, opened(version=fi.VERSION(1, 4)) as initiator:
        memory = np.zeros(8, np.uint8)
        target.keep(target.domain.mr_regattr(attr(memory, b"no key at all", 77)))
        assert outcome(initiator, initiator.av.insert(target.name)) == 0
        assert memory.all()


# ---- out of address vectors ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def keyed(numbers: list[int], caps: int = ALL_CAPS) -> Iterator[tuple[Node, list[int]]]:
    """A node of a domain opened with FI_AV_AUTH_KEY, enabled; the fi_addrs of its keys."""
    with opened(by_av, caps=caps) as node:
        handles = [node.av.insert_auth_key(vni(n)) for n in numbers]
        node.ep.enable()
        yield node, handles


def test_keys_of_a_vector_are_found_again() -> None:
    with opened(by_av) as node:
        first, second = node.av.insert_auth_key(vni(7)), node.av.insert_auth_key(vni(9), 2)
        assert first != second
        assert node.av.insert_auth_key(vni(7)) == first
        assert (node.av.lookup_auth_key(first), node.av.lookup_auth_key(second)) == (vni(7), vni(9))
        node.av.remove(first, flags=fi.AUTH_KEY)
        with pytest.raises(fi.InvalidArgument):
            node.av.lookup_auth_key(first)
        with pytest.raises(fi.InvalidArgument):
            node.av.lookup_auth_key(17)
        for number in (20, 21, 22):
            node.av.insert_auth_key(vni(number))
        with pytest.raises(fi.FabricError, match="max_ep_auth_key") as caught:
            node.av.insert_auth_key(vni(23))
        assert caught.value.errno == fi.ENOSPC


def test_key_in_use_is_removed_after_its_peer_and_endpoint() -> None:
    """A key is Busy while a peer or an enabled endpoint uses it; then it can be removed."""
    with opened(by_av) as node:
        av = node.domain.av_open()
        first, second = av.insert_auth_key(vni(5)), av.insert_auth_key(vni(6))
        peer = av.insert("weft://0/5/77", flags=fi.AUTH_KEY, fi_addr=first)
        with pytest.raises(fi.Busy, match="use the key"):
            av.remove(first, flags=fi.AUTH_KEY)
        av.remove(peer)
        av.remove(first, flags=fi.AUTH_KEY)
        assert av.vnis == [6]
        with pytest.raises(fi.InvalidArgument, match="no authorization key"):
            av.lookup_auth_key(first)
        assert av.lookup_auth_key(second) == vni(6)
        av.close()


def test_vector_of_another_domain_takes_no_keys() -> None:
    with opened() as node:
        for call in (
            lambda: node.av.insert_auth_key(vni(7)),
            lambda: node.av.lookup_auth_key(0),
            lambda: node.av.remove(0, flags=fi.AUTH_KEY),
            lambda: node.av.insert(node.name, flags=fi.AUTH_KEY, fi_addr=0),
        ):
            with pytest.raises(fi.InvalidArgument, match="AV_AUTH_KEY"):
                call()


def test_endpoint_without_keys_is_not_enabled() -> None:
    with opened(by_av) as node:
        with pytest.raises(fi.InvalidArgument, match="no authorization key"):
            node.ep.enable()
        node.av.insert_auth_key(vni(7))
        node.ep.enable()
        for call in (
            lambda: node.av.insert_auth_key(vni(8)),
            lambda: node.av.remove(0, flags=fi.AUTH_KEY),
        ):
            with pytest.raises(fi.Busy):
                call()


def test_peers_are_inserted_with_the_key_that_they_use() -> None:
    with keyed([7, 9]) as (node, handles), opened(with_key(9)) as peer:
        with pytest.raises(fi.InvalidArgument, match="every peer has a key"):
            node.av.insert(peer.name)
        with pytest.raises(fi.InvalidArgument, match="VNI 9"):
            node.av.insert(peer.name, flags=fi.AUTH_KEY, fi_addr=handles[0])
        fi_addr = node.av.insert(peer.name, flags=fi.AUTH_KEY, fi_addr=handles[1])
        memory = np.zeros(8, np.uint8)
        peer.reg(memory, requested_key=KEY)
        assert outcome(node, fi_addr) == 0
        assert memory.all()


def test_hints_with_keys_besides_are_rejected() -> None:
    for part in ("domain_attr", "ep_attr"):
        asked = hints()
        by_av(asked)
        getattr(asked, part).auth_key = vni(7)
        with pytest.raises(fi.NoData, match="AV_AUTH_KEY"):
            fi.getinfo(hints=asked)
    asked = hints()
    asked.domain_attr.max_ep_auth_key = 65536
    with pytest.raises(fi.NoData, match="max_ep_auth_key"):
        fi.getinfo(hints=asked)


@pytest.mark.clause("mr.reg.av-auth-key", "mr.regv.av-auth-key")
def test_only_regattr_registers_where_the_vector_has_the_keys() -> None:
    with keyed([7]) as (node, _):
        memory = np.zeros(8, np.uint8)
        for call in (
            lambda: node.domain.mr_reg(memory, RW, requested_key=KEY),
            lambda: node.domain.mr_regv([memory], RW, requested_key=KEY),
        ):
            with pytest.raises(fi.NotSupported, match="mr_regattr"):
                call()


@pytest.mark.clause("mr.attr.auth-key-av", "mr.attr.auth-key-size-av", "mr.auth-key.av", "mr.auth-key.av-all")
def test_region_admits_every_key_of_its_vector() -> None:
    with keyed([7, 9]) as (node, _), opened(with_key(7)) as seven, opened(with_key(9)) as nine:
        memory = np.zeros(8, np.uint8)
        key = fi.MrAuthKey(node.av)
        for wrong, size in ((key, 0), (key, 15), (vni(7), 2), (None, 0), (None, 16), (vni(7), 16)):
            with pytest.raises(fi.InvalidArgument, match="MrAuthKey"):
                node.domain.mr_regattr(attr(memory, wrong, size))
        node.keep(node.domain.mr_regattr(attr(memory, key, fi.MrAuthKey.SIZE)))
        nic, _, pid = str(node.name).removeprefix("weft://").split("/")
        for initiator, number in ((seven, 7), (nine, 9)):
            memory[:] = 0
            assert outcome(initiator, initiator.av.insert(f"weft://{nic}/{number}/{pid}")) == 0
            assert memory.all()


def test_region_has_the_keys_of_its_own_vector() -> None:
    """The endpoint uses the keys of its vector; a region with keys of another vector admits those keys."""
    with keyed([7, 9]) as (node, _), opened(with_key(7)) as seven, opened(with_key(9)) as nine:
        other = node.keep(node.domain.av_open())
        memory = np.zeros(8, np.uint8)
        with pytest.raises(fi.InvalidArgument, match="no authorization key"):
            node.domain.mr_regattr(attr(memory, fi.MrAuthKey(other), 16))
        other.insert_auth_key(vni(9))
        node.keep(node.domain.mr_regattr(attr(memory, fi.MrAuthKey(other), 16)))
        nic, _, pid = str(node.name).removeprefix("weft://").split("/")
        assert outcome(seven, seven.av.insert(f"weft://{nic}/7/{pid}")) == fi.EACCES
        assert outcome(nine, nine.av.insert(f"weft://{nic}/9/{pid}")) == 0


@pytest.mark.clause("mr.auth-key.src-addr", "mr.flag.auth-key-unset")
def test_region_restricted_to_an_endpoint_refuses_others() -> None:
    with (
        keyed([7], ALL_CAPS | fi.DIRECTED_RECV) as (node, handles),
        opened(with_key(7)) as chosen,
        opened(with_key(7)) as other,
    ):
        fi_addr = node.av.insert(chosen.name, flags=fi.AUTH_KEY, fi_addr=handles[0])
        memory = np.zeros(8, np.uint8)
        node.keep(node.domain.mr_regattr(attr(memory, fi.MrAuthKey(node.av, fi_addr), 16)))
        for _ in range(2):
            assert outcome(other, other.av.insert(node.name)) == fi.EACCES
            assert outcome(chosen, chosen.av.insert(node.name)) == 0


@pytest.mark.clause("mr.auth-key.src-addr-auth", "mr.flag.auth-key-set")
def test_region_restricted_to_one_key_admits_its_peers() -> None:
    with (
        keyed([7, 9], ALL_CAPS | fi.DIRECTED_RECV) as (node, handles),
        opened(with_key(7)) as seven,
        opened(with_key(9)) as nine,
    ):
        memory = np.zeros(8, np.uint8)
        key = fi.MrAuthKey(node.av, handles[1])
        with node.domain.mr_regattr(attr(memory, key, 16), fi.AUTH_KEY):
            nic, _, pid = str(node.name).removeprefix("weft://").split("/")
            assert outcome(seven, seven.av.insert(f"weft://{nic}/7/{pid}")) == fi.EACCES
            assert outcome(nine, nine.av.insert(f"weft://{nic}/9/{pid}")) == 0
        with pytest.raises(fi.InvalidArgument, match="no authorization key"):
            node.domain.mr_regattr(attr(memory, fi.MrAuthKey(node.av, 17), 16), fi.AUTH_KEY)
        with pytest.raises(fi.InvalidArgument, match="not in the address vector"):
            node.domain.mr_regattr(attr(memory, fi.MrAuthKey(node.av, 17), 16))


def test_region_takes_no_keys_of_another_domains_vector() -> None:
    with keyed([7]) as (node, _), keyed([7]) as (other, _), pytest.raises(fi.FabricError) as caught:
        node.domain.mr_regattr(attr(np.zeros(8, np.uint8), fi.MrAuthKey(other.av), fi.MrAuthKey.SIZE))
    assert caught.value.errno == fi.EDOMAIN


def test_restriction_needs_directed_recv() -> None:
    with keyed([7]) as (node, handles), pytest.raises(fi.InvalidArgument, match="DIRECTED_RECV"):
        node.domain.mr_regattr(attr(np.zeros(8, np.uint8), fi.MrAuthKey(node.av, handles[0]), 16), fi.AUTH_KEY)


@pytest.mark.clause("mr.auth-key.av-endpoint")
def test_under_mr_endpoint_region_and_endpoint_share_the_vector() -> None:
    def edit(asked: fi.Info) -> None:
        by_av(asked)

    with opened(edit) as plain:
        info = plain.info
        info.domain_attr.mr_mode |= fi.MR_ENDPOINT
        domain = plain.keep(plain.fabric.domain(info))
        mine, other = domain.av_open(), domain.av_open()
        cq, ep = domain.cq_open(), domain.endpoint(info)
        for av in (mine, other):
            av.insert_auth_key(vni(7))
        ep.bind(cq, fi.TRANSMIT | fi.RECV)
        ep.bind(mine)
        ep.enable()
        wrong = domain.mr_regattr(attr(np.zeros(8, np.uint8), fi.MrAuthKey(other), 16))
        with pytest.raises(fi.InvalidArgument, match="the same vector"):
            wrong.bind(ep)
        wrong.close()
        right = domain.mr_regattr(attr(np.zeros(8, np.uint8), fi.MrAuthKey(mine), 16))
        right.bind(ep)
        right.enable()
        assert right.state == "enabled"
        ep.close()
        right.close()
        for obj in (cq, mine, other):
            obj.close()
