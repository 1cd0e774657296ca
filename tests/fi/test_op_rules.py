"""The rules of calls that a provider's policy makes, and the NIC enforces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tests.fi.support import KEY, Node, opened

from weft import _nic, fi
from weft.fi import registry
from weft.providers.base import BaseDomain, BaseEndpoint
from weft.providers.general import General

pytestmark = pytest.mark.general("providers of its own, made from the general one")


@contextlib.contextmanager
def node_with(rules: _nic.OpRules) -> Iterator[Node]:
    """An endpoint of a general provider whose calls have these rules."""
    endpoint = type("Endpoint", (BaseEndpoint,), {"op_rules": rules})
    domain = type("Domain", (General.domain_class,), {"endpoint_class": endpoint})
    assert issubclass(domain, BaseDomain)
    registry.register(type("Ruled", (General,), {"name": "ruled", "domain_class": domain})())

    def edit(info: fi.Info) -> None:
        info.fabric_attr.prov_name = "ruled"

    try:
        with opened(edit=edit) as node:
            yield node
    finally:
        registry._providers.pop("ruled")


def rules(change: Callable[[_nic.OpRules], object]) -> _nic.OpRules:
    made = _nic.OpRules()
    change(made)
    return made


def msg(node: Node, ranges: int = 1, buffers: int = 1) -> fi.MsgRma:
    return fi.MsgRma(msg_iov=[bytearray(8)] * buffers, addr=node.me, rma_iov=[fi.RmaIov(0, 8, KEY)] * ranges)


def test_endpoint_whose_rules_admit_one_buffer_refuses_two() -> None:
    with node_with(rules(lambda r: setattr(r, "iov_max", 1))) as node:
        memory = bytearray(16)
        node.reg(memory, requested_key=KEY)
        node.ep.writev([b"12345678"], None, node.me, 0, KEY)
        node.wait()
        with pytest.raises(fi.InvalidArgument, match="2 buffers are more than iov_limit, 1"):
            node.ep.writev([b"1234", b"5678"], None, node.me, 0, KEY)
        with pytest.raises(fi.InvalidArgument, match="2 buffers are more than iov_limit, 1"):
            node.ep.fetch_atomicv([np.ones(1, "i8")] * 2, None, [np.ones(1, "i8")] * 2, None, node.me, 0, KEY,
                                  fi.INT64, fi.SUM)  # fmt: skip
        assert memory[:8] == b"12345678"


def test_endpoint_whose_rules_admit_one_range_refuses_two() -> None:
    one = rules(lambda r: setattr(r, "rma_iov_max", 1))
    with node_with(one) as node, pytest.raises(fi.InvalidArgument, match="rma_iov has 2 entries; 1 to 1"):
        node.ep.writemsg(msg(node, ranges=2, buffers=2))


def test_refusal_has_the_errno_that_the_rules_give() -> None:
    strange = rules(lambda r: r.set_errno(_nic.Refusal.too_many_buffers, fi.ENOSYS))
    with node_with(strange) as node, pytest.raises(fi.NoSys, match="9 buffers") as caught:
        node.ep.writev([b"1"] * 9, None, node.me, 0, KEY)
    assert caught.value.errno == fi.ENOSYS


def test_flags_that_the_rules_do_not_admit_are_refused() -> None:
    with node_with(rules(lambda r: r.set_flags("write", int(fi.COMPLETION)))) as node:
        with pytest.raises(fi.BadFlags, match="not for this call"):
            node.ep.writemsg(msg(node), fi.FENCE)
        with pytest.raises(fi.BadFlags, match="not for this call"):
            node.ep.readmsg(msg(node), fi.REMOTE_CQ_DATA)


def test_atomics_query_and_call_follow_the_rules() -> None:
    def change(r: _nic.OpRules) -> None:
        r.set_atomics(1, int(fi.SUM), 1 << int(fi.UINT64))
        r.atomic_count_max = 1

    with node_with(rules(change)) as node:
        memory = np.zeros(2, "u8")
        node.reg(memory, requested_key=KEY)
        assert node.ep.fetch_atomicvalid(fi.UINT64, fi.SUM) == 1
        with pytest.raises(fi.NotSupported):
            node.ep.fetch_atomicvalid(fi.INT64, fi.SUM)
        with pytest.raises(fi.NotSupported, match="does not exist as a"):
            node.ep.fetch_atomic(np.ones(1, "i8"), None, np.zeros(1, "i8"), None, node.me, 0, KEY, fi.INT64, fi.SUM)
        with pytest.raises(fi.MessageTooLong, match="2 elements are more than one call may carry, 1"):
            node.ep.fetch_atomic(np.ones(2, "u8"), None, np.zeros(2, "u8"), None, node.me, 0, KEY, fi.UINT64, fi.SUM)
        node.ep.fetch_atomic(np.ones(1, "u8"), None, np.zeros(1, "u8"), None, node.me, 0, KEY, fi.UINT64, fi.SUM)
        node.wait()
        assert memory[0] == 1


def test_rules_promise_no_atomic_that_the_nic_cannot_do() -> None:
    made = rules(lambda r: r.set_atomics(0, int(fi.BOR), (1 << 32) - 1))
    assert made.atomics(0, int(fi.BOR)) >> int(fi.DOUBLE) & 1 == 0
    assert made.atomics(0, int(fi.BOR)) >> int(fi.UINT64) & 1 == 1


@pytest.mark.parametrize("count", [0, 9])
def test_rules_take_no_list_that_the_nic_cannot_describe(count: int) -> None:
    with pytest.raises(fi.InvalidArgument, match=rf"OpRules.iov_max is 1 to 8, not {count}"):
        rules(lambda r: setattr(r, "iov_max", count))
