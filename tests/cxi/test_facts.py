"""Answers of the real provider where fi_cxi(7) is silent: contexts, rights, keys of endpoints, order of checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.cxi.support import BOTH, opened, register
from tests.fi.support import Node

from weft import cxi, fi

KEY = 200
WORD = np.ones(1, "u8")


def own_endpoint(node: Node, context: Any) -> fi.Endpoint:
    ep = node.keep(node.domain.endpoint(node.info, context))
    ep.bind(node.cq, BOTH)
    ep.bind(node.av)
    ep.enable()
    return ep


# ---- contexts --------------------------------------------------------------------------------------------------------


def failures(ep: fi.Endpoint, peer: int) -> Iterator[Any]:
    ep.inject_write(WORD, peer, 0, 4711)
    yield "inject_write"
    ep.inject_atomic(WORD, peer, 0, 4711, fi.UINT64, fi.SUM)
    yield "inject_atomic"


@pytest.mark.parametrize("context", ["the endpoint's", None])
def test_failed_inject_call_reports_the_context_of_its_endpoint(context: Any, node: Node) -> None:
    ep = own_endpoint(node, context)
    for _ in failures(ep, node.me):
        with pytest.raises(fi.Available):
            node.cq.read()
        assert node.cq.readerr().op_context is context


def test_successful_inject_call_keeps_no_reference_to_the_context(node: Node) -> None:
    import sys

    class Context: ...

    context = Context()
    ep = own_endpoint(node, context)
    register(node, bytearray(8), KEY)
    before = sys.getrefcount(context)
    for _ in range(100):
        ep.inject_write(WORD, node.me, 0, KEY)
        ep.inject_atomic(WORD, node.me, 0, KEY, fi.UINT64, fi.SUM)
    assert node.cq.read() == []
    assert sys.getrefcount(context) == before


# ---- rights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("access", [fi.REMOTE_READ, fi.REMOTE_WRITE])
@pytest.mark.parametrize("op", [fi.ATOMIC_READ, fi.SUM])
def test_fetching_atomics_need_both_remote_rights(node: Node, access: int, op: int) -> None:
    register(node, np.zeros(1, "u8"), KEY, access)
    node.ep.fetch_atomic(WORD, None, np.zeros(1, "u8"), None, node.me, 0, KEY, fi.UINT64, op)
    with pytest.raises(fi.Available):
        node.cq.read()
    assert node.cq.readerr().err == fi.EIO


def test_plain_atomics_need_the_right_to_write_alone(node: Node) -> None:
    register(node, np.zeros(1, "u8"), KEY, fi.REMOTE_WRITE)
    node.ep.atomic(WORD, None, node.me, 0, KEY, fi.UINT64, fi.SUM)
    assert len(node.wait()) == 1


# ---- endpoints of another VNI ----------------------------------------------------------------------------------------


def test_later_releases_admit_endpoints_of_another_vni_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CXI_RELEASE", "current")
    with opened(auth_key=cxi.AuthKey(1, 61)) as node:
        node.info.ep_attr.auth_key = cxi.AuthKey(1, 62)
        first, second = own_endpoint(node, None), own_endpoint(node, None)
        memory = bytearray(8)
        mr = node.domain.mr_reg(memory, fi.REMOTE_READ | fi.REMOTE_WRITE, requested_key=KEY)
        mr.bind(second)
        mr.enable()
        peer = node.av.insert(second.getname())
        first.write(b"12345678", dest_addr=peer, addr=0, key=KEY)
        node.wait()
        assert memory == b"12345678"
        node.ep.write(b"87654321", dest_addr=peer, addr=0, key=KEY)  # the domain's VNI: that peer does not exist there
        with pytest.raises(fi.Available):
            node.cq.sread(1, timeout=30)
        assert node.cq.readerr().err == fi.EIO
        assert memory == b"12345678"
        mr.close()


# ---- optimized regions -----------------------------------------------------------------------------------------------


def with_setting(on: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("FI_CXI_OPTIMIZED_MRS", str(int(on)))
    return opened()


@pytest.mark.clause("cxi.opt.peers-agree")
@pytest.mark.parametrize("owner_on", [True, False])
def test_peers_whose_settings_of_optimized_regions_differ_do_not_reach_them(
    owner_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_setting(owner_on, monkeypatch) as owner, with_setting(not owner_on, monkeypatch) as other:
        memory = bytearray(8)
        mr = register(owner, memory, 7)
        assert mr.key == 7
        register(owner, memory, KEY)
        peer, me = other.av.insert(owner.ep.getname()), owner.me
        owner.ep.write(b"12345678", dest_addr=me, addr=0, key=7)
        owner.wait()
        assert memory == b"12345678"
        for post in (
            lambda: other.ep.write(b"87654321", dest_addr=peer, addr=0, key=7),
            lambda: other.ep.read(bytearray(8), src_addr=peer, addr=0, key=7),
            lambda: other.ep.atomic(WORD, None, peer, 0, 7, fi.UINT64, fi.SUM),
            lambda: other.ep.fetch_atomic(WORD, None, np.zeros(1, "u8"), None, peer, 0, 7, fi.UINT64, fi.SUM),
        ):
            post()
            with pytest.raises(fi.Available):
                other.cq.read()
            error = other.cq.readerr()
            found = "PTLTE" if not owner_on else "ENTRY"
            assert error.err == fi.EIO
            assert cxi.ReturnCode(error.prov_errno).name == f"C_RC_{found}_NOT_FOUND"
            assert b"key 0x7 " in error.err_data
            assert b"the same setting of optimized regions" in error.err_data
        assert memory == b"12345678"
        other.ep.write(b"87654321", dest_addr=peer, addr=0, key=KEY)  # standard regions have no such setting
        other.wait()
        assert memory == b"87654321"


def test_key_below_100_is_a_standard_region_s_without_optimized_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    with with_setting(False, monkeypatch) as node:
        memory = bytearray(8)
        mr = register(node, memory, 7)
        with pytest.raises(fi.NoKey):
            node.domain.mr_reg(memory, fi.REMOTE_WRITE, requested_key=7)
        node.ep.write(b"12345678", dest_addr=node.me, addr=0, key=mr.key)
        node.wait()
        assert memory == b"12345678"


# ---- the order of checks, and their words ----------------------------------------------------------------------------


def refusal(call: Any) -> fi.FabricError:
    with pytest.raises(fi.FabricError) as caught:
        call()
    return caught.value


def test_fence_without_the_capability_is_refused_before_the_length() -> None:
    def fenced(info: fi.Info) -> None:
        assert not info.caps & fi.FENCE
        info.tx_attr.op_flags = fi.FENCE

    with opened(edit=fenced) as node:
        peer, memory = node.me, np.zeros(1, "u8")
        long = memory.ctypes.data, 1 << 33
        for buf in (b"x", long):
            assert refusal(lambda buf=buf: node.ep.write(buf, dest_addr=peer, addr=0, key=KEY)).errno == fi.EINVAL
    with opened() as node:
        assert refusal(lambda: node.ep.write(long, dest_addr=node.me, addr=0, key=KEY)).errno == fi.EMSGSIZE


def test_refused_flags_are_named(node: Node) -> None:
    msg = fi.MsgRma([WORD], [fi.RmaIov(0, 8, KEY)], node.me)
    error = refusal(lambda: node.ep.writemsg(msg, int(fi.PEEK) | int(cxi.UNRELIABLE) | int(fi.REMOTE_CQ_DATA)))
    assert error.errno == fi.EBADFLAGS
    assert "(REMOTE_CQ_DATA | PEEK | cxi.UNRELIABLE) are not for this call" in str(error)
    assert "cxi.HRP" in str(error).split("known here: ")[1]


def test_unknown_peer_is_refused_with_what_to_do(node: Node) -> None:
    error = refusal(lambda: node.ep.write(b"x", dest_addr=17, addr=0, key=KEY))
    assert error.errno == fi.EINVAL
    assert "write: fi_addr 17 is not in the address vector\n  try: the number that av.insert() returned" in str(error)
